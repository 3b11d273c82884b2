"""Has jobs make room, and tells those that wait why: writes AdminComments, signals, requeues."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial

from moorings.core.errors import MooringsError
from moorings.core.instants import SECOND, Instant
from moorings.slurm.commands import Commands
from moorings.slurm.formats import Asked, JobRecord, Phase, build_cancel, build_note, build_requeue, build_requeueable
from moorings.slurm.host.calls import Calls
from moorings.slurm.host.ledger import Home, since_of
from moorings.slurm.host.reclaim import Asking, Plan, plan, remarks
from moorings.slurm.host.troubles import Troubles
from moorings.wire.shapes import ClaimBody, ReasonBody

log = logging.getLogger("moorings.slurm.agent")

AGAIN_S = 10.0  # what was done is to be seen in the list by then; else it is done again
SIGNAL_TRIES, PAUSE_S = 5, 1.0
SIGNALS_MAX = 2  # at a time: of a job that is not running any more, scancel tells for minutes that it tries again
FOR_GOOD = ("slurm.denied", "slurm.job_unknown", "slurm.refused")  # what is asked again is refused again
REMARKS_S = 10.0
ASIDE_S = 5.0  # for so long a job must have stood in another's way: starts and listings pass each other
ASIDE = "it was started on devices that are kept for a job of their owner, so it waits again"
UNLOCKED = "requeue=0 was taken back: the job runs on devices that others are guaranteed and now need"
TRIES_MAX = 3  # to put a job back that has ended by itself, and to let one be requeued that may not


class Reclaimer:
    """Sees to it that a claim that was asked to yield does, and that its job goes on later.

    Args:
        slurm: its commands.
        calls: to the controller.
        home: of the jobs.
        troubles: where it is told what fails.
    """

    def __init__(self, slurm: Commands, calls: Calls, home: Home, troubles: Troubles) -> None:
        self._slurm = slurm
        self._calls = calls
        self._home = home
        self._troubles = troubles
        self._plan = Plan()
        self._look = asyncio.Event()
        self._done_at: dict[tuple[int, int, str], float] = {}  # by job, start and act
        self._under_way: set[tuple[int, int, str]] = set()
        self._tries: dict[tuple[int, int], int] = {}
        self._unlocked: dict[tuple[int, int], int] = {}  # by start, how often
        self._locked: set[tuple[int, int]] = set()  # starts that Slurm does not let be requeued
        self._stuck: Mapping[str, str] = {}
        self._jobs: Mapping[int, JobRecord] = {}
        self._reasons: Mapping[str, ReasonBody] = {}
        self._written: dict[int, tuple[str, Instant]] = {}
        self._warned: dict[int, int] = {}  # by job, which start of it
        self._writes: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)  # by job
        self._signals = asyncio.Semaphore(SIGNALS_MAX)
        self._aside: dict[str, JobRecord] = {}
        self._aside_since: dict[str, float] = {}

    def look(
        self,
        jobs: Mapping[int, JobRecord],
        claims: Collection[ClaimBody],
        reasons: Mapping[str, ReasonBody],
        kill_wait_s: float,
    ) -> None:
        """Take in a good listing."""
        self._jobs, self._reasons = jobs, reasons
        self._plan = plan(jobs, claims, self._home, _clock(), kill_wait_s, self._locked)
        for ident, why in self._plan.stuck.items():
            if ident not in self._stuck:
                hint = "it is warned, and cancelled when its time is over; with requeue=1 it would go on later"
                log.warning("job.cannot_yield", extra={"claim": ident, "detail": why, "hint": hint})
        self._stuck = self._plan.stuck
        if self._plan.warnings or self._plan.requeues or self._plan.unlocks or self._plan.cancels:
            self._look.set()

    def clear_the_way(self, found: Mapping[str, JobRecord]) -> None:
        """Take in who stands in the way of an owner (``reclaim.in_the_way``), by a good listing."""
        now = _now()
        self._aside_since = {claim: self._aside_since.get(claim, now) for claim in found}
        self._aside = {claim: job for claim, job in found.items() if now - self._aside_since[claim] >= ASIDE_S}
        if self._aside:
            self._look.set()

    def keeps(self, claim: str) -> bool:
        """Whether a claim is not to be released yet: its job goes back into the queue first, if Slurm takes it."""
        start = self._plan.kept.get(claim)
        return start is not None and self._tries.get(start, 0) < TRIES_MAX

    async def serve(self) -> None:
        """Act on the listings, for ever; what is slow with one job does not hold up the others."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._look.wait()
                self._look.clear()
                now = _now()
                self._done_at = {key: at for key, at in self._done_at.items() if now - at < AGAIN_S}
                for warning in self._plan.warnings:
                    self._begin(group, warning.job, "warn", partial(self._warn, warning))
                for job in self._plan.unlocks:
                    self._begin(group, job, "unlock", partial(self._unlock, job))
                for job, why in self._plan.requeues:
                    self._begin(group, job, "requeue", partial(self._requeue, job, why))
                for job, why in self._plan.cancels:
                    self._begin(group, job, "cancel", partial(self._cancel, job, why))
                for claim, job in self._aside.items():
                    self._begin(group, job, "aside", partial(self._step_aside, claim, job))

    def _begin(
        self, group: asyncio.TaskGroup, job: JobRecord, act: str, work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Do that, unless it is under way or was just done."""
        key = (job.job_id, job.restarts, act)
        if key in self._under_way or key in self._done_at:
            return
        self._under_way.add(key)

        def end(_: asyncio.Task[None]) -> None:
            self._under_way.discard(key)
            self._done_at[key] = _now()

        group.create_task(work()).add_done_callback(end)

    async def _warn(self, warning: Asking) -> None:
        job, order = warning.job, warning.job.order
        assert order is not None
        note = warning.note if job.note_is_ours else job.note
        self._warned[job.job_id] = job.restarts
        async with self._writes[job.job_id]:
            with self._troubles.told("job.note") as good:
                # First: an agent that is killed behind it warns nobody twice, and the time runs all the same.
                await self._slurm.ask(build_note(job.target, order, warning.asked, note))
        if not good:
            return
        self._written[job.job_id] = note, _clock()
        log.info("job.warned", extra={"job": job.job_id, "signal": order.signal, "detail": warning.note})
        for _ in range(SIGNAL_TRIES if order.signal else 0):
            if await self._signal(job, order.signal) or not self._runs_still(job):
                break
            await asyncio.sleep(PAUSE_S)

    async def _signal(self, job: JobRecord, signal: str) -> bool:
        """Whether nothing more can be done to send it."""
        whom, _, name = signal.rpartition(":")
        refused = False
        with self._troubles.told("job.warn") as sent:
            try:
                async with self._signals:
                    await self._slurm.ask(build_cancel(job.target, signal=name, batch_only=whom == "B"))
            except MooringsError as error:
                refused = error.code in FOR_GOOD
                raise
        return bool(sent) or refused

    def _runs_still(self, job: JobRecord) -> bool:
        known = self._jobs.get(job.job_id)
        return known is not None and known.restarts == job.restarts and known.phase is Phase.LIVE

    async def _unlock(self, job: JobRecord) -> None:
        """Let a job be requeued that may not: only an admin can have said so, and the devices are others'."""
        start = (job.job_id, job.restarts)
        with self._troubles.told("job.unlock"):
            try:
                await self._slurm.ask(build_requeueable(job.target))
            except MooringsError as error:
                if error.code in FOR_GOOD:
                    self._locked.add(start)
                raise
            self._unlocked[start] = self._unlocked.get(start, 0) + 1
            if self._unlocked[start] >= TRIES_MAX:
                self._locked.add(start)  # somebody undoes it again and again
            log.warning("job.unlocked", extra={"job": job.job_id, "detail": UNLOCKED})

    async def _cancel(self, job: JobRecord, why: str) -> None:
        assert job.order is not None
        note = why if job.note_is_ours else job.note
        async with self._writes[job.job_id]:
            with self._troubles.told("job.note") as noted:
                await self._slurm.ask(build_note(job.target, job.order, job.asked, note))
        if noted:
            self._written[job.job_id] = note, _clock()
        with self._troubles.told("job.cancel") as good:
            await self._slurm.ask(build_cancel(job.target))
        if good:
            log.warning("job.cancelled", extra={"job": job.job_id, "detail": why})

    async def _requeue(self, job: JobRecord, why: str) -> None:
        start = (job.job_id, job.restarts)
        self._tries[start] = self._tries.get(start, 0) + 1
        with self._troubles.told("job.requeue") as good:
            await self._slurm.ask(build_requeue(job.target))
        if good:
            log.info("job.yielded", extra={"job": job.job_id, "detail": why})

    async def _step_aside(self, claim: str, job: JobRecord) -> None:
        """Put a job that was started in another's place back into the queue, with its own place there."""
        with self._troubles.told("job.aside"):
            found = await self._calls(lambda client: client.claim(claim))
            order, since = job.order, since_of(job)
            if found.state != "PENDING" or order is None:
                return
            if since is not None and job.note_is_ours:
                asked = Asked(job.restarts, _clock(), since)
                async with self._writes[job.job_id]:
                    await self._slurm.ask(build_note(job.target, order, asked, ASIDE))
            await self._slurm.ask(build_requeue(job.target))
            log.info("job.set_aside", extra={"job": job.job_id, "detail": ASIDE})

    # -- why jobs wait -----------------------------------------------------------------------------------------------

    async def serve_remarks(self) -> None:
        """Keep what the jobs that wait are told, for ever."""
        while True:
            await asyncio.sleep(REMARKS_S)
            jobs = self._jobs
            self._written = {job: known for job, known in self._written.items() if job in jobs}
            self._warned = {job: start for job, start in self._warned.items() if job in jobs}
            self._tries = {start: n for start, n in self._tries.items() if start[0] in jobs}
            self._unlocked = {start: n for start, n in self._unlocked.items() if start[0] in jobs}
            self._locked = {start for start in self._locked if start[0] in jobs}
            for job in [job for job, lock in self._writes.items() if job not in jobs and not lock.locked()]:
                del self._writes[job]
            for record, text in remarks(jobs, self._reasons, self._written, _clock()):
                with self._troubles.told("job.remark"):
                    await self._remark(record, text)

    async def _remark(self, job: JobRecord, text: str) -> None:
        assert job.order is not None
        async with self._writes[job.job_id]:
            listed = job.asked.restarts if job.asked is not None else None
            if self._warned.get(job.job_id) == job.restarts != listed:
                return  # it was warned since it was listed, and that must not be written over
            await self._slurm.ask(build_note(job.target, job.order, job.asked, text))
        self._written[job.job_id] = text, _clock()


def _clock() -> Instant:
    return Instant(int(time.time() * SECOND))


def _now() -> float:
    return asyncio.get_running_loop().time()
