"""Free maps: exact, canonical, best fit. Exhaustive on small trees, random on larger ones."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo, Topology
from moorings.core.placement.free_map import FreeMap, free_map_for, savepoint

RACK = Catalogue(
    18, tuple(Block(range(start, start + size)) for size in (1, 2, 3, 6, 9, 18) for start in range(0, 18, size))
)
SCATTERED = Catalogue(
    8,
    (
        *(Block.single(i) for i in range(8)),
        *map(Block, ((0, 2), (1, 3), (2, 4), (0, 5), (4, 6, 7), (0, 1, 7), (3, 5, 6))),
    ),
)
TOPOLOGIES: dict[str, Topology] = {
    "pod16": PowerOfTwo(1, 16, 16),
    "pod8 up to 4": PowerOfTwo(1, 8, 4),
    "three domains": PowerOfTwo(3, 4, 8),
    "crossbar": AnySubset(7, 5),
    "rack": RACK,
    "scattered": SCATTERED,
}


def blocks_of(topology: Topology, size: int) -> list[Block]:
    """Every valid block of a size, by the definition of the topology alone."""
    if isinstance(topology, Catalogue):
        return [block for block in topology.blocks if len(block) == size]
    if isinstance(topology, AnySubset):
        return [Block.of(members) for members in combinations(range(topology.n_devices), size)]
    return [Block(range(s, s + size)) for s in range(0, topology.n_devices - size + 1, size)]


def most_disjoint(blocks: list[Block], free: frozenset[int]) -> int:
    """The largest number of disjoint free blocks, by trying everything."""
    usable = [frozenset(block) for block in blocks if free.issuperset(block)]

    def best(index: int, left: frozenset[int]) -> int:
        if index == len(usable):
            return 0
        skipped = best(index + 1, left)
        if usable[index] <= left:
            return max(skipped, 1 + best(index + 1, left - usable[index]))
        return skipped

    return best(0, free)


def map_with(topology: Topology, taken: frozenset[int]) -> FreeMap:
    free_map = free_map_for(topology)
    for index in taken:
        free_map.allocate(Block.single(index))
    return free_map


@pytest.mark.parametrize("topology", [PowerOfTwo(1, 8, 8), PowerOfTwo(2, 4, 4), PowerOfTwo(3, 2, 4), AnySubset(6, 4)])
def test_every_state_of_a_small_pool(topology: Topology) -> None:
    """For every subset of devices taken: found iff a valid free block exists; the count is exact."""
    for mask in range(1 << topology.n_devices):
        taken = frozenset(i for i in range(topology.n_devices) if mask >> i & 1)
        free = frozenset(range(topology.n_devices)) - taken
        free_map = map_with(topology, taken)
        assert free_map.n_free == len(free)
        for size in topology.sizes:
            usable = [block for block in blocks_of(topology, size) if free.issuperset(block)]
            found = free_map.find_block(size)
            assert (found is not None) == bool(usable)
            if found is not None:
                assert found in usable
            if isinstance(topology, AnySubset):
                assert free_map.count_blocks(size) == len(free) // size
            else:
                assert free_map.count_blocks(size) == len(usable)
        best = max((s for s in topology.sizes if any(free.issuperset(b) for b in blocks_of(topology, s))), default=0)
        assert free_map.largest_size() == best


@pytest.mark.parametrize("name", ["rack", "scattered"])
@given(data=st.data())
def test_a_catalogue_counts_exactly(name: str, data: st.DataObject) -> None:
    topology = TOPOLOGIES[name]
    taken = frozenset(data.draw(st.sets(st.integers(0, topology.n_devices - 1))))
    free_map = map_with(topology, taken)
    free = frozenset(range(topology.n_devices)) - taken
    for size in topology.sizes:
        assert free_map.count_blocks(size) == most_disjoint(blocks_of(topology, size), free)
        found = free_map.find_block(size)
        assert (found is None) == (free_map.count_blocks(size) == 0)
        if found is not None:
            assert free.issuperset(found)


def test_the_seed_s_example_of_a_query() -> None:
    """28 free IPUs: 14 partitions of 2, none of 64 (seed: IPU operator, /query)."""
    free_map = free_map_for(PowerOfTwo(1, 64, 64))
    for block in (Block(range(32)), Block(range(32, 36))):
        free_map.allocate(block)
    assert free_map.n_free == 28
    assert [free_map.count_blocks(size) for size in (1, 2, 4, 8, 16, 32, 64)] == [28, 14, 7, 3, 1, 0, 0]


def test_best_fit_takes_the_smallest_block_that_fits_then_the_lowest_address() -> None:
    free_map = free_map_for(PowerOfTwo(1, 16, 16))
    free_map.allocate(Block(range(4)))  # free: 4-7 and 8-15
    assert free_map.find_block(2) == Block(range(4, 6))
    assert free_map.find_block(4) == Block(range(4, 8))
    free_map.allocate(Block(range(4, 8)))
    assert free_map.find_block(2) == Block(range(8, 10))


def test_of_equal_blocks_the_lowest_is_taken_however_they_became_free() -> None:
    """Law 9: the same devices are free, so the same are given."""
    free = free_map_for(PowerOfTwo(4, 4, 4))
    for start in (0, 4, 8, 12):
        assert free.find_block(4) == Block(range(start, start + 4))
        free.allocate(Block(range(start, start + 4)))
    for start in (8, 0, 12):
        free.release(Block(range(start, start + 4)))
    assert free.find_block(4) == Block(range(4))
    assert free.find_block(2) == Block(range(2))


def test_a_block_that_is_not_free_cannot_be_taken_nor_a_free_one_released() -> None:
    for topology in TOPOLOGIES.values():
        free_map = free_map_for(topology)
        block = free_map.find_block(1)
        assert block is not None
        with pytest.raises(AssertionError, match="free already"):
            free_map.release(block)
        free_map.allocate(block)
        with pytest.raises(AssertionError, match="not free"):
            free_map.allocate(block)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_trial_leaves_no_trace(name: str) -> None:
    free_map = free_map_for(TOPOLOGIES[name])
    sizes = list(TOPOLOGIES[name].sizes)
    before = [free_map.count_blocks(size) for size in sizes]
    block = free_map.find_block(sizes[-1])
    assert block is not None
    with savepoint(free_map) as attempt:
        attempt.allocate(block)
        attempt.release(block)
        attempt.allocate(block)
        assert not free_map.is_free(block)
    assert [free_map.count_blocks(size) for size in sizes] == before


@given(st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=40))
def test_divisible_sizes_placed_largest_first_waste_nothing(sizes: list[int]) -> None:
    """Known result (Coffman, Garey, Johnson 1987): sorted decreasing, they fit iff their sum does."""
    free_map = free_map_for(PowerOfTwo(2, 16, 16))
    fits = True
    for size in sorted(sizes, reverse=True):
        block = free_map.find_block(size)
        if block is None:
            fits = False
            break
        free_map.allocate(block)
    assert fits == (sum(sizes) <= 32)
