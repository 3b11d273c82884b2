"""Runs on an engine that schedules: they claim nothing, and follow what that engine sees."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from moorings.core.model.claims import Claim, ClaimState
from moorings.core.model.inputs import CheckpointSaved
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, a_claim, a_run
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.jobs import JobSpec
from moorings.workloads.run_turn import CancelRun, CreateRun, RunRegistry, RunRejected, RunTurn
from moorings.workloads.runs import EndReason, EndRecord, Run, RunId, RunPhase, RunState, RunStatus

LATER = Timestamp(NOW + SECOND)
RUN = a_run().id
CREATE = CreateRun(
    id=RUN, claim=None, job=JobSpec(name="digits", command=("true",), workdir="/"), engine="slurm", subject="ann"
)


def turn(*known: Run) -> RunTurn:
    return RunTurn(RunRegistry(known), lambda _: None, LATER)


def queued(state: RunState = RunState.WAITING) -> RunTurn:
    return turn(a_run(state=state, claim=None, engine="slurm"))


def the_run(now: RunTurn) -> Run:
    run = now.run(RUN)
    assert run is not None
    return run


def told(now: RunTurn) -> list[str]:
    return [event.name for event in now.events]


def test_a_new_one_waits_and_demands_nothing():
    now = turn()
    assert now.handle_input(CREATE) == []
    run = the_run(now)
    assert (run.state, run.claim, run.is_queued) == (RunState.WAITING, None, True)
    assert told(now) == ["run.created"]


def test_memory_keeps_it_without_a_claim():
    known = RunRegistry([a_run(state=RunState.WAITING, claim=None)])
    assert (set(known.by_id), known.by_claim) == ({RUN}, {})
    known.apply([a_run(state=RunState.CANCELLED, claim=None)])
    assert known.by_id == {}


def test_it_keeps_what_its_scheduler_calls_it():
    now = queued()
    assert now.handle_input(RunStatus(RUN, RunPhase.STARTING, reference="1234")) == []
    run = the_run(now)
    assert (run.state, run.reference, told(now)) == (RunState.WAITING, "1234", ["run.queued"])
    assert now.handle_input(RunStatus(RUN, RunPhase.STARTING, reference="1234")) == []
    assert told(now) == ["run.queued"]
    _, expected = now.changed[RUN]
    assert expected == 1


def test_when_its_tasks_run_it_runs():
    now = queued()
    assert now.handle_input(RunStatus(RUN, RunPhase.RUNNING, reference="1234")) == []
    run = the_run(now)
    assert (run.state, run.started_at) == (RunState.RUNNING, LATER)
    assert told(now) == ["run.queued", "run.starting", "run.started"]


def test_one_that_was_requeued_waits_again_until_it_runs_again():
    now = turn(a_run(state=RunState.RUNNING, claim=None, engine="slurm", reference="1234", started_at=NOW))
    assert now.handle_input(RunStatus(RUN, RunPhase.STARTING, reference="1234", reason="job 1234 is PENDING")) == []
    waits = the_run(now)
    assert (waits.state, waits.is_queued, waits.is_unsubmitted) == (RunState.WAITING, True, False)
    assert told(now) == ["run.requeued"]
    assert now.handle_input(RunStatus(RUN, RunPhase.RUNNING, reference="1234")) == []
    assert (the_run(now).state, the_run(now).started_at) == (RunState.RUNNING, NOW)
    assert told(now) == ["run.requeued", "run.starting", "run.started"]


SAVED = RunCheckpoint("/c/step-7.pt", 7, 1, Timestamp(NOW + SECOND // 2), True, CheckpointRule.ZIP)
RUNS = a_run(state=RunState.RUNNING, claim=None, engine="slurm", reference="1234", started_at=NOW)


def holding(number: int, owner: str, state: ClaimState = ClaimState.READY) -> Claim:
    return a_claim(number, owner=owner, state=state, ready_at=NOW)


def test_what_its_node_has_seen_counts_as_saved_work_of_the_claim_of_its_job():
    owner = "slurm/a/1234/nonce/0/x"
    looked = RunStatus(RUN, RunPhase.RUNNING, reference="1234", checkpoints=(SAVED,))
    others = [holding(2, "slurm/a/12345/nonce/0/x"), holding(3, owner, ClaimState.RELEASED), holding(4, "user/ann")]

    def demanded(*claims: Claim) -> object:
        now = RunTurn(RunRegistry([RUNS]), lambda _: None, LATER, all_claims=lambda: claims)
        return now.handle_input(looked)

    assert demanded(holding(1, owner), *others) == [CheckpointSaved(a_claim(1).id, SAVED.written_at)]
    assert demanded(*others) == []
    assert demanded(holding(1, owner), holding(5, "slurm/b/1234/nonce/0/x")) == [], "two clusters have a job 1234"


def test_what_its_node_gave_to_its_next_start_is_told():
    now = turn(replace(RUNS, checkpoints=(SAVED,)))
    now.handle_input(RunStatus(RUN, RunPhase.STARTING, reference="1234", checkpoints=(SAVED,)))
    now.handle_input(RunStatus(RUN, RunPhase.RUNNING, reference="1234", checkpoints=(SAVED,), resumed_from=SAVED))
    assert the_run(now).resumed_from == SAVED
    starting = next(event for event in now.events if event.name == "run.starting")
    assert json.loads(starting.data) == {"resume_from": SAVED.path}


def test_one_of_the_local_engine_never_waits_again():
    now = turn(a_run(state=RunState.RUNNING))
    assert now.handle_input(RunStatus(RUN, RunPhase.STARTING)) == []
    assert (the_run(now).state, told(now)) == (RunState.RUNNING, [])


def test_one_that_was_in_a_queue_and_is_lost_there_is_not_started_anew():
    now = turn(a_run(state=RunState.WAITING, claim=None, engine="slurm", reference="1234"))
    assert now.handle_input(RunStatus(RUN, RunPhase.ABSENT)) == []
    assert (the_run(now).state, told(now)) == (RunState.LOST, ["run.ended"])


@pytest.mark.parametrize(
    ("ending", "state"),
    [
        (EndReason.EXITED, RunState.SUCCEEDED),
        (EndReason.CANCELLED, RunState.CANCELLED),
        (EndReason.TIMED_OUT, RunState.TIMED_OUT),
        (EndReason.NOT_STARTED, RunState.FAILED),
        (EndReason.LOST, RunState.LOST),
    ],
)
def test_an_end_between_two_looks_is_its_end(ending, state):
    now = queued()
    end = EndRecord(ending, 0 if ending is EndReason.EXITED else 1)
    assert now.handle_input(RunStatus(RUN, RunPhase.ENDED, end=end)) == []  # there is no claim to give back
    assert the_run(now).state is state
    assert told(now)[-1] == "run.ended"


@pytest.mark.parametrize("phase", [RunPhase.STARTING, RunPhase.ABSENT, RunPhase.UNKNOWN])
def test_while_it_waits_nothing_else_moves_it(phase):
    now = queued()
    assert now.handle_input(RunStatus(RUN, phase)) == []
    assert (the_run(now).state, told(now)) == (RunState.WAITING, [])


def test_one_that_is_cancelled_has_not_ended_before_its_scheduler_says_so():
    now = queued()
    assert now.handle_input(CancelRun(RUN, "enough")) == []
    assert (the_run(now).state, the_run(now).stop_reason) == (RunState.STOPPING, "enough")
    assert now.handle_input(RunStatus(RUN, RunPhase.ABSENT)) == []
    assert the_run(now).state is RunState.CANCELLED


def test_one_that_its_scheduler_refuses_has_failed():
    now = queued()
    assert now.handle_input(RunRejected(RunId(RUN), "3 is no power of two")) == []
    assert (the_run(now).state, the_run(now).detail) == (RunState.FAILED, "3 is no power of two")


def test_why_it_waits_is_told_only_while_it_waits():
    waiting, running = (a_run(state=state, claim=None) for state in (RunState.WAITING, RunState.RUNNING))
    known = RunRegistry([waiting])
    assert known.wait_reason(waiting) is None
    known.set_wait_reason(RUN, "Slurm job 7 is PENDING (Licenses)")
    known.set_wait_reason(RUN, "", keep_if_empty=True)
    reason = known.wait_reason(waiting)
    assert reason is not None
    assert (reason.code, reason.message) == ("engine.waiting", "Slurm job 7 is PENDING (Licenses)")
    assert known.wait_reason(running) is None
    known.set_wait_reason(RUN, "")
    assert known.wait_reason(waiting) is None


def test_what_was_said_of_a_run_is_forgotten_with_it():
    known = RunRegistry([a_run(state=RunState.WAITING, claim=None)])
    known.set_wait_reason(RUN, "Slurm job 7 is PENDING (Licenses)")
    known.apply([a_run(state=RunState.CANCELLED, claim=None)])
    known.set_wait_reason(RUN, "too late")
    assert known.wait_reason(a_run(state=RunState.WAITING, claim=None)) is None


@pytest.mark.parametrize(
    ("given", "lost_s"),
    [(None, 0.5), (replace(SAVED, written_at=NOW), 0.5), (SAVED, None)],
    ids=["first start", "it saved", "it saved nothing"],
)
def test_what_a_requeue_has_lost_is_the_work_since_the_newest_checkpoint_of_that_start(
    given: RunCheckpoint | None, lost_s: float | None
) -> None:
    now = turn(replace(RUNS, checkpoints=(SAVED,), resumed_from=given))
    now.handle_input(RunStatus(RUN, RunPhase.STARTING, reference="1234", reason="job 1234 is PENDING"))
    (event,) = now.events
    assert json.loads(event.data).get("lost_s") == lost_s
