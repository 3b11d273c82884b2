"""Decides which controller may start runs here: the latest leader.

The database refuses the saves of a replaced controller, but a start is not a save. A controller suspended between its
last check and the start would start a run whose partition its successor has given away (law 4). So a leader raises the
epoch in a file before any other work on runs, and a start holds a lock that keeps the epoch from being raised
meanwhile. Another query of the database before a start was refused: it only makes the gap smaller.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moorings.core.errors import MooringsError
from moorings.ports.store import Epoch

LOCK_POLL_S = 0.01
EPOCH_FILE = ".epoch"
_DIGITS_MAX = 19


class FileFence:
    """The fence around the runs in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EPOCH_FILE

    def set(self, epoch: Epoch, wait_s: float) -> None:
        """Refuse starts under an earlier epoch from now on.

        Raises:
            MooringsError: ``engine.unavailable``: a start under an earlier epoch is still in progress.
            OSError: the file cannot be written.
        """
        with self._locked(fcntl.LOCK_EX, wait_s) as file:
            if epoch > _read_epoch(file):
                os.pwrite(file, b"%019d\n" % epoch, 0)
                os.fsync(file)

    @contextmanager
    def passed(self, epoch: Epoch, wait_s: float) -> Iterator[None]:
        """Keep other controllers from becoming leader until the end of the block.

        Raises:
            MooringsError: ``engine.unavailable``: another controller leads already.
            OSError: the file cannot be read.
        """
        with self._locked(fcntl.LOCK_SH, wait_s) as file:
            newest = _read_epoch(file)
            if epoch < newest:
                raise MooringsError(
                    "engine.unavailable",
                    f"another controller leads by now (epoch {newest}, this one's is {epoch})",
                    retryable=True,
                )
            yield

    @contextmanager
    def _locked(self, mode: int, wait_s: float) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up = time.monotonic() + wait_s
        try:
            while True:
                try:
                    fcntl.flock(file, mode | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= give_up:
                        raise _fence_busy_error() from None
                time.sleep(LOCK_POLL_S)
            yield file
        finally:
            os.close(file)


def read_epoch(folder: Path) -> Epoch:
    """Return the epoch of the last leader that fenced the runs in ``folder``; 0: there was none.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        text = (folder / EPOCH_FILE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return Epoch(0)
    return Epoch(int(text) if text.isdigit() else 0)


def _read_epoch(file: int) -> int:
    text = os.pread(file, _DIGITS_MAX, 0)
    return int(text) if text.isdigit() else 0  # an empty file: no leader yet


def _fence_busy_error() -> MooringsError:
    return MooringsError(
        "engine.unavailable",
        "another controller is in the middle of starting a run, or was stopped there",
        hint="end that process: until then no run is started or looked after here",
        retryable=True,
    )
