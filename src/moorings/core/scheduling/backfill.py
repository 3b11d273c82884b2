"""Backfill, a stage of a plan: the blocks reserved so far, and which claims may use them until they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moorings.core.model.claims import Claim
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import Block, Catalogue, PowerOfTwo
from moorings.core.placement.fleet import PoolState, ReservedBlock
from moorings.core.placement.free_map import NO_RELEASE, Savepoint
from moorings.core.placement.pending_classes import backfill_limit_s
from moorings.core.placement.release_times import ReleaseTimes


class BackfillWindow:
    """A reserved block: claims that end before it is needed may use what is free of it.

    It may be a number of devices (an empty block, with ``spare_devices``): claims will be moved when so many are free.
    A claim that does not end before may then use no more than ``spare_devices``.
    """

    def __init__(
        self,
        reservation: ReservedBlock,
        state: PoolState,
        on_trial: Savepoint,
        making_s: float,
        spare: int | None = None,
    ) -> None:
        self.reserved = reservation
        self.spare_devices = spare
        self._making_s = making_s
        self._window = (Timestamp(-1), 0.0)  # time and result of the last ``window_s``
        self._topology = state.pool.topology
        self._parts = state.free.free_within(reservation.block) if len(reservation.block) else []
        for part in self._parts:
            on_trial.allocate(part)
        self._most = self._largest()

    def remaining_s(self, now: Timestamp) -> float:
        """Claims that end within this time, in seconds, may use it; 0: none."""
        asked, window = self._window
        if asked != now:
            until = self.reserved.until
            window = max(0.0, (until - now) / SECOND - self._making_s) if now < until < NO_RELEASE else 0.0
            self._window = (now, window)
        return window

    def find_block(self, size: int) -> Block | None:
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

    def allocate(self, block: Block) -> None:
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


class BackfillWindows:
    """All reserved blocks of one pass over the queue."""

    def __init__(self, policy: Policy, now: Timestamp) -> None:
        self._backfills = policy.backfill
        self._now = now
        self._by_pool: dict[PoolName, list[BackfillWindow]] = {}
        self._open: dict[tuple[object, ...], list[float]] = {}

    def add(self, pool: PoolName, window: BackfillWindow) -> None:
        """Add a reserved block."""
        self._by_pool.setdefault(pool, []).append(window)
        self._open.clear()

    def forget(self) -> None:
        """Forget which windows are open: devices were taken."""
        self._open.clear()

    def open_s(self, size: int, pools: Sequence[PoolState]) -> list[float]:
        """The times, in seconds, within which a claim of a size must end to use reserved blocks large enough for it."""
        if not size:
            return []
        key = (size, *(state.pool.name for state in pools))
        known = self._open.get(key)
        if known is None:
            every = ((window, state) for state in pools for window in self._by_pool.get(state.pool.name, ()))
            found = ((window.remaining_s(self._now), window, state) for window, state in every)
            known = [within for within, window, state in found if within and _has_inside(window, state, size)]
            self._open[key] = known
        return known

    def next_shorter_s(self, claim: Claim, pools: Sequence[PoolState]) -> float:
        """The longest time limit, shorter than this claim's, with which a like claim could be backfilled; 0: none."""
        if not self._backfills or not claim.spec.size or not self._by_pool:
            return 0.0
        limit = backfill_limit_s(claim)
        return max((one for one in self.open_s(claim.spec.size, pools) if one < limit), default=0.0)

    def has_inside(self, state: PoolState, size: int) -> bool:
        """Whether a reserved block of a pool has a free block of a size inside it."""
        return any(_has_inside(window, state, size) for window in self._by_pool.get(state.pool.name, ()))

    def find_inside(self, claim: Claim, pool: PoolName) -> Iterator[tuple[BackfillWindow, Block]]:
        """The parts of reserved blocks that a claim could use, because it ends before they are needed."""
        if not self._backfills or claim.spec.time_limit_s is None:
            return
        limit = backfill_limit_s(claim)
        for window in self._by_pool.get(pool, ()):
            if window.spare_devices is None and limit <= window.remaining_s(self._now):
                block = window.find_block(claim.spec.size)
                if block is not None:
                    yield window, block

    def fits_counts(self, claim: Claim, pool: PoolName, *, take: bool) -> bool:
        """Whether reservations by number allow a claim: it ends before, or enough devices are left over.

        ``take``: if so, count its devices as used.
        """
        limit, size = backfill_limit_s(claim), claim.spec.size
        numbers = [window for window in self._by_pool.get(pool, ()) if window.spare_devices is not None]
        over = [window for window in numbers if not (self._backfills and limit <= window.remaining_s(self._now))]
        if any((window.spare_devices or 0) < size for window in over):
            return False
        for window in over if take else ():
            window.spare_devices = (window.spare_devices or 0) - size
        return True


def _has_inside(window: BackfillWindow, state: PoolState, size: int) -> bool:
    return state.free.n_free >= size if window.spare_devices is not None else window.find_block(size) is not None


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
    freed = ends.earliest_count(size)
    if freed is None or freed[0] >= until or freed[0] <= now:
        return block, until, None
    return Block(()), freed[0], freed[1] - size
