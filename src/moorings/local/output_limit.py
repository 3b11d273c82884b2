"""Limits a run's output: its tasks' logs are cut at a maximum size, so that no job fills the disk for all others.

Tasks write directly to their files. So output beyond the limit is removed while the job runs on, and a line in the file
says so. A pipe through the supervisor was refused: the job would break when the supervisor does. So was a kernel limit
on files (``RLIMIT_FSIZE``): it would cut checkpoints, too.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moorings.core.model.quantities import amount_text

CHECK_S, CHECK_NEAR_LIMIT_S = 1.0, 0.1  # seconds between two checks; near the limit, or beyond it
TASK_BYTES_MIN = 4096


@dataclass(slots=True)
class _LimitedFile:
    path: Path
    size: int = 0
    cut: bool = False


class OutputLimiter:
    """The output of one attempt's tasks.

    Args:
        logs: the file of each task.
        bytes_max: of all together, in equal parts. 0: no limit.
    """

    def __init__(self, logs: Sequence[Path], bytes_max: int) -> None:
        self._logs = [_LimitedFile(path) for path in logs]
        self._bytes_max_per_task = max(bytes_max // max(len(logs), 1), TASK_BYTES_MIN) if bytes_max else 0
        self._looked_s = time.monotonic()

    def enforce(self) -> float:
        """Cut logs that are too long; return seconds until the next check."""
        if not self._bytes_max_per_task:
            return CHECK_S
        now_s = time.monotonic()
        passed_s, self._looked_s = max(now_s - self._looked_s, CHECK_NEAR_LIMIT_S), now_s
        near = False
        for log in self._logs:
            before = log.size
            with contextlib.suppress(OSError):  # it does not exist yet, or the job has replaced it
                self._truncate_if_over(log)
            ahead = (log.size - before) / passed_s * 2 * CHECK_S
            near = near or log.size + ahead > self._bytes_max_per_task
        return CHECK_NEAR_LIMIT_S if near else CHECK_S

    def _truncate_if_over(self, log: _LimitedFile) -> None:
        file = os.open(log.path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                return
            log.size = found.st_size
            note = self._truncation_note()
            if found.st_size <= (self._bytes_max_per_task + len(note) if log.cut else self._bytes_max_per_task):
                return
            os.pwrite(file, note, self._bytes_max_per_task)
            os.ftruncate(file, self._bytes_max_per_task + len(note))
            log.cut = True
        finally:
            os.close(file)

    def _truncation_note(self) -> bytes:
        limit = amount_text(self._bytes_max_per_task)
        return f"\n[moorings: the output is cut here, at {limit}; the job runs on]\n".encode()
