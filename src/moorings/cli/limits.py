"""A limit on a wait (``--timeout``)."""

from __future__ import annotations

import time


class Limit:
    """How long something may still take; None: for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self._until is not None and time.monotonic() >= self._until

    def left_s(self, most_s: float) -> float:
        """The seconds left, ``most_s`` at most; never quite zero, so that a call still waits a moment."""
        if self._until is None:
            return most_s
        return max(0.05, min(most_s, self._until - time.monotonic()))
