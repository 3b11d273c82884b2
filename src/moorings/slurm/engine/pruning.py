"""Which runs' folders are old enough to delete.

A run has ended if its folder says so, or if no job of it is known and its folder has not changed for as long.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from moorings.core.instants import SECOND, Timestamp
from moorings.slurm.engine.rundir import SlurmRunFolder
from moorings.workloads.runs import RunId


@contextlib.contextmanager
def hold_ended(runs: Path, run: RunId, before: Timestamp) -> Iterator[bool]:
    """Lock a run's door against submission; yield whether the run ended before a time.

    Raises:
        OSError: its folder cannot be read or written.
    """
    folder = SlurmRunFolder.of(runs, run)
    if folder is None or not _ended_before(folder, before):
        yield False
        return
    door = folder.take_door()
    try:
        yield door is not None and _ended_before(folder, before)
    finally:
        if door is not None:
            os.close(door)


def _ended_before(folder: SlurmRunFolder, before: Timestamp) -> bool:
    try:
        newest = folder.newest()
        facts = newest.facts() if newest is not None else None
    except ValueError:  # damaged
        return False
    if facts is not None and facts.end is not None:
        return facts.end.ended_at is not None and facts.end.ended_at < before
    if facts is not None and facts.job is not None:
        return False
    touched = newest.path if newest is not None else folder.path / "door"  # without that file it is not a run's folder
    return touched.stat().st_mtime < before / SECOND
