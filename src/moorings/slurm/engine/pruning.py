"""Ended runs' folders, with their output, removed when they are old, as the local engine's are.

A run has ended here if that stands in its folder, or if Slurm was never asked for it or never began it and nothing was
written there for as long. A doubtful folder stays. It is renamed first, so that a crash half way leaves something that
is plainly no run's and is removed next time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from moorings.core.instants import SECOND, Instant
from moorings.slurm.engine.rundir import RunFolder
from moorings.workloads.runs import RunId

DOOMED = ".pruned-"  # no run's id begins so


def prune(runs: Path, before: Instant, spared: Collection[str]) -> list[RunId]:
    """Remove the folders of runs that ended before an instant; which they were.

    Args:
        runs: the folder of all runs.
        before: those that ended later stay.
        spared: ids of runs that stay in any case: they have not ended as far as the records know.
    """
    removed: list[RunId] = []
    with contextlib.suppress(OSError):  # it is not there now
        for entry in sorted(os.scandir(runs), key=lambda entry: entry.name):
            if entry.name.startswith(DOOMED):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif (
                entry.is_dir(follow_symlinks=False)
                and entry.name not in spared
                and _prune_one(runs, entry.name, before)
            ):
                removed.append(RunId(entry.name))
    return removed


def _prune_one(runs: Path, name: str, before: Instant) -> bool:
    folder = RunFolder.of(runs, RunId(name))
    try:
        if folder is None or not _ended_before(folder, before):
            return False
        door = folder.take_door()
        if door is None:
            return False
        try:
            if not _ended_before(folder, before):
                return False
            doomed = runs / f"{DOOMED}{name}"
            folder.path.rename(doomed)
        finally:
            os.close(door)
        shutil.rmtree(doomed, ignore_errors=True)
    except (OSError, ValueError):
        return False  # it is tried again the next time
    return True


def _ended_before(folder: RunFolder, before: Instant) -> bool:
    newest = folder.newest()
    facts = newest.facts() if newest is not None else None
    if facts is not None and facts.end is not None:
        return facts.end.ended_at is not None and facts.end.ended_at < before
    if facts is not None and facts.job is not None:
        return False
    touched = newest.path if newest is not None else folder.path / "door"  # where that is not, it is no run's folder
    return touched.stat().st_mtime < before / SECOND
