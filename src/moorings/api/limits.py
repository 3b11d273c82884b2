"""How much one controller takes on for its clients, and who sits on the seats that are few.

Everything a client can make us hold (bytes, time, connections, open watches) has a number here. Rate limits were
refused: a client that asks too often is slowed by its own round trips, and the database is protected by group commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from moorings.core.errors import MooringsError

BODY_BYTES_MAX = 1 << 20
WAIT_S_MAX = 600.0


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """What the API holds for its clients at most.

    Attributes:
        body_bytes_max: largest body; a job with a full environment has a third of it.
        drained_bytes_max: how much of a body that is too large is read away, so that its sender sees the answer.
        body_timeout_s: how long a body may take to arrive.
        head_bytes_max: largest request line and headers together.
        head_timeout_s: how long they may take to arrive.
        pipelined_max: requests that one connection may send ahead of their answers.
        requests_max: requests of known callers from their head to the end of their answer, streams aside;
            ``requests_per_key_max`` of them for one access key, so that nobody's slow bodies keep the others out.
        working_per_key_max: requests of one access key that are worked on at the same time; its others wait for that.
        opens_max: answers under way that need no access key, health checks aside; ``opens_per_address_max`` of them
            for one address.
        bodies_bytes_max: bytes of bodies that are kept until they are read; ``bodies_bytes_per_key_max`` of them for
            one access key.
        connections_max: open connections; ``connections_per_address_max`` of them from one address (a machine, or
            an IPv6 /64). Far fewer than there are requests, so that no single address shuts the others out. One more
            takes the place of that which has asked for nothing for longest, so that nobody shuts out his machine.
        connections_reserved: the last of them are for addresses that have hardly any, so that a health check gets in.
        unread_s: how long a client that reads nothing of what was sent to it keeps its connection.
        keep_alive_s: how long an idle connection is kept.
        waits_max: answers that are held until something happens; ``waits_per_key_max`` of them for one access key.
        watches_max: open event streams; ``watches_per_key_max`` of them for one access key.
        follows_max: open streams of a running job's output; ``follows_per_key_max`` of them for one access key.
        heartbeat_s: an event stream that has nothing to say sends a comment this often, so that proxies keep it.
        shutdown_s: how long answers in progress may take once the controller stops.
    """

    body_bytes_max: int = BODY_BYTES_MAX
    drained_bytes_max: int = 8 * BODY_BYTES_MAX
    body_timeout_s: float = 30.0
    head_bytes_max: int = 32 * 1024
    head_timeout_s: float = 10.0
    pipelined_max: int = 64
    requests_max: int = 4096
    requests_per_key_max: int = 1024
    working_per_key_max: int = 8
    opens_max: int = 256
    opens_per_address_max: int = 16
    bodies_bytes_max: int = 256 * BODY_BYTES_MAX
    bodies_bytes_per_key_max: int = 32 * BODY_BYTES_MAX
    connections_max: int = 8192
    connections_per_address_max: int = 2048
    connections_reserved: int = 256
    unread_s: float = 60.0
    keep_alive_s: int = 75
    waits_max: int = 3072
    waits_per_key_max: int = 512
    watches_max: int = 1024
    watches_per_key_max: int = 64
    follows_max: int = 1024
    follows_per_key_max: int = 64
    heartbeat_s: float = 15.0
    shutdown_s: int = 4


DEFAULT_LIMITS = ApiLimits()


class Slots:
    """Who holds a limited number of something, in all and for each key.

    Args:
        what: what is held, for the refusal.
        total: how many there are.
        per_key: how many of them one key may hold.
    """

    def __init__(self, what: str, total: int, per_key: int) -> None:
        self.total = total
        self._what = what
        self._per_key = per_key
        self._held: Counter[str] = Counter()
        self._taken = 0

    def take(self, key: str, count: int = 1) -> None:
        """Take one for ``key``, or ``count`` at once.

        Raises:
            MooringsError: ``controller.busy``.
        """
        if self._held.get(key, 0) + count > self._per_key or self._taken + count > self.total:
            raise MooringsError(
                "controller.busy",
                f"there are too many {self._what}: at most {self.total}, and {self._per_key} for one access key",
                hint="close one, or try again later",
                retryable=True,
            )
        self._held[key] += count
        self._taken += count

    @contextlib.contextmanager
    def held(self, key: str) -> Iterator[None]:
        """One for ``key`` for as long as the block takes.

        Raises:
            MooringsError: ``controller.busy``.
        """
        self.take(key)
        try:
            yield
        finally:
            self.leave(key)

    @property
    def taken(self) -> int:
        """How many are held."""
        return self._taken

    def leave(self, key: str, count: int = 1) -> None:
        """Give back what ``take`` gave."""
        assert self._held[key] >= count, f"{key} holds fewer of the {self._what}"
        self._held[key] -= count
        self._taken -= count
        if not self._held[key]:
            del self._held[key]


class BufferedBody:
    """The bytes of one body that are kept.

    Args:
        seats: what all bodies share.
        key: whose share it counts against.
    """

    def __init__(self, seats: Slots, key: str) -> None:
        self._seats = seats
        self._key = key
        self._bytes = 0

    def add(self, count: int) -> None:
        """Keep so many more.

        Raises:
            MooringsError: ``controller.busy``.
        """
        self._seats.take(self._key, count)
        self._bytes += count

    def leave(self) -> None:
        """Keep none of it any more."""
        if self._bytes:
            self._seats.leave(self._key, self._bytes)
            self._bytes = 0


class WorkSlots:
    """Where requests are worked on: each key has a few desks, and its further requests queue for them.

    One thread works for everybody, so without this whoever asks 250 times at once takes 250 parts of its time, and the
    others one. Refusing what is beyond was not chosen: a burst of one key (a job array that ends) is no mistake of its
    sender. A number for all keys together was not chosen either: requests that hang would fill it.

    Args:
        per_key: desks of one key.
    """

    def __init__(self, per_key: int) -> None:
        self._per_key = per_key
        self._taken: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def queued(self) -> int:
        """How many wait for a desk."""
        return sum(map(len, self._queues.values()))

    async def take(self, key: str) -> None:
        """Returns when ``key`` has a desk: first come, first served."""
        if self._taken.get(key, 0) < self._per_key:
            self._taken[key] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(key)  # it was given one as it gave up
            raise

    def leave(self, key: str) -> None:
        """Give a desk back; it goes to the next of the key's queue."""
        assert self._taken[key] > 0, f"{key} has no desk"
        self._taken[key] -= 1
        queue = self._queues.get(key, deque())
        while queue and self._taken[key] < self._per_key:
            turn = queue.popleft()
            if not turn.done():
                self._taken[key] += 1
                turn.set_result(None)
        if not queue:
            self._queues.pop(key, None)
        if not self._taken[key]:
            del self._taken[key]

    @contextlib.asynccontextmanager
    async def left(self, key: str) -> AsyncIterator[None]:
        """Away from the desk for as long as the block takes: it waits for something, and others may work."""
        self.leave(key)
        try:
            yield
        finally:
            # Not queued for: whoever waited long has a few lines left to write, and may be on its way out.
            self._taken[key] += 1
