"""Partitions that the vendor made on other IPUs than were ordered: what is remembered of them, and what follows.

One is bad luck: it is removed, and the claim tries again (``UNAVAILABLE``). What does not end by itself is ended:

- The same block twice, though the vendor is told which IPUs are meant (``create_arguments``): it will not give these,
  whatever the reason. The block is ``BROKEN``: out of service, with words for the admin, and the claim gets another.
- ``REJECTED_FROM`` in a row, whatever blocks: the vendor follows no order. Taking blocks out of service would empty the
  pool and mend nothing, so the claim whose turn it was fails, and says what was asked and what was made. From
  ``RESTS_FROM`` on there are pauses, each twice as long, in which nobody asks: so the hardware has some rest, and a
  queue of claims is not failed in a second for what an admin mends in a minute.

One partition on the ordered IPUs ends such a row. Without ``create_arguments`` the vendor chooses, and hits by chance:
then no block is ever given up. Forgotten when the controller stops: an admin who changes the pools file begins anew.
"""

from __future__ import annotations

from moorings.core.hardware import ResultCode
from moorings.core.topology import Block

BLOCK_TRIES = 2
RESTS_FROM = 4
REJECTED_FROM = 7  # with the pauses, a quarter of a minute after the first
PAUSE_S, PAUSE_S_MAX = 2.0, 120.0


class Misplacements:
    """What is remembered of one pool.

    Args:
        steered: whether the vendor is told which IPUs are meant.
    """

    def __init__(self, *, steered: bool) -> None:
        self._steered = steered
        self._in_a_row: set[str] = set()  # names, so that one that is looked at twice counts once
        self._by_block: dict[Block, set[str]] = {}

    def missed(self, name: str, ordered: Block) -> None:
        """A partition was made elsewhere."""
        self._in_a_row.add(name)
        self._by_block.setdefault(ordered, set()).add(name)

    def hit(self, block: Block) -> None:
        """A partition was made where it was ordered."""
        self._in_a_row.clear()
        self._by_block = {other: names for other, names in self._by_block.items() if not other.overlaps(block)}

    @property
    def in_a_row(self) -> int:
        """How many were made elsewhere since one was not."""
        return len(self._in_a_row)

    @property
    def pause_s(self) -> float:
        """How long to rest after the next order, in seconds; 0: not at all."""
        beyond = self.in_a_row - RESTS_FROM
        return 0.0 if beyond < 0 else min(PAUSE_S * 2.0 ** min(beyond, 16), PAUSE_S_MAX)

    def verdict(self, ordered: Block) -> ResultCode:
        """What an order of that block, which was made elsewhere, comes to."""
        if self.in_a_row >= REJECTED_FROM:
            return ResultCode.REJECTED
        if self._steered and len(self._by_block.get(ordered, ())) >= BLOCK_TRIES:
            return ResultCode.BROKEN
        return ResultCode.UNAVAILABLE
