"""Devices: single accelerators, and whether they may be used.

A device is known by its pool and its index in the pool; its id is ``<pool>:<index>``. Only devices that are *not* in
service have a record: a healthy pool of 65,536 devices costs nothing to load.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NewType

from moorings.core.model.errors import MooringsError
from moorings.core.model.state_machine import transition
from moorings.core.model.timestamps import Timestamp

DeviceId = NewType("DeviceId", str)
PoolName = NewType("PoolName", str)

_DEVICE_ID = re.compile(r"([a-z0-9][a-z0-9.-]{0,35}):(\d{1,7})", re.ASCII)


def device_id(pool: PoolName, index: int) -> DeviceId:
    """The id of the device with that index in that pool."""
    return DeviceId(f"{pool}:{index}")


def parse_device_id(text: str) -> tuple[PoolName, int]:
    """Pool and index of a device id.

    Raises:
        MooringsError: ``device.unknown`` if the text is not ``<pool>:<index>``.
    """
    match = _DEVICE_ID.fullmatch(text)
    if match is None:
        raise MooringsError(
            "device.unknown", f"no device is called {text[:80]!r}", hint="a device id is POOL:INDEX, as in pod64:17"
        )
    return PoolName(match[1]), int(match[2])


class DeviceState(StrEnum):
    """Whether a device may be used."""

    IN_SERVICE = "IN_SERVICE"  # may be part of a new partition
    QUARANTINED = "QUARANTINED"  # a partition broke on it; not used until an admin resumes it
    DRAINED = "DRAINED"  # an admin drained it, or its partition could not be removed; not used until resumed


class DeviceEvent(StrEnum):
    """What can happen to a device."""

    BROKE = "broke"
    REMOVAL_FAILED = "removal_failed"
    DRAIN = "drain"
    RESUME = "resume"


NEXT: dict[DeviceState, dict[DeviceEvent, DeviceState]] = {
    DeviceState.IN_SERVICE: {
        DeviceEvent.BROKE: DeviceState.QUARANTINED,
        DeviceEvent.REMOVAL_FAILED: DeviceState.DRAINED,
        DeviceEvent.DRAIN: DeviceState.DRAINED,
    },
    DeviceState.QUARANTINED: {
        DeviceEvent.BROKE: DeviceState.QUARANTINED,
        DeviceEvent.REMOVAL_FAILED: DeviceState.DRAINED,
        DeviceEvent.DRAIN: DeviceState.DRAINED,
        DeviceEvent.RESUME: DeviceState.IN_SERVICE,
    },
    DeviceState.DRAINED: {
        DeviceEvent.BROKE: DeviceState.DRAINED,
        DeviceEvent.REMOVAL_FAILED: DeviceState.DRAINED,
        DeviceEvent.DRAIN: DeviceState.DRAINED,
        DeviceEvent.RESUME: DeviceState.IN_SERVICE,
    },
}


@dataclass(frozen=True, slots=True)
class Device:
    """The record of one device that is, or was, out of service."""

    pool: PoolName
    index: int
    state: DeviceState
    reason: str
    since: Timestamp

    @property
    def id(self) -> DeviceId:
        """``<pool>:<index>``."""
        return device_id(self.pool, self.index)


def step(device: Device, event: DeviceEvent, reason: str, now: Timestamp) -> Device:
    """The device after ``event``; a repeated event keeps the first reason.

    Raises:
        IllegalTransitionError: resuming a device that is in service.
    """
    state = transition(NEXT, "device", device.id, device.state, event, lambda: filter(None, (device.reason,)))
    if state is device.state:
        return device
    return replace(device, state=state, reason=reason, since=now)
