"""The clock and the id generator. Only ``app`` (real ones) and ``testing`` (seeded ones) implement them."""

from __future__ import annotations

from typing import Protocol

from moorings.core.instants import Timestamp


class Clock(Protocol):
    """The time, and sleeping."""

    def now(self) -> Timestamp:
        """Microseconds since 1970 UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds."""
        ...


class Ids(Protocol):
    """Generates ids: ``new("claim")`` returns one never used before, in lower-case letters and digits."""

    def new(self, kind: str) -> str:
        """A fresh id, ``<prefix>-<12 characters of a-z2-7>``."""
        ...
