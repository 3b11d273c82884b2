"""Each fault, as a controller meets it."""

import pytest

from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.topology import Block, Catalogue
from moorings.drivers.simulated.faults import Fault, FaultKind, VendorCall, VendorFaults
from moorings.drivers.simulated.settings import SimulatedSettings
from tests.unit.drivers.simulated_rig import AT_ONCE, MARK, SimulatedRig, order, states

# ---- orders


async def test_timeout_before_does_nothing(instant):
    instant.trouble(FaultKind.TIMEOUT_BEFORE, times=1)
    assert (await instant.driver.create(order("p", "0-3"))).verdict is ResultCode.UNAVAILABLE
    assert await instant.driver.list_partitions() == []
    assert (await instant.driver.create(order("p", "0-3"))).verdict is ResultCode.OK


async def test_timeout_before_can_meet_a_binding(instant):
    await instant.driver.create(order("p", "0-3"))
    instant.trouble(FaultKind.TIMEOUT_BEFORE, calls=frozenset({VendorCall.BINDING}), times=1)
    with pytest.raises(MooringsError) as caught:
        await instant.driver.binding(order("p", "0-3"))
    assert caught.value.code == "driver.unavailable"
    assert (await instant.driver.binding(order("p", "0-3"))).partition == "p"


@pytest.mark.parametrize("kind", [FaultKind.TIMEOUT_AFTER_SUCCESS, FaultKind.ERROR_ON_RESULT])
async def test_an_answer_lost_or_spoilt_belongs_to_an_order_that_was_done(instant, kind):
    instant.trouble(kind)
    answer = await instant.driver.create(order("p", "0-3"))
    assert (answer.verdict, answer.seen) == (ResultCode.UNAVAILABLE, ObservedState.UNKNOWN)
    assert states(await instant.driver.list_partitions()) == {"p": ObservedState.ACTIVE}
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.UNAVAILABLE
    assert await instant.driver.list_partitions() == []


async def test_a_rejected_order_is_not_spoilt(instant):
    instant.trouble(FaultKind.TIMEOUT_AFTER_SUCCESS, times=1)
    assert (await instant.driver.create(order("p", "0-2"))).verdict is ResultCode.REJECTED
    assert (await instant.driver.create(order("p", "0-3"))).verdict is ResultCode.UNAVAILABLE


async def test_reject_leaves_everything_as_it_is(instant):
    await instant.driver.create(order("p", "0-3"))
    instant.trouble(FaultKind.REJECT)
    assert (await instant.driver.create(order("q", "4-7"))).verdict is ResultCode.REJECTED
    assert await instant.driver.remove("p", MARK) == DriverResult(
        ResultCode.REJECTED, ObservedState.ACTIVE, "remove of p refused (error 9)"
    )
    assert states(await instant.driver.list_partitions()) == {"p": ObservedState.ACTIVE}


async def test_name_too_long_strikes_below_the_promised_limit(instant):
    instant.trouble(FaultKind.NAME_TOO_LONG, chars=5)
    answer = await instant.driver.create(order("sixsix", "0-3"))
    assert answer == DriverResult(ResultCode.REJECTED, ObservedState.ABSENT, "Failed to acquire 4 IPU(s)")
    assert (await instant.driver.create(order("five5", "0-3"))).verdict is ResultCode.OK


async def test_slow_makes_orders_take_longer(rig):
    rig.trouble(FaultKind.SLOW, factor=10, calls=frozenset({VendorCall.CREATE}))
    await rig.driver.create(order("p", "0-3"))
    rig.clock.forward(3.39)
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.PROVISIONING}
    rig.clock.forward(0.01)
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.ACTIVE}
    await rig.driver.remove("p", MARK)
    rig.clock.forward(0.2)
    assert states(await rig.driver.list_partitions()) == {}, "only making was slow"


async def test_hang_answers_late_what_was_true_before(rig):
    await rig.driver.create(order("p", "0-3"))
    rig.trouble(FaultKind.HANG, seconds=30, calls=frozenset({VendorCall.CREATE, VendorCall.LIST}))
    asked_at = rig.clock.now()
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.PROVISIONING}
    assert await rig.driver.create(order("q", "4-7")) == DriverResult(ResultCode.OK, ObservedState.PROVISIONING)
    assert rig.clock.now() - asked_at == 60_000_000
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.ACTIVE, "q": ObservedState.ACTIVE}


async def test_reset_fails_and_removal_fails_leave_the_partition_broken(instant):
    await instant.driver.create(order("p", "0-3"))
    instant.trouble(FaultKind.RESET_FAILS, times=1)
    instant.trouble(FaultKind.REMOVAL_FAILS, times=1)
    answer = await instant.driver.reset("p", MARK)
    assert (answer.verdict, answer.seen) == (ResultCode.BROKEN, ObservedState.ERROR)
    answer = await instant.driver.remove("p", MARK)
    assert (answer.verdict, answer.seen) == (ResultCode.BROKEN, ObservedState.ERROR)
    assert states(await instant.driver.list_partitions()) == {"p": ObservedState.ERROR}
    assert (await instant.driver.reset("p", MARK)).verdict is ResultCode.BROKEN
    assert (await instant.driver.create(order("p", "0-3"))).verdict is ResultCode.BROKEN
    assert (await instant.driver.create(order("q", "0-3"))).verdict is ResultCode.UNAVAILABLE, (
        "its devices are not free"
    )
    assert await instant.driver.remove("p", MARK) == DriverResult(ResultCode.OK, ObservedState.ABSENT)


async def test_a_removal_can_fail_on_its_way(rig):
    await rig.driver.create(order("p", "0-3"))
    await rig.driver.remove("p", MARK)
    rig.trouble(FaultKind.REMOVAL_FAILS, times=1)
    assert (await rig.driver.remove("p", MARK)).verdict is ResultCode.BROKEN
    rig.clock.forward(10)
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.ERROR}


# ---- hardware


async def test_an_agent_that_is_down_breaks_what_touches_its_four_devices(instant):
    await instant.driver.create(order("p", "0-3"))
    await instant.driver.create(order("q", "4"))
    down = instant.trouble(FaultKind.AGENT_DOWN, devices=Block.parse("1"))
    assert states(await instant.driver.list_partitions()) == {"p": ObservedState.ERROR, "q": ObservedState.ACTIVE}
    for answer in (await instant.driver.reset("p", MARK), await instant.driver.remove("p", MARK)):
        assert (answer.verdict, answer.seen) == (ResultCode.BROKEN, ObservedState.ERROR)
    with pytest.raises(MooringsError, match="PS_ERROR"):
        await instant.driver.binding(order("p", "0-3"))
    assert (await instant.driver.remove("q", MARK)).verdict is ResultCode.OK
    instant.driver.faults.remove(down)
    assert states(await instant.driver.list_partitions()) == {"p": ObservedState.ACTIVE}, "it is reachable again"
    instant.driver.faults.add(down)
    await instant.driver.create(order("q", "4-7"))
    assert (await instant.driver.create(order("r", "2"))) == DriverResult(
        ResultCode.BROKEN, ObservedState.ABSENT, "the agent of an IPU-Machine with devices of 2 is unreachable"
    )


async def test_an_agent_that_is_down_may_be_silence(instant):
    instant.trouble(FaultKind.AGENT_DOWN, answer=ResultCode.UNAVAILABLE)
    assert (await instant.driver.create(order("p", "0-3"))).verdict is ResultCode.UNAVAILABLE
    assert await instant.driver.list_partitions() == []


async def test_with_a_probability_the_same_agents_stay_down(tmp_path):
    rig = SimulatedRig(
        tmp_path, AT_ONCE, topology=Catalogue(400, tuple(Block(range(i, i + 4)) for i in range(0, 400, 4)))
    )
    rig.restart()
    for index in range(0, 400, 4):
        await rig.driver.create(order(f"p{index}", f"{index}-{index + 3}"))
    rig.trouble(FaultKind.AGENT_DOWN, probability=0.3)
    first = states(await rig.driver.list_partitions())
    assert 10 < sum(seen is ObservedState.ERROR for seen in first.values()) < 50
    assert states(await rig.driver.list_partitions()) == first
    rig.kill()


async def test_breaks_while_provisioning_never_gets_ready(rig):
    rig.trouble(FaultKind.BREAKS_WHILE_PROVISIONING, names=("bad*",))
    await rig.driver.create(order("bad-1", "0-3"))
    await rig.driver.create(order("good", "4-7"))
    rig.clock.forward(0.34)
    assert states(await rig.driver.list_partitions()) == {"bad-1": ObservedState.ERROR, "good": ObservedState.ACTIVE}
    assert states(await rig.restart().list_partitions())["bad-1"] is ObservedState.ERROR, "it is broken for good"


async def test_breaks_while_provisioning_meets_also_what_is_being_made_already(rig):
    await rig.driver.create(order("p", "0-3"))
    rig.trouble(FaultKind.BREAKS_WHILE_PROVISIONING)
    await rig.driver.list_partitions()
    rig.clock.forward(1)
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.ERROR}


async def test_breaks_while_provisioning_at_once_answers_broken(instant):
    instant.trouble(FaultKind.BREAKS_WHILE_PROVISIONING, times=1)
    answer = await instant.driver.create(order("p", "0-3"))
    assert (answer.verdict, answer.seen) == (ResultCode.BROKEN, ObservedState.ERROR)


@pytest.mark.parametrize(
    ("kind", "then"), [(FaultKind.BREAKS_WHILE_ACTIVE, {"p": ObservedState.ERROR}), (FaultKind.VANISHES, {})]
)
async def test_an_active_partition_breaks_or_vanishes_after_some_seconds(rig, kind, then):
    rig.trouble(kind, seconds=5, times=1)
    await rig.driver.create(order("p", "0-3"))
    rig.clock.forward(0.34)
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.ACTIVE}
    rig.clock.forward(4.99)
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.ACTIVE}
    rig.clock.forward(0.01)
    assert states(await rig.driver.list_partitions()) == then
    assert states(await rig.restart().list_partitions()) == then


async def test_what_vanished_left_its_devices_free(instant):
    await instant.driver.create(order("p", "0-3"))
    instant.trouble(FaultKind.VANISHES, times=1)
    assert await instant.driver.list_partitions() == []
    assert (await instant.driver.create(order("q", "0-3"))).verdict is ResultCode.OK
    assert await instant.driver.remove("p", MARK) == DriverResult(ResultCode.OK, ObservedState.ABSENT)


# ---- listings


async def test_an_unknown_state_is_shown_as_unknown(instant):
    await instant.driver.create(order("p", "0-3"))
    instant.trouble(FaultKind.LYING_UNKNOWN, times=1, raw="PS_HIBERNATING")
    (sighting,) = await instant.driver.list_partitions()
    assert (sighting.state, sighting.vendor_state) == (ObservedState.UNKNOWN, "PS_HIBERNATING")
    (sighting,) = await instant.driver.list_partitions()
    assert (sighting.state, sighting.vendor_state) == (ObservedState.ACTIVE, "PS_ACTIVE")


async def test_a_listing_can_fail_be_empty_or_lack_some(instant):
    for name, devices in (("a", "0-3"), ("b", "4-7")):
        await instant.driver.create(order(name, devices))
    instant.trouble(FaultKind.LISTING_FAILS, times=1)
    with pytest.raises(MooringsError) as caught:
        await instant.driver.list_partitions()
    assert (caught.value.code, caught.value.retryable) == ("driver.unavailable", True)
    instant.trouble(FaultKind.LISTING_EMPTY, times=2)
    assert [await instant.driver.list_partitions() for _ in range(2)] == [[], []]
    instant.trouble(FaultKind.LISTING_PARTIAL, names=("b",), times=1)
    assert set(states(await instant.driver.list_partitions())) == {"a"}
    assert set(states(await instant.driver.list_partitions())) == {"a", "b"}


# ---- the vendor's controller, and other people


@pytest.mark.parametrize(
    ("usual", "says", "after"),
    [
        ("kept", None, {"p": ObservedState.ACTIVE}),
        ("kept", "lost", {}),
        ("lost", None, {}),
        ("lost", "kept", {"p": ObservedState.ACTIVE}),
    ],
)
async def test_a_restart_is_silence_and_then_the_state_it_left(tmp_path, usual, says, after):
    rig = SimulatedRig(tmp_path, SimulatedSettings(restart=usual))
    await rig.restart().create(order("p", "0-3"))
    rig.trouble(FaultKind.RESTART, seconds=5, state=says)
    assert (await rig.driver.remove("p", MARK)).verdict is ResultCode.UNAVAILABLE
    rig.clock.forward(4.9)
    driver = rig.restart()
    with pytest.raises(MooringsError, match="restarting"):
        await driver.list_partitions()
    rig.clock.forward(0.1)
    assert states(await driver.list_partitions()) == after
    rig.kill()


async def test_somebody_makes_a_partition_by_hand_and_it_goes_again(instant):
    instant.trouble(FaultKind.STRAY, names=("by-hand",), devices=Block.parse("0-3"), seconds=60)
    (sighting,) = await instant.driver.list_partitions()
    assert (sighting.name, str(sighting.block), sighting.mark) == ("by-hand", "0-3", "")
    assert (await instant.driver.create(order("p", "0-3"))).detail == "device in use: 0-3 overlaps partition by-hand"
    assert (await instant.driver.create(order("by-hand", "4-7"))).verdict is ResultCode.UNAVAILABLE
    instant.clock.forward(60)
    assert await instant.driver.list_partitions() == []


@pytest.mark.parametrize("topology", [None, Catalogue(8, (Block.parse("0-3"), Block.parse("4-5"), Block.parse("6-7")))])
async def test_a_stray_without_devices_takes_a_small_free_block_and_none_if_there_is_none(tmp_path, topology):
    rig = SimulatedRig(tmp_path, AT_ONCE, **({"topology": topology} if topology else {}))
    await rig.restart().create(order("p", "0-3"))
    rig.trouble(FaultKind.STRAY, times=9)
    listings = [await rig.driver.list_partitions() for _ in range(9)]
    strays = [sighting for sighting in listings[-1] if sighting.mark == ""]
    assert sorted(index for stray in strays for index in stray.block) == [4, 5, 6, 7]
    assert {len(stray.block) for stray in strays} == ({2} if topology else {1})
    rig.kill()


# ---- whom and how often


async def test_faults_choose_by_name_device_call_and_number(instant):
    instant.trouble(
        FaultKind.REJECT, names=("x-*",), devices=Block.parse("0-3"), calls=frozenset({VendorCall.CREATE}), times=2
    )
    assert (await instant.driver.create(order("y", "0"))).verdict is ResultCode.OK
    assert (await instant.driver.create(order("x-1", "4"))).verdict is ResultCode.OK
    assert [(await instant.driver.create(order("x-2", "1"))).verdict for _ in range(3)] == [
        ResultCode.REJECTED,
        ResultCode.REJECTED,
        ResultCode.OK,
    ]
    assert (await instant.driver.remove("x-2", MARK)).verdict is ResultCode.OK


async def test_faults_by_device_meet_orders_that_name_only_the_partition(instant):
    await instant.driver.create(order("p", "0-3"))
    await instant.driver.create(order("q", "4-7"))
    instant.trouble(FaultKind.TIMEOUT_BEFORE, devices=Block.parse("5"))
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.OK
    assert (await instant.driver.remove("q", MARK)).verdict is ResultCode.UNAVAILABLE


async def test_faults_can_be_cleared(instant):
    instant.trouble(FaultKind.REJECT)
    instant.driver.faults.clear()
    assert not instant.driver.faults
    assert (await instant.driver.create(order("p", "0-3"))).verdict is ResultCode.OK


# ---- the same seed, the same trouble


async def _story(folder, seed, *more):
    rig = SimulatedRig(folder, SimulatedSettings(seed=seed))
    rig.restart()
    for kind in (FaultKind.TIMEOUT_AFTER_SUCCESS, FaultKind.REJECT, FaultKind.VANISHES, FaultKind.LYING_UNKNOWN):
        rig.trouble(kind, probability=0.3)
    for kind in more:
        rig.trouble(kind, probability=0.5)
    story: list[object] = []
    for number in range(60):
        if number == 30:
            rig.restart()
            rig.trouble(FaultKind.TIMEOUT_BEFORE, probability=0.3)
        story.append(await rig.driver.create(order(f"p{number % 5}", str(number % 8))))
        rig.clock.forward(0.2)
        story.append(tuple(await rig.driver.list_partitions()))
        story.append(await rig.driver.remove(f"p{(number + 2) % 5}", MARK))
    rig.kill()
    return story


async def test_the_same_seed_and_calls_give_the_same_answers_and_another_seed_others(tmp_path):
    story = await _story(tmp_path / "a", 7)
    assert await _story(tmp_path / "b", 7) == story
    assert await _story(tmp_path / "c", 8) != story


def test_a_fault_strikes_the_same_whatever_other_faults_there_are():
    alone, among = VendorFaults(1), VendorFaults(1)
    alone.add(Fault(kind=FaultKind.REJECT, probability=0.5))
    among.add(Fault(kind=FaultKind.HANG, probability=0.5), Fault(kind=FaultKind.REJECT, probability=0.5))
    strikes = [alone.inject(FaultKind.REJECT, VendorCall.CREATE) is not None for _ in range(50)]
    others = [
        (among.inject(FaultKind.HANG, VendorCall.CREATE), among.inject(FaultKind.REJECT, VendorCall.CREATE))
        for _ in range(50)
    ]
    assert [reject is not None for _, reject in others] == strikes
    assert 10 < sum(strikes) < 40


def test_a_new_process_meets_new_chances():
    def strikes(opening):
        faults = VendorFaults(1, opening)
        faults.add(Fault(kind=FaultKind.REJECT, probability=0.5))
        return [faults.inject(FaultKind.REJECT, VendorCall.CREATE) is not None for _ in range(50)]

    assert strikes(1) == strikes(1)
    assert strikes(1) != strikes(2)


async def test_a_fate_is_drawn_once_however_often_one_looks(rig):
    rig.trouble(FaultKind.BREAKS_WHILE_ACTIVE, probability=0.5)
    for index in range(8):
        await rig.driver.create(order(f"p{index}", str(index), mark=MARK))
    rig.clock.forward(1)
    first = states(await rig.driver.list_partitions())
    for _ in range(20):
        assert states(await rig.driver.list_partitions()) == first
    assert set(first.values()) == {ObservedState.ACTIVE, ObservedState.ERROR}
