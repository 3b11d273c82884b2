"""Claims or runs in their newest version: that in memory or, once a record has ended, that in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from typing import Generic, TypeVar

from moorings.controller.waiters import Waiters
from moorings.core.model.claims import Claim
from moorings.workloads.runs import Run

RecordT = TypeVar("RecordT", bound=Claim | Run)


class RecordFollower(Generic[RecordT]):
    """Follows records of one kind.

    Args:
        in_memory: the record in memory, if it has not ended.
        in_database: any record with that id; it blocks.
    """

    def __init__(
        self, in_memory: Callable[[RecordT], RecordT | None], in_database: Callable[[str], RecordT | None]
    ) -> None:
        self.waiters: Waiters[str] = Waiters()
        self._in_memory = in_memory
        self._in_database = in_database

    def wake(self, changed: Iterable[RecordT], *, is_reload: bool) -> None:
        """Wake the callers that wait for these; after a reload all, because records may have ended unseen."""
        self.waiters.wake(None if is_reload else [record.id for record in changed])

    def newest_version(self, record: RecordT) -> RecordT:
        """The record in memory, if that is newer."""
        held = self._in_memory(record)
        return held if held is not None and held.version > record.version else record

    async def next_version(self, record: RecordT) -> RecordT:
        """The record in a newer version; waits for it."""
        while True:
            held = self._in_memory(record)
            if held is None:  # it has ended
                held = await asyncio.to_thread(self._in_database, record.id)
            if held is not None and held.version > record.version:
                return held
            await self.waiters.wait(record.id)

    async def wait_for(self, record: RecordT, states: Container[object], wait_s: float) -> RecordT:
        """The record once it is in one of ``states`` or ended, or as it is when the time is up."""
        try:
            async with asyncio.timeout(max(wait_s, 0)):
                while record.state not in states and not record.is_ended:
                    record = await self.next_version(record)
        except TimeoutError:
            return self.newest_version(record)
        return record
