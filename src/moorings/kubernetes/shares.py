"""A bounded amount of something that several clients use, of which a few leave some to the others."""

from __future__ import annotations


class DynamicLimit:
    """Nobody may hold more than he leaves free: whoever fills it needs many names.

    Args:
        limit: what all may hold together; one alone gets half of it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[str, int] = {}
        self.in_use = 0

    def take(self, who: str, amount: int = 1) -> bool:
        """Whether there was so much for somebody, who then holds it until he gives it back."""
        held = self._held.get(who, 0)
        if held + amount > self._limit - (self.in_use + amount):
            return False
        if not amount:
            return True
        self._held[who] = held + amount
        self.in_use += amount
        return True

    def give(self, who: str, amount: int = 1) -> None:
        """Give back what was taken."""
        if not amount:
            return
        self.in_use -= amount
        self._held[who] -= amount
        if not self._held[who]:
            del self._held[who]
