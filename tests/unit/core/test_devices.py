"""Devices: their ids, and why one is out of service."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.devices import Device, DeviceEvent, DeviceState, PoolName, device_id, parse_device_id, step
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, POOL
from tests.cases import cases

LATER = Timestamp(NOW + SECOND)


def device(state: DeviceState, reason: str = "") -> Device:
    return Device(POOL, 17, state, reason, NOW)


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?", fullmatch=True), st.integers(0, 9_999_999))
def test_an_id_names_its_pool_and_index(pool, index):
    assert parse_device_id(device_id(PoolName(pool), index)) == (pool, index)


@cases(
    "text",
    [
        *["", ":", "pod64", "pod64:", ":17", "pod64:-1", "pod64:x", "pod64:1:2", "Pod:1", "pod64:1 ", "pod64:1\n"],
        *["pod64:٣", "pod64:" + "9" * 8, "p" * 37 + ":1", "/:1", "x" * 100_000],
    ],
    ids=lambda text: text[:16],
)
def test_what_is_no_id_is_refused_with_an_example(text):
    with pytest.raises(MooringsError) as caught:
        parse_device_id(text)
    assert caught.value.code == "device.unknown"
    assert "pod64:17" in caught.value.hint
    assert len(str(caught.value)) < 200


def test_a_device_that_breaks_is_quarantined_with_the_reason_and_the_moment():
    broken = step(device(DeviceState.IN_SERVICE), DeviceEvent.BROKE, "a link is down", LATER)
    assert broken == Device(POOL, 17, DeviceState.QUARANTINED, "a link is down", LATER)
    assert broken.id == "pod64:17"


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (DeviceState.QUARANTINED, DeviceEvent.BROKE),
        (DeviceState.DRAINED, DeviceEvent.DRAIN),
        (DeviceState.DRAINED, DeviceEvent.BROKE),
        (DeviceState.DRAINED, DeviceEvent.REMOVAL_FAILED),
    ],
)
def test_a_repeated_event_keeps_the_first_reason(state, event):
    out = device(state, "the first reason")
    assert step(out, event, "another", LATER) is out


def test_an_admins_drain_is_stronger_than_a_quarantine():
    drained = step(device(DeviceState.QUARANTINED, "a link is down"), DeviceEvent.DRAIN, "board swap", LATER)
    assert (drained.state, drained.reason) == (DeviceState.DRAINED, "board swap")


def test_only_resuming_brings_a_device_back():
    for state in (DeviceState.QUARANTINED, DeviceState.DRAINED):
        for event in DeviceEvent:
            back = step(device(state), event, "", LATER).state is DeviceState.IN_SERVICE
            assert back is (event is DeviceEvent.RESUME)
