"""When a job last saved something, from what lies in its checkpoint folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
from threading import Thread
from typing import Final

from moorings.core.instants import SECOND, Timestamp

ENTRIES_MAX: Final = 10_000  # of a folder; beyond, the newest may be overlooked
AHEAD_S_MAX: Final = 60  # so far another machine's clock may be ahead of ours
SCANS_MAX: Final = 256  # under way at once, most of them at disks that do not answer
NANOSECONDS: Final = 1_000_000_000 // SECOND  # of one unit of an instant


class CheckpointScans:
    """Looks into checkpoint folders.

    A folder is where its user says: on a server that is down, or on a disk that the user's own program makes up. A look
    there may never return, so each has a thread of its own, which nobody waits for, also not when the process ends.
    """

    def __init__(self) -> None:
        self._under_way = 0

    async def saved_at(self, folder: str, now: Timestamp) -> Timestamp | None:
        """As the function; also None while too many looks have not returned.

        The thread of a look that is cancelled counts until it returns.
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
            except Exception as error:  # told where it is waited for
                fault = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(returned, at, fault)

        Thread(target=look, name="checkpoints", daemon=True).start()
        self._under_way += 1
        return await told


def last_checkpoint_at(folder: str, now: Timestamp) -> Timestamp | None:
    """When something was last put into a folder; None: nothing is in it, or it cannot be read.

    Only its own entries are looked at: a checkpoint is a file, or a folder that is written and then renamed. The folder
    belongs to the job's user, so nothing in it is opened or followed, and what is said to be of the future does not
    count: it would be new at every look.
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
