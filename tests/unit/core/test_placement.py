"""Free maps: exact, canonical, best fit. Exhaustive on small trees, random on larger ones."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moorings.core.instants import Timestamp
from moorings.core.placement import NO_RELEASE, OUT_OF_SERVICE, FreeMap, HeldBlock, free_map_for, savepoint
from moorings.core.topology import AnySubset, Block, Catalogue, PowerOfTwo, Topology
from tests.sampling import examples

RACK = Catalogue(
    18, tuple(Block(range(start, start + size)) for size in (1, 2, 3, 6, 9, 18) for start in range(0, 18, size))
)
SCATTERED = Catalogue(
    8,
    (
        *(Block(range(i, i + 1)) for i in range(8)),
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
        free_map.take(Block(range(index, index + 1)))
    return free_map


@pytest.mark.parametrize("topology", [PowerOfTwo(1, 8, 8), PowerOfTwo(2, 4, 4), PowerOfTwo(3, 2, 4), AnySubset(6, 4)])
def test_every_state_of_a_small_pool(topology: Topology) -> None:
    """For every subset of devices taken: found iff a valid free block exists; the count is exact."""
    for mask in range(1 << topology.n_devices):
        taken = frozenset(i for i in range(topology.n_devices) if mask >> i & 1)
        free = frozenset(range(topology.n_devices)) - taken
        free_map = map_with(topology, taken)
        assert free_map.free == len(free)
        for size in topology.sizes:
            usable = [block for block in blocks_of(topology, size) if free.issuperset(block)]
            found = free_map.find(size)
            assert (found is not None) == bool(usable)
            if found is not None:
                assert found in usable
            if isinstance(topology, AnySubset):
                assert free_map.count(size) == len(free) // size
            else:
                assert free_map.count(size) == len(usable)
        best = max((s for s in topology.sizes if any(free.issuperset(b) for b in blocks_of(topology, s))), default=0)
        assert free_map.largest() == best


@pytest.mark.parametrize("name", ["rack", "scattered"])
@given(data=st.data())
def test_a_catalogue_counts_exactly(name: str, data: st.DataObject) -> None:
    topology = TOPOLOGIES[name]
    taken = frozenset(data.draw(st.sets(st.integers(0, topology.n_devices - 1))))
    free_map = map_with(topology, taken)
    free = frozenset(range(topology.n_devices)) - taken
    for size in topology.sizes:
        assert free_map.count(size) == most_disjoint(blocks_of(topology, size), free)
        found = free_map.find(size)
        assert (found is None) == (free_map.count(size) == 0)
        if found is not None:
            assert free.issuperset(found)


def test_the_seed_s_example_of_a_query() -> None:
    """28 free IPUs: 14 partitions of 2, none of 64 (seed: IPU operator, /query)."""
    free_map = free_map_for(PowerOfTwo(1, 64, 64))
    for block in (Block(range(32)), Block(range(32, 36))):
        free_map.take(block)
    assert free_map.free == 28
    assert [free_map.count(size) for size in (1, 2, 4, 8, 16, 32, 64)] == [28, 14, 7, 3, 1, 0, 0]


def test_best_fit_takes_the_smallest_block_that_fits_then_the_lowest_address() -> None:
    free_map = free_map_for(PowerOfTwo(1, 16, 16))
    free_map.take(Block(range(4)))  # free: 4-7 and 8-15
    assert free_map.find(2) == Block(range(4, 6))
    assert free_map.find(4) == Block(range(4, 8))
    free_map.take(Block(range(4, 8)))
    assert free_map.find(2) == Block(range(8, 10))


def test_of_equal_blocks_the_lowest_is_taken_however_they_became_free() -> None:
    """Law 9: the same devices are free, so the same are given."""
    free = free_map_for(PowerOfTwo(4, 4, 4))
    for start in (0, 4, 8, 12):
        assert free.find(4) == Block(range(start, start + 4))
        free.take(Block(range(start, start + 4)))
    for start in (8, 0, 12):
        free.release(Block(range(start, start + 4)))
    assert free.find(4) == Block(range(4))
    assert free.find(2) == Block(range(2))


def test_a_block_that_is_not_free_cannot_be_taken_nor_a_free_one_released() -> None:
    for topology in TOPOLOGIES.values():
        free_map = free_map_for(topology)
        block = free_map.find(1)
        assert block is not None
        with pytest.raises(AssertionError, match="free already"):
            free_map.release(block)
        free_map.take(block)
        with pytest.raises(AssertionError, match="not free"):
            free_map.take(block)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_trial_leaves_no_trace(name: str) -> None:
    free_map = free_map_for(TOPOLOGIES[name])
    sizes = list(TOPOLOGIES[name].sizes)
    before = [free_map.count(size) for size in sizes]
    block = free_map.find(sizes[-1])
    assert block is not None
    with savepoint(free_map) as attempt:
        attempt.take(block)
        attempt.release(block)
        attempt.take(block)
        assert not free_map.is_free(block)
    assert [free_map.count(size) for size in sizes] == before


def test_soonest_prefers_the_earliest_end_then_fewest_held_then_the_lowest_address() -> None:
    free_map = free_map_for(PowerOfTwo(1, 16, 16))
    holds = [
        HeldBlock(Block(range(1)), Timestamp(50)),
        HeldBlock(Block(range(4, 6)), Timestamp(20)),
        HeldBlock(Block(range(8, 9)), Timestamp(20)),
        HeldBlock(Block(range(12, 13)), NO_RELEASE),
    ]
    assert free_map.soonest(4, holds) == (Block(range(8, 12)), 20)
    assert free_map.soonest(8, holds) == (Block(range(8)), 50)
    assert free_map.soonest(16, holds) == (Block(range(16)), NO_RELEASE)


@pytest.mark.parametrize("name", TOPOLOGIES)
@given(data=st.data())
def test_soonest_is_the_best_of_all_blocks(name: str, data: st.DataObject) -> None:
    topology = TOPOLOGIES[name]
    ends = st.sampled_from([0, 10, 20, NO_RELEASE, OUT_OF_SERVICE])
    held = data.draw(st.dictionaries(st.integers(0, topology.n_devices - 1), ends))
    size = data.draw(st.sampled_from(list(topology.sizes)))
    holds = [HeldBlock(Block(range(i, i + 1)), Timestamp(until)) for i, until in held.items()]
    found = free_map_for(topology).soonest(size, holds)

    def last(block: Block) -> int:
        return max((held.get(index, 0) for index in block), default=0)

    assert found is not None
    assert topology.is_block(found[0])
    assert found[1] == last(found[0]) == min(map(last, blocks_of(topology, size)))


def test_soonest_sees_every_device_of_a_partition_that_is_no_block_of_ours() -> None:
    """It was made outside: here on devices that are no neighbours, and on some that are but not of one block."""
    free_map = free_map_for(PowerOfTwo(1, 16, 16))
    scattered, shifted = HeldBlock(Block.of([0, 5]), NO_RELEASE), HeldBlock(Block(range(11, 16)), Timestamp(20))
    assert free_map.soonest(4, [scattered]) == (Block(range(8, 12)), 0)
    assert free_map.soonest(4, [scattered, shifted]) == (Block(range(8, 12)), 20)  # one device of it, not four


class FreeMapMachine(RuleBasedStateMachine):
    """Random takes and releases: nothing overlaps, and the map is a function of what is taken, not of how."""

    @initialize(name=st.sampled_from(sorted(TOPOLOGIES)))
    def start(self, name: str) -> None:
        self.topology = TOPOLOGIES[name]
        self.map = free_map_for(self.topology)
        self.live: list[Block] = []

    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        size = data.draw(st.sampled_from(list(self.topology.sizes)))
        block = self.map.find(size)
        if block is None:
            assert self.map.count(size) == 0
            return
        assert self.topology.is_block(block)
        assert not any(block.overlaps(other) for other in self.live)
        self.map.take(block)
        self.live.append(block)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.map.release(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    @invariant()
    def canonical(self) -> None:
        if not hasattr(self, "map"):
            return
        fresh = map_with(self.topology, frozenset(index for block in self.live for index in block))
        assert self.map.free == fresh.free == self.topology.n_devices - sum(map(len, self.live))
        for size in self.topology.sizes:
            assert self.map.count(size) == fresh.count(size)
            assert self.map.find(size) == fresh.find(size)
        everything = Block(range(self.topology.n_devices))
        if self.topology.is_block(everything):
            parts = self.map.free_within(everything)
            assert sum(map(len, parts)) == self.map.free
            assert all(self.map.is_free(part) for part in parts)


TestFreeMapMachine = FreeMapMachine.TestCase
TestFreeMapMachine.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@given(st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=40))
def test_divisible_sizes_placed_largest_first_waste_nothing(sizes: list[int]) -> None:
    """Known result (Coffman, Garey, Johnson 1987): sorted decreasing, they fit iff their sum does."""
    free_map = free_map_for(PowerOfTwo(2, 16, 16))
    fits = True
    for size in sorted(sizes, reverse=True):
        block = free_map.find(size)
        if block is None:
            fits = False
            break
        free_map.take(block)
    assert fits == (sum(sizes) <= 32)
