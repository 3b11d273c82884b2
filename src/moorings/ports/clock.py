"""What the controller needs of time. Only ``app`` (the real one) and ``testing`` (seeded ones) implement it."""

from __future__ import annotations

from typing import Protocol

from moorings.core.instants import Timestamp


class Clock(Protocol):
    """The time, and waiting for it."""

    def now(self) -> Timestamp:
        """Microseconds since 1970 UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        ...


class Ids(Protocol):
    """Fresh identifiers: ``new("claim")`` gives something never given before, lower-case letters and digits."""

    def new(self, kind: str) -> str:
        """A fresh id, ``<prefix>-<12 characters of a-z2-7>``."""
        ...
