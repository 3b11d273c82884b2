"""Which runs' folders are old enough to delete: those with a recorded end and free locks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from moorings.core.instants import Timestamp
from moorings.local.records import RecordUnreadableError
from moorings.local.rundir import LocalRunFolder
from moorings.workloads.runs import RunId


@contextlib.contextmanager
def hold_ended(runs: Path, run: RunId, before: Timestamp) -> Iterator[bool]:
    """Lock a run's door and life, so that no process of it starts; yield whether it ended before a time.

    Raises:
        OSError: its folder cannot be read, or its locks cannot be taken.
    """
    folder = LocalRunFolder.of(runs, run)
    if folder is None or not _ended_before(folder, before):
        yield False
        return
    with folder.at_door(wait_s=0) as ours:
        life = folder.take_life() if ours else None
        try:
            yield life is not None and _ended_before(folder, before)
        finally:
            if life is not None:
                os.close(life)


def _ended_before(folder: LocalRunFolder, before: Timestamp) -> bool:
    try:
        found = folder.survey()
    except RecordUnreadableError:
        return False
    if found is None or found.end is None or found.damage:
        return False
    ended = found.end.record.ended_at
    return ended is not None and ended < before
