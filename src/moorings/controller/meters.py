"""Counters of the controller's own work, as plain numbers that any code may read at any time.

Plain counts and not a metrics library's objects: they cost a bisection and three additions, depend on no monitoring
system, and a test reads them like any value. ``api.metrics`` renders them for Prometheus on request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

# Seconds: from a turn in memory to a commit on a slow disk.
TURN_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# Seconds: hardware takes long, and ``hardware.ORDER_TIMEOUT_S`` is the limit.
ORDER_BOUNDS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class DurationHistogram:
    """A histogram: how often something was done, and how long it took.

    Args:
        bounds: upper bounds of its buckets in seconds, ascending; one more bucket takes the rest.
    """

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)


@dataclass(slots=True)
class Counters:
    """The counters of one controller since it began to lead.

    Attributes:
        turns: deciding, without saving.
        commits: saving, from the request to the writer until its answer.
        failures: turns that were not saved, by error code.
        orders: answers of drivers by (pool, order, result); ``list`` is a listing.
    """

    turns: DurationHistogram = field(default_factory=lambda: DurationHistogram(TURN_BOUNDS))
    commits: DurationHistogram = field(default_factory=lambda: DurationHistogram(TURN_BOUNDS))
    failures: Counter[str] = field(default_factory=Counter)
    orders: dict[tuple[str, str, str], DurationHistogram] = field(default_factory=dict)

    def add_order(self, pool: str, order: str, result: str, seconds: float) -> None:
        """Count a driver's answer."""
        self.orders.setdefault((pool, order, result), DurationHistogram(ORDER_BOUNDS)).add(seconds)
