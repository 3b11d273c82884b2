"""Runs that people submit to Slurm themselves: reports end nothing, and a job counts by uid and comment together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.core.model.bindings import NO_BINDING
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.ports.engine import RunSubmission
from moorings.ports.personal import JobAction, ListedJob, PersonalJob, ReportedFile, ReportedOutput, RunReport
from moorings.slurm.engine import job_listings, personal
from moorings.slurm.engine.personal import PersonalSlurmEngine
from moorings.slurm.engine.settings import SlurmEngineSettings
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import EndReason, RunId, RunPhase, RunStatus, Submitter

pytestmark = pytest.mark.anyio

RUN, UID, AGENT = RunId("run-1"), 1001, "slurm/lab 00ff"
START = Timestamp(time.time_ns() // 1000)
KNOWN = PersonalJob(RUN, 0, Submitter(UID, "0" * 64), 2)
JOB = ListedJob(run=RUN, attempt=0, job_id=7, uid=UID, state="RUNNING", was_started=True)
DONE = "restart=0\nstop=none\n"
ENDED = replace(JOB, state="FAILED", exit_code=3, ended_at=add_seconds(START, 5))


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = Timestamp(time.time_ns() // 1000)  # files have the machine's times

    def now(self) -> Timestamp:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at = add_seconds(self.at, seconds)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.clock = SetClock()
        self.folder = folder
        self.engine = PersonalSlurmEngine(SlurmEngineSettings(), folder, self.clock)

    async def begin(self) -> None:
        job = JobSpec(name="n", command=("true",), workdir="/", tasks=2)
        await self.engine.submit(RunSubmission(RUN, 0, job, NO_BINDING, submitter=KNOWN.submitter))

    async def list_jobs(self, *jobs: ListedJob, agent: str = AGENT, past: Sequence[ListedJob] = ()) -> list[JobAction]:
        reply = await self.engine.accept_listing(agent, [], [UID], jobs, past)
        return [order.action for order in reply.orders]

    async def report(
        self, *files: tuple[str, str], output: Sequence[ReportedOutput] = (), **more: object
    ) -> dict[int, int]:
        given = [ReportedFile(name, text, self.clock.at) for name, text in files]
        return await self.engine.accept_report(KNOWN, RunReport(attempt=0, files=given, output=output, **more))  # type: ignore[arg-type]

    async def status(self) -> RunStatus:
        (found,) = await self.engine.observe([RUN])
        return found


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path / "runs")
    await made.begin()
    return made


async def test_run_waits_until_a_listing_shows_its_job(rig: Rig) -> None:
    assert (await rig.status()).phase is RunPhase.STARTING
    await rig.list_jobs(replace(JOB, state="PENDING", reason="Resources"))
    seen = await rig.status()
    assert (seen.phase, seen.reference, seen.reason) == (RunPhase.STARTING, "7", "Slurm job 7 is PENDING (Resources)")


@pytest.mark.parametrize("other", [{"uid": UID + 1}, {"attempt": 1}, {"run": RunId("run-2")}])
async def test_job_of_another_user_or_comment_does_not_count(rig: Rig, other: dict[str, object]) -> None:
    await rig.list_jobs(replace(ENDED, **other))  # type: ignore[arg-type]
    assert (await rig.status()).phase is RunPhase.STARTING


async def test_report_of_an_end_ends_nothing_without_slurm(rig: Rig) -> None:
    await rig.report(
        ("claimed", "7"), ("began.0", ""), ("tasks/0", "0"), ("tasks/1", "0"), ("done", "restart=0\nstop=none\n")
    )
    assert (await rig.status()).phase is RunPhase.UNKNOWN
    await rig.list_jobs(JOB)
    assert (await rig.status()).phase is RunPhase.RUNNING
    await rig.list_jobs(replace(ENDED, state="COMPLETED"))
    end = (await rig.status()).end
    assert end is not None
    assert (end.ending, end.exit_code, end.task_codes) == (EndReason.EXITED, 0, (0, 0))


async def test_end_waits_for_the_last_report_of_a_job_that_reports(rig: Rig) -> None:
    await rig.report(("claimed", "7"), ("began.0", ""))
    await rig.list_jobs(ENDED)
    assert (await rig.status()).phase is RunPhase.UNKNOWN
    await rig.clock.sleep(personal.SETTLE_S)
    await rig.list_jobs(ENDED)
    assert (await rig.status()).phase is RunPhase.UNKNOWN
    await rig.report(("tasks/0", "4"), ("tasks/1", "0"), ("done", "restart=0\nstop=failed\n"))
    end = (await rig.status()).end
    assert end is not None
    assert (end.exit_code, end.task_codes) == (4, (4, 0))


async def test_job_that_never_reports_ends_as_slurm_says(rig: Rig) -> None:
    await rig.list_jobs(ENDED)
    seen = await rig.status()
    assert (seen.phase, seen.reference) == (RunPhase.UNKNOWN, "7")
    await rig.clock.sleep(personal.SETTLE_S)
    await rig.list_jobs(ENDED)
    seen = await rig.status()
    end = seen.end
    assert seen.reference == "7"
    assert end is not None
    assert (end.ending, end.exit_code, end.detail) == (
        EndReason.EXITED,
        3,
        "job 7 is FAILED in Slurm, and sent no report",
    )


async def test_silence_of_an_agent_changes_nothing(rig: Rig) -> None:
    await rig.list_jobs(JOB)
    await rig.status()
    await rig.clock.sleep(3600)
    assert (await rig.status()).phase is RunPhase.UNKNOWN


async def test_only_the_agent_that_listed_a_job_can_miss_it(rig: Rig) -> None:
    await rig.list_jobs(JOB)
    await rig.status()
    for _ in range(20):
        await rig.clock.sleep(job_listings.LISTING_S + 1)
        await rig.list_jobs(agent="slurm/other 00ee")
        assert (await rig.status()).phase is RunPhase.UNKNOWN
    await rig.list_jobs()
    assert (await rig.status()).phase is RunPhase.UNKNOWN
    assert await rig.list_jobs() == [JobAction.LOOK_UP]
    await rig.list_jobs(past=[replace(ENDED, state="TIMEOUT")])
    await rig.status()
    await rig.clock.sleep(personal.SETTLE_S)
    await rig.list_jobs()
    end = (await rig.status()).end
    assert end is not None
    assert end.ending is EndReason.TIMED_OUT


async def test_missing_job_without_accounting_is_lost_after_several_listings(rig: Rig) -> None:
    await rig.list_jobs(JOB)
    await rig.status()
    phases = []
    for _ in range(30):
        await rig.list_jobs()
        phases.append(await rig.status())
        await rig.clock.sleep(2)
    assert phases[0].phase is RunPhase.UNKNOWN
    assert phases[-1].end is not None
    assert phases[-1].end.ending is EndReason.LOST


async def test_cancelled_run_is_an_order_by_run_and_uid_until_it_ended(rig: Rig) -> None:
    await rig.list_jobs(JOB)
    await rig.status()
    await rig.engine.cancel(RUN, "cancelled by root")
    reply = await rig.engine.accept_listing(AGENT, [], [UID], [JOB], ())
    assert [(each.run, each.attempt, each.uid, each.action, each.job_id) for each in reply.orders] == [
        (RUN, 0, UID, JobAction.STOP, None)
    ]
    await rig.list_jobs(replace(ENDED, state="CANCELLED", was_started=False))
    end = (await rig.status()).end
    assert end is not None
    assert (end.ending, end.detail) == (EndReason.CANCELLED, "cancelled by root")
    assert await rig.list_jobs() == []


async def test_run_that_was_never_submitted_can_be_given_up(rig: Rig) -> None:
    await rig.engine.cancel(RUN, "cancelled by ann")
    assert (await rig.status()).phase is RunPhase.STARTING
    await rig.report(is_abandoned=True)
    end = (await rig.status()).end
    assert end is not None
    assert (end.ending, end.detail) == (EndReason.CANCELLED, "cancelled by ann")


async def test_cancelled_run_that_no_listing_ever_shows_ends_after_a_while(rig: Rig) -> None:
    await rig.engine.cancel(RUN, "cancelled by root")
    await rig.clock.sleep(personal.GIVE_UP_S + 60)
    assert (await rig.status()).end is None  # no agent looks
    await rig.list_jobs()
    assert (await rig.status()).end is not None


async def test_report_of_an_earlier_attempt_is_refused(rig: Rig) -> None:
    later = replace(KNOWN, attempt=1)
    await rig.engine.accept_report(later, RunReport(attempt=1))
    with pytest.raises(MooringsError) as refused:
        await rig.engine.accept_report(later, RunReport(attempt=0))
    assert refused.value.code == "report.outdated"


async def test_file_that_a_later_report_brought_is_not_replaced(rig: Rig) -> None:
    await rig.report(("done", DONE))
    await rig.engine.accept_report(
        KNOWN, RunReport(attempt=0, files=[ReportedFile("done", "restart=0\nstop=failed\n", add_seconds(START, -9))])
    )
    assert (rig.folder / RUN / "0" / "done").read_text() == DONE


async def test_record_of_too_many_digits_is_none(rig: Rig) -> None:
    await rig.report(("claimed", "1" * 5000))
    assert (await rig.status()).phase is RunPhase.STARTING


async def test_persons_own_listing_serves_without_an_agent_and_gives_no_id(rig: Rig) -> None:
    await rig.report(job=replace(JOB, state="PENDING"))
    seen = await rig.status()
    assert (seen.phase, seen.reference) == (RunPhase.STARTING, None)
    await rig.report(job=replace(JOB, uid=UID + 1, state="COMPLETED"))
    assert (await rig.status()).phase is RunPhase.STARTING


async def test_persons_word_of_an_end_waits_a_moment_for_the_agents(rig: Rig) -> None:
    await rig.list_jobs()
    await rig.report(("claimed", "7"), ("began.0", ""), ("tasks/0", "0"), ("tasks/1", "0"), ("done", DONE), job=ENDED)
    assert (await rig.status()).end is None
    await rig.clock.sleep(personal.SETTLE_S)
    await rig.list_jobs()
    await rig.report(job=ENDED)
    assert (await rig.status()).end is not None


async def test_running_job_of_silent_nodes_runs_after_a_while(rig: Rig) -> None:
    await rig.list_jobs(JOB)
    assert (await rig.status()).phase is RunPhase.STARTING
    await rig.clock.sleep(personal.UNREPORTED_S)
    await rig.list_jobs(JOB)
    assert (await rig.status()).phase is RunPhase.RUNNING
    await rig.report(("claimed", "7"))
    assert (await rig.status()).phase is RunPhase.RUNNING  # it was not requeued
    await rig.list_jobs(replace(JOB, restarts=1))
    assert (await rig.status()).phase is RunPhase.STARTING


async def test_job_that_slurm_forgot_is_lost_after_several_reports(rig: Rig) -> None:
    forgotten = replace(JOB, state="", was_started=False)
    for _ in range(2):
        await rig.report(job=forgotten)
        assert (await rig.status()).end is None
        await rig.clock.sleep(60)
        assert (await rig.status()).end is None
    for _ in range(4):
        await rig.report(job=forgotten)
        await rig.status()
        await rig.clock.sleep(60)
    end = (await rig.status()).end
    assert end is not None
    assert (end.ending, end.detail) == (EndReason.LOST, "Slurm knows nothing of job 7 any more")


async def test_start_that_a_job_reports_is_newer_than_its_persons_listing(rig: Rig) -> None:
    await rig.report(job=replace(JOB, state="PENDING"))
    await rig.report(("claimed", "7"), ("began.0", ""))
    assert (await rig.status()).phase is RunPhase.RUNNING
    await rig.report(("tasks/0", "0"), ("tasks/1", "0"), ("done", DONE), job=replace(ENDED, state="COMPLETED"))
    end = (await rig.status()).end
    assert end is not None
    assert end.exit_code == 0


async def test_output_is_taken_where_it_continues_what_is_known(rig: Rig) -> None:
    assert await rig.report(output=[ReportedOutput(0, 0, b"one ")]) == {0: 4, 1: 0}
    assert await rig.report(output=[ReportedOutput(0, 0, b"one "), ReportedOutput(0, 9, b"gap")]) == {0: 4, 1: 0}
    assert await rig.report(output=[ReportedOutput(0, 4, b"two")]) == {0: 7, 1: 0}
    assert (rig.folder / RUN / "0" / "logs" / "0.log").read_bytes() == b"one two"


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "order.json", "end.json", "job", "seen_by", "tasks/2", "tasks/../x", "logs/0.log"]
)
async def test_file_of_another_name_is_refused(rig: Rig, name: str) -> None:
    with pytest.raises(MooringsError) as refused:
        await rig.report((name, "x"))
    assert refused.value.code == "report.invalid"


async def test_restarted_job_leaves_no_file_of_its_first_start(rig: Rig) -> None:
    await rig.report(("claimed", "7"), ("began.0", ""), ("done", "restart=0\nstop=slurm\n"), ("tasks/0", "143"))
    await rig.report(("began.1", ""), present=["claimed", "began.0", "began.1"])
    folder = rig.folder / RUN / "0"
    assert not (folder / "done").exists()
    assert not (folder / "tasks" / "0").exists()
    await rig.list_jobs(replace(JOB, restarts=1))
    assert (await rig.status()).phase is RunPhase.RUNNING


async def test_new_leader_without_copies_makes_them_again(rig: Rig, tmp_path: Path) -> None:
    other = Rig(tmp_path / "elsewhere")
    assert (await other.status()).phase is RunPhase.ABSENT
    await other.engine.accept_listing(AGENT, [KNOWN], [UID], [JOB], ())
    seen = await other.status()
    assert (seen.phase, seen.reference) == (RunPhase.STARTING, "7")
