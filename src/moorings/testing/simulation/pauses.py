"""An admin who pauses and resumes the runs of everybody, in some episodes; lost runs are retried there.

With randomness of its own, so that in all other episodes nothing changes.
"""

from __future__ import annotations

import asyncio
import random

from moorings.core.model.errors import MooringsError
from moorings.testing.simulation.clients import ROOT, ClientPool, NoAnswerError
from moorings.workloads.runs import Run, RunId, RunState

PAUSES_EVERY, PAUSES_AT = 9, 2  # seeds
REWOUND_EVERY, REWOUND_AT = 27, 5  # seeds in which the database is turned back, too
THINK_S = 1.0
RETRIES = 2  # of jobs that can be resumed, in these episodes
MAYBE_PAUSED = (RunState.WAITING, RunState.STARTING, RunState.RUNNING, RunState.YIELDING)


def has_pauses(seed: int) -> bool:
    """Whether runs are paused in an episode; not drawn, for the same reason."""
    return seed % PAUSES_EVERY == PAUSES_AT or seed % REWOUND_EVERY == REWOUND_AT


class PausingAdmin:
    """The admin."""

    def __init__(self, crowd: ClientPool, seed: int) -> None:
        self._crowd = crowd
        self._chance = random.Random(f"pauses {seed}")

    async def work(self) -> None:
        """Pause or resume one run after the other, until cancelled."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / THINK_S))
            runs = self._crowd.stage.ledger.runs
            paused = [ident for ident, run in runs.items() if run.state is RunState.PAUSED]
            others = [ident for ident, run in runs.items() if run.state in MAYBE_PAUSED]
            try:
                if paused and (not others or self._chance.random() < 0.6):
                    await self._resume(runs[self._chance.choice(paused)])
                elif others:
                    await self._pause(self._chance.choice(others))
            except (NoAnswerError, MooringsError):
                continue  # recorded and checked by ``ClientPool``

    async def _pause(self, ident: RunId) -> None:
        save_timeout_s = self._chance.choice((None, 0.0, 3.0))
        wait_s = self._chance.choice((0.0, 5.0))
        await self._crowd.ask(
            "root",
            f"pause {ident}",
            lambda c: c.runs.pause_run(ROOT, ident, save_timeout_s=save_timeout_s, wait_s=wait_s),
        )

    async def _resume(self, run: Run) -> None:
        whole = [each.path for each in run.checkpoints if each.is_whole]
        chosen = self._chance.choice(whole) if whole and self._chance.random() < 0.3 else None
        await self._crowd.ask(
            "root", f"resume {run.id} {chosen}", lambda c: c.runs.resume_run(ROOT, run.id, resume_from=chosen)
        )
