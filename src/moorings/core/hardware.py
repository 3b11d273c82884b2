"""What passes between the controller and a driver, as values.

A driver's word is never trusted further than it goes: *unknown* is none of the good states, a lost answer is
*unavailable*, and one bad listing ends nothing (laws 2 to 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moorings.core.topology import Block


class ResultCode(StrEnum):
    """How a driver answers an order."""

    OK = "ok"  # taken; ``seen`` tells how far it is
    REJECTED = "rejected"  # it will never do this; nothing exists because of the order
    UNAVAILABLE = "unavailable"  # no answer, or not now; it may or may not have been done
    BROKEN = "broken"  # the hardware under it failed


class ObservedState(StrEnum):
    """What a driver sees of a partition, in our words."""

    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    RESETTING = "RESETTING"
    REMOVING = "REMOVING"
    ERROR = "ERROR"
    ABSENT = "ABSENT"
    UNKNOWN = "UNKNOWN"  # a vendor state we do not know: not ready, not gone


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A partition a driver is to make. ``mark`` makes it recognisable as ours: only what carries it is ever removed."""

    name: str
    block: Block
    gcds: int
    replicas_per_gcd: int
    mark: str


@dataclass(frozen=True, slots=True)
class DriverResult:
    """A driver's answer to one order.

    Attributes:
        verdict: how it took the order.
        seen: the partition's state after it, where it says so.
        detail: the vendor's words, for humans.
    """

    verdict: ResultCode
    seen: ObservedState = ObservedState.UNKNOWN
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ListedPartition:
    """One partition in a driver's listing; ``mark`` is empty if it is not ours, ``raw`` is the vendor's state."""

    name: str
    seen: ObservedState
    block: Block
    mark: str = ""
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Capability:
    """What a driver can do.

    Attributes:
        name_chars_max: longest partition name.
        can_reset: whether a partition can be reset without being made anew.
        lists_marks: whether listings carry our mark.
        facts: further facts for ``moor describe pool``.
    """

    name_chars_max: int = 36
    can_reset: bool = True
    lists_marks: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)
