"""Pausing and resuming a run: what becomes of it, of its claim and of its checkpoints."""

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
from moorings.core.model.inputs import CreateClaim, ReleaseClaim
from moorings.core.model.policy import Policy
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, a_claim
from moorings.testing.builders import a_run as any_run
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.run_turn import CancelRun, PauseRun, ResumeRun, RunRegistry, RunRejected, RunTurn
from moorings.workloads.runs import EndReason, EndRecord, Run, RunPause, RunPhase, RunState, RunStatus, resume_point
from tests.cases import cases

LATER = Timestamp(NOW + SECOND)
RUN, CLAIM, NEXT_CLAIM = any_run().id, a_claim().id, ClaimId("claim-next")
JOB = replace(any_run().job, checkpoint_directory="/c")
SPEC = replace(a_claim().spec, checkpoint=CheckpointContract(resumable=True), priority=3)
HELD = a_claim(state=ClaimState.READY, spec=SPEC)
PAUSE = PauseRun(RUN, "ann", 60.0)
PAUSED = RunPause("ann", NOW, 60.0, 3)
CANCELLED = RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.CANCELLED, 143, detail="stopped"))
STOPPED = RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.YIELDED, 143, detail="paused by ann"))


def a_run(*numbers: int, **more: Any) -> Run:
    """One that names a folder of checkpoints."""
    return any_run(*numbers, **{"job": JOB, **more})


def turn(*known: Run, claims: Sequence[Claim] = (HELD,), policy: Policy = Policy()) -> RunTurn:  # noqa: B008 - a value
    return RunTurn(RunRegistry(known), {claim.id: claim for claim in claims}.get, LATER, policy)


def the_run(now: RunTurn) -> Run:
    run = now.run(RUN)
    assert run is not None
    return run


def told(now: RunTurn) -> list[str]:
    return [event.name for event in now.events]


def a_checkpoint(step: int, at: Timestamp, *, whole: bool = True) -> RunCheckpoint:
    return RunCheckpoint(f"/c/step-{step}.pt", step, 1, at, whole, CheckpointRule.ZIP)


def resume(**more: Any) -> ResumeRun:
    return ResumeRun(**{"run": RUN, "claim": NEXT_CLAIM, "spec": replace(SPEC, priority=0), "role": Role.USER, **more})


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING])
def test_a_run_that_is_paused_yields_and_keeps_its_claim_until_nothing_of_it_runs(state: RunState):
    now = turn(a_run(state=state))
    assert now.handle_input(PAUSE) == []
    run = the_run(now)
    assert (run.state, run.pause) == (RunState.YIELDING, RunPause("ann", LATER, 60.0, 3))
    assert json.loads(now.events[0].data) == {"by": "ann", "timeout_s": 60.0}
    assert now.may_have_processes(CLAIM)
    assert now.handle_input(RunStatus(RUN, RunPhase.RUNNING)) == []
    assert now.handle_input(PAUSE) == [], "again is no error"
    assert now.handle_input(STOPPED) == [ReleaseClaim(CLAIM, f"run {RUN} is paused")]
    run = the_run(now)
    assert (run.state, run.attempt, run.ended_at, run.pause is not None) == (RunState.PAUSED, 1, None, True)
    assert told(now) == ["run.pausing", "run.paused"]
    assert not now.has_run(CLAIM), "whoever has that claim next is not held up by it"
    assert not now.may_have_processes(CLAIM)


def test_a_run_that_waits_is_paused_at_once_and_is_not_counted_as_waiting():
    known = RunRegistry([a_run(state=RunState.WAITING)])
    now = RunTurn(known, {CLAIM: replace(HELD, state=ClaimState.PENDING)}.get, LATER)
    assert now.handle_input(PAUSE) == [ReleaseClaim(CLAIM, f"run {RUN} is paused")]
    assert told(now) == ["run.paused"]
    known.apply([the_run(now)])
    assert known.backlog.for_subject(the_run(now).subject) == Amount(0, 0)


@pytest.mark.parametrize("ending", [EndReason.YIELDED, EndReason.CANCELLED, EndReason.LOST])
def test_a_run_that_was_being_paused_is_paused_however_it_was_stopped(ending: EndReason):
    now = turn(a_run(state=RunState.YIELDING, pause=PAUSED))
    now.handle_input(replace(STOPPED, end=EndRecord(ending, 137)))
    assert the_run(now).state is RunState.PAUSED


def test_a_run_of_which_nothing_is_there_is_paused():
    now = turn(a_run(state=RunState.YIELDING, pause=PAUSED))
    assert now.handle_input(RunStatus(RUN, RunPhase.ABSENT)) == [ReleaseClaim(CLAIM, f"run {RUN} is paused")]


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_that_ends_by_itself_meanwhile_has_ended(code: int):
    now = turn(a_run(state=RunState.YIELDING, pause=PAUSED))
    now.handle_input(replace(STOPPED, end=EndRecord(EndReason.EXITED, code)))
    run = the_run(now)
    assert (run.is_ended, run.pause) == (True, None)


def test_a_run_that_already_yields_to_others_does_not_wait_again_once_it_is_paused():
    asked = replace(HELD, state=ClaimState.RECLAIMING, reason=Reason("claim.reclaiming", "lab"), asked_until=LATER)
    now = turn(a_run(state=RunState.YIELDING), claims=[asked])
    assert now.handle_input(PAUSE) == []
    assert now.handle_input(STOPPED) == [ReleaseClaim(CLAIM, f"run {RUN} is paused")]
    assert the_run(now).state is RunState.PAUSED


def test_the_work_that_a_pause_loses_is_told():
    saved = a_checkpoint(40, Timestamp(NOW + 7 * SECOND))
    now = turn(a_run(state=RunState.YIELDING, pause=PAUSED, checkpoints=(saved,)))
    end = EndRecord(EndReason.YIELDED, 143, ended_at=Timestamp(NOW + 10 * SECOND))
    now.handle_input(replace(STOPPED, started_at=NOW, end=end))
    assert json.loads(now.events[-1].data) == {"why": "paused by ann", "attempt": 1, "lost_s": 3.0}


REFUSED: list[tuple[str, Run, Sequence[Claim], str]] = [
    ("ended", a_run(state=RunState.FAILED), [HELD], "has ended"),
    ("stops", a_run(state=RunState.STOPPING, stop_reason="ann asked"), [HELD], "is being stopped: ann asked"),
    ("scheduler", any_run(state=RunState.RUNNING, claim=None, engine="slurm"), [], "names no folder of checkpoints"),
    ("within", a_run(state=RunState.RUNNING, within=True), [HELD], "which is not its own"),
    ("no-saves", a_run(state=RunState.RUNNING), [a_claim(state=ClaimState.READY)], "cannot resume from a checkpoint"),
    ("folder", any_run(state=RunState.RUNNING), [HELD], "names no folder of checkpoints"),
    ("lease", a_run(state=RunState.RUNNING), [replace(HELD, spec=replace(SPEC, lease_s=60.0))], "the command that"),
    (
        "appliance",
        a_run(
            state=RunState.RUNNING,
            job=replace(JOB, appliance=WorkflowPart(ApplianceJobType.EXECUTE, "wflow-" + "a" * 22)),
        ),
        [HELD],
        "the command that",
    ),
]


@cases("case", REFUSED)
def test_a_run_that_cannot_be_paused_is_refused_with_the_reason(case: tuple[str, Run, Sequence[Claim], str]):
    _, run, claims, words = case
    now = turn(run, claims=claims)
    with pytest.raises(MooringsError, match=words) as refused:
        now.handle_input(PAUSE)
    assert refused.value.code == ("run.ended" if run.is_ended else "run.not_pausable")
    assert (now.changed, now.events) == ({}, [])


def paused(**more: Any) -> Run:
    return a_run(**{"state": RunState.PAUSED, "pause": PAUSED, "attempt": 1, "started_at": NOW, **more})


def test_a_resumed_run_waits_with_a_new_claim_and_the_priority_that_it_had():
    known = RunRegistry([paused()])
    now = RunTurn(known, lambda _: None, LATER, Policy())
    (demand,) = now.handle_input(resume(role=Role.ADMIN))
    assert isinstance(demand, CreateClaim)
    assert (demand.id, demand.name, demand.subject, demand.spec.priority) == (
        NEXT_CLAIM,
        f"{RUN}-next",
        paused().subject,
        3,
    )
    run = the_run(now)
    assert (run.state, run.claim, run.pause, run.attempt) == (RunState.WAITING, NEXT_CLAIM, None, 1)
    assert now.has_run(NEXT_CLAIM)
    assert not now.has_run(CLAIM)
    known.apply([run])
    later = RunTurn(known, lambda _: None, LATER)
    assert later.has_run(NEXT_CLAIM)
    assert not later.has_run(CLAIM), "the claim before may still be leaving"


def test_whoever_resumes_a_run_gets_no_higher_priority_than_is_theirs():
    now = turn(paused(pause=replace(PAUSED, priority=50)), policy=Policy(user_priority_max=5))
    (demand,) = now.handle_input(resume())
    assert isinstance(demand, CreateClaim)
    assert demand.spec.priority == 5


def test_a_resumption_whose_claim_is_refused_changes_nothing():
    now = turn(paused(), policy=Policy(waiting_max=1))
    now.handle_input(resume())
    now.rollback()
    assert the_run(now) == paused()
    assert (now.changed, now.events, now.has_run(NEXT_CLAIM)) == ({}, [], False)
    now.handle_input(resume())
    with pytest.raises(MooringsError, match="is WAITING, and not paused"):
        now.handle_input(resume())


def test_a_paused_run_needs_room_among_the_runs_that_wait():
    waits = a_run(2, state=RunState.WAITING)
    now = turn(paused(), waits, policy=Policy(waiting_max=1))
    with pytest.raises(MooringsError) as refused:
        now.handle_input(resume())
    assert refused.value.code == "quota.waiting"
    assert the_run(now) == paused()


@pytest.mark.parametrize(
    ("run", "code", "words"),
    [
        (a_run(state=RunState.RUNNING), "run.not_paused", "is RUNNING, and not paused"),
        (a_run(state=RunState.YIELDING, pause=PAUSED), "run.not_paused", "is being paused"),
        (a_run(state=RunState.SUCCEEDED), "run.ended", "has ended"),
    ],
    ids=["runs", "is-being-paused", "ended"],
)
def test_only_a_paused_run_is_resumed(run: Run, code: str, words: str):
    with pytest.raises(MooringsError, match=words) as refused:
        turn(run).handle_input(resume())
    assert refused.value.code == code


def test_a_paused_run_can_be_cancelled_and_releases_nothing_twice():
    now = turn(paused())
    assert now.handle_input(CancelRun(RUN, "ann asked")) == []
    run = the_run(now)
    assert (run.state, run.pause, run.detail) == (RunState.CANCELLED, None, "ann asked")


@pytest.mark.parametrize(
    "given",
    [RunRejected(RUN, "no"), STOPPED, replace(STOPPED, attempt=1), RunStatus(RUN, RunPhase.RUNNING, attempt=1)],
    ids=["rejected", "earlier", "ended", "running"],
)
def test_what_an_engine_says_of_a_paused_run_changes_nothing(given: RunRejected | RunStatus):
    now = turn(paused())
    assert now.handle_input(given) == []
    assert now.changed == {}
    gone = a_claim(state=ClaimState.FAILED, reason=Reason("claim.failed", "its driver"))
    assert now.apply_claim_changes([gone]) == []
    assert now.changed == {}


def test_the_checkpoint_that_was_chosen_is_given_until_a_newer_one_is_saved():
    old, new = a_checkpoint(10, NOW), a_checkpoint(20, Timestamp(NOW + SECOND // 2))
    now = turn(paused(checkpoints=(new, old)))
    now.handle_input(resume(chosen=old))
    assert json.loads(now.events[-1].data) == {"resume_from": old.path}
    ready = replace(HELD, id=NEXT_CLAIM)
    now.apply_claim_changes([ready])
    run = the_run(now)
    assert (run.state, run.resumed_from) == (RunState.STARTING, old)
    saved = a_checkpoint(15, Timestamp(LATER + SECOND))
    again = replace(run, state=RunState.WAITING, attempt=2, checkpoints=(saved, new, old))
    now = turn(again, claims=[ready])
    now.apply_claim_changes([ready])
    assert the_run(now).resumed_from == saved


def test_without_a_choice_the_newest_whole_one_is_given():
    torn, whole = a_checkpoint(30, LATER, whole=False), a_checkpoint(20, Timestamp(NOW + 1))
    now = turn(paused(checkpoints=(torn, whole)))
    now.handle_input(resume())
    now.apply_claim_changes([replace(HELD, id=NEXT_CLAIM)])
    assert the_run(now).resumed_from == whole


def test_what_lay_in_the_folder_when_the_run_was_made_is_another_ones():
    """A run that begins again in a used folder must not end at once as the one before it."""
    left = a_checkpoint(900, NOW)
    now = turn(paused(checkpoints=(left,), created_at=LATER))
    now.handle_input(resume())
    now.apply_claim_changes([replace(HELD, id=NEXT_CLAIM)])
    assert the_run(now).resumed_from is None


@pytest.mark.parametrize("role", [Role.USER, None], ids=["resumed", "retried"])
def test_a_choice_stays_until_the_run_has_saved_or_its_user_chooses_again(role: Role | None):
    """What it had saved until then, its user has gone back behind."""
    old, new = a_checkpoint(10, NOW), a_checkpoint(20, Timestamp(NOW + SECOND // 2))
    run = paused(checkpoints=(new, old), resumed_from=old, chosen_at=LATER)
    if role is None:
        assert run.pause is not None
        run = replace(run, pause=replace(run.pause, resume_at=LATER))
    assert resume_point(run) == old
    now = turn(run)
    now.handle_input(replace(resume(), role=role))
    now.apply_claim_changes([replace(HELD, id=NEXT_CLAIM)])
    assert the_run(now).resumed_from == old
    saved = a_checkpoint(11, Timestamp(LATER + SECOND))
    assert resume_point(replace(run, checkpoints=(saved, new, old))) == saved


def test_a_run_that_goes_on_after_a_restore_can_be_paused_though_no_record_has_its_claim():
    now = turn(a_run(state=RunState.RUNNING), claims=[])
    assert now.handle_input(PAUSE) == []
    assert the_run(now).state is RunState.YIELDING
    now.handle_input(STOPPED)
    assert the_run(now).state is RunState.PAUSED


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING])
def test_a_run_that_has_yielded_and_that_no_record_asked_to_is_paused(state: RunState):
    """The database was turned back to before the request; nothing else makes an engine say so."""
    now = turn(a_run(state=state))
    assert now.handle_input(STOPPED) == [ReleaseClaim(CLAIM, f"run {RUN} is paused")]
    run = the_run(now)
    assert (run.state, run.attempt) == (RunState.PAUSED, 1)
    assert run.pause is not None
    assert (run.pause.reason, run.pause.priority) == ("paused by the controller after a restore", 3)


def test_a_run_that_was_cancelled_while_it_was_being_paused_is_neither_paused_nor_resumed():
    now = turn(a_run(state=RunState.YIELDING, pause=PAUSED))
    now.handle_input(CancelRun(RUN, "ann asked"))
    for given, code in ((PAUSE, "run.not_pausable"), (resume(), "run.not_paused")):
        with pytest.raises(MooringsError, match=r"being stopped|is STOPPING") as refused:
            now.handle_input(given)
        assert refused.value.code == code


# -- on an engine with a scheduler of its own -------------------------------------------------------------------------


def external(**more: Any) -> Run:
    return a_run(**{"state": RunState.RUNNING, "claim": None, "engine": "slurm", "reference": "1234", **more})


def test_a_run_without_a_claim_saves_and_stops_and_is_submitted_again_when_it_is_resumed():
    now = turn(external(), claims=[])
    assert now.handle_input(PAUSE) == []
    assert now.handle_input(RunStatus(RUN, RunPhase.STARTING)) == []  # its scheduler has stopped it, too
    assert the_run(now).state is RunState.YIELDING
    assert now.handle_input(STOPPED) == []
    run = the_run(now)
    assert (run.state, run.attempt, run.reference) == (RunState.PAUSED, 1, None)
    assert now.handle_input(resume()) == []
    assert (the_run(now).state, the_run(now).is_unsubmitted) == (RunState.WAITING, True)


@pytest.mark.parametrize("reference", [None, "1234"])
def test_one_that_waits_in_its_scheduler_is_withdrawn_and_then_paused(reference: str | None):
    now = turn(external(state=RunState.WAITING, reference=reference), claims=[])
    assert now.handle_input(PAUSE) == []
    assert (the_run(now).state, the_run(now).stop_reason) == (RunState.STOPPING, "paused by ann")
    seen = RunStatus(RUN, RunPhase.ABSENT) if reference is None else replace(CANCELLED, reference=reference)
    now.handle_input(seen)
    assert (the_run(now).state, the_run(now).attempt) == (RunState.PAUSED, 1)


def test_one_that_is_cancelled_while_it_is_withdrawn_is_cancelled():
    now = turn(external(state=RunState.WAITING), claims=[])
    now.handle_input(PAUSE)
    now.handle_input(CancelRun(RUN, "enough"))
    now.handle_input(CANCELLED)
    assert the_run(now).state is RunState.CANCELLED


def test_one_whose_job_cannot_resume_is_not_paused():
    now = turn(external(), claims=[])
    with pytest.raises(MooringsError, match="cannot resume from a checkpoint"):
        now.handle_input(replace(PAUSE, resumable=False))
