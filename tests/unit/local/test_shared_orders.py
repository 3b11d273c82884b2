"""What a controller that was taken over may tell a person's supervisor: nothing that a program obeys."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.core.model.bindings import Binding, GcdBinding
from moorings.core.model.devices import DeviceId
from moorings.core.model.serialization import to_plain
from moorings.local.records import AttemptEnd, from_json
from moorings.local.shared_supervisor import (
    SharedRunFolder,
    checkpoint_fault,
    order_to_send,
    parse_submission,
    supervise,
)
from moorings.ports.engine import RunSubmission
from moorings.testing.builders import a_job
from moorings.workloads.runs import EndReason, RunId
from tests.cases import cases

GCD = GcdBinding(0, (DeviceId("gpu:0"),), environment={"CUDA_VISIBLE_DEVICES": "GPU-0a1b,MIG-2c"})
ORDER = RunSubmission(
    RunId("run-1"), 2, a_job(), Binding("p-1", {"IPUOF_VIPU_API_HOST": "pod.example"}, (GCD,)), partition=None
)


def given(order: RunSubmission = ORDER, **changed: Any) -> dict[str, Any]:
    return {"job": to_plain(order.job), "order": order_to_send(order) | changed, "attempt": order.attempt}


def bound(**changed: Any) -> RunSubmission:
    return replace(ORDER, binding=replace(ORDER.binding, gcds=(replace(GCD, **changed),)))


def test_an_order_arrives_as_it_was_sent() -> None:
    assert parse_submission(given()) == ORDER


@cases(
    "order",
    [
        bound(environment={"LD_PRELOAD": "/tmp/x.so"}),
        bound(environment={"PYTHONPATH": "/tmp"}),
        bound(environment={"CUDA_INJECTION64_PATH": "/tmp/x.so"}),
        bound(environment={"CUDA_VISIBLE_DEVICES": "0\nLD_PRELOAD=x"}),
        bound(environment={"CUDA_VISIBLE_DEVICES": "$(id)"}),
        bound(devices=("a b",)),
        bound(device_files=("/dev/pts/7:/home/ann/train.py:rw",)),
        bound(device_files=("/dev/pts/7",)),
        bound(device_files=("/home/bob/evil.py,destination=/home/ann/train.py",)),
        bound(device_files=("/dev/../home/bob/evil.py",)),
        replace(ORDER, binding=replace(ORDER.binding, api={"BASH_ENV": "/tmp/x"})),
        replace(ORDER, binding=replace(ORDER.binding, api={"IPUOF_VIPU_API_HOST": "`id`"})),
        replace(ORDER, binding=replace(ORDER.binding, gcds=(GCD, GCD))),
        replace(ORDER, run=RunId("../run-1")),
        replace(ORDER, resume_from="/tmp/evil.pt"),
        replace(ORDER, job=replace(ORDER.job, checkpoint_directory="/c"), resume_from="/c/../evil.pt"),
    ],
    ids=lambda order: str(order.binding.gcds[0].environment or order.resume_from)[:40],
)
def test_an_order_sets_nothing_that_a_program_obeys(order: RunSubmission) -> None:
    with pytest.raises(ValueError, match=r"binding|order|checkpoint"):
        parse_submission(given(order))


@pytest.mark.parametrize("wrong", [{"binding": {}}, {"run": None}, {"resume_since": "x"}, {"resume_step": []}], ids=str)
def test_what_is_no_order_is_an_end_with_that_said(wrong: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "2" / "run").mkdir(parents=True)
    folder = SharedRunFolder(tmp_path / "2")
    supervise(folder, given(**wrong))
    end = from_json(AttemptEnd, folder.end.read_bytes())
    assert (end.attempt, end.record.ending, end.record.exit_code) == (2, EndReason.NOT_STARTED, 126)
    assert end.record.detail.startswith("the job could not be started: ")
    assert folder.end.stat().st_mode & 0o777 == 0o640, "the controller's group reads it"


def test_a_checkpoint_is_the_persons_own(tmp_path: Path) -> None:
    saved = tmp_path / "step-1.pt"
    saved.touch()
    assert checkpoint_fault(str(saved), str(tmp_path)) == checkpoint_fault(str(saved), f"{tmp_path}/") == ""
    assert checkpoint_fault(str(tmp_path / "gone.pt"), str(tmp_path)) == ""
    (tmp_path / "step-2.pt").symlink_to(saved)
    for name in ("..", ".", ""):
        assert checkpoint_fault(f"{tmp_path}/{name}", str(tmp_path))
    for path, folder in ((tmp_path / "step-2.pt", tmp_path), (saved, tmp_path / "x"), (saved, None)):
        assert checkpoint_fault(str(path), str(folder) if folder is not None else None)
    if os.geteuid() == 0:
        os.chown(saved, 61_001, -1)
        assert "another user's" in checkpoint_fault(str(saved), str(tmp_path))
