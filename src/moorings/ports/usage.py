"""The usage meter: how much the runs of an engine have worked.

Today it counts the CPU time of a run's processes: a program that drives an accelerator uses some, and one that has used
none has driven none. A driver that knows how long its devices were busy can answer in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from moorings.workloads.idleness import UsageReading
from moorings.workloads.runs import RunId


class UsageMeter(Protocol):
    """Counts what runs use."""

    async def read_usage(self, runs: Sequence[RunId]) -> Mapping[RunId, UsageReading]:
        """A reading of each of these runs; those that cannot be read are missing."""
        ...
