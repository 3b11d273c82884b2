"""Timestamps: whole microseconds since 1970 UTC.

Integers, not floats or datetimes: they survive JSON and databases to the last digit, so a replayed log gives the same
bytes, and they compare and add at the speed of integers. ``wire`` alone renders them for humans.
"""

from __future__ import annotations

from typing import Final, NewType

Timestamp = NewType("Timestamp", int)

SECOND = 1_000_000
HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0


def add_seconds(start: Timestamp, duration_s: float) -> Timestamp:
    """The timestamp ``duration_s`` seconds after ``start``."""
    return Timestamp(start + round(duration_s * SECOND))


def seconds_between(start: Timestamp, end: Timestamp) -> float:
    """Seconds from ``start`` to ``end`` (negative if ``end`` is earlier)."""
    return (end - start) / SECOND
