"""Reads the tasks' output while it is being written.

No inotify: it finds nothing that a check of the size five times a second misses, and its limits cannot be raised by a
user of a shared machine. Between two reads only an offset a file is kept, so memory does not depend on the length of a
line or a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from moorings.core.model.timestamps import Timestamp
from moorings.engines.launch import rejected_error
from moorings.engines.output_times import size_at, times_path

CHUNK_BYTES = 64 << 10
FOLLOW_S = 0.2


class TaskLog:
    """One task's log, read from its beginning.

    Args:
        path: the file; one that is missing is empty.
        prefix: for each line; then only whole lines are returned, and a line longer than ``CHUNK_BYTES`` is broken.
        complete: the file no longer grows.
    """

    def __init__(self, path: Path, prefix: bytes = b"", *, complete: bool = False) -> None:
        self.complete = complete
        self._path = path
        self._prefix = prefix
        self._offset = 0

    def size(self) -> int:
        """Return the current size in bytes."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def skip_until(self, since: Timestamp) -> None:
        """Begin with what was written since a time: at the line of the first byte that had not been seen then.

        Raises:
            MooringsError: ``engine.rejected``: no times were noted of this output.
            OSError: a file cannot be read.
        """
        found, written_us = None, 0
        with contextlib.suppress(FileNotFoundError), self._opened(self._path) as log:
            written_us = os.fstat(log).st_mtime_ns // 1000
        with contextlib.suppress(FileNotFoundError), self._opened(times_path(self._path)) as times:
            noted = size_at(times, since)
            found = min(noted, self.size()) if noted is not None else None  # a job can write what it likes there
        if written_us < since:  # also of an attempt that ended before its last size was noted
            self._offset = self.size()
            return
        if found is None and self.size():
            hint = "without --since it is shown from its beginning; --tail shows the last lines"
            raise rejected_error(f"when the output in {self._path.name} was written is not known", hint)
        self._offset = max(0, (found or 0) - CHUNK_BYTES)
        before = self._read_raw((found or 0) - self._offset)
        self._offset = self._offset + before.rfind(b"\n") + 1 if b"\n" in before or not self._offset else found or 0

    def has_unread(self) -> bool:
        """Whether the file has more than was read."""
        return self.size() > self._offset

    def read(self, until: int, *, final: bool) -> bytes:
        """Return the next piece; empty if there is none before the byte ``until``.

        Args:
            until: a size of the file.
            final: the file no longer grows: return an incomplete end, too.
        """
        data = self._read_raw(min(CHUNK_BYTES, until - self._offset))
        full = len(data) == CHUNK_BYTES
        lines = data.rfind(b"\n") + 1
        if self._prefix and not lines and not full and not final:
            return b""
        at_end = final and self._offset + len(data) >= until
        taken = len(data) if at_end and not full else lines or complete_utf8_length(data)
        if not taken and (final or full):
            taken = len(data)
        self._offset += taken
        return prefix_lines(data[:taken], self._prefix)

    def _read_raw(self, length: int) -> bytes:
        if length <= 0:
            return b""
        with self._opened(self._path) as descriptor:
            return os.pread(descriptor, length, self._offset)

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[int]:
        # The job may have replaced its log by a pipe or a link: do not wait for one or follow one.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def complete_utf8_length(data: bytes) -> int:
    """Return the length of ``data`` in bytes without a cut UTF-8 character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # not a continuation byte: the character begins here
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) if back >= length else len(data) - back
    return len(data)


def prefix_lines(data: bytes, prefix: bytes) -> bytes:
    """Return ``data`` with ``prefix`` before each line, and a final line end; unchanged with an empty prefix."""
    if not prefix or not data:
        return data
    lines = data.removesuffix(b"\n").split(b"\n")
    return b"".join(prefix + line + b"\n" for line in lines)


async def skip_until(logs: Sequence[TaskLog], since: Timestamp | None) -> None:
    """Let logs begin with what was written since a time; None: with all.

    Raises:
        as ``TaskLog.skip_until``.
    """
    if since is not None:
        for log in logs:
            await asyncio.to_thread(log.skip_until, since)


async def read_logs(
    logs: Sequence[TaskLog], *, ended: Callable[[], Awaitable[bool]] | None, pause: Callable[[float], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """Yield the content of the logs, and with ``ended`` also later output until the run has ended.

    Args:
        logs: the tasks' logs.
        ended: whether the run has ended; None: read the current content only.
        pause: waits so many seconds.
    """
    while True:
        final = ended is None or await ended()  # checked before the last read, so no output can be missed
        for log in logs:
            if log.has_unread():
                until = log.size()  # only up to here in this turn: a verbose task must not delay the others
                while chunk := await asyncio.to_thread(log.read, until, final=final or log.complete):
                    yield chunk
        if final:
            return
        await pause(FOLLOW_S)
