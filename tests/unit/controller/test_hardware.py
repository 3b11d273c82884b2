"""Acts on drivers, step by step: turns, listings and time go on only when the test says so.

The driver is the simulated one, the store SQLite: real, and without a delay of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from moorings.controller.driver_manager import REMOVAL_RETRY_S, RETRY_S, SPARED_S, DriverManager
from moorings.core.model.claims import ClaimId, ClaimState, PartitionId
from moorings.core.model.driver_results import DriverResult, PartitionSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import ResetPartition
from moorings.core.model.partitions import PartitionState
from moorings.core.reconcile import LISTINGS_REQUIRED, mark_for
from moorings.drivers.simulated.faults import Fault, FaultKind, VendorCall
from moorings.ports.store import LogPosition, Seq
from tests.unit.controller.stepping import POOL, Stepper, made_of


class Rig(Stepper):
    """One controller's hardware, and ways to look at it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.in_use: set[str] = set()
        self.noted: list[LogPosition] = []
        self.full_disk = False
        self.hardware = DriverManager(
            self.loop, {POOL.name: self.driver}, self.clock, self.installation, self._is_in_use, self._note
        )
        self.extra: list[asyncio.Task[None]] = []

    async def _is_in_use(self, name: str) -> bool:
        return name in self.in_use

    async def _note(self, known: LogPosition) -> None:
        if self.full_disk:
            raise MooringsError("store.unavailable", "the disk is full", retryable=True)
        self.noted.append(known)

    def tasks(self) -> list[asyncio.Task[None]]:
        return [*self.hardware._orders.values(), *self.hardware._strays.values(), *self.extra]

    async def end(self) -> None:
        self.hardware._closing = True
        await super().end()

    async def look(self, times: int = 1) -> None:
        """So many listings, and what follows from each."""
        for _ in range(times):
            assert await self.hardware._take_listing(POOL.name, self.hardware._watches[POOL.name]) == ""
            await self.settle()

    async def leave_behind(self, name: str, partition: str = "claim-gone-0") -> None:
        """A partition with our mark that no record knows."""
        await self.driver.create(made_of(name, "0-3", mark_for(self.installation, PartitionId(partition))))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    await rig.end()


# -- orders ----------------------------------------------------------------------------------------------------------


async def test_an_order_that_was_lost_is_given_again(rig: Rig) -> None:
    rig.driver.faults.add(Fault(kind=FaultKind.TIMEOUT_BEFORE, calls=frozenset({VendorCall.CREATE}), times=1))
    claim = await rig.claim()
    assert rig.state(claim) is ClaimState.GRANTED
    rig.clock.forward(RETRY_S)
    await rig.settle()
    assert rig.state(claim) is ClaimState.READY
    assert len(await rig.names()) == 1


async def test_a_removal_that_failed_is_tried_again_until_nothing_is_left(rig: Rig) -> None:
    """Law 2: the claim goes, and what could not be removed stays in the records until it is gone."""
    claim = await rig.claim()
    rig.driver.faults.add(Fault(kind=FaultKind.REMOVAL_FAILS, calls=frozenset({VendorCall.REMOVE}), times=1))
    await rig.release(claim)
    (partition,) = rig.loop.fleet.partitions.values()
    assert partition.state is PartitionState.ERROR
    rig.extra.append(asyncio.create_task(rig.hardware._retry_removals()))
    await rig.settle()
    rig.clock.forward(REMOVAL_RETRY_S)
    await rig.settle()
    assert rig.loop.fleet.partitions == {}
    assert await rig.names() == set()


async def test_a_replaced_controller_resets_nothing(rig: Rig) -> None:
    """A reset wipes what a job of the new leader has in its partition: no later leader could put that right."""
    claim = await rig.claim()
    partition = rig.loop.fleet.claims[claim].partition
    assert partition is not None
    asked = asyncio.create_task(rig.loop.submit(ResetPartition(partition)))
    await asyncio.sleep(0)
    await rig.loop.turn()  # saved; the order is about to be given
    rig.lose_the_lead()
    await rig.settle()
    await asked
    held = rig.driver.hardware.find_partition(rig.loop.fleet.partitions[partition].name, rig.clock.now())
    assert held is not None
    assert not held.was_reset
    assert "leads this installation" in rig.hardware.delays[partition]


async def test_no_partition_is_made_before_the_high_water_mark_is_noted(rig: Rig) -> None:
    """Else a database that goes back to before that commit knows nothing of it, and nothing else does either."""
    rig.full_disk = True
    claim = await rig.claim()
    assert (rig.noted, await rig.names()) == ([], set())
    assert "the disk is full" in next(iter(rig.hardware.delays.values()))
    rig.full_disk = False
    rig.clock.forward(RETRY_S)
    await rig.settle()
    assert rig.state(claim) is ClaimState.READY
    (noted,) = rig.noted
    granted = rig.store.list_events(Seq(0), 100, names=["claim.granted"])[-1].seq
    assert (noted.seq >= granted, noted.epoch) == (True, rig.loop.epoch)


# -- strays ----------------------------------------------------------------------------------------------------------


async def test_a_stray_is_removed_once_the_database_agrees_that_we_lead(rig: Rig) -> None:
    await rig.leave_behind("forgotten")
    await rig.look(LISTINGS_REQUIRED - 1)
    assert await rig.names() == {"forgotten"}
    await rig.look()
    assert await rig.names() == set()
    assert len(rig.store.list_events(Seq(0), 100, names=["partition.stray_found"])) == 1


async def test_a_replaced_controller_removes_nothing_of_the_new_leader_s(rig: Rig) -> None:
    """To one that slept while another was made leader, the partitions of that one are strays."""
    rig.lose_the_lead()
    await rig.leave_behind("of-the-new-leader", "claim-new-0")
    await rig.look(LISTINGS_REQUIRED + 2)
    assert await rig.names() == {"of-the-new-leader"}
    assert rig.store.list_events(Seq(0), 100, names=["partition.stray_found"]) == []


async def test_a_stray_that_is_in_use_is_spared_until_it_is_not(rig: Rig) -> None:
    """Law 3: processes of a job may be in it, though a restored database knows nothing of them."""
    rig.in_use.add("forgotten")
    await rig.leave_behind("forgotten")
    await rig.look(LISTINGS_REQUIRED + 2)
    assert await rig.names() == {"forgotten"}
    assert rig.hardware.stray_partitions() == ([], ["forgotten"])
    assert not rig.loop.fleet.pools[POOL.name].free.is_free(made_of("x", "0-3", "").block), "given to nobody meanwhile"
    rig.in_use.clear()
    rig.clock.forward(SPARED_S)
    await rig.settle()
    await rig.look()
    assert await rig.names() == set()


async def test_a_spared_stray_stays_told_as_spared_and_is_told_to_the_log_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.in_use.add("forgotten")
    await rig.leave_behind("forgotten")
    await rig.look(LISTINGS_REQUIRED)
    for _ in range(3):
        assert rig.hardware.stray_partitions() == ([], ["forgotten"])
        rig.clock.forward(SPARED_S)
        await rig.settle()
        assert rig.hardware.stray_partitions() == ([], ["forgotten"]), "also between two questions whether it is in use"
        await rig.look()
    told = [record.getMessage() for record in caplog.records if "stray" in record.getMessage()]
    assert sorted(told) == ["partition.stray_found", "partition.stray_spared"]


async def test_the_devices_of_a_stray_are_given_to_nobody_from_the_first_look(rig: Rig) -> None:
    await rig.leave_behind("forgotten")
    await rig.look()
    assert not rig.loop.fleet.pools[POOL.name].free.is_free(made_of("x", "0-3", "").block)
    assert rig.hardware.unrecorded_names(POOL.name) == {"forgotten"}


async def test_a_partition_removed_while_a_listing_was_taken_is_no_stray(rig: Rig) -> None:
    claim = await rig.claim()
    before = {ident: partition.version for ident, partition in rig.loop.fleet.partitions.items()}
    sightings = list(await rig.driver.list_partitions())
    await rig.release(claim)
    assert rig.loop.fleet.partitions == {}
    rig.hardware._reconcile(POOL.name, rig.hardware._watches[POOL.name], before, {}, sightings)
    await rig.settle()
    assert rig.loop.fleet.pools[POOL.name].foreign_blocks == {}


async def test_a_partition_made_while_a_listing_was_taken_is_no_stray(rig: Rig) -> None:
    """A listing that was begun before a partition was saved knows more than the records of its beginning."""
    claim = await rig.claim()
    watch = rig.hardware._watches[POOL.name]
    for _ in range(LISTINGS_REQUIRED):
        sightings = await rig.driver.list_partitions()
        rig.hardware._reconcile(POOL.name, watch, {}, {}, list(sightings))
        await rig.settle()
    assert len(await rig.names()) == 1
    assert rig.state(claim) is ClaimState.READY
    assert ClaimId(claim) in rig.loop.fleet.claims


# -- what another controller ordered ---------------------------------------------------------------------------------


async def test_drivers_are_told_what_the_database_holds(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first order: it may be a reset, or a removal, of what another machine ordered."""
    claim = await rig.claim()
    said: list[str] = []
    obey, adopt = rig.driver.reset, rig.driver.register_partitions

    async def reset(name: str, mark: str) -> DriverResult:
        said.append(f"reset {name}")
        return await obey(name, mark)

    def know(held: Sequence[PartitionSpec]) -> None:
        said.extend(f"held {order.name} on {order.block} {order.mark}" for order in held)
        adopt(held)

    monkeypatch.setattr(rig.driver, "register_partitions", know)
    monkeypatch.setattr(rig.driver, "reset", reset)
    (partition,) = rig.loop.fleet.partitions.values()
    rig.loop.submit_nowait(ResetPartition(partition.id))
    await rig.loop.turn()
    said.clear()
    await rig.loop.load()
    await rig.settle()
    assert said[0] == f"held {partition.name} on {partition.block} {mark_for(rig.installation, partition.id)}"
    assert said[1:] == [f"reset {partition.name}"]
    assert rig.state(claim) is ClaimState.READY
