"""Arrays: their indexes, their runs in one turn, and how many of them ask for devices at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.access import Role
from moorings.core.model.claims import ClaimId
from moorings.core.model.errors import MooringsError
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, a_job, a_run
from moorings.workloads.arrays import ELEMENTS_MAX, ArrayPart, format_indexes, parse_array
from moorings.workloads.dependencies import Dependency
from moorings.workloads.jobs import JOB_NAME_CHARS_MAX, check_job, element_of_run
from moorings.workloads.run_turn import CancelRun, CreateRun, RunRegistry, RunTurn
from moorings.workloads.runs import EndReason, EndRecord, Run, RunId, RunPhase, RunState, RunStatus
from tests.cases import cases

LATER = Timestamp(NOW + SECOND)
ARRAY = RunId("run-array")


def turn(registry: RunRegistry | None = None, **more: Any) -> RunTurn:
    return RunTurn(registry or RunRegistry(), lambda _: None, LATER, **more)


def create(array: str, **more: Any) -> CreateRun:
    usual: dict[str, Any] = {"claim": ClaimId("claim-array"), "job": a_job(array=array), "engine": "local"}
    return CreateRun(**{"id": ARRAY, "subject": "ann", **usual, **more})


def element(now: RunTurn, index: int) -> Run:
    run = now.run(RunId(f"{ARRAY}-{index}"))
    assert run is not None
    return run


def test_an_array_makes_one_run_for_each_index_and_their_claims() -> None:
    now = turn()
    assert now.handle_input(create("1,3-4")) == []
    claims = now.start_dependents()
    assert [(one.id, one.name) for one in claims] == [(f"claim-array-{i}", f"{ARRAY}-{i}") for i in (1, 3, 4)]
    run = element(now, 3)
    assert (run.job.name, run.claim, run.job.array) == ("train-0-3", "claim-array-3", ArrayPart(ARRAY, 3, 3))
    job = now.jobs[run.id]
    assert (job.name, job.array) == ("train-0-3", "")
    assert job.environment == {
        "MOORINGS_ARRAY_INDEX": "3",
        "MOORINGS_ARRAY_ID": ARRAY,
        "MOORINGS_ARRAY_SIZE": "3",
        "SLURM_ARRAY_TASK_ID": "3",
    }


def test_no_more_elements_ask_for_devices_than_the_limit_says() -> None:
    first = turn()
    first.handle_input(create("0-4%2"))
    assert [one.id for one in first.start_dependents()] == ["claim-array-0", "claim-array-1"]
    waiting = element(first, 2)
    assert waiting.hold is not None
    assert waiting.hold.reason == "waits for others of its array: no more of them may ask for devices at once"
    registry = RunRegistry()
    registry.apply(run for run, _ in first.changed.values())
    assert [run.id for run in registry.of_array(ARRAY)] == [f"{ARRAY}-{index}" for index in range(5)]
    second = turn(registry)
    second.handle_input(CancelRun(RunId(f"{ARRAY}-2"), "not needed"))
    assert second.start_dependents() == [], "it had no place"
    second.handle_input(CancelRun(RunId(f"{ARRAY}-0"), "enough"))
    assert [one.id for one in second.start_dependents()] == ["claim-array-3"]
    registry.apply(run for run, _ in second.changed.values())
    last = turn(registry)
    for index in (1, 3):
        last.handle_input(CancelRun(RunId(f"{ARRAY}-{index}"), "enough"))
    assert [one.id for one in last.start_dependents()] == ["claim-array-4"]
    last.handle_input(CancelRun(RunId(f"{ARRAY}-4"), "enough"))
    registry.apply(run for run, _ in last.changed.values())
    assert registry.of_array(ARRAY) == []


def test_an_array_after_another_run_starts_with_its_limit() -> None:
    first = a_run(state=RunState.RUNNING, claim=None)
    now = turn(RunRegistry([first]))
    now.handle_input(create("0-2%1", after=(Dependency(first.id),)))
    assert now.start_dependents() == []
    now.handle_input(RunStatus(first.id, RunPhase.ENDED, end=EndRecord(EndReason.EXITED, 0)))
    assert [one.id for one in now.start_dependents()] == ["claim-array-0"]


def test_elements_for_another_scheduler_are_submitted_as_the_limit_says() -> None:
    now = turn()
    now.handle_input(create("0-2%2", claim=None, engine="slurm"))
    assert now.start_dependents() == []
    assert [element(now, index).is_unsubmitted for index in range(3)] == [True, True, False]


def test_an_array_above_the_limit_of_what_waits_makes_no_run() -> None:
    now = turn(policy=Policy(waiting_max=3))
    with pytest.raises(MooringsError) as error:
        now.handle_input(create("0-3", role=Role.USER))
    assert error.value.code == "quota.waiting"
    assert (now.changed, now.jobs, now.events) == ({}, {}, [])
    assert now.start_dependents() == []
    now.handle_input(create("0-2", role=Role.USER))
    assert len(now.start_dependents()) == 3
    now = turn()
    now.handle_input(create("0-2"))
    now.rollback()
    assert (now.changed, now.start_dependents()) == ({}, [])


@cases(
    ("text", "indexes", "limit"),
    [
        ("0-3", (0, 1, 2, 3), 0),
        ("7", (7,), 0),
        ("1,3,7-9%2", (1, 3, 7, 8, 9), 2),
        ("0-10:5", (0, 5, 10), 0),
        ("3,1-3", (1, 2, 3), 0),
    ],
)
def test_indexes_are_read_as_sbatch_reads_them(text: str, indexes: tuple[int, ...], limit: int) -> None:
    assert parse_array(text) == (indexes, limit)


@cases("text", ["0-", "-1", "3-1", "0-9:0", "a", "1,,2", "0-9%0", "0-9%", "0-9%x", "1234567", "0-1000", "1," * 101])
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(MooringsError) as error:
        check_job(a_job(array=text))
    assert error.value.code == "job.invalid"


@cases("text", ["0-1000000", "1234567", "1234567-1234568:2", "1,0-9999999%4"])
def test_an_index_that_is_too_large_is_named(text: str) -> None:
    with pytest.raises(MooringsError, match="an index is at most 999,999"):
        parse_array(text)


def test_an_array_is_bounded_and_its_names_are_names() -> None:
    assert len(parse_array(f"1-{ELEMENTS_MAX}")[0]) == ELEMENTS_MAX
    long = a_job(array="0-9", name="x" * (JOB_NAME_CHARS_MAX - 2))
    check_job(long)
    with pytest.raises(MooringsError, match="longer than"):
        check_job(replace(long, array="0-10"))


def test_indexes_are_written_in_stretches() -> None:
    assert format_indexes([1, 2, 3, 7, 9, 10]) == "1-3,7,9-10"
    assert format_indexes([]) == ""


def test_the_element_that_a_run_is_follows_from_its_id() -> None:
    job = a_job(array="3-5%2")
    element = element_of_run(job, "run-7f3kq2m4xw2a-4")
    assert (element.name, element.array) == (f"{job.name}-4", "")
    assert element.environment == {**job.environment, **ArrayPart("run-7f3kq2m4xw2a", 4, 3, 2).variables}
    assert element_of_run(a_job(), "run-7f3kq2m4xw2a") == a_job()


@cases("run", ["run-7f3kq2m4xw2a-6", "run-7f3kq2m4xw2a", "4", "run-x-04x"])
def test_a_run_that_is_none_of_the_array_is_refused(run: str) -> None:
    with pytest.raises(ValueError, match="is no element of"):
        element_of_run(a_job(array="3-5%2"), run)
