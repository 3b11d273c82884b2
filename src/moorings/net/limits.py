"""Limits that clients share: of an amount, and of a server's connections.

All limits are in total and for each client, so that no client can use what belongs to all.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from moorings.core.model.errors import MooringsError

FEW_CONNECTIONS = 8  # an address with as many at most may use the reserved ones

GuestT = TypeVar("GuestT", bound=Hashable)


class ClientLimit:
    """A limited amount, of which each client may hold a part.

    Args:
        total: most that all clients together may hold.
        per_client: most that one may hold. None: as much as it leaves free, so that a single one gets half, and only
            many clients together can use all of it.
    """

    def __init__(self, total: int, per_client: int | None = None) -> None:
        self.total = total
        self.per_client = per_client
        self.n_held = 0
        self._held: Counter[str] = Counter()

    def acquire(self, client: str, amount: int = 1) -> bool:
        """Take an amount, which the client holds until ``leave``; return whether there was enough."""
        held, taken = self._held.get(client, 0) + amount, self.n_held + amount
        most = self.total - taken if self.per_client is None else self.per_client
        if held > most or taken > self.total:
            return False
        if amount:
            self._held[client], self.n_held = held, taken
        return True

    def require(self, client: str, amount: int = 1) -> None:
        """Take an amount.

        Raises:
            MooringsError: ``controller.busy``: there is not enough.
        """
        if not self.acquire(client, amount):
            raise self.build_refusal()

    def build_refusal(self) -> MooringsError:
        """The error of ``require``."""
        return MooringsError("controller.busy", "too much is under way", retryable=True)

    def release(self, client: str, amount: int = 1) -> None:
        """Return an amount that was taken."""
        assert self._held[client] >= amount, f"{client} holds less than it returns"
        self._held[client] -= amount
        self.n_held -= amount
        if not self._held[client]:
            del self._held[client]

    @contextlib.contextmanager
    def hold(self, client: str) -> Iterator[None]:
        """Hold one for the duration of the block.

        Raises:
            MooringsError: as ``require``.
        """
        self.require(client)
        try:
            yield
        finally:
            self.release(client)


class BufferedBody:
    """The buffered bytes of one body.

    Args:
        limit: of the bytes of all bodies together.
        client: for whom they count.
    """

    def __init__(self, limit: ClientLimit, client: str) -> None:
        self._limit = limit
        self._client = client
        self._bytes = 0

    def add(self, count: int) -> None:
        """Count this many more bytes.

        Raises:
            MooringsError: as ``ClientLimit.require``.
        """
        self._limit.require(self._client, count)
        self._bytes += count

    def release(self) -> None:
        """Release all its bytes."""
        self._limit.release(self._client, self._bytes)
        self._bytes = 0


class ConnectionLimit(Generic[GuestT]):
    """The open connections, by address; at a limit a new one replaces an idle one.

    At the limit of an address that is the longest idle one of that address, at the limit of all the longest idle one of
    the address with the most idle ones. Any client that reaches a port may connect and send nothing. With limits alone,
    a user who fills an address would block all others on that machine: a new connection gets a request within
    milliseconds, so it is never the oldest.

    Args:
        total: limit in total.
        per_address: limit of one address; None: an address may have as many as it leaves free.
        reserved: the last of all are for addresses with few connections.
        evicts: whether idle connections are replaced; else new ones are refused.
    """

    def __init__(self, total: int, per_address: int | None = None, reserved: int = 0, *, evicts: bool = True) -> None:
        self._total = total
        self._per_address = per_address
        self._reserved = reserved
        self._evicts = evicts
        self._address: dict[GuestT, str] = {}
        self._held: Counter[str] = Counter()
        self._idle: dict[str, dict[GuestT, None]] = {}  # of each address, the longest idle first

    def __len__(self) -> int:
        return len(self._address)

    def acquire(self, address: str, guest: GuestT) -> GuestT | None:
        """Admit a connection, idle; return the one to close, None if there is room, or the new one if it is refused."""
        crowded, gone = self._find_crowded(address), None
        if crowded is not None:
            gone = next(iter(self._idle.get(crowded, ())), None)
            if gone is None:
                return guest
            self.release(gone)
        self._address[guest] = address
        self._held[address] += 1
        self.mark_idle(guest)
        return gone

    def mark_idle(self, guest: GuestT) -> bool:
        """Let a connection be replaced; return False if it already was."""
        address = self._address.get(guest)
        if address is not None and self._evicts:
            self._idle.setdefault(address, {})[guest] = None
        return address is not None

    def mark_busy(self, guest: GuestT) -> bool:
        """Protect a connection; return False if it was already replaced."""
        address = self._address.get(guest)
        if address is None:
            return False
        idle = self._idle.get(address, {})
        idle.pop(guest, None)
        if not idle:
            self._idle.pop(address, None)
        return True

    def release(self, guest: GuestT) -> None:
        """Remove a connection; an unknown one is not an error."""
        if not self.mark_busy(guest):
            return
        address = self._address.pop(guest)
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]

    def _find_crowded(self, address: str) -> str | None:
        """The address that has to give up a connection for a new one of ``address``; None: there is room."""
        of_address, in_all = self._held[address] + 1, len(self) + 1
        most = self._total - in_all if self._per_address is None else self._per_address
        is_reserved = 0 < self._reserved and in_all > self._total - self._reserved and of_address > FEW_CONNECTIONS
        if of_address > most or is_reserved:
            return address
        if in_all > self._total:
            return max(self._idle, key=lambda one: len(self._idle[one]), default=address)
        return None
