"""Has jobs make room, and tells those that wait why: writes AdminComments, signals, requeues."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping

from moorings.core.instants import SECOND, Instant
from moorings.slurm.commands import Commands
from moorings.slurm.formats import Asked, JobRecord, build_cancel, build_note, build_requeue
from moorings.slurm.host.calls import Calls
from moorings.slurm.host.ledger import Home, since_of
from moorings.slurm.host.reclaim import Asking, Plan, plan, remarks
from moorings.slurm.host.troubles import Troubles
from moorings.wire.shapes import ClaimBody, ReasonBody

log = logging.getLogger("moorings.slurm.agent")

AGAIN_S = 10.0  # what was done is to be seen in the list by then; else it is done again
SIGNAL_TRIES, PAUSE_S = 5, 1.0
REMARKS_S = 10.0
ASIDE_S = 5.0  # for so long a job must have stood in another's way: starts and listings pass each other
ASIDE = "it was started on devices that are kept for a job of their owner, so it waits again"
TRIES_MAX = 3  # to put a job back that has ended by itself


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
        self._tries: dict[tuple[int, int], int] = {}
        self._stuck: Mapping[str, str] = {}
        self._jobs: Mapping[int, JobRecord] = {}
        self._reasons: Mapping[str, ReasonBody] = {}
        self._written: dict[int, tuple[str, Instant]] = {}
        self._warned: dict[int, int] = {}  # by job, which start of it
        self._writes = asyncio.Lock()
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
        self._plan = plan(jobs, claims, self._home, _clock(), kill_wait_s)
        for ident, why in self._plan.stuck.items():
            if ident not in self._stuck:
                hint = "let Slurm requeue it (scontrol update requeue=1), or cancel it; until then it keeps its devices"
                log.warning("job.cannot_yield", extra={"claim": ident, "detail": why, "hint": hint})
        self._stuck = self._plan.stuck
        if self._plan.warnings or self._plan.requeues:
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
        """Act on the listings, for ever."""
        while True:
            await self._look.wait()
            self._look.clear()
            now = _now()
            self._done_at = {key: at for key, at in self._done_at.items() if now - at < AGAIN_S}
            work = [self._warn(one) for one in self._plan.warnings if self._is_new(one.job, "warn")]
            work += [self._requeue(job, why) for job, why in self._plan.requeues if self._is_new(job, "requeue")]
            work += [self._step_aside(claim, job) for claim, job in self._aside.items() if self._is_new(job, "aside")]
            await asyncio.gather(*work)

    def _is_new(self, job: JobRecord, act: str) -> bool:
        """Whether that was not just done; from now on it was."""
        key = (job.job_id, job.restarts, act)
        if key in self._done_at:
            return False
        self._done_at[key] = _now()
        return True

    async def _warn(self, warning: Asking) -> None:
        job, order = warning.job, warning.job.order
        assert order is not None
        note = warning.note if job.note_is_ours else job.note
        self._warned[job.job_id] = job.restarts
        async with self._writes:
            with self._troubles.told("job.note") as good:
                # First: an agent that is killed behind it warns nobody twice, and the time runs all the same.
                await self._slurm.ask(build_note(job.job_id, order, warning.asked, note))
        if not good:
            return
        self._written[job.job_id] = note, _clock()
        log.info("job.warned", extra={"job": job.job_id, "signal": order.signal, "detail": warning.note})
        whom, _, signal = order.signal.rpartition(":")
        for _ in range(SIGNAL_TRIES if signal else 0):
            with self._troubles.told("job.warn") as sent:
                await self._slurm.ask(build_cancel(job.job_id, signal=signal, batch_only=whom == "B"))
            if sent:
                break
            await asyncio.sleep(PAUSE_S)

    async def _requeue(self, job: JobRecord, why: str) -> None:
        start = (job.job_id, job.restarts)
        self._tries[start] = self._tries.get(start, 0) + 1
        with self._troubles.told("job.requeue") as good:
            await self._slurm.ask(build_requeue(job.job_id))
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
                async with self._writes:
                    await self._slurm.ask(build_note(job.job_id, order, asked, ASIDE))
            await self._slurm.ask(build_requeue(job.job_id))
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
            for job, text in remarks(jobs, self._reasons, self._written, _clock()):
                with self._troubles.told("job.remark"):
                    await self._remark(job, text)

    async def _remark(self, job: JobRecord, text: str) -> None:
        assert job.order is not None
        async with self._writes:
            listed = job.asked.restarts if job.asked is not None else None
            if self._warned.get(job.job_id) == job.restarts != listed:
                return  # it was warned since it was listed, and that must not be written over
            await self._slurm.ask(build_note(job.job_id, job.order, job.asked, text))
        self._written[job.job_id] = text, _clock()


def _clock() -> Instant:
    return Instant(int(time.time() * SECOND))


def _now() -> float:
    return asyncio.get_running_loop().time()
