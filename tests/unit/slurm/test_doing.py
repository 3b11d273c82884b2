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

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import JobRecord, SubmittedOptions, YieldNotice
from moorings.slurm.host import executor as module
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.executor import SIGNAL_TRIES, JobAct, SlurmExecutor
from moorings.slurm.host.failure_log import FailureLog
from moorings.slurm.host.plan import TRIES_MAX, ClusterState, LogWarning, PlanState, StopUnboundJob, plan
from moorings.wire.codec import format_time
from moorings.wire.shapes import ClaimBody
from tests.unit.slurm.test_ledger import HOME, NONCE, a_claim, a_job, by_id
from tests.waiting import until_async as until

ORDER = SubmittedOptions(nonce=NONCE, ipus=4, gcds=2, replicas=4, signal="B:USR1")
DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "slurm"
REFUSED = MooringsError("slurm.refused", "Unknown job signal")
AWAY = MooringsError("slurm.unavailable", "no answer", retryable=True)


class Slurm:
    """Takes what it is asked; ``fails`` says of a command, by its words, why it does not."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails: dict[str, MooringsError] = {}
        self.hangs: str | None = None
        self.answers: dict[str, bytes] = {}

    async def run_checked(self, argv: Sequence[str]) -> bytes:
        words = " ".join(argv)
        self.asked.append(words)
        if self.hangs is not None and self.hangs in words:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        for part, error in self.fails.items():
            if part in words:
                raise error
        return self.answers.get(argv[0], b"")

    def count(self, part: str) -> int:
        return sum(part in words for words in self.asked)


def borrower(job_id: int = 1, **more: Any) -> JobRecord:
    return a_job(job_id, order=ORDER, **more)


def reclaimed(job_id: int) -> ClaimBody:
    return replace(
        a_claim(job_id, state="RECLAIMING"), asked_until=format_time(add_seconds(module.wall_clock(), 600.0))
    )


def over(seconds: float = 1.0) -> YieldNotice:
    """A warning whose time is over."""
    return YieldNotice(0, Timestamp(add_seconds(module.wall_clock(), -seconds) // SECOND * SECOND), Timestamp(SECOND))


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    return Slurm()


class Followed:
    """A doer that does what is planned from the lists of jobs it is shown; ``reports`` are those of all plans."""

    def __init__(self, slurm: Slurm) -> None:
        self.doer = SlurmExecutor(cast(SlurmCommands, slurm), cast(ControllerClient, None), FailureLog())
        self.reports: list[LogWarning] = []
        self._memory = PlanState()
        self._at_s = 0.0

    def look(self, *jobs: JobRecord, claims: bool = True) -> None:
        """A good list of jobs; the claim of each was asked to yield."""
        self._at_s += 1.0
        known = [reclaimed(job.job_id) for job in jobs] if claims else []
        view = ClusterState(
            home=HOME,
            at_s=self._at_s,
            jobs=by_id(*jobs),
            listed_at=self._at_s,
            claims_before={claim.owner: claim for claim in known},
            is_accepted=True,
            claims_listed=True,
            outcomes=self.doer.outcomes,
            memory=self._memory,
        )
        found = plan(view, module.wall_clock())
        self._memory = found.memory
        self.doer.forget_missing(view.jobs)
        for act in found.acts:
            if isinstance(act, LogWarning):
                self.reports.append(act)
            elif isinstance(act, JobAct):
                self.doer.submit(act)

    async def idle(self) -> None:
        await until(lambda: self.doer._acts.empty() and not self.doer._under_way)


@contextlib.asynccontextmanager
async def serving(slurm: Slurm) -> AsyncIterator[Followed]:
    made = Followed(slurm)
    work = asyncio.ensure_future(made.doer.serve())
    try:
        yield made
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def test_who_may_not_be_requeued_is_let_and_then_warned_as_always(slurm: Slurm) -> None:
    async with serving(slurm) as followed:
        followed.look(borrower(requeue=False))
        await followed.idle()
        assert slurm.asked == ["scontrol update jobid=1 requeue=1"]
        followed.look(borrower())
        await followed.idle()
    assert "requeued at " in slurm.asked[1]
    assert slurm.asked[2:] == ["scancel --signal=USR1 --batch 1"]


async def test_who_slurm_does_not_let_is_cancelled_when_its_time_is_over_and_told_of_once(slurm: Slurm) -> None:
    slurm.fails["requeue=1"] = REFUSED
    async with serving(slurm) as followed:
        followed.look(borrower(requeue=False))
        await followed.idle()
        followed.look(borrower(requeue=False))
        await followed.idle()
        assert "it cannot be requeued, so cancelled at " in slurm.asked[1]
        for _ in range(2):
            followed.look(borrower(requeue=False, asked=over()))
            await followed.idle()
    assert slurm.asked[-2].endswith("-- cancelled, for its devices are needed and it cannot be requeued")
    assert slurm.asked[-1] == "scancel 1"
    assert slurm.count("requeue=1") == 1
    assert [report.event for report in followed.reports] == ["job.cannot_yield"]


async def test_that_slurm_is_away_is_no_refusal(slurm: Slurm) -> None:
    slurm.fails["requeue=1"] = AWAY
    async with serving(slurm) as followed:
        for _ in range(TRIES_MAX + 2):
            followed.look(borrower(requeue=False, asked=over()))
            await followed.idle()
    assert slurm.count("requeue=1") == TRIES_MAX + 2
    assert slurm.count("scancel") == 0


async def test_who_takes_it_back_again_and_again_is_cancelled(slurm: Slurm) -> None:
    async with serving(slurm) as followed:
        for _ in range(TRIES_MAX + 1):
            followed.look(borrower(requeue=False, asked=over()))
            await followed.idle()
    assert slurm.count("requeue=1") == TRIES_MAX
    assert slurm.asked[-1] == "scancel 1"


async def test_a_signal_that_slurm_refuses_is_not_sent_again(slurm: Slurm) -> None:
    slurm.fails["--signal"] = REFUSED
    async with serving(slurm) as followed:
        followed.look(borrower())
        await followed.idle()
    assert slurm.count("--signal") == 1


async def test_a_signal_that_slurm_did_not_take_is_sent_again_while_its_job_runs(slurm: Slurm) -> None:
    slurm.fails["--signal"] = AWAY
    async with serving(slurm) as followed:
        followed.look(borrower())
        await followed.idle()
        assert slurm.count("--signal") == SIGNAL_TRIES
        slurm.asked.clear()
        followed.look(borrower(2))
        while not slurm.count("--signal"):  # noqa: ASYNC110 - seen at once: the tries are a millisecond apart
            await asyncio.sleep(0)
        followed.look(borrower(2, state="PENDING", restarts=1), claims=False)
        await followed.idle()
    assert slurm.count("--signal") < SIGNAL_TRIES


@pytest.mark.parametrize("hangs", ["jobid=1 admincomment", "--signal=USR1 --batch 1"])
async def test_a_command_that_hangs_holds_up_no_other_job(slurm: Slurm, hangs: str) -> None:
    slurm.hangs = hangs
    async with serving(slurm) as followed:
        followed.look(borrower(1), borrower(2))
        await until(lambda: slurm.count("--batch 2"))
        followed.look(borrower(1), borrower(2, asked=over()), borrower(3))
        await until(lambda: slurm.count("scontrol requeue 2") and slurm.count("--batch 3"))
    assert slurm.count(hangs) == 1, "and is not begun a second time"


async def test_of_an_array_only_the_task_that_was_asked_makes_room(slurm: Slurm) -> None:
    job = borrower(7, array_job=7, array_tasks="3")
    async with serving(slurm) as followed:
        followed.look(job)
        await followed.idle()
        followed.look(replace(job, asked=over()))
        await followed.idle()
    assert slurm.asked[0].startswith("scontrol update jobid=7_3 admincomment=")
    assert slurm.asked[1:] == ["scancel --signal=USR1 --batch 7_3", "scontrol requeue 7_3"]


@pytest.mark.parametrize(
    ("state", "job", "told"),
    [
        ("mixed", borrower(7), ["scontrol update nodename=n1 state=drain", "scontrol requeue 7"]),
        ("draining", borrower(7), ["scontrol requeue 7"]),  # somebody has said why
        ("idle", borrower(7, requeue=False), ["scontrol update nodename=n1 state=drain", "scancel 7"]),
        ("idle", borrower(7, batch=False), ["scontrol update nodename=n1 state=drain", "scancel 7"]),
    ],
)
async def test_a_job_without_its_partition_is_stopped_once_its_node_is_drained(
    slurm: Slurm, state: str, job: JobRecord, told: list[str]
) -> None:
    widths = {"n1": 128, "h": 128, state: 32, "22.05.8": 24, "(null)": 256}
    slurm.answers["sinfo"] = ("".join(f"{text:{width}}|" for text, width in widths.items()) + "\n").encode()
    async with serving(slurm) as followed:
        followed.doer.submit(StopUnboundJob(job, ("n1",), "it did not ask"))
        await followed.idle()
    done = [words for words in slurm.asked if "admincomment" not in words and "sinfo" not in words]
    assert [words.partition(" reason=")[0] for words in done] == told
    assert slurm.count("admincomment") == 1


async def test_a_job_is_stopped_also_where_its_node_cannot_be_drained(slurm: Slurm) -> None:
    slurm.fails["sinfo"] = AWAY
    async with serving(slurm) as followed:
        followed.doer.submit(StopUnboundJob(borrower(7), ("n1",), "it did not ask"))
        await followed.idle()
        assert slurm.count("scontrol requeue 7") == 1
        assert followed.doer.outcomes.drained == {}, "it is to be tried again"
        del slurm.fails["sinfo"]
        followed.doer.submit(StopUnboundJob(borrower(7), ("n1",), "it did not ask"))
        await followed.idle()
        assert followed.doer.outcomes.drained == {(7, 0): {"n1"}}


@pytest.mark.parametrize(("error", "cancelled"), [(REFUSED, 1), (AWAY, 0)])
async def test_a_job_without_its_partition_that_slurm_does_not_put_back_is_cancelled(
    slurm: Slurm, error: MooringsError, cancelled: int
) -> None:
    slurm.fails["scontrol requeue"] = error
    async with serving(slurm) as followed:
        for _ in range(TRIES_MAX):
            assert slurm.count("scancel") == 0
            followed.doer.submit(StopUnboundJob(borrower(7), (), "it did not ask"))
            await followed.idle()
    assert slurm.count("scontrol requeue 7") == TRIES_MAX
    assert slurm.count("scancel 7") == cancelled


def test_the_plugin_and_the_submit_script_know_the_same_signals() -> None:
    plugin = re.search(r'known\[\] = "([A-Z0-9 ]+)"', (DEPLOY / "moorings_spank.c").read_text())
    script = re.search(r'SIGNALS = "([A-Z0-9 ]+)"', (DEPLOY / "moorings_submit.lua").read_text())
    assert plugin
    assert script
    assert plugin[1] == script[1]
    assert {"USR1", "USR2", "TERM"} <= set(script[1].split())
    assert not {"KILL", "STOP"} & set(script[1].split())
