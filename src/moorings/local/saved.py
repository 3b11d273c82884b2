"""When a job last saved something, from what lies in its checkpoint folder."""

from __future__ import annotations

import os
from typing import Final

from moorings.core.instants import SECOND, Instant

ENTRIES_MAX: Final = 10_000  # of a folder; beyond, the newest may be overlooked
NANOSECONDS: Final = 1_000_000_000 // SECOND  # of one unit of an instant


def saved_at(folder: str) -> Instant | None:
    """When something was last put into a folder; None: nothing is in it, or it cannot be read.

    Only its own entries are looked at: a checkpoint is a file, or a folder that is written and then renamed. The folder
    belongs to the job's user, so nothing in it is opened or followed.
    """
    newest: int | None = None
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(ENTRIES_MAX), entries, strict=False):
                try:
                    at = entry.stat(follow_symlinks=False).st_mtime_ns
                except FileNotFoundError:  # replaced or removed meanwhile
                    continue
                newest = at if newest is None else max(newest, at)
    except OSError:
        return None
    return Instant(newest // NANOSECONDS) if newest is not None else None
