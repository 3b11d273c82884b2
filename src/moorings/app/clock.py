"""The real clock and real randomness."""

from __future__ import annotations

import asyncio
import secrets
import time

from moorings.core.instants import Timestamp
from moorings.workloads.appliance import NAME_CHARS

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
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
        chars = _CHARS[kind]
        bits = secrets.randbits(5 * chars)
        return f"{kind}-" + "".join(_ALPHABET[bits >> 5 * place & 31] for place in range(chars))
