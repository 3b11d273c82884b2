"""The values of jobs' variables in files."""

import os
import stat
from pathlib import Path

import pytest

from moorings.app.backup_environments import copy_environments, restore_environments
from moorings.core.model.errors import MooringsError
from moorings.engines.environments import FolderEnvironments
from moorings.workloads.runs import RunId

ONE, TWO = RunId("run-1"), RunId("run-2")
VALUES = {"TOKEN": "hunter2", "EMPTY": "", "NAME": "ä\udcff"}


@pytest.fixture
def kept(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "slurm").mkdir()
    return FolderEnvironments({"local": tmp_path / "runs", "slurm": tmp_path / "slurm"})


def test_draft_of_a_killed_controller_is_removed(tmp_path: Path) -> None:
    kept = FolderEnvironments({"local": tmp_path})
    kept.save("local", RunId("run-1"), {"A": "1"})
    (tmp_path / ".environments" / ".run-2.json.1-2").write_text("{")
    kept.remove_drafts()
    assert [path.name for path in (tmp_path / ".environments").iterdir()] == ["run-1.json"]


def test_what_was_saved_is_loaded_by_another_process(kept, tmp_path):
    kept.save("local", ONE, VALUES)
    other = FolderEnvironments({"local": tmp_path / "runs"})
    assert other.load("local", ONE) == VALUES
    assert other.load("local", TWO) is None


def test_nobody_else_can_read_it(kept, tmp_path):
    before = os.umask(0)
    try:
        kept.save("local", ONE, VALUES)
    finally:
        os.umask(before)
    (file,) = (tmp_path / "runs" / ".environments").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "act",
    [lambda kept: kept.load("slurm", ONE), lambda kept: kept.save("slurm", ONE, VALUES)],
    ids=("load", "save"),
)
def test_a_folder_that_is_away_is_not_used(kept, tmp_path, act):
    """Its disk may not be mounted: nothing is missing, and nothing is written in its place."""
    (tmp_path / "slurm").rmdir()
    with pytest.raises(MooringsError) as caught:
        act(kept)
    assert (caught.value.code, caught.value.retryable) == ("engine.unavailable", True)
    assert not (tmp_path / "slurm").exists()


def test_a_damaged_file_is_no_value(kept, tmp_path):
    kept.save("local", ONE, VALUES)
    (tmp_path / "runs" / ".environments" / "run-1.json").write_text("[1]")
    with pytest.raises(MooringsError) as caught:
        kept.load("local", ONE)
    assert caught.value.code == "engine.unavailable"


def test_what_no_run_needs_goes_with_time(kept, tmp_path):
    kept.save("local", ONE, VALUES)
    kept.save("slurm", TWO, VALUES)
    assert kept.remove_unused((), 3600) == 0, "their runs may be about to be made"
    for file in tmp_path.glob("*/.environments/*"):
        os.utime(file, (0, 0))
    assert kept.remove_unused((TWO,), 3600) == 1
    assert (kept.load("local", ONE), kept.load("slurm", TWO)) == (None, VALUES)
    kept.remove("slurm", TWO)
    kept.remove("slurm", TWO)
    assert kept.load("slurm", TWO) is None


def test_a_backup_brings_them_back_and_replaces_nothing(kept, tmp_path):
    kept.save("local", ONE, VALUES)
    kept.save("local", TWO, {"A": "old"})
    work = tmp_path / "work"
    work.mkdir()
    assert list(copy_environments({"local": tmp_path / "runs"}, work)) == ["environments.jsonl"]
    kept.remove("local", ONE)
    kept.save("local", TWO, {"A": "there"})
    for _ in range(2):
        restore_environments({"local": tmp_path / "runs"}, work)
    assert (kept.load("local", ONE), kept.load("local", TWO)) == (VALUES, {"A": "there"})
    assert not list(work.iterdir())


def test_a_backup_is_restored_on_a_new_disk(kept, tmp_path):
    kept.save("local", ONE, VALUES)
    copy_environments({"local": tmp_path / "runs"}, tmp_path)
    restore_environments({"local": tmp_path / "new"}, tmp_path)
    assert FolderEnvironments({"local": tmp_path / "new"}).load("local", ONE) == VALUES
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
