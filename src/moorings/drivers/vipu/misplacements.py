"""Counts partitions that the vendor made on other IPUs than requested, and decides the consequences.

One is bad luck: it is removed, and the claim retries (``UNAVAILABLE``). Repetitions are ended:

- The same block twice, although our request names the IPUs (``create_arguments``): the vendor will not give these,
  whatever the reason. The block is ``BROKEN``: out of service, with a message for the admin, and the claim gets another
  one.
- ``REJECTED_FROM`` in a row, on any blocks: the vendor ignores our requests. Taking blocks out of service would empty
  the pool and mend nothing, so the current claim fails, with the request and the result in its message. From
  ``RESTS_FROM`` on there are pauses without requests, each twice as long as the last. They spare the hardware, and keep
  a queue of claims from failing in a second for a fault that an admin mends in a minute.

One partition on the requested IPUs ends such a row. Without ``create_arguments`` the vendor chooses, and hits by
chance: then no block is ever marked broken. The counts end with the controller: after a change of the pools file they
begin at zero.
"""

from __future__ import annotations

from moorings.core.model.driver_results import ResultCode
from moorings.core.model.topology import Block

BLOCK_TRIES = 2
RESTS_FROM = 4
REJECTED_FROM = 7  # with the pauses, a quarter of a minute after the first
PAUSE_S, PAUSE_S_MAX = 2.0, 120.0


class Misplacements:
    """The misplaced partitions of one pool.

    Args:
        chooses_devices: whether our requests name the IPUs.
    """

    def __init__(self, *, chooses_devices: bool) -> None:
        self._steered = chooses_devices
        self._in_a_row: set[str] = set()  # names, so that one listed twice counts once
        self._by_block: dict[Block, set[str]] = {}

    def record_misplaced(self, name: str, ordered: Block) -> None:
        """Count a partition made elsewhere."""
        self._in_a_row.add(name)
        self._by_block.setdefault(ordered, set()).add(name)

    def record_placed(self, block: Block) -> None:
        """Record a partition made as requested; it ends the row."""
        self._in_a_row.clear()
        self._by_block = {other: names for other, names in self._by_block.items() if not other.overlaps(block)}

    @property
    def consecutive(self) -> int:
        """Return how many were made elsewhere since the last one that was not."""
        return len(self._in_a_row)

    @property
    def backoff_s(self) -> float:
        """Return the pause after the next request, in seconds; 0: none."""
        beyond = self.consecutive - RESTS_FROM
        return 0.0 if beyond < 0 else min(PAUSE_S * 2.0 ** min(beyond, 16), PAUSE_S_MAX)

    def verdict(self, ordered: Block) -> ResultCode:
        """Return the result of a request for that block that was made elsewhere."""
        if self.consecutive >= REJECTED_FROM:
            return ResultCode.REJECTED
        if self._steered and len(self._by_block.get(ordered, ())) >= BLOCK_TRIES:
            return ResultCode.BROKEN
        return ResultCode.UNAVAILABLE
