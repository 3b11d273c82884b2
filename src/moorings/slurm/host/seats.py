"""The limit of connections to the agent: room for every node, whatever one machine does.

Any client that reaches the port may connect and send nothing. So there is a limit in total and one per address. At a
limit a new connection replaces the one that has been silent longest: a node sends its line at once, and keeps its
connection from then on. With limits alone, a user who reconnects again and again would keep the jobs of his own node
from starting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

GuestT = TypeVar("GuestT", bound=Hashable)


class ConnectionLimit(Generic[GuestT]):
    """The connections, by address.

    Args:
        total: limit in total.
        per_address: limit of one address.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._taken: dict[GuestT, str] = {}
        self._held: Counter[str] = Counter()
        self._silent: dict[str, dict[GuestT, None]] = {}  # not identified yet, in order of arrival

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, address: str, guest: GuestT) -> GuestT | None:
        """Admit a connection; return the one to close, None if there is room, or the new one if it is refused."""
        crowded = address if self._held[address] >= self._per_address else None
        if crowded is None and len(self._taken) >= self._total:
            crowded = max(self._silent, key=lambda one: len(self._silent[one]), default=address)
        gone = None
        if crowded is not None:
            gone = next(iter(self._silent.get(crowded, ())), None)
            if gone is None:
                return guest
            self.leave(gone)
        self._taken[guest] = address
        self._held[address] += 1
        self._silent.setdefault(address, {})[guest] = None
        return gone

    def keep(self, guest: GuestT) -> bool:
        """Protect a connection until it leaves; False: it was already replaced."""
        address = self._taken.get(guest)
        if address is not None:
            self._speak(address, guest)
        return address is not None

    def leave(self, guest: GuestT) -> None:
        """Remove a connection; an unknown one is not an error."""
        address = self._taken.pop(guest, None)
        if address is None:
            return
        self._speak(address, guest)
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]

    def _speak(self, address: str, guest: GuestT) -> None:
        silent = self._silent.get(address, {})
        silent.pop(guest, None)
        if not silent:
            self._silent.pop(address, None)
