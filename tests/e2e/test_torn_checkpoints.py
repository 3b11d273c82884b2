"""Checkpoints of real frameworks, cut off as a kill would: none of these counts as whole, and each complete one does.

The rules rely on the order in which a framework writes: on what it writes or renames last. So what is tried here is a
write that stops at some moment. No rule notices that a file within a finished folder was damaged later, or a file's
blocks that never reached the disk although its size did (a power cut): only the framework would, by reading it all.
Where Orbax writes in place, milliseconds lie between its time of commit and ``commit_success.txt``: all data is there
then, but Orbax refuses it. Of older ones, which rename, that file is never there.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.core.model.timestamps import Timestamp
from moorings.engines.checkpoint_scan import look_at_folder
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.jobs import JobSpec
from tests.e2e.trainings import hf_trainer, lightning, orbax, torch
from tests.waiting import patient

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

CUTS = 300
SNAPSHOTS = Path(__file__).with_name("snapshots.py")


def commit_file(folder: Path) -> JobSpec:
    """Orbax, as it writes where a rename is not atomic: in place, and a mark at last."""
    wanted = orbax(folder)
    return replace(wanted, environment={**wanted.environment, "WITNESS_COMMIT_FILE": "1"})


def train(wanted: JobSpec, length: int, *, snapshots: bool = False) -> Path:
    """The checkpoint folder of a short training; with snapshots: copies of it are in ``copies`` beside it."""
    folder = Path(wanted.workdir)
    saves = folder / "checkpoints"
    for each in (saves, folder / "copies"):
        each.mkdir(parents=True)
    (folder / "hurry").touch()
    python, *rest = (*wanted.command[:-1], str(length))
    command = [python, str(SNAPSHOTS), str(folder / "copies"), *rest] if snapshots else [python, *rest]
    environment = {**wanted.environment, "HOME": str(folder), "MOORINGS_CHECKPOINT_DIR": str(saves)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=patient(60)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return saves


def look(folder: Path) -> dict[str, RunCheckpoint]:
    """What a second look says, at a folder that has not changed since the first."""
    now = Timestamp(time.time_ns() // 1000 + 60_000_000)
    first = look_at_folder(str(folder), now)
    return {Path(each.path).name: each for each in look_at_folder(str(folder), now, first).found}


def content(path: Path) -> dict[str, bytes]:
    """Its files; of Orbax's without the empty mark at the end."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {str(each.relative_to(path)): each.read_bytes() for each in files if each.name != "commit_success.txt"}


@pytest.mark.parametrize(
    ("make", "pattern", "name", "rule"),
    [
        (torch, "step-5.pt", "step-5.pt", CheckpointRule.ZIP),
        (lightning, "*.ckpt", "epoch=4-step=20.ckpt", CheckpointRule.ZIP),
        (hf_trainer, "checkpoint-3/optimizer.pt", "step-3.pt", CheckpointRule.ZIP),
        (hf_trainer, "checkpoint-3/model.safetensors", "step-3.safetensors", CheckpointRule.SAFETENSORS),
    ],
    ids=["torch", "lightning", "optimizer", "safetensors"],
)
def test_a_file_is_whole_with_its_last_byte(
    tmp_path: Path, make: Callable[[Path], JobSpec], pattern: str, name: str, rule: CheckpointRule
) -> None:
    (file,) = train(make(tmp_path / "training"), 5).glob(pattern)
    complete = file.read_bytes()
    saves = tmp_path / "saves"
    saves.mkdir()
    for cut in [*range(8), *random.sample(range(len(complete)), CUTS), *range(len(complete) - 30, len(complete))]:
        (saves / name).write_bytes(complete[:cut])
        found = look(saves)[name]
        assert not found.is_whole, f"{cut} of {len(complete)} bytes"
    (saves / name).write_bytes(complete)
    assert (look(saves)[name].is_whole, look(saves)[name].rule) == (True, rule)


def test_a_folder_of_the_trainer_is_whole_with_the_file_that_it_writes_last(tmp_path: Path) -> None:
    made = train(hf_trainer(tmp_path / "training"), 3) / "checkpoint-3"
    parts = {path.name: path.read_bytes() for path in sorted(made.iterdir(), key=lambda path: path.stat().st_mtime_ns)}
    assert list(parts)[-1] == "trainer_state.json"
    total = sum(map(len, parts.values()))
    ends = total - len(parts["trainer_state.json"].rstrip()) - 1
    for cut in [
        *random.sample(range(total - 1), CUTS),
        *range(ends, total - 1),
    ]:  # without its last newline it is whole
        folder = tmp_path / "saves" / "checkpoint-3"
        folder.mkdir(parents=True)
        left = cut
        for name, part in parts.items():
            if left >= 0:
                (folder / name).write_bytes(part[:left])
            left -= len(part)
        assert not look(folder.parent)[folder.name].is_whole, f"{cut} of {total} bytes"
        shutil.rmtree(folder.parent)
    found = look(made.parent)[made.name]
    assert (found.is_whole, found.rule) == (True, CheckpointRule.TRAINER)


@pytest.mark.parametrize(
    ("make", "length", "rule"),
    [
        (lightning, 1, CheckpointRule.ZIP),
        (hf_trainer, 9, CheckpointRule.TRAINER),
        (orbax, 10, CheckpointRule.ORBAX),
        (commit_file, 10, CheckpointRule.ORBAX),
    ],
)
def test_what_is_whole_at_any_moment_of_a_training_is_complete(
    tmp_path: Path, make: Callable[[Path], JobSpec], length: int, rule: CheckpointRule
) -> None:
    saves = train(make(tmp_path / "training"), length, snapshots=True)
    complete = {name: content(saves / name) for name, found in look(saves).items() if found.is_whole}
    assert {found.rule for found in look(saves).values()} == {rule}
    assert complete.keys() == look(saves).keys()
    copies = sorted((saves.parent / "copies").iterdir())
    torn = 0
    for copy in copies:
        for name, found in look(copy).items():
            torn += not found.is_whole
            if found.is_whole:
                assert content(copy / name) == complete[name], f"{copy.name}: {name}"
    assert len(copies) > len(complete)
    assert torn > 0 or rule is CheckpointRule.ZIP, "a file gets its name when it is complete"
    assert {name for name, found in look(copies[-1]).items() if found.is_whole} == complete.keys()
