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

from moorings.core.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.devices import PoolName
from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical_json
from moorings.core.instants import SECOND, Timestamp

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

    def is_taken_from(self, instance: str, now: Timestamp) -> bool:
        """Whether this report bars another instance from reporting the queue, and from its offer."""
        return self.until > now and self.instance not in ("", instance)

    def owns(self, owner: str) -> bool:
        """Whether a claim belongs to this queue, and to the reporting instance if the report names one.

        The last part of the owner is the instance, by agreement with the agents that send one.
        """
        return owner.startswith(f"{self.queue}/") and (not self.instance or owner.endswith(f"/{self.instance}"))

    def claims(self) -> Iterator[Claim]:
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

    def place(self) -> Timestamp | None:
        """The arrival of a job that this queue's scheduler has started: before all its jobs that still wait."""
        return Timestamp(min(job.since for job in self.jobs) - 1) if self.jobs else None


class QueueConflictError(MooringsError):
    """Another instance reports this queue; ``told`` is its report."""

    def __init__(self, told: QueueReport) -> None:
        super().__init__("queue.taken", f"another instance tells what waits in {told.queue}")
        self.told = told


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

    def __init__(self, known: Mapping[str, QueueReport], now: Timestamp) -> None:
        self._known = dict(known)
        self._now = now
        self.changes: dict[str, QueueReport | None] = {}
        self.events: list[Event] = []

    def take(self, told: QueueReport, started: Timestamp | None = None) -> None:
        """Replace the report of a queue; an identical report only extends the validity.

        Args:
            told: the report.
            started: arrival of the last pending claim of this queue: its scheduler has started that job, and starts
                none of the reported jobs before that claim has ended. A block reserved for one of them would be unused.

        Raises:
            QueueConflictError: the report of another instance is valid.
        """
        before = self._known.get(told.queue)
        if before is not None and before.is_taken_from(told.instance, self._now):
            self._note_rival(before, told.instance)
            raise QueueConflictError(before)
        if before is not None and before.instance != told.instance:
            before = None
        if started is not None:
            behind = Timestamp(started + 1)
            told = replace(told, jobs=tuple(replace(job, since=max(job.since, behind)) for job in told.jobs))
        told = replace(told, since=before.since if before else self._now, rival=before.rival if before else None)
        if before is not None and before.jobs == told.jobs and before.accelerator == told.accelerator:
            if told.until - before.until < REPORT_RENEW_S * SECOND:
                return  # an unchanged report of an agent need not fill the log
        else:
            first = told.jobs[0].owner if told.jobs else None
            self._tell("queue.told", {"queue": told.queue, "jobs": len(told.jobs), "first": first})
        self._known[told.queue] = self.changes[told.queue] = told

    def _note_rival(self, told: QueueReport, instance: str) -> None:
        """Record the rival: what the reporting instance takes for a leftover may be the rival's."""
        if told.rival is None or self._now - told.rival >= CONFLICT_EVENT_S * SECOND:
            self._known[told.queue] = self.changes[told.queue] = replace(told, rival=self._now)
            self._tell("queue.contested", {"queue": told.queue, "refused": instance})

    def start(self, owner: str) -> Timestamp | None:
        """The arrival of a claim that another scheduler has started; None for all others: they come last.

        The claim takes its job's place in the queue, so the job is removed from the report.
        """
        told = next((told for told in self._known.values() if owner.startswith(f"{told.queue}/")), None)
        if told is None:
            return None
        left = tuple(job for job in told.jobs if job.owner != owner)
        if len(left) < len(told.jobs):
            self._known[told.queue] = self.changes[told.queue] = replace(told, jobs=left)
        return told.place()

    def believed(self) -> list[QueueReport]:
        """The valid reports, by queue name; for each expired one, an event is written and the report is dropped."""
        for queue, told in list(self._known.items()):
            if told.until <= self._now:
                del self._known[queue]
                self.changes[queue] = None
                self._tell("queue.silent", {"queue": queue})
        return [told for _, told in sorted(self._known.items())]

    def _tell(self, name: str, data: Mapping[str, object]) -> None:
        self.events.append(Event(name=name, at=self._now, data=canonical_json(data)))
