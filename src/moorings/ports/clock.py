"""The clock and the id generator. Only ``app`` (real ones) and ``testing`` (seeded ones) implement them.

``random_id`` is for ids that no replay has to give again: of keys, of installations.
"""

from __future__ import annotations

import secrets
from typing import Final, Protocol

from moorings.core.model.timestamps import Timestamp

ID_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"


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


def random_id(chars: int) -> str:
    """So many random characters of a-z2-7, five bits each."""
    bits = secrets.randbits(5 * chars)
    return "".join(ID_ALPHABET[bits >> 5 * place & 31] for place in range(chars))
