"""The faults file troubles a running driver as it is edited."""

import logging
import os

import pytest

from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.topology import Block
from moorings.drivers.simulated import faults_file
from moorings.drivers.simulated.faults import Fault, FaultKind, VendorCall
from moorings.drivers.simulated.faults_file import parse_faults
from tests.cases import cases
from tests.unit.drivers.simulated_rig import MARK, order, states

REJECT = '[[fault]]\nkind = "reject"\n'
TWICE = '[[fault]]\nkind = "reject"\ntimes = 2\n'


async def rejections(rig, count):
    """Which of that many orders (to remove what is not there) are rejected."""
    return [(await rig.driver.remove("nothing", MARK)).verdict is ResultCode.REJECTED for _ in range(count)]


async def test_faults_come_and_go_with_the_file(instant):
    assert (await instant.driver.create(order("p", "0-3"))).verdict is ResultCode.OK
    instant.write_faults(REJECT)
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.REJECTED
    instant.write_faults('[[fault]]\nkind = "timeout_before"\n')
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.UNAVAILABLE
    (instant.folder / "faults.toml").unlink()
    instant.clock.forward(0.1)
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.OK


async def test_a_file_that_is_there_at_the_start_counts(instant):
    instant.write_faults(REJECT)
    assert (await instant.restart().create(order("p", "0-3"))).verdict is ResultCode.REJECTED


async def test_a_file_replaced_by_one_of_the_same_size_and_time_is_noticed(instant):
    path = instant.folder / "faults.toml"
    instant.write_faults('[[fault]]\nkind = "slow"\n')
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.OK
    other = instant.folder / "other.toml"
    other.write_text('[[fault]]\nkind="reject"\n')
    assert other.stat().st_size == path.stat().st_size
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    instant.clock.forward(0.1)
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.REJECTED


async def test_the_file_is_looked_at_only_now_and_then(instant):
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.OK
    (instant.folder / "faults.toml").write_text(REJECT)
    instant.clock.forward(0.049)
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.OK
    instant.clock.forward(0.001)
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.REJECTED


async def test_a_clock_put_back_does_not_keep_the_file_unread(instant):
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.OK
    (instant.folder / "faults.toml").write_text(REJECT)
    instant.clock.forward(-3600)
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.REJECTED


async def test_a_bad_file_is_told_and_changes_nothing(instant, caplog):
    instant.write_faults(REJECT)
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.REJECTED
    instant.write_faults(REJECT + '[[fault]]\nkind = "gremlins"\n')
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            answer = await instant.driver.remove("p", MARK)
            assert answer.verdict is ResultCode.REJECTED
            assert answer.detail == "remove of p refused (error 9); faults.toml:4: fault kind 'gremlins' is not known"
            instant.clock.forward(0.1)
    assert len(caplog.records) == 1
    assert "pod8" in caplog.text
    assert "faults.toml:4" in caplog.text
    instant.write_faults("")
    assert await instant.driver.remove("p", MARK) == DriverResult(ResultCode.OK, ObservedState.ABSENT)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[[fault]", b'fault = "none"', b"[fault]"])
async def test_whatever_stands_in_the_file_the_driver_lives(instant, content):
    (instant.folder / "faults.toml").write_bytes(content)
    answer = await instant.driver.create(order("p", "0-3"))
    assert (answer.verdict, answer.seen) == (ResultCode.OK, ObservedState.ACTIVE)
    assert answer.detail.startswith("faults.toml")
    assert states(await instant.driver.list_partitions()) == {"p": ObservedState.ACTIVE}


async def test_a_folder_in_place_of_the_file_is_told(instant):
    (instant.folder / "faults.toml").mkdir()
    answer = await instant.driver.create(order("p", "0-3"))
    assert answer.verdict is ResultCode.OK
    assert "Is a directory" in answer.detail


async def test_a_counted_fault_is_used_up_for_every_process(instant):
    instant.write_faults(TWICE)
    assert await rejections(instant, 1) == [True]
    instant.restart()
    assert await rejections(instant, 2) == [True, False]
    instant.restart()
    assert await rejections(instant, 1) == [False]


async def test_a_counted_fault_goes_on_counting_when_others_are_written_beside_it(instant):
    instant.write_faults(TWICE)
    assert await rejections(instant, 1) == [True]
    instant.write_faults('[[fault]]\nkind = "slow"\n' + TWICE)
    assert await rejections(instant, 2) == [True, False]


async def test_a_counted_fault_that_was_taken_out_and_put_back_counts_anew(instant):
    instant.write_faults(TWICE)
    assert await rejections(instant, 3) == [True, True, False]
    instant.write_faults("")
    assert await rejections(instant, 1) == [False]
    instant.write_faults(TWICE)
    assert await rejections(instant, 3) == [True, True, False]


async def test_the_same_fault_twice_counts_twice(instant):
    instant.write_faults(TWICE + TWICE)
    assert await rejections(instant, 5) == [True, True, True, True, False]


async def test_faults_given_by_python_live_beside_the_files(instant):
    instant.trouble(FaultKind.LISTING_EMPTY)
    await instant.driver.create(order("p", "0-3"))
    instant.write_faults(REJECT)
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.REJECTED
    assert await instant.driver.list_partitions() == []
    instant.driver.faults.clear()
    assert (await instant.driver.remove("p", MARK)).verdict is ResultCode.REJECTED
    assert states(await instant.driver.list_partitions()) == {"p": ObservedState.ACTIVE}


# ---- reading


def test_everything_that_can_be_said_is_read():
    text = """
    [[fault]]
    kind = "hang"
    calls = ["create", "list"]
    names = ["slurm-*"]
    devices = "0-3,8"
    probability = 0.25
    times = 4
    seconds = 1.5

    [[fault]]
    kind = "slow"
    factor = 3

    [[fault]]
    kind = "name_too_long"
    chars = 8

    [[fault]]
    kind = "lying_unknown"
    raw = "PS_X"

    [[fault]]
    kind = "restart"
    state = "lost"

    [[fault]]
    kind = "agent_down"
    answer = "unavailable"
    """
    assert parse_faults(text) == (
        Fault(
            kind=FaultKind.HANG,
            calls=frozenset({VendorCall.CREATE, VendorCall.LIST}),
            names=("slurm-*",),
            devices=Block.parse("0-3,8"),
            probability=0.25,
            times=4,
            seconds=1.5,
        ),
        Fault(kind=FaultKind.SLOW, factor=3),
        Fault(kind=FaultKind.NAME_TOO_LONG, chars=8),
        Fault(kind=FaultKind.LYING_UNKNOWN, raw="PS_X"),
        Fault(kind=FaultKind.RESTART, state="lost", times=1),
        Fault(kind=FaultKind.AGENT_DOWN, answer=ResultCode.UNAVAILABLE),
    )


def test_every_kind_can_be_written():
    text = "".join(f'[[fault]]\nkind = "{kind}"\n' for kind in FaultKind)
    assert [fault.kind for fault in parse_faults(text)] == list(FaultKind)
    assert set(faults_file._KEYS) == set(FaultKind)


@cases(
    ("lines", "problem"),
    [
        ("times = 3", "kind is missing"),
        ('kind = "reject"\nprobability = 1.1', "faults.toml:3: probability = 1.1 is not between 0 and 1"),
        ('kind = "reject"\nprobability = nan', "faults.toml:3: probability = nan is not between"),
        ('kind = "reject"\ntimes = -1', "faults.toml:3: times = -1 is not between"),
        ('kind = "reject"\ncalls = ["list"]', "faults.toml:3: 'list' is no call that reject can trouble"),
        ('kind = "reject"\nseconds = 1', "faults.toml:3: 'seconds' is not known for reject"),
        ('kind = "reject"\ndevices = "3-1"', "faults.toml:3: '3-1' is not a range of devices"),
        ('kind = "reject"\ndevices = 3', "faults.toml:3: devices must be a string"),
        ('kind = "slow"\nfactor = inf', "faults.toml:3: factor = inf is not between"),
        ('kind = "hang"\nseconds = -1', "faults.toml:3: seconds = -1.0 is not between"),
        ('kind = "restart"\nstate = "gone"', "faults.toml:3: state = 'gone' is not known"),
        ('kind = "agent_down"\nanswer = "ok"', "faults.toml:3: answer = 'ok' is not known"),
        ('kind = "lying_unknown"\nraw = "PS_ACTIVE"', "faults.toml:3: raw = 'PS_ACTIVE' is a state that is known"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(lines, problem):
    with pytest.raises(MooringsError) as caught:
        parse_faults(f"[[fault]]\n{lines}\n")
    assert caught.value.code == "config.invalid"
    assert problem in caught.value.detail
