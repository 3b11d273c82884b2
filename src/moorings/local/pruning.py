"""Ended runs' folders, with their output, removed when they are old: disks fill up otherwise.

Only a run whose end is recorded, whose locks are free and that the caller does not spare is touched; a doubtful folder
stays. It is renamed first, so that a crash half way leaves something that is plainly no run's and is removed next time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from moorings.core.instants import Instant
from moorings.local.records import UnreadableError
from moorings.local.rundir import RunFolder
from moorings.workloads.runs import RunId

DOOMED = ".pruned-"


def prune(runs: Path, before: Instant, spared: Collection[str]) -> list[RunId]:
    """Remove the folders of runs that ended before an instant; which they were.

    Args:
        runs: the folder of all runs.
        before: those that ended later stay.
        spared: ids of runs that stay in any case: they have not ended as far as the records know.
    """
    removed: list[RunId] = []
    with contextlib.suppress(FileNotFoundError):
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
        with folder.at_door(wait_s=0) as ours:
            life = folder.take_life() if ours else None
            if life is None:
                return False
            try:
                if not _ended_before(folder, before):
                    return False
                doomed = runs / f"{DOOMED}{name}"
                folder.path.rename(doomed)
            finally:
                os.close(life)
        shutil.rmtree(doomed, ignore_errors=True)
    except (OSError, UnreadableError):
        return False  # it is tried again the next time
    return True


def _ended_before(folder: RunFolder, before: Instant) -> bool:
    found = folder.survey()
    if found is None or found.end is None or found.damage:
        return False
    ended = found.end.record.ended_at
    return ended is not None and ended < before
