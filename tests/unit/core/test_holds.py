"""What a pool expects of those that hold it: ends that passed in vain, that are new, that come again with the clock."""

from __future__ import annotations

import pytest

from moorings.core.model.claims import PartitionId
from moorings.core.model.devices import PoolName
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import Block, Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet, FleetChanges, PoolState
from moorings.core.placement.free_map import NO_RELEASE, HeldBlock
from moorings.core.placement.release_times import FREE
from tests.unit.core.worlds import World

POD = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(1, 8, 8))
NOW = Timestamp(1_000 * SECOND)
HELD = PartitionId("claim-a-0")
BLOCK = Block(range(4))


@pytest.fixture
def state() -> PoolState:
    return Fleet([POD]).pools[POD.name]


def test_an_end_that_passed_in_vain_is_expected_no_more_until_there_is_a_new_one(state: PoolState) -> None:
    state.set_held_block(HELD, HeldBlock(BLOCK, add_seconds(NOW, 5)))
    state.mark_overdue(add_seconds(NOW, 6))
    assert state.release_times.release_time(0) == NO_RELEASE
    state.set_held_block(HELD, HeldBlock(BLOCK, add_seconds(NOW, 9)))  # it was asked to yield by then
    assert state.release_times.release_time(0) == add_seconds(NOW, 9)
    state.mark_overdue(add_seconds(NOW, 10))
    assert state.release_times.release_time(0) == NO_RELEASE, "nor the new one, once it has passed, too"


def test_an_end_comes_again_where_the_clock_was_set_back(state: PoolState) -> None:
    state.set_held_block(HELD, HeldBlock(BLOCK, add_seconds(NOW, 5)))
    state.mark_overdue(add_seconds(NOW, 6))
    state.mark_overdue(NOW)
    assert state.release_times.release_time(0) == add_seconds(NOW, 5)


def test_what_has_gone_is_expected_by_nobody_when_the_clock_is_set_back() -> None:
    world = World(POD)
    claim = world.ready(4, time_limit_s=60.0)
    held = world.partition(claim)
    world.now = add_seconds(world.now, 100.0)
    world.step()
    state = world.fleet.pools[POD.name]
    assert state.overdue == {held.id}
    world.fleet.apply(FleetChanges(removed_partitions={held.id: held.version}))
    assert state.overdue == set()
    state.mark_overdue(add_seconds(world.now, -200.0))
    assert state.release_times.release_time(0) == FREE
