"""The values of jobs' variables: the controller's interface to their place, for the database has their names alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from moorings.workloads.runs import RunId


class RunEnvironments(Protocol):
    """Keeps the variables of runs for as long as these may start. Its calls may block."""

    def save(self, engine: str, run: RunId, variables: Mapping[str, str]) -> None:
        """Keep the variables of a run, durably.

        Raises:
            MooringsError: ``engine.unavailable`` (retryable).
        """
        ...

    def load(self, engine: str, run: RunId) -> Mapping[str, str] | None:
        """The variables of a run; None: there are none.

        Raises:
            MooringsError: ``engine.unavailable`` (retryable): they cannot be read now.
        """
        ...

    def remove(self, engine: str, run: RunId) -> None:
        """Remove those of a run; none is no error, and what cannot be removed now is left to ``remove_unused``."""
        ...

    def remove_unused(self, used: Collection[RunId], age_s: float) -> int:
        """Remove those of all other runs that were saved so long ago; returns how many."""
        ...
