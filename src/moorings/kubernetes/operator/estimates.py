"""Estimate when a waiting job starts, from the controllers' estimates for its partitions. Pure.

An estimate is the latest time, as things stand: earlier claims keep to their time limits, and no later claim passes.
If the controllers have no estimate, the start is unknown, and they give the reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.kubernetes.ipujob.types import Certainty
from moorings.kubernetes.proxy_api import shapes
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from moorings.wire.codec import format_time, parse_time

_MINUTE = 60 * SECOND


def latest_start(partitions: Iterable[PartitionBody]) -> tuple[Timestamp | None, Certainty | None]:
    """The time by which all waiting partitions are granted, and its certainty; None: nothing is known."""
    waiting = [one for one in partitions if one.state == shapes.WAITING]
    if any(one.unsure and not one.starts_at for one in waiting):
        return None, Certainty.UNKNOWN
    times = [parse_time(one.starts_at) for one in waiting if one.starts_at]
    if not times or len(times) < len(waiting):  # some estimates have not arrived yet
        return None, None
    return _rounded_up(max(times), SECOND), Certainty.AT_LATEST  # as the API server keeps times


def describe_start(partition: PartitionBody) -> str:
    """One partition's estimate as half a sentence; empty: nothing is known."""
    if partition.starts_at:
        at = format_time(_rounded_up(parse_time(partition.starts_at), _MINUTE))
        return f"it starts by {at[:10]} {at[11:16]} UTC, unless others come first"
    return f"when it starts is unknown: {partition.unsure}" if partition.unsure else ""


def _rounded_up(at: Timestamp, step: int) -> Timestamp:
    return Timestamp(-(-at // step) * step)
