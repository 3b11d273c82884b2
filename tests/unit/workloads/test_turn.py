"""The runs' part of a turn: what runs demand of the queue, and what becomes of them when others speak."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.access import Role
from moorings.core.model.backlog import Amount
from moorings.core.model.claims import CheckpointContract, Claim, ClaimId, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CheckpointSaved, CreateClaim, ReleaseClaim, YieldClaim
from moorings.core.model.policy import Policy
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, a_claim, a_run
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.jobs import Accelerators, JobSpec, summarize_job
from moorings.workloads.run_turn import CancelRun, CreateRun, LabelRun, RunIdled, RunRegistry, RunRejected, RunTurn
from moorings.workloads.runs import EndReason, EndRecord, Run, RunId, RunPhase, RunState, RunStatus
from tests.cases import cases

LATER = Timestamp(NOW + SECOND)
JOB = JobSpec(name="digits", command=("python3", "train.py"), workdir="/", tasks=2, accelerators=Accelerators(size=4))
CREATE = CreateRun(id=RunId("run-new"), claim=ClaimId("claim-new"), job=JOB, engine="local", subject="ann")
RUN = a_run().id
CLAIM = a_claim().id


def turn(*known: Run, claims: Sequence[Claim] = ()) -> RunTurn:
    return RunTurn(RunRegistry(known), {claim.id: claim for claim in claims}.get, LATER)


def in_state(state: RunState, claims: Sequence[Claim] = (), **more: Any) -> RunTurn:
    return turn(a_run(state=state, **more), claims=claims)


def the_run(turn: RunTurn, ident: RunId = RUN) -> Run:
    run = turn.run(ident)
    assert run is not None
    return run


def told(turn: RunTurn) -> list[str]:
    return [event.name for event in turn.events]


def claim(state: ClaimState, **more: Any):
    return a_claim(state=state, **more)


# -- idle ----------------------------------------------------------------------------------------------------------


@cases(("is_long", "name"), [(False, "run.idled"), (True, "run.stayed_idle")])
def test_an_idle_run_is_reported_and_nothing_else_happens_to_it(is_long, name):
    now = in_state(RunState.RUNNING, attempt=2)
    assert now.handle_input(RunIdled(RUN, 2, NOW, is_long=is_long)) == []
    (event,) = now.events
    asked = a_run().job.accelerators
    assert (event.name, event.run, event.ownership.subject) == (name, RUN, "ann")
    assert json.loads(event.data) == {"size": asked.size, "kind": asked.kind, "since": NOW}
    assert now.changed == {}


@cases(
    ("state", "attempt"), [(state, 2) for state in RunState if state is not RunState.RUNNING] + [(RunState.RUNNING, 1)]
)
def test_what_was_read_of_an_earlier_attempt_or_state_is_not_reported(state, attempt):
    now = in_state(state, attempt=2)
    assert now.handle_input(RunIdled(RUN, attempt, NOW, is_long=True)) == []
    assert (now.events, now.changed) == ([], {})
    assert turn().handle_input(RunIdled(RUN, 2, NOW, is_long=True)) == [], "it is gone"


# -- creating ------------------------------------------------------------------------------------------------------


def test_a_new_run_waits_and_asks_for_its_partition():
    now = turn()
    (demand,) = now.handle_input(CREATE)
    assert isinstance(demand, CreateClaim)
    assert (demand.id, demand.name, demand.owner, demand.subject) == ("claim-new", "run-new", "local/run-new", "ann")
    assert (demand.spec.size, demand.spec.gcds) == (4, 2)
    run = the_run(now, CREATE.id)
    assert (run.state, run.claim, run.created_at, run.version) == (RunState.WAITING, "claim-new", LATER, 1)
    assert now.changed[run.id] == (run, None)


def test_of_two_who_begin_a_workflow_in_one_turn_it_is_his_who_came_first():
    part = WorkflowPart(ApplianceJobType.COMPILE, "wflow-" + "a" * 22)
    ours = replace(CREATE, job=replace(JOB, appliance=part), role=Role.USER)
    theirs = replace(ours, id=RunId("run-2"), claim=ClaimId("claim-2"), subject="bob")
    now = turn()
    now.handle_input(ours)
    with pytest.raises(MooringsError) as caught:
        now.handle_input(theirs)
    assert caught.value.code == "owner.denied"
    assert set(now.changed) == {ours.id}
    assert turn(the_run(now, ours.id)).handle_input(replace(theirs, role=None)), "a log of before is decided as it was"
    now.handle_input(replace(ours, id=RunId("run-3"), claim=ClaimId("claim-3")))
    known = RunRegistry([the_run(now, ours.id)])
    with pytest.raises(MooringsError, match="somebody else's"):
        RunTurn(known, lambda _: None, LATER).handle_input(theirs)
    assert [run.id for run in known.of_workflow(part.workflow)] == [ours.id]
    known.apply([replace(the_run(now, ours.id), state=RunState.SUCCEEDED)])
    assert known.of_workflow(part.workflow) == []
    assert RunTurn(known, lambda _: None, LATER).handle_input(theirs), "who asks has looked whose the ended ones were"


def test_a_new_run_is_told_with_its_command_but_without_its_environment():
    now = turn()
    now.handle_input(CREATE)
    (event,) = now.events
    assert (event.name, event.run, event.claim) == ("run.created", "run-new", "claim-new")
    assert json.loads(event.data) == {"command": "python3 train.py", "job": "digits", "subject": "ann"}


def test_the_event_log_does_not_carry_a_command_of_any_length():
    now = turn()
    now.handle_input(replace(CREATE, job=replace(JOB, command=("true", "x" * 100_000))))
    (event,) = now.events
    assert len(event.data) < 2500


def test_a_run_whose_claim_is_refused_was_never_there():
    now = turn()
    now.handle_input(CREATE)
    now.rollback()
    assert now.run(CREATE.id) is None
    assert (now.changed, now.events) == ({}, [])
    now.apply_claim_changes([claim(ClaimState.READY, id=CREATE.claim)])
    assert now.events == []


def test_forgetting_one_run_leaves_the_others():
    now = turn()
    now.handle_input(CreateRun(id=RunId("run-2"), claim=ClaimId("claim-2"), job=JOB, engine="local", subject="bob"))
    now.handle_input(CREATE)
    now.rollback()
    assert [event.run for event in now.events] == ["run-2"]
    assert set(now.changed) == {"run-2"}


QUOTAS = Policy(waiting_max=2, waiting_bytes_max=100)


def a_demand(number: int, body_bytes: int = 10, **more: Any) -> CreateRun:
    given = replace(CREATE, id=RunId(f"run-new-{number}"), claim=ClaimId(f"claim-new-{number}"), body_bytes=body_bytes)
    return replace(given, **({"role": Role.USER} | more))


def with_quotas(*known: Run) -> RunTurn:
    return RunTurn(RunRegistry(known), lambda _: None, LATER, QUOTAS)


def test_a_user_has_only_so_many_runs_waiting_also_in_another_schedulers_queue():
    now = with_quotas(a_run(claim=None, engine="slurm"), a_run(1, state=RunState.RUNNING))
    now.handle_input(a_demand(0))
    with pytest.raises(MooringsError, match="is 2 runs, and may be 2"):
        now.handle_input(a_demand(1, claim=None, engine="slurm"))
    now.handle_input(a_demand(2, subject="bob"))
    now.handle_input(a_demand(3, role=Role.ADMIN))
    assert set(now.changed) == {"run-new-0", "run-new-2", "run-new-3"} == set(now.jobs)


def test_the_jobs_of_what_waits_have_only_so_many_bytes():
    waiting = a_run(job=replace(a_run().job, body_bytes=60))
    now = with_quotas(waiting)
    with pytest.raises(MooringsError, match="is 60 bytes of jobs; with 41 more it is above 100"):
        now.handle_input(a_demand(0, 41))
    now.handle_input(CancelRun(RUN, "over"))
    now.handle_input(a_demand(0, 100))
    now.rollback()
    now.handle_input(a_demand(1, 100))


def test_what_a_turn_made_of_runs_is_counted_when_it_is_saved():
    known = RunRegistry([a_run(job=replace(a_run().job, body_bytes=60))])
    now = RunTurn(known, lambda _: None, LATER, QUOTAS)
    now.handle_input(a_demand(0, 40))
    now.apply_claim_changes([claim(ClaimState.READY)])
    assert known.backlog.for_subject("ann") == Amount(1, 60)
    known.apply(run for run, _ in now.changed.values())
    assert known.backlog.for_subject("ann") == Amount(1, 40)


def test_a_run_is_kept_without_its_job():
    now = turn()
    now.handle_input(CREATE)
    assert now.jobs == {CREATE.id: JOB}
    assert the_run(now, CREATE.id).job == summarize_job(JOB)
    now.rollback()
    assert now.jobs == {}


# -- its claim -----------------------------------------------------------------------------------------------------


def test_a_run_starts_when_its_claim_is_ready():
    now = in_state(RunState.WAITING)
    now.apply_claim_changes([claim(ClaimState.READY, partition="part-0000")])
    assert the_run(now).state is RunState.STARTING
    assert (told(now), now.events[0].data) == (["run.starting"], '{"partition":"part-0000"}')


def test_a_run_made_and_ready_in_one_turn_is_saved_as_new():
    now = turn()
    now.handle_input(CREATE)
    now.apply_claim_changes([claim(ClaimState.READY, id=CREATE.claim)])
    run, before = now.changed[CREATE.id]
    assert (run.state, before) == (RunState.STARTING, None)


@pytest.mark.parametrize("state", [ClaimState.PENDING, ClaimState.GRANTED, ClaimState.RELEASING, ClaimState.RELEASED])
def test_other_moves_of_its_claim_leave_a_run_as_it_is(state):
    now = in_state(RunState.WAITING)
    now.apply_claim_changes([claim(state)])
    assert now.changed == {}


def test_a_run_never_starts_twice():
    now = in_state(RunState.RUNNING)
    now.apply_claim_changes([claim(ClaimState.READY)])
    assert now.changed == {}


def test_a_run_whose_claim_failed_has_failed_for_that_reason():
    now = in_state(RunState.WAITING)
    now.apply_claim_changes([claim(ClaimState.FAILED, reason=Reason("claim.broken", "3 blocks broke under it"))])
    run = the_run(now)
    assert (run.state, run.detail, run.exit_code) == (RunState.FAILED, "3 blocks broke under it", 1)
    assert told(now) == ["run.ended"]


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING])
def test_a_run_whose_partition_vanished_is_stopped(state):
    now = in_state(state)
    now.apply_claim_changes([claim(ClaimState.LOST, reason=Reason("claim.lost", "it vanished"))])
    assert (the_run(now).state, the_run(now).stop_reason) == (RunState.STOPPING, "it vanished")
    assert told(now) == ["run.stopping"]


def test_a_claim_without_a_run_is_nobodys_business():
    now = in_state(RunState.WAITING)
    now.apply_claim_changes([claim(ClaimState.READY, id="claim-other")])
    assert now.changed == {}


# -- people --------------------------------------------------------------------------------------------------------


def test_a_run_that_waits_is_cancelled_at_once_and_gives_its_place_back():
    now = in_state(RunState.WAITING)
    assert now.handle_input(CancelRun(RUN, "ann asked")) == [ReleaseClaim(CLAIM, f"run {RUN} CANCELLED")]
    assert (the_run(now).state, the_run(now).detail, the_run(now).exit_code) == (RunState.CANCELLED, "ann asked", 143)


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING])
def test_a_run_with_processes_keeps_its_partition_until_they_have_ended(state):
    now = in_state(state)
    assert now.handle_input(CancelRun(RUN, "ann asked")) == []
    assert the_run(now).state is RunState.STOPPING


def test_asking_twice_keeps_the_first_reason():
    now = in_state(RunState.RUNNING)
    now.handle_input(CancelRun(RUN, "first"))
    now.handle_input(CancelRun(RUN, "second"))
    assert the_run(now).stop_reason == "first"
    assert told(now) == ["run.stopping"]


def test_a_job_the_engine_will_not_start_has_failed():
    now = in_state(RunState.STARTING)
    assert now.handle_input(RunRejected(RUN, "no such folder")) == [ReleaseClaim(CLAIM, f"run {RUN} FAILED")]
    assert (the_run(now).detail, the_run(now).exit_code) == ("no such folder", 126)


# -- engines -------------------------------------------------------------------------------------------------------


def test_a_run_runs_when_its_processes_are_seen():
    now = in_state(RunState.STARTING)
    assert now.handle_input(RunStatus(RUN, RunPhase.RUNNING)) == []
    assert (the_run(now).state, the_run(now).started_at) == (RunState.RUNNING, LATER)
    assert told(now) == ["run.started"]


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING, RunState.STOPPING])
def test_a_run_ends_with_its_record_and_gives_its_partition_back(state):
    now = in_state(state)
    end = EndRecord(EndReason.EXITED, 3, (0, 3))
    assert now.handle_input(RunStatus(RUN, RunPhase.ENDED, end=end)) == [ReleaseClaim(CLAIM, f"run {RUN} FAILED")]
    assert json.loads(now.events[-1].data) == {"state": "FAILED", "exit_code": 3, "task_codes": [0, 3]}


@pytest.mark.parametrize("phase", [RunPhase.UNKNOWN, RunPhase.STARTING])
@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING, RunState.STOPPING])
def test_nothing_follows_from_what_the_engine_could_not_tell(state, phase):
    now = in_state(state)
    assert now.handle_input(RunStatus(RUN, phase)) == []
    assert now.changed == {}


def test_an_end_without_a_record_is_no_end():
    now = in_state(RunState.RUNNING)
    assert now.handle_input(RunStatus(RUN, RunPhase.ENDED)) == []
    assert now.changed == {}


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.STOPPING])
def test_a_run_the_engine_has_forgotten_is_lost(state):
    now = in_state(state, started_at=NOW)
    assert now.handle_input(RunStatus(RUN, RunPhase.ABSENT)) == [ReleaseClaim(CLAIM, f"run {RUN} LOST")]
    assert the_run(now).exit_code == 1


def test_a_run_stopped_before_it_began_was_cancelled():
    now = in_state(RunState.STOPPING, stop_reason="ann asked")
    assert now.handle_input(RunStatus(RUN, RunPhase.ABSENT)) == [ReleaseClaim(CLAIM, f"run {RUN} CANCELLED")]
    assert the_run(now).detail == "ann asked"


def test_a_run_stopped_because_its_partition_vanished_was_not_cancelled():
    lost = claim(ClaimState.LOST, reason=Reason("claim.lost", "it vanished"))
    now = in_state(RunState.STOPPING, [lost], stop_reason="it vanished", started_at=NOW)
    now.handle_input(RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.CANCELLED, 143, (143, 143))))
    run = the_run(now)
    assert (run.state, run.detail, run.exit_code) == (RunState.FAILED, "it vanished", 143)


def test_a_run_that_ended_by_itself_before_its_partition_vanished_ended_by_itself():
    now = in_state(RunState.STOPPING, [claim(ClaimState.LOST)], started_at=NOW)
    now.handle_input(RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.EXITED, 0, (0, 0))))
    assert the_run(now).state is RunState.SUCCEEDED


def test_a_run_that_is_being_started_is_not_lost_because_the_engine_has_not_heard_of_it():
    now = in_state(RunState.STARTING)
    assert now.handle_input(RunStatus(RUN, RunPhase.ABSENT)) == []
    assert now.changed == {}


@pytest.mark.parametrize("phase", RunPhase)
def test_what_is_seen_of_a_run_that_waits_changes_nothing(phase):
    now = in_state(RunState.WAITING)
    assert now.handle_input(RunStatus(RUN, phase, end=EndRecord(EndReason.EXITED, 0))) == []
    assert now.changed == {}


# -- the end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [CancelRun(RUN, "x"), RunRejected(RUN, "x"), RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.EXITED, 0))],
)
def test_after_its_end_nothing_changes_a_run(given):
    now = in_state(RunState.RUNNING)
    now.handle_input(RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.EXITED, 0)))
    ended, events = the_run(now), list(now.events)
    assert now.handle_input(given) == []
    now.apply_claim_changes([claim(ClaimState.LOST), claim(ClaimState.FAILED)])
    assert (the_run(now), now.events) == (ended, events)


def test_what_is_said_of_an_unknown_run_changes_nothing():
    now = turn()
    assert now.handle_input(CancelRun(RunId("run-nobody"), "x")) == []
    assert (now.changed, now.events) == ({}, [])


def test_a_turn_leaves_what_is_known_as_it_was():
    known = RunRegistry([a_run(state=RunState.RUNNING)])
    now = RunTurn(known, lambda _: None, LATER)
    now.handle_input(CancelRun(RUN, "x"))
    assert known.by_id[RUN].state is RunState.RUNNING
    assert now.changed[RUN][1] == a_run().version


def test_two_moves_in_one_turn_replace_the_version_that_was_saved():
    now = in_state(RunState.STARTING, version=5)
    now.handle_input(RunStatus(RUN, RunPhase.RUNNING))
    now.handle_input(CancelRun(RUN, "x"))
    run, before = now.changed[RUN]
    assert (run.version, before) == (7, 5)


def test_known_runs_are_those_that_have_not_ended():
    known = RunRegistry([a_run(0), a_run(1, state=RunState.FAILED)])
    assert (set(known.by_id), set(known.by_claim)) == ({"run-0000"}, {"claim-0000"})
    known.apply([a_run(0, state=RunState.SUCCEEDED), a_run(2)])
    assert (set(known.by_id), known.by_claim) == ({"run-0002"}, {"claim-0002": "run-0002"})


# -- within somebody's claim, labels, leases -------------------------------------------------------------------------


def within(claim: Claim, **more: Any) -> CreateRun:
    return replace(CREATE, claim=claim.id, within=True, **more)


def held(state: ClaimState = ClaimState.READY, **more: Any):
    spec = replace(a_claim().spec, kind="ipu", size=4, gcds=2)
    return claim(state, spec=spec, **more)


def test_a_run_within_a_claim_starts_when_that_is_ready_and_leaves_it_as_it_is():
    kept = held()
    now = turn(claims=[kept])
    assert now.handle_input(within(kept)) == []
    assert the_run(now, CREATE.id).state is RunState.STARTING
    assert now.has_run(kept.id)
    now.handle_input(RunStatus(CREATE.id, RunPhase.RUNNING))
    assert now.handle_input(RunStatus(CREATE.id, RunPhase.ENDED, end=EndRecord(EndReason.EXITED, 0))) == []
    assert the_run(now, CREATE.id).state is RunState.SUCCEEDED
    assert not now.has_run(kept.id)


def test_a_run_within_a_claim_that_waits_waits_with_it():
    kept = held(ClaimState.PENDING)
    now = turn(claims=[kept])
    now.handle_input(within(kept))
    assert the_run(now, CREATE.id).state is RunState.WAITING
    now.apply_claim_changes([held()])
    assert the_run(now, CREATE.id).state is RunState.STARTING


@pytest.mark.parametrize("state", [ClaimState.RELEASING, ClaimState.RELEASED, ClaimState.FAILED])
def test_no_run_is_made_within_a_claim_that_goes(state: ClaimState):
    kept = held(state)
    now = turn(claims=[kept])
    with pytest.raises(MooringsError) as refused:
        now.handle_input(within(kept))
    assert refused.value.code == "claim.ended"
    assert now.changed == {}
    assert now.events == []


def test_a_claim_has_a_run_as_long_as_one_is_within_it():
    """Of a database that went back: one has ended since, which nobody has seen yet, and another was made."""
    first, second = (a_run(at, claim=CLAIM, within=True, state=RunState.RUNNING) for at in range(2))
    for changed in ((first, second), (second, first)):
        known = RunRegistry(changed)
        known.apply([replace(first, state=RunState.SUCCEEDED)])
        assert RunTurn(known, lambda _: None, LATER).has_run(CLAIM)
        known.apply([replace(second, state=RunState.SUCCEEDED)])
        assert not RunTurn(known, lambda _: None, LATER).has_run(CLAIM)


def test_one_run_at_a_time_is_within_a_claim_and_of_its_shape():
    kept = held()
    now = turn(a_run(claim=kept.id, state=RunState.RUNNING), claims=[kept])
    with pytest.raises(MooringsError) as refused:
        now.handle_input(within(kept))
    assert refused.value.code == "claim.held_by_run"
    now = turn(claims=[kept])
    with pytest.raises(MooringsError) as refused:
        now.handle_input(within(kept, job=replace(JOB, accelerators=Accelerators(size=8))))
    assert refused.value.code == "claim.other_shape"


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING])
def test_when_a_lease_runs_out_the_run_is_stopped_before_its_claim_goes(state: RunState):
    late = replace(held(), spec=replace(held().spec, lease_s=60.0))
    now = in_state(state, claims=[late])
    assert now.cancel_expired([late]) == []
    run = the_run(now)
    assert (run.state, run.stop_reason) == (RunState.STOPPING, "nobody renewed its lease of 60 s")
    assert now.cancel_expired([late]) == []
    assert told(now) == ["run.stopping"], "once"


def test_a_run_that_waits_ends_with_its_lease():
    late = replace(claim(ClaimState.PENDING), spec=replace(a_claim().spec, lease_s=60.0))
    now = in_state(RunState.WAITING, claims=[late])
    (demand,) = now.cancel_expired([late])
    assert isinstance(demand, ReleaseClaim)
    assert the_run(now).state is RunState.CANCELLED


def test_labels_change_while_it_lives():
    now = turn(a_run(state=RunState.RUNNING, labels={"a": "1", "b": "2"}))
    assert now.handle_input(LabelRun(RUN, {"a": None, "c": "3"})) == []
    assert the_run(now).labels == {"b": "2", "c": "3"}
    assert json.loads(now.events[0].data) == {"labels": {"b": "2", "c": "3"}}
    now.handle_input(LabelRun(RUN, {"c": "3"}))
    assert told(now) == ["run.labelled"], "nothing has changed the second time"
    with pytest.raises(MooringsError) as refused:
        now.handle_input(LabelRun(RUN, {"c": "no such=thing"}))
    assert refused.value.code == "label.invalid"
    with pytest.raises(MooringsError) as refused:
        now.handle_input(LabelRun(RunId("run-gone"), {}))
    assert refused.value.code == "run.ended"


def test_a_job_of_an_appliance_has_its_claim_there():
    part = WorkflowPart(ApplianceJobType.EXECUTE, "wflow-" + "a" * 22)
    (demand,) = turn().handle_input(replace(CREATE, job=replace(JOB, appliance=part, labels={"k": "v"})))
    assert isinstance(demand, CreateClaim)
    assert demand.owner == "appliance/run-new"


# -- making room ---------------------------------------------------------------------------------------------------

ASKED = claim(ClaimState.RECLAIMING, reason=Reason("claim.reclaiming", "lab needs it"), asked_until=LATER)
YIELDED = RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.YIELDED, 85, (85, 85), detail="lab needs it"))


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING])
def test_a_run_whose_claim_is_asked_to_yield_yields_and_keeps_its_partition_meanwhile(state: RunState):
    now = in_state(state)
    assert now.apply_claim_changes([ASKED]) == []
    assert the_run(now).state is RunState.YIELDING
    assert (told(now), json.loads(now.events[0].data)) == (["run.yielding"], {"why": "lab needs it", "until": LATER})
    assert now.apply_claim_changes([ASKED]) == []
    assert told(now) == ["run.yielding"], "once"


@pytest.mark.parametrize("ending", [EndReason.YIELDED, EndReason.CANCELLED, EndReason.LOST])
def test_a_run_that_was_stopped_for_others_waits_for_its_next_attempt(ending: EndReason):
    now = in_state(RunState.YIELDING, [ASKED], started_at=NOW)
    end = EndRecord(ending, 143, (143, 143), detail="lab needs it")
    assert now.handle_input(replace(YIELDED, end=end)) == [YieldClaim(CLAIM, f"run {RUN} has stopped")]
    run = the_run(now)
    assert (run.state, run.attempt, run.started_at, run.ended_at) == (RunState.WAITING, 1, NOW, None)
    assert json.loads(now.events[-1].data) == {"why": "lab needs it", "attempt": 1}


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (EndRecord(EndReason.EXITED, 0, (0, 0)), RunState.SUCCEEDED),
        (EndRecord(EndReason.EXITED, 1, (1, 143)), RunState.FAILED),
        (EndRecord(EndReason.TIMED_OUT, 143), RunState.TIMED_OUT),
        (EndRecord(EndReason.NOT_STARTED, 127), RunState.FAILED),
    ],
    ids=lambda part: str(getattr(part, "ending", part)),
)
def test_a_run_that_ends_on_its_own_while_it_is_to_yield_has_ended(end: EndRecord, state: RunState):
    now = in_state(RunState.YIELDING, [ASKED])
    assert now.handle_input(replace(YIELDED, end=end)) == [ReleaseClaim(CLAIM, f"run {RUN} {state}")]
    assert the_run(now).state is state


@pytest.mark.parametrize("phase", [RunPhase.STARTING, RunPhase.RUNNING, RunPhase.UNKNOWN])
def test_nothing_is_given_back_while_processes_may_be_there(phase: RunPhase):
    now = in_state(RunState.YIELDING, [ASKED])
    assert now.handle_input(RunStatus(RUN, phase)) == []
    assert now.changed == {}


def test_a_run_of_which_nothing_is_there_has_made_room():
    now = in_state(RunState.YIELDING, [ASKED])
    assert now.handle_input(RunStatus(RUN, RunPhase.ABSENT)) == [YieldClaim(CLAIM, f"run {RUN} has stopped")]
    assert json.loads(now.events[-1].data)["why"] == "it had not started"


def test_a_run_that_had_not_been_started_gives_back_at_once():
    """Its partition became ACTIVE and was asked for in one turn."""
    now = in_state(RunState.WAITING, [ASKED])
    assert now.apply_claim_changes([ASKED]) == [YieldClaim(CLAIM, f"run {RUN} had not started")]
    assert (now.changed, now.events) == ({}, [])


def test_a_claim_of_somebody_else_is_not_given_back_for_a_run_that_waits_in_it():
    now = in_state(RunState.WAITING, [ASKED], within=True)
    assert now.apply_claim_changes([ASKED]) == []
    assert now.has_run(CLAIM)
    assert not now.may_have_processes(CLAIM)


def test_a_run_uses_its_partition_until_nothing_of_it_runs():
    now = in_state(RunState.YIELDING, [ASKED])
    assert now.may_have_processes(CLAIM)
    now.handle_input(YIELDED)
    assert not now.may_have_processes(CLAIM)


def test_a_cancel_while_it_yields_and_while_it_waits_again():
    now = in_state(RunState.YIELDING, [ASKED], started_at=NOW)
    assert now.handle_input(CancelRun(RUN, "ann asked")) == []
    assert the_run(now).state is RunState.STOPPING
    assert now.handle_input(YIELDED) == [ReleaseClaim(CLAIM, f"run {RUN} CANCELLED")]
    assert (the_run(now).state, the_run(now).detail) == (RunState.CANCELLED, "ann asked")
    now = in_state(RunState.WAITING, [claim(ClaimState.YIELDING)], attempt=1, started_at=NOW)
    assert now.handle_input(CancelRun(RUN, "ann asked")) == [ReleaseClaim(CLAIM, f"run {RUN} CANCELLED")]


def test_a_cancel_before_the_next_attempt_has_started():
    now = in_state(RunState.STOPPING, attempt=1, started_at=NOW, stop_reason="ann asked")
    assert now.handle_input(RunStatus(RUN, RunPhase.ABSENT, attempt=1)) == [ReleaseClaim(CLAIM, f"run {RUN} CANCELLED")]


@cases("state", [RunState.STARTING, RunState.RUNNING, RunState.YIELDING, RunState.STOPPING])
@cases("phase", RunPhase)
def test_what_is_seen_of_an_earlier_attempt_says_nothing(state: RunState, phase: RunPhase):
    now = in_state(state, [ASKED], attempt=2, started_at=NOW)
    assert now.handle_input(replace(YIELDED, phase=phase, attempt=1)) == []
    assert now.changed == {}


def test_the_next_attempt_starts_when_its_claim_is_ready_again():
    now = in_state(RunState.WAITING, attempt=1, started_at=NOW)
    now.apply_claim_changes([claim(ClaimState.READY, attempt=1, partition="part-0001")])
    assert (the_run(now).state, the_run(now).attempt) == (RunState.STARTING, 1)
    now.handle_input(RunStatus(RUN, RunPhase.RUNNING, attempt=1))
    assert (the_run(now).state, the_run(now).started_at) == (RunState.RUNNING, NOW)


def test_a_run_whose_partition_vanishes_while_it_yields_cannot_go_on():
    lost = claim(ClaimState.LOST, reason=Reason("claim.lost", "it vanished"))
    now = in_state(RunState.YIELDING, [lost], started_at=NOW)
    now.apply_claim_changes([lost])
    assert the_run(now).state is RunState.STOPPING
    assert now.handle_input(YIELDED) == [ReleaseClaim(CLAIM, f"run {RUN} FAILED")]
    assert the_run(now).detail == "it vanished"


def test_a_job_that_may_be_stopped_says_so_in_its_claim():
    (demand,) = turn().handle_input(replace(CREATE, job=replace(JOB, preemptible=True)))
    assert isinstance(demand, CreateClaim)
    assert demand.spec.preemptible


# -- checkpoints ---------------------------------------------------------------------------------------------------


def saved(step: int, at_s: float, *, whole: bool = True) -> RunCheckpoint:
    at = Timestamp(NOW + round(at_s * SECOND))
    return RunCheckpoint(
        f"/c/step-{step}", step, 10, at, whole, CheckpointRule.ZIP, why="" if whole else "it is cut off"
    )


def test_a_new_whole_checkpoint_is_recorded_and_counts_as_saved_work():
    now = in_state(RunState.RUNNING, claims=[claim(ClaimState.READY, ready_at=NOW)])
    found = (saved(6, 0.8, whole=False), saved(5, 0.5))
    assert now.handle_input(RunStatus(RUN, RunPhase.RUNNING, checkpoints=found)) == [
        CheckpointSaved(CLAIM, found[1].written_at)
    ]
    assert the_run(now).checkpoints == found
    assert told(now) == ["run.checkpoint_saved"]
    assert json.loads(now.events[0].data)["step"] == 5


@cases(
    "found",
    [
        (saved(6, 0.8, whole=False), saved(5, 0.5)),  # a torn one more
        (saved(5, 0.5),),  # an earlier one has gone
        (),
    ],
    ids=str,
)
def test_without_a_newer_whole_checkpoint_no_work_counts_as_saved(found):
    before = (saved(5, 0.5), saved(4, 0.2))
    now = in_state(RunState.RUNNING, claims=[claim(ClaimState.READY, ready_at=NOW)], checkpoints=before)
    assert now.handle_input(RunStatus(RUN, RunPhase.RUNNING, checkpoints=found)) == []
    assert the_run(now).checkpoints == found
    assert told(now) == []


def test_a_checkpoint_of_an_earlier_attempt_is_no_work_of_this_one():
    now = in_state(RunState.RUNNING, claims=[claim(ClaimState.READY, ready_at=Timestamp(NOW + SECOND))])
    assert now.handle_input(RunStatus(RUN, RunPhase.RUNNING, checkpoints=(saved(5, 0.5),))) == []
    assert the_run(now).checkpoints == (saved(5, 0.5),)


def test_what_an_earlier_run_has_left_is_no_event_of_this_one():
    now = in_state(RunState.RUNNING, claims=[claim(ClaimState.READY, ready_at=NOW)])
    left = saved(99, -60)
    assert now.handle_input(RunStatus(RUN, RunPhase.RUNNING, checkpoints=(left,))) == []
    assert (the_run(now).checkpoints, told(now)) == ((left,), [])
    now.handle_input(RunStatus(RUN, RunPhase.RUNNING, checkpoints=(saved(1, 0.5), left)))
    assert told(now) == ["run.checkpoint_saved"]


def test_a_status_without_a_look_keeps_what_is_known():
    now = in_state(RunState.RUNNING, claims=[claim(ClaimState.READY)], checkpoints=(saved(5, 0.5),))
    assert now.handle_input(RunStatus(RUN, RunPhase.RUNNING)) == []
    assert RUN not in now.changed


def test_a_folder_that_cannot_be_looked_at_is_told_once_and_what_was_seen_stays():
    found = (saved(5, 0.5),)
    now = in_state(RunState.RUNNING, claims=[claim(ClaimState.READY)], checkpoints=found)
    seen = RunStatus(RUN, RunPhase.RUNNING, checkpoint_fault="/c is a symbolic link: name the folder itself")
    assert now.handle_input(seen) == now.handle_input(seen) == []
    assert told(now) == ["run.checkpoints_unseen"]
    assert (the_run(now).checkpoints, the_run(now).checkpoint_fault) == (found, seen.checkpoint_fault)
    now.handle_input(RunStatus(RUN, RunPhase.RUNNING, checkpoints=found))
    assert (the_run(now).checkpoints, the_run(now).checkpoint_fault) == (found, "")


def test_the_last_look_of_an_attempt_is_taken_before_it_waits_again():
    now = in_state(RunState.YIELDING, claims=[replace(ASKED, ready_at=NOW)], checkpoints=(saved(5, 0.5),))
    end = EndRecord(EndReason.YIELDED, 143, ended_at=Timestamp(NOW + 2 * SECOND))
    seen = RunStatus(RUN, RunPhase.ENDED, NOW, end, checkpoints=(saved(9, 1.5), saved(5, 0.5)))
    assert [type(demand) for demand in now.handle_input(seen)] == [CheckpointSaved, YieldClaim]
    assert told(now) == ["run.checkpoint_saved", "run.requeued"]
    assert json.loads(now.events[1].data)["lost_s"] == 0.5
    assert the_run(now).checkpoints[0].step == 9


@cases(("attempt", "resumable", "step"), [(1, True, 5), (0, True, None), (1, False, None)], ids=str)
def test_a_later_attempt_of_a_resumable_job_is_given_the_newest_whole_one(attempt, resumable, step):
    found = (saved(6, 0.8, whole=False), saved(5, 0.5), saved(4, 0.2))
    now = in_state(RunState.WAITING, attempt=attempt, checkpoints=found)
    ready = claim(ClaimState.READY)
    now.apply_claim_changes(
        [replace(ready, spec=replace(ready.spec, checkpoint=CheckpointContract(resumable=resumable)))]
    )
    given = the_run(now).resumed_from
    assert (given.step if given is not None else None) == step
    if step is not None:
        assert json.loads(now.events[0].data)["torn"] == ["/c/step-6"]
    assert json.loads(now.events[0].data).get("resume_from") == (f"/c/step-{step}" if step is not None else None)
