"""Reading the tasks' output while it is being written.

No inotify: it misses nothing that a look at the size five times a second would not find, and it has limits a user of
a shared machine cannot raise. Nothing is held between two reads but an offset a file, so memory does not depend on
how long a line or a log is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

CHUNK_BYTES = 64 << 10
FOLLOW_S = 0.2


class TaskLog:
    """One task's log, read from its beginning.

    Args:
        path: the file; one that is missing is empty.
        prefix: put before each line; then only whole lines are given, and one longer than ``CHUNK_BYTES`` is broken.
        complete: nothing will be added to it.
    """

    def __init__(self, path: Path, prefix: bytes = b"", *, complete: bool = False) -> None:
        self.complete = complete
        self._path = path
        self._prefix = prefix
        self._offset = 0

    def size(self) -> int:
        """Bytes there are now."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def unread(self) -> bool:
        """Whether there is more than was read."""
        return self.size() > self._offset

    def read(self, until: int, *, final: bool) -> bytes:
        """The next piece, empty if there is none before the byte ``until``.

        Args:
            until: a size of the file.
            final: nothing will be added: what looks unfinished is given too.
        """
        data = self._raw(min(CHUNK_BYTES, until - self._offset))
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

    def _raw(self, length: int) -> bytes:
        if length <= 0:
            return b""
        # The job may have put a pipe or a link in its log's place: neither wait for it nor follow it.
        fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.pread(fd, length, self._offset)
        finally:
            os.close(fd)


def complete_utf8_length(data: bytes) -> int:
    """How many bytes of ``data`` there are without a UTF-8 character that is cut off at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # not a continuation: the character begins here
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) if back >= length else len(data) - back
    return len(data)


def prefix_lines(data: bytes, prefix: bytes) -> bytes:
    """``data`` with ``prefix`` before each line, the last one ended; as it is if the prefix is empty."""
    if not prefix or not data:
        return data
    lines = data.removesuffix(b"\n").split(b"\n")
    return b"".join(prefix + line + b"\n" for line in lines)


async def read_logs(
    logs: Sequence[TaskLog], *, ended: Callable[[], Awaitable[bool]] | None, pause: Callable[[float], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """What is in the logs, and with ``ended`` what is added until it says that nothing will be any more.

    Args:
        logs: of the tasks to be read.
        ended: whether the run has ended; None: read what there is.
        pause: waits so many seconds.
    """
    while True:
        final = ended is None or await ended()  # asked before the last reading, so nothing can come between
        for log in logs:
            if log.unread():
                until = log.size()  # not further in this turn: one chatty task must not silence the others
                while chunk := await asyncio.to_thread(log.read, until, final=final or log.complete):
                    yield chunk
        if final:
            return
        await pause(FOLLOW_S)
