"""Where the controller puts what leaves its database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from moorings.ports.store import EndedRecords, EventRow, Seq
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId

JobsOf = Callable[[Sequence[RunId]], Mapping[RunId, JobSpec]]


class ArchiveWriter(Protocol):
    """A place that keeps what it was given; its calls return once that survives a power cut."""

    def write_events(self, first: Seq, last: Seq, rows: Iterable[EventRow]) -> str:
        """Keep a stretch of the event log; its digest. The same stretch may be given again, and is kept once.

        Raises:
            MooringsError: ``archive.failed``.
        """
        ...

    def write_ended(self, ended: EndedRecords, jobs: JobsOf) -> None:
        """Keep records as they were last; ``jobs`` gives the jobs of runs, of which the records have the heads alone.

        Raises:
            MooringsError: ``archive.failed``.
        """
        ...
