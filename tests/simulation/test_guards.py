"""The simulator finds bugs: each law's guard is taken out of a copy of the source, and a law must be seen to break.

The figures in docs/explanation/simulation.md come from here (`-s` shows them). A guard that has moved is an error: put
the new words in.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.guards.mutants import Copy

TOTAL = 40_000
STEPS = 3_000


@dataclass(frozen=True)
class Guard:
    """What is taken out: in which file, which words, and what stands there instead; and which laws may break then.

    ``first`` is the seed of the first episode.
    """

    name: str
    laws: tuple[int, ...]
    cuts: tuple[tuple[str, str, str], ...]
    first: int = 1


GUARDS = (
    Guard(
        "what a grant takes is taken from the free map",
        (1,),
        (
            (
                "core/fleet.py",
                "                state.free.take(block)\n\n    def _holds",
                "                pass\n\n    def _holds",
            ),
        ),
    ),
    Guard(
        "the fencing epoch is compared in every commit",
        (1,),
        (("store/sql.py", "connection.execute(_RAISE_SEQ_GUARDED,", "connection.execute(_RAISE_SEQ,"),),
    ),
    Guard(
        "partitions with our mark that nobody holds are removed",
        (2,),
        (("controller/hardware.py", "for stray in judged.strays:", "for stray in ():"),),
    ),
    Guard(
        "memory is read again after a save whose answer was lost",
        (0, 1, 2, 5, 9),
        (
            (
                "controller/loop.py",
                "                self._stale = True\n                self.problem",
                "                self.problem",
            ),
        ),
    ),
    Guard(
        "one bad listing ends nothing",
        (3,),
        (
            ("core/reconcile.py", "LISTINGS_NEEDED = 3", "LISTINGS_NEEDED = 1"),
            ("core/reconcile.py", "BAD_S = 30.0", "BAD_S = 0.0"),
        ),
        first=100,  # rare: from the first seed on it would take 75,000 steps
    ),
    Guard(
        "a run ends when the engine says that nothing of it runs",
        (3,),
        (
            (
                "workloads/turn.py",
                "if run.state is RunState.WAITING:\n            return self._end(",
                "if True:\n            return self._end(",
            ),
        ),
    ),
    Guard(
        "a run in another scheduler's queue has ended when that says so",
        (3,),
        (("workloads/turn.py", "if run.is_queued:  # whether", "if False:  # whether"),),
    ),
    Guard(
        "a run starts when its partition is ACTIVE",
        (4,),
        (
            (
                "workloads/turn.py",
                "claim.state is ClaimState.READY and waiting",
                "claim.state in (ClaimState.GRANTED, ClaimState.READY) and waiting",
            ),
            (
                "controller/running.py",
                "partition is None or partition.state is not PartitionState.ACTIVE",
                "partition is None",
            ),
            ("drivers/simulated/driver.py", " self._demand_active(order, now)\n", " pass\n"),
        ),
    ),
    Guard(
        "a key is for one body only",
        (5,),
        (("controller/loop.py", "if key is not None and key.digest != use.digest:", "if False:"),),
    ),
    Guard(
        "what is lent for good leaves room for every guarantee",
        (6,),
        (
            (
                "core/queue.py",
                "return estate is None or claim.spec.preemptible or estate.may_hold(block)",
                "return True",
            ),
        ),
    ),
    Guard(
        "who borrowed has some time before it is asked to yield",
        (6,),
        (("core/reclaims.py", "when = max(now, after(tenant.since, policy.min_run_s))", "when = now"),),
    ),
    Guard(
        "who is within a guarantee has borrowers yield",
        (6,),
        (("core/queue.py", "        wanted, state = best\n", "        return False\n        wanted, state = best\n"),),
        first=4,  # the first rush
    ),
    Guard(
        "a person's claim is taken when its time to yield is over",
        (6,),
        (
            (
                "core/scheduling.py",
                "if claim.state is ClaimState.RECLAIMING\n            and claim.owner.startswith(BY_HAND)",
                "if False",
            ),
        ),
        first=4,
    ),
    Guard(
        "who is within a guarantee has borrowers under its project's limit yield",
        (6,),
        (("core/queue.py", "(owed := self._limits.owed(claim)) is not None", "(owed := None) is not None"),),
        first=32,  # a rush, too
    ),
    Guard(
        "a block is kept for the first that must wait",
        (7,),
        (
            (
                "core/queue.py",
                "return _Got.SERVED if self.policy.reserve and self._reserve(claim, able) else _Got.NOTHING",
                "return _Got.NOTHING",
            ),
        ),
    ),
    Guard(
        "every wait is explained",
        (8,),
        (("core/explain.py", "    return Wait(position, tuple(reasons))", "    return Wait(position, ())"),),
    ),
    Guard(
        "until when devices are held is brought up to date with claims",
        (9,),
        (
            (
                "core/fleet.py",
                "for ident in touched(changes):",
                "for ident in changes.partitions:",
            ),
        ),
    ),
    Guard(
        "nobody ends what is another's",
        (10,),
        (("controller/service.py", 'check_may_act(caller, claim.owner, claim.subject, "release a claim")', "pass"),),
    ),
)


@contextlib.contextmanager
def without(guard: Guard, folder: Path) -> Iterator[Path]:
    """A copy of the source, without that guard for as long as the block takes."""
    copy = Copy(folder)
    with contextlib.ExitStack() as cuts:
        for file, words, instead in guard.cuts:
            cuts.enter_context(copy.changed(guard.name, file, words, instead))
        yield copy.path


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name.replace(" ", "-"))
def test_a_missing_guard_is_found(guard: Guard, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "moorings.testing.simulation")
    with without(guard, tmp_path) as source:
        told = subprocess.run(
            (*command, "--total", str(TOTAL), "--steps", str(STEPS), "--jobs", "1", "--first", str(guard.first)),
            env={**os.environ, "PYTHONPATH": str(source)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    found = re.search(r"law (\d+) is broken in episode (\d+) at step (\d+): (.*)", told.stdout)
    assert found is not None, told.stdout[-2000:] + told.stderr[-4000:]
    law, episode, step = int(found[1]), int(found[2]), int(found[3])
    print(f"\n{guard.name}: law {law} after {(episode - guard.first) * STEPS + step} steps: {found[4][:120]}")
    assert law in guard.laws, found[0]
    assert told.returncode == 8
