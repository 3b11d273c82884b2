"""The parts of a workflow that need no controller: its jobs as values, its record, its lines."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.appliance.checkpoints import CheckpointFile
from moorings.appliance.console import JobOutput, format_seconds
from moorings.appliance.job_spec import SECTIONS, ApplianceJobSpec
from moorings.appliance.jobs import job_variables
from moorings.appliance.run_meta import FILE_NAME, RunMetaFile, user_state
from moorings.appliance.runner import can_resume, end_text
from moorings.appliance.workflow import is_job_of_workflow, training_segments
from moorings.wire.shapes import ApplianceShape, JobShape, RunBody
from moorings.workloads.appliance import ApplianceJobType
from moorings.workloads.runs import RunState
from tests.cases import cases

WORKFLOW = "wflow-" + "a" * 22


@cases(
    ("first", "last", "frequency", "stops"),
    [
        (0, 100, 40, [40, 80, 100]),
        (40, 100, 40, [80, 100]),
        (41, 100, 40, [80, 100]),
        (0, 80, 40, [40, 80]),
        (0, 30, None, [30]),
        (10, 30, None, [30]),
        (30, 30, 10, []),
    ],
)
def test_training_stops_where_it_is_evaluated(first: int, last: int, frequency: int | None, stops: list[int]) -> None:
    assert list(training_segments(first, last, frequency)) == stops


def test_a_job_gets_the_way_to_programs_and_no_secret() -> None:
    ours = {
        "PATH": "/bin",
        "HOME": "/home/ann",
        "LC_ALL": "C",
        "VIRTUAL_ENV": "/v",
        "PYTHONPATH": f"lib{os.pathsep}/abs{os.pathsep}",
        "MOORINGS_ACCESS_KEY": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "SLURM_JOB_ID": "65",
        "LD_PRELOAD": "/x.so",
    }
    assert job_variables(ours, ("/first",), Path("/work")) == {
        "PATH": "/bin",
        "HOME": "/home/ann",
        "LC_ALL": "C",
        "VIRTUAL_ENV": "/v",
        "PYTHONPATH": "/first:/work/lib:/abs",
    }
    assert job_variables({"PATH": "/bin"}, (), Path("/")) == {"PATH": "/bin"}


def job(ident: str = "wsjob-1", state: str = "WAITING", **more: Any) -> RunBody:
    part = ApplianceShape(kind="execute", workflow=WORKFLOW)
    shape = JobShape(name="train", command=("true",), workdir="/", appliance=part)
    usual = {"name": "train", "engine": "local", "subject": "ann", "attempt": 0, "created_at": "2026-01-01T00:00:00Z"}
    return RunBody(id=ident, state=state, job=shape, **{**usual, **more})


def read(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / FILE_NAME).read_text()))


def test_the_record_has_every_job_of_every_start(tmp_path: Path) -> None:
    record = RunMetaFile(tmp_path, "9.9")
    assert record.load() is None
    record.update_job(job(), ApplianceJobType.EXECUTE, tmp_path / "log")
    assert RunMetaFile(tmp_path).load() is None
    running = job(state="RUNNING", scheduled_at="2026-01-01T00:00:01Z", started_at="2026-01-01T00:00:02Z")
    record.update_job(running, ApplianceJobType.EXECUTE, tmp_path / "log")
    assert record.list_unfinished() == [("wsjob-1", WORKFLOW)]
    ended = replace(running, state="TIMED_OUT", ended_at="2026-01-01T00:00:09Z", scheduled_at=None, exit_code=124)
    record.update_job(ended, ApplianceJobType.EXECUTE, tmp_path / "log")
    assert record.list_unfinished() == []
    assert read(tmp_path) == {
        "version": "9.9",
        "compile_jobs": [],
        "execute_jobs": [
            {
                "id": "wsjob-1",
                "workflow": WORKFLOW,
                "log_path": str(tmp_path / "log"),
                "queued_time": "2026-01-01T00:00:00Z",
                "scheduled_time": "2026-01-01T00:00:01Z",
                "start_time": "2026-01-01T00:00:02Z",
                "end_time": "2026-01-01T00:00:09Z",
                "state": "FAILED",
                "exit_code": 124,
            }
        ],
    }
    again = RunMetaFile(tmp_path, "9.9")
    assert again.load() is None
    again.update_job(job("wsjob-2"), ApplianceJobType.COMPILE, tmp_path / "log")
    assert [each["id"] for each in read(tmp_path)["execute_jobs"]] == ["wsjob-1"]
    assert again.list_unfinished() == [("wsjob-2", WORKFLOW)]
    again.mark_ended(None, "wsjob-2")
    assert (again.list_unfinished(), read(tmp_path)["compile_jobs"][0]["state"]) == ([], "UNKNOWN")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"compile_jobs": 1, "execute_jobs": []}', b"\xff", b"[" * 99_999]
)
def test_a_record_that_cannot_be_read_is_put_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    record = RunMetaFile(tmp_path)
    assert record.load() == "run_meta.json could not be read and is now run_meta.json.damaged"
    assert (tmp_path / "run_meta.json.damaged").read_bytes() == content
    record.update_job(job(), ApplianceJobType.EXECUTE, tmp_path)
    assert len(read(tmp_path)["execute_jobs"]) == 1


def test_states_in_the_words_of_appliances() -> None:
    assert {str(state): user_state(job(state=state)) for state in RunState} == {
        "WAITING": "QUEUED",
        "STARTING": "SCHEDULED",
        "YIELDING": "RUNNING",
        "RUNNING": "RUNNING",
        "STOPPING": "STOPPING",
        "PAUSED": "PAUSED",  # a job of a workflow cannot be
        "SUCCEEDED": "SUCCEEDED",
        "FAILED": "FAILED",
        "CANCELLED": "CANCELLED",
        "TIMED_OUT": "FAILED",
        "LOST": "FAILED",
    }


def test_a_job_belongs_to_the_folder_it_works_in(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (tmp_path / "link").symlink_to(here)

    def of(**shape: Any) -> RunBody:
        made = job()
        return replace(made, job=replace(made.job, **shape))

    ours = of(checkpoint_directory=str(here))
    assert is_job_of_workflow(ours, WORKFLOW, here)
    assert is_job_of_workflow(ours, WORKFLOW, tmp_path / "link"), "the same folder by another name"
    assert not is_job_of_workflow(ours, "wflow-" + "b" * 22, here)
    assert not is_job_of_workflow(ours, WORKFLOW, there)
    assert not is_job_of_workflow(of(checkpoint_directory=str(tmp_path / "gone")), WORKFLOW, here)
    assert not is_job_of_workflow(of(), WORKFLOW, here)
    assert not is_job_of_workflow(of(checkpoint_directory=str(here), appliance=None), WORKFLOW, here)


def test_what_failed_on_a_checkpoint_does_not_go_on_from_it(tmp_path: Path) -> None:
    order = ApplianceJobSpec(
        act="train",
        program="train",
        params={name: {} for name in SECTIONS},
        model_dir=str(tmp_path),
        compile_dir=str(tmp_path),
        folder=str(tmp_path),
        systems=1,
        weight_servers=1,
        checkpoint=str(tmp_path / "checkpoint_40.npz"),
    )
    same, newer = (CheckpointFile(tmp_path / f"checkpoint_{step}.npz", step) for step in (40, 60))
    assert not can_resume(job(state="FAILED"), order, same)
    assert can_resume(job(state="FAILED"), order, newer)
    assert can_resume(job(state="FAILED"), replace(order, checkpoint=None), same)
    for state in ("CANCELLED", "TIMED_OUT", "LOST"):
        assert can_resume(job(state=state), order, same)


def test_a_bad_end_in_words() -> None:
    ran = {"started_at": "2026-01-01T00:00:02Z", "ended_at": "2026-01-01T00:00:05Z"}
    assert end_text(job(state="CANCELLED", exit_code=143, **ran)) == "CANCELLED after 3.0 s, exit code 143"
    assert end_text(job(state="TIMED_OUT", exit_code=124, **ran)) == "FAILED after 3.0 s"
    assert (
        end_text(job(state="CANCELLED", exit_code=143, ended_at="2026-01-01T00:00:05Z")) == "CANCELLED while it waited"
    )
    assert end_text(job(state="FAILED", ended_at="2026-01-01T00:00:05Z")) == "FAILED before it ran"


def test_the_first_task_speaks_for_all(tmp_path: Path) -> None:
    shown: list[bytes] = []
    output = JobOutput(shown.append, tmp_path / "log")
    output.write(b"[0] | Train Step=1\n[1] warning\n")
    output.write(b"no end")
    output.close()
    output.write(b" after the end\n")
    assert b"".join(shown) == b"| Train Step=1\n[1] warning\nno end after the end\n"
    assert (tmp_path / "log").read_bytes() == b"| Train Step=1\n[1] warning\nno end"


def test_output_goes_on_without_a_copy(tmp_path: Path) -> None:
    for place in (tmp_path / "none" / "log", Path("/dev/full")):
        shown: list[bytes] = []
        output = JobOutput(shown.append, place)
        output.write(b"one\n")
        output.write(b"two\n")
        assert shown == [b"one\n", b"two\n"]
        output.close()


def test_lengths_of_time() -> None:
    assert [format_seconds(each) for each in (0.04, 119.9, 125, 7199, 12_000)] == [
        *("0.0 s", "119.9 s", "2 min 5 s", "119 min 59 s", "3 h 20 min")
    ]
