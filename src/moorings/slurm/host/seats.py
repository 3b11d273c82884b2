"""Who may be connected to the agent's door: room for every node, whatever one machine does.

Whoever reaches the port may connect and say nothing. So there is a limit in all and one for each address; where it is
reached, the newcomer gets the seat of who has been silent longest: a node sends its line at once, and holds its seat
for good from there. With limits alone a user who connects again and again would keep his own node's jobs from starting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

GuestT = TypeVar("GuestT", bound=Hashable)


class ConnectionLimit(Generic[GuestT]):
    """The guests, by address.

    Args:
        total: seats in all.
        per_address: of them for one address.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._taken: dict[GuestT, str] = {}
        self._held: Counter[str] = Counter()
        self._silent: dict[str, dict[GuestT, None]] = {}  # who has not shown yet who he is, first to come first

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, address: str, guest: GuestT) -> GuestT | None:
        """Give a newcomer a seat; who has to go: None: nobody; the newcomer himself: there is no seat for him."""
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
        """Let a guest stay until he leaves; False: his seat is another's."""
        address = self._taken.get(guest)
        if address is not None:
            self._speak(address, guest)
        return address is not None

    def leave(self, guest: GuestT) -> None:
        """Take a seat back; one who has none is no error."""
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
