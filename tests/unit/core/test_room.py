"""Room: what is moved makes a free block, who cannot be moved stays, and only what is impossible is called so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.claims import ClaimId
from moorings.core.model.devices import PoolName
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo, Topology
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.free_map import free_map_for
from moorings.core.placement.plans import Holder
from moorings.core.placement.release_times import release_times_for
from moorings.core.scheduling.relocation import Relocation, find_relocation
from tests.sampling import examples

NOW = Timestamp(10_000 * SECOND)
MOVE_S = 120.0
RACK = Catalogue(12, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6) for s in range(0, 12, n)))
CROSSED = Catalogue(6, (*(Block.single(i) for i in range(6)), *map(Block, ((0, 3), (1, 2, 3), (0, 4, 5), (2, 5)))))
POWERS: tuple[Topology, ...] = (PowerOfTwo(2, 8, 16), PowerOfTwo(3, 4, 8), PowerOfTwo(2, 8, 8))


class Case:
    """A pool with tenants, and devices that nobody may use."""

    def __init__(self, topology: Topology, tenants: Iterable[Holder], kept: Iterable[int] = ()) -> None:
        pool = Pool(PoolName("pool"), "ipu", "simulated", topology)
        self.state = PoolState(pool, free_map_for(topology), release_times_for(topology))
        self.tenants = list(tenants)
        self.kept = set(kept)
        for index in {*self.kept, *(index for one in self.tenants for index in one.block)}:
            self.state.free.allocate(Block.single(index))

    def room(self, size: int, moves_max: int = 100) -> Relocation | None:
        """What is found; it leaves the pool as it was."""
        n_devices = self.state.pool.topology.n_devices
        before = [self.state.free.is_free(Block.single(index)) for index in range(n_devices)]
        found = find_relocation(self.state, size, self.tenants, NOW, MOVE_S, moves_max)
        assert [self.state.free.is_free(Block.single(index)) for index in range(n_devices)] == before
        return found

    def check(self, found: Relocation, size: int) -> None:
        """Once all have moved, everybody sits in a block of his size, apart from all others and from the room."""
        topology = self.state.pool.topology
        assert len(found.block) == size
        assert topology.is_block(found.block)
        goes = {one.claim: block for one, block in found.moves}
        assert len(goes) == len(found.moves)
        taken = set(self.kept)
        for one in self.tenants:
            block = goes.get(one.claim, one.block)
            assert one.is_movable or block == one.block
            assert len(block) == len(one.block)
            assert topology.is_block(block)
            assert taken.isdisjoint(block)
            taken.update(block)
        assert taken.isdisjoint(found.block)
        assert all(block != one.block for one, block in found.moves)
        assert found.cost == pytest.approx(sum(cost(one) for one, _ in found.moves))


def cost(one: Holder) -> float:
    """Device-seconds: since its last checkpoint, and for the move."""
    assert one.ready_at is not None
    return len(one.block) * ((NOW - max(one.ready_at, one.checkpoint_at or 0)) / SECOND + MOVE_S)


def tenant(number: int, block: Iterable[int], *, movable: bool = True, ran_s: int = 100) -> Holder:
    since = Timestamp(NOW - ran_s * SECOND)
    return Holder(ClaimId(f"c{number}"), PoolName("pool"), Block.of(list(block)), is_movable=movable, ready_at=since)


drawn_tenants = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, 2, 2, 3, 4, 6, 8]), st.integers(0, 15), st.sampled_from([1, 100, 5000])),
    max_size=12,
)


def placed(topology: Topology, drawn: Iterable[tuple[int, int, int]], fixed: Iterable[int] = ()) -> list[Holder]:
    """Tenants scattered over a pool; those of ``fixed``, by number, cannot be moved."""
    free = free_map_for(topology)
    stay, found = set(fixed), list[Holder]()
    for number, (size, at, ran_s) in enumerate(drawn):
        if isinstance(topology, Catalogue):
            blocks = [block for block in topology.blocks if len(block) == size]
        else:
            blocks = [Block(range(start, start + size)) for start in range(0, topology.n_devices - size + 1, size)]
            blocks = [block for block in blocks if size in topology.sizes]
        able = [block for block in blocks if free.is_free(block)]
        if able:
            block = able[at % len(able)]
            free.allocate(block)
            found.append(tenant(number, block, movable=number not in stay, ran_s=ran_s))
    return found


def packs(topology: PowerOfTwo, size: int, tenants: Iterable[Holder], kept: Iterable[int]) -> bool:
    """Whether all fit with a block of ``size`` beside what stays, by trying everything."""
    everybody = list(tenants)
    taken = frozenset(kept).union(*(one.block for one in everybody if not one.is_movable))
    sizes = sorted([size, *(len(one.block) for one in everybody if one.is_movable)], reverse=True)
    for each in sizes:  # largest first, anywhere it fits: sizes divide each other, so no second try is needed
        starts = range(0, topology.n_devices - each + 1, each)
        block = next(
            (range(start, start + each) for start in starts if taken.isdisjoint(range(start, start + each))), None
        )
        if block is None:
            return False
        taken = taken.union(block)
    return True


@pytest.mark.parametrize("topology", POWERS, ids=repr)
@settings(max_examples=examples(200), deadline=None)
@given(drawn_tenants, st.sampled_from([1, 2, 4, 8, 16]), st.sets(st.integers(0, 15), max_size=2))
def test_if_all_can_be_moved_there_is_room_wherever_enough_is_free(
    topology: PowerOfTwo, drawn: list[tuple[int, int, int]], size: int, kept: set[int]
) -> None:
    """Room is found if and only if there is some; nobody asks where a block is free already."""
    tenants = placed(topology, drawn)
    held = {index for one in tenants for index in one.block}
    case = Case(topology, tenants, {index for index in kept if index < topology.n_devices} - held)
    if size > topology.max_block or case.state.free.find_block(size) is not None:
        return
    found = case.room(size)
    # Only those of its size and smaller ever move for it.
    still = [replace(one, is_movable=len(one.block) <= size) for one in tenants]
    able = case.state.free.n_free >= size and packs(topology, size, still, case.kept)
    assert (found is not None) == able
    if found is not None:
        case.check(found, size)
        assert case.room(size, len(found.moves)) is not None
        fewer = case.room(size, len(found.moves) - 1)
        assert fewer is None or len(fewer.moves) < len(found.moves)


@pytest.mark.parametrize("topology", [*POWERS, RACK, CROSSED], ids=repr)
@settings(max_examples=examples(200), deadline=None)
@given(drawn_tenants, st.integers(0, 4), st.sets(st.integers(0, 11)), st.sets(st.integers(0, 15), max_size=3))
def test_nobody_moves_who_cannot_and_nobody_is_in_anothers_place(
    topology: Topology, drawn: list[tuple[int, int, int]], at: int, fixed: set[int], kept: set[int]
) -> None:
    tenants = placed(topology, drawn, fixed)
    held = {index for one in tenants for index in one.block}
    case = Case(topology, tenants, {index for index in kept if index < topology.n_devices} - held)
    size = topology.sizes[at % len(topology.sizes)]
    if case.state.free.find_block(size) is not None:
        return
    found = case.room(size)
    if found is not None:
        case.check(found, size)


def test_the_cheapest_block_is_emptied() -> None:
    """Two that have run for long in one half, one that has just begun in the other."""
    old = [tenant(1, range(2), ran_s=5000), tenant(2, range(4, 6), ran_s=5000)]
    young = tenant(3, range(8, 10), ran_s=1)
    case = Case(PowerOfTwo(2, 8, 16), [*old, young])
    found = case.room(8)
    assert found is not None
    assert [one.claim for one, _ in found.moves] == [young.claim]
    assert found.block == Block(range(8, 16))


def test_what_is_kept_is_no_room() -> None:
    case = Case(PowerOfTwo(2, 8, 16), [tenant(1, range(2)), tenant(2, range(8, 10))], kept=[7, 15])
    assert case.room(8) is None
    assert case.room(4) is not None or case.state.free.find_block(4) is not None


def test_larger_ones_never_move_for_a_smaller() -> None:
    large = tenant(1, range(8))
    small = [tenant(n, [n]) for n in (8, 12)]
    found = Case(PowerOfTwo(2, 8, 16), [large, *small]).room(4)
    assert found is None or large not in [one for one, _ in found.moves]


def test_all_are_packed_anew_where_no_block_can_be_emptied_alone() -> None:
    """Every pair of four has a single: one of the pairs is emptied only if two swap."""
    topology = PowerOfTwo(1, 8, 8)
    singles = [tenant(n, [n]) for n in (0, 2, 4, 6)]
    found = Case(topology, singles).room(4)
    assert found is not None
    assert len(found.moves) == 2


def test_a_block_that_lies_across_another_is_moved_too() -> None:
    """Of a catalogue's blocks one may be partly in another."""
    across = tenant(1, (0, 3))
    topology = Catalogue(6, (across.block, Block(range(4, 6)), Block(range(1, 4))))
    found = Case(topology, [across]).room(3)
    assert found is not None
    assert (found.block, found.moves) == (Block(range(1, 4)), ((across, Block(range(4, 6))),))
    assert Case(topology, [across], kept=[2]).room(3) is None


@pytest.mark.parametrize(("topology", "moves_max"), [(AnySubset(8, 8), 9), (PowerOfTwo(1, 8, 8), 0)], ids=repr)
def test_nothing_is_moved_where_nothing_can_be(topology: Topology, moves_max: int) -> None:
    case = Case(topology, [tenant(1, [0]), tenant(2, [4])])
    assert case.room(4, moves_max) is None
