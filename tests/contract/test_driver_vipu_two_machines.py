"""A V-IPU pool that is driven from two machines: each has its own list of orders, the database says what is held."""

from __future__ import annotations

from pathlib import Path

import pytest

from moorings.app.clock import SystemClock
from moorings.core.model.driver_results import ListedPartition, ObservedState, PartitionSpec, ResultCode
from moorings.core.model.topology import Block
from moorings.drivers.vipu.driver import VipuDriver
from tests.unit.drivers.vipu_rig import VipuRig


class Machines(VipuRig):
    """One V-IPU controller that two machines reach."""

    def machine_of(self, name: str) -> VipuDriver:
        return VipuDriver(self.pool, self.settings, self.data.with_name(name), SystemClock())


@pytest.fixture
def rig(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def order(name: str, first: int = 0, size: int = 4, attempt: str = "1") -> PartitionSpec:
    return PartitionSpec(name, Block(range(first, first + size)), 1, 1, f"moorings/site/{name}-{attempt}")


async def sight(driver: VipuDriver, name: str) -> ListedPartition:
    return next(one for one in await driver.list_partitions() if one.name == name)


async def active(driver: VipuDriver, given: PartitionSpec) -> None:
    assert (await driver.create(given)).verdict is ResultCode.OK
    assert (await sight(driver, given.name)).state is ObservedState.ACTIVE


async def test_what_the_database_holds_is_ours_though_another_machine_ordered_it(rig: Machines) -> None:
    one, two = rig.machine_of("one"), rig.machine_of("two")
    await active(one, held := order("train"))
    two.register_partitions([held])
    assert (await sight(two, "train")).mark == held.mark
    assert (await two.binding(held)).partition == "train"
    assert (await two.reset("train", held.mark)).verdict is ResultCode.OK
    assert (await two.create(held)).verdict is ResultCode.OK
    assert (await two.remove("train", held.mark)).verdict is ResultCode.OK
    assert rig.there() == {}


async def test_nothing_is_ordered_before_it_is_known_what_is_held(rig: Machines) -> None:
    """The first that a new leader does may be a reset or a removal."""
    one = rig.machine_of("one")
    await active(one, first := order("first"))
    await active(one, second := order("second", 4))
    two = rig.machine_of("two")
    two.register_partitions([first, second])
    assert (await two.reset("first", first.mark)).verdict is ResultCode.OK
    assert (await two.remove("second", second.mark)).verdict is ResultCode.OK
    assert list(rig.there()) == ["first"]


async def test_a_name_that_is_used_again_is_whose_the_database_says(rig: Machines) -> None:
    """The first machine's list still has the claim that had the name when it led."""
    one, two = rig.machine_of("one"), rig.machine_of("two")
    await active(one, before := order("train"))
    two.register_partitions([before])
    await two.remove("train", before.mark)
    await active(two, since := order("train", attempt="2"))
    one.register_partitions([since])
    assert (await sight(one, "train")).mark == since.mark
    assert (await one.remove("train", before.mark)).seen is ObservedState.ABSENT
    assert list(rig.there()) == ["train"], "the old claim's end is not the new one's"


async def test_one_on_other_ipus_is_left_alone(rig: Machines) -> None:
    one, two = rig.machine_of("one"), rig.machine_of("two")
    await active(one, order("train", 4))
    two.register_partitions([held := order("train", 0)])
    assert (await sight(two, "train")).mark == ""
    assert (await two.create(held)).verdict is ResultCode.UNAVAILABLE
    assert (await two.remove("train", held.mark)).seen is ObservedState.ABSENT
    assert list(rig.there()) == ["train"]


@pytest.mark.parametrize("ended", ["removed", "never ordered", "made again"])
async def test_what_is_held_no_longer_makes_nobodys_partition_ours(rig: Machines, ended: str) -> None:
    two = rig.machine_of("two")
    held = order("train")
    two.register_partitions([held])
    if ended == "made again":
        await active(two, held)
    if ended != "never ordered":
        await two.remove("train", held.mark)
    else:
        two.register_partitions([])
    stranger = rig.machine_of("stranger")
    await active(stranger, order("train", attempt="theirs"))
    assert (await sight(two, "train")).mark == ""


async def test_an_order_of_this_machine_is_not_replaced_by_what_was_held_before(rig: Machines) -> None:
    two = rig.machine_of("two")
    two.register_partitions([order("train")])
    await active(two, given := order("train", attempt="2"))
    assert (await sight(two, "train")).mark == given.mark
