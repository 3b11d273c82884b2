"""Ends of holds: every topology answers as a plain table of its devices' ends does, and a trial leaves no trace."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo, Topology
from moorings.core.placement.free_map import NO_RELEASE, OUT_OF_SERVICE
from moorings.core.placement.release_times import (
    FREE,
    BuddyReleaseTimes,
    CatalogueReleaseTimes,
    DeferredReleaseTimes,
    ReleaseTimes,
    ReleaseTimesSavepoint,
    SubsetReleaseTimes,
    release_times_for,
)
from tests.sampling import examples

RACK = Catalogue(12, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6) for s in range(0, 12, n)))
SCATTERED = Catalogue(6, (Block((0, 2)), Block((1, 3)), Block((0, 5)), Block((1, 2, 4)), Block(range(3, 6))))
TOPOLOGIES: tuple[Topology, ...] = (
    PowerOfTwo(2, 8, 16),
    PowerOfTwo(3, 4, 8),  # its last domain is half of a largest block
    PowerOfTwo(3, 4, 2),
    AnySubset(10, 6),
    RACK,
    SCATTERED,
)

instants = st.sampled_from([FREE, Timestamp(0), Timestamp(5), Timestamp(7), Timestamp(9), NO_RELEASE, OUT_OF_SERVICE])


def blocks_of(topology: Topology, size: int) -> list[Block]:
    """The blocks of a size; of a pool without blocks: none."""
    if isinstance(topology, Catalogue):
        found = [block for block in topology.blocks if len(block) == size]
        return sorted(found, key=lambda block: (block.start, tuple(block)))
    if isinstance(topology, PowerOfTwo) and size in topology.sizes:
        return [Block(range(at, at + size)) for at in range(0, topology.n_devices - size + 1, size)]
    return []


def soonest(topology: Topology, size: int, until: dict[int, Timestamp]) -> tuple[Block, Timestamp, int] | None:
    """The last end inside, the devices held, the address: of every block there is."""
    if isinstance(topology, AnySubset):
        ordered = sorted(until.values())
        if size > len(ordered):
            return None
        last = ordered[size - 1]
        able = sorted(((end, -index) for index, end in until.items() if end <= last), reverse=True)[:size]
        return Block.of([-index for _, index in able]), last, sum(end != FREE for end, _ in able)
    found = [
        (max(until[i] for i in block), sum(until[i] != FREE for i in block), number, block)
        for number, block in enumerate(blocks_of(topology, size))
    ]
    if not found:
        return None
    last, held, _, block = min(found, key=lambda one: one[:3])
    return block, last, held


def freed_by(size: int, until: dict[int, Timestamp]) -> tuple[Timestamp, int] | None:
    ordered = sorted(until.values())
    if size > len(ordered):
        return None
    last = ordered[size - 1]
    return last, sum(end <= last for end in ordered)


def seen(ends: ReleaseTimes, topology: Topology) -> list[object]:
    """All that can be asked."""
    everything = Block(range(topology.n_devices))
    devices = [ends.release_time(index) for index in range(topology.n_devices)]
    sizes = [*topology.sizes, topology.n_devices, topology.n_devices + 1]
    return [
        devices,
        ends.release_times_within(everything),
        *(ends.earliest_block(size) for size in topology.sizes),
        *map(ends.earliest_count, sizes),
    ]


puts = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 1 << 16), st.booleans(), instants), max_size=40)


def block_for(topology: Topology, first: int, second: int, *, strange: bool) -> Block:
    """A block of the topology, or any devices: a partition made outside is no block of ours."""
    n_devices = topology.n_devices
    if isinstance(topology, AnySubset) or strange:
        mask = (first * 40_503 + second) % ((1 << n_devices) - 1) + 1
        return Block.of([index for index in range(n_devices) if mask >> index & 1])
    sizes = [size for size in topology.sizes if blocks_of(topology, size)]
    able = blocks_of(topology, sizes[first % len(sizes)])
    return able[second % len(able)]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
@settings(max_examples=examples(60), deadline=None)
@given(puts, puts)
def test_ends_answer_as_a_table_of_all_devices(
    topology: Topology, known: list[tuple[int, int, bool, Timestamp]], tried: list[tuple[int, int, bool, Timestamp]]
) -> None:
    ends = release_times_for(topology)
    until = dict.fromkeys(range(topology.n_devices), FREE)

    def check() -> None:
        assert [ends.release_time(index) for index in until] == list(until.values())
        for size in topology.sizes:
            assert ends.earliest_block(size) == soonest(topology, size, until)
        for size in range(1, topology.n_devices + 2):
            assert ends.earliest_count(size) == freed_by(size, until)

    check()
    for first, second, strange, end in known:
        block = block_for(topology, first, second, strange=strange)
        ends.set_release(block, end)
        until |= dict.fromkeys(block, end)
        check()
    before, kept = seen(ends, topology), dict(until)
    on_trial = ReleaseTimesSavepoint(ends)
    for first, second, strange, end in tried:
        block = block_for(topology, first, second, strange=strange)
        on_trial.put(block, end)
        until |= dict.fromkeys(block, end)
        check()
    on_trial.rollback()
    assert seen(ends, topology) == before
    until = kept
    check()
    on_trial.rollback()  # there is nothing left to put back
    assert seen(ends, topology) == before


@given(puts)
def test_what_is_read_of_a_block_can_be_put_back(given: list[tuple[int, int, bool, Timestamp]]) -> None:
    topology = PowerOfTwo(2, 8, 16)
    ends, copy = release_times_for(topology), release_times_for(topology)
    for first, second, strange, end in given:
        ends.set_release(block_for(topology, first, second, strange=strange), end)
    for block, end in ends.release_times_within(Block(range(16))):
        copy.set_release(block, end)
    assert seen(copy, topology) == seen(ends, topology)


def test_a_block_of_one_end_is_read_as_one() -> None:
    ends = release_times_for(PowerOfTwo(2, 8, 16))
    half = Block(range(8))
    ends.set_release(half, Timestamp(5))
    assert ends.release_times_within(half) == [(half, Timestamp(5))]
    assert len(ends.release_times_within(Block(range(16)))) == 16


def test_each_topology_has_ends_of_its_own() -> None:
    kinds = {type(release_times_for(topology)) for topology in TOPOLOGIES}
    assert kinds == {BuddyReleaseTimes, SubsetReleaseTimes, CatalogueReleaseTimes}


def test_a_size_of_which_there_is_no_block_is_never_empty() -> None:
    assert release_times_for(PowerOfTwo(1, 4, 4)).earliest_block(8) is None
    assert release_times_for(AnySubset(4, 4)).earliest_block(5) is None
    assert release_times_for(RACK).earliest_block(4) is None


def test_late_ends_are_written_when_they_are_read_and_undone():
    ends = BuddyReleaseTimes(PowerOfTwo(1, 8, 8))
    late = DeferredReleaseTimes(ends)
    late.put(Block(range(4)), Timestamp(5))
    assert ends.release_time(0) == FREE
    assert late.flush().release_time(0) == Timestamp(5)
    late.put(Block(range(1)), Timestamp(9))
    assert [late.flush().release_time(index) for index in (0, 1)] == [Timestamp(9), Timestamp(5)]
    late.put(Block(range(4, 8)), Timestamp(7))  # nobody reads it
    late.rollback()
    assert [ends.release_time(index) for index in range(8)] == [FREE] * 8
