"""What passes between the controller and a driver, as values.

A driver is trusted only as far as its words go: *unknown* is none of the good states, a lost response is *unavailable*,
and one bad listing ends nothing (laws 2 to 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moorings.core.model.topology import Block


class ResultCode(StrEnum):
    """How a driver answers an order."""

    OK = "ok"  # accepted; ``seen`` gives the progress
    REJECTED = "rejected"  # it will never do this; the order created nothing
    UNAVAILABLE = "unavailable"  # no answer, or not now; the order may or may not have been executed
    BROKEN = "broken"  # the hardware failed


class ObservedState(StrEnum):
    """A partition's state as its driver sees it, in our terms."""

    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    RESETTING = "RESETTING"
    REMOVING = "REMOVING"
    ERROR = "ERROR"
    ABSENT = "ABSENT"
    UNKNOWN = "UNKNOWN"  # a vendor state we do not know: not ready, not gone


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A partition for a driver to create. ``mark`` identifies it as ours: only partitions with it are ever removed."""

    name: str
    block: Block
    gcds: int
    replicas_per_gcd: int
    mark: str


@dataclass(frozen=True, slots=True)
class DriverResult:
    """A driver's answer to one order.

    Attributes:
        verdict: the result of the order.
        seen: the partition's state afterwards, if the driver reports it.
        detail: the vendor's words, for humans.
    """

    verdict: ResultCode
    seen: ObservedState = ObservedState.UNKNOWN
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ListedPartition:
    """One partition in a driver's listing; ``mark`` is empty if it is not ours, ``vendor_state`` is the vendor's."""

    name: str
    state: ObservedState
    block: Block
    mark: str = ""
    vendor_state: str = ""


@dataclass(frozen=True, slots=True)
class Capability:
    """What a driver can do.

    Attributes:
        name_chars_max: longest partition name.
        details: further facts for ``moor describe pool``.
    """

    name_chars_max: int = 36
    details: Mapping[str, str] = field(default_factory=dict)
