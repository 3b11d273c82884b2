"""A limited amount that several clients share; a few clients cannot use all of it."""

from __future__ import annotations


class DynamicLimit:
    """Each client may hold at most as much as stays free: only many clients together can use all of it.

    Args:
        limit: most that all clients together may hold; a single one gets half of it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[str, int] = {}
        self.in_use = 0

    def take(self, who: str, amount: int = 1) -> bool:
        """Take an amount for a client, who holds it until ``give``; whether there was enough."""
        held = self._held.get(who, 0)
        if held + amount > self._limit - (self.in_use + amount):
            return False
        if not amount:
            return True
        self._held[who] = held + amount
        self.in_use += amount
        return True

    def give(self, who: str, amount: int = 1) -> None:
        """Give back an amount that was taken."""
        if not amount:
            return
        self.in_use -= amount
        self._held[who] -= amount
        if not self._held[who]:
            del self._held[who]
