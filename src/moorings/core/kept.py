"""Reserved blocks during one pass over the queue, and which claims may use them meanwhile (backfill)."""

from __future__ import annotations

from moorings.core.ends import ReleaseTimes
from moorings.core.fleet import PoolState, ReservedBlock
from moorings.core.instants import SECOND, Timestamp
from moorings.core.placement import NO_RELEASE, Savepoint
from moorings.core.topology import Block, Catalogue, PowerOfTwo


class BackfillWindow:
    """A reserved block: claims that end before it is needed may use what is free of it.

    It may be a number of devices (an empty block, with ``spare``): claims will be moved when so many devices are free.
    A claim that does not end before may then use no more than ``spare``.
    """

    def __init__(
        self,
        reservation: ReservedBlock,
        state: PoolState,
        on_trial: Savepoint,
        making_s: float,
        spare: int | None = None,
    ) -> None:
        self.reservation = reservation
        self.spare = spare
        self._making_s = making_s
        self._window = (Timestamp(-1), 0.0)  # time and result of the last ``window_s``
        self._topology = state.pool.topology
        self._parts = state.free.free_within(reservation.block) if len(reservation.block) else []
        for part in self._parts:
            on_trial.take(part)
        self._most = self._largest()

    def window_s(self, now: Timestamp) -> float:
        """Claims that end within this time, in seconds, may use it; 0: none."""
        asked, window = self._window
        if asked != now:
            until = self.reservation.until
            window = max(0.0, (until - now) / SECOND - self._making_s) if now < until < NO_RELEASE else 0.0
            self._window = (now, window)
        return window

    def find(self, size: int) -> Block | None:
        """A free block inside it; takes nothing."""
        topology = self._topology
        if size > self._most:
            return None
        if isinstance(topology, PowerOfTwo):
            able = (part for part in self._parts if len(part) >= size)
            best = min(able, key=lambda part: (len(part), part.start))
            return Block(range(best.start, best.start + size))
        free = sorted(index for part in self._parts for index in part)
        if not isinstance(topology, Catalogue):
            return Block.of(free[:size]) if len(free) >= size else None
        inside = set(free)
        fitting = (block for block in topology.blocks if len(block) == size and inside.issuperset(block))
        return min(fitting, key=lambda block: (block.start, tuple(block)), default=None)

    def take(self, block: Block) -> None:
        """Record that a claim uses a block inside it."""
        left: list[Block] = []
        for part in self._parts:
            left += _subtract_block(part, block)
        self._parts = left
        self._most = self._largest()

    def _largest(self) -> int:
        """An upper bound of the size of a block inside it."""
        sizes = [len(part) for part in self._parts]
        return max(sizes, default=0) if isinstance(self._topology, PowerOfTwo) else sum(sizes)


def _subtract_block(part: Block, block: Block) -> list[Block]:
    """A part without a block, which is inside it or does not overlap it, as blocks."""
    if not part.overlaps(block):
        return [part]
    members, taken = part.members, block.members
    if isinstance(members, range) and isinstance(taken, range) and not len(members) & (len(members) - 1):
        if len(members) <= len(taken):
            return []
        half = members.start + len(members) // 2
        halves = (Block(range(members.start, half)), Block(range(half, members.stop)))
        return [piece for each in halves for piece in _subtract_block(each, block)]
    gone = set(block)
    left = [index for index in part if index not in gone]
    return [Block.of(left)] if left else []


def reserve_device_count(
    ends: ReleaseTimes, size: int, block: Block, until: Timestamp, now: Timestamp
) -> tuple[Block, Timestamp, int | None]:
    """Reserve a number of devices instead of a block, if enough are free sooner: claims will be moved then.

    Args:
        ends: release times of the pool.
        size: devices requested.
        block: the block that can be emptied soonest.
        until: when that block should be empty.
        now: if enough devices are free already, the block is reserved.

    Returns:
        An empty block, when enough are free, and how many are left over then; or the block as given, and None.
    """
    freed = ends.freed_by(size)
    if freed is None or freed[0] >= until or freed[0] <= now:
        return block, until, None
    return Block(()), freed[0], freed[1] - size
