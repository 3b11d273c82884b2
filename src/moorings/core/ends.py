"""When what is held will be free: for each pool, the end of every hold, kept so that the soonest block is found fast.

The companion of the free map: that says what is free now, this when the rest should be. Values are ends of holds:
``FREE``, an instant, ``NEVER`` (no limit is known, or it passed in vain) or ``OUT_OF_SERVICE``. Like the free map it is
canonical, a function of what is held and until when; a plan tries on it, and undoes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, Protocol

from moorings.core.instants import Timestamp
from moorings.core.topology import AnySubset, Block, Catalogue, PowerOfTwo, Topology

FREE: Final = Timestamp(-1)
EarliestBlock = tuple[Block, Timestamp, int]  # the block, when it should be empty, how many of its devices are held


class ReleaseTimes(Protocol):
    """The ends of all holds of one pool."""

    def put(self, block: Block, until: Timestamp) -> None:
        """The devices of a block are held until then (``FREE``: they are not); whatever was said of them before."""
        ...

    def soonest(self, size: int) -> EarliestBlock | None:
        """The block of a size that can be emptied soonest; None: there is no such block.

        Soonest is the block whose last holder ends first; then the one with the fewest devices held; then the lowest
        address.
        """
        ...

    def freed_by(self, size: int) -> tuple[Timestamp, int] | None:
        """When at least so many devices should be free, wherever they are, and how many are free then."""
        ...

    def until(self, index: int) -> Timestamp:
        """The end of the hold on a device."""
        ...

    def read(self, block: Block) -> list[tuple[Block, Timestamp]]:
        """The ends of a block's devices: of all at once where they are the same."""
        ...


class ReleaseTimesSavepoint:
    """Ends that are written down only for now."""

    def __init__(self, ends: ReleaseTimes) -> None:
        self.ends = ends
        self._before: list[tuple[Block, Timestamp]] = []

    def put(self, block: Block, until: Timestamp) -> None:
        """As ``ReleaseTimes.put``, for now."""
        self._before += self.ends.read(block)
        self.ends.put(block, until)

    def undo(self) -> None:
        """Put everything back as it was."""
        while self._before:
            self.ends.put(*self._before.pop())


class DeferredReleaseTimes(ReleaseTimesSavepoint):
    """The same, but written down only when somebody reads them: most plans write ends that nobody reads."""

    def __init__(self, ends: ReleaseTimes) -> None:
        super().__init__(ends)
        self._late: list[tuple[Block, Timestamp]] = []

    def put(self, block: Block, until: Timestamp) -> None:
        """As ``ReleaseTimes.put``, for now, as ``read`` shows it."""
        self._late.append((block, until))

    def read(self) -> ReleaseTimes:
        """The ends with all that was put."""
        for block, until in self._late:
            super().put(block, until)
        self._late.clear()
        return self.ends

    def undo(self) -> None:
        """As ``ReleaseTimesSavepoint.undo``; what nobody has read is forgotten."""
        self._late.clear()
        super().undo()


def release_times_for(topology: Topology) -> ReleaseTimes:
    """The ends of a pool in which every device is free."""
    if isinstance(topology, PowerOfTwo):
        return BuddyReleaseTimes(topology)
    if isinstance(topology, AnySubset):
        return SubsetReleaseTimes(topology.n_devices)
    return CatalogueReleaseTimes(topology)


class _ReleaseCounts:
    """How many devices are held until when, in order."""

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
    """Any set of devices is a block."""

    def __init__(self, n_devices: int) -> None:
        self._until = [FREE] * n_devices
        self._ordered = _ReleaseCounts(n_devices)

    def put(self, block: Block, until: Timestamp) -> None:
        for index in block:
            before = self._until[index]
            if before != until:
                self._ordered.add(before, -1)
                self._ordered.add(until, 1)
                self._until[index] = until

    def soonest(self, size: int) -> EarliestBlock | None:
        """Of the devices that are free by then, those that are held longest: what is free now may be used till then."""
        freed = self._ordered.freed_by(size)
        if freed is None:
            return None
        last, _ = freed
        able = sorted(((until, -index) for index, until in enumerate(self._until) if until <= last), reverse=True)
        chosen = able[:size]
        held = sum(1 for until, _ in chosen if until != FREE)
        return Block.of([-index for _, index in chosen]), last, held

    def freed_by(self, size: int) -> tuple[Timestamp, int] | None:
        return self._ordered.freed_by(size)

    def until(self, index: int) -> Timestamp:
        return self._until[index]

    def read(self, block: Block) -> list[tuple[Block, Timestamp]]:
        return _read(self._until, block)


class BuddyReleaseTimes:
    """Aligned power-of-two blocks: of each, the last end inside and how many devices are held, level by level."""

    def __init__(self, topology: PowerOfTwo) -> None:
        self._n_devices = topology.n_devices
        self._top = topology.max_block.bit_length() - 1
        self._last = [[FREE] * (self._n_devices >> level) for level in range(self._top + 1)]
        self._held = [[0] * (self._n_devices >> level) for level in range(self._top + 1)]
        self._ordered = _ReleaseCounts(self._n_devices)

    def put(self, block: Block, until: Timestamp) -> None:
        members = block.members
        if isinstance(members, range) and not len(members) & (len(members) - 1) and not block.start % len(members):
            level = len(members).bit_length() - 1
            if level <= self._top:
                self._put(level, block.start >> level, until)
                return
        for index in block:  # a partition made outside need not be a block of ours
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

    def soonest(self, size: int) -> EarliestBlock | None:
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

    def freed_by(self, size: int) -> tuple[Timestamp, int] | None:
        return self._ordered.freed_by(size)

    def until(self, index: int) -> Timestamp:
        return self._last[0][index]

    def read(self, block: Block) -> list[tuple[Block, Timestamp]]:
        return _read(self._last[0], block)


class CatalogueReleaseTimes:
    """The blocks of a list."""

    def __init__(self, topology: Catalogue) -> None:
        self._until = [FREE] * topology.n_devices
        self._ordered = _ReleaseCounts(topology.n_devices)
        self._by_size: dict[int, list[Block]] = {}
        for block in sorted(topology.blocks, key=lambda one: (one.start, tuple(one))):
            self._by_size.setdefault(len(block), []).append(block)

    def put(self, block: Block, until: Timestamp) -> None:
        for index in block:
            self._ordered.add(self._until[index], -1)
            self._ordered.add(until, 1)
            self._until[index] = until

    def soonest(self, size: int) -> EarliestBlock | None:
        best: tuple[Timestamp, int, Block] | None = None
        for block in self._by_size.get(size, ()):
            ends = [self._until[index] for index in block]
            last, held = max(ends), sum(end != FREE for end in ends)
            if best is None or (last, held) < best[:2]:
                best = (last, held, block)
        return None if best is None else (best[2], best[0], best[1])

    def freed_by(self, size: int) -> tuple[Timestamp, int] | None:
        return self._ordered.freed_by(size)

    def until(self, index: int) -> Timestamp:
        return self._until[index]

    def read(self, block: Block) -> list[tuple[Block, Timestamp]]:
        return _read(self._until, block)


def _read(until: list[Timestamp], block: Block) -> list[tuple[Block, Timestamp]]:
    ends = [until[index] for index in block]
    if ends.count(ends[0]) == len(ends):
        return [(block, ends[0])]
    return [(Block(range(index, index + 1)), end) for index, end in zip(block, ends, strict=True)]
