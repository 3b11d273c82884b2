"""What is seen of a run, and how it ended, from what its folder and Slurm say. Pure.

The script's own word comes first: it tells a task's failure from a stop. Where there is none, or Slurm ended the job,
Slurm's word on the job counts; a job that was requeued has not ended, whatever its earlier start wrote down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from moorings.core.instants import Timestamp
from moorings.core.quantities import duration_text
from moorings.slurm.engine.rundir import SlurmAttemptState, TaskEnd
from moorings.slurm.formats import JobRecord
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
    """What a look says of a run."""

    ABSENT = "absent"  # Slurm was never asked
    WAITING = "waiting"  # no task runs yet
    RUNNING = "running"
    OVER = "over"  # it has ended, and that can be written down
    MISSING = "missing"  # Slurm does not list its job
    ENDED = "ended"  # that was written down


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
    """What Slurm says of a job that has ended; ``state`` is empty if it knows nothing of it any more."""

    job_id: int
    state: str
    at: Timestamp | None = None


def has_ended(facts: SlurmAttemptState) -> bool:
    """Whether the folder alone says that it is over: Slurm need not be asked."""
    return facts.end is not None or (facts.done is not None and facts.done.stop in _BY_STOP)


def observe_run(facts: SlurmAttemptState, job: JobRecord | None) -> RunObservation:
    """What is seen of a run.

    Args:
        facts: its folder, read after Slurm's listing.
        job: its job in a good listing; None: it is not there.
    """
    if facts.end is not None:
        return RunObservation.ENDED
    if has_ended(facts):
        return RunObservation.OVER
    if not facts.submitting or (job is None and facts.job is None):
        return RunObservation.ABSENT  # should its submission still be under way: two jobs do not both run it
    if job is None:
        return RunObservation.MISSING
    if job.phase is JobPhase.ENDED:
        return RunObservation.OVER
    return (
        RunObservation.RUNNING if job.phase is JobPhase.LIVE and job.restarts in facts.began else RunObservation.WAITING
    )


def phase_of(seen: RunObservation) -> RunPhase:
    """The same in the words of every engine."""
    return _PHASES[seen]


def reason_of(seen: RunObservation, job: JobRecord | None) -> str:
    """Why a run waits, in Slurm's own words."""
    if job is None or seen is not RunObservation.WAITING:
        return ""
    if job.phase is not JobPhase.WAITING:
        return f"Slurm job {job.job_id} is {job.state}, and its tasks have not begun"
    return f"Slurm job {job.job_id} is {job.state}" + (f" ({job.reason})" if job.reason else "")


def build_end_record(
    facts: SlurmAttemptState, tasks: Sequence[TaskEnd | None], job: JobEnd | None, complaint: str, now: Timestamp
) -> EndRecord:
    """How a run ended that is over.

    Args:
        facts: its folder.
        tasks: how its tasks ended, by rank.
        job: Slurm's word on the job; None: it was not asked, for the script's own says all.
        complaint: the last line that Slurm or srun had to say.
        now: the time of an end that nobody wrote down.
    """
    done = facts.done
    restart = done.restart if done is not None else max(facts.began, default=0)
    began = facts.began.get(restart)
    ending = _BY_STOP.get(done.stop) if done is not None else None
    if ending is None:
        ending = _BY_STATE.get(job.state, EndReason.LOST) if job is not None else EndReason.LOST
    if ending is EndReason.EXITED and facts.cancel is not None and not any(tasks):
        ending = EndReason.CANCELLED  # stopped before it could say so
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
    if ending is EndReason.TIMED_OUT and facts.asked.time_limit_s is not None:
        return f"stopped at its time limit of {duration_text(facts.asked.time_limit_s)}"
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
