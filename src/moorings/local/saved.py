"""The time of a job's last checkpoint, from the entries of its checkpoint folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
from threading import Thread
from typing import Final

from moorings.core.instants import SECOND, Timestamp

ENTRIES_MAX: Final = 10_000  # of a folder; with more entries the newest may be missed
AHEAD_S_MAX: Final = 60  # how far another machine's clock may be ahead of ours
SCANS_MAX: Final = 256  # at once; most of them wait for disks that do not answer
NANOSECONDS: Final = 1_000_000_000 // SECOND  # in one unit of a timestamp


class CheckpointScans:
    """Scans checkpoint folders.

    The user chooses the folder: it may be on a server that is down, or on a disk that the user's own program provides.
    A scan may never return, so each has a thread of its own; nothing waits for that thread, not even the process's end.
    """

    def __init__(self) -> None:
        self._under_way = 0

    async def saved_at(self, folder: str, now: Timestamp) -> Timestamp | None:
        """Like ``last_checkpoint_at``; also None while too many scans have not returned.

        The thread of a cancelled scan counts until it returns.
        """
        if self._under_way >= SCANS_MAX:
            return None
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Timestamp | None] = loop.create_future()

        def returned(at: Timestamp | None, fault: Exception | None) -> None:
            self._under_way -= 1
            if told.done():
                return
            if fault is not None:
                told.set_exception(fault)
            else:
                told.set_result(at)

        def look() -> None:
            at, fault = None, None
            try:
                at = last_checkpoint_at(folder, now)
            except Exception as error:  # raised in the waiting caller
                fault = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(returned, at, fault)

        Thread(target=look, name="checkpoints", daemon=True).start()
        self._under_way += 1
        return await told


def last_checkpoint_at(folder: str, now: Timestamp) -> Timestamp | None:
    """Return when a folder last got a new entry; None: it is empty, or cannot be read.

    Only its own entries count: a checkpoint is a file, or a folder that is written and then renamed. The folder belongs
    to the job's user, so no entry is opened or followed. Times in the future do not count: such an entry would be new
    at every scan.
    """
    newest: int | None = None
    latest = (now + AHEAD_S_MAX * SECOND) * NANOSECONDS
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(ENTRIES_MAX), entries, strict=False):
                try:
                    at = entry.stat(follow_symlinks=False).st_mtime_ns
                except FileNotFoundError:  # replaced or removed meanwhile
                    continue
                if at <= latest and (newest is None or at > newest):
                    newest = at
    except OSError:
        return None
    return Timestamp(newest // NANOSECONDS) if newest is not None else None
