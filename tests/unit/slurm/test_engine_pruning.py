"""Old folders of runs on Slurm go; of a run that may live, is doubtful or is spared nothing does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moorings.app.maintenance import prune
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.engine.run_folder import SlurmRunFolder, SubmittedSlurmJob
from moorings.workloads.runs import EndReason, EndRecord

OLD, BEFORE, NEW = Timestamp(1_000 * SECOND), Timestamp(5_000 * SECOND), Timestamp(9_000 * SECOND)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    made = tmp_path / "runs"
    made.mkdir()
    return made


def a_run(runs: Path, name: str, *files: str, ended: Timestamp | None = None, touched: Timestamp = OLD) -> Path:
    """A run's folder; ``touched``: when something was written there last."""
    folder = SlurmRunFolder(runs / name)
    door = folder.try_lock()
    assert door is not None
    os.close(door)
    attempt = folder.attempt(0)
    attempt.save_order(SubmittedSlurmJob(tasks=1, grace_s=1.0), {"batch.sh": b""})
    for file in files:
        attempt.write(file, b"7")
    if ended is not None:
        attempt.save_end(EndRecord(EndReason.EXITED, 0, (0,), ended_at=ended))
    os.utime(attempt.path, (touched / SECOND, touched / SECOND))
    return folder.path


def test_only_what_ended_long_ago_goes(runs: Path) -> None:
    a_run(runs, "run-old", "asked", "job", ended=OLD)
    a_run(runs, "run-new", "asked", "job", ended=NEW)
    a_run(runs, "run-spared", "asked", "job", ended=OLD)
    a_run(runs, "run-open", "asked", "job")  # Slurm had it, and how it ended stands nowhere
    a_run(runs, "run-claimed", "asked", "claimed")
    assert prune(runs, BEFORE, {"run-spared"}, SlurmRunFolder.hold_ended) == ["run-old"]
    assert sorted(path.name for path in runs.iterdir()) == ["run-claimed", "run-new", "run-open", "run-spared"]


def test_what_slurm_never_had_goes_when_nothing_was_written_there_for_as_long(runs: Path) -> None:
    a_run(runs, "run-refused")
    a_run(runs, "run-lost", "asked")
    a_run(runs, "run-today", touched=NEW)
    assert prune(runs, BEFORE, (), SlurmRunFolder.hold_ended) == ["run-lost", "run-refused"]


def test_a_run_that_is_being_submitted_stays(runs: Path) -> None:
    a_run(runs, "run-a", "asked", "job", ended=OLD)
    door = SlurmRunFolder(runs / "run-a").try_lock()
    assert door is not None
    assert prune(runs, BEFORE, (), SlurmRunFolder.hold_ended) == []
    os.close(door)
    assert prune(runs, BEFORE, (), SlurmRunFolder.hold_ended) == ["run-a"]


def test_what_is_no_runs_folder_and_a_damaged_one_stay(runs: Path) -> None:
    (runs / "notes").mkdir()
    os.utime(runs / "notes", (0, 0))
    damaged = a_run(runs, "run-c", "asked", "job", ended=OLD)
    (damaged / "0" / "end.json").write_text("{")
    assert prune(runs, BEFORE, (), SlurmRunFolder.hold_ended) == []
    assert sorted(path.name for path in runs.iterdir()) == ["notes", "run-c"]
