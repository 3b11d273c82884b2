"""What is kept for those who must wait, during one pass over the queue, and who may use it meanwhile."""

from __future__ import annotations

from moorings.core.ends import ReleaseTimes
from moorings.core.fleet import PoolState, ReservedBlock
from moorings.core.instants import SECOND, Timestamp
from moorings.core.placement import NO_RELEASE, Savepoint
from moorings.core.topology import Block, Catalogue, PowerOfTwo


class BackfillWindow:
    """A block that is kept: what of it is free may be used by those that end before it is needed.

    Kept as a number (an empty block, ``spare`` given): claims will be moved when so many devices are free. Then who
    does not end before may use no more than what is left over.
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
        self._window = (Timestamp(-1), 0.0)  # when it was asked for last, and what it was
        self._topology = state.pool.topology
        self._parts = state.free.free_within(reservation.block) if len(reservation.block) else []
        for part in self._parts:
            on_trial.take(part)
        self._most = self._largest()

    def window_s(self, now: Timestamp) -> float:
        """Who ends within this time may use it; 0: nobody may."""
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
        """Somebody uses a block inside it."""
        left: list[Block] = []
        for part in self._parts:
            left += _subtract_block(part, block)
        self._parts = left
        self._most = self._largest()

    def _largest(self) -> int:
        """No block of more devices than this can be inside."""
        sizes = [len(part) for part in self._parts]
        return max(sizes, default=0) if isinstance(self._topology, PowerOfTwo) else sum(sizes)


def _subtract_block(part: Block, block: Block) -> list[Block]:
    """A part without a block that is in it, or that it has nothing of, as blocks."""
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
    """What is kept as a number of devices, if enough are free sooner than a block: then claims will be moved.

    Args:
        ends: of the pool.
        size: devices that are wanted.
        block: the one that can be emptied soonest.
        until: when that should be.
        now: where enough are free already the block is kept.

    Returns:
        An empty block, when enough are free and how many are left over then; or the block as it was, and None.
    """
    freed = ends.freed_by(size)
    if freed is None or freed[0] >= until or freed[0] <= now:
        return block, until, None
    return Block(()), freed[0], freed[1] - size
