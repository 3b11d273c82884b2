"""The use cases of runs: start, follow, stop, pause, resume, label, change the priority.

As in ``service``: form and caller are checked before anything is queued, and only the loop writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace

from moorings.controller.idempotency import check_idempotency_key, request_digest
from moorings.controller.loop import TurnLoop
from moorings.controller.personal_runs import PersonalRuns
from moorings.controller.reasons import ReasonService, partition_of
from moorings.controller.record_follower import RecordFollower
from moorings.controller.run_dependencies import DependencyFinder
from moorings.controller.views import RunView
from moorings.core.model.access import LOCAL_OWNER_PREFIX, Caller, Ownership, Role, check_owner_access
from moorings.core.model.claims import AUTO_SIGNAL, PRIORITY_MAX, CheckpointContract, ClaimId, digested_warn_signal
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import SetPriority
from moorings.core.model.reasons import Reason
from moorings.core.model.serialization import to_plain_without_defaults
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.visibility import Visibility, check_may_manage, visible_to
from moorings.ports.clock import Ids
from moorings.ports.engine import Engine, TaskContainer
from moorings.ports.environments import RunEnvironments
from moorings.ports.store import ApplianceJobQuery, IdempotencyRecord, PageQuery, Store
from moorings.privileged.refusals import Refused
from moorings.privileged.spool import entry_uid
from moorings.workloads.appliance import (
    APPLIANCE_KIND,
    WORKFLOW_JOBS_MAX,
    WorkflowPart,
    appliance_priority,
    check_appliance_priority,
)
from moorings.workloads.arrays import parse_array
from moorings.workloads.checkpoints import RunCheckpoint
from moorings.workloads.jobs import JobSpec, check_job, counted_claim_spec, job_size_bytes
from moorings.workloads.run_turn import (
    CancelRun,
    CreateRun,
    LabelRun,
    PauseRun,
    ResumeRun,
    first_element,
    ownership_of_run,
)
from moorings.workloads.runs import (
    ENDED,
    Run,
    RunId,
    RunPause,
    RunState,
    Submitter,
    own_checkpoints,
    resume_point,
    retry_delay_s,
)

log = logging.getLogger("moorings.controller")

_PAGE = 200
ARRAY_TRIES = 20  # to find an array in the state that a turn finds it in: its runs end meanwhile
_PAUSED = ENDED | {RunState.PAUSED}
UID_MAX = (1 << 32) - 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
RUNNING_STATES = (RunState.STARTING, RunState.RUNNING, RunState.YIELDING, RunState.STOPPING)


class RunService:
    """The use cases of runs.

    Args:
        environments: keeps the values of jobs' variables.
        personal: knows which engines follow jobs that people submit themselves.
        handed_in: the engines that start only what people have handed in to this machine's root daemon.
        admins_only: the engines that start jobs of admins only: theirs would be root's.
    """

    def __init__(
        self,
        loop: TurnLoop,
        store: Store,
        engines: Mapping[str, Engine],
        ids: Ids,
        reasons: ReasonService,
        environments: RunEnvironments,
        personal: PersonalRuns,
        *,
        handed_in: Collection[str] = (),
        admins_only: Collection[str] = (),
    ) -> None:
        self._loop = loop
        self._store = store
        self._engines = engines
        self._environments = environments
        self._ids = ids
        self._reasons = reasons
        self._personal = personal
        self._handed_in, self._admins_only = handed_in, admins_only
        self._follower: RecordFollower[Run] = RecordFollower(lambda run: loop.runs.by_id.get(run.id), store.get_run)
        self._dependencies = DependencyFinder(loop, store, self._find_run)
        loop.subscribe(lambda change: self._follower.wake(change.runs, is_reload=change.is_reload))

    async def create_run(
        self,
        caller: Caller,
        job: JobSpec,
        *,
        engine: str = "local",
        within: str | None = None,
        key: str | None = None,
        resume: str | None = None,
        resume_from: str | None = None,
        spool_entry: str | None = None,
        spool_entries: tuple[str, ...] = (),
        submitter: Submitter | None = None,
        token_digests: tuple[str, ...] = (),
    ) -> RunView:
        """A new run, or the earlier run of this caller's ``key``.

        Args:
            caller: who submits it.
            job: the job to run.
            engine: the engine to run it.
            within: a claim of the caller's; the run uses its partition, and does not release it at the end.
            key: idempotency key.
            resume: a run whose checkpoint it begins from.
            resume_from: which one, by path; None: the newest whole one.
            spool_entry: the job as its person has handed it in to this machine's root daemon; None: it was not.
            spool_entries: of an array, those of its elements.
            submitter: the person who submits it; of no effect where the engine does.
            token_digests: of an array, those of its elements.

        Raises:
            MooringsError: ``checkpoint.invalid``, ``run.unknown`` (of ``resume``, or of one that it waits for),
                ``run.never_starts``, ``job.invalid``, ``claim.*``,
                ``engine.unknown``, ``engine.rejected`` and other errors of an
                engine about a job that it can never run, ``auth.denied``, ``owner.denied``, ``priority.denied``,
                ``quota.waiting``, ``key.*``.
        """
        if caller.role not in (Role.ADMIN, Role.USER):
            raise MooringsError("auth.denied", f"{caller.subject} ({caller.role}) may not start jobs")
        if engine not in self._engines:
            hint = f"engines here: {', '.join(self._engines) or 'none'}"
            if engine in ("slurm", "kubernetes"):
                hint += f"; a table [{engine}] in the controller's settings adds this one"
            raise MooringsError("engine.unknown", f"there is no engine {engine[:40]!r}", hint=hint)
        notes = tuple(self._engines[engine].check_job(check_job(job)))
        one = (spool_entry,) if spool_entry is not None else ()
        self._check_person(caller, engine, (*one, *spool_entries))
        submitter = self._check_submitter(engine, job, submitter, token_digests)
        ident = RunId(self._ids.new("run" if job.appliance is None else "wsjob"))
        use = None
        if key is not None:
            asked = {"job": _digested(job), "engine": engine}
            more = {"claim": within, "resume": resume, "resume_from": resume_from}
            asked |= {name: value for name, value in more.items() if value is not None}
            digest = request_digest(asked)
            first = first_element(ident, job)
            use = IdempotencyRecord(caller.subject, check_idempotency_key(key), digest, run=first)
        if job.appliance is not None:
            job = replace(job, name=ident, priority=await self._priority(caller, job.appliance, job.priority))
        else:
            admin = caller.role is Role.ADMIN
            job = replace(job, priority=appliance_priority(job.accelerators.kind, job.priority, is_admin=admin))
        claim = await self._claim_for(caller, engine, within)
        if submitter is not None and job.after:
            job = replace(job, after=await self._dependencies.find_own(caller, engine, job))
        given = CreateRun(
            id=ident,
            claim=claim,
            job=job,
            engine=engine,
            subject=caller.subject,
            within=within is not None,
            role=caller.role,
            body_bytes=job_size_bytes(job),
            resume_from=await self._resume_point(caller, job, resume, resume_from),
            spool_entry=spool_entry or "",
            spool_entries=spool_entries,
            submitter=submitter,
            token_digests=token_digests if submitter is not None else (),
            machine=counted_claim_spec(job).machine if claim is not None and within is None else {},
        )
        run = await self._submit_new(caller, given, use)
        visible = self._visible_to(caller)
        new = run.id == first_element(ident, job)
        view = self._head_view(run, visible) if new else await self._run_view(run, visible)  # an earlier run of its key
        return replace(view, notes=(*notes, *self._folder_notes(run, visible)), job=view.job or job)

    async def _submit_new(self, caller: Caller, given: CreateRun, use: IdempotencyRecord | None) -> Run:
        """The new run, or the earlier one of its key; the values of its variables are saved before, or no run starts.

        After an error that may be a lost answer they stay: the run may be there. What is of no run is swept.
        """
        _check_order(given)
        engine, values = given.engine, given.job.environment
        # A job that was handed in has them in the spool, and one that its person submits has them there.
        keeps = bool(values) and not (given.spool_entry or given.spool_entries) and given.submitter is None
        if keeps:
            await asyncio.to_thread(self._environments.save, engine, given.id, values)
        try:
            run = await self._submit_after(caller, given, use)
        except MooringsError as error:
            if keeps and not error.retryable:
                await asyncio.to_thread(self._environments.remove, engine, given.id)
            raise
        if keeps and run.id != first_element(given.id, given.job):
            await asyncio.to_thread(self._environments.remove, engine, given.id)
        return run

    async def _submit_after(self, caller: Caller, given: CreateRun, use: IdempotencyRecord | None) -> Run:
        """Submit a new run; if a run that it waits for ends at this moment, once more with that end.

        Raises:
            MooringsError: as ``create_run``.
        """
        tries = len(given.job.after) + ARRAY_TRIES
        while True:
            given = replace(given, after=await self._dependencies.find(caller, given.job))
            try:
                run = await self._loop.submit(given, use)
            except MooringsError as error:
                tries -= 1
                if error.code != "run.ended" or tries < 0:
                    raise
            else:
                assert isinstance(run, Run)
                return run

    def _visible_to(self, caller: Caller) -> Visibility:
        return visible_to(caller, self._loop.fleet.projects)

    def _check_person(self, caller: Caller, engine: str, entries: Sequence[str]) -> None:
        """Check that the job would be no other user's: where it must be handed in, it was, and by the caller.

        Raises:
            MooringsError: ``engine.rejected``, ``job.invalid``, ``owner.denied``.
        """
        if engine in self._admins_only and caller.role is not Role.ADMIN:
            detail = "this controller was started by root, as root would the job run: only admins start some here"
            hint = "people share a machine with 'moor up --system'; 'moor up' as yourself is for yourself alone"
            raise MooringsError("engine.rejected", detail, hint=hint)
        if not entries:
            if engine in self._handed_in:
                detail = "a job of this machine runs as its person, who must hand it in"
                raise MooringsError("engine.rejected", detail, hint="start it on this machine with 'moor run'")
            return
        if engine not in self._handed_in:
            raise MooringsError("job.invalid", f"engine {engine} starts no job from a spool: leave spoolEntry out")
        for entry in entries:
            with contextlib.suppress(Refused):
                if entry_uid(entry) == caller.uid:
                    continue
            raise MooringsError("owner.denied", f"{entry[:80]!r} is no job that {caller.subject} has handed in")

    def _check_submitter(
        self, engine: str, job: JobSpec, submitter: Submitter | None, digests: Sequence[str]
    ) -> Submitter | None:
        """The person who submits a job; None: its engine does.

        Raises:
            MooringsError: ``engine.rejected``, ``job.invalid``.
        """
        if self._personal.target(engine, job.project) is None:
            return None
        if submitter is None:
            hint = "start it with 'moor run --engine slurm' of this release, where sbatch is installed"
            raise MooringsError("engine.rejected", "people submit their jobs to this Slurm themselves", hint=hint)
        tokens = (submitter.token_digest, *digests)
        if not 0 < submitter.uid < UID_MAX or not all(map(_DIGEST.fullmatch, tokens)):
            raise MooringsError("job.invalid", "submitter has no uid, or no digest of a token, that can be one")
        return submitter

    def _folder_notes(self, run: Run, visible: Visibility) -> tuple[str, ...]:
        """A note, if another run that has not ended saves into the same folder of checkpoints."""
        folder = run.job.checkpoint_directory
        if folder is None:
            return ()
        others = (each for each in self._loop.runs.by_id.values() if each.id != run.id and each.engine == run.engine)
        other = next((each for each in others if each.job.checkpoint_directory == folder), None)
        if other is None:
            return ()
        name = f"run {other.id}" if visible.includes(ownership_of_run(other)) else "another run"
        return (f"{name} saves into {folder}, too, and each would resume from what the other saves",)

    async def _resume_point(
        self, caller: Caller, job: JobSpec, resume: str | None, path: str | None
    ) -> RunCheckpoint | None:
        """The checkpoint that a new run begins from.

        Raises:
            MooringsError: ``run.unknown``, ``owner.denied``, ``checkpoint.invalid``.
        """
        if resume is None:
            return None
        run = await self._find_run(resume, caller, among_own=caller.role is not Role.ADMIN)
        if run.subject != caller.subject and caller.role is not Role.ADMIN:
            raise MooringsError("owner.denied", f"run {run.id} is another user's: its checkpoints are, too")
        if run.job.project != job.project:
            detail = f"run {run.id} is of project {run.job.project}, and the new one of {job.project}"
            raise MooringsError("checkpoint.invalid", detail, hint="name the same project")
        if path is not None:
            return _named_checkpoint(run, path)
        found = resume_point(run)
        if found is None:
            hint = f"moor get checkpoints {run.id}"
            raise MooringsError("checkpoint.invalid", f"run {run.id} has no whole checkpoint", hint=hint)
        return found

    async def _claim_for(self, caller: Caller, engine: str, within: str | None) -> ClaimId | None:
        """The claim of a new run: a new one, that of ``within``, or none if another scheduler makes it."""
        if within is None:
            return None if self._engines[engine].has_scheduler else ClaimId(self._ids.new("claim"))
        if self._engines[engine].has_scheduler:
            raise MooringsError("engine.rejected", f"engine {engine} takes its partitions from its own scheduler")
        claim = self._loop.fleet.find_claim(within)
        if claim is None or not self._visible_to(caller).includes_claim(claim):
            raise MooringsError("claim.unknown", f"there is no claim {within[:80]!r}", hint="moor get claims")
        if claim.subject != caller.subject:
            check_owner_access(caller, claim.owner, claim.subject, "run something within a claim")
        return claim.id

    async def _priority(self, caller: Caller, part: WorkflowPart, asked: int) -> int:
        """The priority of a new job of an appliance: its workflow's present one, else the requested one."""
        jobs = await asyncio.to_thread(self._jobs_of, part.workflow)
        if any(run.subject != caller.subject for run in jobs):
            raise MooringsError("owner.denied", f"workflow {part.workflow} is somebody else's")
        if len(jobs) >= WORKFLOW_JOBS_MAX:
            raise MooringsError(
                "job.invalid", f"workflow {part.workflow} has {len(jobs)} jobs already", hint="begin a new one"
            )
        if jobs and jobs[-1].claim is not None:
            last = self._loop.fleet.claims.get(jobs[-1].claim)
            last = last or await asyncio.to_thread(self._store.get_claim, jobs[-1].claim)
            return last.spec.priority if last is not None else asked
        check_appliance_priority(asked, admin=caller.role is Role.ADMIN)
        return asked

    def _jobs_of(self, workflow: str) -> list[Run]:
        """All jobs of a workflow, the newest last."""
        jobs: list[Run] = []
        while len(jobs) < WORKFLOW_JOBS_MAX:
            after = jobs[-1].id if jobs else None
            page = self._store.list_runs(PageQuery(limit=_PAGE, after=after), part=ApplianceJobQuery(workflow=workflow))
            jobs += page
            if len(page) < _PAGE:
                break
        return jobs

    async def label_run(self, caller: Caller, ident: str, changes: Mapping[str, str | None]) -> RunView:
        """Change labels of a run; None removes one.

        Raises:
            MooringsError: ``run.unknown``, ``run.ended``, ``owner.denied``, ``label.invalid``.
        """
        run = await self._find_run(ident, caller, among_own=True)
        check_owner_access(caller, f"local/{run.id}", run.subject, "label a run")
        if not run.is_ended:
            changed = await self._loop.submit(LabelRun(run.id, changes))
            assert isinstance(changed, Run)
            return await self._run_view(changed, self._visible_to(caller))
        raise MooringsError("run.ended", f"run {run.id} is {run.state}; its labels stay as they are")

    async def set_run_priority(self, caller: Caller, ident: str, priority: int) -> RunView:
        """Change the priority of a run, and of all unended jobs of its workflow.

        Raises:
            MooringsError: ``run.unknown``, ``run.ended``, ``run.queued_elsewhere``, ``owner.denied``,
                ``priority.denied``, ``claim.invalid``.
        """
        run = await self._find_run(ident, caller, among_own=True)
        self._check_may_manage(caller, run, "change the priority of a run")
        if abs(priority) > PRIORITY_MAX:
            raise MooringsError("claim.invalid", f"priority {priority} is out of range")
        if run.is_ended:
            raise MooringsError("run.ended", f"run {run.id} is {run.state}; nothing of it waits")
        if run.state is RunState.PAUSED:
            detail = f"run {run.id} is paused, and has no place in the queue"
            raise MooringsError("run.not_running", detail, hint=f"moor resume {run.id}, then change it")
        if run.hold is not None:
            detail = f"run {run.id} {run.hold.reason}, and has no place in the queue until then"
            raise MooringsError("run.not_running", detail, hint="change it once it has one")
        if run.claim is None:
            raise MooringsError("run.queued_elsewhere", f"run {run.id} waits in the queue of its engine's scheduler")
        part = run.job.appliance
        if part is not None or run.job.accelerators.kind == APPLIANCE_KIND:
            check_appliance_priority(priority, admin=caller.role is Role.ADMIN)
        kin = [run]
        if part is not None:
            kin = [one for one in self._loop.runs.of_workflow(part.workflow) if one.subject == run.subject]
        for one in kin:
            if one.claim is not None:
                await self._loop.submit(SetPriority(one.claim, priority, caller.role))
        return await self._run_view(self._loop.runs.by_id.get(run.id, run), self._visible_to(caller))

    async def get_run(self, caller: Caller, ident: str, *, wait_s: float = 0) -> RunView:
        """The run with that id or job name; waits up to ``wait_s`` for its end.

        Raises:
            MooringsError: ``run.unknown``.
        """
        run = await self._follower.wait_for(await self._find_run(ident, caller), ENDED, wait_s)
        self._check_visible(caller, run)  # it may have waited long
        return await self._run_view(run, self._visible_to(caller))

    async def list_runs(
        self,
        caller: Caller,
        page: PageQuery,
        *,
        states: frozenset[RunState] | None = None,
        subject: str | None = None,
        array: str | None = None,
    ) -> Sequence[RunView]:
        """Runs by creation; with ``array`` only the elements of that one."""
        visible = self._visible_to(caller)
        found = await asyncio.to_thread(
            self._store.list_runs, page, states=states, subject=subject, array=array, visible=visible
        )
        jobs = await asyncio.to_thread(self._store.get_jobs, [run.id for run in found])
        shown = [run for run in found if run.id in jobs]  # or it just left
        return [replace(self._head_view(run, visible), job=jobs[run.id]) for run in shown]

    async def list_run_heads(
        self,
        caller: Caller,
        page: PageQuery,
        *,
        states: frozenset[RunState] | None = None,
        subject: str | None = None,
        part: ApplianceJobQuery | None = None,
    ) -> Sequence[RunView]:
        """Runs by creation, without their reasons and queue positions, which cost more than all the rest.

        Unended runs are all in memory: reading a page of a thousand from the database takes three times as long.
        """
        visible = self._visible_to(caller)
        if states is not None and not states & ENDED:
            return [self._brief(run) for run in await self._unended(page, states, subject, part, visible)]
        found = await asyncio.to_thread(
            self._store.list_runs, page, states=states, subject=subject, part=part, visible=visible
        )
        return [self._brief(self._loop.runs.by_id.get(run.id, run)) for run in found]

    async def _unended(
        self,
        page: PageQuery,
        states: frozenset[RunState],
        subject: str | None,
        part: ApplianceJobQuery | None,
        visible: Visibility,
    ) -> Sequence[Run]:
        start = None
        if page.after is not None:  # it may have ended since the page before
            start = self._loop.runs.by_id.get(RunId(page.after)) or await asyncio.to_thread(
                self._store.get_run, page.after
            )
            if start is None or start.id != page.after:
                return ()
        chosen = (
            run
            for run in self._loop.runs.by_id.values()
            if run.state in states
            and (subject is None or run.subject == subject)
            and (part is None or part.matches(run.job.appliance, run.labels))
            and (start is None or (run.created_at, run.id) > (start.created_at, start.id))
            and visible.includes(ownership_of_run(run))
        )
        return heapq.nsmallest(max(page.limit, 0), chosen, key=lambda run: (run.created_at, run.id))

    def _brief(self, run: Run) -> RunView:
        claim = self._loop.fleet.claims.get(run.claim) if run.claim is not None else None
        partition = self._loop.fleet.partitions.get(partition_of(claim)) if claim is not None else None
        return RunView(run, claim, partition, None, None)

    async def cancel_run(self, caller: Caller, ident: str, *, wait_s: float = 0) -> RunView:
        """Ask a run to stop; waits up to ``wait_s`` for its end. A run that has ended does not change.

        Raises:
            MooringsError: ``run.unknown``, ``owner.denied``, ``store.unavailable``: its processes were asked to stop,
                but that is not saved yet.
        """
        run = await self._find_run(ident, caller, among_own=True)
        self._check_may_manage(caller, run, "cancel a run")
        if not run.is_ended:
            why = f"cancelled by {caller.subject}"
            try:
                changed = await self._loop.submit(CancelRun(run.id, why))
            except MooringsError as error:
                raise await self._stop_unrecorded(run, why, error) from error
            if not isinstance(changed, Run):
                await self._loop.confirm_leadership()  # it has ended, or another controller leads and knows it
            run = changed if isinstance(changed, Run) else await self._find_run(run.id, caller)
        ended = await self._follower.wait_for(run, ENDED, wait_s)
        return await self._run_view(ended, self._visible_to(caller))

    async def pause_run(
        self, caller: Caller, ident: str, *, save_timeout_s: float | None = None, wait_s: float = 0
    ) -> RunView:
        """Ask a run to save a checkpoint and stop until it is resumed; waits up to ``wait_s`` until it is PAUSED.

        Args:
            caller: who asks.
            ident: the run.
            save_timeout_s: how long it may take to save; None: the ``warn_s`` of its checkpoint contract.
            wait_s: longest wait.

        Raises:
            MooringsError: ``run.unknown``, ``run.ended``, ``run.not_pausable``, ``owner.denied``.
        """
        run = await self._find_run(ident, caller, among_own=True)
        self._check_may_manage(caller, run, "pause a run")
        if run.is_ended:
            raise MooringsError("run.ended", f"run {run.id} is {run.state}; there is nothing to pause")
        if run.checkpoint_fault and run.state in (RunState.STARTING, RunState.RUNNING):
            detail = f"nobody can see whether run {run.id} saves its work: {run.checkpoint_fault}"
            hint = f"'moor cancel {run.id}' stops it without that"
            raise MooringsError("run.not_pausable", detail, hint=hint)
        contract = await self._checkpoint_contract(run)
        save_s = contract.warn_s if save_timeout_s is None else save_timeout_s
        resumable = contract.resumable or run.claim is not None
        given = PauseRun(run.id, caller.subject, save_s + contract.grace_s, resumable=resumable)
        changed = await self._loop.submit(given)
        assert isinstance(changed, Run)
        paused = await self._follower.wait_for(changed, _PAUSED, wait_s)
        return await self._run_view(paused, self._visible_to(caller))

    async def _checkpoint_contract(self, run: Run) -> CheckpointContract:
        if run.claim is None:
            job = (await asyncio.to_thread(self._store.get_jobs, [run.id])).get(run.id)
            return job.checkpoint if job is not None else CheckpointContract()
        claim = self._loop.fleet.claims.get(run.claim)
        return claim.spec.checkpoint if claim is not None else CheckpointContract()

    async def resume_run(self, caller: Caller, ident: str, *, resume_from: str | None = None) -> RunView:
        """Let a PAUSED run wait in the queue again.

        Args:
            caller: who asks.
            ident: the run.
            resume_from: the checkpoint to resume from, by path or name; None: the newest whole one.

        Raises:
            MooringsError: ``run.unknown``, ``run.ended``, ``run.not_paused``, ``owner.denied``, ``checkpoint.invalid``,
                ``quota.waiting``, ``project.*``.
        """
        run = await self._find_run(ident, caller, among_own=True)
        self._check_may_manage(caller, run, "resume a run")
        chosen = _named_checkpoint(run, resume_from) if resume_from is not None else None
        job = (await asyncio.to_thread(self._store.get_jobs, [run.id])).get(run.id)
        if job is None:
            raise _unknown(run.id)
        claim = ClaimId(self._ids.new("claim"))
        resumed = await self._loop.submit(ResumeRun(run.id, claim, counted_claim_spec(job), caller.role, chosen))
        assert isinstance(resumed, Run)
        return await self._run_view(resumed, self._visible_to(caller))

    async def _stop_unrecorded(self, run: Run, why: str, error: MooringsError) -> MooringsError:
        """Stop its processes although that cannot be saved, because they may fill the disk; returns the error.

        This removes nothing: its partition goes when its end is saved.
        """
        engine = self._engines.get(run.engine)
        if error.code != "store.unavailable" or engine is None or run.state not in RUNNING_STATES:
            return error
        try:
            await engine.cancel(run.id, why)
        except MooringsError as failed:
            log.warning("engine.unavailable", extra={"run": run.id, "code": failed.code, "detail": failed.detail})
            return error
        detail = f"{error.detail}; the processes of run {run.id} were told to stop, and nothing of that is saved yet"
        return MooringsError(error.code, detail, hint=error.hint, retryable=error.retryable)

    async def logs(
        self, caller: Caller, ident: str, *, task: int | None, follow: bool, since: Timestamp | None = None
    ) -> AsyncIterator[bytes]:
        """The output of a run's tasks, in chunks; ``since``: what was written after that time.

        Raises:
            MooringsError: ``run.unknown``, ``engine.unknown``, ``page.invalid`` (no such task); with ``since``
                ``engine.rejected``, if its engine does not know when output was written.
        """
        run = await self._find_run(ident, caller, among_own=True)
        if run.engine not in self._engines:
            raise MooringsError("engine.unknown", f"engine {run.engine} of run {run.id} is not set up here now")
        if task is not None and not 0 <= task < run.job.tasks:
            raise MooringsError("page.invalid", f"run {run.id} has tasks 0 to {run.job.tasks - 1}, not {task}")
        if since is not None:
            await self._check_times(run, task, since)
        return self._logs(caller, run, task, follow, since)

    async def _check_times(self, run: Run, task: int | None, since: Timestamp) -> None:
        """Raise at once if its engine does not know when output was written: an answer that has begun has no error."""
        chunks = self._engines[run.engine].logs(run.id, task=task, follow=False, since=since)
        try:
            await anext(chunks, b"")
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    async def _logs(
        self, caller: Caller, run: Run, task: int | None, follow: bool, since: Timestamp | None
    ) -> AsyncIterator[bytes]:
        waiting = (RunState.WAITING, RunState.STARTING, RunState.PAUSED)
        while follow and run.state in waiting and run.started_at is None:  # a requeued run has output
            run = await self._follower.next_version(run)
        again = follow and run.attempt > 0 and run.state in waiting
        follows = follow and not run.is_ended and not again
        async for chunk in self._engines[run.engine].logs(run.id, task=task, follow=follows, since=since):
            self._check_visible(caller, run)  # a membership may end while it is followed
            yield chunk
        while again and run.state in waiting:  # then it ends: the client asks again, and gets what was added
            run = await self._follower.next_version(run)

    async def find_terminal(
        self, caller: Caller, ident: str, *, attended: bool = False
    ) -> tuple[Run, str | TaskContainer]:
        """A run, and the path of the socket where its supervisor listens, or the container of its task 0.

        ``attended``: the caller is at its terminal.

        Raises:
            MooringsError: ``run.unknown``, ``run.not_running``, ``owner.denied``, ``engine.unknown``,
                ``engine.rejected``, ``engine.unavailable``.
        """
        run = await self._find_run(ident, caller, among_own=True)
        self._check_may_manage(caller, run, "use the terminal of a run")
        if run.state not in (RunState.RUNNING, RunState.YIELDING, RunState.STOPPING):
            raise MooringsError("run.not_running", f"run {run.id} is {run.state}")
        if run.engine not in self._engines:
            raise MooringsError("engine.unknown", f"engine {run.engine} of run {run.id} is not set up here now")
        return run, await self._engines[run.engine].find_terminal(run.id, attended=attended)

    async def _find_run(self, ident: str, caller: Caller, *, among_own: bool = False) -> Run:
        """The run with that id, or the newest with that job name, if the caller sees it.

        Job names are not unique: what changes a run must not reach another's run of that name (``among_own``).

        Raises:
            MooringsError: ``run.unknown``: the same whether it does not exist or is not seen.
        """
        run, visible = self._loop.runs.by_id.get(RunId(ident)), self._visible_to(caller)
        if run is None or not visible.includes(ownership_of_run(run)):
            subject = caller.subject if among_own else None
            run = await asyncio.to_thread(self._store.get_run, ident[:200], subject, visible)
        if run is None:
            raise _unknown(ident)
        return self._follower.newest_version(run)

    def _check_visible(self, caller: Caller, run: Run) -> None:
        if not self._visible_to(caller).includes(ownership_of_run(run)):
            raise _unknown(run.id)

    def _check_may_manage(self, caller: Caller, run: Run, action: str) -> None:
        of = Ownership(run.subject, f"{LOCAL_OWNER_PREFIX}{run.id}", run.job.project)
        check_may_manage(caller, of, self._loop.fleet.projects, action)

    async def _run_view(self, run: Run, visible: Visibility) -> RunView:
        job = (await asyncio.to_thread(self._store.get_jobs, [run.id])).get(run.id)
        if job is None:  # it left the database since
            raise _unknown(run.id)
        return replace(self._head_view(run, visible), job=job)

    def _head_view(self, run: Run, visible: Visibility) -> RunView:
        claim = self._loop.fleet.claims.get(run.claim) if run.claim is not None else None
        waits = claim is not None and run.state is RunState.WAITING
        wait = self._reasons.explain_pending(claim, visible) if claim is not None and waits else None
        reason = wait.reasons[0] if wait is not None else self._loop.runs.wait_reason(run)
        if run.engine not in self._engines and not run.is_ended:
            reason = Reason("engine.unknown", f"its engine {run.engine} is not set up here now; nothing of it is lost")
        if run.state is RunState.PAUSED and run.pause is not None:
            reason = _paused_reason(run, run.pause)
        if run.hold is not None:
            reason = Reason("run.dependency" if run.hold.after else "run.array_limit", run.hold.reason)
        if reason is None and claim is not None:
            reason = self._reasons.state_reason(claim, visible)
        partition = self._loop.fleet.partitions.get(partition_of(claim)) if claim is not None else None
        position = wait.position if wait is not None else None
        target = self._personal.target(run.engine, run.job.project) if run.submitter and run.is_unsubmitted else None
        idle = self._loop.runs.idleness(run)
        return RunView(run, claim, partition, position, reason, idleness=idle, submission=target)


def _named_checkpoint(run: Run, path: str) -> RunCheckpoint:
    """The checkpoint of a run with that path, the end of a path, or name.

    Raises:
        MooringsError: ``checkpoint.invalid``: there is none, or it is not whole.
    """
    hint = f"moor get checkpoints {run.id}"
    given = (run.resumed_from,) if run.resumed_from is not None else ()
    known: tuple[RunCheckpoint, ...] = (*own_checkpoints(run), *given)
    found = next((each for each in known if f"/{each.path}".endswith(f"/{path.removeprefix('./')}")), None)
    if found is None:
        detail = f"no checkpoint {path[:80]!r} is among the newest of run {run.id}"
        raise MooringsError("checkpoint.invalid", detail, hint=hint)
    if not found.is_whole:
        raise MooringsError("checkpoint.invalid", f"{found.path} is not whole: {found.why}", hint=hint)
    return found


def _paused_reason(run: Run, pause: RunPause) -> Reason:
    hint = f"moor resume {run.id}"
    if pause.resume_at is None or run.loss_record is None:
        return Reason("run.paused", f"it was {pause.reason}", hint=hint)
    count = run.loss_record.count
    retry = f"retry {count} of {run.job.retries} follows {retry_delay_s(count):g} s after that"
    return Reason("run.retrying", f"its last attempt was lost: {pause.loss}; {retry}", hint=hint)


def _check_order(given: CreateRun) -> None:
    """Check that a job may be an array, or wait for other runs.

    Raises:
        MooringsError: ``job.invalid``, ``checkpoint.invalid``, ``engine.rejected``.
    """
    job = given.job
    if not (job.after or job.array or given.spool_entries or given.token_digests):
        return
    if given.within or job.appliance is not None:
        detail = "a job within a claim, or of an appliance, waits for no other run and is no array"
        raise MooringsError("job.invalid", detail)
    if job.array and job.terminal_keep_s is not None:
        raise MooringsError("job.invalid", "an array has no terminal")
    if job.array and given.resume_from is not None:
        raise MooringsError("checkpoint.invalid", "the elements of an array resume from no earlier run")
    count = len(parse_array(job.array)[0]) if job.array else 0
    if job.array and given.spool_entry:
        detail = "on a machine that people share each run of an array is handed in by itself"
        raise MooringsError("engine.rejected", detail, hint="start it with 'moor run' of this release")
    if any(count != len(each) for each in (given.spool_entries, given.token_digests) if each):
        raise MooringsError("job.invalid", f"an array of {count} needs as many entries, or digests of tokens")
    if len(set(given.spool_entries)) != len(given.spool_entries):
        raise MooringsError("job.invalid", "each run of an array needs an entry of its own")


def _unknown(ident: str) -> MooringsError:
    return MooringsError("run.unknown", f"there is no run {ident[:80]!r}", hint="moor get runs --all")


def _digested(job: JobSpec) -> object:
    """The job in the digest of a request."""
    signal = digested_warn_signal(job.checkpoint)
    told = AUTO_SIGNAL if signal == "USR1" else signal
    return to_plain_without_defaults(replace(job, checkpoint=replace(job.checkpoint, warn_signal=told)))
