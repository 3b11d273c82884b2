"""Where the controller puts what leaves its database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from moorings.ports.store import Ended, Row, Seq


class Archives(Protocol):
    """A place that keeps what it was given; its calls return once that survives a power cut."""

    def write_events(self, first: Seq, last: Seq, rows: Iterable[Row]) -> str:
        """Keep a stretch of the event log; its digest. The same stretch may be given again, and is kept once.

        Raises:
            MooringsError: ``archive.failed``.
        """
        ...

    def write_ended(self, ended: Ended) -> None:
        """Keep records as they were last.

        Raises:
            MooringsError: ``archive.failed``.
        """
        ...
