"""Release times: for each pool, when each held device is expected to be free, indexed to find the soonest block fast.

The companion of the free map, which says what is free now. Values are the release times of holds: ``FREE``, a
timestamp, ``NO_RELEASE`` (no limit is known, or it has passed) or ``OUT_OF_SERVICE``. Like the free map it is
canonical, a function of what is held and until when; a plan changes it under a savepoint and rolls back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, Protocol

from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo, Topology

FREE: Final = Timestamp(-1)
EarliestBlock = tuple[Block, Timestamp, int]  # the block, its release time, how many of its devices are held


class ReleaseTimes(Protocol):
    """The release times of all holds of one pool."""

    def set_release(self, block: Block, until: Timestamp) -> None:
        """Set the release time of a block's devices (``FREE``: they are free), replacing what was set before."""
        ...

    def earliest_block(self, size: int) -> EarliestBlock | None:
        """The block of a size that can be emptied soonest; None: there is no such block.

        Order: the earliest release time of the last holder; then the fewest devices held; then the lowest address.
        """
        ...

    def earliest_count(self, size: int) -> tuple[Timestamp, int] | None:
        """When at least so many devices should be free, anywhere in the pool, and how many are free then."""
        ...

    def release_time(self, index: int) -> Timestamp:
        """The release time of a device."""
        ...

    def release_times_within(self, block: Block) -> list[tuple[Block, Timestamp]]:
        """The release times of a block's devices: one entry if they are equal, else one for each device."""
        ...


class ReleaseTimesSavepoint:
    """Release times that can be rolled back."""

    def __init__(self, ends: ReleaseTimes) -> None:
        self.ends = ends
        self._before: list[tuple[Block, Timestamp]] = []

    def put(self, block: Block, until: Timestamp) -> None:
        """As ``ReleaseTimes.put``, until ``undo``."""
        self._before += self.ends.release_times_within(block)
        self.ends.set_release(block, until)

    def rollback(self) -> None:
        """Restore all values."""
        while self._before:
            self.ends.set_release(*self._before.pop())


class DeferredReleaseTimes(ReleaseTimesSavepoint):
    """The same, but applied only on ``flush``: most plans write release times that are never read."""

    def __init__(self, ends: ReleaseTimes) -> None:
        super().__init__(ends)
        self._late: list[tuple[Block, Timestamp]] = []

    def put(self, block: Block, until: Timestamp) -> None:
        """As ``ReleaseTimes.put``, until ``undo``; applied by ``read``."""
        self._late.append((block, until))

    def flush(self) -> ReleaseTimes:
        """The release times with all deferred changes applied."""
        for block, until in self._late:
            super().put(block, until)
        self._late.clear()
        return self.ends

    def rollback(self) -> None:
        """As ``ReleaseTimesSavepoint.undo``; deferred changes are dropped."""
        self._late.clear()
        super().rollback()


def release_times_for(topology: Topology) -> ReleaseTimes:
    """The release times of a pool in which every device is free."""
    if isinstance(topology, PowerOfTwo):
        return BuddyReleaseTimes(topology)
    if isinstance(topology, AnySubset):
        return SubsetReleaseTimes(topology.n_devices)
    return CatalogueReleaseTimes(topology)


class _ReleaseCounts:
    """How many devices have each release time, in order."""

    def __init__(self, n_devices: int) -> None:
        self._counts: dict[Timestamp, int] = {FREE: n_devices}
        self._instants: list[Timestamp] = [FREE]

    def add(self, until: Timestamp, count: int) -> None:
        left = self._counts.get(until, 0) + count
        if left:
            if until not in self._counts:
                insort(self._instants, until)
            self._counts[until] = left
        elif until in self._counts:
            del self._counts[until]
            del self._instants[bisect_left(self._instants, until)]

    def freed_by(self, size: int) -> tuple[Timestamp, int] | None:
        free = 0
        for until in self._instants:
            free += self._counts[until]
            if free >= size:
                return until, free
        return None


class SubsetReleaseTimes:
    """For pools where any set of devices is a block."""

    def __init__(self, n_devices: int) -> None:
        self._until = [FREE] * n_devices
        self._ordered = _ReleaseCounts(n_devices)

    def set_release(self, block: Block, until: Timestamp) -> None:
        for index in block:
            before = self._until[index]
            if before != until:
                self._ordered.add(before, -1)
                self._ordered.add(until, 1)
                self._until[index] = until

    def earliest_block(self, size: int) -> EarliestBlock | None:
        """Of the devices free by then, those with the latest release times: free devices stay usable until then."""
        freed = self._ordered.freed_by(size)
        if freed is None:
            return None
        last, _ = freed
        able = sorted(((until, -index) for index, until in enumerate(self._until) if until <= last), reverse=True)
        chosen = able[:size]
        held = sum(1 for until, _ in chosen if until != FREE)
        return Block.of([-index for _, index in chosen]), last, held

    def earliest_count(self, size: int) -> tuple[Timestamp, int] | None:
        return self._ordered.freed_by(size)

    def release_time(self, index: int) -> Timestamp:
        return self._until[index]

    def release_times_within(self, block: Block) -> list[tuple[Block, Timestamp]]:
        return _read(self._until, block)


class BuddyReleaseTimes:
    """For aligned power-of-two blocks: level by level, each block's last release time and number of held devices."""

    def __init__(self, topology: PowerOfTwo) -> None:
        self._n_devices = topology.n_devices
        self._top = topology.max_block.bit_length() - 1
        self._last = [[FREE] * (self._n_devices >> level) for level in range(self._top + 1)]
        self._held = [[0] * (self._n_devices >> level) for level in range(self._top + 1)]
        self._ordered = _ReleaseCounts(self._n_devices)

    def set_release(self, block: Block, until: Timestamp) -> None:
        members = block.members
        if isinstance(members, range) and not len(members) & (len(members) - 1) and not block.start % len(members):
            level = len(members).bit_length() - 1
            if level <= self._top:
                self._put(level, block.start >> level, until)
                return
        for index in block:  # a foreign partition need not be one of our blocks
            self._put(0, index, until)

    def _put(self, level: int, at: int, until: Timestamp) -> None:
        last, held, size, start = self._last, self._held, 1 << level, at << level
        before = last[0][start : start + size]
        if before.count(before[0]) == size:
            if before[0] == until:
                return
            self._ordered.add(before[0], -size)
        else:
            for each in before:
                self._ordered.add(each, -1)
        self._ordered.add(until, size)
        if not level:
            last[0][at], held[0][at] = until, 0 if until == FREE else 1
        for lower in range(level + 1) if level else ():
            count, first = size >> lower, start >> lower
            last[lower][first : first + count] = [until] * count
            held[lower][first : first + count] = [0 if until == FREE else 1 << lower] * count
        while level < self._top:
            level += 1
            at >>= 1
            if at >= len(last[level]):
                return
            left = at << 1
            below, counts = last[level - 1], held[level - 1]
            one, other = below[left], below[left + 1]
            last[level][at] = one if one > other else other  # noqa: FURB136 - a call costs a third more
            held[level][at] = counts[left] + counts[left + 1]

    def earliest_block(self, size: int) -> EarliestBlock | None:
        level = size.bit_length() - 1
        if level > self._top or not self._last[level]:
            return None
        row, counts = self._last[level], self._held[level]
        until = min(row)
        at = row.index(until)
        if row.count(until) > 1:
            _, at = min((counts[at], at) for at, each in enumerate(row) if each == until)
        held = counts[at]
        return Block(range(at * size, (at + 1) * size)), until, held

    def earliest_count(self, size: int) -> tuple[Timestamp, int] | None:
        return self._ordered.freed_by(size)

    def release_time(self, index: int) -> Timestamp:
        return self._last[0][index]

    def release_times_within(self, block: Block) -> list[tuple[Block, Timestamp]]:
        return _read(self._last[0], block)


class CatalogueReleaseTimes:
    """For the blocks of a catalogue."""

    def __init__(self, topology: Catalogue) -> None:
        self._until = [FREE] * topology.n_devices
        self._ordered = _ReleaseCounts(topology.n_devices)
        self._by_size: dict[int, list[Block]] = {}
        for block in sorted(topology.blocks, key=lambda one: (one.start, tuple(one))):
            self._by_size.setdefault(len(block), []).append(block)

    def set_release(self, block: Block, until: Timestamp) -> None:
        for index in block:
            self._ordered.add(self._until[index], -1)
            self._ordered.add(until, 1)
            self._until[index] = until

    def earliest_block(self, size: int) -> EarliestBlock | None:
        best: tuple[Timestamp, int, Block] | None = None
        for block in self._by_size.get(size, ()):
            ends = [self._until[index] for index in block]
            last, held = max(ends), sum(end != FREE for end in ends)
            if best is None or (last, held) < best[:2]:
                best = (last, held, block)
        return None if best is None else (best[2], best[0], best[1])

    def earliest_count(self, size: int) -> tuple[Timestamp, int] | None:
        return self._ordered.freed_by(size)

    def release_time(self, index: int) -> Timestamp:
        return self._until[index]

    def release_times_within(self, block: Block) -> list[tuple[Block, Timestamp]]:
        return _read(self._until, block)


def _read(until: list[Timestamp], block: Block) -> list[tuple[Block, Timestamp]]:
    ends = [until[index] for index in block]
    if ends.count(ends[0]) == len(ends):
        return [(block, ends[0])]
    return [(Block.single(index), end) for index, end in zip(block, ends, strict=True)]
