"""What a run of this person waits for, as sbatch's ``--dependency``: no program of theirs has to wait itself.

Slurm gets only jobs that it lists as not ended. All else is decided here, by the controller's word or Slurm's last one:
it forgets a job some minutes after its end, and then 22.05 takes ``afterok`` of it for met, and 26.05 refuses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from moorings.client.client import Client
from moorings.client.requests import RunFilter
from moorings.core.model.errors import MooringsError
from moorings.slurm.engine.submission import parse_run_comment
from moorings.slurm.formats import JobRecord, SlurmJobPhase
from moorings.wire.shapes import RunBody
from moorings.workloads.dependencies import AfterEnd, Dependency, parse_dependency
from moorings.workloads.runs import ENDED, RunState

FRESH_S = 1.0  # so long what was asked counts: for a whole array it is asked once
_WORDS = {AfterEnd.OK: "afterok", AfterEnd.ANY: "afterany", AfterEnd.FAILED: "afternotok"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AwaitedJob:
    """A run that another one waits for.

    Attributes:
        after: the run, by id, and the end to wait for.
        state: of the run, as the controller has it; empty: it was not asked.
        job: the id of its job; None: it was not submitted.
        is_live: Slurm lists that job, and it has not ended; else
        slurm_state: Slurm's last word on it; empty: it lists it no more.
    """

    after: Dependency
    state: str = ""
    job: int | None = None
    is_live: bool = False
    slurm_state: str = ""


def build_dependency(awaited: Sequence[AwaitedJob]) -> str:
    """The value of ``--dependency``; empty: there is nothing to wait for any more.

    Raises:
        MooringsError: ``run.never_starts``; ``engine.unavailable``: that cannot be known yet.
    """
    jobs: dict[AfterEnd, list[int]] = {}
    for each in awaited:
        run = each.after.run
        if each.is_live and each.job is not None:
            jobs.setdefault(each.after.end, []).append(each.job)
        elif (state := _end_state(each)) is None:
            detail = f"run {run}, which it waits for, is not submitted yet"
            if each.job is not None:
                detail = f"Slurm lists job {each.job} of run {run} no more, and its end is not known yet"
            raise MooringsError("engine.unavailable", detail, retryable=True)
        elif not each.after.is_met(succeeded=state == RunState.SUCCEEDED):
            raise MooringsError("run.never_starts", each.after.unmet_text(state), hint=f"wait for any end: {run}:any")
    return ",".join(f"{_WORDS[end]}:{':'.join(map(str, numbers))}" for end, numbers in sorted(jobs.items()))


def _end_state(each: AwaitedJob) -> str | None:
    """The state in which a run has ended, as far as is known."""
    if each.state in ENDED:
        return each.state
    if not each.slurm_state:
        return None
    return RunState.SUCCEEDED if each.slurm_state == "COMPLETED" else RunState.FAILED


class AwaitedJobs:
    """Looks up what runs of this person wait for.

    Args:
        client: asks their controller.
        job_of: the id of a run's job, by the folder of their runs.
        list_jobs: their jobs in Slurm, by id.
    """

    def __init__(
        self,
        client: Client,
        job_of: Callable[[str], int | None],
        list_jobs: Callable[[], Mapping[int, JobRecord]],
    ) -> None:
        self._client = client
        self._job_of = job_of
        self._list_jobs = list_jobs
        self._kept: dict[str, tuple[float, object]] = {}

    def dependency(self, after: Sequence[str], predecessor: str) -> str:
        """The value of ``--dependency`` of a run.

        Args:
            after: what its job waits for, by id.
            predecessor: the run of its array that must have ended before; empty: none.

        Raises:
            MooringsError: as ``build_dependency``; ``controller.unreachable``, ``slurm.*``.
        """
        found: list[AwaitedJob] = []
        for each in map(parse_dependency, after):
            found += [self._look_up(Dependency(run.id, each.end), run) for run in self._runs(each.run)]
        if predecessor:
            found += self._predecessor(predecessor)
        return build_dependency(found)

    def _predecessor(self, ident: str) -> list[AwaitedJob]:
        """The predecessor of a run in its array: any end of it will do, so Slurm gets its job without a look."""
        after, job = Dependency(ident, AfterEnd.ANY), self._job_of(ident)
        if job is not None:
            return [AwaitedJob(after, job=job, is_live=True)]
        return [AwaitedJob(after, run.state) for run in self._runs(ident)]

    def _look_up(self, after: Dependency, run: RunBody) -> AwaitedJob:
        job = self._job_of(run.id)
        if job is None and run.reference is not None and run.reference.isdecimal():
            job = int(run.reference)  # it was submitted from another machine
        listed = self._fresh("", self._list_jobs).get(job) if job is not None else None
        named = parse_run_comment(listed.comment) if listed is not None else None
        if listed is None or named is None or named[0] != run.id:  # slurmctld reuses ids after a crash, not comments
            return AwaitedJob(after, run.state, job)
        is_live = listed.phase is not SlurmJobPhase.ENDED
        return AwaitedJob(after, run.state, job, is_live, "" if is_live else listed.state)

    def _runs(self, ident: str) -> Sequence[RunBody]:
        return self._fresh(ident, lambda: self._ask_for_runs(ident))

    def _ask_for_runs(self, ident: str) -> Sequence[RunBody]:
        """A run, or those of an array; what the controller forgot had ended long ago, as was waited for."""
        try:
            return [self._client.get_run(ident)]
        except MooringsError as error:
            if error.code != "run.unknown":
                raise
        return self._client.list_runs(RunFilter(array=ident, all=True))

    def _fresh(self, key: str, ask: Callable[[], T]) -> T:
        kept = self._kept.get(key)
        if kept is None or time.monotonic() - kept[0] > FRESH_S:
            self._kept[key] = kept = time.monotonic(), ask()
        return kept[1]  # type: ignore[return-value]
