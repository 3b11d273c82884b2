"""Acts on engines: starts runs whose partition is ACTIVE, stops runs, and returns what engines observe.

Level-triggered like ``driver_manager``: the runs' states say what to do, one action a run at a time, repeated until the
engine's observations say it is done. Starting is exactly-once because engines make it so. A run on an engine with its
own scheduler is submitted as soon as it is known: that scheduler provides what it waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from moorings.controller.driver_manager import DriverManager, partition_spec
from moorings.controller.loop import CommittedChange, TurnLoop
from moorings.controller.retry_timer import RetryTimer
from moorings.core.model.access import RUN_OWNER_PREFIXES
from moorings.core.model.bindings import NO_BINDING, Binding, no_devices_binding
from moorings.core.model.claims import ClaimState, PartitionId
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import ReleaseClaim
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.timestamps import add_seconds
from moorings.core.reconcile import find_orphans
from moorings.ports.clock import Clock, Ids
from moorings.ports.engine import Engine, RunSubmission
from moorings.ports.environments import RunEnvironments
from moorings.workloads.checkpoints import newest_whole
from moorings.workloads.environment import has_values
from moorings.workloads.jobs import JobSpec
from moorings.workloads.run_turn import RunRejected, claim_owner
from moorings.workloads.runs import Run, RunId, RunPhase, RunState, RunStatus, after_look, resume_since

log = logging.getLogger("moorings.controller")

RETRY_S, RETRY_S_MAX = 0.25, 10.0
STOP_AGAIN_S = 5.0
ORPHAN_SWEEP_S = 10.0
CHECKPOINT_INTERVAL_S = 15.0  # at least between two recorded checkpoints of a run

RUNNING_STATES = (RunState.STARTING, RunState.RUNNING, RunState.YIELDING, RunState.STOPPING)


class RunManager:
    """Makes engines do what the runs' states require."""

    def __init__(
        self,
        loop: TurnLoop,
        engines: Mapping[str, Engine],
        hardware: DriverManager,
        clock: Clock,
        ids: Ids,
        installation: str,
        environments: RunEnvironments,
    ) -> None:
        self.engines = engines
        self.environments = environments
        self._loop = loop
        self._hardware = hardware
        self._clock = clock
        self._installation = installation
        self._acts: dict[RunId, asyncio.Task[None]] = {}
        self._submitting: set[RunId] = set()
        self._fenced = {name: asyncio.Event() for name in engines}
        self._closing = False
        self._retries = RetryTimer(loop, clock, ids)
        loop.subscribe(self._follow)

    async def serve(self) -> None:
        """Watch every engine until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for engine in self.engines.values():
                    group.create_task(self._watch(engine), name=f"watch-{engine.name}")
                group.create_task(self._sweep_orphans(), name="orphans")
                group.create_task(self._retries.serve(), name="retries")
        finally:
            self._closing = True
            tasks = list(self._acts.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, change: CommittedChange) -> None:
        for run in change.runs:
            self._start_action(run)

    def _start_action(self, run: Run) -> None:
        if self._closing or run.id in self._acts or not _needs_action(run):
            return
        task = asyncio.create_task(self._carry_out(run.id), name=f"act-{run.id}")
        self._acts[run.id] = task
        task.add_done_callback(lambda _: self._finished(run.id))

    def _finished(self, ident: RunId) -> None:
        self._acts.pop(ident, None)
        run = self._loop.runs.by_id.get(ident)
        if run is not None and run.state is RunState.STOPPING:
            self._start_action(run)  # it was asked to stop while the last act was ending

    async def _carry_out(self, ident: RunId) -> None:
        """Start or stop it, until its state requires nothing more."""
        pause_s = RETRY_S
        submitted = False
        while True:
            run = self._loop.runs.by_id.get(ident)
            if run is None or not _needs_action(run):
                return
            engine = self.engines.get(run.engine)
            if engine is None:  # it was removed from the settings: its runs wait until it is back
                return
            try:
                if run.state is RunState.STOPPING:
                    await engine.cancel(ident, run.stop_reason)
                    await self._clock.sleep(STOP_AGAIN_S)
                elif run.state is RunState.YIELDING:
                    await self._ask_to_yield(engine, run)
                    return  # the engine has saved the request, and gets it again at the next look
                elif submitted:
                    return  # the engine has accepted it; its observations show the progress
                else:
                    submitted = await self._start(engine, run)
                    continue
            except MooringsError as error:
                if error.code == "engine.rejected":
                    why = f"{error.detail} ({error.hint})" if error.hint else error.detail
                    self._loop.submit_nowait(RunRejected(ident, why))
                    return
                log.warning("engine.unavailable", extra={"run": ident, "code": error.code, "detail": error.detail})
                self._loop.runs.set_wait_reason(ident, f"it could not be submitted yet: {error.detail}")
            except Exception as error:  # an engine's fault must not end the controller
                log.warning("engine.fault", exc_info=True, extra={"run": ident, "detail": repr(error)})
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_S_MAX)

    async def _ask_to_yield(self, engine: Engine, run: Run) -> None:
        claim = self._loop.fleet.claims.get(run.claim) if run.claim is not None else None
        by = claim.asked_until if claim is not None else None
        if run.pause is not None and by is None:
            deadline = add_seconds(self._clock.now(), run.pause.timeout_s)
            await engine.ask_to_yield(run.id, run.attempt, run.pause.reason, deadline, until_saved=True)
            return
        why = claim.reason.message if claim is not None and claim.reason is not None else "its claim was asked to yield"
        await engine.ask_to_yield(run.id, run.attempt, why, self._clock.now() if by is None else by)

    async def _start(self, engine: Engine, run: Run) -> bool:
        """Start it, if its partition is ACTIVE at this moment (law 4); returns whether the engine accepted it."""
        await self._fenced[engine.name].wait()
        if run.claim is None:
            return await self._submit(engine, run, NO_BINDING)
        claim = self._loop.fleet.claims.get(run.claim)
        if claim is not None and claim.state is ClaimState.READY and not claim.spec.size:  # it needs no devices
            return await self._submit(engine, run, no_devices_binding(run.job.tasks))
        partition = self._partition(run)
        if partition is None or partition.state is not PartitionState.ACTIVE:
            await self._clock.sleep(RETRY_S)
            return False
        order = partition_spec(partition, self._installation)
        binding = await self._hardware.drivers[partition.pool].binding(order)
        return await self._submit(engine, run, binding, partition.id)

    async def _submit(self, engine: Engine, run: Run, binding: Binding, on: PartitionId | None = None) -> bool:
        job = (await asyncio.to_thread(self._loop.store.get_jobs, [run.id])).get(run.id)
        if job is None:  # the database was turned back; the next turn detects that
            await self._clock.sleep(RETRY_S)
            return False
        job = await self._with_values(run, job)
        if self._loop.runs.by_id.get(run.id) != run:
            return False  # it was stopped meanwhile: its partition may be gone before the engine has it
        self._submitting.add(run.id)
        try:
            given = run.resumed_from
            order = RunSubmission(
                run.id,
                run.attempt,
                job,
                binding,
                resume_from=given.path if given is not None else None,
                epoch=self._loop.epoch,
                partition=on,
                resume_step=given.step if given is not None else None,
                resume_since=resume_since(run),
                spool_entry=run.spool_entry,
                submitter=run.submitter,
            )
            await engine.submit(order)
        finally:
            self._submitting.discard(run.id)
        return True

    async def _with_values(self, run: Run, job: JobSpec) -> JobSpec:
        """The job with the values of its variables; one that was handed in, or that its person submits, has them there.

        Raises:
            MooringsError: ``engine.rejected``: they are gone; ``engine.unavailable``.
        """
        part = run.job.array
        own = part.variables if part is not None else {}
        is_elsewhere = bool(run.spool_entry) or run.submitter is not None
        if is_elsewhere or has_values(job.environment):  # the last of an earlier release
            return job
        if not job.environment.keys() - own.keys():
            return replace(job, environment=own)
        values = await asyncio.to_thread(self.environments.load, run.engine, run.id if part is None else RunId(part.id))
        if values is None:
            detail = "the values of its variables are gone: they were not restored with the records, or were removed"
            raise MooringsError("engine.rejected", detail, hint="submit it again")
        return replace(job, environment={**values, **own})

    def _partition(self, run: Run) -> Partition | None:
        claim = self._loop.fleet.claims.get(run.claim) if run.claim is not None else None
        return self._loop.fleet.partitions.get(claim.partition) if claim is not None and claim.partition else None

    # -- observations ------------------------------------------------------------------------------------------------

    async def _watch(self, engine: Engine) -> None:
        while True:
            try:
                if not self._fenced[engine.name].is_set():
                    # An earlier leader that stands still, or does not know yet, can start nothing from now on.
                    await engine.fence_below(self._loop.epoch)
                    self._fenced[engine.name].set()
                await self._observe_engine(engine)
                await engine.wait_for_change()
            except MooringsError as error:
                fields = {"engine": engine.name, "code": error.code, "detail": error.detail}
                log.warning("engine.unavailable", extra=fields)
                for run in self._loop.runs.by_id.values():
                    if run.engine == engine.name and run.is_queued:
                        self._loop.runs.set_wait_reason(
                            run.id, f"engine {engine.name} cannot be used now: {error.detail}"
                        )
                await self._clock.sleep(1.0)
            except Exception:  # an engine's fault must not end the controller
                log.exception("engine.fault", extra={"engine": engine.name})
                await self._clock.sleep(1.0)

    async def _observe_engine(self, engine: Engine) -> None:
        watched = [
            run
            for run in self._loop.runs.by_id.values()
            if run.engine == engine.name and (run.state in RUNNING_STATES or run.is_queued)
        ]
        if not watched:
            return
        submitting = set(self._submitting)
        looked = await engine.observe([run.id for run in watched])
        for before, seen in zip(watched, looked, strict=True):
            run = self._loop.runs.by_id.get(seen.run)
            if run is None or run.version != before.version:
                continue  # the observation is older than the record
            seen = _of_this_attempt(run, seen)
            if seen.phase is RunPhase.ABSENT and seen.run in submitting | self._submitting:
                continue  # it is being started at this moment
            if seen.phase is RunPhase.ABSENT and run.submitter is not None and not run.is_unsubmitted:
                continue  # its reports lie with the controller that led before; the next listing shows its job
            if seen.phase is RunPhase.ABSENT and (run.state is RunState.STARTING or run.is_unsubmitted):
                self._start_action(run)
            elif _is_significant(run, seen):
                self._loop.submit_nowait(seen)
            elif run.state is RunState.YIELDING:
                self._start_action(run)
        for seen in looked if engine.has_scheduler else ():
            self._loop.runs.set_wait_reason(seen.run, seen.reason, keep_if_empty=seen.phase is RunPhase.ABSENT)

    async def _sweep_orphans(self) -> None:
        """Release claims of runs that no record knows: a safety net, because one transaction makes both."""
        alive: list[frozenset[str]] = []
        while True:
            await self._clock.sleep(ORPHAN_SWEEP_S)
            alive = [*alive[-4:], frozenset(claim_owner(run.id, run.job) for run in self._loop.runs.by_id.values())]
            unreleased = [c for c in self._loop.fleet.claims.values() if c.state is not ClaimState.RELEASING]
            for claim in (claim for kind in RUN_OWNER_PREFIXES for claim in find_orphans(unreleased, kind, alive)):
                log.warning("claim.orphaned", extra={"claim": claim})
                self._loop.submit_nowait(ReleaseClaim(claim, "no run holds it"))


def _needs_action(run: Run) -> bool:
    """Whether its state requires an action."""
    return run.state in (RunState.STARTING, RunState.YIELDING, RunState.STOPPING) or run.is_unsubmitted


def _has_new_checkpoints(run: Run, seen: RunStatus) -> bool:
    """Whether a look has found what the run's record lacks; a program that saves often is recorded now and then."""
    now = after_look(run, seen)
    if now.checkpoint_fault != run.checkpoint_fault:
        return True
    if now is run:
        return False
    before, newest = newest_whole(run.checkpoints), newest_whole(now.checkpoints)
    if newest is None:  # one that grows at each look is no news
        return {each.path for each in now.checkpoints} != {each.path for each in run.checkpoints}
    return before is None or newest.written_at >= add_seconds(before.written_at, CHECKPOINT_INTERVAL_S)


def _of_this_attempt(run: Run, seen: RunStatus) -> RunStatus:
    """The status of the run's own attempt: before it begins, an engine still reports the end of the previous one."""
    if seen.phase is RunPhase.ENDED and seen.attempt < run.attempt:
        return RunStatus(run.id, RunPhase.ABSENT, attempt=run.attempt)
    if seen.phase is RunPhase.ABSENT:
        return replace(seen, attempt=run.attempt)
    return seen


def _is_significant(run: Run, seen: RunStatus) -> bool:
    """Whether an observation changes anything."""
    if seen.reference is not None and seen.reference != run.reference:
        return True
    if _has_new_checkpoints(run, seen):
        return True
    if seen.phase is RunPhase.RUNNING:
        return run.state is RunState.STARTING or run.is_queued
    if seen.phase is RunPhase.STARTING:
        return run.claim is None and run.state is RunState.RUNNING
    return seen.phase in (RunPhase.ENDED, RunPhase.ABSENT)
