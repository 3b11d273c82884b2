"""The archive for events and records that leave the controller's database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from moorings.ports.store import EndedRecords, EventRow, Seq
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId

JobsOf = Callable[[Sequence[RunId]], Mapping[RunId, JobSpec]]


class ArchiveWriter(Protocol):
    """A durable archive; its calls return once the data survives a power cut."""

    def write_events(self, first: Seq, last: Seq, rows: Iterable[EventRow]) -> str:
        """Archive a stretch of the event log; returns its digest. Archiving the same stretch again is idempotent.

        Raises:
            MooringsError: ``archive.failed``.
        """
        ...

    def write_ended_records(self, ended: EndedRecords, jobs: JobsOf) -> None:
        """Archive ended records; ``jobs`` returns the whole jobs of runs, of which the records have only summaries.

        Raises:
            MooringsError: ``archive.failed``.
        """
        ...
