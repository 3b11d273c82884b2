"""What we ordered is on the disk, is never lost, and is forgotten when it is over."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from moorings.core.model.driver_results import PartitionSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block
from moorings.drivers.vipu.intents import LATE_S, IntentLog, PartitionIntent, is_readable
from tests.waiting import patient

NOW = Timestamp(1_700_000_000_000_000)


def order(name: str, devices: str = "0-3", mark: str = "ours") -> PartitionSpec:
    return PartitionSpec(name, Block.parse(devices), 2, 3, mark)


@pytest.fixture
def orders(tmp_path):
    orders = IntentLog(tmp_path / "a" / "b")
    yield orders
    orders.close()


def test_an_order_is_found_again_as_it_was_given(orders, tmp_path):
    orders.write(PartitionIntent(order("p", "0,2-3")))
    again = IntentLog(tmp_path / "a" / "b")
    assert again.read_all() == {"p": PartitionIntent(order("p", "0,2-3"))}
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert again.path.stat().st_mode & 0o777 == 0o600
    again.mark_resolved(["p", "strangers"])
    assert orders.read_all()["p"].settled, "another process's words are heard"
    again.close()
    again.close()


@pytest.mark.parametrize("shape", [(4, None), (4, 1)])
def test_what_the_vendor_made_of_an_order_is_found_again(orders, tmp_path, shape):
    orders.write(PartitionIntent(order("p"), made=shape))
    again = IntentLog(tmp_path / "a" / "b")
    assert again.read_all() == {"p": PartitionIntent(order("p"), made=shape)}
    again.mark_resolved(["p"])
    assert again.read_all()["p"].made == shape
    again.close()
    assert is_readable(orders.path)
    for wrong in ("[4]", '"4"', "[4, 1, 1]", '["4", null]'):
        entries = json.loads(orders.path.read_text())
        entries["orders"][0]["made"] = json.loads(wrong)
        orders.path.write_text(json.dumps(entries))
        assert not is_readable(orders.path)


def test_a_settled_order_is_forgotten_when_its_partition_has_gone(orders):
    orders.write(PartitionIntent(order("p")))
    orders.mark_resolved(["p"])
    orders.remove_after_delete("p", "another mark", NOW)
    assert "p" in orders.read_all()
    orders.remove_after_delete("p", "ours", NOW)
    assert orders.read_all() == {}
    orders.remove_after_delete("p", "ours", NOW)


def test_an_order_of_unknown_fate_is_kept_for_a_while(orders):
    orders.write(PartitionIntent(order("lost")))
    orders.remove_after_delete("lost", "ours", NOW)
    orders.remove_after_delete("lost", "ours", add_seconds(NOW, 10))
    assert orders.read_all()["lost"].given_up_at == NOW
    orders.write(PartitionIntent(order("other")))
    orders.remove_after_delete("other", "ours", add_seconds(NOW, LATE_S - 1))
    assert set(orders.read_all()) == {"lost", "other"}
    orders.remove_after_delete("other", "ours", add_seconds(NOW, LATE_S + 1))
    assert set(orders.read_all()) == {"other"}


def test_one_that_turned_up_late_counts_as_there(orders):
    orders.write(PartitionIntent(order("late")))
    orders.remove_after_delete("late", "ours", NOW)
    orders.mark_resolved(["late"])
    assert orders.read_all()["late"] == PartitionIntent(order("late"), settled=True)


def test_what_was_never_given_is_forgotten(orders):
    orders.write(PartitionIntent(order("p")))
    orders.forget("p")
    orders.forget("p")
    assert orders.read_all() == {}


def test_a_folder_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MooringsError) as caught:
        IntentLog(tmp_path / "file" / "pool")
    assert caught.value.code == "driver.unavailable"


def _write_for_ever(folder: Path, begun: "multiprocessing.synchronize.Event") -> None:
    orders = IntentLog(folder)
    orders.write(PartitionIntent(order("kept")))
    begun.set()
    number = 0
    while True:
        number += 1
        orders.write(PartitionIntent(order(f"p{number % 50}", mark="x" * number)))


def test_a_writer_that_is_killed_leaves_a_whole_file_and_no_lock(tmp_path):
    context = multiprocessing.get_context("spawn")
    for _ in range(5):
        begun = context.Event()
        writer = context.Process(target=_write_for_ever, args=(tmp_path, begun))
        writer.start()
        assert begun.wait(patient(30))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        orders = IntentLog(tmp_path)
        assert "kept" in orders.read_all()
        orders.write(PartitionIntent(order("after")))
        assert "after" in orders.read_all()
        orders.close()
