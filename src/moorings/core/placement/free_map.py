"""Placement: which free devices a partition gets, and how many more could be formed.

A ``FreeMap`` is core's one kind of mutable value. It is canonical: its content is a function of the set of taken
devices, never of the order of changes, so memory can be rebuilt from the database at any time and the same log gives
the same blocks (law 9). Three maps serve three topologies by one interface: buddies (best fit, lowest address), any
subset (lowest addresses) and a catalogue (the block that spoils the fewest others).

A plan changes the real map and rolls back before it returns (``savepoint``): copying a map of 65,536 devices in each
turn would cost more than the whole turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo, Topology

NO_RELEASE = Timestamp(1 << 62)  # the end of its holder is not known
OUT_OF_SERVICE = Timestamp(NO_RELEASE + 1)  # no claim's end will free it


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """Devices that are not free, and their release time (also ``NO_RELEASE``, ``OUT_OF_SERVICE``)."""

    block: Block
    until: Timestamp


class FreeMap(Protocol):
    """The free devices of one pool."""

    @property
    def n_free(self) -> int:
        """Free devices."""
        ...

    def find_block(self, size: int) -> Block | None:
        """The free block a partition of ``size`` should take, or None; takes nothing."""
        ...

    def is_free(self, block: Block) -> bool:
        """Whether every device of ``block`` is free."""
        ...

    def allocate(self, block: Block) -> None:
        """Mark the devices of ``block`` as taken; asserts that they are free."""
        ...

    def release(self, block: Block) -> None:
        """Mark the devices of ``block`` as free; asserts that they are taken."""
        ...

    def count_blocks(self, size: int) -> int:
        """How many partitions of ``size`` could be formed from the free devices, exactly."""
        ...

    def largest_size(self) -> int:
        """The largest size that could be formed now; 0 if none."""
        ...

    def free_within(self, block: Block) -> list[Block]:
        """The free devices of ``block``, as blocks that can be taken."""
        ...


@contextmanager
def savepoint(free_map: FreeMap) -> Iterator[Savepoint]:
    """A savepoint that is rolled back at the end."""
    attempt = Savepoint(free_map)
    try:
        yield attempt
    finally:
        attempt.rollback()


class Savepoint:
    """Takes and releases on a map that can be rolled back."""

    def __init__(self, free_map: FreeMap) -> None:
        self.map = free_map
        self._done: list[tuple[bool, Block]] = []

    def allocate(self, block: Block) -> None:
        """Take a block until ``undo``."""
        self.map.allocate(block)
        self._done.append((True, block))

    def release(self, block: Block) -> None:
        """Release a block until ``undo``."""
        self.map.release(block)
        self._done.append((False, block))

    def rollback(self) -> None:
        """Restore the map."""
        while self._done:
            taken, block = self._done.pop()
            if taken:
                self.map.release(block)
            else:
                self.map.allocate(block)


def free_map_for(topology: Topology) -> FreeMap:
    """The map of a pool in which every device is free."""
    if isinstance(topology, PowerOfTwo):
        return BuddyMap(topology)
    if isinstance(topology, AnySubset):
        return SubsetMap(topology)
    return CatalogueMap(topology)


class BuddyMap:
    """Aligned power-of-two blocks: a free block is whole or split in two halves, merged again as soon as both are free.

    ``_free[level]`` holds the starts of free blocks of ``2**level``; a heap beside it finds the lowest and is cleaned
    when it is read (a start that is no longer free is dropped).
    """

    def __init__(self, topology: PowerOfTwo) -> None:
        self._n_devices = topology.n_devices
        self._top = topology.max_block.bit_length() - 1
        self._free: list[set[int]] = [set() for _ in range(self._top + 1)]
        self._heaps: list[list[int]] = [[] for _ in range(self._top + 1)]
        self._n_free = 0
        start = 0
        while start < self._n_devices:
            level = self._top
            while start & ((1 << level) - 1) or start + (1 << level) > self._n_devices:
                level -= 1
            self._add(level, start)
            start += 1 << level
        self._n_free = self._n_devices

    @property
    def n_free(self) -> int:
        return self._n_free

    def _add(self, level: int, start: int) -> None:
        starts, heap = self._free[level], self._heaps[level]
        starts.add(start)
        heapq.heappush(heap, start)
        if len(heap) > 2 * len(starts) + 64:  # stale entries must not outgrow the live ones
            self._heaps[level] = sorted(starts)

    def find_block(self, size: int) -> Block | None:
        for level in range(size.bit_length() - 1, self._top + 1):
            starts = self._free[level]
            if starts:
                heap = self._heaps[level]
                while heap[0] not in starts:
                    heapq.heappop(heap)
                return Block(range(heap[0], heap[0] + size))
        return None

    def _around(self, start: int, level: int) -> int | None:
        """The level of the free block that holds the block ``start`` of ``level``, or None."""
        for higher in range(level, self._top + 1):
            if start & -(1 << higher) in self._free[higher]:
                return higher
        return None

    def is_free(self, block: Block) -> bool:
        return self._around(block.start, len(block).bit_length() - 1) is not None

    def allocate(self, block: Block) -> None:
        start = block.start
        level = len(block).bit_length() - 1
        higher = self._around(start, level)
        assert higher is not None, f"block {block} is not free"
        self._free[higher].discard(start & -(1 << higher))
        while higher > level:
            higher -= 1
            self._add(higher, (start & -(1 << higher)) ^ (1 << higher))
        self._n_free -= len(block)

    def release(self, block: Block) -> None:
        start = block.start
        level = len(block).bit_length() - 1
        assert self._around(start, level) is None, f"block {block} is free already"
        while level < self._top:
            buddy = start ^ (1 << level)
            if buddy not in self._free[level]:
                break
            self._free[level].discard(buddy)
            start &= ~(1 << level)
            level += 1
        self._add(level, start)
        self._n_free += len(block)

    def count_blocks(self, size: int) -> int:
        wanted = size.bit_length() - 1
        return sum(len(self._free[level]) << (level - wanted) for level in range(wanted, self._top + 1))

    def largest_size(self) -> int:
        for level in range(self._top, -1, -1):
            if self._free[level]:
                return 1 << level
        return 0

    def free_within(self, block: Block) -> list[Block]:
        if self.is_free(block):  # it may be part of a larger free block
            return [block]
        found: list[Block] = []
        pending = [(len(block).bit_length() - 1, block.start)]
        while pending:
            level, start = pending.pop()
            if start in self._free[level]:
                found.append(Block(range(start, start + (1 << level))))
            elif level:
                half = 1 << (level - 1)
                pending += [(level - 1, start + half), (level - 1, start)]
        return found


class SubsetMap:
    """Any set of devices is a block; the lowest addresses are taken."""

    def __init__(self, topology: AnySubset) -> None:
        self._max_block = topology.max_block
        self._taken = bytearray(topology.n_devices)
        self._n_free = topology.n_devices
        self._lowest = 0  # no device below is free

    @property
    def n_free(self) -> int:
        return self._n_free

    def find_block(self, size: int) -> Block | None:
        if size > self._n_free or size > self._max_block:
            return None
        members: list[int] = []
        index = self._lowest - 1
        while len(members) < size:
            index = self._taken.find(0, index + 1)
            members.append(index)
        self._lowest = members[0]
        return Block.of(members)

    def is_free(self, block: Block) -> bool:
        return not any(self._taken[index] for index in block)

    def allocate(self, block: Block) -> None:
        assert self.is_free(block), f"block {block} is not free"
        for index in block:
            self._taken[index] = 1
        self._n_free -= len(block)

    def release(self, block: Block) -> None:
        assert all(self._taken[index] for index in block), f"block {block} is free already"
        for index in block:
            self._taken[index] = 0
        self._n_free += len(block)
        self._lowest = min(self._lowest, block.start)

    def count_blocks(self, size: int) -> int:
        return self._n_free // size if 1 <= size <= self._max_block else 0

    def largest_size(self) -> int:
        return min(self._n_free, self._max_block)

    def free_within(self, block: Block) -> list[Block]:
        members = [index for index in block if not self._taken[index]]
        return [Block.of(members)] if members else []


class CatalogueMap:
    """The blocks of a list, and no others; it takes the free block that spoils the fewest other free blocks."""

    def __init__(self, topology: Catalogue) -> None:
        self._blocks = sorted(topology.blocks, key=lambda block: (len(block), block.start, tuple(block)))
        self._masks = {block: _mask(block) for block in self._blocks}
        self._by_size: dict[int, list[Block]] = {}
        for block in self._blocks:
            self._by_size.setdefault(len(block), []).append(block)
        self._free_mask = (1 << topology.n_devices) - 1

    @property
    def n_free(self) -> int:
        return self._free_mask.bit_count()

    def find_block(self, size: int) -> Block | None:
        candidates = [block for block in self._by_size.get(size, ()) if self.is_free(block)]
        if not candidates:
            return None
        free_masks = [self._masks[block] for block in self._blocks if self.is_free(block)]

        def spoiled(block: Block) -> int:
            mine = self._masks[block]
            return sum(mask.bit_count() for mask in free_masks if mask & mine)

        return min(candidates, key=lambda block: (spoiled(block), block.start, tuple(block)))

    def is_free(self, block: Block) -> bool:
        mask = self._masks.get(block) or _mask(block)
        return mask & self._free_mask == mask

    def allocate(self, block: Block) -> None:
        assert self.is_free(block), f"block {block} is not free"
        self._free_mask &= ~_mask(block)

    def release(self, block: Block) -> None:
        mask = _mask(block)
        assert not mask & self._free_mask, f"block {block} is free already"
        self._free_mask |= mask

    def count_blocks(self, size: int) -> int:
        return _most_disjoint([self._masks[block] for block in self._by_size.get(size, ()) if self.is_free(block)])

    def largest_size(self) -> int:
        return max((len(block) for block in self._blocks if self.is_free(block)), default=0)

    def free_within(self, block: Block) -> list[Block]:
        members = [index for index in block if self._free_mask >> index & 1]
        return [Block.of(members)] if members else []


def _mask(block: Block) -> int:
    mask = 0
    for index in block:
        mask |= 1 << index
    return mask


def _most_disjoint(masks: list[int]) -> int:
    """The largest number of masks of which no two share a bit: a maximum set packing, by branch and bound.

    Masks are taken group by group (those that conflict, directly or indirectly). Within a group the lowest device
    decides: either one of its blocks is used, or the device stays unused. Contiguous blocks never branch: the one that
    ends first is always a best choice.
    """
    total = 0
    for group in _conflict_groups(masks):
        if all(_contiguous(mask) for mask in group):
            end = 0
            for mask in sorted(group, key=int.bit_length):
                if not mask & ((1 << end) - 1):
                    total += 1
                    end = mask.bit_length()
        else:
            total += _pack(tuple(sorted(group)), {})
    return total


def _contiguous(mask: int) -> bool:
    shifted = mask >> ((mask & -mask).bit_length() - 1)
    return not shifted & (shifted + 1)


def _conflict_groups(masks: list[int]) -> list[list[int]]:
    groups: list[tuple[int, list[int]]] = []
    for mask in masks:
        joined, members = mask, [mask]
        apart: list[tuple[int, list[int]]] = []
        for union, group in groups:
            if union & mask:
                joined |= union
                members += group
            else:
                apart.append((union, group))
        groups = [*apart, (joined, members)]
    return [members for _, members in groups]


def _pack(masks: tuple[int, ...], known: dict[tuple[int, ...], int]) -> int:
    if len(masks) <= 1:
        return len(masks)
    if masks in known:
        return known[masks]
    lowest = min(mask & -mask for mask in masks)
    best = _pack(tuple(mask for mask in masks if not mask & lowest), known)
    for chosen in masks:
        if chosen & lowest:
            best = max(best, 1 + _pack(tuple(mask for mask in masks if not mask & chosen), known))
    known[masks] = best
    return best
