"""What the agent says to Slurm to have jobs make room: refusals, slow commands, and jobs that may not be requeued."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from moorings.core.errors import MooringsError
from moorings.core.instants import SECOND, Instant, after
from moorings.slurm.commands import Commands
from moorings.slurm.formats import Asked, JobRecord, Order
from moorings.slurm.host import reclaimer as module
from moorings.slurm.host.calls import Calls
from moorings.slurm.host.reclaimer import SIGNAL_TRIES, TRIES_MAX, Reclaimer
from moorings.slurm.host.troubles import Troubles
from moorings.wire.codec import time_text
from moorings.wire.shapes import ClaimBody
from tests.unit.slurm.test_ledger import HOME, NONCE, a_claim, a_job, by_id
from tests.waiting import until_async as until

ORDER = Order(nonce=NONCE, ipus=4, gcds=2, replicas=4, signal="B:USR1")
DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "slurm"
REFUSED = MooringsError("slurm.refused", "Unknown job signal")
AWAY = MooringsError("slurm.unavailable", "no answer", retryable=True)


class Slurm:
    """Takes what it is asked; ``fails`` says of a command, by its words, why it does not."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails: dict[str, MooringsError] = {}
        self.hangs: str | None = None

    async def ask(self, argv: Sequence[str]) -> bytes:
        words = " ".join(argv)
        self.asked.append(words)
        if self.hangs is not None and self.hangs in words:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        for part, error in self.fails.items():
            if part in words:
                raise error
        return b""

    def count(self, part: str) -> int:
        return sum(part in words for words in self.asked)


def borrower(job_id: int = 1, **more: Any) -> JobRecord:
    return a_job(job_id, order=ORDER, **more)


def reclaimed(job_id: int) -> ClaimBody:
    return replace(a_claim(job_id, state="RECLAIMING"), asked_until=time_text(after(module._clock(), 600.0)))


def over(seconds: float = 1.0) -> Asked:
    """A warning whose time is over."""
    return Asked(0, Instant(after(module._clock(), -seconds) // SECOND * SECOND), Instant(SECOND))


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    return Slurm()


@contextlib.asynccontextmanager
async def serving(slurm: Slurm) -> AsyncIterator[Reclaimer]:
    made = Reclaimer(cast(Commands, slurm), cast(Calls, None), HOME, Troubles())
    work = asyncio.ensure_future(made.serve())
    try:
        yield made
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def look(reclaimer: Reclaimer, *jobs: JobRecord) -> None:
    reclaimer.look(by_id(*jobs), [reclaimed(job.job_id) for job in jobs], {}, 30.0)


async def idle(reclaimer: Reclaimer) -> None:
    await until(lambda: not reclaimer._look.is_set() and not reclaimer._under_way)


async def test_who_may_not_be_requeued_is_let_and_then_warned_as_always(slurm: Slurm) -> None:
    async with serving(slurm) as reclaimer:
        look(reclaimer, borrower(requeue=False))
        await idle(reclaimer)
        assert slurm.asked == ["scontrol update jobid=1 requeue=1"]
        look(reclaimer, borrower())
        await idle(reclaimer)
    assert "requeued at " in slurm.asked[1]
    assert slurm.asked[2:] == ["scancel --signal=USR1 --batch 1"]


async def test_who_slurm_does_not_let_is_cancelled_when_its_time_is_over_and_told_of_once(
    slurm: Slurm, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.fails["requeue=1"] = REFUSED
    async with serving(slurm) as reclaimer:
        look(reclaimer, borrower(requeue=False))
        await idle(reclaimer)
        look(reclaimer, borrower(requeue=False))
        await idle(reclaimer)
        assert "it cannot be requeued, so cancelled at " in slurm.asked[1]
        for _ in range(2):
            look(reclaimer, borrower(requeue=False, asked=over()))
            await idle(reclaimer)
    assert slurm.asked[-2].endswith("-- cancelled, for its devices are needed and it cannot be requeued")
    assert slurm.asked[-1] == "scancel 1"
    assert slurm.count("requeue=1") == 1
    assert [record.message for record in caplog.records].count("job.cannot_yield") == 1


async def test_that_slurm_is_away_is_no_refusal(slurm: Slurm) -> None:
    slurm.fails["requeue=1"] = AWAY
    async with serving(slurm) as reclaimer:
        for _ in range(TRIES_MAX + 2):
            look(reclaimer, borrower(requeue=False, asked=over()))
            await idle(reclaimer)
    assert slurm.count("requeue=1") == TRIES_MAX + 2
    assert slurm.count("scancel") == 0


async def test_who_takes_it_back_again_and_again_is_cancelled(slurm: Slurm) -> None:
    async with serving(slurm) as reclaimer:
        for _ in range(TRIES_MAX + 1):
            look(reclaimer, borrower(requeue=False, asked=over()))
            await idle(reclaimer)
    assert slurm.count("requeue=1") == TRIES_MAX
    assert slurm.asked[-1] == "scancel 1"


async def test_a_signal_that_slurm_refuses_is_not_sent_again(slurm: Slurm) -> None:
    slurm.fails["--signal"] = REFUSED
    async with serving(slurm) as reclaimer:
        look(reclaimer, borrower())
        await idle(reclaimer)
    assert slurm.count("--signal") == 1


async def test_a_signal_that_slurm_did_not_take_is_sent_again_while_its_job_runs(slurm: Slurm) -> None:
    slurm.fails["--signal"] = AWAY
    async with serving(slurm) as reclaimer:
        look(reclaimer, borrower())
        await idle(reclaimer)
        assert slurm.count("--signal") == SIGNAL_TRIES
        slurm.asked.clear()
        look(reclaimer, borrower(2))
        while not slurm.count("--signal"):  # noqa: ASYNC110 - seen at once: the tries are a millisecond apart
            await asyncio.sleep(0)
        reclaimer.look(by_id(borrower(2, state="PENDING", restarts=1)), [], {}, 30.0)
        await idle(reclaimer)
    assert slurm.count("--signal") < SIGNAL_TRIES


@pytest.mark.parametrize("hangs", ["jobid=1 admincomment", "--signal=USR1 --batch 1"])
async def test_a_command_that_hangs_holds_up_no_other_job(slurm: Slurm, hangs: str) -> None:
    slurm.hangs = hangs
    async with serving(slurm) as reclaimer:
        look(reclaimer, borrower(1), borrower(2))
        await until(lambda: slurm.count("--batch 2"))
        look(reclaimer, borrower(1), borrower(2, asked=over()), borrower(3))
        await until(lambda: slurm.count("scontrol requeue 2") and slurm.count("--batch 3"))
    assert slurm.count(hangs) == 1, "and is not begun a second time"


async def test_of_an_array_only_the_task_that_was_asked_makes_room(slurm: Slurm) -> None:
    job = borrower(7, array_job=7, array_tasks="3")
    async with serving(slurm) as reclaimer:
        look(reclaimer, job)
        await idle(reclaimer)
        look(reclaimer, replace(job, asked=over()))
        await idle(reclaimer)
    assert slurm.asked[0].startswith("scontrol update jobid=7_3 admincomment=")
    assert slurm.asked[1:] == ["scancel --signal=USR1 --batch 7_3", "scontrol requeue 7_3"]


def test_the_plugin_and_the_submit_script_know_the_same_signals() -> None:
    plugin = re.search(r'known\[\] = "([A-Z0-9 ]+)"', (DEPLOY / "moorings_spank.c").read_text())
    script = re.search(r'SIGNALS = "([A-Z0-9 ]+)"', (DEPLOY / "moorings_submit.lua").read_text())
    assert plugin
    assert script
    assert plugin[1] == script[1]
    assert {"USR1", "USR2", "TERM"} <= set(script[1].split())
    assert not {"KILL", "STOP"} & set(script[1].split())
