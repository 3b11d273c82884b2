"""Moments as whole microseconds since 1970 UTC.

Integers, not floats or datetimes: they survive JSON and databases to the last digit, so a replayed log gives the same
bytes, and they compare and add at the speed of integers. ``wire`` alone renders them for humans.
"""

from __future__ import annotations

from typing import NewType

Instant = NewType("Instant", int)

SECOND = 1_000_000


def after(start: Instant, duration_s: float) -> Instant:
    """The instant ``duration_s`` seconds after ``start``."""
    return Instant(start + round(duration_s * SECOND))


def seconds_between(start: Instant, end: Instant) -> float:
    """Seconds from ``start`` to ``end`` (negative if ``end`` is earlier)."""
    return (end - start) / SECOND
