"""Which block is reserved for a claim that must wait."""

from __future__ import annotations

from dataclasses import replace

from moorings.core.model.devices import PoolName
from moorings.core.model.inputs import DrainDevice
from moorings.core.model.timestamps import add_seconds
from moorings.core.model.topology import Block
from moorings.core.scheduling.reservations import ReservableBlockSearch
from tests.unit.core.worlds import POD, World, drafted

POD2 = replace(POD, name=PoolName("pod2"))


def test_the_block_that_is_free_soonest_is_reserved_once_in_a_pool() -> None:
    world = World(POD, POD2)
    late, soon = (world.ready(16, gcds=2, time_limit_s=limit_s) for limit_s in (90.0, 60.0))
    wait = world.pending(8)
    with drafted(world) as draft:
        pools, search = list(draft.snapshot.pools.values()), ReservableBlockSearch(draft)
        found = search.find(wait, pools)
        assert found is not None
        assert (found.state.pool.name, found.block) == (POD2.name, Block(range(8)))
        assert found.until == add_seconds(world.claim(soon.id).ready_at or world.now, 60)
        draft.reserve(wait, found.state, found.block, found.until, found.spare)
        second = search.find(world.pending(8), pools)
        assert second is not None
        assert second.state.pool.name == world.claim(late.id).pool == POD.name
        draft.reserve(wait, second.state, second.block, second.until, second.spare)
        assert search.find(world.pending(8), pools) is None


def test_a_size_of_which_no_block_will_be_empty_is_looked_for_once() -> None:
    world = World(POD)
    world.step(DrainDevice(POD.name, 3, "hot"), DrainDevice(POD.name, 11, "hot"))
    with drafted(world) as draft:
        search, pools = ReservableBlockSearch(draft), list(draft.snapshot.pools.values())
        assert not search.is_closed(POD.name, 8)
        assert search.find(world.pending(8), pools) is None
        assert search.is_closed(POD.name, 8)
        assert not search.is_closed(POD.name, 4)
