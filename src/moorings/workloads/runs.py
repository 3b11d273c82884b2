"""Runs: jobs the ML user started, from the wish to the recorded end.

A run's claim decides when it may start (law 4); the engine's record decides when it has ended (law 3). One whose claim
is asked to yield is stopped, gives its partition back once nothing of it runs, and waits for its next attempt. On an
engine that schedules (Slurm) a run has no claim of its own: that scheduler's queue decides when it starts, and its
agent sees to the partition. This file holds the record, its states, and what the engine may report of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NewType

from moorings.core.claims import ClaimId
from moorings.core.instants import Timestamp
from moorings.core.machines import terminal_states, transition
from moorings.core.records import OMIT_IF_DEFAULT
from moorings.workloads.jobs import JobSummary

RunId = NewType("RunId", str)


class RunState(StrEnum):
    """Where a run stands."""

    WAITING = "WAITING"  # its claim is not READY, or it waits in another scheduler's queue (again); no process exists
    STARTING = "STARTING"  # the partition is ACTIVE; the engine was, or is about to be, asked to start it
    RUNNING = "RUNNING"  # the engine reports its processes
    YIELDING = "YIELDING"  # its devices are needed elsewhere: it was warned and is being stopped; they stay its own
    STOPPING = "STOPPING"  # it was asked to stop; processes may still run; the partition stays its own
    SUCCEEDED = "SUCCEEDED"  # ended: every task exited 0
    FAILED = "FAILED"  # ended: a task failed, it could not be started, or its claim failed
    CANCELLED = "CANCELLED"  # ended: somebody cancelled it
    TIMED_OUT = "TIMED_OUT"  # ended: its time limit
    LOST = "LOST"  # ended: its supervisor died without a record (machine restart, kill -9), or its scheduler lost it


class RunEvent(StrEnum):
    """What can happen to a run."""

    BERTH = "berth"  # its claim became READY, or another scheduler has given it its partition
    STARTED = "started"
    YIELD = "yield"  # its claim was asked to yield
    REQUEUE = "requeue"  # nothing of it runs, and it waits again: it has yielded, or its engine's scheduler stopped it
    STOP = "stop"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    TIME_OUT = "time_out"
    LOSE = "lose"


_RESULTS = {
    RunEvent.SUCCEED: RunState.SUCCEEDED,
    RunEvent.FAIL: RunState.FAILED,
    RunEvent.CANCEL: RunState.CANCELLED,
    RunEvent.TIME_OUT: RunState.TIMED_OUT,
    RunEvent.LOSE: RunState.LOST,
}

NEXT: dict[RunState, dict[RunEvent, RunState]] = {
    RunState.WAITING: {
        RunEvent.BERTH: RunState.STARTING,
        RunEvent.STOP: RunState.STOPPING,  # where another scheduler has it, only that can say when it is over
        RunEvent.FAIL: RunState.FAILED,  # it could not be served
        RunEvent.CANCEL: RunState.CANCELLED,
        RunEvent.LOSE: RunState.LOST,  # the scheduler that had it has not
    },
    RunState.STARTING: {
        RunEvent.STARTED: RunState.RUNNING,
        RunEvent.YIELD: RunState.YIELDING,
        RunEvent.STOP: RunState.STOPPING,
        **_RESULTS,
    },
    RunState.RUNNING: {
        RunEvent.YIELD: RunState.YIELDING,
        RunEvent.STOP: RunState.STOPPING,
        RunEvent.REQUEUE: RunState.WAITING,
        **_RESULTS,
    },
    RunState.YIELDING: {RunEvent.REQUEUE: RunState.WAITING, RunEvent.STOP: RunState.STOPPING, **_RESULTS},
    RunState.STOPPING: dict(_RESULTS),
    RunState.SUCCEEDED: {},
    RunState.FAILED: {},
    RunState.CANCELLED: {},
    RunState.TIMED_OUT: {},
    RunState.LOST: {},
}

ENDED = terminal_states(NEXT)


class EndReason(StrEnum):
    """How an engine says a run ended."""

    EXITED = "EXITED"  # every task ended by itself (or was stopped because another failed)
    CANCELLED = "CANCELLED"  # stopped because it was asked to
    YIELDED = "YIELDED"  # it left with another code than 0, or was stopped, after it was asked to yield
    TIMED_OUT = "TIMED_OUT"  # stopped at its time limit
    NOT_STARTED = "NOT_STARTED"  # the command could not be started
    LOST = "LOST"  # no record: the supervisor died
    NO_PARTITION = "NO_PARTITION"  # stopped because its partition was lost under it; said by the controller


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The recorded end of a run.

    Attributes:
        ending: how.
        exit_code: what ``moor run`` exits with: the code of the task that failed first (128 + N for signal N); 0 only
            if all ended with 0. A run that was stopped never has 0.
        task_codes: each task's own code, by rank; None where it never started.
        detail: a sentence, where there is something to say.
    """

    ending: EndReason
    exit_code: int
    task_codes: tuple[int | None, ...] = ()
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    detail: str = ""


SIGTERM_EXIT_CODE, SIGKILL_EXIT_CODE = 128 + 15, 128 + 9  # what a shell makes of TERM and KILL
TIMEOUT_EXIT_CODE = 124  # what timeout(1) ends with
CANNOT_START, NOT_FOUND = 126, 127  # what a shell ends with

_CODE_IF_NO_TASK_FAILED = {
    EndReason.EXITED: 0,
    EndReason.CANCELLED: SIGTERM_EXIT_CODE,
    EndReason.YIELDED: SIGTERM_EXIT_CODE,
    EndReason.TIMED_OUT: TIMEOUT_EXIT_CODE,
    EndReason.NOT_STARTED: CANNOT_START,
    EndReason.LOST: SIGKILL_EXIT_CODE,
    EndReason.NO_PARTITION: SIGTERM_EXIT_CODE,
}


def exit_code(ending: EndReason, first_failure: int | None) -> int:
    """The run's exit code: that of the task that failed first; without one, 0 only if it was not stopped.

    A job that saved its checkpoint and left with 0 when it was stopped is not done, and ``moor run a && moor run b``
    must not go on as if it were.
    """
    return first_failure if first_failure is not None else _CODE_IF_NO_TASK_FAILED[ending]


class RunPhase(StrEnum):
    """What an engine sees of a run."""

    ABSENT = "ABSENT"  # the engine knows nothing of it
    STARTING = "STARTING"  # accepted; its tasks do not run yet
    RUNNING = "RUNNING"  # its tasks run
    ENDED = "ENDED"  # nothing of it runs; ``end`` tells how it ended
    UNKNOWN = "UNKNOWN"  # the engine could not tell; nothing follows from it


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What an engine sees of one run.

    Attributes:
        reference: what the engine's own scheduler calls it; None: it has none, or none yet.
        reason: why it does not run yet, in that scheduler's words.
        attempt: which start of it was seen; what is seen of an earlier one says nothing of the run.
    """

    run: RunId
    phase: RunPhase
    started_at: Timestamp | None = None
    end: EndRecord | None = None
    reference: str | None = None
    reason: str = ""
    attempt: int = field(default=0, metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, as it stands.

    Attributes:
        job: what memory keeps of it; the whole is in the database.
        claim: what it waits for, then holds; None: its engine schedules, and the claim is that scheduler's.
        within: the claim is somebody else's (a workflow keeps it between its jobs), and stays when the run has ended.
        reference: what its engine's scheduler calls it.
        labels: as they are now.
        attempt: how often it has yielded, and so which start of it this is.
        started_at: when its first attempt did.
    """

    id: RunId
    job: JobSummary
    engine: str
    subject: str
    claim: ClaimId | None
    state: RunState
    created_at: Timestamp
    within: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    version: int = 1
    attempt: int = 0
    reference: str | None = None
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    exit_code: int | None = None
    task_codes: tuple[int | None, ...] = ()
    stop_reason: str = ""
    detail: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.state in ENDED

    @property
    def is_queued(self) -> bool:
        """Whether it waits, or is about to, in the queue of its engine's scheduler."""
        return self.claim is None and self.state is RunState.WAITING

    @property
    def is_unsubmitted(self) -> bool:
        """Whether its engine is to be asked to take it; one that was there must not run a second time."""
        return self.is_queued and self.reference is None


def step(run: Run, event: RunEvent, now: Timestamp, detail: str = "") -> Run:
    """The run after ``event``.

    Raises:
        IllegalMoveError: the table has no such move.
    """

    def story() -> Iterable[str]:
        return filter(None, (f"job {run.job.name} by {run.subject}", f"claim {run.claim or '-'}", run.detail))

    state = transition(NEXT, "run", run.id, run.state, event, story)
    changed = replace(run, state=state, version=run.version + 1, detail=detail or run.detail)
    if state is RunState.STOPPING:
        return replace(changed, stop_reason=detail)
    if state in ENDED:
        return replace(changed, ended_at=now)
    return changed


def apply_end(run: Run, end: EndRecord, now: Timestamp) -> Run:
    """The run after the engine's record of its end."""
    event = {
        EndReason.CANCELLED: RunEvent.CANCEL,
        EndReason.YIELDED: RunEvent.CANCEL,  # and it cannot go on: somebody cancelled it since, or its claim is gone
        EndReason.TIMED_OUT: RunEvent.TIME_OUT,
        EndReason.NOT_STARTED: RunEvent.FAIL,
        EndReason.NO_PARTITION: RunEvent.FAIL,
        EndReason.LOST: RunEvent.LOSE,
        EndReason.EXITED: RunEvent.SUCCEED if end.exit_code == 0 else RunEvent.FAIL,
    }[end.ending]
    told = (run.stop_reason, end.detail) if end.ending is EndReason.YIELDED else (end.detail, run.stop_reason)
    changed = step(run, event, now, told[0] or told[1])
    return replace(
        changed,
        started_at=run.started_at or end.started_at,
        ended_at=end.ended_at or now,
        exit_code=end.exit_code,
        task_codes=end.task_codes,
    )


def requeue_yielded(run: Run, now: Timestamp) -> Run:
    """The run as it waits for its next attempt: nothing of this one is left."""
    return replace(step(run, RunEvent.REQUEUE, now), attempt=run.attempt + 1)


def with_external_id(run: Run, reference: str) -> Run:
    """The run with what its engine's scheduler calls it."""
    return replace(run, reference=reference, version=run.version + 1)


def with_labels(run: Run, labels: Mapping[str, str]) -> Run:
    """The run with other labels."""
    return replace(run, labels=labels, version=run.version + 1)


def with_start_time(run: Run, now: Timestamp) -> Run:
    """The run with the moment its processes were first seen."""
    return replace(run, started_at=run.started_at or now)
