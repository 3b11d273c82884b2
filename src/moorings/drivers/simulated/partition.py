"""A partition of the simulated machine: its request, the times of its changes, and its state at any time.

All times are absolute and known beforehand, so the state is a function of record and clock. Refused: timers that change
a stored state. They would stop with our process, and real hardware does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block


class VendorState(StrEnum):
    """The vendor's states; only ``PS_ACTIVE`` is public (facts: vipu section 1), the others are ours."""

    PROVISIONING = "PS_PROVISIONING"
    ACTIVE = "PS_ACTIVE"
    RESETTING = "PS_RESETTING"
    REMOVING = "PS_REMOVING"
    ERROR = "PS_ERROR"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPartition:
    """The machine's record of a partition.

    Attributes:
        serial: unique on this machine, forever.
        mark: its owner's mark; empty if it was made by hand.
        ready_at: when it becomes, or became, ready for use.
        was_reset: whether the time until ``ready_at`` is a reset, not the creation.
        breaks_at: when it breaks, if it does.
        vanishes_at: when it disappears without a request, if it does.
        gone_at: when its removal is done, once requested.
    """

    serial: int
    name: str
    block: Block
    gcds: int
    replicas_per_gcd: int
    mark: str
    ready_at: Timestamp
    was_reset: bool = False
    breaks_at: Timestamp | None = None
    vanishes_at: Timestamp | None = None
    gone_at: Timestamp | None = None

    def state(self, now: Timestamp) -> VendorState | None:
        """Return its state at ``now``; None if it no longer exists."""
        if self.vanishes_at is not None and now >= self.vanishes_at:
            return None
        if self.gone_at is not None:
            return VendorState.REMOVING if now < self.gone_at else None
        if self.breaks_at is not None and now >= self.breaks_at:
            return VendorState.ERROR
        if now < self.ready_at:
            return VendorState.RESETTING if self.was_reset else VendorState.PROVISIONING
        return VendorState.ACTIVE

    def record(self) -> dict[str, object]:
        """Return it as a JSON object without None values."""
        record: dict[str, object] = {
            "serial": self.serial,
            "name": self.name,
            "block": str(self.block),
            "gcds": self.gcds,
            "replicas": self.replicas_per_gcd,
            "mark": self.mark,
            "ready_at": self.ready_at,
        }
        if self.was_reset:
            record["was_reset"] = True
        for key in ("breaks_at", "vanishes_at", "gone_at"):
            if (moment := getattr(self, key)) is not None:
                record[key] = moment
        return record


def parse_partition(record: Mapping[str, object]) -> SimulatedPartition:
    """Parse a partition from the output of ``record``.

    Raises:
        MooringsError: ``block.invalid``.
        TypeError: a value is missing or of the wrong type.
    """
    return SimulatedPartition(
        serial=parse_whole(record, "serial"),
        name=parse_text(record, "name"),
        block=Block.parse(parse_text(record, "block")),
        gcds=parse_whole(record, "gcds"),
        replicas_per_gcd=parse_whole(record, "replicas"),
        mark=parse_text(record, "mark"),
        ready_at=Timestamp(parse_whole(record, "ready_at")),
        was_reset=record.get("was_reset") is True,
        breaks_at=_moment(record, "breaks_at"),
        vanishes_at=_moment(record, "vanishes_at"),
        gone_at=_moment(record, "gone_at"),
    )


def parse_text(record: Mapping[str, object], key: str) -> str:
    """Return the string under ``key``; TypeError if it is none."""
    value = record.get(key)
    if not isinstance(value, str):
        raise TypeError(f"{key:.80} is {value!r:.80}, not a string")
    return value


def parse_whole(record: Mapping[str, object], key: str) -> int:
    """Return the whole number under ``key``; TypeError if it is none."""
    value = record.get(key)
    if not isinstance(value, int):
        raise TypeError(f"{key:.80} is {value!r:.80}, not a whole number")
    return value


def _moment(record: Mapping[str, object], key: str) -> Timestamp | None:
    return Timestamp(parse_whole(record, key)) if key in record else None
