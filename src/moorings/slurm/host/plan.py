"""The agent's next actions: a function of the lists, the claims, the offer and ``now``.

Level-triggered: it may be called at any moment, and continues from the observed state. Each list of jobs and each list
of licenses is acted on once, because missing entries are counted; ``PlanState`` records which were. Of the two clocks
the loop's, in seconds, measures intervals (a jump of the wall clock must end nothing); ``now`` is for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.model.quantities import join_first
from moorings.core.model.timestamps import Timestamp
from moorings.core.reconcile import Streak
from moorings.slurm.formats import LICENSE, JobRecord, License
from moorings.slurm.host.job_table import (
    ClusterIdentity,
    JobStart,
    build_queue_payload,
    review_claims,
    start_of,
    uses_licenses,
)
from moorings.slurm.host.license_gate import (
    QueueOffer,
    describe_missing_licenses,
    is_reserved,
    is_reusable_by_queue,
    sizes_awaiting_devices,
    sizes_without_licenses,
    to_reserve,
)
from moorings.slurm.host.preemption import choose_victims, may_preempt_any
from moorings.slurm.host.preemption_rules import PreemptionRules, PreemptType
from moorings.slurm.host.reclaim import UserNames, WarnJob, find_blocking_jobs, plan_wait_notes, plan_yields
from moorings.slurm.host.start_backoff import (
    StartBackoff,
    WaitingJobs,
    on_trial,
    open_trials,
    update_backoffs,
    withheld_reasons,
)
from moorings.slurm.host.unbound_tasks import LOOK_S, UnboundJob, UnboundNodes, find_unbound, jobs_missing_binds
from moorings.slurm.node_requirements import NodeRequirements
from moorings.slurm.step_records import TaskStep
from moorings.wire.shapes import ClaimBody, DeviceBody, PoolBody, QueueRequest

FRESH_S = 5.0  # an older list proves nothing: ids are reused when slurmctld has lost its state
BELIEVED_S = 120.0  # how long a report of the queue is valid
REMARKS_S = 10.0  # between two updates of the notes of pending jobs
ASIDE_S = 5.0  # how long a job must have blocked another: lists of starts may cross
TRIES_MAX = 3  # to requeue a job that ended by itself, and to allow a job's requeue
_CANNOT_YIELD = "it is warned, and cancelled when its time is over; with requeue=1 it would go on later"
_LACKS = "moor slurm install --plan shows the line"
_NO_PLUGIN = "'moor slurm doctor' on the node tells; then 'scontrol update nodename=... state=resume'"
_UNREACHED = "is the agent's port reached from the nodes? IPU jobs wait until these jobs are over; no node is drained"
_OF_ANOTHER = "if that Slurm is gone for good, 'moor slurm doctor' lists them and 'moor delete claim' ends them"


@dataclass(frozen=True, slots=True)
class DeviceHolders:
    """The holders of devices, from the controller.

    Attributes:
        pools: the pools for jobs of the cluster, with their devices.
        next_up: by pool, the owner of the job that gets the next free devices there.
    """

    pools: Sequence[tuple[PoolBody, Sequence[DeviceBody]]]
    next_up: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOutcomes:
    """The outcomes of earlier actions on jobs; a start is a job's id and its restarts.

    Attributes:
        not_requeueable: starts that Slurm does not let us requeue.
        requeues: number of tries to requeue a start.
        drained: by start, the nodes drained for it: an admin who resumes one is not overruled.
        notes: by job, the last note in its AdminComment, and its time.
    """

    not_requeueable: frozenset[tuple[int, int]] = frozenset()
    requeues: Mapping[tuple[int, int], int] = field(default_factory=dict)
    drained: Mapping[tuple[int, int], frozenset[str]] = field(default_factory=dict)
    notes: Mapping[int, tuple[str, Timestamp]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """The state that one plan leaves for the next.

    Attributes:
        listed_at: of the last list of jobs acted on.
        licenses_at: of the last list of licenses acted on.
        judged_at: of the last list used to judge claims; None: none.
        missed_listings: claims without a job in that list, by owner.
        blocking_since: by claim, since when its job holds the licenses of a job with reserved devices.
        largest: the size of the largest reported job.
        start_backoffs: of jobs that cannot start, or did not when they could, by the owner of the next claim.
        remarked_at: time of the last update of pending jobs' notes.
        silence: of nodes that did not ask.
        reported: the reports that still apply.
    """

    listed_at: float | None = None
    licenses_at: float | None = None
    judged_at: float | None = None
    missed_listings: Mapping[str, Streak] = field(default_factory=dict)
    blocking_since: Mapping[str, float] = field(default_factory=dict)
    largest: int = 0
    start_backoffs: Mapping[str, StartBackoff] = field(default_factory=dict)
    remarked_at: float | None = None
    silence: UnboundNodes = field(default_factory=UnboundNodes)
    reported: frozenset[LogWarning] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The whole input of a plan. Times are the loop's, in seconds.

    Attributes:
        home: the jobs' cluster.
        pool: for the jobs; empty: any of the kind.
        at_s: when this was composed.
        jobs: the last complete list: all IPU jobs that have not ended, and those of claims that Slurm still knows.
        listed_at: when it began; None: there was none.
        claims_before: claims known before that list began, by owner; later claims are not judged.
        is_accepted: whether the controller had accepted this Slurm and listed its claims by then, and accepts it now;
            else they may be another Slurm's claims.
        claims: the claims that have not ended, by owner.
        claims_listed: whether that is all of them.
        releasing: ids of claims being released.
        settled_at: by owner, when a start got its claim, or its final refusal.
        offer: the controller's.
        licenses: as last listed.
        licenses_at: when they were listed; None: never.
        rules: of preemption.
        needs: the jobs' requirements of nodes; None: unknown.
        devices: their holders; None: not requested.
        bound_nodes: by start, the nodes that have requested its partition; untracked starts are missing.
        steps: of the jobs with a node that has not asked; None: not requested.
        nodes_with_plugin: nodes whose slurmd reports the plugin.
        nodes_gone_silent: nodes whose slurmd reported it before, and no longer does.
        n_nodes: of the cluster.
        outcomes: of earlier actions.
        memory: from the previous plan.
    """

    home: ClusterIdentity
    pool: str = ""
    at_s: float = 0.0
    jobs: Mapping[int, JobRecord] = field(default_factory=dict)
    listed_at: float | None = None
    claims_before: Mapping[str, ClaimBody] = field(default_factory=dict)
    is_accepted: bool = False
    claims: Mapping[str, ClaimBody] = field(default_factory=dict)
    claims_listed: bool = False
    releasing: frozenset[str] = frozenset()
    settled_at: Mapping[str, float] = field(default_factory=dict)
    offer: QueueOffer = field(default_factory=QueueOffer)
    licenses: Mapping[str, License] = field(default_factory=dict)
    licenses_at: float | None = None
    rules: PreemptionRules = field(default_factory=PreemptionRules)
    needs: NodeRequirements | None = None
    devices: DeviceHolders | None = None
    bound_nodes: Mapping[JobStart, frozenset[str]] = field(default_factory=dict)
    steps: Sequence[TaskStep] | None = None
    nodes_with_plugin: frozenset[str] = frozenset()
    nodes_gone_silent: frozenset[str] = frozenset()
    n_nodes: int = 0
    outcomes: ActionOutcomes = field(default_factory=ActionOutcomes)
    memory: PlanState = field(default_factory=PlanState)


@dataclass(frozen=True, slots=True)
class ServeJob:
    """Claim a partition for a started job, and fetch its binding."""

    job: JobRecord


@dataclass(frozen=True, slots=True)
class ReleaseJobClaim:
    """Release a claim: its start has ended."""

    claim: ClaimBody
    why: str


@dataclass(frozen=True, slots=True)
class ReleaseIfJobGone:
    """Release a claim, unless a list of its job alone shows that Slurm still knows it."""

    claim: ClaimBody
    why: str


@dataclass(frozen=True, slots=True)
class AllowRequeue:
    """Allow requeue of a job."""

    job: JobRecord


@dataclass(frozen=True, slots=True)
class RequeueJob:
    """Requeue a job."""

    job: JobRecord
    why: str


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Cancel a job, with the reason for its user."""

    job: JobRecord
    why: str


@dataclass(frozen=True, slots=True)
class PutBackJob:
    """Requeue a job that holds another's licenses, if its claim still has no devices; it keeps its place."""

    claim: str
    job: JobRecord


@dataclass(frozen=True, slots=True)
class WriteNote:
    """Write a note for people into a job's AdminComment."""

    job: JobRecord
    text: str


@dataclass(frozen=True, slots=True)
class PreemptJobs:
    """Preempt jobs for a pending one of higher rank, in this order; true beside a job: requeue it."""

    waiting: JobRecord
    victims: tuple[tuple[JobRecord, bool], ...]


@dataclass(frozen=True, slots=True)
class ListDevices:
    """Request the holders of devices from the controller: a job may have to be preempted."""


@dataclass(frozen=True, slots=True)
class ListSteps:
    """List the steps of these jobs: one of their nodes has not requested their partition."""

    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopUnboundJob:
    """Drain these nodes, then requeue a job that ran there without its partition; cancel it if that is not possible."""

    job: JobRecord
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class AnnounceQueue:
    """Report the pending jobs to the controller, if they have changed."""

    queue: QueueRequest


@dataclass(frozen=True, slots=True)
class UpdateReservation:
    """Set the reservation's licenses; ``closed``: its licenses if it must be created first."""

    licenses: Mapping[str, int]
    closed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LogWarning:
    """Log a warning for an admin, once: an event with its detail and a hint, an error if ``is_error``."""

    event: str
    detail: str
    hint: str
    claim: str = ""
    is_error: bool = False


AgentAction = (
    ServeJob
    | ReleaseJobClaim
    | ReleaseIfJobGone
    | WarnJob
    | AllowRequeue
    | RequeueJob
    | CancelJob
    | PutBackJob
    | WriteNote
    | PreemptJobs
    | ListDevices
    | ListSteps
    | StopUnboundJob
    | AnnounceQueue
    | UpdateReservation
    | LogWarning
)


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """The actions to take now, and the next state; ``has_reviewed_claims``: claims were compared with Slurm's jobs."""

    acts: tuple[AgentAction, ...]
    memory: PlanState
    has_reviewed_claims: bool = False


def plan(view: ClusterState, now: Timestamp) -> AgentPlan:
    """Return the actions to take now.

    Args:
        view: the observed state.
        now: the wall clock's time.
    """
    acts: list[AgentAction] = []
    memory = view.memory
    judged = False
    if view.listed_at is not None and view.listed_at != memory.listed_at:
        judged = view.is_accepted and view.claims_listed
        standings = update_backoffs(_queue(view), memory.start_backoffs, view.listed_at, view.at_s, now)
        memory = replace(memory, listed_at=view.listed_at, start_backoffs=standings)
        if judged:
            memory = _follow_jobs(view, memory, view.listed_at, now, acts)
        elif not view.is_accepted:
            memory = replace(memory, missed_listings={}, judged_at=None)
        if view.claims_listed:
            memory = _report(memory, "claims.of_another", _claims_of_another(view), acts)
        keep = (set(withheld_reasons(standings)), on_trial(standings))
        queue = build_queue_payload(view.jobs, view.home, view.pool, BELIEVED_S, view.rules.tier, *keep)
        memory = replace(memory, largest=max((job.size for job in queue.jobs), default=0))
        acts.append(AnnounceQueue(queue))
        if view.is_accepted and view.rules.by is not PreemptType.NONE and may_preempt_any(view.jobs, view.rules, now):
            acts.append(ListDevices())
        memory = _detect_unbound(view, memory, acts)
    if view.steps is not None:
        memory = _stop_unbound(view, memory, view.steps, acts)
    if view.devices is not None:
        acts += _preempt(view, view.devices, now)
    if view.licenses_at is not None and view.licenses_at != memory.licenses_at:
        memory = replace(memory, licenses_at=view.licenses_at)
        lack = describe_missing_licenses(view.licenses, view.offer.counts)
        found = [LogWarning("gate.lacks", lack, _LACKS, is_error=True)] if lack else []
        memory = _report(memory, "gate.lacks", found, acts)
        wanted = _to_reserve(view, memory)
        memory = replace(
            memory, start_backoffs=open_trials(_queue(view), memory.start_backoffs, wanted, view.at_s, now)
        )
        if not is_reserved(view.licenses, wanted):
            acts.append(UpdateReservation(wanted, to_reserve(view.licenses, None)))
    return AgentPlan(tuple(acts), memory, judged)


def _follow_jobs(
    view: ClusterState, memory: PlanState, listed_at: float, now: Timestamp, acts: list[AgentAction]
) -> PlanState:
    """Add the consequences of a complete list of jobs for the claims known before it; return the new state."""
    known = view.claims_before.values()
    people = UserNames(view.home.cluster, {} if view.rules.private else view.jobs)
    room = plan_yields(view.jobs, known, view.home, now, view.rules.kill_wait_s, view.outcomes.not_requeueable, people)
    acts += room.warnings
    acts += [AllowRequeue(job) for job in room.allow_requeue]
    acts += [RequeueJob(job, why) for job, why in room.requeues]
    acts += [CancelJob(job, why) for job, why in room.cancels]
    stuck = [LogWarning("job.cannot_yield", why, _CANNOT_YIELD, claim) for claim, why in room.unable_to_yield.items()]
    memory = _report(memory, "job.cannot_yield", stuck, acts)
    blocking = find_blocking_jobs(view.jobs, view.claims.values(), view.offer.offered, view.licenses)
    since = {claim: memory.blocking_since.get(claim, view.at_s) for claim in blocking}
    acts += [PutBackJob(claim, job) for claim, job in blocking.items() if view.at_s - since[claim] >= ASIDE_S]
    apart_s = listed_at - memory.judged_at if memory.judged_at is not None else 0.0
    judged = review_claims(view.jobs, known, memory.missed_listings, view.home, apart_s)
    acts += map(ServeJob, judged.starts)
    for claim in known:
        if claim.owner not in view.claims:
            continue  # it was released during the listing
        why = judged.releases.get(claim.id)
        start = room.kept.get(claim.id)
        waits = start is not None and view.outcomes.requeues.get(start, 0) < TRIES_MAX  # for its job's requeue
        if why is not None and not waits:
            acts.append(ReleaseJobClaim(claim, why))
        elif claim.id in judged.lost and not view.offer.is_contested:
            acts.append(ReleaseIfJobGone(claim, judged.lost[claim.id]))
    remarked_at = memory.remarked_at if memory.remarked_at is not None else view.at_s
    if view.at_s - remarked_at >= REMARKS_S:
        remarked_at = view.at_s
        texts = plan_wait_notes(
            view.jobs, view.offer.reasons, view.outcomes.notes, now, people, withheld_reasons(memory.start_backoffs)
        )
        acts += [WriteNote(job, text) for job, text in texts]
    doubts = judged.missed_listings
    return replace(memory, judged_at=listed_at, missed_listings=doubts, blocking_since=since, remarked_at=remarked_at)


def _report(memory: PlanState, event: str, found: Sequence[LogWarning], acts: list[AgentAction]) -> PlanState:
    """Add the new reports of that event."""
    acts += [report for report in found if report not in memory.reported]
    others = {report for report in memory.reported if report.event != event}
    return replace(memory, reported=frozenset(others.union(found)))


def _claims_of_another(view: ClusterState) -> list[LogWarning]:
    names = sorted(claim.name for claim in view.claims.values() if not view.home.owns_claim(claim.owner))
    if not names:
        return []
    detail = f"{len(names)} claims of another Slurm of this name, {names[0]} among them, are left alone"
    return [LogWarning("claims.of_another", detail, _OF_ANOTHER)]


def _detect_unbound(view: ClusterState, memory: PlanState, acts: list[AgentAction]) -> PlanState:
    looked_at = memory.silence.looked_at
    if not view.is_accepted or (looked_at is not None and view.at_s - looked_at < LOOK_S):
        return memory
    found = jobs_missing_binds(view.jobs.values(), view.bound_nodes)
    if not found:
        return _stop_unbound(view, memory, (), acts)
    acts.append(ListSteps(tuple(job.job_id for job in found)))
    return replace(memory, silence=replace(memory.silence, looked_at=view.at_s))


def _stop_unbound(
    view: ClusterState, memory: PlanState, steps: Sequence[TaskStep], acts: list[AgentAction]
) -> PlanState:
    """Add the actions on nodes where tasks run that did not wait for their partition."""
    nodes = (view.nodes_with_plugin, view.nodes_gone_silent)
    silence, found = find_unbound(memory.silence, view.jobs.values(), view.bound_nodes, steps, *nodes, view.at_s)
    reports = [LogWarning("node.silent", _describe_unbound(one), _NO_PLUGIN) for one in found]
    if silence.is_widespread(view.n_nodes):
        detail = f"{len(silence.found_at)} nodes run IPU jobs and do not ask, {min(silence.found_at)} among them"
        general = [LogWarning("nodes.silent", detail, _UNREACHED, is_error=True)]
    else:
        general = []
        for one in found:
            if one.proven:
                drained = view.outcomes.drained.get((one.job.job_id, one.job.restarts), ())
                fresh = tuple(node for node in one.nodes if node not in drained)
                acts.append(StopUnboundJob(one.job, fresh, _describe_unbound(one)))
    memory = _report(replace(memory, silence=silence), "node.silent", reports, acts)
    return _report(memory, "nodes.silent", general, acts)


def _describe_unbound(silent: UnboundJob) -> str:
    nodes = join_first(silent.nodes)
    return f"tasks of job {silent.job.job_id} run on {nodes}, which did not ask for its partition"


def _preempt(view: ClusterState, devices: DeviceHolders, now: Timestamp) -> list[AgentAction]:
    found = choose_victims(view.jobs, devices.pools, devices.next_up, view.home, view.rules, now)
    if found is None:
        return []
    return [PreemptJobs(found.waiting, tuple((job, view.rules.is_requeued(job)) for job in found.victims))]


def _queue(view: ClusterState) -> WaitingJobs:
    needs = view.needs if view.rules.by is PreemptType.NONE else None
    blocking = (start_of(claim.owner) for claim in view.claims.values() if claim.id in view.memory.blocking_since)
    aside = {start.job_id for start in blocking if start is not None}
    return WaitingJobs(view.home, view.jobs, view.offer.offered, view.licenses, needs, aside, view.rules.tier)


def _to_reserve(view: ClusterState, memory: PlanState) -> dict[str, int]:
    """Return the licenses that the reservation must hold, by the offer and the lists."""
    if memory.silence.is_widespread(view.n_nodes):
        return to_reserve(view.licenses, None)
    offer, live, counted = view.offer, set(), []
    for job in view.jobs.values():
        if job.order is not None and uses_licenses(job):
            owner = JobStart.of(job, job.order).owner(view.home)
            if LICENSE in job.licenses:  # an admin may have removed them
                live.add(owner)
            settled_at = view.settled_at.get(owner)
            if settled_at is not None and settled_at <= offer.asked_at:
                counted.append(job.order.ipus)
    claims = view.claims.values()
    largest = max([memory.largest, *sizes_awaiting_devices(claims, live)])
    young = view.listed_at is not None and view.at_s - view.listed_at <= FRESH_S
    if not young or not is_reusable_by_queue(offer.held_counts, largest, alone=offer.is_sole_queue):
        return to_reserve(view.licenses, offer.counts, counted)
    bare = Counter(sizes_without_licenses(claims, live, view.releasing))
    return to_reserve(view.licenses, offer.counts, held={size: n - bare[size] for size, n in offer.held_counts.items()})
