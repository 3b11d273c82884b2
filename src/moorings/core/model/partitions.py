"""Partitions: blocks that a driver has configured and isolated. They exist in hardware and have a state.

A record exists from the grant of a claim until the driver reports that nothing is left; removed partitions have no
record (their history is in the event log).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from moorings.core.model.claims import NAME_CHARS_MAX, ClaimId, PartitionId
from moorings.core.model.devices import PoolName
from moorings.core.model.state_machine import transition
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block


class PartitionState(StrEnum):
    """The state of a partition, as far as we know."""

    PROVISIONING = "PROVISIONING"  # requested; the driver may have it or not
    ACTIVE = "ACTIVE"  # isolated and usable: the only state in which a job may run on it
    RESETTING = "RESETTING"  # being reset; not usable
    ERROR = "ERROR"  # broken, vanished, or not removable; its devices are out of service
    REMOVING = "REMOVING"  # no longer needed; the driver may still have it, so its devices are not free
    REMOVED = "REMOVED"  # the driver has reported that nothing is left


class PartitionEvent(StrEnum):
    """What can happen to a partition."""

    ACTIVE = "active"
    RESET = "reset"
    BREAK = "break"
    REMOVE = "remove"
    GONE = "gone"


NEXT: dict[PartitionState, dict[PartitionEvent, PartitionState]] = {
    PartitionState.PROVISIONING: {
        PartitionEvent.ACTIVE: PartitionState.ACTIVE,
        PartitionEvent.BREAK: PartitionState.ERROR,
        PartitionEvent.REMOVE: PartitionState.REMOVING,
    },
    PartitionState.ACTIVE: {
        PartitionEvent.RESET: PartitionState.RESETTING,
        PartitionEvent.BREAK: PartitionState.ERROR,
        PartitionEvent.REMOVE: PartitionState.REMOVING,
    },
    PartitionState.RESETTING: {
        PartitionEvent.ACTIVE: PartitionState.ACTIVE,
        PartitionEvent.BREAK: PartitionState.ERROR,
        PartitionEvent.REMOVE: PartitionState.REMOVING,
    },
    PartitionState.ERROR: {
        PartitionEvent.REMOVE: PartitionState.REMOVING,
    },
    PartitionState.REMOVING: {
        PartitionEvent.GONE: PartitionState.REMOVED,
        PartitionEvent.BREAK: PartitionState.ERROR,
    },
    PartitionState.REMOVED: {},
}


OPERATIONS: Final = {
    PartitionState.PROVISIONING: "create",
    PartitionState.RESETTING: "reset",
    PartitionState.REMOVING: "remove",
}
"""The driver's operation for each state that is on its way to another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The record of one partition.

    ``id`` is never used twice; ``name`` is its name in the vendor's controller, unique among existing partitions.
    """

    id: PartitionId
    name: str
    claim: ClaimId
    pool: PoolName
    block: Block
    gcds: int
    replicas_per_gcd: int
    state: PartitionState
    since: Timestamp
    version: int = 1
    reason: str = ""

    @property
    def size(self) -> int:
        """Devices in it."""
        return len(self.block)


def step(partition: Partition, event: PartitionEvent, now: Timestamp, reason: str = "") -> Partition:
    """The partition after ``event``.

    Raises:
        IllegalTransitionError: the table has no such move.
    """
    state = transition(NEXT, "partition", partition.id, partition.state, event, lambda: _history(partition))
    return replace(partition, state=state, since=now, reason=reason, version=partition.version + 1)


def _history(partition: Partition) -> Iterable[str]:
    parts = (f"of claim {partition.claim}", f"devices {partition.block} of {partition.pool}", partition.reason)
    return filter(None, parts)


def unique_partition_name(claim_name: str, attempt: int, taken: Container[str]) -> str:
    """``<claim name>[-<attempt>]``, shortened to the vendor's limit and unlike every name in ``taken``."""
    suffix = attempt
    while True:
        tail = f"-{suffix}" if suffix else ""
        name = claim_name[: NAME_CHARS_MAX - len(tail)] + tail
        if name not in taken:
            return name
        suffix += 1


def gcd_blocks(block: Block, gcds: int) -> tuple[tuple[int, ...], ...]:
    """The device indices of each GCD, in order: equal, neighbouring shares of the block."""
    members = tuple(block)
    share = len(members) // gcds
    return tuple(members[start : start + share] for start in range(0, share * gcds, share))
