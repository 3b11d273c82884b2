"""What the agent lists, looks up and stops of the jobs that people have submitted for runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from moorings.slurm import formats
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.fixed_width import cut_rows, read_row
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.failure_log import FailureLog
from moorings.slurm.host.personal_jobs import PersonalJobs
from moorings.wire.shapes import JobOrderBody, SubmittedJobsBody, SubmittedJobsRequest
from tests.unit.slurm.test_formats import recorded

pytestmark = pytest.mark.anyio

ANN, BOB = 1001, 1002


def listed_job(job: int, uid: int, comment: str) -> bytes:
    """Squeue's record of a running job."""
    columns = formats._JOB
    first = cut_rows(recorded("24.11", "jobs"), columns, source="squeue")[0]
    shown = read_row(first, columns) | {"job_id": str(job), "uid": str(uid), "comment": comment, "state": "RUNNING"}
    return "".join(f"{shown[column.name]:{column.width}}|" for column in columns).encode() + b"\n"


class Cluster:
    """Slurm's answers, and the controller's; an agent that meets no further answer ends.

    Attributes:
        asked: Slurm's commands, in order.
        told: the agent's listings.
    """

    def __init__(self, replies: Sequence[SubmittedJobsBody], listed: bytes = b"", accounted: bytes = b"") -> None:
        self._replies = list(replies)
        self._answers = {"squeue": listed, "sacct": accounted}
        self.asked: list[list[str]] = []
        self.told: list[SubmittedJobsRequest] = []

    async def run_checked(self, argv: list[str]) -> bytes:
        self.asked.append(argv)
        return self._answers.get(argv[0], b"")

    def report_jobs(self, _queue: str, request: SubmittedJobsRequest) -> SubmittedJobsBody:
        self.told.append(request)
        if not self._replies:
            raise asyncio.CancelledError
        return self._replies.pop(0)

    async def __call__(self, call: Callable[[Any], SubmittedJobsBody]) -> SubmittedJobsBody:
        return call(self)

    def argvs(self, program: str) -> list[list[str]]:
        return [argv for argv in self.asked if argv[0] == program]

    async def serve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("moorings.slurm.host.personal_jobs.LIST_S", 0)
        monkeypatch.setattr("moorings.slurm.host.personal_jobs.IDLE_S", 0)
        accepted = asyncio.Event()
        accepted.set()
        slurm, calls = cast(SlurmCommands, self), cast(ControllerClient, self)
        with pytest.raises(asyncio.CancelledError):
            await PersonalJobs(slurm, calls, "slurm/lab", "00ff", accepted, FailureLog()).serve()


async def test_all_jobs_are_looked_up_by_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = tuple(JobOrderBody(run=f"run-{job}", attempt=0, uid=ANN, action="look_up", job=job) for job in (5, 6, 7))
    lines = (
        "5|COMPLETED|0:0|2026-11-27T10:00:00|2026-11-27T10:00:01|2026-11-27T10:00:09",
        "6|RUNNING|0:0|2026-11-27T10:00:00|2026-11-27T10:00:01|Unknown",
        "8|FAILED|1:0|2026-11-27T10:00:00|2026-11-27T10:00:01|2026-11-27T10:00:09",
    )
    cluster = Cluster([SubmittedJobsBody(orders=orders)], accounted="\n".join(lines).encode())
    await cluster.serve(monkeypatch)
    (asked,) = cluster.argvs("sacct")
    assert "--jobs=5,6,7" in asked
    (found,) = cluster.told[-1].accounted
    assert (found.run, found.job, found.uid, found.state) == ("run-5", 5, ANN, "COMPLETED")


async def test_only_that_users_job_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can write a run's comment on a job of their own, and report any job's id."""
    listed = listed_job(11, ANN, "moorings:run-1/0") + listed_job(12, BOB, "moorings:run-1/0")
    known = SubmittedJobsBody(uids=(ANN, BOB), runs=("run-1",))
    order = JobOrderBody(run="run-1", attempt=0, uid=ANN, action="end")
    ordered = SubmittedJobsBody(uids=(ANN, BOB), runs=("run-1",), orders=(order,))
    cluster = Cluster([known, ordered], listed=listed)
    await cluster.serve(monkeypatch)
    assert {(job.job, job.uid) for job in cluster.told[1].jobs} == {(11, ANN), (12, BOB)}
    assert cluster.argvs("scancel") == [["scancel", "11"]]


async def test_runs_of_others_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller asks for some users' jobs of some runs; all else of these users is theirs."""
    listed = listed_job(11, ANN, "moorings:run-2/0") + listed_job(12, BOB, "moorings:run-1/0")
    cluster = Cluster([SubmittedJobsBody(uids=(ANN,), runs=("run-1",))], listed=listed)
    await cluster.serve(monkeypatch)
    assert cluster.told[1].jobs == ()
