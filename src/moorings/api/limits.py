"""How much one controller takes on for its clients, and who sits on the seats that are few.

Everything a client can make us hold (bytes, time, connections, open watches) has a number here. Rate limits were
refused: a client that asks too often is slowed by its own round trips, and the database is protected by group commit.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from moorings.core.errors import MooringsError

BODY_BYTES_MAX = 1 << 20
WAIT_S_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the API holds for its clients at most.

    Attributes:
        body_bytes_max: largest body; a job with a full environment has a third of it.
        drained_bytes_max: how much of a body that is too large is read away, so that its sender sees the answer.
        body_timeout_s: how long a body may take to arrive.
        head_bytes_max: largest request line and headers together.
        head_timeout_s: how long they may take to arrive.
        pipelined_max: requests that one connection may send ahead of their answers.
        requests_max: requests that are served, or wait, at the same time; ``requests_per_key_max`` of them for one
            access key, so that nobody's slow bodies keep the others out.
        connections_max: open connections; ``connections_per_address_max`` of them from one address.
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
    connections_max: int = 8192
    connections_per_address_max: int = 4096
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


DEFAULT_LIMITS = Limits()


class Seats:
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

    def take(self, key: str) -> None:
        """Take one for ``key``.

        Raises:
            MooringsError: ``controller.busy``.
        """
        if self._held[key] >= self._per_key or self._taken >= self.total:
            raise MooringsError(
                "controller.busy",
                f"there are too many {self._what}: at most {self.total}, and {self._per_key} for one access key",
                hint="close one, or try again later",
                retryable=True,
            )
        self._held[key] += 1
        self._taken += 1

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

    def leave(self, key: str) -> None:
        """Give back one that ``take`` gave."""
        assert self._held[key] > 0, f"{key} holds none of the {self._what}"
        self._held[key] -= 1
        self._taken -= 1
        if not self._held[key]:
            del self._held[key]
