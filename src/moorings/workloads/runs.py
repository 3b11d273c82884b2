"""Runs: jobs started by a user, from submission to the recorded end.

A run's claim decides when it may start (law 4); the engine's record decides when it has ended (law 3). If its claim is
asked to yield, the run is stopped, its partition is given back once none of its processes is left, and it waits for its
next attempt. The claim of a run that is paused is released; it gets a new one when it is resumed. On an engine with its
own scheduler (Slurm) a run has no claim: that scheduler's queue decides when it starts, and its agent arranges the
partition. This file holds the record, its states, and the reports of engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NewType

from moorings.core.model.claims import ClaimId
from moorings.core.model.serialization import OMIT_IF_DEFAULT
from moorings.core.model.state_machine import terminal_states, transition
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.workloads.checkpoints import RunCheckpoint, newest_whole
from moorings.workloads.dependencies import Dependency, RunHold
from moorings.workloads.jobs import JobSummary

RunId = NewType("RunId", str)


class RunState(StrEnum):
    """The state of a run."""

    WAITING = "WAITING"  # its claim is not READY, or it waits in another scheduler's queue (again); no process exists
    STARTING = "STARTING"  # the partition is ACTIVE; the engine was, or is about to be, asked to start it
    RUNNING = "RUNNING"  # the engine reports its processes
    YIELDING = "YIELDING"  # its devices are needed elsewhere: it was warned and is being stopped; it still holds them
    STOPPING = "STOPPING"  # it was asked to stop; processes may still run; it still holds the partition
    PAUSED = "PAUSED"  # it was paused on request: no process of it exists, its claim was released; it can be resumed
    SUCCEEDED = "SUCCEEDED"  # ended: every task exited 0
    FAILED = "FAILED"  # ended: a task failed, it could not be started, or its claim failed
    CANCELLED = "CANCELLED"  # ended: cancelled on request, or because its lease expired
    TIMED_OUT = "TIMED_OUT"  # ended: its time limit
    LOST = "LOST"  # ended: its supervisor died without a record (machine restart, kill -9), or its scheduler lost it


class RunEvent(StrEnum):
    """What can happen to a run."""

    PARTITION_READY = "berth"  # its claim became READY, or another scheduler gave it a partition
    STARTED = "started"
    YIELD = "yield"  # its claim was asked to yield
    REQUEUE = "requeue"  # nothing of it runs, and it waits again: it yielded, or its engine's scheduler stopped it
    PAUSE = "pause"  # nothing of it runs, and it does not wait: it was paused on request
    RESUME = "resume"  # it was resumed on request, and waits with a new claim
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
        RunEvent.PARTITION_READY: RunState.STARTING,
        RunEvent.PAUSE: RunState.PAUSED,
        RunEvent.STOP: RunState.STOPPING,  # if another scheduler has it, only that can say when it has stopped
        RunEvent.FAIL: RunState.FAILED,  # it could not be served
        RunEvent.CANCEL: RunState.CANCELLED,
        RunEvent.LOSE: RunState.LOST,  # its scheduler no longer knows it
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
    RunState.YIELDING: {
        RunEvent.REQUEUE: RunState.WAITING,
        RunEvent.PAUSE: RunState.PAUSED,
        RunEvent.STOP: RunState.STOPPING,
        **_RESULTS,
    },
    RunState.STOPPING: {
        RunEvent.PAUSE: RunState.PAUSED,  # its partition was lost, and it goes on later
        **_RESULTS,
    },
    RunState.PAUSED: {RunEvent.RESUME: RunState.WAITING, RunEvent.CANCEL: RunState.CANCELLED},
    RunState.SUCCEEDED: {},
    RunState.FAILED: {},
    RunState.CANCELLED: {},
    RunState.TIMED_OUT: {},
    RunState.LOST: {},
}

ENDED = terminal_states(NEXT)
_MAY_HAVE_PAUSE = (RunState.YIELDING, RunState.STOPPING, RunState.PAUSED)


class EndReason(StrEnum):
    """How a run ended, as its engine reports it."""

    EXITED = "EXITED"  # every task ended by itself (or was stopped because another failed)
    CANCELLED = "CANCELLED"  # stopped on request
    YIELDED = "YIELDED"  # it exited with another code than 0, or was stopped, after it was asked to yield
    TIMED_OUT = "TIMED_OUT"  # stopped at its time limit
    NOT_STARTED = "NOT_STARTED"  # the command could not be started
    LOST = "LOST"  # no record: the supervisor died
    NO_PARTITION = "NO_PARTITION"  # stopped because its partition was lost; set by the controller


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The recorded end of a run.

    Attributes:
        ending: the reason.
        exit_code: the exit code of ``moor run``: that of the task that failed first (128 + N for signal N); 0 only if
            all ended with 0. A run that was stopped never has 0.
        task_codes: each task's own code, by rank; None if it never started.
        detail: a sentence; may be empty.
    """

    ending: EndReason
    exit_code: int
    task_codes: tuple[int | None, ...] = ()
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    detail: str = ""


RETRY_S, RETRY_S_MAX = 10.0, 600.0  # until the first retry of a lost run, and until the last ones
LOSSES_UNCHANGED_MAX = 3  # a run that is lost so often without a new checkpoint is not retried

SIGTERM_EXIT_CODE, SIGKILL_EXIT_CODE = 128 + 15, 128 + 9  # a shell's codes for TERM and KILL
TIMEOUT_EXIT_CODE = 124  # the code of timeout(1)
CANNOT_START, NOT_FOUND = 126, 127  # a shell's codes

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

    A job that saves its checkpoint and exits with 0 when it is stopped has not finished, so ``moor run a && moor run
    b`` must not continue with b.
    """
    return first_failure if first_failure is not None else _CODE_IF_NO_TASK_FAILED[ending]


class RunPhase(StrEnum):
    """The phase of a run, as its engine reports it."""

    ABSENT = "ABSENT"  # the engine knows nothing of it
    STARTING = "STARTING"  # accepted; its tasks do not run yet
    RUNNING = "RUNNING"  # its tasks run
    ENDED = "ENDED"  # nothing of it runs; ``end`` has the reason
    UNKNOWN = "UNKNOWN"  # the engine has no answer; it changes nothing


@dataclass(frozen=True, slots=True)
class RunStatus:
    """An engine's report of one run.

    Attributes:
        reference: its id in the engine's own scheduler; None: it has none, or none yet.
        reason: why it does not run yet, in that scheduler's words.
        attempt: the observed attempt; a report of an earlier one says nothing of the run.
        checkpoints: the newest in its folder, newest first; None: no look at it has ended.
        checkpoint_fault: why the folder cannot be looked at; else empty.
        resumed_from: the checkpoint that this start was given, if whoever runs beside its tasks has chosen it.
    """

    run: RunId
    phase: RunPhase
    started_at: Timestamp | None = None
    end: EndRecord | None = None
    reference: str | None = None
    reason: str = ""
    attempt: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    checkpoints: tuple[RunCheckpoint, ...] | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    checkpoint_fault: str = field(default="", metadata=OMIT_IF_DEFAULT)
    resumed_from: RunCheckpoint | None = field(default=None, metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class RunPause:
    """A request to pause a run, or the time between the loss of an attempt and its retry.

    Attributes:
        by: who asked.
        asked_at: when.
        timeout_s: from when its engine knows it, how long until no process may be left, however little was saved.
        priority: of the claim that was released, which the next one gets.
        loss: how the attempt was lost that is retried; empty: it was paused on request.
        resume_at: when it is retried; None: when somebody resumes it, or an attempt's end is not known yet.
    """

    by: str
    asked_at: Timestamp
    timeout_s: float
    priority: int
    loss: str = field(default="", metadata=OMIT_IF_DEFAULT)
    resume_at: Timestamp | None = field(default=None, metadata=OMIT_IF_DEFAULT)

    @property
    def reason(self) -> str:
        """Why the run stops, as a sentence."""
        return self.loss or f"paused by {self.by}"


@dataclass(frozen=True, slots=True)
class LossRecord:
    """The attempts of a run that were lost through no fault of its program.

    Attributes:
        count: how many.
        checkpoint: path of the newest whole one at the last loss; None: there was none.
        unchanged: how many losses in a row, up to the last, found the same.
    """

    count: int
    checkpoint: str | None
    unchanged: int


@dataclass(frozen=True, slots=True)
class Submitter:
    """The person who submits a run to another scheduler; neither field is proof by itself.

    Attributes:
        uid: of that person on the cluster, as their ``moor`` says it; a job of another user is never this run's.
        token_digest: SHA-256 of the token that reports of this run carry, in hexadecimal.
    """

    uid: int
    token_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The record of one run.

    Attributes:
        job: the part in memory; the whole job is in the database.
        claim: the claim that it waits for, then holds (PAUSED: the one it has released); None: its engine's scheduler
            has the claim, or ``hold`` says what it waits for first.
        within: the claim is not its own (a workflow keeps it between its jobs), and stays after the run's end.
        reference: its id in the engine's scheduler.
        labels: the present ones.
        attempt: how often it has yielded or was paused; the number of its present attempt.
        started_at: when its first attempt started.
        checkpoints: the newest in its folder as last reported, newest first.
        checkpoint_fault: why that folder cannot be looked at; else empty.
        resumed_from: the checkpoint that its present attempt was given.
        chosen_at: when it was last resumed from a checkpoint by choice: what it had saved until then is given no more.
        pause: set while it is being paused, and while it is PAUSED; in no other state.
        loss_record: its lost attempts that were retried; None: none was.
        spool_entry: of the job in the root daemon's spool, on a machine that people share; empty: it is in none.
        submitter: the person whose own ``moor`` submits it; None: its engine does.
        hold: the runs that it waits for, while it is WAITING; None: for none.
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
    checkpoints: tuple[RunCheckpoint, ...] = ()
    checkpoint_fault: str = ""
    resumed_from: RunCheckpoint | None = None
    chosen_at: Timestamp | None = None
    pause: RunPause | None = None
    loss_record: LossRecord | None = None
    spool_entry: str = ""
    submitter: Submitter | None = None
    hold: RunHold | None = None

    @property
    def is_ended(self) -> bool:
        """Whether no event can happen to it any more."""
        return self.state in ENDED

    @property
    def is_queued(self) -> bool:
        """Whether it waits, or is about to, in the queue of its engine's scheduler."""
        return self.claim is None and self.state is RunState.WAITING and self.hold is None

    @property
    def is_unsubmitted(self) -> bool:
        """Whether its engine must submit it; a run that was in that queue must not run a second time."""
        return self.is_queued and self.reference is None


def step(run: Run, event: RunEvent, now: Timestamp, detail: str = "") -> Run:
    """The run after ``event``.

    Raises:
        IllegalTransitionError: the table has no such move.
    """

    def story() -> Iterable[str]:
        return filter(None, (f"job {run.job.name} by {run.subject}", f"claim {run.claim or '-'}", run.detail))

    state = transition(NEXT, "run", run.id, run.state, event, story)
    changed = replace(run, state=state, version=run.version + 1, detail=detail or run.detail)
    if event is RunEvent.PARTITION_READY:
        changed = replace(changed, checkpoint_fault="")  # another node may see more
    if state not in _MAY_HAVE_PAUSE:
        changed = replace(changed, pause=None)
    if run.hold is not None:  # it waits for no other run any more
        changed = replace(changed, hold=None)
    if state is RunState.STOPPING:
        return replace(changed, stop_reason=detail)
    if state in ENDED:
        return replace(changed, ended_at=now)
    return changed


def apply_end(run: Run, end: EndRecord, now: Timestamp) -> Run:
    """The run after the engine's record of its end."""
    event = {
        EndReason.CANCELLED: RunEvent.CANCEL,
        EndReason.YIELDED: RunEvent.CANCEL,  # it cannot resume: it was cancelled since, or its claim is gone
        EndReason.TIMED_OUT: RunEvent.TIME_OUT,
        EndReason.NOT_STARTED: RunEvent.FAIL,
        EndReason.NO_PARTITION: RunEvent.FAIL,
        EndReason.LOST: RunEvent.LOSE,
        EndReason.EXITED: RunEvent.SUCCEED if end.exit_code == 0 else RunEvent.FAIL,
    }[end.ending]
    details = (run.stop_reason, end.detail) if end.ending is EndReason.YIELDED else (end.detail, run.stop_reason)
    changed = step(run, event, now, details[0] or details[1])
    return replace(
        changed,
        started_at=run.started_at or end.started_at,
        ended_at=end.ended_at or now,
        exit_code=end.exit_code,
        task_codes=end.task_codes,
    )


def requeue_yielded(run: Run, now: Timestamp) -> Run:
    """The run, waiting for its next attempt: nothing of this one is left."""
    return replace(step(run, RunEvent.REQUEUE, now), attempt=run.attempt + 1)


def with_dependencies(run: Run, after: tuple[Dependency, ...]) -> Run:
    """The WAITING run, which waits for these runs now."""
    assert run.hold is not None
    return replace(run, hold=replace(run.hold, after=after), version=run.version + 1)


def without_hold(run: Run) -> Run:
    """The WAITING run, which asks for devices now."""
    assert run.hold is not None
    return replace(run, hold=None, claim=run.hold.claim, version=run.version + 1)


def begin_pause(run: Run, pause: RunPause) -> Run:
    """The run with a request to pause it."""
    return replace(run, pause=pause, version=run.version + 1)


def cancel_pause(run: Run, why: str) -> Run:
    """A run that stops, and does not go on afterwards."""
    return replace(run, pause=None, stop_reason=why, version=run.version + 1)


def after_loss(run: Run) -> LossRecord:
    """The losses of a run with the one of its present attempt."""
    newest = newest_whole(run.checkpoints, run.created_at)
    path = newest.path if newest is not None else None
    if run.loss_record is None:
        return LossRecord(1, path, 0 if run.state is RunState.WAITING else 1)
    before = run.loss_record.unchanged if run.loss_record.checkpoint == path else 0
    unchanged = before if run.state is RunState.WAITING else before + 1  # its program had no part in that
    return LossRecord(run.loss_record.count + 1, path, unchanged)


def forgive_losses(run: Run) -> Run:
    """The run; its losses at the same checkpoint are counted from zero again, and their total stays."""
    record = run.loss_record
    return run if record is None else replace(run, loss_record=replace(record, unchanged=0))


def retry_pause(run: Run, pause: RunPause, losses: LossRecord, now: Timestamp) -> Run:
    """The PAUSED run with the time of its retry."""
    return replace(
        run, pause=replace(pause, resume_at=add_seconds(now, retry_delay_s(losses.count))), loss_record=losses
    )


def retry_delay_s(count: int) -> float:
    """How long that retry waits after the loss: twice as long as the one before."""
    return min(RETRY_S * 2.0 ** min(count - 1, 20), RETRY_S_MAX)


def apply_pause(run: Run, pause: RunPause, now: Timestamp) -> Run:
    """The run, PAUSED: nothing of it is left."""
    was_submitted = run.state is not RunState.WAITING or run.claim is None
    attempt = run.attempt + 1 if was_submitted else run.attempt
    return replace(step(run, RunEvent.PAUSE, now), attempt=attempt, pause=pause, reference=None)


def apply_resume(run: Run, claim: ClaimId | None, chosen: RunCheckpoint | None, now: Timestamp) -> Run:
    """The run, waiting again.

    Args:
        run: PAUSED.
        claim: the one it waits for; None: it waits in its engine's scheduler.
        chosen: the checkpoint that its user wants; None: the newest whole one since the last choice.
        now: the time.
    """
    waiting = replace(step(run, RunEvent.RESUME, now), claim=claim)
    return waiting if chosen is None else replace(waiting, resumed_from=chosen, chosen_at=now)


def with_external_id(run: Run, reference: str) -> Run:
    """The run with its id in the engine's scheduler."""
    return replace(run, reference=reference, version=run.version + 1)


def after_look(run: Run, seen: RunStatus) -> Run:
    """The run with what a look at its checkpoint folder has found; itself, if that is nothing new."""
    if seen.checkpoint_fault:
        found = run.checkpoints  # as they were when the folder could be looked at
    elif seen.checkpoints is not None:
        found = seen.checkpoints
    else:
        return run
    given = seen.resumed_from or run.resumed_from
    if (found, seen.checkpoint_fault, given) == (run.checkpoints, run.checkpoint_fault, run.resumed_from):
        return run
    version = run.version + 1
    return replace(run, checkpoints=found, checkpoint_fault=seen.checkpoint_fault, resumed_from=given, version=version)


def resume_since(run: Run) -> Timestamp:
    """Only checkpoints that were saved later are of this run, or of it since its user chose another one."""
    return run.created_at if run.chosen_at is None else run.chosen_at


def resume_point(run: Run) -> RunCheckpoint | None:
    """What an attempt after the present one is given: the newest whole checkpoint, or else what this one was given."""
    return newest_whole(run.checkpoints, resume_since(run)) or run.resumed_from


def with_resume_point(run: Run) -> Run:
    """The run whose next attempt is given that."""
    return replace(run, resumed_from=resume_point(run))


def own_checkpoints(run: Run) -> tuple[RunCheckpoint, ...]:
    """The checkpoints in its folder that were written since it was made, newest first."""
    return tuple(each for each in run.checkpoints if each.written_at > run.created_at)


def with_labels(run: Run, labels: Mapping[str, str]) -> Run:
    """The run with other labels."""
    return replace(run, labels=labels, version=run.version + 1)


def with_start_time(run: Run, now: Timestamp) -> Run:
    """The run with the time when its processes were first observed."""
    return replace(run, started_at=run.started_at or now)
