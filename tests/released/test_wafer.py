"""A client and a job of today go on from the folders that a workflow of the release left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.appliance.checkpoints import find_newest
from moorings.appliance.job_spec import ApplianceJobSpec, read_job_spec, write_job_spec
from moorings.appliance.run_meta import FILE_NAME, RunMetaFile
from moorings.appliance.workflow import read_result
from moorings.wire.codec import decode, encode
from moorings.wire.shapes import ApplianceJobBody, RunBody
from moorings.workloads.appliance import ApplianceJobType
from tests.released.wafer_record import WAFER, put_back

RECORDING = json.loads(WAFER.read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the program as it was left."""
    put_back(RECORDING, tmp_path)
    return tmp_path


def orders_in(folder: Path) -> list[ApplianceJobSpec]:
    return [read_job_spec(path) for path in sorted(folder.glob("model_dir/jobs/*/*/order.json"))]


def test_orders_are_read_and_written_to_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    orders = orders_in(folder)
    assert sorted((order.act, order.program) for order in orders) == [
        ("compile", "eval"),
        ("compile", "train"),
        ("eval", "eval"),
        ("train", "train"),
    ]
    for number, order in enumerate(orders):
        recorded = (folder / Path(order.folder).relative_to(RECORDING["folder"]) / "order.json").read_bytes()
        elsewhere = tmp_path / f"again{number}"
        written = write_job_spec(replace(order, folder=str(elsewhere))).read_bytes()
        assert json.loads(written) == {**json.loads(recorded), "folder": str(elsewhere)}


def test_answers_of_jobs_are_read(folder: Path) -> None:
    said = {}
    for order in orders_in(folder):
        here = replace(order, folder=str(folder / Path(order.folder).relative_to(RECORDING["folder"])))
        said[order.act, order.program] = read_result(here)
    assert said["train", "train"]["step"] == 6
    assert said["eval", "eval"]["batches"] == 2
    artifacts = {path.name for path in (folder / "compiled").glob("*/*")}
    assert artifacts == {said["compile", "train"]["artifact"]}
    assert len(said["compile", "eval"]["artifact"]) == len(said["compile", "train"]["artifact"])


def test_the_record_of_jobs_is_taken_up_and_stays_as_it_is(folder: Path) -> None:
    model_dir = folder / "model_dir"
    recorded = json.loads((model_dir / FILE_NAME).read_text())
    record = RunMetaFile(model_dir)
    assert record.load() is None
    assert record.list_unfinished() == []
    jobs = {entry["id"]: entry for kind in ("compile_jobs", "execute_jobs") for entry in recorded[kind]}
    assert len(jobs) == 4
    for body in (decode(RunBody, run) for run in RECORDING["runs"]):
        assert body.job.appliance is not None
        record.update_job(body, ApplianceJobType(body.job.appliance.kind), Path(jobs[body.id]["log_path"]))
    written = json.loads((model_dir / FILE_NAME).read_text())
    assert {**written, "version": recorded["version"]} == recorded


def test_runs_and_their_labels_are_read_and_told_alike() -> None:
    for kind, values in ((RunBody, RECORDING["runs"]), (ApplianceJobBody, RECORDING["jobs"])):
        for value in values:
            told: dict[str, Any] = encode(decode(kind, value))
            assert told.items() <= value.items()
            assert value.keys() - told.keys() <= {"apiVersion", "kind"}
    assert all(run["labels"] == {"run": "a/b", "team": "nlp"} for run in RECORDING["runs"])


def test_the_newest_checkpoint_is_gone_on_from(folder: Path) -> None:
    newest, damaged = find_newest(folder / "model_dir")
    assert damaged == []
    assert newest is not None
    assert newest.step == 6


def test_compiled_programs_and_weights_are_taken_up(folder: Path) -> None:
    pytest.importorskip("jax", reason="the extra `wafer` is not installed")
    from moorings.appliance.execution.artifacts import find_artifact
    from moorings.appliance.execution.checkpoints import CheckpointReader
    from moorings.appliance.execution.compilation import load_programs

    (own,) = (folder / "compiled").iterdir()
    (order,) = [order for order in orders_in(folder) if order.act == "train"]
    artifact = find_artifact(own, str(order.artifact))
    assert artifact is not None
    _, layers = load_programs(artifact)
    with CheckpointReader(folder / "model_dir" / "checkpoint_6.npz", layers) as checkpoint:
        assert checkpoint.step == 6
        assert {name: value.shape for name, value in checkpoint.part(0, "w").items()} == {"w": (8, 8)}
