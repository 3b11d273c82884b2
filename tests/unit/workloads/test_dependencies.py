"""Runs that wait for the ends of others: when they ask for devices, when they are cancelled, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.claims import ClaimId, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, a_claim, a_job, a_run
from moorings.workloads.arrays import ArrayPart
from moorings.workloads.awaited import check_own_dependency, dependency_on
from moorings.workloads.dependencies import AFTER_MAX, AfterEnd, Dependency, RunHold, parse_dependency
from moorings.workloads.jobs import check_job
from moorings.workloads.run_turn import CancelRun, CreateRun, PauseRun, RunRegistry, RunRejected, RunTurn
from moorings.workloads.runs import EndReason, EndRecord, Run, RunId, RunPhase, RunState, RunStatus, Submitter
from tests.cases import cases

LATER = Timestamp(NOW + SECOND)
FIRST, SECOND_RUN = a_run(state=RunState.RUNNING), a_run(1, state=RunState.RUNNING)
HELD = [a_claim(number, state=ClaimState.READY) for number in (0, 1)]
NEW = RunId("run-new")


def turn(*known: Run) -> RunTurn:
    return RunTurn(RunRegistry(known or (FIRST, SECOND_RUN)), {claim.id: claim for claim in HELD}.get, LATER)


def create(*after: Dependency, **more: Any) -> CreateRun:
    usual: dict[str, Any] = {"id": NEW, "claim": ClaimId("claim-new"), "job": a_job(), "engine": "local"}
    return CreateRun(**{**usual, "subject": "ann", "after": after, **more})


def ends(run: Run, code: int = 0) -> RunStatus:
    return RunStatus(run.id, RunPhase.ENDED, end=EndRecord(EndReason.EXITED, code))


def now_of(now: RunTurn, ident: RunId = NEW) -> Run:
    run = now.run(ident)
    assert run is not None
    return run


def code_of(error: pytest.ExceptionInfo[MooringsError]) -> str:
    return error.value.code


def test_a_run_that_waits_for_another_has_no_claim() -> None:
    now = turn()
    assert now.handle_input(create(Dependency(FIRST.id))) == []
    run = now_of(now)
    assert (run.state, run.claim, run.is_queued) == (RunState.WAITING, None, False)
    assert run.hold is not None
    assert run.hold.reason == f"waits for run {FIRST.id} to end (ok)"
    assert now.start_dependents() == []


@cases(
    ("end", "code", "starts"),
    [
        (AfterEnd.OK, 0, True),
        (AfterEnd.OK, 3, False),
        (AfterEnd.FAILED, 0, False),
        (AfterEnd.FAILED, 3, True),
        (AfterEnd.ANY, 0, True),
        (AfterEnd.ANY, 3, True),
    ],
)
def test_the_awaited_end_starts_it_and_another_cancels_it(end: AfterEnd, code: int, *, starts: bool) -> None:
    now = turn()
    now.handle_input(create(Dependency(FIRST.id, end)))
    now.handle_input(ends(FIRST, code))
    claims, run = now.start_dependents(), now_of(now)
    if starts:
        assert [(one.id, one.owner, one.spec.size) for one in claims] == [("claim-new", f"local/{NEW}", 1)]
        assert (run.state, run.claim, run.hold) == (RunState.WAITING, "claim-new", None)
        assert [event.name for event in now.events][-1] == "run.eligible"
        assert now.run_of_claim(ClaimId("claim-new")) == run
    else:
        assert claims == []
        assert (run.state, run.claim, run.hold) == (RunState.CANCELLED, None, None)
        state, wanted = ("FAILED", "success") if code else ("SUCCEEDED", "failure")
        assert run.detail == f"run {FIRST.id} is {state}, and this one runs only after its {wanted}"
    assert now.start_dependents() == [], "once"


def test_a_known_run_waits_until_all_have_ended() -> None:
    waits = turn()
    waits.handle_input(create(Dependency(FIRST.id), Dependency(SECOND_RUN.id, AfterEnd.ANY)))
    known = RunRegistry([FIRST, SECOND_RUN, now_of(waits)])
    first = RunTurn(known, lambda _: None, LATER)
    first.handle_input(ends(FIRST))
    assert first.start_dependents() == []
    hold = now_of(first).hold
    assert hold is not None
    assert [each.run for each in hold.after] == [SECOND_RUN.id]
    known.apply(run for run, _ in first.changed.values())
    assert (known.dependents(FIRST.id), known.dependents(SECOND_RUN.id)) == ((), (NEW,))
    last = RunTurn(known, lambda _: None, LATER)
    last.handle_input(ends(SECOND_RUN, 1))
    assert [type(one) for one in last.start_dependents()] == [CreateClaim]
    known.apply(run for run, _ in last.changed.values())
    assert known.dependents(SECOND_RUN.id) == ()
    assert known.by_claim[ClaimId("claim-new")] == NEW


def test_a_cancelled_run_cancels_those_that_wait_for_its_success() -> None:
    now = turn()
    now.handle_input(create(Dependency(FIRST.id)))
    now.handle_input(create(Dependency(NEW), id=RunId("run-last"), claim=ClaimId("claim-last")))
    now.handle_input(CancelRun(NEW, "enough"))
    assert now.start_dependents() == []
    assert now_of(now, RunId("run-last")).state is RunState.CANCELLED


def test_those_that_start_together_arrive_in_the_order_of_their_creation() -> None:
    hold = RunHold((Dependency(FIRST.id),), ClaimId("c"), a_claim().spec)
    waiting = [
        a_run(number, id=RunId(name), claim=None, hold=replace(hold, claim=ClaimId(f"c-{name}")))
        for number, name in ((3, "run-a"), (2, "run-b"), (4, "run-c"))
    ]
    now = turn(FIRST, *waiting)
    now.handle_input(ends(FIRST))
    assert [one.id for one in now.start_dependents()] == ["c-run-b", "c-run-a", "c-run-c"]


def test_a_run_on_an_engine_with_a_scheduler_is_submitted_only_then() -> None:
    now = turn()
    now.handle_input(create(Dependency(FIRST.id), claim=None, engine="slurm"))
    assert not now_of(now).is_unsubmitted
    assert now.handle_input(RunStatus(NEW, RunPhase.RUNNING, reference="7")) == []
    assert now_of(now).state is RunState.WAITING, "no report is about it yet"
    now.handle_input(ends(FIRST))
    assert now.start_dependents() == []
    assert now_of(now).is_unsubmitted


@cases(("end", "ended", "waits"), [(AfterEnd.OK, "SUCCEEDED", False), (AfterEnd.FAILED, "LOST", False)])
def test_an_earlier_end_needs_no_waiting(end: AfterEnd, ended: str, *, waits: bool) -> None:
    now = turn()
    demands = now.handle_input(create(Dependency("run-before", end, ended)))
    assert [type(one) for one in demands] == [CreateClaim]
    assert (now_of(now).hold is not None) is waits


def test_a_run_that_could_never_start_is_refused() -> None:
    now = turn()
    with pytest.raises(MooringsError) as error:
        now.handle_input(create(Dependency("run-before", AfterEnd.OK, "TIMED_OUT")))
    assert code_of(error) == "run.never_starts"
    with pytest.raises(MooringsError) as error:
        now.handle_input(create(Dependency("run-gone")))
    assert (code_of(error), error.value.retryable) == ("run.ended", True)
    assert now.changed == {}


def test_a_refused_claim_ends_the_run_and_decides_about_the_next() -> None:
    now = turn()
    now.handle_input(create(Dependency(FIRST.id)))
    now.handle_input(create(Dependency(NEW, AfterEnd.FAILED), id=RunId("run-last"), claim=ClaimId("claim-last")))
    now.handle_input(ends(FIRST))
    now.start_dependents()
    now.refuse_claim(ClaimId("claim-new"), "the project is gone")
    run = now_of(now)
    assert (run.state, run.claim, run.detail) == (RunState.FAILED, None, "the project is gone")
    assert [one.id for one in now.start_dependents()] == ["claim-last"]


def test_a_waiting_run_is_cancelled_and_not_paused() -> None:
    now = turn()
    now.handle_input(create(Dependency(FIRST.id)))
    with pytest.raises(MooringsError, match="holds nothing until then") as error:
        now.handle_input(PauseRun(NEW, "ann", 60.0))
    assert code_of(error) == "run.not_pausable"
    assert now.handle_input(RunRejected(NEW, "no")) == []
    assert now.handle_input(CancelRun(NEW, "enough")) == []
    run = now_of(now)
    assert (run.state, run.detail, run.hold) == (RunState.CANCELLED, "enough", None)


def test_a_reason_names_three_runs_at_most() -> None:
    after = tuple(Dependency(f"run-{number}") for number in range(5))
    wanted = "waits for run run-0 to end (ok) and run run-1 to end (ok) and run run-2 to end (ok) and 2 more"
    assert RunHold(after).reason == wanted


def test_an_end_is_ok_unless_another_is_named() -> None:
    assert parse_dependency("digits") == Dependency("digits", AfterEnd.OK)
    assert parse_dependency("run-7:failed") == Dependency("run-7", AfterEnd.FAILED)


@cases("after", [("",), (":ok",), ("run-7:",), ("run-7:never",), ("r" * 201,), ("run-7",) * (AFTER_MAX + 1)])
def test_what_names_no_run_or_too_many_is_refused(after: tuple[str, ...]) -> None:
    with pytest.raises(MooringsError) as error:
        check_job(a_job(after=after))
    assert code_of(error) == "job.invalid"


def test_a_claim_that_failed_is_known_before_the_queue_is_planned_if_its_run_is_awaited() -> None:
    failed = replace(HELD[0], state=ClaimState.FAILED)
    waits = a_run(2, claim=None, hold=RunHold((Dependency(FIRST.id),), ClaimId("claim-later"), a_claim().spec))
    assert turn().awaited([failed]) == [], "no run waits for it: as in logs of earlier releases"
    now = turn(FIRST, SECOND_RUN, waits)
    assert now.awaited([failed, HELD[0], replace(HELD[1], state=ClaimState.LOST)]) == [failed]
    limited = replace(FIRST, job=replace(FIRST.job, array=ArrayPart("run-a", 0, 4, 2)))
    assert turn(limited).awaited([failed]) == [failed]


# -- of arrays ---------------------------------------------------------------------------------------------------------


def element(index: int, **more: Any) -> Run:
    job = replace(FIRST.job, array=ArrayPart("run-a", index, 2))
    return a_run(index, id=RunId(f"run-a-{index}"), job=job, **{"state": RunState.RUNNING, "claim": None, **more})


@cases(
    ("end", "codes", "starts"),
    [
        (AfterEnd.OK, (0, 0), True),
        (AfterEnd.OK, (0, 3), False),
        (AfterEnd.ANY, (3, 3), True),
        (AfterEnd.FAILED, (3, 0), True),
        (AfterEnd.FAILED, (0, 3), True),
        (AfterEnd.FAILED, (0, 0), False),
    ],
)
def test_a_run_waits_for_all_runs_of_an_array(end: AfterEnd, codes: tuple[int, int], *, starts: bool) -> None:
    for at_once in (True, False):
        check_wait_for_array(end, codes, starts=starts, at_once=at_once)


def check_wait_for_array(end: AfterEnd, codes: tuple[int, int], *, starts: bool, at_once: bool) -> None:
    elements = [element(0), element(1)]
    waits = turn(*elements)
    waits.handle_input(create(Dependency("run-a", end, left=2)))
    assert now_of(waits).hold is not None
    known = RunRegistry([*elements, now_of(waits)])
    now = RunTurn(known, lambda _: None, LATER)
    now.handle_input(ends(elements[0], codes[0]))
    if not at_once:
        assert now.start_dependents() == []
        known.apply(run for run, _ in now.changed.values())
        now = RunTurn(known, lambda _: None, LATER)
    now.handle_input(ends(elements[1], codes[1]))
    claims, run = now.start_dependents(), now.run(NEW)
    assert (len(claims) == 1) is starts
    if not starts:
        assert run is not None
        assert run.state is RunState.CANCELLED
        assert run.detail.startswith("run run-a-1 is FAILED" if end is AfterEnd.OK else "run run-a is SUCCEEDED")


def test_an_array_that_has_changed_since_is_looked_up_again() -> None:
    now = turn(element(0), element(1))
    with pytest.raises(MooringsError) as error:
        now.handle_input(create(Dependency("run-a", left=1)))
    assert (code_of(error), error.value.retryable) == ("run.ended", True)


@cases(
    ("states", "wanted"),
    [
        (("RUNNING", "SUCCEEDED"), Dependency("run-a", AfterEnd.OK, left=1)),
        (("RUNNING", "LOST"), Dependency("run-a-1", AfterEnd.OK, "LOST")),
        (("SUCCEEDED", "SUCCEEDED"), Dependency("run-a", AfterEnd.OK, "SUCCEEDED")),
    ],
)
def test_an_array_is_waited_for_as_it_is_found(states: tuple[str, str], wanted: Dependency) -> None:
    found = [element(index, state=RunState(state)) for index, state in enumerate(states)]
    assert dependency_on(found, AfterEnd.OK) == wanted


def test_the_failure_of_an_array_is_remembered() -> None:
    found = [element(0), element(1, state=RunState.FAILED)]
    assert dependency_on(found, AfterEnd.FAILED) == Dependency("run-a", AfterEnd.FAILED, left=1, has_failed=True)
    assert dependency_on([FIRST], AfterEnd.ANY) == Dependency(FIRST.id, AfterEnd.ANY)
    assert RunHold((dependency_on(found, AfterEnd.ANY),)).reason == "waits for array run-a to end (any)"


# -- where people submit themselves ------------------------------------------------------------------------------------

ANN = Submitter(1000, "0" * 64)


def test_what_its_person_submits_is_never_held_back_here() -> None:
    now = turn()
    own = {"claim": None, "engine": "slurm", "submitter": ANN}
    now.handle_input(create(Dependency(FIRST.id), **own))
    assert now_of(now).is_unsubmitted
    digests = ("1" * 64, "2" * 64, "3" * 64)
    array = create(id=RunId("run-b"), job=a_job(array="0-2%1"), token_digests=digests, **own)
    now.handle_input(array)
    runs = [now_of(now, RunId(f"run-b-{index}")) for index in range(3)]
    assert [run.submitter for run in runs] == [Submitter(1000, digest) for digest in digests]
    assert all(run.is_unsubmitted for run in runs)
    assert now.start_dependents() == []


def test_each_run_of_an_array_has_the_entry_that_was_handed_in_for_it() -> None:
    now = turn()
    now.handle_input(create(job=a_job(array="3,7"), spool_entries=("1000-a", "1000-b")))
    assert [now_of(now, RunId(f"run-new-{index}")).spool_entry for index in (3, 7)] == ["1000-a", "1000-b"]


@cases(
    ("each", "runs", "code"),
    [
        (Dependency(FIRST.id), [replace(FIRST, engine="local")], "engine.rejected"),
        (Dependency(FIRST.id), [replace(FIRST, engine="slurm", submitter=ANN, subject="bob")], "engine.rejected"),
        (Dependency("run-a", AfterEnd.FAILED, left=1), [], "engine.rejected"),
        (Dependency(FIRST.id, AfterEnd.OK, "FAILED"), [], "run.never_starts"),
    ],
)
def test_what_slurm_cannot_wait_for_is_refused(each: Dependency, runs: list[Run], code: str) -> None:
    with pytest.raises(MooringsError) as error:
        check_own_dependency(each, runs, "slurm", "ann")
    assert code_of(error) == code
    assert error.value.hint
