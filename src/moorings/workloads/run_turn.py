"""The runs' part of a turn: how runs change on requests of users, on changes of claims, and on reports of engines.

A run never touches the fleet: it makes requests (``CreateClaim``, ``ReleaseClaim``, ``YieldClaim``) that the same turn
passes to core, and reads the result in its claim. So run and claim change in one transaction, and core does not depend
on training. A run on an engine with its own scheduler has no claim, and follows that engine's reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from moorings.core.model.access import APPLIANCE_OWNER_PREFIX, LOCAL_OWNER_PREFIX, Ownership, Role
from moorings.core.model.backlog import Amount, Backlog, BacklogEntry, check_backlog_limits
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.inputs import CheckpointSaved, CreateClaim, ReleaseClaim, YieldClaim
from moorings.core.model.owners import external_job_id
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Projects
from moorings.core.model.reasons import Reason
from moorings.core.model.serialization import OMIT_IF_DEFAULT
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.core.scheduling.turn_requests import max_priority
from moorings.workloads import runs
from moorings.workloads.arrays import ArrayPart, element_id, parse_array
from moorings.workloads.checkpoints import RunCheckpoint, newest_whole, torn_newer
from moorings.workloads.dependencies import AfterEnd, Dependency, RunHold
from moorings.workloads.idleness import Idleness
from moorings.workloads.jobs import JobSpec, JobSummary, claim_spec_for, element_of, summarize_job
from moorings.workloads.labels import apply_label_changes, check_labels
from moorings.workloads.runs import (
    EndReason,
    EndRecord,
    Run,
    RunEvent,
    RunId,
    RunPause,
    RunPhase,
    RunState,
    RunStatus,
    Submitter,
)

COMMAND_EVENT_CHARS_MAX = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRun:
    """Submit a job; the ids are fresh, the job was checked.

    ``claim`` is None for an engine with its own scheduler: the run waits in that scheduler's queue. ``within``: the
    claim exists already, and stays after the run's end. ``body_bytes``: of the job, of which the log has only a part.
    ``resume_from``: a checkpoint of an earlier run, which its first attempt is given. ``spool_entry``: as in ``Run``.
    ``submitter``: as in ``Run``.
    ``machine``: with devices, what it needs of the controller's machine; the log has not all of a job. ``after``: the
    runs that it waits for, by id; until they have ended there is no claim. Where its person submits it, the scheduler
    waits for them, and for places in its array. Of an array ``id`` and ``claim`` are what the ids of all elements and
    of their claims begin with; ``spool_entries`` and ``token_digests`` then have those of each element, by index.
    """

    id: RunId
    claim: ClaimId | None
    job: JobSpec
    engine: str
    subject: str
    within: bool = field(default=False, metadata=OMIT_IF_DEFAULT)
    role: Role | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    body_bytes: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    resume_from: RunCheckpoint | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    spool_entry: str = field(default="", metadata=OMIT_IF_DEFAULT)
    machine: Mapping[str, int] = field(default_factory=dict, metadata=OMIT_IF_DEFAULT)
    submitter: Submitter | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    after: tuple[Dependency, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)
    spool_entries: tuple[str, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)
    token_digests: tuple[str, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class LabelRun:
    """Change labels of a run; None removes one."""

    run: RunId
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Stop a run."""

    run: RunId
    why: str


@dataclass(frozen=True, slots=True)
class PauseRun:
    """Stop a run until it is resumed: it is warned, saves, ends, and its claim is released.

    Attributes:
        by: who asks.
        timeout_s: from when its engine knows it, how long until none of its processes may be left.
        holds_retry: only if it waits for its retry, which then does not come.
        resumable: whether its job resumes from a checkpoint; of a run with a claim that says so itself.
    """

    run: RunId
    by: str
    timeout_s: float
    holds_retry: bool = field(default=False, metadata=OMIT_IF_DEFAULT)
    resumable: bool = field(default=True, metadata=OMIT_IF_DEFAULT)


@dataclass(frozen=True, slots=True)
class ResumeRun:
    """Let a PAUSED run wait again.

    Attributes:
        claim: id of its next claim.
        spec: of that claim; it gets the priority that the last one had.
        role: of the caller; None: its retry is due.
        chosen: the checkpoint to resume from; None: the newest whole one.
    """

    run: RunId
    claim: ClaimId
    spec: ClaimSpec
    role: Role | None = None
    chosen: RunCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class RunRejected:
    """The engine will never start the run."""

    run: RunId
    why: str


@dataclass(frozen=True, slots=True)
class RunIdled:
    """An attempt of a run holds devices and has not worked since then; ``is_long``: admins are shown it."""

    run: RunId
    attempt: int
    since: Timestamp
    is_long: bool


RunInput = CreateRun | CancelRun | LabelRun | PauseRun | ResumeRun | RunRejected | RunIdled | RunStatus
ClaimInput = CreateClaim | ReleaseClaim | YieldClaim | CheckpointSaved

_UNSERVED = (ClaimState.FAILED, ClaimState.LOST)
_RESUMABLE_END_REASONS = (
    EndReason.YIELDED,
    EndReason.CANCELLED,
    EndReason.LOST,
)  # of a run that was asked to yield, or is being paused: it resumes later


class RunRegistry:
    """The runs that have not ended, by id and by claim."""

    def __init__(self, unended: Iterable[Run] = ()) -> None:
        self._reasons: dict[RunId, str] = {}
        self._idle: Mapping[RunId, Idleness] = {}
        self.by_id: dict[RunId, Run] = {}
        self.by_claim: dict[ClaimId, RunId] = {}
        self._by_workflow: dict[str, dict[RunId, None]] = {}
        self._dependents: dict[str, dict[RunId, None]] = {}
        self._by_array: dict[str, dict[RunId, None]] = {}
        self.backlog = Backlog()
        self.apply(unended)

    def apply(self, changed: Iterable[Run]) -> None:
        """Apply changed runs, once the database has saved them."""
        for run in changed:
            _count(self.backlog, self.by_id.get(run.id), run)
            if run.job.appliance is not None:
                _keep_kin(self._by_workflow, run.job.appliance.workflow, run)
            known = self.by_id.get(run.id)
            self._note_dependencies(known, run)
            if run.job.array is not None:
                _keep_kin(self._by_array, run.job.array.id, run)
            if known is not None and known.claim is not None and known.claim != run.claim:  # it was resumed
                self.by_claim.pop(known.claim, None)
            if run.is_ended:
                self.by_id.pop(run.id, None)
                self._reasons.pop(run.id, None)
                if run.claim is not None and self.by_claim.get(run.claim) == run.id:
                    self._detach_claim(run.claim, within=run.within)
            else:
                self.by_id[run.id] = run
                if run.claim is not None:
                    self.by_claim[run.claim] = run.id

    def _detach_claim(self, claim: ClaimId, *, within: bool) -> None:
        """The run on that claim has ended: if the database was turned back, another run may be within it by now."""
        del self.by_claim[claim]
        if within:
            self.by_claim.update((claim, other.id) for other in self.by_id.values() if other.claim == claim)

    def _note_dependencies(self, before: Run | None, after: Run) -> None:
        for ident in _dependencies(before):
            kin = self._dependents[ident]
            kin.pop(after.id, None)
            if not kin:
                del self._dependents[ident]
        for ident in _dependencies(after):
            self._dependents.setdefault(ident, {})[after.id] = None

    def dependents(self, ident: RunId) -> tuple[RunId, ...]:
        """The runs that wait for the end of that one."""
        return tuple(self._dependents.get(ident, ()))

    def of_workflow(self, workflow: str) -> list[Run]:
        """The runs of a workflow that have not ended."""
        return [self.by_id[ident] for ident in self._by_workflow.get(workflow, ())]

    def of_array(self, array: str) -> list[Run]:
        """The runs of an array that have not ended."""
        return [self.by_id[ident] for ident in self._by_array.get(array, ())]

    def set_wait_reason(self, ident: RunId, reason: str, *, keep_if_empty: bool = False) -> None:
        """Set why a run waits in its engine's queue; it is only for display and decides nothing.

        Args:
            ident: the run.
            reason: a sentence; empty: there is none now.
            keep_if_empty: an empty reason does not replace the previous one.
        """
        if reason and ident in self.by_id:
            self._reasons[ident] = reason
        elif not keep_if_empty:
            self._reasons.pop(ident, None)

    def wait_reason(self, run: Run) -> Reason | None:
        """Why a run waits in its engine's queue; None: it does not, or there is no report yet."""
        text = self._reasons.get(run.id) if run.is_queued else None
        return Reason("engine.waiting", text) if text else None

    def set_idle(self, idle: Mapping[RunId, Idleness]) -> None:
        """Set which runs are idle; it is only for display and decides nothing."""
        self._idle = idle

    def idleness(self, run: Run) -> Idleness | None:
        """Whether a run holds devices and has not worked for long, as of the last reading; None: it is not idle."""
        return self._idle.get(run.id) if run.state is RunState.RUNNING else None


class RunTurn:
    """The runs' part of one turn: an overlay on ``RunRegistry``, its requests to core, its events."""

    def __init__(
        self,
        known: RunRegistry,
        claim_of: Callable[[ClaimId], Claim | None],
        now: Timestamp,
        policy: Policy = Policy(),  # noqa: B008 - a value
        projects: Callable[[], Projects] = Projects,
        all_claims: Callable[[], Iterable[Claim]] = tuple,
    ) -> None:
        self._known = known
        self._policy = policy
        self._projects = projects
        self._backlog = Backlog()  # the turn's changes
        self._claim_of = claim_of
        self._all_claims = all_claims
        self._claims: dict[ClaimId, RunId] = {}
        self._new_held: list[RunId] = []  # of this turn, which wait for others
        self._arrays: dict[str, ArrayPart] = {}  # of which more elements may be able to ask for devices
        self._ended: list[Run] = []  # in this turn, and their dependents do not know yet
        self._rollback: Callable[[], None] = lambda: None
        self.now = now
        self.changed: dict[RunId, tuple[Run, int | None]] = {}
        self.jobs: dict[RunId, JobSpec] = {}  # the whole jobs of new runs
        self.events: list[Event] = []

    def run(self, ident: RunId) -> Run | None:
        """The run as this turn sees it."""
        changed = self.changed.get(ident)
        return changed[0] if changed is not None else self._known.by_id.get(ident)

    def handle_input(self, given: RunInput) -> list[ClaimInput]:
        """Process one input and return its requests to core. Inputs about ended runs change nothing.

        Raises:
            MooringsError: ``claim.held_by_run``, ``claim.ended``, ``claim.other_shape``: a run cannot be created within
                that claim; ``owner.denied``: its workflow is another subject's; ``quota.waiting``: too much is pending;
                ``run.ended``, ``label.invalid``: its labels cannot be changed so; ``run.not_pausable``,
                ``run.not_paused``: it cannot be paused, or resumed.
        """
        if isinstance(given, CreateRun):
            return self._create(given)
        ident = given.run
        run = self.run(ident)
        if isinstance(given, LabelRun):
            return self._label(given, run)
        if isinstance(given, PauseRun):
            return self._pause(given, run)
        if isinstance(given, ResumeRun):
            return self._resume(given, run)
        if run is None or run.is_ended:
            return []
        if isinstance(given, CancelRun):
            return self._cancel(run, given.why)
        if run.state is RunState.PAUSED or run.hold is not None:
            return []  # about an attempt before
        if isinstance(given, RunRejected):
            return self._end(run, EndRecord(EndReason.NOT_STARTED, 126, detail=given.why))
        if isinstance(given, RunIdled):
            self._report_idle(run, given)
            return []
        return self._apply_status(run, given)

    def held_claim(self, ident: RunId) -> CreateClaim | None:
        """The later claim of a run that waits for others; None: it waits for none, or has no claim of ours."""
        run = self.run(ident)
        if run is None or run.hold is None or run.hold.claim is None or run.hold.spec is None:
            return None
        owner = claim_owner(run.id, run.job)
        return CreateClaim(id=run.hold.claim, name=run.id, owner=owner, subject=run.subject, spec=run.hold.spec)

    def start_dependents(self) -> list[CreateClaim]:
        """Start or cancel the runs that waited for those which have ended since the last call; returns their claims."""
        demands: list[CreateClaim] = []
        while self._ended:
            ended = self._ended.pop(0)
            known = {*self._known.dependents(ended.id), *self._known.dependents(_array_of(ended))}
            waiting = filter(None, map(self.run, {*known, *self._new_held}))
            # Once for all who wait for this array, of which there may be thousands: none of its own runs is among them.
            is_left = bool(known or self._new_held) and self._has_unended(_array_of(ended))
            for run in sorted(waiting, key=lambda run: (run.created_at, run.id)):  # not in the order of memory (law 9)
                demands += self._apply_dependency(run, ended, is_left=is_left)
            if ended.job.array is not None and ended.job.array.limit:
                self._arrays[ended.job.array.id] = ended.job.array
        while self._arrays:
            demands += self._start_elements(self._arrays.pop(min(self._arrays)))
        return demands

    def awaited(self, claims: Iterable[Claim]) -> list[Claim]:
        """Those of lost and failed claims that may end a run for which others wait: they are scheduled in this turn."""
        return [claim for claim in claims if claim.state in _UNSERVED and self._is_awaited(self.run_of_claim(claim.id))]

    def _is_awaited(self, run: Run | None) -> bool:
        if run is None:
            return False
        in_limit = run.job.array is not None and run.job.array.limit > 0
        dependents = self._known.dependents(run.id) or self._known.dependents(_array_of(run))
        return in_limit or bool(dependents or self._new_held)

    def _apply_dependency(self, run: Run, ended: Run, *, is_left: bool) -> list[CreateClaim]:
        after = _hold(run)
        if not any(each.run in (ended.id, _array_of(ended)) for each in after):
            return []
        left, unmet = self._left_after(after, ended, is_left=is_left)
        if unmet:
            self._end(run, EndRecord(EndReason.CANCELLED, 143, detail=unmet))
            return []
        if left == after:
            return []
        if left:
            self._save(runs.with_dependencies(run, left), run)
            return []
        if run.job.array is None:
            return self._release_hold(run, {"after": ended.id})
        self._save(runs.with_dependencies(run, left), run)
        self._arrays[run.job.array.id] = run.job.array
        return []

    def _left_after(
        self, after: Iterable[Dependency], ended: Run, *, is_left: bool
    ) -> tuple[tuple[Dependency, ...], str]:
        """What is still to be waited for after the end of a run, and why the dependent run never starts, if so.

        Args:
            after: what was waited for.
            ended: the run.
            is_left: whether others of its array have not ended.
        """
        left, succeeded = [], ended.state is RunState.SUCCEEDED
        for each in after:
            if each.run == ended.id:
                if not each.is_met(succeeded=succeeded):
                    return (), each.unmet_text(ended.state)
            elif each.run != _array_of(ended):
                left.append(each)
            elif each.end is AfterEnd.OK and not succeeded:
                return (), replace(each, run=ended.id).unmet_text(ended.state)
            else:
                seen = replace(each, has_failed=each.has_failed or not succeeded)
                if is_left:
                    left.append(seen)
                elif not seen.is_met(succeeded=not seen.has_failed):
                    return (), seen.unmet_text(RunState.SUCCEEDED)
        return tuple(left), ""

    def _has_unended(self, array: RunId) -> bool:
        """Whether a run of an array has not ended, or its end was not looked at yet."""
        return bool(array) and (self._unended(array) > 0 or any(_array_of(other) == array for other in self._ended))

    def _unended(self, array: str) -> int:
        """How many runs of an array have not ended."""
        runs = (self.run(run.id) for run in self._known.of_array(array))
        return sum(run is not None and not run.is_ended for run in runs)

    def _start_elements(self, array: ArrayPart) -> list[CreateClaim]:
        """Let as many elements of an array ask for devices as its limit allows."""
        known = {run.id: run for run in self._known.of_array(array.id)}
        new = [ident for ident in self._new_held if ident not in known]
        seen = [run for run in map(self.run, (*known, *new)) if run is not None and not run.is_ended]
        members = {run.job.array.index: run for run in seen if run.job.array and run.job.array.id == array.id}
        ready = [run for _, run in sorted(members.items()) if run.hold is not None and not run.hold.after]
        if array.limit:
            ready = ready[: max(0, array.limit - sum(run.hold is None for run in members.values()))]
        return [claim for run in ready for claim in self._release_hold(run, None)]

    def _release_hold(self, run: Run, data: dict[str, object] | None) -> list[CreateClaim]:
        claim = self.held_claim(run.id)
        eligible = runs.without_hold(run)
        self._save(eligible, run)
        self._emit_event("run.eligible", eligible, data)
        if claim is None:
            return []
        self._claims[claim.id] = run.id
        return [claim]

    def refuse_claim(self, claim: ClaimId, why: str) -> None:
        """End a run: the claim that it asks for after its dependencies is refused."""
        run = self.run(self._claims.pop(claim))
        assert run is not None
        self._end(replace(run, claim=None), EndRecord(EndReason.NOT_STARTED, 126, detail=why))

    def rollback(self) -> None:
        """Take back the last creation or resumption of a run: its claim was refused."""
        self._rollback()

    def _rollback_to(self, ident: RunId, claim: ClaimId | None) -> Callable[[], None]:
        before, saved, events = self.run(ident), self.changed.get(ident), len(self.events)

        def rollback() -> None:
            _count(self._backlog, self.run(ident), before)
            if saved is not None:
                self.changed[ident] = saved
            else:
                del self.changed[ident]
            if before is None:
                del self.jobs[ident]
            if claim is not None:
                del self._claims[claim]
            del self.events[events:]

        return rollback

    def apply_claim_changes(self, claims: Iterable[Claim]) -> list[ClaimInput]:
        """Process this turn's changes of runs' claims; returns the requests to core."""
        demands: list[ClaimInput] = []
        for claim in claims:
            run = self.run_of_claim(claim.id)
            if run is not None:
                demands += self._apply_claim_change(run, claim)
        return demands

    def run_of_claim(self, claim: ClaimId) -> Run | None:
        """The run that waits for that claim or holds it."""
        ident = self._claims.get(claim) or self._known.by_claim.get(claim)
        run = self.run(ident) if ident is not None else None
        if run is None or run.is_ended or run.state is RunState.PAUSED or run.claim != claim:
            return None
        return run

    def has_run(self, claim: ClaimId) -> bool:
        """Whether an unended run is on that claim."""
        return self.run_of_claim(claim) is not None

    def may_have_processes(self, claim: ClaimId) -> bool:
        """Whether processes of a run may be on that claim's partition."""
        run = self.run_of_claim(claim)
        return run is not None and run.state is not RunState.WAITING

    def cancel_expired(self, claims: Iterable[Claim]) -> list[ClaimInput]:
        """Stop the runs of claims whose lease has expired; returns the requests to core."""
        demands: list[ClaimInput] = []
        for claim in claims:
            run = self.run_of_claim(claim.id)
            if run is not None:
                demands += self._cancel(run, f"nobody renewed its lease of {claim.spec.lease_s:g} s")
        return demands

    def _apply_claim_change(self, run: Run, claim: Claim) -> list[ClaimInput]:
        waiting = run.state is RunState.WAITING
        if claim.state is ClaimState.READY and waiting:
            if run.attempt and claim.spec.checkpoint.resumable:
                run = runs.with_resume_point(run)
            data: dict[str, object] = {"partition": claim.partition}
            if run.resumed_from is not None:
                data["resume_from"] = run.resumed_from.path
            if run.attempt and (torn := torn_newer(runs.own_checkpoints(run), run.resumed_from)):
                data["torn"] = [each.path for each in torn]
            self._move(run, RunEvent.PARTITION_READY, "run.starting", data)
        elif claim.state is ClaimState.RECLAIMING and waiting:
            if not run.within:  # its partition was ACTIVE for less than a turn
                return [YieldClaim(claim.id, f"run {run.id} had not started")]
        elif claim.state is ClaimState.RECLAIMING and run.state in (RunState.STARTING, RunState.RUNNING):
            self._move(run, RunEvent.YIELD, "run.yielding", {"why": _reason(claim), "until": claim.asked_until})
        elif claim.state is ClaimState.LOST and waiting and self._has_retry(run):
            return self._paused(run, self._retry_pause(run, _reason(claim)))
        elif claim.state is ClaimState.FAILED or (claim.state is ClaimState.LOST and waiting):
            return self._end(run, EndRecord(EndReason.NOT_STARTED, 1, detail=_reason(claim)))
        elif claim.state is ClaimState.LOST and run.state in (RunState.STARTING, RunState.RUNNING, RunState.YIELDING):
            if run.pause is None and self._has_retry(run):
                run = replace(run, pause=self._retry_pause(run, _reason(claim)))
            self._move(run, RunEvent.STOP, "run.stopping", {"why": _reason(claim)}, _reason(claim))
        return []

    def _create(self, given: CreateRun) -> list[ClaimInput]:
        if given.job.array:
            return self._create_array(given)
        return self._create_run(given, self._hold_of(given), summarize_job(given.job, given.body_bytes))

    def _create_array(self, given: CreateRun) -> list[ClaimInput]:
        """Create the runs of an array; all of them, or none."""
        after, (indexes, limit) = self._left_of(given), parse_array(given.job.array)
        created: list[Callable[[], None]] = []

        def rollback() -> None:
            self._arrays.pop(given.id, None)
            for undo in reversed(created):
                undo()

        for place, index in enumerate(indexes):
            part = ArrayPart(given.id, index, len(indexes), limit)
            element = _element(given, part, place)
            hold = None
            if given.submitter is None:
                hold = RunHold(after, element.claim, _claim_spec(element) if element.claim is not None else None)
            try:
                self._create_run(element, hold, replace(summarize_job(element.job, given.body_bytes), array=part))
            except MooringsError:
                rollback()
                raise
            created.append(self._rollback)
        self._rollback = rollback
        if not after:
            self._arrays[given.id] = ArrayPart(given.id, indexes[0], len(indexes), limit)
        return []

    def _create_run(self, given: CreateRun, hold: RunHold | None, job: JobSummary) -> list[ClaimInput]:
        run = Run(
            id=given.id,
            job=job,
            engine=given.engine,
            subject=given.subject,
            claim=given.claim if hold is None else None,
            state=RunState.WAITING,
            created_at=self.now,
            within=given.within,
            labels=dict(sorted(given.job.labels.items())),
            resumed_from=given.resume_from,
            spool_entry=given.spool_entry,
            submitter=given.submitter,
            hold=hold,
        )
        held = self._check_within(given) if given.within else None
        self._check_workflow(given)
        self._check_quotas(given.role, run)
        self._rollback = self._rollback_to(run.id, run.claim)
        _count(self._backlog, None, run)
        self.changed[run.id] = (run, None)
        self.jobs[run.id] = given.job
        command = _shortened(given.job.command_line)
        self._emit_event("run.created", run, {"job": run.job.name, "command": command, "subject": run.subject})
        if hold is not None:
            self._new_held.append(run.id)
        if run.claim is None or given.claim is None:
            return []
        self._claims[given.claim] = run.id
        if held is not None:
            return self._apply_claim_change(run, held)
        return [
            CreateClaim(
                id=given.claim,
                name=given.id,
                owner=claim_owner(given.id, given.job),
                subject=given.subject,
                spec=_claim_spec(given),
                role=given.role,
            )
        ]

    def _hold_of(self, given: CreateRun) -> RunHold | None:
        """What a new run waits for; None: for no other run, or its person's scheduler waits."""
        left = self._left_of(given)
        if not left or given.submitter is not None:
            return None
        return RunHold(left, given.claim, _claim_spec(given) if given.claim is not None else None)

    def _left_of(self, given: CreateRun) -> tuple[Dependency, ...]:
        """The runs that a new run waits for, and that have not ended.

        Raises:
            MooringsError: ``run.never_starts``, ``run.ended``: one has ended since the caller looked it up.
        """
        left = []
        for each in given.after:
            if each.left:
                if each.left != self._unended(each.run):
                    detail = f"a run of array {each.run} has just ended"
                    raise MooringsError("run.ended", detail, hint="try again", retryable=True)
                left.append(each)
                continue
            run = self.run(RunId(each.run))
            state = RunState(each.ended) if each.ended else run.state if run is not None else None
            if state is None:
                raise MooringsError("run.ended", f"run {each.run} has just ended", hint="try again", retryable=True)
            if state not in runs.ENDED:
                left.append(each)
            elif not each.is_met(succeeded=state is RunState.SUCCEEDED):
                hint = f"leave it out, or wait for any end: {each.run}:any"
                raise MooringsError("run.never_starts", each.unmet_text(state), hint=hint)
        return tuple(left)

    def _check_workflow(self, given: CreateRun) -> None:
        """If two subjects begin the same workflow at once, the first gets it; the caller has checked earlier jobs."""
        if given.job.appliance is None or given.role is None:  # logs without roles had no such check
            return
        workflow = given.job.appliance.workflow
        made = [run for run, _ in self.changed.values() if run.job.appliance and run.job.appliance.workflow == workflow]
        if any(run.subject != given.subject for run in (*self._known.of_workflow(workflow), *made)):
            raise MooringsError("owner.denied", f"workflow {workflow} is somebody else's", hint="begin one of your own")

    def _check_quotas(self, role: Role | None, run: Run) -> None:
        """Check that this run may be pending, too, also in another scheduler's queue."""
        known, changed = self._known.backlog, self._backlog

        def of_project(name: str) -> Amount:
            return known.for_project(name) + changed.for_project(name)

        waits = known.for_subject(run.subject) + changed.for_subject(run.subject)
        asked = BacklogEntry(role, run.subject, run.job.project, "runs", run.job.body_bytes)
        check_backlog_limits(asked, waits, of_project, self._projects(), self._policy)

    def _check_within(self, given: CreateRun) -> Claim:
        claim = self._claim_of(given.claim) if given.claim is not None else None
        if claim is None or claim.is_ended or claim.state is ClaimState.RELEASING:
            raise MooringsError("claim.ended", f"claim {given.claim} has ended; no run can be within it")
        if self.has_run(claim.id):
            raise MooringsError(
                "claim.held_by_run", f"a run is within claim {claim.id}", hint="wait until that run has ended"
            )
        wanted = claim_spec_for(given.job)
        shape = (claim.spec.kind, claim.spec.size, claim.spec.gcds)
        if shape != (wanted.kind, wanted.size, wanted.gcds):
            raise MooringsError(
                "claim.other_shape",
                f"claim {claim.id} is of {claim.spec.size} {claim.spec.kind} in {claim.spec.gcds} parts, and the run "
                f"needs {wanted.size} {wanted.kind} in {wanted.gcds}",
                hint="reserve what the run needs",
            )
        return claim

    def _label(self, given: LabelRun, run: Run | None) -> list[ClaimInput]:
        if run is None or run.is_ended:
            raise MooringsError("run.ended", f"run {given.run} has ended; its labels stay as they are")
        labels = apply_label_changes(run.labels, given.changes)
        check_labels(labels)
        if labels != run.labels:
            changed = runs.with_labels(run, labels)
            self._save(changed, run)
            self._emit_event("run.labelled", changed, {"labels": labels})
        return []

    def _cancel(self, run: Run, why: str) -> list[ClaimInput]:
        if run.is_queued:  # only the engine can say whether it has ended, or runs by now
            self._move(run, RunEvent.STOP, "run.stopping", {"why": why}, why)
            return []
        if run.state in (RunState.WAITING, RunState.PAUSED):
            return self._end(run, EndRecord(EndReason.CANCELLED, 143, detail=why))
        if run.state is not RunState.STOPPING:
            self._move(replace(run, pause=None), RunEvent.STOP, "run.stopping", {"why": why}, why)
        elif run.pause is not None or (run.job.retries and self._stops_by_loss(run)):
            cancelled = runs.cancel_pause(run, why)
            self._save(cancelled, run)
            self._emit_event("run.stopping", cancelled, {"why": why})
        return []

    def _report_idle(self, run: Run, given: RunIdled) -> None:
        if run.state is RunState.RUNNING and run.attempt == given.attempt:
            asked = run.job.accelerators
            data = {"size": asked.size, "kind": asked.kind, "since": given.since}
            self._emit_event("run.stayed_idle" if given.is_long else "run.idled", run, data)

    def _stops_by_loss(self, run: Run) -> bool:
        """Whether it stops because its partition was lost, and no caller asked it to."""
        claim = self._claim_of(run.claim) if run.claim is not None else None
        return claim is not None and claim.state is ClaimState.LOST and run.stop_reason == _reason(claim)

    def _pause(self, given: PauseRun, run: Run | None) -> list[ClaimInput]:
        if run is None or run.is_ended:
            raise MooringsError("run.ended", f"run {given.run} has ended; there is nothing to pause")
        if run.pause is not None:
            return self._hold(given, run, run.pause)
        if given.holds_retry:
            return []
        if run.state is RunState.STOPPING:
            raise MooringsError("run.not_pausable", f"run {run.id} is being stopped: {run.stop_reason}")
        if run.hold is not None:
            raise MooringsError("run.not_pausable", f"run {run.id} {run.hold.reason}, and holds nothing until then")
        self._check_pausable(run, resumable=given.resumable)
        pause = RunPause(given.by, self.now, given.timeout_s, self._priority_of(run))
        if run.is_queued:  # only its scheduler can say that it does not start any more
            stopping = runs.begin_pause(runs.step(run, RunEvent.STOP, self.now, pause.reason), pause)
            self._save(stopping, run)
            self._emit_event("run.pausing", stopping, {"by": pause.by, "timeout_s": pause.timeout_s})
            return []
        if run.state is RunState.WAITING:
            return self._paused(run, pause)
        yielding = run if run.state is RunState.YIELDING else runs.step(run, RunEvent.YIELD, self.now)
        pausing = runs.begin_pause(yielding, pause)
        self._save(pausing, run)
        self._emit_event("run.pausing", pausing, {"by": pause.by, "timeout_s": pause.timeout_s})
        return []

    def _hold(self, given: PauseRun, run: Run, before: RunPause) -> list[ClaimInput]:
        """Pause a run that is paused already; one that would be retried waits until it is resumed."""
        if not before.loss:
            return []
        held = runs.begin_pause(run, replace(before, by=given.by, asked_at=self.now, loss="", resume_at=None))
        self._save(held, run)
        name = "run.paused" if run.state is RunState.PAUSED else "run.pausing"
        self._emit_event(name, held, {"why": f"paused by {given.by}"})
        return []

    def _check_pausable(self, run: Run, *, resumable: bool) -> None:
        # None: its engine's scheduler has one, or after a restore it goes on, on a partition that no record knows.
        claim = self._claim_of(run.claim) if run.claim is not None else None
        if run.job.appliance is not None or (claim is not None and claim.spec.lease_s is not None):
            detail = f"run {run.id} ends with the command that started it, which waits for it"
            raise MooringsError("run.not_pausable", detail, hint=f"moor cancel {run.id}")
        if run.within:
            detail = f"run {run.id} is within claim {run.claim}, which is not its own"
            raise MooringsError("run.not_pausable", detail, hint=f"moor cancel {run.id}")
        if not (resumable if claim is None else claim.spec.checkpoint.resumable):
            detail = f"run {run.id} cannot resume from a checkpoint: its work would be lost"
            hint = "a job that saves checkpoints says so: 'resumable = true' in [checkpoint] of its job file"
            raise MooringsError("run.not_pausable", detail, hint=hint)
        if run.job.checkpoint_directory is None:
            detail = f"the job of run {run.id} names no folder of checkpoints, so nobody would see that it has saved"
            raise MooringsError("run.not_pausable", detail, hint="'directory' in [checkpoint] of its job file")

    def _can_resume(self, run: Run) -> bool:
        claim = self._claim_of(run.claim) if run.claim is not None else None
        resumable = claim is not None and claim.spec.checkpoint.resumable and claim.spec.lease_s is None
        return resumable and run.job.checkpoint_directory is not None and not run.within

    def _priority_of(self, run: Run) -> int:
        claim = self._claim_of(run.claim) if run.claim is not None else None
        return claim.spec.priority if claim is not None else run.job.priority

    def _paused(self, run: Run, pause: RunPause, lost: Mapping[str, object] | None = None) -> list[ClaimInput]:
        """Nothing of a run that is being paused, or was lost, is left: its claim is released, if it has one."""
        before = self.run(run.id)
        assert before is not None
        losses = runs.after_loss(run)
        if run.state in (RunState.STARTING, RunState.RUNNING):
            run = runs.step(run, RunEvent.YIELD, self.now)
        paused = runs.apply_pause(run, pause, self.now)
        data = {"why": pause.reason, "attempt": paused.attempt, **(lost or {})}
        if pause.loss:
            paused = runs.retry_pause(paused, pause, losses, self.now)
            assert paused.pause is not None
            data |= {
                "resume_at": paused.pause.resume_at,
                "retry": losses.count,
                "retries": paused.job.retries,
            }
        self._save(paused, before)
        self._emit_event("run.retrying" if pause.loss else "run.paused", paused, data)
        if run.claim is None:
            return []
        return [ReleaseClaim(run.claim, f"run {run.id} is {'retried' if pause.loss else 'paused'}")]

    def _has_retry(self, run: Run) -> bool:
        """Whether it is retried if its attempt is lost."""
        losses = runs.after_loss(run)
        left = losses.count <= run.job.retries and losses.unchanged < runs.LOSSES_UNCHANGED_MAX
        return left and (run.claim is None or self._can_resume(run))  # a job with retries is one that resumes

    def _retry_pause(self, run: Run, loss: str) -> RunPause:
        return RunPause("the controller", self.now, 0.0, self._priority_of(run), loss)

    def _resume(self, given: ResumeRun, run: Run | None) -> list[ClaimInput]:
        if run is None or run.is_ended:
            raise MooringsError("run.ended", f"run {given.run} has ended", hint=f"moor run --resume {given.run}")
        if run.state is not RunState.PAUSED:
            what, hint = f"is {run.state}, and not paused", "'moor get runs' shows its state; name a run by its id"
            if run.state is RunState.YIELDING and run.pause is not None:
                what, hint = "is being paused", "resume it once it is PAUSED"
            raise MooringsError("run.not_paused", f"run {run.id} {what}", hint=hint)
        assert run.pause is not None
        if given.role is None and run.pause.resume_at is None:
            raise MooringsError("run.not_paused", f"run {run.id} is {run.pause.reason}, and waits for no retry")
        self._check_quotas(given.role, run)
        if run.claim is None:
            self._requeue(run, given)
            return []
        most = max_priority(given.role, given.spec.project, self._projects(), self._policy)
        priority = run.pause.priority if most is None else min(run.pause.priority, most)
        self._rollback = self._rollback_to(run.id, given.claim)
        waiting = runs.apply_resume(run, given.claim, given.chosen, self.now)
        if given.role is not None:  # somebody has looked at it
            waiting = runs.forgive_losses(waiting)
        self._claims[given.claim] = run.id
        self._save(waiting, run)
        self._emit_event("run.resumed", waiting, {"resume_from": given.chosen.path} if given.chosen else None)
        return [
            CreateClaim(
                id=given.claim,
                name=f"{run.id}-{given.claim.rpartition('-')[2]}",  # a claim before may still be leaving
                owner=claim_owner(run.id, run.job),
                subject=run.subject,
                spec=replace(given.spec, priority=priority),
                role=given.role,
            )
        ]

    def _requeue(self, run: Run, given: ResumeRun) -> None:
        """Let a lost run wait in the queue of its engine's scheduler again."""
        waiting = runs.with_resume_point(runs.apply_resume(run, None, given.chosen, self.now))
        if given.role is not None:
            waiting = runs.forgive_losses(waiting)
        self._save(waiting, run)
        point = waiting.resumed_from
        self._emit_event("run.resumed", waiting, {"resume_from": point.path} if point is not None else None)

    def _apply_status(self, run: Run, seen: RunStatus) -> list[ClaimInput]:
        if seen.attempt < run.attempt:
            return []
        saved = self._apply_checkpoints(run, seen)
        return [*saved, *self._apply_phase(self.changed[run.id][0] if run.id in self.changed else run, seen)]

    def _apply_checkpoints(self, run: Run, seen: RunStatus) -> list[ClaimInput]:
        """Process the checkpoints that a look has found; a whole one that is new counts as saved work."""
        changed = runs.after_look(run, seen)
        if changed is run:
            return []
        self._save(changed, run)
        if changed.checkpoint_fault not in ("", run.checkpoint_fault):
            self._emit_event("run.checkpoints_unseen", changed, {"why": changed.checkpoint_fault})
        # What an earlier run has left in the folder is no work of this one.
        before, newest = (newest_whole(each.checkpoints, run.created_at) for each in (run, changed))
        if newest is None or (before is not None and newest.written_at <= before.written_at):
            return []
        data: dict[str, object] = {
            "path": newest.path,
            "step": newest.step,
            "bytes": newest.size_bytes,
            "rule": newest.rule,
        }
        self._emit_event("run.checkpoint_saved", changed, data)
        claim = self._claim_of(run.claim) if run.claim is not None else self._claim_in_scheduler(run)
        if claim is None or claim.ready_at is None or newest.written_at <= claim.ready_at:
            return []  # an earlier attempt saved it
        return [CheckpointSaved(claim.id, newest.written_at)]

    def _claim_in_scheduler(self, run: Run) -> Claim | None:
        """The claim that its engine's scheduler has for it; None: none, or two schedulers have a job with that id."""
        if run.reference is None:
            return None
        held = (ClaimState.READY, ClaimState.RECLAIMING)
        claims = (claim for claim in self._all_claims() if claim.state in held)
        found = [claim for claim in claims if external_job_id(claim.owner) == run.reference]
        return found[0] if len(found) == 1 else None

    def _apply_phase(self, run: Run, seen: RunStatus) -> list[ClaimInput]:
        if run.claim is None:
            run = self._apply_external_status(run, seen)
        elif run.state is RunState.WAITING:
            return []
        if run.state is RunState.YIELDING:
            return self._apply_yield(run, seen)
        if seen.phase is RunPhase.RUNNING and run.state is RunState.STARTING:
            self._move(run, RunEvent.STARTED, "run.started")
        elif seen.phase is RunPhase.ENDED and seen.end is not None:
            if run.pause is not None and _goes_on(run.pause, seen.end):  # it has lost its partition
                return self._paused(run, run.pause, _lost_work(run, seen))
            if seen.end.ending is EndReason.YIELDED and run.state is not RunState.STOPPING and self._can_resume(run):
                return self._pause_unasked(run, seen)
            if seen.end.ending is EndReason.LOST and run.state is not RunState.STOPPING and self._has_retry(run):
                loss = seen.end.detail or "its supervisor died"
                return self._paused(run, self._retry_pause(run, loss), _lost_work(run, seen))
            return self._end(run, seen.end)
        elif (
            seen.phase is RunPhase.ABSENT and run.state is RunState.STOPPING and (run.started_at is None or run.attempt)
        ):
            if run.pause is not None:
                return self._paused(run, run.pause)
            return self._end(
                run, EndRecord(EndReason.CANCELLED, 143, detail=run.stop_reason)
            )  # stopped before it began
        elif seen.phase is RunPhase.ABSENT and (
            run.state in (RunState.RUNNING, RunState.STOPPING) or _was_submitted(run)
        ):
            return self._end(run, EndRecord(EndReason.LOST, 1, detail="the engine knows nothing of it any more"))
        return []

    def _apply_yield(self, run: Run, seen: RunStatus) -> list[ClaimInput]:
        """Process a report of a run that was asked to yield: it resumes later, unless it ended by itself."""
        claim = self._claim_of(run.claim) if run.claim is not None else None
        asked = run.pause is not None or (claim is not None and claim.state is ClaimState.RECLAIMING)
        if seen.phase is RunPhase.ENDED and seen.end is not None:
            if not asked or seen.end.ending not in _RESUMABLE_END_REASONS:
                return self._end(run, seen.end)
            why = seen.end.detail or "it was stopped"
        elif seen.phase is RunPhase.ABSENT:
            if not asked:
                return self._end(
                    run, EndRecord(EndReason.YIELDED, runs.SIGTERM_EXIT_CODE, detail="nothing of it is left")
                )
            why = "nothing of it is left" if run.started_at is not None else "it had not started"
        else:
            return []
        if run.pause is not None:
            return self._paused(run, run.pause, _lost_work(run, seen))
        assert claim is not None
        waiting = runs.requeue_yielded(run, self.now)
        self._save(waiting, run)
        data = {"why": why, "attempt": waiting.attempt, **_lost_work(waiting, seen)}
        self._emit_event("run.requeued", waiting, data)
        return [YieldClaim(claim.id, f"run {run.id} has stopped")]

    def _pause_unasked(self, run: Run, seen: RunStatus) -> list[ClaimInput]:
        """It has yielded, and no record asks for that: the database was turned back to before the request."""
        pause = RunPause("the controller after a restore", self.now, 0.0, self._priority_of(run))
        return self._paused(run, pause, _lost_work(run, seen))

    def _apply_external_status(self, run: Run, seen: RunStatus) -> Run:
        """The run after another scheduler's changes: its id there, and its partition."""
        if seen.reference is not None and seen.reference != run.reference:
            queued = runs.with_external_id(run, seen.reference)
            self._save(queued, run)
            self._emit_event("run.queued", queued, {"reference": seen.reference})
            run = queued
        ran = seen.end is not None and seen.end.ending in (EndReason.EXITED, EndReason.TIMED_OUT)
        if run.state is RunState.WAITING and (seen.phase is RunPhase.RUNNING or ran):
            given: dict[str, object] = {}
            point = seen.resumed_from or (run.resumed_from if run.attempt else None)
            if point is not None:
                given["resume_from"] = point.path
            self._move(run, RunEvent.PARTITION_READY, "run.starting", given)
        elif run.state is RunState.RUNNING and seen.phase is RunPhase.STARTING:
            data: dict[str, object] = {"why": seen.reason} if seen.reason else {}
            self._move(run, RunEvent.REQUEUE, "run.requeued", data | _lost_in_scheduler(run, self.now))
        return self.changed[run.id][0] if run.id in self.changed else run

    def _end(self, run: Run, end: EndRecord) -> list[ClaimInput]:
        claim = self._claim_of(run.claim) if run.claim is not None and run.state is not RunState.PAUSED else None
        is_claim_lost = claim is not None and claim.state is ClaimState.LOST
        # Jobs without retries keep to what logs of earlier releases say.
        unasked = not run.job.retries or self._stops_by_loss(run)
        if claim is not None and is_claim_lost and unasked and end.ending in (EndReason.CANCELLED, EndReason.YIELDED):
            end = replace(end, ending=EndReason.NO_PARTITION, detail=_reason(claim))
        unserved = end.ending is EndReason.NOT_STARTED and is_claim_lost
        if run.job.retries and (unserved or end.ending in (EndReason.LOST, EndReason.NO_PARTITION)):
            end = replace(end, detail=_without_retry(run, end.detail or run.stop_reason))
        ended = runs.apply_end(run, end, self.now)
        self._save(ended, run)
        self._ended.append(ended)
        data = {"state": ended.state, "exit_code": ended.exit_code, "task_codes": list(ended.task_codes)}
        self._emit_event("run.ended", ended, data | ({"why": ended.detail} if ended.detail else {}))
        if run.claim is None or run.within or run.state is RunState.PAUSED:
            return []
        return [ReleaseClaim(run.claim, f"run {run.id} {ended.state}")]

    def _move(
        self, run: Run, event: RunEvent, name: str, data: dict[str, object] | None = None, detail: str = ""
    ) -> None:
        moved = runs.step(run, event, self.now, detail)
        if event is RunEvent.STARTED:
            moved = runs.with_start_time(moved, self.now)
        self._save(moved, run)
        self._emit_event(name, moved, data)

    def _save(self, run: Run, before: Run) -> None:
        _count(self._backlog, before, run)
        known = self.changed.get(run.id)
        self.changed[run.id] = (run, known[1] if known is not None else before.version)

    def _emit_event(self, name: str, run: Run, data: dict[str, object] | None = None) -> None:
        text = canonical_json(data) if data else "{}"
        of = ownership_of_run(run)
        self.events.append(Event(name=name, at=self.now, run=run.id, claim=run.claim, data=text, ownership=of))


def _keep_kin(kin: dict[str, dict[RunId, None]], key: str, run: Run) -> None:
    """Keep the unended runs of a workflow or an array."""
    if not run.is_ended:
        kin.setdefault(key, {})[run.id] = None
    elif key in kin:
        kin[key].pop(run.id, None)
        if not kin[key]:
            del kin[key]


def _element(given: CreateRun, part: ArrayPart, place: int) -> CreateRun:
    """The creation of one run of an array."""
    submitter = given.submitter
    if submitter is not None and given.token_digests:
        submitter = replace(submitter, token_digest=given.token_digests[place])
    return replace(
        given,
        id=RunId(element_id(given.id, part.index)),
        claim=ClaimId(element_id(given.claim, part.index)) if given.claim is not None else None,
        job=element_of(given.job, part),
        spool_entry=given.spool_entries[place] if given.spool_entries else given.spool_entry,
        submitter=submitter,
    )


def _array_of(run: Run) -> RunId:
    """The id of a run's array; empty: it is in none."""
    return RunId(run.job.array.id if run.job.array is not None else "")


def _count(backlog: Backlog, before: Run | None, after: Run | None) -> None:
    """Update a backlog for a changed run; None: it does not exist."""
    for run, sign in ((before, -1), (after, 1)):
        if run is not None and run.state is RunState.WAITING:
            backlog.add(run.subject, run.job.project, Amount(sign, sign * run.job.body_bytes))


def claim_owner(run: RunId, job: JobSpec | JobSummary) -> str:
    """The owner of a run's own claim."""
    return f"{LOCAL_OWNER_PREFIX if job.appliance is None else APPLIANCE_OWNER_PREFIX}{run}"


def ownership_of_run(run: Run) -> Ownership:
    """Whose a run is; its owner is that of its own claim, also where its claim is another's or not ours."""
    return Ownership(run.subject, claim_owner(run.id, run.job), run.job.project)


def first_run(given: CreateRun) -> RunId:
    """The id of a new run; of an array that of its first element."""
    return first_element(given.id, given.job)


def first_element(ident: RunId, job: JobSpec) -> RunId:
    """The id of the first run of a job: of an array the first element's."""
    return RunId(element_id(ident, parse_array(job.array)[0][0])) if job.array else ident


def _claim_spec(given: CreateRun) -> ClaimSpec:
    return replace(claim_spec_for(given.job), machine=given.machine)


def _hold(run: Run | None) -> tuple[Dependency, ...]:
    return run.hold.after if run is not None and run.hold is not None else ()


def _dependencies(run: Run | None) -> tuple[str, ...]:
    return tuple(each.run for each in _hold(run))


def _lost_work(run: Run, seen: RunStatus) -> dict[str, object]:
    """The work of an attempt that has ended which no whole checkpoint has, in seconds."""
    ended_at = seen.end.ended_at if seen.end is not None else None
    saved = newest_whole(run.checkpoints)
    if ended_at is None or seen.started_at is None:
        return {}
    since = max(seen.started_at, saved.written_at) if saved is not None else seen.started_at
    return {"lost_s": round(max(0.0, seconds_between(since, ended_at)), 1)}


def _lost_in_scheduler(run: Run, now: Timestamp) -> dict[str, object]:
    """The work since the newest whole checkpoint, in seconds, if the start that its scheduler has ended saved that."""
    saved, given = newest_whole(run.checkpoints, run.created_at), run.resumed_from
    if saved is None or (given is not None and saved.written_at <= given.written_at):
        return {}  # nobody knows when that start began
    return {"lost_s": round(max(0.0, seconds_between(saved.written_at, now)), 1)}


def _goes_on(pause: RunPause, end: EndRecord) -> bool:
    """Whether a run that was stopped goes on later: its program may fail because its devices have gone."""
    failed = end.ending is EndReason.EXITED and end.exit_code != 0
    return end.ending in _RESUMABLE_END_REASONS or (failed and bool(pause.loss))


def _without_retry(run: Run, detail: str) -> str:
    """How a run with retries ended that is not retried after its last loss."""
    losses = runs.after_loss(run)
    if losses.unchanged >= runs.LOSSES_UNCHANGED_MAX:
        since = f"since {losses.checkpoint}" if losses.checkpoint is not None else "and no checkpoint is whole"
        return f"{detail}; not retried: it was lost {losses.unchanged} times {since}"
    return f"{detail}; its retries are used up" if losses.count > run.job.retries else detail


def _shortened(command: str) -> str:
    """A command for the event log, which all watchers receive; the run has the whole command."""
    return command if len(command) <= COMMAND_EVENT_CHARS_MAX else f"{command[:COMMAND_EVENT_CHARS_MAX]}..."


def _was_submitted(run: Run) -> bool:
    """Whether it was in its scheduler's queue: if it was lost there it may have run, and must not start again."""
    return run.is_queued and not run.is_unsubmitted


def _reason(claim: Claim) -> str:
    return claim.reason.message if claim.reason is not None else f"claim {claim.id} is {claim.state}"
