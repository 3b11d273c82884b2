"""The bounds on what one controller holds for its clients, and the slots that share it out.

Everything that a client can make us hold (bytes, time, connections, open watches) has a limit here. Rate limits were
refused: a client that sends too many requests is slowed by its own round trips, and group commit protects the database.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from moorings.core.model.errors import MooringsError
from moorings.net.limits import ClientLimit

BODY_BYTES_MAX = 1 << 20
WAIT_S_MAX = 600.0


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """The API's limits.

    Attributes:
        body_bytes_max: largest body; a job with a full environment has a third of it.
        drained_bytes_max: how much of a body that is too large is read and dropped, so that its sender sees the
            response.
        body_timeout_s: how long a body may take to arrive.
        head_bytes_max: largest request line and headers together.
        head_timeout_s: how long they may take to arrive.
        pipelined_max: requests that one connection may send ahead of their responses.
        requests_max: requests of known callers from their head to the end of their response, without streams;
            ``requests_per_key_max`` of them for one access key, so that one key's slow bodies do not block the others.
        working_per_key_max: requests of one access key that are worked on at the same time; its others wait for that.
        open_requests_max: responses in progress that need no access key, without health checks;
            ``opens_per_address_max`` of them for one address.
        bodies_bytes_max: bytes of buffered bodies; ``bodies_bytes_per_key_max`` of them for one access key.
        connections_max: open connections; ``connections_per_address_max`` of them from one address (a machine, or an
            IPv6 /64). Far fewer than the limit of requests, so that no single address blocks the others. At a limit a
            new connection replaces an idle one (``ConnectionLimit``), so that no user blocks a whole machine.
        connections_reserved: the last of them are for addresses with hardly any, so that a health check gets in.
        write_timeout_s: how long a client that does not read its data keeps its connection.
        keep_alive_s: how long an idle connection is kept.
        waits_max: responses that wait for something to happen; ``waits_per_key_max`` of them for one access key.
        watches_max: open event streams; ``watches_per_key_max`` of them for one access key.
        follows_max: open streams of a running job's output; ``follows_per_key_max`` of them for one access key.
        heartbeat_s: how often an idle event stream sends a comment, so that proxies keep it.
        shutdown_s: how long responses in progress may take once the controller stops.
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
    open_requests_max: int = 256
    opens_per_address_max: int = 16
    bodies_bytes_max: int = 256 * BODY_BYTES_MAX
    bodies_bytes_per_key_max: int = 32 * BODY_BYTES_MAX
    connections_max: int = 8192
    connections_per_address_max: int = 2048
    connections_reserved: int = 256
    write_timeout_s: float = 60.0
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


class Slots(ClientLimit):
    """A limited number of slots, in all and for each key.

    Args:
        what: what a slot is for, in the refusal.
        total: the number of slots.
        per_key: the number of them for one key.
    """

    def __init__(self, what: str, total: int, per_key: int) -> None:
        super().__init__(total, per_key)
        self._what = what

    def build_refusal(self) -> MooringsError:
        return MooringsError(
            "controller.busy",
            f"there are too many {self._what}: at most {self.total}, and {self.per_client} for one access key",
            hint="close one, or try again later",
            retryable=True,
        )


class WorkSlots:
    """Slots for requests that are worked on: each key has a few, and its further requests queue for them.

    One thread works for all, so without this a client with 250 requests at once would take 250 parts of its time, and
    each other client one. Refusing the excess was not chosen: a burst of one key (a job array that ends) is no mistake
    of its sender. One limit for all keys together was not chosen either: requests that hang would exhaust it.

    Args:
        per_key: slots of one key.
    """

    def __init__(self, per_key: int) -> None:
        self._per_key = per_key
        self._taken: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def queued(self) -> int:
        """The number of requests in the queues."""
        return sum(map(len, self._queues.values()))

    async def acquire(self, key: str) -> None:
        """Wait for a slot of ``key``: first come, first served."""
        if self._taken.get(key, 0) < self._per_key:
            self._taken[key] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(key)  # it got a slot while it was being cancelled
            raise

    def release(self, key: str) -> None:
        """Return a slot; the next in the key's queue gets it."""
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
    async def released(self, key: str) -> AsyncIterator[None]:
        """Give up the slot for the duration of the block: the request waits for something, and others may work."""
        self.release(key)
        try:
            yield
        finally:
            # Without queueing: after a long wait only a few lines are left to write, and the task may be cancelled.
            self._taken[key] += 1
