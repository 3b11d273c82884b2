"""Lost attempts of a run with retries: what is retried, when, how often; and what is a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.access import Role
from moorings.core.model.claims import CheckpointContract, Claim, ClaimId, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import ReleaseClaim
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import SECOND, Timestamp, seconds_between
from moorings.testing.builders import NOW, a_claim, a_job, a_run
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.jobs import RETRIES_MAX, check_job
from moorings.workloads.run_turn import CancelRun, PauseRun, ResumeRun, RunRegistry, RunTurn
from moorings.workloads.runs import (
    RETRY_S_MAX,
    EndReason,
    EndRecord,
    LossRecord,
    Run,
    RunPause,
    RunPhase,
    RunState,
    RunStatus,
    retry_delay_s,
)

LATER = Timestamp(NOW + SECOND)
RUN, CLAIM = a_run().id, a_claim().id
JOB = replace(a_run().job, checkpoint_directory="/c", retries=2)
SPEC = replace(a_claim().spec, checkpoint=CheckpointContract(resumable=True), priority=3)
HELD = a_claim(state=ClaimState.READY, spec=SPEC)
GONE = replace(HELD, state=ClaimState.LOST, reason=Reason("claim.lost", "its partition disappeared"))
LOST = RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.LOST, 137, detail="the machine was restarted"))
STOPPED = RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.CANCELLED, 143, detail="stopped"))
RELEASED = [ReleaseClaim(CLAIM, f"run {RUN} is retried")]
SAVED = RunCheckpoint("/c/step-7.pt", 7, 1, Timestamp(NOW + 1), True, CheckpointRule.ZIP)


def run_of(state: RunState = RunState.RUNNING, **more: Any) -> Run:
    return a_run(**{"state": state, "job": JOB, **more})


def turn(run: Run, claims: Sequence[Claim] = (HELD,)) -> RunTurn:
    return RunTurn(RunRegistry([run]), {claim.id: claim for claim in claims}.get, LATER)


def now_of(now: RunTurn) -> Run:
    run = now.run(RUN)
    assert run is not None
    return run


def test_a_run_whose_supervisor_died_waits_for_its_retry_without_its_claim() -> None:
    now = turn(run_of())
    assert now.handle_input(LOST) == RELEASED
    run = now_of(now)
    assert (run.state, run.attempt, run.loss_record) == (RunState.PAUSED, 1, LossRecord(1, None, 1))
    assert run.pause is not None
    assert run.pause.resume_at is not None
    assert (run.pause.reason, run.pause.priority) == ("the machine was restarted", 3)
    assert seconds_between(LATER, run.pause.resume_at) == 10.0
    (event,) = now.events
    assert event.name == "run.retrying"
    data = json.loads(event.data)
    assert (data["why"], data["retry"], data["retries"]) == ("the machine was restarted", 1, 2)


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING, RunState.YIELDING])
def test_a_run_whose_partition_was_lost_is_stopped_and_then_retried(state: RunState) -> None:
    now = turn(run_of(state), [GONE])
    assert now.apply_claim_changes([GONE]) == []
    assert now_of(now).state is RunState.STOPPING
    assert now.handle_input(STOPPED) == RELEASED
    run = now_of(now)
    assert (run.state, run.pause is not None and run.pause.loss) == (RunState.PAUSED, "its partition disappeared")


def test_a_run_that_had_not_begun_when_its_partition_was_lost_is_retried() -> None:
    now = turn(run_of(RunState.STARTING), [GONE])
    now.apply_claim_changes([GONE])
    assert now.handle_input(RunStatus(RUN, RunPhase.ABSENT)) == RELEASED


def test_a_run_that_waits_is_retried_as_the_same_attempt() -> None:
    now = turn(run_of(RunState.WAITING), [GONE])
    assert now.apply_claim_changes([GONE]) == RELEASED
    assert (now_of(now).state, now_of(now).attempt) == (RunState.PAUSED, 0)


@pytest.mark.parametrize(
    "end",
    [
        EndRecord(EndReason.EXITED, 1),
        EndRecord(EndReason.EXITED, 137, detail="task 0 was killed by SIGKILL; out of memory"),
        EndRecord(EndReason.EXITED, 0),
        EndRecord(EndReason.TIMED_OUT, 124),
        EndRecord(EndReason.NOT_STARTED, 127),
    ],
    ids=["error", "memory", "success", "time", "program"],
)
def test_what_the_program_did_itself_is_a_result(end: EndRecord) -> None:
    now = turn(run_of())
    now.handle_input(replace(LOST, end=end))
    assert now_of(now).is_ended


@pytest.mark.parametrize(
    "run",
    [
        run_of(job=replace(JOB, retries=0)),
        run_of(loss_record=LossRecord(2, None, 1)),
        run_of(job=replace(JOB, checkpoint_directory=None)),
        run_of(within=True),
    ],
    ids=["none", "used", "no folder", "within"],
)
def test_a_run_without_a_retry_is_lost(run: Run) -> None:
    now = turn(run)
    now.handle_input(LOST)
    assert now_of(now).state is RunState.LOST


def test_the_last_loss_says_that_the_retries_are_used() -> None:
    now = turn(run_of(loss_record=LossRecord(2, None, 1)))
    now.handle_input(LOST)
    assert now_of(now).detail == "the machine was restarted; its retries are used up"


def test_a_run_that_is_lost_three_times_at_the_same_checkpoint_is_not_retried() -> None:
    stuck = run_of(job=replace(JOB, retries=9), checkpoints=(SAVED,), loss_record=LossRecord(2, SAVED.path, 2))
    now = turn(stuck)
    now.handle_input(LOST)
    assert now_of(now).detail == "the machine was restarted; not retried: it was lost 3 times since /c/step-7.pt"
    now = turn(replace(stuck, loss_record=LossRecord(2, "/c/step-6.pt", 2)))
    assert now.handle_input(LOST) == RELEASED
    assert now_of(now).loss_record == LossRecord(3, SAVED.path, 1)


def test_whoever_resumes_it_by_hand_lets_it_be_lost_at_the_same_checkpoint_again() -> None:
    stuck = run_of(checkpoints=(SAVED,), loss_record=LossRecord(2, SAVED.path, 2), job=replace(JOB, retries=9))
    now = turn(replace(stuck, state=RunState.PAUSED, pause=RunPause("the controller", NOW, 0.0, 3, "its node")))
    now.handle_input(ResumeRun(RUN, ClaimId("claim-next"), SPEC, Role.USER))
    assert now_of(now).loss_record == LossRecord(2, SAVED.path, 0)
    now = turn(replace(now_of(now), state=RunState.RUNNING, claim=CLAIM))
    now.handle_input(LOST)
    assert now_of(now).loss_record == LossRecord(3, SAVED.path, 1)


def test_the_time_to_a_retry_doubles_up_to_the_longest() -> None:
    assert [retry_delay_s(count) for count in (1, 2, 3)] == [10, 20, 40]
    assert retry_delay_s(RETRIES_MAX) == retry_delay_s(10_000) == RETRY_S_MAX


def test_the_cancelled_loss_is_not_retried() -> None:
    now = turn(run_of(), [GONE])
    now.apply_claim_changes([GONE])
    assert now.handle_input(CancelRun(RUN, "ann asked")) == []
    assert now.handle_input(STOPPED) == [ReleaseClaim(CLAIM, f"run {RUN} CANCELLED")]
    assert (now_of(now).state, now_of(now).stop_reason) == (RunState.CANCELLED, "ann asked")


def test_a_cancel_counts_also_when_no_retry_is_left() -> None:
    now = turn(run_of(loss_record=LossRecord(2, None, 1)), [GONE])
    now.apply_claim_changes([GONE])
    now.handle_input(CancelRun(RUN, "ann asked"))
    now.handle_input(CancelRun(RUN, "ann asked again"))
    now.handle_input(STOPPED)
    assert (now_of(now).state, now_of(now).stop_reason) == (RunState.CANCELLED, "ann asked")


def test_a_program_that_fails_once_its_partition_is_lost_is_retried() -> None:
    now = turn(run_of(), [GONE])
    now.apply_claim_changes([GONE])
    now.handle_input(replace(STOPPED, end=EndRecord(EndReason.EXITED, 1)))
    assert now_of(now).state is RunState.PAUSED
    now = turn(run_of(), [GONE])
    now.apply_claim_changes([GONE])
    now.handle_input(replace(STOPPED, end=EndRecord(EndReason.EXITED, 0)))
    assert (now_of(now).state, now_of(now).detail) == (RunState.SUCCEEDED, "its partition disappeared")


def test_a_due_retry_that_was_held_meanwhile_does_not_come() -> None:
    now = turn(run_of())
    now.handle_input(LOST)
    now.handle_input(PauseRun(RUN, "ann", 60.0))
    with pytest.raises(MooringsError) as refused:
        now.handle_input(ResumeRun(RUN, ClaimId("claim-next"), SPEC))
    assert refused.value.code == "run.not_paused"


def test_a_hold_of_a_retry_pauses_no_run_that_was_resumed_meanwhile() -> None:
    for state in (RunState.WAITING, RunState.RUNNING):
        now = turn(run_of(state))
        assert now.handle_input(PauseRun(RUN, "the controller: no", 0.0, holds_retry=True)) == []
        assert now_of(now).state is state


def test_a_loss_before_the_program_began_does_not_count_as_one_without_progress() -> None:
    now = turn(run_of(RunState.WAITING, loss_record=LossRecord(1, None, 1)), [GONE])
    now.apply_claim_changes([GONE])
    assert now_of(now).loss_record == LossRecord(2, None, 1)


def test_a_run_that_waits_for_its_retry_can_be_cancelled_resumed_and_held() -> None:
    now = turn(run_of())
    now.handle_input(LOST)
    waiting = now_of(now)
    resume = ResumeRun(RUN, ClaimId("claim-next"), SPEC, Role.USER)
    turn(waiting).handle_input(resume)
    now = turn(waiting)
    now.handle_input(CancelRun(RUN, "ann asked"))
    assert now_of(now).state is RunState.CANCELLED
    now = turn(waiting)
    assert now.handle_input(PauseRun(RUN, "ann", 60.0)) == []
    held = now_of(now)
    assert held.pause == RunPause("ann", LATER, 0.0, 3)
    assert [event.name for event in now.events] == ["run.paused"]


def test_a_pause_asked_for_while_a_lost_run_stops_keeps_it_from_resuming() -> None:
    now = turn(run_of(), [GONE])
    now.apply_claim_changes([GONE])
    now.handle_input(PauseRun(RUN, "ann", 60.0))
    now.handle_input(STOPPED)
    run = now_of(now)
    assert run.state is RunState.PAUSED
    assert run.pause is not None
    assert (run.pause.reason, run.pause.resume_at, run.loss_record) == ("paused by ann", None, None)


def test_a_run_that_loses_its_partition_while_it_is_paused_is_paused_without_a_retry() -> None:
    now = turn(run_of(RunState.YIELDING, job=replace(JOB, retries=0), pause=RunPause("ann", NOW, 60.0, 3)), [GONE])
    now.apply_claim_changes([GONE])
    assert now_of(now).state is RunState.STOPPING
    now.handle_input(STOPPED)
    assert (now_of(now).state, now_of(now).loss_record) == (RunState.PAUSED, None)


def test_losses_are_counted_over_attempts() -> None:
    now = turn(run_of())
    now.handle_input(LOST)
    waiting = now_of(now)
    now = turn(waiting)
    now.handle_input(ResumeRun(RUN, CLAIM, SPEC))
    again = replace(now_of(now), state=RunState.RUNNING, checkpoints=(SAVED,))
    assert again.loss_record == LossRecord(1, None, 1)
    now = turn(again)
    now.handle_input(replace(LOST, attempt=1))
    run = now_of(now)
    assert run.loss_record == LossRecord(2, SAVED.path, 1)
    assert run.pause is not None
    assert run.pause.resume_at is not None
    assert seconds_between(LATER, run.pause.resume_at) == 20.0


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"retries": -1}, "-1 retries are out of range"),
        ({"retries": RETRIES_MAX + 1}, "out of range"),
        ({"retries": 1, "checkpoint": CheckpointContract()}, "only a job that resumes"),
        ({"retries": 1, "checkpoint_directory": None}, "only a job that resumes"),
    ],
    ids=["negative", "many", "not resumable", "no folder"],
)
def test_retries_that_cannot_work_are_refused(more: dict[str, Any], match: str) -> None:
    good: dict[str, Any] = {
        "checkpoint": CheckpointContract(resumable=True),
        "checkpoint_directory": "/c",
        "retries": 1,
    }
    check_job(replace(a_job(), **good))
    with pytest.raises(MooringsError, match=match) as refused:
        check_job(replace(a_job(), **{**good, **more}))
    assert refused.value.code == "job.invalid"


# -- on an engine with a scheduler of its own -------------------------------------------------------------------------


def external(state: RunState = RunState.RUNNING, **more: Any) -> Run:
    return run_of(state, engine="kubernetes", claim=None, reference="runs/one", checkpoints=(SAVED,), **more)


def test_a_lost_run_without_a_claim_is_submitted_again_as_another_attempt() -> None:
    now = turn(external(), ())
    assert now.handle_input(LOST) == []
    paused = now_of(now)
    assert (paused.state, paused.attempt, paused.reference) == (RunState.PAUSED, 1, None)
    later = turn(paused, ())
    assert later.handle_input(ResumeRun(RUN, ClaimId("claim-unused"), SPEC)) == []
    run = now_of(later)
    assert (run.state, run.claim, run.is_unsubmitted, run.resumed_from) == (RunState.WAITING, None, True, SAVED)
    assert [event.name for event in later.events] == ["run.resumed"]


def test_one_that_is_lost_while_it_waits_in_its_scheduler_is_submitted_under_another_name() -> None:
    now = turn(external(RunState.WAITING), ())
    now.handle_input(LOST)
    assert (now_of(now).state, now_of(now).attempt) == (RunState.PAUSED, 1)


def test_its_retries_are_used_up_there_too() -> None:
    now = turn(external(loss_record=LossRecord(2, SAVED.path, 1)), ())
    now.handle_input(LOST)
    assert now_of(now).state is RunState.LOST
    assert "its retries are used up" in now_of(now).detail


def test_the_end_of_the_attempt_before_says_nothing_of_the_one_that_is_submitted() -> None:
    now = turn(external(RunState.WAITING, attempt=1), ())
    now.handle_input(LOST)
    assert now_of(now).state is RunState.WAITING


def test_one_that_is_paused_until_its_retry_is_cancelled() -> None:
    now = turn(external(), ())
    now.handle_input(LOST)
    later = turn(now_of(now), ())
    assert later.handle_input(CancelRun(RUN, "enough")) == []
    assert now_of(later).state is RunState.CANCELLED
