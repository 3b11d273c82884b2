"""Orders: written whole for their user alone, and refused when they are damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.appliance.job_spec import BYTES_MAX, FILE_NAME, ApplianceJobSpec, read_job_spec, write_job_spec
from moorings.core.model.errors import MooringsError

PARAMS: dict[str, dict[str, Any]] = {
    "model": {"hidden_size": 8},
    "train_input": {"batch_size": 4},
    "eval_input": {},
    "optimizer": {"learning_rate": 0.001},
    "runconfig": {"seed": 1},
}


@pytest.fixture
def order(tmp_path: Path) -> ApplianceJobSpec:
    return ApplianceJobSpec(
        act="train",
        program="train",
        params=PARAMS,
        model_dir=str(tmp_path),
        compile_dir=str(tmp_path / "cache"),
        folder=str(tmp_path / "jobs" / "1"),
        systems=2,
        weight_servers=1,
        artifact="abc",
        first_step=3,
        last_step=9,
        checkpoint=str(tmp_path / "checkpoint_3.npz"),
        mount_dirs=(str(tmp_path),),
        label="Train",
    )


def test_what_is_written_is_read(order: ApplianceJobSpec) -> None:
    file = write_job_spec(order)
    assert read_job_spec(file) == order
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in file.parent.iterdir()] == [FILE_NAME]
    assert write_job_spec(replace(order, checkpoint=None, artifact=None)) == file
    assert read_job_spec(file).checkpoint is None


def test_where_a_job_answers(order: ApplianceJobSpec) -> None:
    folder = Path(order.folder)
    assert order.result_file == folder / "trained.json"
    assert replace(order, act="eval").result_file == folder / "evaluated.json"
    assert replace(order, act="compile", program="eval").result_file == folder / "compiled-eval.json"


@pytest.mark.parametrize(
    "change",
    [
        {"act": "sleep"},
        {"program": "both"},
        {"systems": 0},
        {"systems": True},
        {"weight_servers": 0},
        {"first_step": -1},
        {"last_step": 1.5},
        {"model_dir": "relative"},
        {"folder": None},
        {"checkpoint": "relative.npz"},
        {"mount_dirs": "/x"},
        {"mount_dirs": ["x"]},
        {"params": []},
        {"params": {"model": {}}},
        {"params": {**PARAMS, "model": 1}},
        {"artifact": 7},
        {"label": None},
        {"version": 2},
        {"more": 1},
        {"act": None},
        {"act": []},
    ],
    ids=str,
)
def test_a_damaged_one_is_refused(order: ApplianceJobSpec, change: dict[str, Any]) -> None:
    file = write_job_spec(order)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    refuse(file)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"{}", b"[" * 100_000, b" " * (BYTES_MAX + 1)])
def test_what_is_no_order_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / FILE_NAME
    file.write_bytes(content)
    refuse(file)


def test_one_that_is_missing_or_cut_is_refused(order: ApplianceJobSpec, tmp_path: Path) -> None:
    refuse(tmp_path / "none.json")
    refuse(tmp_path)
    file = write_job_spec(order)
    content = file.read_bytes()
    for length in range(0, len(content), 7):
        file.write_bytes(content[:length])
        refuse(file)


def refuse(file: Path) -> None:
    with pytest.raises(MooringsError) as refused:
        read_job_spec(file)
    assert refused.value.code == "order.invalid"
    assert str(file) in refused.value.detail
