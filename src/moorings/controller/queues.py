"""Other schedulers' queues: the reports of their agents, and what these schedulers may start (``core.announced``)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moorings.controller.loop import CommittedChange, TurnLoop
from moorings.core.access import RUN_OWNER_PREFIXES, Caller, check_owner_access
from moorings.core.announced import QUEUE_JOBS_MAX, QueueConflictError, QueuedJob, QueueReport, check_instance_id
from moorings.core.claims import check_owner, check_spec
from moorings.core.devices import PoolName
from moorings.core.errors import MooringsError
from moorings.core.explain import explain_wait
from moorings.core.inputs import QueueReported
from moorings.core.instants import Timestamp, add_seconds
from moorings.core.offers import contended_pools, held_counts, next_claim_by_pool
from moorings.core.reasons import Reason
from moorings.ports.clock import Clock
from moorings.wire.codec import format_time

REPORT_TTL_S_MIN, REPORT_TTL_S_MAX = 5.0, 600.0


@dataclass(frozen=True, slots=True)
class QueuedJobView:
    """A job in another scheduler's queue; ``offered``: a block is reserved for it, and its scheduler may start it."""

    job: QueuedJob
    offered: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue, and how many partitions of each size its scheduler may start in each pool.

    ``next_up`` are the owners of those of its jobs that get the next free block in a pool. ``held`` is how many
    partitions of each size its claims hold, at the same moment as the offer. In the pools of ``others_wait``, claims or
    jobs outside this queue wait for devices. ``version`` changes whenever the offer or one of the last two does; a
    controller that takes over returns the same one.
    """

    told: QueueReport
    offer: Mapping[PoolName, Mapping[int, int]]
    jobs: Sequence[QueuedJobView]
    next_up: Mapping[str, str]
    held: Mapping[PoolName, Mapping[int, int]]
    others_wait: Sequence[PoolName]
    version: str


class QueueService:
    """The use cases of other schedulers' agents."""

    def __init__(self, loop: TurnLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._changed: asyncio.Future[None] | None = None
        loop.listen(self._tell_waiting)

    def _tell_waiting(self, _change: CommittedChange) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def tell(
        self,
        caller: Caller,
        queue: str,
        accelerator: str,
        jobs: Sequence[QueuedJob],
        believed_s: float,
        *,
        instance: str | None = None,
    ) -> QueueView:
        """Replace the report of a queue.

        Raises:
            MooringsError: ``owner.invalid``, ``owner.denied``, ``queue.invalid``, ``queue.taken``, ``claim.*``.
        """
        _check_queue(queue, instance)
        check_owner_access(caller, queue, "", "tell what waits there")
        if len(jobs) > QUEUE_JOBS_MAX:
            raise MooringsError(
                "queue.invalid",
                f"{len(jobs)} jobs were told",
                hint=f"tell the first {QUEUE_JOBS_MAX} of your queue's order",
            )
        if not REPORT_TTL_S_MIN <= believed_s <= REPORT_TTL_S_MAX:
            hint = f"use {REPORT_TTL_S_MIN:g} to {REPORT_TTL_S_MAX:g} seconds, and tell it anew before they are over"
            raise MooringsError("queue.invalid", f"a list cannot be believed for {believed_s:g} s", hint=hint)
        now = self._clock.now()
        seen = set()
        for job in jobs:
            check_spec(job.spec)
            check_owner(job.owner)
            if not job.owner.startswith(f"{queue}/") or job.owner in seen:
                hint = f"each begins with {queue}/ and stands there once"
                raise MooringsError("queue.invalid", f"owner {job.owner[:80]!r} cannot stand there", hint=hint)
            seen.add(job.owner)
        past = tuple(QueuedJob(job.owner, job.spec, Timestamp(min(job.since, now))) for job in jobs)
        report = QueueReport(queue, accelerator, past, add_seconds(now, believed_s), instance or "")
        try:
            await self._loop.post(QueueReported(report))
        except QueueConflictError as error:
            raise _conflict_error(error.told) from error
        return self._view(queue, instance)

    async def get(
        self,
        caller: Caller,
        queue: str,
        *,
        wait_s: float = 0,
        version: str | None = None,
        instance: str | None = None,
    ) -> QueueView:
        """A queue; waits up to ``wait_s`` seconds until its version differs from ``version``.

        An agent that acts on the offer gives its instance; without one the result is for observers.

        Raises:
            MooringsError: ``owner.invalid``, ``owner.denied``, ``queue.invalid``, ``queue.unknown``, ``queue.taken``.
        """
        _check_queue(queue, instance)
        check_owner_access(caller, queue, "", "see its offer")
        try:
            async with asyncio.timeout(max(wait_s, 0)):
                # Each job is explained once, at the end.
                while self._version(self._told(queue, instance)) == version:
                    await self._next()
        except TimeoutError:
            pass
        return self._view(queue, instance)

    def all(self) -> list[QueueReport]:
        """The valid reports, by queue name."""
        now = self._clock.now()
        return [report for _, report in sorted(self._loop.fleet.announced.items()) if report.until > now]

    def _told(self, queue: str, instance: str | None) -> QueueReport:
        report, now = self._loop.fleet.announced.get(queue), self._clock.now()
        if report is not None and instance is not None and report.is_taken_from(instance, now):
            raise _conflict_error(report)
        if report is None or report.until <= now or instance not in (None, report.instance):
            raise MooringsError(
                "queue.unknown", f"nothing was heard of {queue[:80]}", hint="its agent tells it: is that running?"
            )
        return report

    def _offer(self, told: QueueReport) -> Mapping[PoolName, Mapping[int, int]]:
        offers = self._loop.fleet.offers
        return {offer.pool: dict(offer.counts) for offer in offers if offer.queue == told.queue}

    def _version(self, told: QueueReport) -> str:
        fleet = self._loop.fleet
        return _version_of(self._offer(told), held_counts(fleet, told), contended_pools(fleet, told))

    def _view(self, queue: str, instance: str | None) -> QueueView:
        return self.view(self._told(queue, instance))

    def view(self, told: QueueReport) -> QueueView:
        """A reported queue, with why each of its jobs waits and its offer."""
        fleet = self._loop.fleet
        free = {kept.claim for kept in fleet.reservations if not kept.until}
        now = self._clock.now()
        jobs = [
            QueuedJobView(job, claim.id in free, explain_wait(fleet, claim, now, self._loop.policy).reasons[0])
            for job, claim in zip(told.jobs, told.claims(), strict=True)
        ]
        own = {job.owner for job in told.jobs} - free  # a job with a reserved block needs no other
        first: dict[str, str] = {
            name: claim.owner
            for name, claim in next_claim_by_pool(fleet, self._loop.policy, now).items()
            if claim.owner in own
        }
        offer, held, others = self._offer(told), held_counts(fleet, told), contended_pools(fleet, told)
        return QueueView(told, offer, jobs, first, held, others, _version_of(offer, held, others))

    async def _next(self) -> None:
        """Return after the next turn that changed something."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)  # others wait for it, too


def _version_of(
    offer: Mapping[PoolName, Mapping[int, int]], held: Mapping[PoolName, Mapping[int, int]], others: Sequence[PoolName]
) -> str:
    counts = [[(pool, *sizes.items()) for pool, sizes in what.items()] for what in (offer, held)]
    return hashlib.sha256(repr((counts, *others)).encode()).hexdigest()


def _conflict_error(told: QueueReport) -> MooringsError:
    kind, _, cluster = told.queue.partition("/")
    since, until = format_time(told.since), format_time(told.until)
    return MooringsError(
        "queue.taken",
        f"another {kind} called {cluster} has told its queue since {since}, and is believed until {until}",
        hint=f"another {kind} of this name uses this key: give one of them another name, or wait until {until}"
        " if the other one is gone",
    )


def _check_queue(queue: str, instance: str | None) -> None:
    if instance is not None:
        check_instance_id(instance)
    check_owner(queue)
    if queue.count("/") != 1 or queue.startswith(("user/", *RUN_OWNER_PREFIXES)):
        raise MooringsError("queue.invalid", f"{queue[:80]!r} is no queue", hint="a queue is slurm/CLUSTER, say")
