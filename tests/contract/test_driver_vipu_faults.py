"""What the vipu driver makes of a vendor that fails, lies, hangs, forgets, and has other customers."""

import asyncio
import json
import subprocess
from contextlib import asynccontextmanager

import pytest

from moorings.core.model.driver_results import ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.topology import Block
from moorings.drivers.vipu import cli as tool_module
from moorings.drivers.vipu import misplacements as misses_module
from moorings.drivers.vipu import running_commands
from moorings.drivers.vipu.listing import MISPLACED
from moorings.drivers.vipu.misplacements import REJECTED_FROM
from moorings.testing.driver_suite import (
    MARK,
    error_of,
    open_driver,
    order_for,
    partition_names,
    wait_for_state,
    wait_until_removed,
)
from moorings.testing.fake_vipu import calls_of, release_held, vanish
from tests.procfs import every_process
from tests.unit.drivers.vipu_rig import AS_ORDERED, ORDERS, VipuRig
from tests.waiting import until_async as until

SPOILT = ["garbage", "binary", "half", "empty", "flood", "fail_before"]
DEADLINE_S = 20.0


@pytest.fixture
def rig(tmp_path):
    return VipuRig(tmp_path)


@pytest.fixture
def hasty(monkeypatch):
    """Orders are answered soon though their command continues."""
    monkeypatch.setattr(running_commands, "ANSWER_WAIT_S", 0.1)


def by_hand(rig: VipuRig, *words: str) -> str:
    """What a stranger does, with the same command."""
    return subprocess.run([str(rig.command), *words], check=True, capture_output=True, text=True).stdout


def processes_of(rig: VipuRig) -> list[int]:
    """The command's processes, and what they started, that still run."""
    groups = {call["pid"] for call in calls_of(rig.machine)}
    living = []
    for pid, stat in every_process("stat"):
        state, _, group = stat.rpartition(b") ")[2].split()[:3]
        if int(group) in groups and state != b"Z":
            living.append(pid)
    return living


@asynccontextmanager
async def made(rig: VipuRig, devices: str = "0-3"):
    """A driver, and a partition of it that is ACTIVE."""
    async with open_driver(rig) as driver:
        order = order_for(rig, devices)
        await driver.create(order)
        await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
        yield driver, order


# ---- answers that are none


@pytest.mark.parametrize("kind", SPOILT)
async def test_a_listing_that_is_not_understood_is_no_listing(rig, kind, monkeypatch):
    monkeypatch.setattr(tool_module, "OUTPUT_BYTES_MAX", 1 << 20)
    async with made(rig) as (driver, order):
        rig.trouble({"kind": kind, "on": ["list"]})
        assert (await error_of(driver.list_partitions())).code == "driver.unavailable"
        assert (await error_of(driver.binding(order))).code == "driver.unavailable"
        for answer in (
            await driver.create(order_for(rig, "4-7")),
            await driver.reset(order.name, MARK),
            await driver.remove(order.name, MARK),
        ):
            assert answer.verdict is ResultCode.UNAVAILABLE, answer
            assert answer.detail
        assert rig.there() == {order.name: [0, 1, 2, 3]}, "nothing was ordered without knowing what is there"
        rig.trouble()
        assert await partition_names(driver) == [order.name]
    await until(lambda: processes_of(rig) == [])  # what is killed is gone a moment later


@pytest.mark.parametrize("kind", [kind for kind in SPOILT if kind != "fail_before"])
async def test_a_listing_without_states_needs_a_table_that_is_understood(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(tool_module, "OUTPUT_BYTES_MAX", 1 << 20)
    rig = VipuRig(tmp_path, json_states=False, layout=2)
    async with made(rig) as (driver, order):
        before = len(calls_of(rig.machine))
        await partition_names(driver)
        calls = [call["argv"][2:] for call in calls_of(rig.machine)[before:]]
        assert calls == [["--showjson", "list", "partitions"], ["list", "partitions"]]
        rig.trouble({"kind": "slow", "seconds": 0, "on": ["list"], "times": 1}, {"kind": kind, "on": ["get"]})
        error = await error_of(driver.binding(order))
        assert error.code == "driver.unavailable", "nor is a file for a job that is not understood"


@pytest.mark.parametrize("layout", [0, 1, 2])
async def test_a_table_is_read_whatever_the_order_of_its_columns(tmp_path, layout):
    rig = VipuRig(tmp_path, json_states=False, layout=layout)
    async with made(rig) as (driver, order):
        (sighting,) = await driver.list_partitions()
        assert (sighting.name, sighting.state, sighting.vendor_state) == (order.name, ObservedState.ACTIVE, "ACTIVE")


async def test_a_command_that_hangs_is_killed_with_all_it_started(tmp_path):
    rig = VipuRig(tmp_path, settings={"question_timeout_s": 1.0, "timeout_s": 1.5})
    async with made(rig) as (driver, order):
        rig.trouble({"kind": "hang"})
        error = await error_of(driver.list_partitions())
        assert "within 1 s" in error.detail
        rig.trouble({"kind": "hang", "on": ORDERS})
        answer = await driver.remove(order.name, MARK)
        assert answer.verdict is ResultCode.UNAVAILABLE, answer
    await until(lambda: processes_of(rig) == [])  # what is killed is gone a moment later
    assert rig.there() == {order.name: [0, 1, 2, 3]}


async def test_a_cancelled_question_leaves_no_process(rig):
    async with made(rig) as (driver, _):
        rig.trouble({"kind": "hang"})
        question = asyncio.create_task(driver.list_partitions())
        before = len(calls_of(rig.machine))
        await until(lambda: len(calls_of(rig.machine)) > before)
        question.cancel()
        await asyncio.wait((question,))
        assert question.cancelled()
        await until(lambda: processes_of(rig) == [])


async def test_a_missing_command_is_told_with_what_to_do(tmp_path):
    rig = VipuRig(tmp_path, settings={"command": "/nonexistent/vipu"})
    async with open_driver(rig) as driver:
        error = await error_of(driver.list_partitions())
        assert error.code == "driver.unavailable"
        assert "could not be started" in error.detail
        assert "command" in error.hint


# ---- orders of which the vendor says one thing and does another


async def test_a_success_that_no_listing_shows_is_none(rig):
    async with open_driver(rig) as driver:
        rig.trouble({"kind": "nothing", "on": ["create"], "times": 1})
        answer = await driver.create(order_for(rig, "0-3"))
        assert answer.verdict is ResultCode.UNAVAILABLE
        assert "said that it was done, and pod8-0-3 is not listed" in answer.detail
        assert (await driver.create(order_for(rig, "0-3"))).verdict is ResultCode.OK


async def test_an_order_that_takes_long_is_answered_when_it_is_seen_to_be_taken(rig, hasty, caplog):
    rig.trouble({"kind": "hang_after", "on": ["create"], "times": 1})
    async with open_driver(rig) as driver:
        order = order_for(rig, "0-3")
        assert (await driver.create(order)).verdict is ResultCode.OK
        assert processes_of(rig), "the command runs on behind"
        await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
        answer = await driver.remove(order.name, MARK)
        assert answer.verdict is ResultCode.OK
        await wait_until_removed(rig, driver, order.name)
    await until(lambda: processes_of(rig) == [])  # what is killed is gone a moment later
    assert [each for each in caplog.records if each.name == "asyncio"] == [], "it was stopped, which is no failure"


async def test_a_partition_that_is_being_reset_is_not_active_though_the_vendor_still_says_so(rig, hasty):
    async with made(rig) as (driver, order):
        rig.trouble({"kind": "held", "on": ["reset"], "times": 1})
        assert (await driver.reset(order.name, MARK)).seen is ObservedState.RESETTING
        (sighting,) = await driver.list_partitions()
        assert (sighting.state, sighting.vendor_state) == (ObservedState.RESETTING, "ACTIVE")
        assert (await error_of(driver.binding(order))).code == "partition.not_active"
        assert (await driver.reset(order.name, MARK)).seen is ObservedState.RESETTING, "one reset is enough"
        release_held(rig.machine)
        await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
        resets = [call for call in calls_of(rig.machine) if "reset" in call["argv"]]
        assert len(resets) == 1
        assert resets[0]["ended"] is not None


async def test_what_is_done_late_is_known_as_ours_and_can_be_removed(rig):
    async with open_driver(rig) as driver:
        order = order_for(rig, "0-3")
        rig.trouble({"kind": "late", "seconds": 3600, "on": ["create"], "times": 1})
        assert (await driver.create(order)).verdict is ResultCode.UNAVAILABLE
        answer = await driver.remove(order.name, MARK)
        assert (answer.verdict, answer.seen) == (ResultCode.OK, ObservedState.ABSENT)
        assert list(rig.there()) == [order.name], "it is on its way all the same"
        release_held(rig.machine)
        sighting = await wait_for_state(rig, driver, order.name, ObservedState.ACTIVE)
        assert sighting.mark == MARK
        await driver.remove(order.name, MARK)
        await wait_until_removed(rig, driver, order.name)


async def test_what_was_refused_is_forgotten_once_it_is_given_up(rig):
    async with open_driver(rig) as driver:
        order = order_for(rig, "0-3")
        rig.trouble({"kind": "fail_before", "says": "quota exceeded", "on": ["create"], "times": 1})
        answer = await driver.create(order)
        assert answer.verdict is ResultCode.UNAVAILABLE
        assert "quota exceeded" in answer.detail
        await driver.remove(order.name, MARK)
        by_hand(rig, "create", "partition", order.name, "--size", "4", "--index", "0")
        (sighting,) = await driver.list_partitions()
        assert sighting.mark == "", "the same name, size and devices, but made by somebody else"
        await driver.remove(order.name, MARK)
        assert list(rig.there()) == [order.name]


async def test_a_new_partition_in_error_is_broken(rig):
    async with open_driver(rig) as driver:
        rig.trouble({"kind": "breaks", "on": ["create"], "times": 1})
        answer = await driver.create(order_for(rig, "0-3"))
        assert (answer.verdict, answer.seen) == (ResultCode.BROKEN, ObservedState.ERROR)


async def test_a_removal_that_fails_breaks_only_what_is_in_error(rig):
    async with made(rig) as (driver, order):
        rig.trouble({"kind": "fail_before", "on": ["delete"]})
        assert (await driver.remove(order.name, MARK)).verdict is ResultCode.UNAVAILABLE
        rig.trouble(
            {"kind": "fail_before", "says": "link error", "on": ["delete"]},
            {"kind": "state", "name": order.name, "state": "PS_ERROR", "on": ["list"]},
        )
        answer = await driver.remove(order.name, MARK)
        assert (answer.verdict, answer.seen) == (ResultCode.BROKEN, ObservedState.ERROR)
        assert "link error" in answer.detail


async def test_what_goes_by_itself_while_it_is_being_removed_is_gone(rig):
    async with made(rig) as (driver, order):
        rig.trouble({"kind": "held", "on": ["delete"], "times": 1})
        removing = asyncio.create_task(driver.remove(order.name, MARK))
        await until(lambda: any("delete" in call["argv"] for call in calls_of(rig.machine)))
        vanish(rig.machine, order.name)
        release_held(rig.machine)
        answer = await removing
        assert (answer.verdict, answer.seen) == (ResultCode.OK, ObservedState.ABSENT), answer


# ---- where a partition is


async def test_a_partition_made_elsewhere_is_shown_where_it_is_and_undone(rig):
    async with open_driver(rig) as driver:
        order = order_for(rig, "0-1")
        rig.trouble({"kind": "elsewhere", "on": ["create"], "times": 1})
        answer = await driver.create(order)
        assert answer.verdict is ResultCode.UNAVAILABLE
        assert "on 6-7 and not on 0-1" in answer.detail
        (sighting,) = await driver.list_partitions()
        assert (sighting.name, str(sighting.block), sighting.mark) == (order.name, "6-7", MARK + MISPLACED)
        assert (await error_of(driver.binding(order))).code == "partition.not_active"
        assert (await driver.reset(order.name, MARK)).verdict is ResultCode.REJECTED
        assert (await driver.create(order_for(rig, "6-7"))).verdict is ResultCode.UNAVAILABLE, "its devices are in use"
        for mark in (MARK, MARK + MISPLACED):  # as a partition, and as a stray
            assert (await driver.remove(order.name, mark)).verdict is ResultCode.OK
        await wait_until_removed(rig, driver, order.name)
        assert (await driver.create(order)).verdict is ResultCode.OK


async def test_a_block_that_the_vendor_does_not_give_is_broken_and_no_other(rig):
    rig.trouble({"kind": "avoids", "ipu": 0, "on": ["create"]})
    async with open_driver(rig) as driver:
        for name, verdict in (("one", ResultCode.UNAVAILABLE), ("two", ResultCode.BROKEN)):
            answer = await driver.create(order_for(rig, "0-1", name=name))
            assert answer.verdict is verdict, answer
            assert f"made {name} on 2-3 and not on 0-1" in answer.detail
            again = await driver.create(order_for(rig, "0-1", name=name))
            assert again.verdict is verdict, "an answer that was lost is given again"
            assert (await driver.remove(name, MARK)).verdict is ResultCode.OK
            await wait_until_removed(rig, driver, name)
        assert (await driver.create(order_for(rig, "2-3", name="three"))).verdict is ResultCode.OK
        rig.trouble()
        assert (await driver.create(order_for(rig, "0-1", name="four"))).verdict is ResultCode.OK, "mended"
    assert rig.there() == {"three": [2, 3], "four": [0, 1]}


@pytest.mark.parametrize("steered", [True, False])
async def test_a_vendor_that_follows_no_order_is_told_in_the_end(tmp_path, steered, monkeypatch):
    monkeypatch.setattr(misses_module, "PAUSE_S", 0.01)
    settings = {} if steered else {"create_arguments": ()}
    rig = VipuRig(tmp_path, picks="last", settings=settings)
    rig.trouble({"kind": "elsewhere", "on": ["create"]})
    verdicts, detail = [], ""
    async with open_driver(rig) as driver:
        for number in range(REJECTED_FROM + 1):
            order = order_for(rig, ("0-1", "2-3", "4-5")[number % 3], name=f"p{number}")
            answer = await driver.create(order)
            while "next try in" in answer.detail:  # each look takes longer than the pause
                answer = await driver.create(order)
            verdicts.append(answer.verdict)
            detail = answer.detail
            assert (await driver.remove(order.name, MARK)).verdict is ResultCode.OK
            await wait_until_removed(rig, driver, order.name)
    assert verdicts[-2:] == [ResultCode.REJECTED] * 2
    assert f"made p{REJECTED_FROM} on 6-7 and not on 2-3" in detail
    assert "create_arguments" in detail
    assert ResultCode.REJECTED not in verdicts[:-2]
    assert (ResultCode.BROKEN in verdicts) is steered
    assert rig.there() == {}


async def test_what_is_made_elsewhere_is_not_shown_before_its_order_is_answered(tmp_path):
    """Else its order would count as overtaken, and nobody would hear that its block is broken."""
    rig = VipuRig(tmp_path, waits=True, provision_s=1.0)
    rig.trouble({"kind": "elsewhere", "on": ["create"], "times": 1})
    async with open_driver(rig) as driver:
        order = order_for(rig, "0-1")
        creating = asyncio.create_task(driver.create(order))
        await until(lambda: order.name in rig.there())
        assert await partition_names(driver) == []
        assert not creating.done()
        assert (await creating).verdict is ResultCode.UNAVAILABLE
        assert await partition_names(driver) == [order.name]


@pytest.mark.parametrize("again", [False, True], ids=["this process", "the next process"])
async def test_what_is_made_larger_than_ordered_is_ours_all_the_same(rig, again):
    order = order_for(rig, "0-1")
    rig.trouble({"kind": "larger", "on": ["create"], "times": 1})
    async with open_driver(rig) as driver:
        answer = await driver.create(order)
        assert answer.verdict is ResultCode.UNAVAILABLE
        assert "on 0-3 and not on 0-1" in answer.detail
        (sighting,) = await driver.list_partitions()
        assert (str(sighting.block), sighting.mark) == ("0-3", MARK + MISPLACED)
        if not again:
            assert (await driver.remove(order.name, MARK)).verdict is ResultCode.OK
            await wait_until_removed(rig, driver, order.name)
    if again:
        async with open_driver(rig) as driver:
            (sighting,) = await driver.list_partitions()
            assert sighting.mark == MARK + MISPLACED
            assert (await driver.remove(order.name, MARK + MISPLACED)).verdict is ResultCode.OK
            await wait_until_removed(rig, driver, order.name)
    assert rig.there() == {}


async def test_another_size_is_no_proof_when_the_vendor_said_no(rig):
    """A stranger's partition of that name, made between our look and our order."""
    order = order_for(rig, "0-1")
    rig.trouble({"kind": "held", "on": ["create"], "times": 1})
    async with open_driver(rig) as driver:
        creating = asyncio.create_task(driver.create(order))
        await until(lambda: any("create" in call["argv"] for call in calls_of(rig.machine)))
        rig.trouble()
        by_hand(rig, "create", "partition", order.name, "--size", "4", "--index", "0")
        release_held(rig.machine)
        assert (await creating).verdict is ResultCode.UNAVAILABLE
        (sighting,) = await driver.list_partitions()
        assert sighting.mark == ""
        assert (await driver.remove(order.name, MARK)).seen is ObservedState.ABSENT
        assert list(rig.there()) == [order.name]


async def test_a_cluster_that_says_more_of_its_ipus_needs_the_keys_that_count(tmp_path):
    rig = VipuRig(tmp_path / "without", chatty_clusters=True)
    async with open_driver(rig) as driver:
        answer = await driver.create(order_for(rig, "0-3"))
        assert answer.verdict is ResultCode.UNAVAILABLE
        assert "ipu_keys" in answer.detail
    rig = VipuRig(tmp_path / "with", chatty_clusters=True, settings={"ipu_keys": ("agent", "index")})
    async with open_driver(rig) as driver:
        assert (await driver.create(order_for(rig, "0-3"))).verdict is ResultCode.OK


async def test_a_pool_is_one_cluster_and_has_its_size(tmp_path):
    rig = VipuRig(tmp_path / "two", foreign_ipus=4)
    async with open_driver(rig) as driver:
        assert "cluster" in (await error_of(driver.list_partitions())).detail
    rig = VipuRig(tmp_path / "named", foreign_ipus=4, settings={"cluster": "c1"})
    async with open_driver(rig) as driver:
        error = await error_of(driver.list_partitions())
        assert "has 4 IPUs, and pool pod8 is said to have 8" in error.detail


async def test_clusters_that_only_admins_see_are_read_from_a_file(tmp_path):
    listing = tmp_path / "clusters.json"
    rig = VipuRig(tmp_path, settings={"clusters_file": str(listing)})
    async with open_driver(rig) as driver:
        assert "clusters.json cannot be read" in (await error_of(driver.list_partitions())).detail
        listing.write_text(by_hand(rig, "--showjson", "list", "clusters"))
        assert (await driver.create(order_for(rig, "0-3"))).verdict is ResultCode.OK
    assert [call for call in calls_of(rig.machine) if "clusters" in call["argv"]][1:] == [], "ours was the only one"


# ---- strangers


async def test_a_stranger_s_partition_is_seen_and_its_devices_are_in_use(rig):
    by_hand(rig, "create", "partition", "theirs", "--size", "4", "--index", "1")
    async with open_driver(rig) as driver:
        (sighting,) = await driver.list_partitions()
        assert (sighting.name, sighting.mark, sighting.block) == ("theirs", "", Block.parse("4-7"))
        answer = await driver.create(order_for(rig, "4-7"))
        assert answer.verdict is ResultCode.UNAVAILABLE
        assert "theirs" in answer.detail
        for name in ("theirs", order_for(rig, "4-7").name):
            assert (await driver.remove(name, MARK)).seen is ObservedState.ABSENT
        assert list(rig.there()) == ["theirs"]


async def test_what_somebody_took_away_is_absent_and_its_name_may_be_anybody_s(rig):
    async with made(rig) as (driver, order):
        vanish(rig.machine, order.name)
        assert await partition_names(driver) == []
        assert (await driver.remove(order.name, MARK)).seen is ObservedState.ABSENT
        by_hand(rig, "create", "partition", order.name, "--size", "4", "--index", "0")
        assert (await driver.remove(order.name, MARK)).seen is ObservedState.ABSENT
        assert (await driver.create(order)).verdict is ResultCode.UNAVAILABLE
        assert list(rig.there()) == [order.name]


async def test_another_size_under_our_name_is_a_stranger_s(rig):
    async with made(rig) as (driver, order):
        vanish(rig.machine, order.name)
        by_hand(rig, "create", "partition", order.name, "--size", "2", "--index", "0")
        (sighting,) = await driver.list_partitions()
        assert sighting.mark == ""
        assert (await driver.remove(order.name, MARK)).seen is ObservedState.ABSENT
        assert list(rig.there()) == [order.name]


async def test_ipus_of_another_cluster_are_not_the_pool_s(tmp_path):
    rig = VipuRig(tmp_path, settings={"cluster": "c0"}, foreign_ipus=4)
    state = rig.machine / "state.json"
    async with made(rig) as (driver, order):
        known = json.loads(state.read_text())
        known["theirs"] = {**known[order.name], "ipus": [8, 9, 10, 11]}
        state.write_text(json.dumps(known))
        assert await partition_names(driver) == [order.name]
        before = len(calls_of(rig.machine))
        assert await partition_names(driver) == [order.name]
        assert len(calls_of(rig.machine)) == before + 1, "the cluster is not asked for at every look"


# ---- crashes of our own


async def test_an_order_is_known_as_ours_however_early_we_died(rig, hasty):
    """Killed while the command runs: the order is on the disk before the vendor hears of it."""
    order = order_for(rig, "0-3")
    rig.trouble({"kind": "held", "on": ["create"], "times": 1})
    first = await rig.open()
    asking = asyncio.create_task(first.create(order))
    await until(lambda: any("create" in call["argv"] for call in calls_of(rig.machine)))
    assert rig.there() == {}
    second = await rig.open()  # the first is as good as dead: nobody hears its answer, and it closes nothing
    release_held(rig.machine)
    sighting = await wait_for_state(rig, second, order.name, ObservedState.ACTIVE)
    assert sighting.mark == MARK
    assert (await second.create(order)).verdict is ResultCode.OK
    await second.remove(order.name, MARK)
    await wait_until_removed(rig, second, order.name)
    await asyncio.wait((asking,))
    await first.close()
    await second.close()


async def test_a_damaged_list_of_our_orders_is_never_taken_for_an_empty_one(rig):
    async with made(rig) as (driver, order):
        path = rig.data / "orders.json"
        whole = path.read_text()
        for text in ("", "{}", "[]", whole[:-20], whole.replace('"version": 1', '"version": 2'), "\0" * 40):
            path.write_text(text)
            error = await error_of(driver.list_partitions())
            assert (error.code, "damaged" in error.detail) == ("driver.unavailable", True), text
            assert error.hint
            assert (await driver.remove(order.name, MARK)).verdict is ResultCode.UNAVAILABLE
        path.write_text(whole)
        (sighting,) = await driver.list_partitions()
        assert sighting.mark == MARK


async def test_two_processes_share_one_list_of_orders(rig):
    async with open_driver(rig) as one, open_driver(rig) as other:
        devices = ["0-1", "2-3", "4-5", "6-7"]
        answers = await asyncio.gather(
            *(driver.create(order_for(rig, d)) for driver, d in zip([one, other, one, other], devices, strict=True))
        )
        assert [answer.verdict for answer in answers] == [ResultCode.OK] * 4
        for driver in (one, other):
            assert {sighting.mark for sighting in await driver.list_partitions()} == {MARK}
        for d in devices:
            await one.remove(order_for(rig, d).name, MARK)
        assert json.loads((rig.data / "orders.json").read_text())["orders"] == []


# ---- limits and secrets


async def test_no_more_commands_run_at_once_than_allowed(tmp_path):
    rig = VipuRig(tmp_path, settings={"parallel": 2})
    async with open_driver(rig) as driver:
        await partition_names(driver)
        rig.trouble({"kind": "slow", "seconds": 0.2, "on": ["list"]})
        before = len(calls_of(rig.machine))
        await asyncio.gather(*(partition_names(driver) for _ in range(6)))
        calls = calls_of(rig.machine)[before:]
        assert len(calls) == 6
        at_once = [sum(other["began"] <= call["began"] < other["ended"] for other in calls) for call in calls]
        assert max(at_once) == 2


async def test_the_access_key_is_on_no_command_line_and_in_no_message(tmp_path, monkeypatch):
    monkeypatch.setenv("VIPU_CLI_API_HOST", "elsewhere")
    secret = tmp_path / "key"
    secret.write_text("s3cr3t-Key\n")
    secret.chmod(0o600)
    settings = {"api_user": "moorings", "api_key_file": str(secret)}
    rig = VipuRig(tmp_path, settings=settings, users={"moorings": "s3cr3t-Key"})
    async with made(rig) as (_, order):
        written = rig.data / "vipu-cli.hcl"
        assert written.stat().st_mode & 0o777 == 0o600
        assert 'api-access-key="s3cr3t-Key"' in written.read_text()
    calls = calls_of(rig.machine)
    assert [word for call in calls for word in call["argv"] if "s3cr3t" in word] == []
    assert [name for call in calls for name in call["environment"]] == []
    (rig.machine / "machine.json").write_text(
        (rig.machine / "machine.json").read_text().replace("s3cr3t-Key", "changed")
    )
    async with open_driver(rig) as driver:
        error = await error_of(driver.list_partitions())
        assert "permission denied" in error.detail
        assert "s3cr3t" not in error.detail
        assert (await driver.create(order)).verdict is ResultCode.UNAVAILABLE


async def test_a_file_of_the_vendor_s_own_is_used_as_it_is(tmp_path):
    theirs = tmp_path / "alice.vipu-cli.hcl"
    theirs.write_text('api-user-id="alice"\napi-access-key="k"\n')
    theirs.chmod(0o600)
    rig = VipuRig(tmp_path, settings={"config": str(theirs)}, users={"alice": "k"})
    async with open_driver(rig) as driver:
        assert await partition_names(driver) == []
    assert {call["argv"][1] for call in calls_of(rig.machine)} == {str(theirs)}
    assert not (rig.data / "vipu-cli.hcl").exists()


@pytest.mark.parametrize(
    ("mode", "text", "problem"),
    [
        (0o644, "key", "can be read by others (mode 0644)"),
        (0o600, "", "is empty"),
        (0o600, "two words", "more than one word"),
        (None, "", "cannot be read"),
    ],
)
async def test_a_key_file_that_is_no_secret_is_refused(tmp_path, mode, text, problem):
    path = tmp_path / "key"
    if mode is not None:
        path.write_text(text)
        path.chmod(mode)
    rig = VipuRig(tmp_path, settings={"api_user": "moorings", "api_key_file": str(path)})
    with pytest.raises(MooringsError) as caught:
        await rig.open()
    assert caught.value.code == "pools.invalid"
    assert problem in caught.value.detail


async def test_the_api_form_needs_no_files(tmp_path):
    rig = VipuRig(tmp_path, settings={"ipuof": "api", "create_arguments": AS_ORDERED, "ipuof_timeout_s": 600})
    async with made(rig) as (driver, order):
        binding = await driver.binding(order)
        assert [gcd.file_name for gcd in binding.gcds] == [""]
        assert binding.api["IPUOF_VIPU_API_TIMEOUT"] == "600"
