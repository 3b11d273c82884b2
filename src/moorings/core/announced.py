"""Demand that another scheduler's queue holds, and what that scheduler may start now.

A job that waits in Slurm is no claim: Slurm decides when it starts, and only then is a partition asked for. But whoever
shares the hardware must know of it, or the jobs of one side would starve those of the other. So the other side's agent
tells the first jobs of its queue, in its own order, again and again; a list replaces the one before, and is believed
for a while. The jobs stand in our queue as ANNOUNCED claims (in memory only: nothing of them can leak): they get blocks
kept, and are never granted. What is kept for them, and what nobody waits for, is the queue's **offer**.

A queue has one teller. Two schedulers of one name (a cloned head node, say) would take each other's claims for
leftovers of their own, so each tells under the id of its own **instance**; while one is believed, others are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from moorings.core.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.devices import PoolName
from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical_json
from moorings.core.instants import SECOND, Timestamp

QUEUE_JOBS_MAX = 64  # of one list; those behind them are told when they have come forward
REPORT_RENEW_S = 60  # a list that says nothing new is taken only if it counts for so much longer
CONFLICT_EVENT_S = 60  # a rival that tells again and again is noted so often
INSTANCE_ID_CHARS = 16
_INSTANCE_CHARS = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits elsewhere.

    Attributes:
        owner: of the claim that will be made when it starts: ``<queue>/<job>...``.
        spec: what that claim will ask for.
        since: when it began to wait.
    """

    owner: str
    spec: ClaimSpec
    since: Timestamp


@dataclass(frozen=True, slots=True)
class QueueReport:
    """What another queue tells of itself.

    Attributes:
        queue: ``<kind>/<cluster>``: the owners of its claims begin with it.
        accelerator: the kind of devices its jobs take.
        jobs: the first that wait, in that queue's own order.
        until: when it is no longer believed, if it has not been told again.
        instance: of the scheduler that tells it; empty: it did not say.
        since: when that instance's first list was taken.
        rival: when a list of another instance was refused last, to ``RIVAL_S``; None: none was.
    """

    queue: str
    accelerator: str
    jobs: tuple[QueuedJob, ...]
    until: Timestamp
    instance: str = ""
    since: Timestamp = Timestamp(0)
    rival: Timestamp | None = None

    def is_taken_from(self, instance: str, now: Timestamp) -> bool:
        """Whether this list keeps another instance from telling the queue, and from its offer."""
        return self.until > now and self.instance not in ("", instance)

    def owns(self, owner: str) -> bool:
        """Whether a claim is one of this queue's, and of the instance that tells it, if that said who it is.

        The owner's last part is the instance, by agreement with the agents that say so.
        """
        return owner.startswith(f"{self.queue}/") and (not self.instance or owner.endswith(f"/{self.instance}"))

    def claims(self) -> Iterator[Claim]:
        """Its jobs as claims: as a whole they wait since they came, among themselves in their queue's order."""
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
        """Where in our queue a job of this queue stands that its scheduler has started: before all that wait there."""
        return Timestamp(min(job.since for job in self.jobs) - 1) if self.jobs else None


class QueueConflictError(MooringsError):
    """A queue is told by another instance; ``told`` is what that one tells."""

    def __init__(self, told: QueueReport) -> None:
        super().__init__("queue.taken", f"another instance tells what waits in {told.queue}")
        self.told = told


def check_instance_id(instance: str) -> None:
    """Nothing, if it is the id of an instance.

    Raises:
        MooringsError: ``queue.invalid``.
    """
    if len(instance) != INSTANCE_ID_CHARS or not set(instance) <= _INSTANCE_CHARS:
        hint = f"{INSTANCE_ID_CHARS} hex digits in small letters, drawn once for each scheduler"
        raise MooringsError("queue.invalid", f"{instance[:80]!r} is the id of no instance", hint=hint)


@dataclass(frozen=True, slots=True)
class Offer:
    """How many partitions of each size another queue's scheduler could start in a pool now: ``(size, count)``."""

    queue: str
    pool: PoolName
    counts: tuple[tuple[int, int], ...]


class QueueReportOverlay:
    """What other queues told, as one turn has it: an overlay, like all of a turn.

    Attributes:
        changes: lists that this turn replaced; None: its queue is silent.
        events: what to tell of it.
    """

    def __init__(self, known: Mapping[str, QueueReport], now: Timestamp) -> None:
        self._known = dict(known)
        self._now = now
        self.changes: dict[str, QueueReport | None] = {}
        self.events: list[Event] = []

    def take(self, told: QueueReport, started: Timestamp | None = None) -> None:
        """A list replaces the one before; the same list again only counts for longer.

        Args:
            told: the list.
            started: where the last of the queue's own claims stands that wait: its scheduler has started that job, and
                starts none of the list before it has ended. A block kept for one of them would be nobody's.

        Raises:
            TakenError: another instance is believed.
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
                return  # not each word of an agent that has nothing new to say needs a place in the log
        else:
            first = told.jobs[0].owner if told.jobs else None
            self._tell("queue.told", {"queue": told.queue, "jobs": len(told.jobs), "first": first})
        self._known[told.queue] = self.changes[told.queue] = told

    def _note_rival(self, told: QueueReport, instance: str) -> None:
        """Who is believed must know of it: what it takes for a leftover may be its rival's."""
        if told.rival is None or self._now - told.rival >= CONFLICT_EVENT_S * SECOND:
            self._known[told.queue] = self.changes[told.queue] = replace(told, rival=self._now)
            self._tell("queue.contested", {"queue": told.queue, "refused": instance})

    def start(self, owner: str) -> Timestamp | None:
        """Where a claim stands that another scheduler has started; None for all others: they come last.

        Its job had its place, and from now on must not stand there beside it.
        """
        told = next((told for told in self._known.values() if owner.startswith(f"{told.queue}/")), None)
        if told is None:
            return None
        left = tuple(job for job in told.jobs if job.owner != owner)
        if len(left) < len(told.jobs):
            self._known[told.queue] = self.changes[told.queue] = replace(told, jobs=left)
        return told.place()

    def believed(self) -> list[QueueReport]:
        """The lists that still count, by the queues' names; of the others it is told once that they are silent."""
        for queue, told in list(self._known.items()):
            if told.until <= self._now:
                del self._known[queue]
                self.changes[queue] = None
                self._tell("queue.silent", {"queue": queue})
        return [told for _, told in sorted(self._known.items())]

    def _tell(self, name: str, data: Mapping[str, object]) -> None:
        self.events.append(Event(name=name, at=self._now, data=canonical_json(data)))
