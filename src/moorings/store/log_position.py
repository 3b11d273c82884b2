"""The high-water mark: how far an installation's database is known to have come, on disk beside the hardware orders.

A database can go back silently: a lagging standby is promoted, or a disk's snapshot is restored. Its records then know
nothing of the partitions created since, and a controller that trusted them would remove those under live jobs (laws 2,
3). So, before hardware is ordered to create or reset a partition, the number of the last event and the leader's epoch
are written here, out of reach of database tools; ``controller.rewind_recovery`` compares.

A file for each pool's driver was refused: the folders of all drivers lie beside this file, and are restored with it or
not at all.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.ports.store import Epoch, LogPosition, Seq

LOG_POSITION_FILE = "high-water"
_BYTES = 256  # within one sector: written whole or not at all


class LogPositionFile:
    """The highest known position of an installation's database.

    It only rises, even if two controllers of one folder write.

    Args:
        folder: the installation's, beside the drivers' own.
        installation: of the database.
    """

    def __init__(self, folder: Path, installation: str) -> None:
        self._path = folder / LOG_POSITION_FILE
        self._installation = installation
        self._seen: LogPosition | None = None
        self._kept: LogPosition | None = None
        self._writing = threading.Lock()
        self._noting = asyncio.Lock()  # fair: first come, first served

    def read(self) -> LogPosition | None:
        """The higher of what this process has seen and what the file says; None: the file says nothing.

        A position that was only seen proves nothing: a controller that is new to the database may have seen it
        continue after it was turned back.

        Raises:
            MooringsError: ``store.unavailable``: the file cannot be read.
        """
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            text = ""
        except OSError as error:
            raise self._unusable("read", error) from error
        on_disk = self._parse(text)
        return None if on_disk is None else _higher(self._seen, on_disk)

    def remember(self, at: LogPosition) -> None:
        """Remember this position while this process lives."""
        self._seen = _higher(self._seen, at)

    async def record(self, at: LogPosition) -> None:
        """Return once the position is durable; callers waiting for one write share it, and continue in their order.

        The order matters: a vendor's controller that chooses the devices itself handles orders as they come.

        Raises:
            MooringsError: ``store.unavailable``: it cannot be written.
        """
        self.remember(at)
        async with self._noting:
            if self._kept is None or not at.is_covered_by(self._kept):
                await asyncio.to_thread(self.record_blocking, at)

    def record_blocking(self, at: LogPosition) -> None:
        """As ``note``, for callers that may block.

        Raises:
            MooringsError: ``store.unavailable``.
        """
        self.remember(at)
        with self._writing:
            if self._kept is not None and at.is_covered_by(self._kept):
                return
            try:
                self._kept = self._write(_higher(self._seen, at) or at)
            except OSError as error:
                raise self._unusable("written", error) from error

    def _write(self, at: LogPosition) -> LogPosition:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = self._parse(os.pread(file, _BYTES, 0).decode("ascii", "replace"))
            highest = _higher(before, at) or at
            if highest != before:
                text = f"{self._installation} {highest.seq} {highest.epoch}"
                os.pwrite(file, f"{text:<{_BYTES - 1}}\n".encode("ascii"), 0)
                os.fdatasync(file)
        finally:
            os.close(file)
        return highest

    def _parse(self, text: str) -> LogPosition | None:
        """The position in a file of this installation; None: the file has none that can be read."""
        words = text.split()
        if len(words) != 3 or words[0] != self._installation or not (words[1] + words[2]).isdecimal():
            return None
        return LogPosition(Seq(int(words[1])), Epoch(int(words[2])))

    def _unusable(self, how: str, error: OSError) -> MooringsError:
        return MooringsError(
            "store.unavailable",
            f"{self._path} cannot be {how}: {error.strerror}",
            hint="no partition is made before it is written: see the disk, and whose the file is",
            retryable=True,
        )


def _higher(one: LogPosition | None, other: LogPosition | None) -> LogPosition | None:
    if one is None or other is None:
        return one or other
    return one.max_with(other)
