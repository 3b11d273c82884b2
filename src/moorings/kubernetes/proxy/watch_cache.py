"""The watch of partitions: an ordered log of changes, from which each watcher reads after its own version.

Versions are ``<boot>-<number>``: numbers of another process mean nothing here, and a client with one must list again.
There is no queue for each watcher: it remembers its own position.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy_api.shapes import ChangeBody, parse_version
from moorings.wire.codec import encode

CHANGES_MAX = 20_000
BYTES_MAX = 64 << 20
EVENTS_A_READ = 500


class WatchCache:
    """The last changes of one process.

    Args:
        boot: distinguishes this process from others.
    """

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._number = 0
        self._events: deque[bytes] = deque()  # the last of them has the journal's number
        self._bytes = 0
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def version(self) -> str:
        """The version of the last change."""
        return f"{self._boot}-{self._number}"

    @property
    def next_version(self) -> str:
        """The version of the next change."""
        return f"{self._boot}-{self._number + 1}"

    @property
    def number(self) -> int:
        """Number of changes so far."""
        return self._number

    def add(self, change: ChangeBody) -> None:
        """Append a change, and wake all watchers."""
        self._number += 1
        data = json.dumps(encode(change), separators=(",", ":"), ensure_ascii=False)
        event = f"id: {self.version}\nevent: partition\ndata: {data}\n\n".encode()
        self._events.append(event)
        self._bytes += len(event)
        while len(self._events) > CHANGES_MAX or self._bytes > BYTES_MAX:
            self._bytes -= len(self._events.popleft())
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def number_of(self, version: str) -> int:
        """The number of a version.

        Raises:
            MooringsError: ``watch.expired``: it is not of this process, or too old.
        """
        boot, number = parse_version(version)
        if boot != self._boot:
            number = -1
        if not self._number - len(self._events) <= number <= self._number:
            raise MooringsError("watch.expired", f"nothing is known of version {version[:60]!r}", hint="list anew")
        return number

    def changes_after(self, number: int) -> list[bytes]:
        """The changes after a number, as server-sent events; at most ``EVENTS_A_READ`` of them.

        Raises:
            MooringsError: ``watch.expired``: some of them are gone.
        """
        first = self._number - len(self._events)
        if number < first:
            raise MooringsError("watch.expired", "the watch fell too far behind", hint="list anew")
        begin, count = number - first, self._number - number
        return [self._events[begin + index] for index in range(min(count, EVENTS_A_READ))]

    async def wait_for_change(self, number: int, wait_s: float) -> None:
        """Return once there are more changes than that, or after ``wait_s``."""
        if self._number > number:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(wait_s):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)
