"""What Slurm is given of the order of a person's runs: dependencies, and the places of an array."""

from __future__ import annotations

from pathlib import Path

import pytest

from moorings.core.model.bindings import NO_BINDING
from moorings.core.model.errors import MooringsError
from moorings.ports.engine import RunSubmission
from moorings.slurm.engine.settings import SubmitTarget
from moorings.slurm.engine.submission import build_submit
from moorings.slurm.personal.awaited_jobs import AwaitedJob, build_dependency
from moorings.slurm.personal.own_arrays import element_runs
from moorings.slurm.personal.own_runs import OwnRun
from moorings.testing.builders import a_job
from moorings.workloads.dependencies import AfterEnd, Dependency
from moorings.workloads.runs import RunId
from tests.cases import cases

OK, ANY, FAILED = AfterEnd.OK, AfterEnd.ANY, AfterEnd.FAILED


def on(end: AfterEnd = OK, run: str = "run-a") -> Dependency:
    return Dependency(run, end)


@cases(
    ("awaited", "words"),
    [
        ([], ""),
        ([AwaitedJob(on(), job=7, is_live=True)], "afterok:7"),
        (
            [
                AwaitedJob(on(each, f"run-{number}"), job=number, is_live=True)
                for number, each in enumerate((OK, ANY, OK))
            ],
            "afterany:1,afterok:0:2",
        ),
        ([AwaitedJob(on(FAILED), job=7, is_live=True)], "afternotok:7"),
        (
            [AwaitedJob(on(), "SUCCEEDED", 7)],
            "",
        ),  # Slurm may have forgotten that job
        ([AwaitedJob(on(FAILED), "LOST")], ""),
        ([AwaitedJob(on(ANY), "CANCELLED")], ""),
        ([AwaitedJob(on(), "RUNNING", 7, slurm_state="COMPLETED")], ""),  # the controller does not know yet
        ([AwaitedJob(on(FAILED), "RUNNING", 7, slurm_state="NODE_FAIL")], ""),
    ],
)
def test_only_what_has_not_ended_is_left_to_slurm(awaited: list[AwaitedJob], words: str) -> None:
    assert build_dependency(awaited) == words


@cases(
    ("awaited", "code"),
    [
        (AwaitedJob(on(), "FAILED", 7), "run.never_starts"),
        (AwaitedJob(on(), "RUNNING", 7, slurm_state="CANCELLED"), "run.never_starts"),
        (AwaitedJob(on(FAILED), "SUCCEEDED", 7), "run.never_starts"),
        (AwaitedJob(on(), "WAITING"), "engine.unavailable"),  # its own answer of sbatch was lost
        (AwaitedJob(on(), "RUNNING", 7), "engine.unavailable"),
    ],
)
def test_what_cannot_be_waited_for_is_not_submitted(awaited: AwaitedJob, code: str) -> None:
    with pytest.raises(MooringsError) as error:
        build_dependency([AwaitedJob(on(ANY, "run-b"), job=1, is_live=True), awaited])
    assert error.value.code == code


def test_a_job_that_can_never_start_is_to_end_at_once() -> None:
    order = RunSubmission(RunId("run-a"), 0, a_job(), NO_BINDING)
    words = build_submit(order, SubmitTarget(), Path("/runs/run-a/0"), "afterok:7")
    assert words[-3:] == ["--dependency=afterok:7", "--kill-on-invalid-dep=yes", "/runs/run-a/0/batch.sh"]
    assert not any("depend" in word for word in build_submit(order, SubmitTarget(), Path("/runs/run-a/0")))


@cases(
    ("indexes", "predecessor"),
    [
        ("0-3", ["", "", "", ""]),
        ("0-4%2", ["", "", "run-a-0", "run-a-1", "run-a-2"]),
        ("1,5,9%1", ["", "run-a-1", "run-a-5"]),
        ("0-1%8", ["", ""]),
    ],
)
def test_each_element_waits_for_the_one_that_many_places_before(indexes: str, predecessor: list[str]) -> None:
    own = OwnRun(a_job(array=indexes), "http://127.0.0.1:1", "")
    made = element_runs("run-a", own, [str(place) for place in range(len(predecessor))])
    assert [run.predecessor for run in made.values()] == predecessor
    assert [run.token for run in made.values()] == [str(place) for place in range(len(predecessor))]
    assert [run.job.environment["MOORINGS_ARRAY_ID"] for run in made.values()] == ["run-a"] * len(predecessor)
    assert [ident.removeprefix("run-a-") for ident in made] == [
        run.job.environment["SLURM_ARRAY_TASK_ID"] for run in made.values()
    ]
