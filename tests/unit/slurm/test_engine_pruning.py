"""Old folders of runs on Slurm go; of a run that may live, is doubtful or is spared nothing does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moorings.app.pruning import PRUNED_PREFIX, prune
from moorings.core.instants import SECOND, Timestamp
from moorings.slurm.engine.pruning import hold_ended
from moorings.slurm.engine.rundir import SlurmRunFolder, SubmittedSlurmJob
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
    door = folder.take_door()
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
    assert prune(runs, BEFORE, {"run-spared"}, hold_ended) == ["run-old"]
    assert sorted(path.name for path in runs.iterdir()) == ["run-claimed", "run-new", "run-open", "run-spared"]


def test_what_slurm_never_had_goes_when_nothing_was_written_there_for_as_long(runs: Path) -> None:
    a_run(runs, "run-refused")
    a_run(runs, "run-lost", "asked")
    a_run(runs, "run-today", touched=NEW)
    assert prune(runs, BEFORE, (), hold_ended) == ["run-lost", "run-refused"]


def test_a_run_that_is_being_submitted_stays(runs: Path) -> None:
    a_run(runs, "run-a", "asked", "job", ended=OLD)
    door = SlurmRunFolder(runs / "run-a").take_door()
    assert door is not None
    assert prune(runs, BEFORE, (), hold_ended) == []
    os.close(door)
    assert prune(runs, BEFORE, (), hold_ended) == ["run-a"]


def test_what_is_no_runs_folder_stays_and_what_was_begun_is_finished(runs: Path) -> None:
    (runs / "fence").write_text("3")
    (runs / "notes").mkdir()
    os.utime(runs / "notes", (0, 0))
    (runs / "link").symlink_to(a_run(runs.parent, "elsewhere", ended=OLD))
    (runs / f"{PRUNED_PREFIX}run-b").mkdir()
    damaged = a_run(runs, "run-c", "asked", "job", ended=OLD)
    (damaged / "0" / "end.json").write_text("{")
    assert prune(runs, BEFORE, (), hold_ended) == []
    assert sorted(path.name for path in runs.iterdir()) == ["fence", "link", "notes", "run-c"]


def test_a_folder_that_is_not_there_now_is_no_error(runs: Path) -> None:
    assert prune(runs / "away", BEFORE, (), hold_ended) == []
