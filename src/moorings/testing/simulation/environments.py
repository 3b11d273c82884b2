"""The simulated place of jobs' variables: it survives every controller, as a disk does."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from moorings.workloads.runs import RunId


class SimulatedEnvironments:
    """Keeps variables in memory; the simulator removes none by age."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, RunId], Mapping[str, str]] = {}

    def save(self, engine: str, run: RunId, variables: Mapping[str, str]) -> None:
        self._kept[engine, run] = variables

    def load(self, engine: str, run: RunId) -> Mapping[str, str] | None:
        return self._kept.get((engine, run))

    def remove(self, engine: str, run: RunId) -> None:
        self._kept.pop((engine, run), None)

    def remove_unused(self, used: Collection[RunId], age_s: float) -> int:
        return 0
