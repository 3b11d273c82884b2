"""Retention: old events and records leave the database, after they were written to an archive.

Events leave in stretches of whole turns, always the oldest first, so archives and database together are one log from
its first event. Records leave when they have ended and nothing refers to them; their idempotency keys stay, as digests
(law 5). Rows are deleted in small transactions of the loop's own writer, between turns, each under the epoch: a turn
waits for at most one of them, and a leader that was replaced removes nothing.

A kill loses nothing at any point: events without an archive are in the database, and a stretch is written to the same
file again. Refused: one large deletion (no claim is granted meanwhile), and partitions of the table by time (SQLite has
none).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from moorings.controller.loop import TurnLoop
from moorings.core.model.timestamps import DAY_S, add_seconds
from moorings.ports.archive import ArchiveWriter
from moorings.ports.clock import Clock
from moorings.ports.store import Archive, EventRow, Seq, Store

EVENTS_A_FILE = 20_000
RECORDS_A_FILE = 1_000
ROWS_AT_ONCE = 500  # in one transaction
_PAGE = 500


@dataclass(frozen=True, slots=True)
class RemovedCounts:
    """How many rows left the database."""

    events: int = 0
    runs: int = 0
    claims: int = 0


class Retention:
    """Archives and removes what is older than ``keep_days``.

    Args:
        loop: of the controller that leads.
        store: its database.
        archives: writes the archives.
        clock: the time.
        holder: the controller's name.
        keep_days: since an event happened or a record ended; more than 0.
        events_a_file: how many events leave at once, at least; None: the default.
    """

    def __init__(
        self,
        *,
        loop: TurnLoop,
        store: Store,
        archives: ArchiveWriter,
        clock: Clock,
        holder: str,
        keep_days: float,
        events_a_file: int | None = None,
    ) -> None:
        self._loop = loop
        self._store = store
        self._archives = archives
        self._clock = clock
        self._holder = holder
        self._keep_days = keep_days
        self._events_a_file = events_a_file or EVENTS_A_FILE

    async def archive_and_delete(self) -> RemovedCounts:
        """Archive and remove everything that is due; returns how much.

        Raises:
            MooringsError: ``archive.failed``, ``store.*``: the rest is still in the database, and leaves the next time.
        """
        runs, claims = await self._sweep_records()
        return RemovedCounts(await self._sweep_events(), runs, claims)

    async def _sweep_events(self) -> int:
        known = await asyncio.to_thread(self._store.archives)
        count = await self._delete_archived(known[-1]) if known else 0  # of a sweep that was killed
        while True:
            before = add_seconds(self._clock.now(), -self._keep_days * DAY_S)
            stretch = await asyncio.to_thread(self._store.next_archive_range, self._events_a_file, before)
            if stretch is None:
                return count
            digest = await asyncio.to_thread(self._archives.write_events, *stretch, self._rows(*stretch))
            count += await self._delete_archived(Archive(*stretch, digest, self._holder, self._clock.now()))

    def _rows(self, first: Seq, last: Seq) -> Iterator[EventRow]:
        done = Seq(first - 1)
        while done < last:
            for row in self._store.list_events(done, _PAGE):
                if row.seq > last:
                    return
                yield row
                done = row.seq

    async def _delete_archived(self, archive: Archive) -> int:
        count = 0
        while gone := await self._loop.forget_events(archive, ROWS_AT_ONCE):
            count += gone
        return count

    async def _sweep_records(self) -> tuple[int, int]:
        runs = claims = 0
        while True:
            before = add_seconds(self._clock.now(), -self._keep_days * DAY_S)
            ended = await asyncio.to_thread(self._store.list_ended, before, RECORDS_A_FILE)
            if not ended:
                return runs, claims
            await asyncio.to_thread(self._archives.write_ended_records, ended, self._store.get_jobs)
            await self._loop.forget_ended(ended, ROWS_AT_ONCE)
            runs, claims = runs + len(ended.runs), claims + len(ended.claims)
