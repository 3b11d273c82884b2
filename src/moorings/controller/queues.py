"""Other schedulers' queues: the reports of their agents, and what these may start (``core.model.queue_reports``)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moorings.controller.loop import CommittedChange, TurnLoop
from moorings.controller.waiters import Wakeup
from moorings.core.model.access import RUN_OWNER_PREFIXES, USER_OWNER_PREFIX, Caller, check_owner_access
from moorings.core.model.claims import check_owner, check_spec
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import QueueReported
from moorings.core.model.owners import HIDDEN
from moorings.core.model.queue_reports import (
    QUEUE_JOBS_MAX,
    QueueConflictError,
    QueuedJob,
    QueueReport,
    check_instance_id,
)
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.visibility import visible_to
from moorings.core.scheduling.explain import explain_wait
from moorings.core.scheduling.offers import contended_pools, held_counts, next_claim_by_pool
from moorings.ports.clock import Clock
from moorings.wire.codec import format_time

REPORT_TTL_S_MIN, REPORT_TTL_S_MAX = 5.0, 600.0


@dataclass(frozen=True, slots=True)
class QueuedJobView:
    """A job in another scheduler's queue; ``is_offered``: a block is reserved, and its scheduler may start it.

    ``is_hidden``: the caller does not see whose it is.
    """

    job: QueuedJob
    is_offered: bool
    reason: Reason
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue, and how many partitions of each size its scheduler may start in each pool.

    ``next_up`` are the owners of those of its jobs that get the next free block in a pool. ``held`` is how many
    partitions of each size its claims hold, at the same moment as the offer. In the pools of ``others_wait``, claims or
    jobs outside this queue wait for devices. ``version`` changes whenever the offer or one of the last two does; a
    controller that takes over returns the same one.
    """

    report: QueueReport
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
        self._changed = Wakeup()
        loop.subscribe(self._wake_waiters)

    def _wake_waiters(self, _change: CommittedChange) -> None:
        self._changed.wake_all()

    async def report_queue(
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
            await self._loop.submit(QueueReported(report))
        except QueueConflictError as error:
            raise _conflict_error(error.report) from error
        return self._view(caller, queue, instance)

    async def get_queue(
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
                while self._version(self._current_report(queue, instance)) == version:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._view(caller, queue, instance)

    def list_reports(self) -> list[QueueReport]:
        """The valid reports, by queue name."""
        now = self._clock.now()
        return [report for _, report in sorted(self._loop.fleet.queue_reports.items()) if report.until > now]

    def _current_report(self, queue: str, instance: str | None) -> QueueReport:
        report, now = self._loop.fleet.queue_reports.get(queue), self._clock.now()
        if report is not None and instance is not None and report.is_held_by_other(instance, now):
            raise _conflict_error(report)
        if report is None or report.until <= now or instance not in (None, report.instance):
            raise MooringsError(
                "queue.unknown", f"nothing was heard of {queue[:80]}", hint="its agent tells it: is that running?"
            )
        return report

    def _offer(self, report: QueueReport) -> Mapping[PoolName, Mapping[int, int]]:
        offers = self._loop.fleet.offers
        return {offer.pool: dict(offer.counts) for offer in offers if offer.queue == report.queue}

    def _version(self, report: QueueReport) -> str:
        fleet = self._loop.fleet
        return _version_of(self._offer(report), held_counts(fleet, report), contended_pools(fleet, report))

    def _view(self, caller: Caller, queue: str, instance: str | None) -> QueueView:
        return self.view(caller, self._current_report(queue, instance))

    def view(self, caller: Caller, report: QueueReport) -> QueueView:
        """A reported queue, with why each of its jobs waits and its offer."""
        fleet = self._loop.fleet
        visible = visible_to(caller, fleet.projects)
        free = {kept.claim for kept in fleet.reserved_blocks if not kept.until}
        now = self._clock.now()
        jobs = [
            QueuedJobView(
                job,
                claim.id in free,
                explain_wait(fleet, claim, now, self._loop.policy, visible).reasons[0],
                is_hidden=not visible.includes_claim(claim),
            )
            for job, claim in zip(report.jobs, report.to_claims(), strict=True)
        ]
        own = {job.owner for job in report.jobs} - free  # a job with a reserved block needs no other
        first: dict[str, str] = {
            name: claim.owner
            for name, claim in next_claim_by_pool(fleet, self._loop.policy, now).items()
            if claim.owner in own
        }
        seen = {each.job.owner for each in jobs if not each.is_hidden}
        first = {pool: owner if owner in seen else HIDDEN for pool, owner in first.items()}
        offer, held, others = self._offer(report), held_counts(fleet, report), contended_pools(fleet, report)
        return QueueView(report, offer, jobs, first, held, others, _version_of(offer, held, others))


def _version_of(
    offer: Mapping[PoolName, Mapping[int, int]], held: Mapping[PoolName, Mapping[int, int]], others: Sequence[PoolName]
) -> str:
    counts = [[(pool, *sizes.items()) for pool, sizes in what.items()] for what in (offer, held)]
    return hashlib.sha256(repr((counts, *others)).encode()).hexdigest()


def _conflict_error(report: QueueReport) -> MooringsError:
    kind, _, cluster = report.queue.partition("/")
    since, until = format_time(report.since), format_time(report.until)
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
    if queue.count("/") != 1 or queue.startswith((USER_OWNER_PREFIX, *RUN_OWNER_PREFIXES)):
        raise MooringsError("queue.invalid", f"{queue[:80]!r} is no queue", hint="a queue is slurm/CLUSTER, say")
