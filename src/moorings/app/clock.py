"""The real clock and real randomness."""

from __future__ import annotations

import asyncio
import time

from moorings.core.model.timestamps import Timestamp
from moorings.ports.clock import random_id
from moorings.workloads.appliance import NAME_CHARS

ID_CHARS = 12  # 60 bits: a billion ids before a collision is likely; the database refuses a duplicate anyway
_CHARS = {"claim": ID_CHARS, "run": ID_CHARS, "wsjob": NAME_CHARS}


class SystemClock:
    """The machine's clock."""

    def now(self) -> Timestamp:
        """Microseconds since 1970 UTC."""
        return Timestamp(time.time_ns() // 1000)

    async def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""
        await asyncio.sleep(seconds)


class RandomIds:
    """Identifiers from the operating system's randomness."""

    def new(self, kind: str) -> str:
        """``<kind>-`` and twelve characters of a-z2-7; 22 of a ``wsjob``."""
        return f"{kind}-{random_id(_CHARS[kind])}"
