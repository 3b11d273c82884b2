"""When a job that waits will start, from what the controllers estimate for its partitions. Pure.

An estimate is the latest time, as things stand: those before it keep to their time limits, and none comes first later.
Where the controllers cannot say, it is unknown, and they say why.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from moorings.core.instants import SECOND, Timestamp
from moorings.kubernetes.proxy import shapes
from moorings.kubernetes.proxy.shapes import PartitionBody
from moorings.wire.codec import format_time, parse_time


class Certainty(StrEnum):
    """How sure an estimate is."""

    AT_LATEST = "AtLatest"  # as things stand: all keep to their time limits, and none comes first
    UNKNOWN = "Unknown"  # the controllers were asked, and cannot say


_MINUTE = 60 * SECOND


def latest_start(partitions: Iterable[PartitionBody]) -> tuple[Timestamp | None, Certainty | None]:
    """By when all of these have what they wait for, and how sure that is; None: nothing is known of it."""
    waiting = [one for one in partitions if one.state == shapes.WAITING]
    if any(one.unsure and not one.starts_at for one in waiting):
        return None, Certainty.UNKNOWN
    times = [parse_time(one.starts_at) for one in waiting if one.starts_at]
    if not times or len(times) < len(waiting):  # not all were asked yet
        return None, None
    return _rounded_up(max(times), SECOND), Certainty.AT_LATEST  # as the API server keeps times


def describe_start(partition: PartitionBody) -> str:
    """What is told of one partition's estimate: half a sentence, or nothing."""
    if partition.starts_at:
        at = format_time(_rounded_up(parse_time(partition.starts_at), _MINUTE))
        return f"it starts by {at[:10]} {at[11:16]} UTC, unless others come first"
    return f"when it starts is unknown: {partition.unsure}" if partition.unsure else ""


def _rounded_up(at: Timestamp, step: int) -> Timestamp:
    return Timestamp(-(-at // step) * step)
