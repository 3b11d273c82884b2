import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.drivers.simulated import hardware
from tests.sampling import examples
from tests.unit.drivers.simulated_rig import AT_ONCE, MARK, SimulatedRig, order, states
from tests.waiting import patient

# ---- a partition's life


async def test_making_takes_its_time_and_more_for_more_devices(rig):
    # 0.3 s and 0.01 s for each of its devices
    assert await rig.driver.create(order("p", "0-3")) == DriverResult(ResultCode.OK, ObservedState.PROVISIONING)
    rig.clock.forward(0.339)
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.PROVISIONING}
    rig.clock.forward(0.001)
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.ACTIVE}


async def test_resetting_and_removing_take_their_time(rig):
    await rig.driver.create(order("p", "0-3"))
    assert (await rig.driver.reset("p", MARK)).verdict is ResultCode.UNAVAILABLE, "it is not ready to be reset"
    rig.clock.forward(0.34)
    assert await rig.driver.reset("p", MARK) == DriverResult(ResultCode.OK, ObservedState.RESETTING)
    assert await rig.driver.reset("p", MARK) == DriverResult(ResultCode.OK, ObservedState.RESETTING)
    rig.clock.forward(0.22)
    assert states(await rig.driver.list_partitions()) == {"p": ObservedState.ACTIVE}
    assert await rig.driver.remove("p", MARK) == DriverResult(ResultCode.OK, ObservedState.REMOVING)
    assert (await rig.driver.reset("p", MARK)).verdict is ResultCode.REJECTED
    assert (await rig.driver.create(order("p", "0-3"))).verdict is ResultCode.UNAVAILABLE
    rig.clock.forward(0.107)
    assert (await rig.driver.create(order("q", "0-3"))).verdict is ResultCode.UNAVAILABLE, "not free yet"
    rig.clock.forward(0.001)
    assert states(await rig.driver.list_partitions()) == {}
    assert (await rig.driver.create(order("q", "0-3"))).verdict is ResultCode.OK


async def test_with_no_times_everything_is_done_at_once(instant):
    assert await instant.driver.create(order("p", "0-3")) == DriverResult(ResultCode.OK, ObservedState.ACTIVE)
    assert await instant.driver.reset("p", MARK) == DriverResult(ResultCode.OK, ObservedState.ACTIVE)
    assert await instant.driver.remove("p", MARK) == DriverResult(ResultCode.OK, ObservedState.ABSENT)
    assert (await instant.driver.create(order("q", "0-7", gcds=2))).seen is ObservedState.ACTIVE


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (order("p", "0-2"), "cannot form a partition"),
        (order("p", "8-11"), "cannot form a partition"),
        (order("p", "0-3", gcds=3), "cannot be divided among 3 GCDs"),
        (order("p", "0-3", gcds=0), "cannot be divided among 0 GCDs"),
        (order("p", "0-7"), "spans 2 domains"),
        (order("n" * 37, "0-3"), "Failed to acquire 4 IPU"),
    ],
)
async def test_what_cannot_be_made_is_rejected_with_the_vendors_words(rig, wanted, why):
    answer = await rig.driver.create(wanted)
    assert (answer.verdict, answer.seen) == (ResultCode.REJECTED, ObservedState.ABSENT)
    assert why in answer.detail


async def test_the_same_name_on_other_devices_is_rejected(rig):
    await rig.driver.create(order("p", "0-3"))
    answer = await rig.driver.create(order("p", "4-7"))
    assert answer == DriverResult(ResultCode.REJECTED, ObservedState.UNKNOWN, "partition p already exists, on 0-3")


async def test_a_closed_driver_is_unavailable(rig):
    driver = rig.driver
    await driver.close()
    await driver.close()
    assert (await driver.create(order("p", "0-3"))).verdict is ResultCode.UNAVAILABLE
    with pytest.raises(MooringsError, match="closed"):
        await driver.list_partitions()


# ---- it outlives the process


async def test_time_passes_while_nobody_looks(rig):
    await rig.driver.create(order("making", "0-3"))
    await rig.driver.create(order("going", "4-7"))
    rig.clock.forward(1)
    await rig.driver.remove("going", MARK)
    rig.kill()
    rig.clock.forward(1)
    assert states(await rig.restart().list_partitions()) == {"making": ObservedState.ACTIVE}


@pytest.mark.parametrize("restart", [False, True])
async def test_a_clock_that_is_set_back_undoes_nothing(rig, restart):
    await rig.driver.create(order("made", "0-1"))
    await rig.driver.create(order("going", "4-7"))
    rig.clock.forward(1)
    await rig.driver.remove("going", MARK)
    rig.clock.forward(1)
    await rig.driver.create(order("making", "2-3"))
    rig.clock.forward(-5 * 3600)
    driver = rig.restart() if restart else rig.driver
    await driver.list_partitions()
    rig.clock.forward(0.4)
    assert states(await driver.list_partitions()) == {"made": ObservedState.ACTIVE, "making": ObservedState.ACTIVE}
    assert (await driver.create(order("new", "4-7"))).verdict is ResultCode.OK
    rig.clock.forward(0.4)
    assert states(await driver.list_partitions())["new"] is ObservedState.ACTIVE


def test_a_killed_process_loses_nothing_that_was_answered(tmp_path):
    script = f"""
import asyncio, os, signal
from pathlib import Path
from tests.sampling import examples
from tests.unit.drivers.simulated_rig import AT_ONCE, SimulatedRig, order
async def main():
    driver = SimulatedRig(Path({str(tmp_path / "machine")!r}), AT_ONCE).restart()
    await driver.create(order("kept", "0-3"))
    await driver.create(order("removed", "4-7"))
    await driver.remove("removed", "ours")
    await driver.create(order("last", "4"))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    killed = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], timeout=patient(60))
    assert killed.returncode == -signal.SIGKILL
    rig = SimulatedRig(tmp_path / "machine", AT_ONCE)
    listing = asyncio.run(rig.restart().list_partitions())
    assert [(one.name, str(one.block), one.mark) for one in listing] == [("kept", "0-3", MARK), ("last", "4", MARK)]
    rig.kill()


# ---- several processes


def journal_of(rig):
    return (rig.folder / "journal.jsonl").read_text().splitlines()


@pytest.fixture
def other(instant):
    """A second process that drives the machine of ``instant``."""
    other = SimulatedRig(instant.folder, AT_ONCE)
    other.restart()
    yield other
    other.kill()


async def test_each_process_sees_what_the_others_did(instant, other):
    await instant.driver.create(order("p", "0-3"))
    assert states(await other.driver.list_partitions()) == {"p": ObservedState.ACTIVE}
    assert "device in use" in (await other.driver.create(order("q", "2-3"))).detail
    await other.driver.remove("p", "ours")
    assert (await instant.driver.create(order("q", "2-3"))).verdict is ResultCode.OK
    assert states(await other.driver.list_partitions()) == states(await instant.driver.list_partitions()) != {}


async def test_a_journal_that_another_process_compacted_is_read_anew(instant, other):
    await instant.driver.create(order("p", "0-3"))
    other.driver._machine._length_max = 1
    await other.driver.create(order("q", "4-7"))
    assert len(journal_of(instant)) == 3, "a record of the machine, and one a partition"
    assert set(states(await instant.driver.list_partitions())) == {"p", "q"}
    await instant.driver.remove("q", "ours")
    assert set(states(await other.driver.list_partitions())) == {"p"}


async def test_what_a_killed_process_left_half_written_is_cut_off_by_the_next(instant, other):
    await instant.driver.create(order("p", "0-3"))
    with (instant.folder / "journal.jsonl").open("a") as journal:
        journal.write('{"is":"gone","na')
    assert states(await other.driver.list_partitions()) == {"p": ObservedState.ACTIVE}
    await other.driver.create(order("q", "4-7"))
    assert set(states(await instant.driver.list_partitions())) == {"p", "q"}


async def test_one_that_was_stopped_in_an_order_holds_the_others_up_and_they_say_so(instant, other):
    with instant.driver._machine.transaction():
        answer = await other.driver.create(order("p", "0-3"))
        assert (answer.verdict, "another process holds the lock" in answer.detail) == (ResultCode.UNAVAILABLE, True)
        with pytest.raises(MooringsError) as caught:
            await other.driver.list_partitions()
        assert caught.value.code == "driver.unavailable"
    assert (await other.driver.create(order("p", "0-3"))).verdict is ResultCode.OK


async def test_files_are_for_their_owner_alone(rig):
    await rig.driver.create(order("p", "0-3"))
    rig.clock.forward(1)
    await rig.driver.binding(order("p", "0-3"))
    paths = [rig.folder, *rig.folder.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in paths}
    assert {path.name for path in paths} >= {"journal.jsonl", "lock", "devices", "3"}


# ---- the journal


async def test_a_torn_last_line_is_forgotten(instant):
    await instant.driver.create(order("whole", "0-3"))
    instant.kill()
    journal = instant.folder / "journal.jsonl"
    text = journal.read_text()
    journal.write_text(text + '{"is":"partition","why":"created","seri')
    assert states(await instant.restart().list_partitions()) == {"whole": ObservedState.ACTIVE}
    await instant.driver.create(order("next", "4-7"))
    assert set(states(await instant.restart().list_partitions())) == {"whole", "next"}


@pytest.mark.parametrize(
    "line", ["not JSON", "[]", '{"is":"rumour"}', '{"is":"partition"}', '{"is":"machine","version":2}']
)
async def test_a_damaged_journal_is_told_with_its_line_and_left_alone(instant, line):
    await instant.driver.create(order("p", "0-3"))
    instant.kill()
    journal = instant.folder / "journal.jsonl"
    damaged = journal.read_text() + line + "\n"
    journal.write_text(damaged)
    with pytest.raises(MooringsError) as caught:
        instant.restart()
    assert caught.value.code == "driver.unavailable"
    assert f"journal.jsonl:{len(damaged.splitlines())}:" in caught.value.detail
    assert journal.read_text() == damaged
    journal.unlink()
    assert await instant.restart().list_partitions() == []


async def test_a_long_journal_is_compacted_and_says_the_same(instant, monkeypatch):
    monkeypatch.setattr(hardware, "RECORDS_MAX", 50)
    driver = instant.restart()
    driver._machine._length_max = 50
    await driver.create(order("stays", "0-3"))
    for number in range(200):
        await driver.create(order(f"goes-{number}", "4-7"))
        await driver.remove(f"goes-{number}", MARK)
    lines = (instant.folder / "journal.jsonl").read_text().splitlines()
    assert len(lines) <= 51
    assert states(await instant.restart().list_partitions()) == {"stays": ObservedState.ACTIVE}


async def test_a_name_made_anew_elsewhere_frees_its_old_devices(rig):
    await rig.driver.create(order("p", "0-3"))
    await rig.driver.remove("p", MARK)
    rig.clock.forward(1)
    await rig.driver.create(order("p", "4-7"))
    driver = rig.restart()
    assert (await driver.create(order("q", "0-3"))).verdict is ResultCode.OK
    assert (await driver.create(order("r", "4-7"))).verdict is ResultCode.UNAVAILABLE


async def test_a_full_disk_makes_orders_unavailable_and_nothing_half_done(instant, monkeypatch):
    await instant.driver.create(order("before", "0-3"))
    whole = (instant.folder / "journal.jsonl").read_bytes()
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: real_write(file, content[:10]))
    answer = await instant.driver.create(order("during", "4-7"))
    assert answer.verdict is ResultCode.UNAVAILABLE
    assert "No space left" in answer.detail
    assert (instant.folder / "journal.jsonl").read_bytes() == whole
    monkeypatch.undo()
    assert (await instant.driver.create(order("after", "4-7"))).verdict is ResultCode.OK
    assert set(states(await instant.restart().list_partitions())) == {"before", "after"}


async def test_the_journal_can_be_read_by_humans(instant):
    await instant.driver.create(order("p", "0-3"))
    record = json.loads((instant.folder / "journal.jsonl").read_text().splitlines()[-1])
    assert (record["is"], record["why"], record["name"], record["block"]) == ("partition", "created", "p", "0-3")


# ---- laws

_BLOCKS = ["0", "1", "0-1", "2-3", "4-5", "0-3", "4-7", "6", "0-7"]
_STEPS = st.one_of(
    st.tuples(
        st.just("create"), st.sampled_from("abcd"), st.sampled_from(_BLOCKS), st.sampled_from(["ours", "theirs"])
    ),
    st.tuples(st.just("remove"), st.sampled_from("abcd")),
    st.tuples(st.just("reset"), st.sampled_from("abcd")),
    st.tuples(st.just("wait"), st.sampled_from([0.05, 0.2, 1.0])),
    st.tuples(st.just("kill")),
)


@settings(max_examples=examples(150), deadline=None)
@given(steps=st.lists(_STEPS, max_size=30))
async def test_whatever_is_ordered_no_device_is_in_two_partitions_and_a_new_process_sees_the_same(steps):
    with tempfile.TemporaryDirectory() as folder:
        rig = SimulatedRig(Path(folder) / "machine")
        driver = rig.restart()
        for step in steps:
            match step:
                case ("create", name, block, mark):
                    await driver.create(order(name, block, mark=mark, gcds=2 if block == "0-7" else 1))
                case ("remove", name):
                    await driver.remove(name, MARK)
                case ("reset", name):
                    await driver.reset(name, MARK)
                case ("wait", seconds):
                    rig.clock.forward(seconds)
                case _:
                    before = await driver.list_partitions()
                    driver = rig.restart()
                    assert await driver.list_partitions() == before
            listing = await driver.list_partitions()
            devices = [index for sighting in listing for index in sighting.block]
            assert len(devices) == len(set(devices))
        before = await driver.list_partitions()
        assert await rig.restart().list_partitions() == before
        rig.kill()
