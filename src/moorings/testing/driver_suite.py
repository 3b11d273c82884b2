"""The contract of ``ports.driver``, as tests for every driver.

A driver's test module subclasses ``DriverSuite`` and gives it a fixture ``rig``: the hardware (real, recorded or
simulated) with the few controls the tests need. Each test gets a fresh one, with nothing on it::

    class TestSimulatedDriver(DriverSuite):
        @pytest.fixture
        def rig(self, tmp_path): ...

Refused: one list of tests parametrized over all drivers. It would have to know every driver, and a driver outside this
project could not run it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Protocol

from moorings.core.model.bindings import Binding, Rendezvous, task_environment
from moorings.core.model.devices import device_id
from moorings.core.model.driver_results import DriverResult, ListedPartition, ObservedState, PartitionSpec, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.partitions import gcd_blocks
from moorings.core.model.topology import Block, Pool
from moorings.ports.driver import Driver

STEPS_MAX = 1000  # how often time may pass until an expected state comes
MARK = "moorings/test-installation"
FOREIGN_MARK = "moorings/another-installation"

_API = {"IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PORT", "IPUOF_VIPU_API_PARTITION_ID", "IPUOF_VIPU_API_TIMEOUT"}


class DriverRig(Protocol):
    """Hardware to test a driver on: at least eight devices, of which 0-3 and 4-7 are blocks, and 2-5 is none."""

    @property
    def pool(self) -> Pool:
        """The pool."""
        ...

    async def open(self) -> Driver:
        """A driver for the hardware in its present state, as a new controller process makes it; only one is open."""
        ...

    async def pass_time(self) -> None:
        """Let some time pass for the hardware."""
        ...

    def lose_next_answer(self) -> None:
        """Do the next order, but lose its response."""
        ...

    def show_unknown_state(self, name: str) -> None:
        """From now on the vendor shows an unknown state for that partition."""
        ...

    def stop_answering(self) -> None:
        """From now on the vendor's controller does not respond."""
        ...


class DriverSuite:
    """The contract; see the module."""

    # ---- making

    async def test_a_partition_becomes_active_as_it_was_ordered(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            assert_done(await driver.create(order), ObservedState.PROVISIONING, ObservedState.ACTIVE)
            sighting = await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
            assert sighting.block == order.block
            assert sighting.mark == MARK

    async def test_creating_again_answers_for_the_partition_that_exists(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            await driver.create(order)
            answer = await driver.create(order)
            assert answer.verdict is ResultCode.OK, answer
            await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
            assert_done(await driver.create(order), ObservedState.ACTIVE)
            assert await partition_names(driver) == [order.name]

    async def test_a_strangers_partition_of_that_name_stays_the_strangers(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            theirs = order_for(rig, "0-3", mark=FOREIGN_MARK)
            await driver.create(theirs)
            answer = await driver.create(order_for(rig, "4-7", name=theirs.name))
            assert answer.verdict is ResultCode.UNAVAILABLE, answer
            answer = await driver.create(order_for(rig, "0-3", name=theirs.name))
            assert answer.verdict is ResultCode.UNAVAILABLE, answer
            sighting = await wait_for_state(rig, driver, theirs.name, ObservedState.ACTIVE)
            assert sighting.block == theirs.block
            assert sighting.mark in {FOREIGN_MARK, ""}
            with_error = await error_of(driver.binding(order_for(rig, "0-3", name=theirs.name)))
            assert with_error.code == "partition.not_active"

    async def test_a_name_as_long_as_promised_is_taken_and_a_longer_one_is_not(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            longest = "n" * driver.capability.name_chars_max
            answer = await driver.create(order_for(rig, "0-3", name=longest + "n"))
            assert answer.verdict is ResultCode.REJECTED, answer
            assert await partition_names(driver) == []
            answer = await driver.create(order_for(rig, "0-3", name=longest))
            assert answer.verdict is ResultCode.OK, answer
            assert await partition_names(driver) == [longest]

    # ---- isolation

    async def test_a_stranger_s_partition_is_never_removed_or_reset(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            theirs = order_for(rig, "0-3", mark=FOREIGN_MARK)
            await driver.create(theirs)
            assert_done(await driver.remove(theirs.name, MARK), ObservedState.ABSENT)
            answer = await driver.reset(theirs.name, MARK)
            assert answer.verdict is ResultCode.REJECTED, answer
            assert await partition_names(driver) == [theirs.name]

    async def test_a_device_is_in_one_partition_only(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            await driver.create(order_for(rig, "0-3", name="first"))
            answer = await driver.create(order_for(rig, "0-3", name="second"))
            assert answer.verdict is ResultCode.UNAVAILABLE, answer
            assert answer.detail
            assert await partition_names(driver) == ["first"]
            answer = await driver.create(order_for(rig, "4-7", name="third"))
            assert answer.verdict is ResultCode.OK, answer

    async def test_of_two_orders_at_once_for_the_same_devices_one_is_done(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            orders = [order_for(rig, "0-3", name=f"rival-{number}") for number in range(4)]
            answers = await asyncio.gather(*(driver.create(order) for order in orders))
            done = [
                order.name for order, answer in zip(orders, answers, strict=True) if answer.verdict is ResultCode.OK
            ]
            assert len(done) == 1, answers
            assert await partition_names(driver) == done

    async def test_what_the_topology_does_not_allow_is_rejected(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            answer = await driver.create(order_for(rig, "2-5"))
            assert answer.verdict is ResultCode.REJECTED, answer
            assert await partition_names(driver) == []

    # ---- removing

    async def test_a_removed_partition_goes_and_its_devices_are_free(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            await driver.create(order)
            await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
            assert_done(await driver.remove(order.name, MARK), ObservedState.REMOVING, ObservedState.ABSENT)
            await wait_until_removed(rig, driver, order.name)
            answer = await driver.create(order_for(rig, "0-3", name="next"))
            assert answer.verdict is ResultCode.OK, answer

    async def test_removing_can_be_asked_again_and_again(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            await driver.create(order)
            for _ in range(3):
                answer = await driver.remove(order.name, MARK)
                assert answer.verdict is ResultCode.OK, answer
            await wait_until_removed(rig, driver, order.name)
            assert_done(await driver.remove(order.name, MARK), ObservedState.ABSENT)

    async def test_removing_what_never_was_is_done(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            assert_done(await driver.remove("never-was", MARK), ObservedState.ABSENT)

    async def test_a_partition_can_be_made_anew_under_its_old_name(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            await driver.create(order)
            await driver.remove(order.name, MARK)
            await wait_until_removed(rig, driver, order.name)
            again = order_for(rig, "4-7", name=order.name)
            answer = await driver.create(again)
            assert answer.verdict is ResultCode.OK, answer
            assert (await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)).block == again.block

    # ---- resetting

    async def test_a_reset_partition_stays_and_becomes_active(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            await driver.create(order)
            before = await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
            answer = await driver.reset(order.name, MARK)
            assert_done(answer, ObservedState.RESETTING, ObservedState.ACTIVE)
            after = await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
            assert (after.block, after.mark) == (before.block, before.mark)

    async def test_what_is_not_there_cannot_be_reset(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            answer = await driver.reset("never-was", MARK)
            assert answer.verdict is ResultCode.REJECTED, answer

    # ---- seeing

    async def test_a_listing_has_every_partition(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            assert await partition_names(driver) == []
            orders = [order_for(rig, str(index), name=f"one-{index}") for index in range(4)]
            orders.append(order_for(rig, "4-7", name="four", mark=FOREIGN_MARK))
            for order in orders:
                await driver.create(order)
            listing = {sighting.name: sighting.block for sighting in await driver.list_partitions()}
            assert listing == {order.name: order.block for order in orders}

    async def test_an_unknown_state_is_neither_ready_nor_gone(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            await driver.create(order)
            await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
            rig.show_unknown_state(order.name)
            sighting = await wait_for_state(rig, driver, order.name, ObservedState.UNKNOWN)
            assert sighting.vendor_state, "the vendor's own word is told"
            assert (await error_of(driver.binding(order))).code == "partition.not_active"
            assert (await driver.create(order)).seen is ObservedState.UNKNOWN

    # ---- what a job is given

    async def test_there_is_no_binding_before_the_partition_is_active(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            error = await error_of(driver.binding(order))
            assert error.code == "partition.not_active"
            assert error.retryable
            await driver.create(order)
            await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
            await driver.remove(order.name, MARK)
            assert (await error_of(driver.binding(order))).code == "partition.not_active"

    async def test_a_binding_gives_each_gcd_its_share(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "4-7", gcds=2)
            binding = await bind_partition(rig, driver, order)
            assert binding.partition == order.name
            assert [gcd.gcd for gcd in binding.gcds] == [0, 1]
            shares = [tuple(device_id(rig.pool.name, index) for index in share) for share in gcd_blocks(order.block, 2)]
            assert [gcd.devices for gcd in binding.gcds] == shares
            assert await driver.binding(order) == binding, "asking again gives the same"

    async def test_a_binding_has_files_and_an_api_or_neither(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3", gcds=2)
            binding = await bind_partition(rig, driver, order)
            if rig.pool.kind != "ipu":
                assert not binding.api
                assert not any(gcd.file_name for gcd in binding.gcds)
                return
            assert set(binding.api) == _API, "the GCD is the task's own, and no secret belongs here"
            assert binding.api["IPUOF_VIPU_API_PARTITION_ID"] == order.name
            for gcd in binding.gcds:
                assert gcd.file_name == f"{order.name}_gcd{gcd.gcd}_ipuof.conf"
                text = json.loads(gcd.file_text)
                assert text["attributes"]["GCD Id"] == str(gcd.gcd)
                assert len(text["devices"]) == len(gcd.devices)

    async def test_a_task_gets_the_file_form_or_the_api_form_never_both(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            binding = await bind_partition(rig, driver, order_for(rig, "0-3", gcds=2))
            meeting = Rendezvous("127.0.0.1", 29_500)
            with_files = task_environment(binding, 1, meeting, run="run-1", files_folder="/ipuof")
            without = task_environment(binding, 1, meeting, run="run-1")
            assert not (_API & set(with_files) and "IPUOF_CONFIG_PATH" in with_files)
            assert "IPUOF_CONFIG_PATH" not in without
            assert ("IPUOF_VIPU_API_GCD_ID" in without) == bool(binding.api)

    # ---- trouble

    async def test_an_order_whose_answer_was_lost_can_be_given_again(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            rig.lose_next_answer()
            assert (await driver.create(order)).verdict is ResultCode.UNAVAILABLE
            assert await partition_names(driver) == [order.name]
            assert (await driver.create(order)).verdict is ResultCode.OK
            assert await partition_names(driver) == [order.name]
            await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
            rig.lose_next_answer()
            assert (await driver.remove(order.name, MARK)).verdict is ResultCode.UNAVAILABLE
            assert (await driver.remove(order.name, MARK)).verdict is ResultCode.OK
            await wait_until_removed(rig, driver, order.name)

    async def test_silence_is_unavailable_and_never_an_empty_listing(self, rig: DriverRig) -> None:
        async with open_driver(rig) as driver:
            order = order_for(rig, "0-3")
            await bind_partition(rig, driver, order)
            rig.stop_answering()
            for answer in (
                await driver.create(order_for(rig, "4-7")),
                await driver.reset(order.name, MARK),
                await driver.remove(order.name, MARK),
            ):
                assert answer.verdict is ResultCode.UNAVAILABLE, answer
            assert (await error_of(driver.list_partitions())).code == "driver.unavailable"
            assert (await error_of(driver.binding(order))).code == "driver.unavailable"

    # ---- the hardware outlives its driver

    async def test_a_new_driver_finds_everything_as_it_was(self, rig: DriverRig) -> None:
        active, making = order_for(rig, "0-3"), order_for(rig, "4-7")
        async with open_driver(rig) as driver:
            binding = await bind_partition(rig, driver, active)
            await driver.create(making)
        async with open_driver(rig) as driver:
            assert await partition_names(driver) == sorted([active.name, making.name])
            assert await driver.binding(active) == binding
            assert (await driver.create(making)).verdict is ResultCode.OK
            await wait_for_state(rig, driver, making.name, ObservedState.ACTIVE)
            await driver.remove(active.name, MARK)
        async with open_driver(rig) as driver:
            await wait_until_removed(rig, driver, active.name)
            assert await partition_names(driver) == [making.name]


@asynccontextmanager
async def open_driver(rig: DriverRig) -> AsyncIterator[Driver]:
    """A driver for the rig's hardware, closed at the end."""
    driver = await rig.open()
    try:
        yield driver
    finally:
        await driver.close()


def order_for(rig: DriverRig, devices: str, *, name: str = "", gcds: int = 1, mark: str = MARK) -> PartitionSpec:
    """An order for a partition on those devices, named after them by default."""
    return PartitionSpec(name or f"{rig.pool.name}-{devices}", Block.parse(devices), gcds, 1, mark)


def assert_done(answer: DriverResult, *seen: ObservedState) -> None:
    """Check that the order was taken, and left the partition in one of these states."""
    assert answer.verdict is ResultCode.OK, answer
    assert answer.seen in seen, answer


async def bind_partition(rig: DriverRig, driver: Driver, order: PartitionSpec) -> Binding:
    """Make a partition; return its binding."""
    await driver.create(order)
    await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
    return await driver.binding(order)


async def partition_names(driver: Driver) -> list[str]:
    """The names in a listing, sorted."""
    return sorted(sighting.name for sighting in await driver.list_partitions())


async def wait_for_state(rig: DriverRig, driver: Driver, name: str, seen: ObservedState) -> ListedPartition:
    """Wait until that partition is in that state; return its entry in the listing."""
    found = await _until(rig, driver, name, lambda sighting: sighting is not None and sighting.state is seen)
    assert found is not None
    return found


async def wait_until_removed(rig: DriverRig, driver: Driver, name: str) -> None:
    """Wait until that partition is no longer listed."""
    await _until(rig, driver, name, lambda sighting: sighting is None)


async def _until(
    rig: DriverRig, driver: Driver, name: str, reached: Callable[[ListedPartition | None], bool]
) -> ListedPartition | None:
    sighting: ListedPartition | None = None
    for _ in range(STEPS_MAX):
        listing = await driver.list_partitions()
        sighting = next((one for one in listing if one.name == name), None)
        if reached(sighting):
            return sighting
        await rig.pass_time()
    raise AssertionError(f"{name} is still {sighting} after time passed {STEPS_MAX} times")


async def error_of(call: Coroutine[object, object, object]) -> MooringsError:
    """The error of ``call``."""
    try:
        result = await call
    except MooringsError as error:
        return error
    raise AssertionError(f"it did not fail: {result}")
