"""Decides which controller may start runs here: the latest leader.

The database refuses the saves of a replaced controller, but a start is not a save. A controller suspended between its
last check and the start would start a run whose partition its successor has given away (law 4). So a leader raises the
epoch in a file before any other work on runs, and a start holds a lock that keeps the epoch from being raised
meanwhile. Another query of the database before a start was refused: it only makes the gap smaller.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moorings.engines.launch import unavailable_error
from moorings.files import lock_file
from moorings.ports.store import Epoch

EPOCH_FILE = ".epoch"
_DIGITS_MAX = 19


class FileFence:
    """The fence around the runs in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EPOCH_FILE

    def raise_epoch(self, epoch: Epoch, wait_s: float) -> None:
        """Refuse starts under an earlier epoch from now on.

        Raises:
            MooringsError: ``engine.unavailable``: a start under an earlier epoch is still in progress.
            OSError: the file cannot be written.
        """
        with self._locked(wait_s, shared=False) as file:
            if epoch > _read_epoch(file):
                os.pwrite(file, b"%019d\n" % epoch, 0)
                os.fsync(file)

    @contextmanager
    def hold_epoch(self, epoch: Epoch, wait_s: float) -> Iterator[None]:
        """Keep other controllers from becoming leader until the end of the block.

        Raises:
            MooringsError: ``engine.unavailable``: another controller leads already.
            OSError: the file cannot be read.
        """
        with self._locked(wait_s, shared=True) as file:
            require_latest(epoch, _read_epoch(file))
            yield

    @contextmanager
    def _locked(self, wait_s: float, *, shared: bool) -> Iterator[int]:
        file = lock_file(self._path, wait_s, shared=shared)
        if file is None:
            raise unavailable_error(
                "another controller is in the middle of starting a run, or was stopped there",
                "end that process: until then no run is started or looked after here",
            )
        try:
            yield file
        finally:
            os.close(file)


def require_latest(epoch: Epoch, newest: int) -> None:
    """Raise if a controller with a later epoch has become leader.

    Raises:
        MooringsError: ``engine.unavailable``.
    """
    if epoch < newest:
        raise unavailable_error(f"another controller leads by now (epoch {newest}, this one's is {epoch})")


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
