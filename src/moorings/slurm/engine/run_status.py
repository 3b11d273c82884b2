"""A run's state and its end, from its folder and from Slurm. Pure.

The script's own record comes first: it distinguishes a task's failure from a stop. Without one, or if Slurm ended the
job, Slurm's record of the job counts. A requeued job has not ended, whatever its earlier start recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from moorings.core.model.quantities import duration_text
from moorings.core.model.timestamps import Timestamp
from moorings.slurm.engine.run_folder import SlurmAttemptState, TaskEnd
from moorings.slurm.formats import SlurmJobPhase as JobPhase
from moorings.workloads.runs import CANNOT_START, SIGKILL_EXIT_CODE, EndReason, EndRecord, RunPhase, exit_code

_BY_STATE = {
    "CANCELLED": EndReason.CANCELLED,
    "PREEMPTED": EndReason.CANCELLED,
    "TIMEOUT": EndReason.TIMED_OUT,
    "DEADLINE": EndReason.TIMED_OUT,
    "COMPLETED": EndReason.EXITED,
    "FAILED": EndReason.EXITED,
    "OUT_OF_MEMORY": EndReason.EXITED,
}
_BY_STOP = {
    "none": EndReason.EXITED,
    "failed": EndReason.EXITED,
    "asked": EndReason.CANCELLED,
    "limit": EndReason.TIMED_OUT,
}


class RunObservation(StrEnum):
    """The state of a run as observed."""

    ABSENT = "absent"  # Slurm was never asked
    WAITING = "waiting"  # no task runs yet
    RUNNING = "running"
    OVER = "over"  # it has ended, and the end can be recorded
    MISSING = "missing"  # Slurm does not list its job
    ENDED = "ended"  # the end is recorded


NEVER_SATISFIED = "DependencyNeverSatisfied"

_PHASES = {
    RunObservation.ABSENT: RunPhase.ABSENT,
    RunObservation.WAITING: RunPhase.STARTING,
    RunObservation.RUNNING: RunPhase.RUNNING,
    RunObservation.OVER: RunPhase.UNKNOWN,
    RunObservation.MISSING: RunPhase.UNKNOWN,
    RunObservation.ENDED: RunPhase.ENDED,
}


@dataclass(frozen=True, slots=True)
class JobEnd:
    """Slurm's record of an ended job; ``state`` is empty if Slurm has none any more. ``reason``: in Slurm's words."""

    job_id: int
    state: str
    at: Timestamp | None = None
    reason: str = ""


def has_ended(facts: SlurmAttemptState) -> bool:
    """Whether the folder alone says that it has ended: Slurm need not be asked."""
    return facts.end is not None or (facts.done is not None and facts.done.stop in _BY_STOP)


class SlurmJob(Protocol):
    """What a run's state follows from, of its job in a listing."""

    @property
    def job_id(self) -> int:
        """Slurm's id."""
        ...

    @property
    def state(self) -> str:
        """Slurm's word."""
        ...

    @property
    def phase(self) -> JobPhase:
        """Its meaning."""
        ...

    @property
    def reason(self) -> str:
        """Why it waits."""
        ...

    @property
    def restarts(self) -> int:
        """How often it was requeued."""
        ...


def observe_run(facts: SlurmAttemptState, job: SlurmJob | None) -> RunObservation:
    """Return the state of a run.

    Args:
        facts: its folder's state, read after Slurm's listing.
        job: its job in a complete listing; None: not listed.
    """
    if facts.end is not None:
        return RunObservation.ENDED
    if has_ended(facts):
        return RunObservation.OVER
    return observe_job(facts, job)


def observe_job(facts: SlurmAttemptState, job: SlurmJob | None) -> RunObservation:
    """Return the state of a run whose own records do not end it; the arguments are as of ``observe_run``."""
    if not facts.submitting or (job is None and facts.job is None):
        return RunObservation.ABSENT  # a submission may still be under way, but never do two jobs run the attempt
    if job is None:
        return RunObservation.MISSING
    if job.phase is JobPhase.ENDED:
        return RunObservation.OVER
    return (
        RunObservation.RUNNING if job.phase is JobPhase.LIVE and job.restarts in facts.began else RunObservation.WAITING
    )


def phase_of(seen: RunObservation) -> RunPhase:
    """Return the same as a phase of every engine."""
    return _PHASES[seen]


def reason_of(seen: RunObservation, job: SlurmJob | None) -> str:
    """Return why a run waits, in Slurm's own words."""
    if job is None or seen is not RunObservation.WAITING:
        return ""
    if job.phase is not JobPhase.WAITING:
        return f"Slurm job {job.job_id} is {job.state}, and its tasks have not begun"
    return f"Slurm job {job.job_id} is {job.state}" + (f" ({job.reason})" if job.reason else "")


def build_end_record(
    facts: SlurmAttemptState, tasks: Sequence[TaskEnd | None], job: JobEnd | None, complaint: str, now: Timestamp
) -> EndRecord:
    """Return how a run ended.

    Args:
        facts: its folder's state.
        tasks: how its tasks ended, by rank.
        job: Slurm's record of the job; None: not asked, because the script's own record suffices.
        complaint: the last line of output of Slurm or srun.
        now: the time of an end without a record.
    """
    done = facts.done
    restart = done.restart if done is not None else max(facts.began, default=0)
    began = facts.began.get(restart)
    ending = _BY_STOP.get(done.stop) if done is not None else None
    if ending is None:
        ending = _BY_STATE.get(job.state, EndReason.LOST) if job is not None else EndReason.LOST
    if ending is EndReason.EXITED and facts.cancel is not None and not any(tasks):
        ending = EndReason.CANCELLED  # stopped before it could record that
    failed = [(task.at, rank, task) for rank, task in enumerate(tasks) if task is not None and task.code != 0]
    first = min(failed, default=None, key=lambda one: one[:2])
    codes = tuple(task.code if task is not None else SIGKILL_EXIT_CODE if began is not None else None for task in tasks)
    if ending is EndReason.EXITED and first is not None and first[2].why:
        ending = EndReason.NOT_STARTED
    elif ending is EndReason.EXITED and began is None and first is None:
        return EndRecord(EndReason.NOT_STARTED, CANNOT_START, codes, ended_at=_end(facts, job, now), detail=complaint)
    return EndRecord(
        ending=ending,
        exit_code=exit_code(
            ending, first[2].code if first is not None else SIGKILL_EXIT_CODE if SIGKILL_EXIT_CODE in codes else None
        ),
        task_codes=codes,
        started_at=began,
        ended_at=max(_end(facts, job, now), began) if began is not None else _end(facts, job, now),
        detail=_detail(ending, facts, first, job, codes),
    )


def end_by_slurm(job: JobEnd, status: tuple[int, int], facts: SlurmAttemptState, now: Timestamp) -> EndRecord:
    """Return how a run ended of which no report has arrived: Slurm's record is all there is.

    Args:
        job: that record.
        status: exit code and signal of the script, which ends with the code of its tasks.
        facts: the state that was reported, without a start.
        now: the time of an end without a record.
    """
    ending = _BY_STATE.get(job.state, EndReason.LOST)
    code = (128 + status[1] if status[1] else status[0]) or None
    detail = _detail(ending, facts, None, job, ())
    if ending is EndReason.EXITED and code is not None:
        detail = f"job {job.job_id} is {job.state} in Slurm, and sent no report"
    return EndRecord(ending, exit_code(ending, code), ended_at=_end(facts, job, now), detail=detail)


def _end(facts: SlurmAttemptState, job: JobEnd | None, now: Timestamp) -> Timestamp:
    if facts.done is not None:
        return facts.done.at
    return job.at if job is not None and job.at is not None else now


def _detail(
    ending: EndReason,
    facts: SlurmAttemptState,
    first: tuple[Timestamp, int, TaskEnd] | None,
    job: JobEnd | None,
    codes: Sequence[int | None],
) -> str:
    if ending is EndReason.CANCELLED and facts.cancel is not None:
        return facts.cancel
    if ending is EndReason.CANCELLED and first is not None and first[2].why:
        return first[2].why  # its terminal has stopped it
    if ending is EndReason.TIMED_OUT and facts.asked.time_limit_s is not None:
        return f"stopped at its time limit of {duration_text(facts.asked.time_limit_s)}"
    if ending is EndReason.CANCELLED and job is not None and job.reason == NEVER_SATISFIED:
        detail = "a run that it waited for has ended otherwise, so it never starts"
        return f"{detail}: job {job.job_id} is {job.state} in Slurm ({job.reason})"
    if ending in (EndReason.CANCELLED, EndReason.TIMED_OUT):
        return f"job {job.job_id} is {job.state} in Slurm" if job is not None else "stopped in Slurm"
    if ending is EndReason.LOST:
        if job is None or not job.state:
            return f"Slurm knows nothing of job {facts.job} any more"
        return f"job {job.job_id} is {job.state} in Slurm"
    if first is not None:
        _, rank, task = first
        return task.why or f"task {rank} ended with exit code {task.code}"
    if SIGKILL_EXIT_CODE in codes:
        state = f"; its job is {job.state} in Slurm" if job is not None else ""
        return f"task {codes.index(SIGKILL_EXIT_CODE)} was killed{state}"
    return ""
