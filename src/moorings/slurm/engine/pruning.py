"""Which runs' folders may go for their age.

A run has ended here if that stands in its folder, or if Slurm was never asked for it or never began it and nothing was
written there for as long.
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
    """Hold a run's door, so that it is not submitted; yields whether it ended before an instant.

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
    touched = newest.path if newest is not None else folder.path / "door"  # where that is not, it is no run's folder
    return touched.stat().st_mtime < before / SECOND
