"""When output was written: a file beside each log, with the log's size at points of time.

Lines have no times, because tasks write to their files directly; a pipe that adds them was refused as the one that
limits them was (``local/output_limit.py``). So the supervisor looks at the sizes, and notes each that has changed:
about once a second, and in a long run less and less often, so that the notes of a year are some megabytes.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

from moorings.core.model.timestamps import Timestamp, seconds_between

NOTE_PAUSE_S = 1.0
NOTES_OF_TASKS, LEAST_NOTES_OF_TASK = 10_000, 100  # of all, and of one: their pauses are that part of the run's age

_NOTE = struct.Struct("<QQ")  # microseconds since 1970, bytes


def times_path(log: Path) -> Path:
    """The file with the times of a log: an entry of the same folder, so that no link leads a reader elsewhere."""
    return log.with_suffix(".times")


class OutputTimes:
    """Notes the sizes of the logs of one attempt's tasks.

    Args:
        logs: the file of each task.
        open_times: opens the file for a task's notes, to append.
        now: the time at which the tasks are about to start.
    """

    def __init__(self, logs: list[Path], open_times: Callable[[int], int], now: Timestamp) -> None:
        self._logs = logs
        self._open = open_times
        self._began = self._noted_at = now
        self._sizes: list[int | None] = [None] * len(logs)
        self._per_task = max(LEAST_NOTES_OF_TASK, NOTES_OF_TASKS // max(len(logs), 1))

    def note(self, now: Timestamp) -> None:
        """Note the sizes that have changed, unless the last look was a moment ago; errors are tried again then."""
        age_s = seconds_between(self._began, now)
        is_first = None in self._sizes
        if not is_first and seconds_between(self._noted_at, now) < max(NOTE_PAUSE_S, age_s / self._per_task):
            return
        self._noted_at = max(self._noted_at, now)  # a clock that is set back does not break their order
        for rank, log in enumerate(self._logs):
            size = 0 if self._sizes[rank] is None else _size(log)
            if size != self._sizes[rank]:
                with contextlib.suppress(OSError):
                    self._append(rank, size)

    def _append(self, rank: int, size: int) -> None:
        descriptor = self._open(rank)
        try:
            os.write(descriptor, _NOTE.pack(self._noted_at, size))
        finally:
            os.close(descriptor)
        self._sizes[rank] = size


def size_at(descriptor: int, at: Timestamp) -> int | None:
    """The size of a log at a time, as noted last before it; None: there is no note at all.

    Args:
        descriptor: of the file with its times.
        at: the time.
    """
    first, behind = 0, os.fstat(descriptor).st_size // _NOTE.size
    if not behind:
        return None
    while first < behind:  # the first note later than that
        middle = (first + behind) // 2
        if _read(descriptor, middle)[0] <= at:
            first = middle + 1
        else:
            behind = middle
    return _read(descriptor, first - 1)[1] if first else 0


def _read(descriptor: int, number: int) -> tuple[int, int]:
    noted, size = _NOTE.unpack(os.pread(descriptor, _NOTE.size, number * _NOTE.size).ljust(_NOTE.size, b"\0"))
    return noted, size  # a job that cuts the file meanwhile gets zeros


def _size(log: Path) -> int:
    with contextlib.suppress(OSError):
        return log.lstat().st_size
    return 0
