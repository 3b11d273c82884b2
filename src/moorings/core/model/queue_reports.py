"""The queue of another scheduler as its agent reports it, and what that scheduler may start now.

A job that waits in Slurm has no claim: Slurm decides when it starts, and only then requests a partition. But all users
of shared hardware must see that demand; otherwise the jobs of one side would starve those of the other. So the other
scheduler's agent reports the first jobs of its queue repeatedly, in that queue's order. A report replaces the previous
one and expires after a while. Its jobs are in our queue as ANNOUNCED claims (in memory only, so they cannot leak):
blocks are reserved for them, but they are never granted. The queue's **offer** is what is reserved for them and what no
claim waits for.

Only one agent may report a queue. Two schedulers of one name (after cloning a head node, say) would take each other's
claims for leftovers of their own. So each reports under its own **instance** id; while its report is valid, reports of
other instances are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from moorings.core.model.access import Ownership
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.timestamps import SECOND, Timestamp

QUEUE_JOBS_MAX = 64  # of one report; later jobs are reported when they have moved up
REPORT_RENEW_S = 60  # an unchanged report is saved only if it extends the validity by at least so much
CONFLICT_EVENT_S = 60  # a rival's repeated reports make at most one event in this time
INSTANCE_ID_CHARS = 16
_INSTANCE_CHARS = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits in another scheduler's queue.

    Attributes:
        owner: of the claim to be created when it starts: ``<queue>/<job>...``.
        spec: the request of that claim.
        since: when the job began to wait.
    """

    owner: str
    spec: ClaimSpec
    since: Timestamp


@dataclass(frozen=True, slots=True)
class QueueReport:
    """Another scheduler's report of its queue.

    Attributes:
        queue: ``<kind>/<cluster>``: the owners of its claims begin with it.
        accelerator: the kind of devices its jobs request.
        jobs: the first pending jobs, in that queue's own order.
        until: when the report expires, unless it is renewed.
        instance: of the reporting scheduler; empty: it gave none.
        since: when the first report of that instance was accepted.
        rival: when a report of another instance was last refused, to ``CONFLICT_EVENT_S``; None: never.
    """

    queue: str
    accelerator: str
    jobs: tuple[QueuedJob, ...]
    until: Timestamp
    instance: str = ""
    since: Timestamp = Timestamp(0)
    rival: Timestamp | None = None

    def is_held_by_other(self, instance: str, now: Timestamp) -> bool:
        """Whether this report bars another instance from reporting the queue, and from its offer."""
        return self.until > now and self.instance not in ("", instance)

    def is_owner_of(self, owner: str) -> bool:
        """Whether a claim belongs to this queue, and to the reporting instance if the report names one.

        The last part of the owner is the instance, by agreement with the agents that send one.
        """
        return owner.startswith(f"{self.queue}/") and (not self.instance or owner.endswith(f"/{self.instance}"))

    def to_claims(self) -> Iterator[Claim]:
        """Its jobs as claims. The jobs' arrival times stay as a set; the queue's own order assigns them to jobs."""
        arrivals = sorted(job.since for job in self.jobs)
        for number, (job, arrival) in enumerate(zip(self.jobs, arrivals, strict=True)):
            yield Claim(
                id=ClaimId(job.owner),
                name=job.owner,
                owner=job.owner,
                subject=self.queue,
                spec=job.spec,
                state=ClaimState.ANNOUNCED,
                arrival=Timestamp(arrival + number),  # strictly ascending: ids must not break ties
            )

    def arrival_of_started(self) -> Timestamp | None:
        """The arrival of a job that this queue's scheduler has started: before all its jobs that still wait."""
        return Timestamp(min(job.since for job in self.jobs) - 1) if self.jobs else None


class QueueConflictError(MooringsError):
    """Another instance reports this queue; ``report`` is its report."""

    def __init__(self, report: QueueReport) -> None:
        super().__init__("queue.taken", f"another instance tells what waits in {report.queue}")
        self.report = report


def check_instance_id(instance: str) -> None:
    """Check the form of an instance id.

    Raises:
        MooringsError: ``queue.invalid``.
    """
    if len(instance) != INSTANCE_ID_CHARS or not set(instance) <= _INSTANCE_CHARS:
        hint = f"{INSTANCE_ID_CHARS} hex digits in small letters, drawn once for each scheduler"
        raise MooringsError("queue.invalid", f"{instance[:80]!r} is the id of no instance", hint=hint)


@dataclass(frozen=True, slots=True)
class Offer:
    """How many partitions of each size another queue's scheduler may start in a pool now: ``(size, count)``."""

    queue: str
    pool: PoolName
    counts: tuple[tuple[int, int], ...]


class QueueReportOverlay:
    """The queue reports of one turn, as an overlay, like all state of a turn.

    Attributes:
        changes: reports that this turn replaced; None: the queue's report has expired.
        events: the events that follow.
    """

    def __init__(self, reports: Mapping[str, QueueReport], now: Timestamp) -> None:
        self._known = dict(reports)
        self._now = now
        self.changes: dict[str, QueueReport | None] = {}
        self.events: list[Event] = []

    def accept_report(self, report: QueueReport, started: Timestamp | None = None) -> None:
        """Replace the report of a queue; an identical report only extends the validity.

        Args:
            report: the report.
            started: arrival of the last pending claim of this queue: its scheduler has started that job, and starts
                none of the reported jobs before that claim has ended. A block reserved for one of them would be unused.

        Raises:
            QueueConflictError: the report of another instance is valid.
        """
        before = self._known.get(report.queue)
        if before is not None and before.is_held_by_other(report.instance, self._now):
            self._record_conflict(before, report.instance)
            raise QueueConflictError(before)
        if before is not None and before.instance != report.instance:
            before = None
        if started is not None:
            behind = Timestamp(started + 1)
            report = replace(report, jobs=tuple(replace(job, since=max(job.since, behind)) for job in report.jobs))
        report = replace(report, since=before.since if before else self._now, rival=before.rival if before else None)
        if before is not None and before.jobs == report.jobs and before.accelerator == report.accelerator:
            if report.until - before.until < REPORT_RENEW_S * SECOND:
                return  # an unchanged report of an agent need not fill the log
        else:
            first = report.jobs[0].owner if report.jobs else None
            self._emit_event("queue.told", report.queue, {"jobs": len(report.jobs), "first": first})
        self._known[report.queue] = self.changes[report.queue] = report

    def _record_conflict(self, report: QueueReport, instance: str) -> None:
        """Record the rival: what the reporting instance takes for a leftover may be the rival's."""
        if report.rival is None or self._now - report.rival >= CONFLICT_EVENT_S * SECOND:
            self._known[report.queue] = self.changes[report.queue] = replace(report, rival=self._now)
            self._emit_event("queue.contested", report.queue, {"refused": instance})

    def start_job(self, owner: str) -> Timestamp | None:
        """The arrival of a claim that another scheduler has started; None for all others: they come last.

        The claim takes its job's place in the queue, so the job is removed from the report.
        """
        report = next((report for report in self._known.values() if owner.startswith(f"{report.queue}/")), None)
        if report is None:
            return None
        left = tuple(job for job in report.jobs if job.owner != owner)
        if len(left) < len(report.jobs):
            self._known[report.queue] = self.changes[report.queue] = replace(report, jobs=left)
        return report.arrival_of_started()

    def unexpired_reports(self) -> list[QueueReport]:
        """The valid reports, by queue name; for each expired one, an event is written and the report is dropped."""
        for queue, report in list(self._known.items()):
            if report.until <= self._now:
                del self._known[queue]
                self.changes[queue] = None
                self._emit_event("queue.silent", queue)
        return [report for _, report in sorted(self._known.items())]

    def _emit_event(self, name: str, queue: str, data: Mapping[str, object] = MappingProxyType({})) -> None:
        text = canonical_json({"queue": queue, **data})
        self.events.append(Event(name=name, at=self._now, data=text, ownership=Ownership(owner=queue)))
