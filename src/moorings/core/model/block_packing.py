"""Shares: whether guaranteed blocks fit, and what is left after some of them are subtracted.

A promise is a multiset of blocks, ``(size, count)`` by ascending size. It has no addresses: a grant decides where a
guaranteed block lies. So a promise is accepted only if all its blocks fit at once, in an empty pool or in the parent's
share, by these rules:

- *power of two*: largest first always works. When a block of ``k`` is placed, only blocks of ``k`` and more were placed
  before; sizes divide each other, so they fill whole aligned blocks of ``k``, and one of these is free as long as fewer
  devices are used than lie in whole aligned blocks of ``k``. So it is enough, for every size ``k``, that the devices
  promised in blocks of ``k`` and more are no more than those.
- *any subset*: devices are counted.
- *catalogue*: only a search is exact, because listed blocks may overlap in any way. Within a share nothing is split: a
  child gets whole blocks of its parent's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo, Topology

BlockCounts = tuple[tuple[int, int], ...]

SEARCH_STEPS_MAX: Final = 200_000
_BITS_A_STEP: Final = 512  # a step on a catalogue of more parts counts as several


def add_counts(promises: Iterable[BlockCounts]) -> BlockCounts:
    """All these blocks as one promise."""
    counts: Counter[int] = Counter()
    for blocks in promises:
        for size, count in blocks:
            counts[size] += count
    return _blocks(counts)


def count_devices(blocks: BlockCounts, least: int = 1) -> int:
    """Devices in the blocks of ``least`` and more."""
    return sum(size * count for size, count in blocks if size >= least)


def blocks_text(topology: Topology | None, blocks: BlockCounts) -> str:
    """Blocks as people write them: ``16x2,4x1``; single devices of a pool without blocks: ``40 devices``."""
    if not blocks:
        return "nothing"
    if isinstance(topology, AnySubset):
        return f"{count_devices(blocks)} devices"
    return ",".join(f"{size}x{count}" for size, count in reversed(blocks))


def guaranteeable_sizes(topology: Topology) -> tuple[int, ...]:
    """Sizes that a share may name, ascending; single devices, if any subset is a block."""
    return (1,) if isinstance(topology, AnySubset) else topology.sizes


def subtract_blocks(topology: Topology, room: BlockCounts, promised: BlockCounts) -> BlockCounts:
    """What is left of the blocks ``room`` after subtracting ``promised``; blocks that do not fit are ignored.

    Power of two: the largest first, each from the smallest block that holds it, halved as buddies are, so that the
    largest blocks are left. Catalogue: blocks of the same size. Any subset: the number of devices.
    """
    left = Counter(dict(room))
    if isinstance(topology, PowerOfTwo):
        for size, count in sorted(promised, reverse=True):
            _halve(left, size, count)
    else:
        for size, count in promised:
            left[size] = max(0, left[size] - count)
    return _blocks(left)


def _halve(left: Counter[int], size: int, count: int) -> None:
    for whole in sorted(one for one in left if one >= size):
        parts = whole // size
        opened = min(left[whole], -(-count // parts))
        used = min(count, opened * parts)
        left[whole] -= opened
        count -= used
        spare = opened * parts - used  # of the last opened block; its buddies are as large as possible
        for level in range(spare.bit_length()):
            if spare >> level & 1:
                left[size << level] += 1
        if not count:
            return


def remaining_in_pool(topology: Topology, promised: BlockCounts) -> BlockCounts | None:
    """What can still be promised of an empty pool beside ``promised``; None: there is no short answer (catalogue)."""
    if isinstance(topology, Catalogue):
        return None
    if isinstance(topology, AnySubset):
        return subtract_blocks(topology, ((1, topology.n_devices),), promised)
    whole, rest = divmod(topology.n_devices, topology.max_block)
    room = [(1 << level, 1) for level in range(rest.bit_length()) if rest >> level & 1]
    return subtract_blocks(topology, add_counts([tuple(room), ((topology.max_block, whole),)]), promised)


def largest_fitting(topology: Topology | None, room: BlockCounts, wanted: BlockCounts) -> BlockCounts:
    """As many of the blocks ``wanted`` as fit into the blocks ``room``, the largest first."""
    fits: list[tuple[int, int]] = []
    for size, count in reversed(wanted):
        if isinstance(topology, PowerOfTwo):
            taken = sum(one // size * many for one, many in fits)  # all of ``fits`` are at least as large
            places = sum(one // size * many for one, many in room if one >= size) - taken
        else:
            places = dict(room).get(size, 0)
        if places > 0:
            fits.append((size, min(count, places)))
    return tuple(reversed(fits))


def shortfall_within(topology: Topology | None, promised: BlockCounts, room: BlockCounts) -> str:
    """What is missing to take ``promised`` out of the blocks ``room``; empty: nothing.

    For a pool that no longer exists (``topology`` is None) whole blocks are compared.
    """
    if isinstance(topology, AnySubset):
        return _lack(count_devices(promised), count_devices(room), "devices")
    if isinstance(topology, PowerOfTwo):
        lacks = (
            _lack(count_devices(promised, size), count_devices(room, size), f"devices in blocks of {size} and more")
            for size, _ in reversed(promised)
        )
    else:
        known = dict(room)
        lacks = (_lack(count, known.get(size, 0), f"blocks of {size}") for size, count in reversed(promised))
    return next(filter(None, lacks), "")


def shortfall_in_pool(topology: Topology, promised: BlockCounts) -> str:
    """What is missing to fit ``promised`` into an empty pool; empty: nothing."""
    if isinstance(topology, AnySubset):
        return _lack(count_devices(promised), topology.n_devices, "devices")
    if isinstance(topology, PowerOfTwo):
        lacks = (
            _lack(
                count_devices(promised, size),
                topology.n_devices // size * size,
                f"devices in blocks of {size} and more",
            )
            for size, _ in reversed(promised)
        )
        return next(filter(None, lacks), "")
    return _lack_in_catalogue(topology, promised)


def _lack(wanted: int, there: int, what: str) -> str:
    return f"{wanted} {what}, where there are {there}" if wanted > there else ""


def _lack_in_catalogue(topology: Catalogue, promised: BlockCounts) -> str:
    listed = Counter(len(block) for block in topology.blocks)
    for size, count in reversed(promised):
        if count > listed[size]:
            return _lack(count, listed[size], f"blocks of {size}")
    found = _Packing(topology, promised).search()
    if found is None:
        return "more than could be looked through, for the listed blocks overlap in too many ways"
    return "" if found else "more blocks without a common device than can be found in the list"


class _Packing:
    """A search for listed blocks of the promised sizes without a common device.

    Lowest device first: at each device where blocks begin, either one of the free ones is used, or none. Two ways to
    one state (what is used above, what is still to be found) are searched once. ``spare`` counts the devices that may
    still stay unused; a way that leaves more is given up.

    Devices that every block either has or lacks together are one bit of a mask (``_bits``), so a catalogue of a million
    devices costs no more than its blocks do.
    """

    def __init__(self, topology: Catalogue, promised: BlockCounts) -> None:
        self._sizes = tuple(size for size, _ in promised)
        self._wanted = tuple(count for _, count in promised)
        blocks = [block for block in topology.blocks if len(block) in self._sizes]
        cuts = sorted({edge for block in blocks for run in _runs(block) for edge in (run.start, run.stop)})
        self._bits = {at: bit for bit, at in enumerate(cuts)}
        self._weights = [above - at for at, above in pairwise(cuts)]
        begin: dict[int, list[tuple[int, int]]] = {}
        for block in sorted(blocks, key=lambda one: (len(one), one.start, tuple(one.members))):
            begin.setdefault(self._bits[block.start], []).append((self._sizes.index(len(block)), self._mask(block)))
        self._begin = [begin[bit] for bit in sorted(begin)]
        self._reach, self._places = self._ahead()

    def search(self) -> bool | None:
        """Whether there are such blocks; None: the search was given up."""
        spare = self._weight(self._reach[0]) - sum(
            size * count for size, count in zip(self._sizes, self._wanted, strict=True)
        )
        pending = [(0, 0, self._wanted, spare)]
        seen: set[tuple[int, int, tuple[int, ...]]] = set()
        steps = SEARCH_STEPS_MAX // (1 + len(self._bits) // _BITS_A_STEP)
        while pending:
            at, used, wanted, spare = pending.pop()
            if not any(wanted):
                return True
            here = (at, used & self._reach[at], wanted)
            places = self._places[at]
            enough = all(count <= there for count, there in zip(wanted, places, strict=True))
            if spare < 0 or not enough or here in seen:
                continue
            if len(seen) == steps:
                return None
            seen.add(here)
            gone = self._reach[at] & ~self._reach[at + 1]
            ways = [(kind, used | mask) for kind, mask in self._begin[at] if wanted[kind] and not mask & used]
            pending.append((at + 1, used, wanted, spare - self._weight(gone & ~used)))
            for kind, taken in ways:  # the last is searched first: the largest
                fewer = (*wanted[:kind], wanted[kind] - 1, *wanted[kind + 1 :])
                pending.append((at + 1, taken, fewer, spare - self._weight(gone & ~taken)))
        return False

    def _ahead(self) -> tuple[list[int], list[tuple[int, ...]]]:
        """For each step: which devices later blocks reach, and how many blocks of each size can still begin."""
        reach, places = [0], [(0,) * len(self._sizes)]
        for beginning in reversed(self._begin):
            mask = reach[-1]
            for _, one in beginning:
                mask |= one
            reach.append(mask)
            kinds = {kind for kind, _ in beginning}
            places.append(tuple(count + (kind in kinds) for kind, count in enumerate(places[-1])))
        return reach[::-1], places[::-1]

    def _mask(self, block: Block) -> int:
        return sum((1 << self._bits[run.stop]) - (1 << self._bits[run.start]) for run in _runs(block))

    def _weight(self, mask: int) -> int:
        """Devices in a mask."""
        total = 0
        while mask:
            low = mask & -mask
            total += self._weights[low.bit_length() - 1]
            mask ^= low
        return total


def _runs(block: Block) -> list[range]:
    """A block as contiguous ranges."""
    if isinstance(block.members, range):
        return [block.members]
    runs: list[range] = []
    for index in block.members:
        if runs and runs[-1].stop == index:
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs


def _blocks(counts: Counter[int]) -> BlockCounts:
    return tuple(sorted((size, count) for size, count in counts.items() if count))
