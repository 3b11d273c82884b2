"""Carries out a plan's actions on Slurm's jobs: AdminComments, signals, requeues, cancellations.

A slow action on one job delays no other job. An action shows in the list of jobs a little later, and is not repeated
before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Mapping

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.formats import (
    JobRecord,
    SlurmJobPhase,
    YieldNotice,
    build_allow_requeue,
    build_cancel,
    build_comment_update,
    build_drain,
    build_nodes,
    build_requeue,
    parse_nodes,
)
from moorings.slurm.host.controller_client import ControllerClient
from moorings.slurm.host.failure_log import FailureLog
from moorings.slurm.host.job_table import queued_since
from moorings.slurm.host.plan import (
    TRIES_MAX,
    ActionOutcomes,
    AllowRequeue,
    CancelJob,
    PreemptJobs,
    PutBackJob,
    RequeueJob,
    StopUnboundJob,
    WriteNote,
)
from moorings.slurm.host.reclaim import WarnJob

log = logging.getLogger("moorings.slurm.agent")

AGAIN_S = 10.0  # the action shows in the list by then; else it is repeated
SIGNAL_TRIES, PAUSE_S = 5, 1.0
SIGNALS_MAX = 2  # at a time: for a job that no longer runs, scancel retries for minutes
FOR_GOOD = ("slurm.denied", "slurm.job_unknown", "slurm.refused")  # a retry would be refused again
PUT_BACK_NOTE = "it was started on devices that are kept for a job of their owner, so it waits again"
UNLOCKED = "requeue=0 was taken back: the job runs on devices that others are guaranteed and now need"

JobAct = WarnJob | AllowRequeue | RequeueJob | CancelJob | PutBackJob | StopUnboundJob | WriteNote | PreemptJobs


class SlurmExecutor:
    """Carries out actions on jobs, and records their outcomes.

    Args:
        slurm: its commands.
        calls: to the controller.
        troubles: the log of failures.
    """

    def __init__(self, slurm: SlurmCommands, calls: ControllerClient, troubles: FailureLog) -> None:
        self._slurm = slurm
        self._calls = calls
        self._troubles = troubles
        self._acts: asyncio.Queue[JobAct] = asyncio.Queue()
        self._done_at: dict[tuple[int, int, type], float] = {}  # by job, start and kind of action
        self._under_way: set[tuple[int, int, type]] = set()
        self._requeues: dict[tuple[int, int], int] = {}
        self._unlocked: dict[tuple[int, int], int] = {}  # number of times, by start
        self._locked: set[tuple[int, int]] = set()
        self._drained: dict[tuple[int, int], frozenset[str]] = {}  # by start
        self._refusals: dict[tuple[int, int], int] = {}  # number of refused requeues, by start
        self._notes: dict[int, tuple[str, Timestamp]] = {}
        self._jobs: Mapping[int, JobRecord] = {}
        self._warned: dict[int, int] = {}  # the start, by job
        self._writes: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)  # by job
        self._signals = asyncio.Semaphore(SIGNALS_MAX)
        self._one_note = asyncio.Lock()

    def submit(self, act: JobAct) -> None:
        """Carry out an action, unless it is in progress or was just done."""
        self._acts.put_nowait(act)

    @property
    def outcomes(self) -> ActionOutcomes:
        """Return the outcomes of the actions so far."""
        return ActionOutcomes(
            not_requeueable=frozenset(self._locked),
            requeues=dict(self._requeues),
            drained=dict(self._drained),
            notes=dict(self._notes),
        )

    def forget_missing(self, jobs: Mapping[int, JobRecord]) -> None:
        """Take in a complete list of jobs, and forget all others."""
        self._jobs = jobs
        self._notes = {job: known for job, known in self._notes.items() if job in jobs}
        self._warned = {job: start for job, start in self._warned.items() if job in jobs}
        self._requeues = {start: n for start, n in self._requeues.items() if start[0] in jobs}
        self._unlocked = {start: n for start, n in self._unlocked.items() if start[0] in jobs}
        self._locked = {start for start in self._locked if start[0] in jobs}
        self._drained = {start: nodes for start, nodes in self._drained.items() if start[0] in jobs}
        self._refusals = {start: n for start, n in self._refusals.items() if start[0] in jobs}
        for job in [job for job, lock in self._writes.items() if job not in jobs and not lock.locked()]:
            del self._writes[job]

    async def serve(self) -> None:
        """Carry out the actions passed to ``do``, forever."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._begin(group, await self._acts.get())

    def _begin(self, group: asyncio.TaskGroup, act: JobAct) -> None:
        job = act.waiting if isinstance(act, PreemptJobs) else act.job
        key = (job.job_id, job.restarts, type(act))
        now = _now()
        self._done_at = {done: at for done, at in self._done_at.items() if now - at < AGAIN_S}
        if key in self._under_way or key in self._done_at:
            return
        self._under_way.add(key)

        def end(_: asyncio.Task[None]) -> None:
            self._under_way.discard(key)
            if not isinstance(act, PreemptJobs | WriteNote):  # the plan decides when to repeat these
                self._done_at[key] = _now()

        group.create_task(self._do(act)).add_done_callback(end)

    async def _do(self, act: JobAct) -> None:
        match act:
            case WarnJob():
                await self._warn(act)
            case AllowRequeue():
                await self._allow_requeue(act.job)
            case RequeueJob():
                await self._requeue(act.job, act.why)
            case CancelJob():
                await self._cancel(act.job, act.why)
            case PutBackJob():
                await self._set_aside(act.claim, act.job)
            case StopUnboundJob():
                await self._stop_unbound(act)
            case WriteNote():
                await self._write_note(act.job, act.text)
            case PreemptJobs():
                await self._preempt(act)

    async def _warn(self, warning: WarnJob) -> None:
        job, order = warning.job, warning.job.order
        assert order is not None
        note = warning.note if job.is_note_ours else job.note
        self._warned[job.job_id] = job.restarts
        async with self._writes[job.job_id]:
            with self._troubles.logged("job.note") as good:
                # First: if the agent is killed after it, no job is warned twice, and the time still runs.
                await self._slurm.run_checked(build_comment_update(job.target, order, warning.asked, note))
        if not good:
            return
        self._notes[job.job_id] = note, wall_clock()
        log.info("job.warned", extra={"job": job.job_id, "signal": order.signal, "detail": warning.note})
        for _ in range(SIGNAL_TRIES if order.signal else 0):
            if await self._signal(job, order.signal) or not self._runs_still(job):
                break
            await asyncio.sleep(PAUSE_S)

    async def _signal(self, job: JobRecord, signal: str) -> bool:
        """Return whether the signal is sent, or cannot be."""
        whom, _, name = signal.rpartition(":")
        refused = False
        with self._troubles.logged("job.warn") as sent:
            try:
                async with self._signals:
                    await self._slurm.run_checked(build_cancel(job.target, signal=name, batch_only=whom == "B"))
            except MooringsError as error:
                refused = error.code in FOR_GOOD
                raise
        return bool(sent) or refused

    def _runs_still(self, job: JobRecord) -> bool:
        known = self._jobs.get(job.job_id)
        return known is not None and known.restarts == job.restarts and known.phase is SlurmJobPhase.LIVE

    async def _allow_requeue(self, job: JobRecord) -> None:
        """Allow requeue of a job. Only an admin can have forbidden it, and the devices are others'."""
        start = (job.job_id, job.restarts)
        with self._troubles.logged("job.unlock"):
            try:
                await self._slurm.run_checked(build_allow_requeue(job.target))
            except MooringsError as error:
                if error.code in FOR_GOOD:
                    self._locked.add(start)
                raise
            self._unlocked[start] = self._unlocked.get(start, 0) + 1
            if self._unlocked[start] >= TRIES_MAX:
                self._locked.add(start)  # an admin undoes it again and again
            log.warning("job.unlocked", extra={"job": job.job_id, "detail": UNLOCKED})

    async def _cancel(self, job: JobRecord, why: str) -> None:
        await self._write_reason(job, why)
        with self._troubles.logged("job.cancel") as good:
            await self._slurm.run_checked(build_cancel(job.target))
        if good:
            log.warning("job.cancelled", extra={"job": job.job_id, "detail": why})

    async def _write_reason(self, job: JobRecord, why: str) -> None:
        """Write the reason of an action into a job's AdminComment, unless an admin has written there."""
        assert job.order is not None
        note = why if job.is_note_ours else job.note
        async with self._writes[job.job_id]:
            with self._troubles.logged("job.note") as noted:
                await self._slurm.run_checked(build_comment_update(job.target, job.order, job.asked, note))
        if noted:
            self._notes[job.job_id] = note, wall_clock()

    async def _stop_unbound(self, act: StopUnboundJob) -> None:
        job, start = act.job, (act.job.job_id, act.job.restarts)
        if act.nodes:
            with self._troubles.logged("node.drain"):
                states = {node.name: node.state for node in parse_nodes(await self._slurm.run_checked(build_nodes()))}
                ready = [node for node in act.nodes if "drain" not in states.get(node, "")]  # skip drained ones
                if ready:
                    await self._slurm.run_checked(build_drain(ready, f"moorings: {act.why}"))
                    log.error("node.drained", extra={"nodes": ",".join(ready), "detail": act.why})
                self._drained[start] = self._drained.get(start, frozenset()).union(act.nodes)
        if not (job.batch and job.requeue):
            await self._cancel(job, f"cancelled: {act.why}")
            return
        await self._write_reason(job, f"put back: {act.why}")
        with self._troubles.logged("job.requeue") as good:
            try:
                await self._slurm.run_checked(build_requeue(job.target))
            except MooringsError as error:
                self._refusals[start] = self._refusals.get(start, 0) + (error.code in FOR_GOOD)
                raise
        if good:
            log.warning("job.put_back", extra={"job": job.job_id, "detail": act.why})
        elif self._refusals[start] >= TRIES_MAX:  # it must not run without its partition
            await self._cancel(job, f"cancelled, for Slurm does not requeue it: {act.why}")

    async def _requeue(self, job: JobRecord, why: str) -> None:
        start = (job.job_id, job.restarts)
        self._requeues[start] = self._requeues.get(start, 0) + 1
        with self._troubles.logged("job.requeue") as good:
            await self._slurm.run_checked(build_requeue(job.target))
        if good:
            log.info("job.yielded", extra={"job": job.job_id, "detail": why})

    async def _set_aside(self, claim: str, job: JobRecord) -> None:
        """Requeue a job that was started in another's place; it keeps its own place in the queue."""
        with self._troubles.logged("job.aside"):
            found = await self._calls(lambda client: client.get_claim(claim))
            order, since = job.order, queued_since(job)
            if found.state != "PENDING" or order is None:
                return
            if since is not None and job.is_note_ours:
                asked = YieldNotice(job.restarts, wall_clock(), since)
                async with self._writes[job.job_id]:
                    await self._slurm.run_checked(build_comment_update(job.target, order, asked, PUT_BACK_NOTE))
            await self._slurm.run_checked(build_requeue(job.target))
            log.info("job.set_aside", extra={"job": job.job_id, "detail": PUT_BACK_NOTE})

    async def _write_note(self, job: JobRecord, text: str) -> None:
        assert job.order is not None
        async with self._one_note, self._writes[job.job_id]:
            listed = job.asked.restarts if job.asked is not None else None
            if self._warned.get(job.job_id) == job.restarts != listed:
                return  # it was warned after it was listed: do not overwrite that
            with self._troubles.logged("job.remark") as good:
                await self._slurm.run_checked(build_comment_update(job.target, job.order, job.asked, text))
        if good:
            self._notes[job.job_id] = text, wall_clock()

    async def _preempt(self, act: PreemptJobs) -> None:
        with self._troubles.logged("job.displace"):
            for job, again in act.victims:
                fields = {"job": job.job_id, "for_job": act.waiting.job_id, "requeued": again}
                log.info("job.displaced", extra=fields)
                await self._slurm.run_checked(build_requeue(job.target) if again else build_cancel(job.target))


def wall_clock() -> Timestamp:
    """Return the wall clock's time."""
    return Timestamp(int(time.time() * SECOND))


def _now() -> float:
    return asyncio.get_running_loop().time()
