"""What a cluster's agent does next: a function of what was listed, what is claimed and offered, and ``now``.

Level-triggered: it may be asked at any moment, and goes on from what it finds. A list of jobs and a list of licenses
are each acted on once, for what is missing from a list is counted; ``PlanState`` says which were. Of the two clocks the
loop's, in seconds, measures what lies apart (a wall clock that jumps must end nothing); ``now`` is for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.core.instants import Timestamp
from moorings.core.reconcile import Streak
from moorings.slurm.formats import LICENSE, JobRecord, License
from moorings.slurm.host.gate import (
    QueueOffer,
    describe_missing_licenses,
    is_reserved,
    is_reusable_by_queue,
    sizes_awaiting_devices,
    sizes_without_licenses,
    to_reserve,
)
from moorings.slurm.host.ledger import (
    ClusterIdentity,
    JobStart,
    build_queue_payload,
    review_claims,
    start_of,
    uses_licenses,
)
from moorings.slurm.host.preempt import choose_victims, may_preempt_any
from moorings.slurm.host.reclaim import UserNames, WarnJob, find_blocking_jobs, plan_wait_notes, plan_yields
from moorings.slurm.host.silent import LOOK_S, UnboundJob, UnboundNodes, find_unbound, jobs_missing_binds
from moorings.slurm.host.tiers import PreemptionRules, PreemptType
from moorings.slurm.host.withheld import (
    StartBackoff,
    WaitingJobs,
    on_trial,
    open_trials,
    update_backoffs,
    withheld_reasons,
)
from moorings.slurm.listings import join_first
from moorings.slurm.needs import NodeRequirements
from moorings.slurm.steps import TaskStep
from moorings.wire.shapes import ClaimBody, DeviceBody, PoolBody, QueueRequest

FRESH_S = 5.0  # an older list says nothing: ids come again when slurmctld has lost its state
BELIEVED_S = 120.0  # what is announced of the queue is believed for so long
REMARKS_S = 10.0  # between two looks at what waiting jobs are told
ASIDE_S = 5.0  # for so long a job must have stood in another's way: starts and listings pass each other
TRIES_MAX = 3  # to put a job back that has ended by itself, and to let one be requeued that may not
_CANNOT_YIELD = "it is warned, and cancelled when its time is over; with requeue=1 it would go on later"
_LACKS = "moor slurm install --plan shows the line"
_NO_PLUGIN = "'moor slurm doctor' on the node tells; then 'scontrol update nodename=... state=resume'"
_UNREACHED = "is the agent's port reached from the nodes? IPU jobs wait until these jobs are over; no node is drained"
_OF_ANOTHER = "if that Slurm is gone for good, 'moor slurm doctor' lists them and 'moor delete claim' ends them"


@dataclass(frozen=True, slots=True)
class DeviceHolders:
    """Who holds which devices, as the controller answered.

    Attributes:
        pools: those that jobs of the cluster may be placed in, with their devices.
        next_up: by pool, the owner of the job that gets what becomes free there next.
    """

    pools: Sequence[tuple[PoolBody, Sequence[DeviceBody]]]
    next_up: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOutcomes:
    """What came of earlier acts on jobs; a start is a job's number and its restarts.

    Attributes:
        locked: starts that Slurm does not let be requeued.
        requeues: how often a requeue of a start was tried.
        drained: by start, the nodes that were drained for it: an admin who resumes one is not overruled.
        notes: by job, what was written into its AdminComment last, and when.
    """

    locked: frozenset[tuple[int, int]] = frozenset()
    requeues: Mapping[tuple[int, int], int] = field(default_factory=dict)
    drained: Mapping[tuple[int, int], frozenset[str]] = field(default_factory=dict)
    notes: Mapping[int, tuple[str, Timestamp]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """What one plan leaves for the next.

    Attributes:
        listed_at: of the last list of jobs that was acted on.
        licenses_at: of the last list of licenses that was acted on.
        judged_at: of the last list by which claims were judged; None: none.
        doubts: claims of which that list knew nothing, by owner.
        blocking_since: by claim, since when its job holds the licenses of one for which devices are kept.
        largest: the size of the largest job announced.
        standings: of jobs that did not start when they could, or cannot, by the owner of the next claim.
        remarked_at: when waiting jobs were last told why.
        silence: of nodes that did not ask.
        reported: what was reported and is so still.
    """

    listed_at: float | None = None
    licenses_at: float | None = None
    judged_at: float | None = None
    doubts: Mapping[str, Streak] = field(default_factory=dict)
    blocking_since: Mapping[str, float] = field(default_factory=dict)
    largest: int = 0
    standings: Mapping[str, StartBackoff] = field(default_factory=dict)
    remarked_at: float | None = None
    silence: UnboundNodes = field(default_factory=UnboundNodes)
    reported: frozenset[LogWarning] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All that a plan is made from. Times are the loop's, in seconds.

    Attributes:
        home: whose jobs they are.
        pool: to place jobs in; empty: any of the kind.
        at_s: when this was put together.
        jobs: the last good list: all IPU jobs that have not ended, and those of claims that Slurm still knows.
        listed_at: when it was asked for; None: there was none.
        claims_before: claims that were known before that list was asked for, by owner; what came since is not judged.
        accepted: whether the controller had believed this Slurm and told its claims by then, and believes it now; else
            they may be another one's claims.
        claims: the unended claims, by owner.
        claims_listed: whether that is all there is.
        releasing: ids of claims that are being released.
        settled_at: by owner, since when a start has its claim or is known to get none.
        offer: of the controller.
        licenses: as last listed.
        licenses_at: when they were listed; None: never.
        rules: of preemption.
        needs: what the jobs need of nodes; None: that is not known.
        devices: who holds which; None: that was not asked for.
        asked: the nodes that have asked for a start's partition; starts of which that is not known are missing.
        steps: of the jobs of which not every node has asked; None: that was not asked for.
        plugged: nodes whose slurmd reports that it has the plugin.
        lapsed: nodes whose slurmd reported and does so no more.
        n_nodes: of the cluster.
        outcomes: what came of earlier acts.
        memory: of the plan before.
    """

    home: ClusterIdentity
    pool: str = ""
    at_s: float = 0.0
    jobs: Mapping[int, JobRecord] = field(default_factory=dict)
    listed_at: float | None = None
    claims_before: Mapping[str, ClaimBody] = field(default_factory=dict)
    accepted: bool = False
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
    asked: Mapping[JobStart, frozenset[str]] = field(default_factory=dict)
    steps: Sequence[TaskStep] | None = None
    plugged: frozenset[str] = frozenset()
    lapsed: frozenset[str] = frozenset()
    n_nodes: int = 0
    outcomes: ActionOutcomes = field(default_factory=ActionOutcomes)
    memory: PlanState = field(default_factory=PlanState)


@dataclass(frozen=True, slots=True)
class ServeJob:
    """Claim a partition for a started job, and have its binding ready."""

    job: JobRecord


@dataclass(frozen=True, slots=True)
class ReleaseJobClaim:
    """Release a claim: its start is over."""

    claim: ClaimBody
    why: str


@dataclass(frozen=True, slots=True)
class ReleaseIfJobGone:
    """Release a claim, unless Slurm, asked for that very job, knows it."""

    claim: ClaimBody
    why: str


@dataclass(frozen=True, slots=True)
class AllowRequeue:
    """Let a job be requeued that may not."""

    job: JobRecord


@dataclass(frozen=True, slots=True)
class RequeueJob:
    """Put a job back into the queue."""

    job: JobRecord
    why: str


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Cancel a job, and tell its user why."""

    job: JobRecord
    why: str


@dataclass(frozen=True, slots=True)
class PutBackJob:
    """Put a job back that holds another's licenses, if its claim still has no devices; it keeps its place."""

    claim: str
    job: JobRecord


@dataclass(frozen=True, slots=True)
class WriteNote:
    """Write for people into a job's AdminComment."""

    job: JobRecord
    text: str


@dataclass(frozen=True, slots=True)
class PreemptJobs:
    """Preempt jobs for a waiting one of higher rank, in this order; the truth beside each: it is requeued."""

    waiting: JobRecord
    victims: tuple[tuple[JobRecord, bool], ...]


@dataclass(frozen=True, slots=True)
class ListDevices:
    """Ask the controller who holds which devices: a job may have to be preempted."""


@dataclass(frozen=True, slots=True)
class ListSteps:
    """Ask Slurm for the steps of these jobs: a node of theirs has not asked for their partition."""

    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopUnboundJob:
    """Drain these nodes, then put back a job that ran there without its partition; cancel one that cannot be."""

    job: JobRecord
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class AnnounceQueue:
    """Announce to the controller which jobs wait, if that is news."""

    queue: QueueRequest


@dataclass(frozen=True, slots=True)
class UpdateReservation:
    """Set what the reservation holds; ``closed``: what it holds if it must be made first."""

    licenses: Mapping[str, int]
    closed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LogWarning:
    """Log what an admin should know, once: an event with its detail and a hint, an error if ``is_error``."""

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
    """What is to be done now, and what is remembered of it; ``judged``: claims were held against the list of jobs."""

    acts: tuple[AgentAction, ...]
    memory: PlanState
    judged: bool = False


def plan(view: ClusterState, now: Timestamp) -> AgentPlan:
    """What is to be done now.

    Args:
        view: what is known.
        now: the wall clock's time.
    """
    acts: list[AgentAction] = []
    memory = view.memory
    judged = False
    if view.listed_at is not None and view.listed_at != memory.listed_at:
        judged = view.accepted and view.claims_listed
        standings = update_backoffs(_queue(view), memory.standings, view.listed_at, view.at_s, now)
        memory = replace(memory, listed_at=view.listed_at, standings=standings)
        if judged:
            memory = _follow_jobs(view, memory, view.listed_at, now, acts)
        elif not view.accepted:
            memory = replace(memory, doubts={}, judged_at=None)
        if view.claims_listed:
            memory = _report(memory, "claims.of_another", _claims_of_another(view), acts)
        keep = (set(withheld_reasons(standings)), on_trial(standings))
        queue = build_queue_payload(view.jobs, view.home, view.pool, BELIEVED_S, view.rules.tier, *keep)
        memory = replace(memory, largest=max((job.size for job in queue.jobs), default=0))
        acts.append(AnnounceQueue(queue))
        if view.accepted and view.rules.by is not PreemptType.NONE and may_preempt_any(view.jobs, view.rules, now):
            acts.append(ListDevices())
        memory = _look_for_silent(view, memory, acts)
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
        memory = replace(memory, standings=open_trials(_queue(view), memory.standings, wanted, view.at_s, now))
        if not is_reserved(view.licenses, wanted):
            acts.append(UpdateReservation(wanted, to_reserve(view.licenses, None)))
    return AgentPlan(tuple(acts), memory, judged)


def _follow_jobs(
    view: ClusterState, memory: PlanState, listed_at: float, now: Timestamp, acts: list[AgentAction]
) -> PlanState:
    """Add what a good list of jobs demands for the claims that were known before it; what is remembered then."""
    known = view.claims_before.values()
    people = UserNames(view.home.cluster, {} if view.rules.private else view.jobs)
    room = plan_yields(view.jobs, known, view.home, now, view.rules.kill_wait_s, view.outcomes.locked, people)
    acts += room.warnings
    acts += [AllowRequeue(job) for job in room.unlocks]
    acts += [RequeueJob(job, why) for job, why in room.requeues]
    acts += [CancelJob(job, why) for job, why in room.cancels]
    stuck = [LogWarning("job.cannot_yield", why, _CANNOT_YIELD, claim) for claim, why in room.stuck.items()]
    memory = _report(memory, "job.cannot_yield", stuck, acts)
    blocking = find_blocking_jobs(view.jobs, view.claims.values(), view.offer.offered, view.licenses)
    since = {claim: memory.blocking_since.get(claim, view.at_s) for claim in blocking}
    acts += [PutBackJob(claim, job) for claim, job in blocking.items() if view.at_s - since[claim] >= ASIDE_S]
    apart_s = listed_at - memory.judged_at if memory.judged_at is not None else 0.0
    judged = review_claims(view.jobs, known, memory.doubts, view.home, apart_s)
    acts += map(ServeJob, judged.starts)
    for claim in known:
        if claim.owner not in view.claims:
            continue  # it went while the list was made
        why = judged.releases.get(claim.id)
        start = room.kept.get(claim.id)
        waits = start is not None and view.outcomes.requeues.get(start, 0) < TRIES_MAX  # for its job to be requeued
        if why is not None and not waits:
            acts.append(ReleaseJobClaim(claim, why))
        elif claim.id in judged.lost and not view.offer.contested:
            acts.append(ReleaseIfJobGone(claim, judged.lost[claim.id]))
    remarked_at = memory.remarked_at if memory.remarked_at is not None else view.at_s
    if view.at_s - remarked_at >= REMARKS_S:
        remarked_at = view.at_s
        texts = plan_wait_notes(
            view.jobs, view.offer.reasons, view.outcomes.notes, now, people, withheld_reasons(memory.standings)
        )
        acts += [WriteNote(job, text) for job, text in texts]
    doubts = judged.doubts
    return replace(memory, judged_at=listed_at, doubts=doubts, blocking_since=since, remarked_at=remarked_at)


def _report(memory: PlanState, event: str, found: Sequence[LogWarning], acts: list[AgentAction]) -> PlanState:
    """Add what is new of the reports of that event."""
    acts += [report for report in found if report not in memory.reported]
    others = {report for report in memory.reported if report.event != event}
    return replace(memory, reported=frozenset(others.union(found)))


def _claims_of_another(view: ClusterState) -> list[LogWarning]:
    names = sorted(claim.name for claim in view.claims.values() if not view.home.may_judge(claim.owner))
    if not names:
        return []
    detail = f"{len(names)} claims of another Slurm of this name, {names[0]} among them, are left alone"
    return [LogWarning("claims.of_another", detail, _OF_ANOTHER)]


def _look_for_silent(view: ClusterState, memory: PlanState, acts: list[AgentAction]) -> PlanState:
    looked_at = memory.silence.looked_at
    if not view.accepted or (looked_at is not None and view.at_s - looked_at < LOOK_S):
        return memory
    found = jobs_missing_binds(view.jobs.values(), view.asked)
    if not found:
        return _stop_unbound(view, memory, (), acts)
    acts.append(ListSteps(tuple(job.job_id for job in found)))
    return replace(memory, silence=replace(memory.silence, looked_at=view.at_s))


def _stop_unbound(
    view: ClusterState, memory: PlanState, steps: Sequence[TaskStep], acts: list[AgentAction]
) -> PlanState:
    """Add what is to be done where tasks run that did not wait for their partition."""
    nodes = (view.plugged, view.lapsed)
    silence, found = find_unbound(memory.silence, view.jobs.values(), view.asked, steps, *nodes, view.at_s)
    reports = [LogWarning("node.silent", _told_of(one), _NO_PLUGIN) for one in found]
    if silence.is_general(view.n_nodes):
        told = f"{len(silence.found_at)} nodes run IPU jobs and do not ask, {min(silence.found_at)} among them"
        general = [LogWarning("nodes.silent", told, _UNREACHED, is_error=True)]
    else:
        general = []
        for one in found:
            if one.proven:
                drained = view.outcomes.drained.get((one.job.job_id, one.job.restarts), ())
                fresh = tuple(node for node in one.nodes if node not in drained)
                acts.append(StopUnboundJob(one.job, fresh, _told_of(one)))
    memory = _report(replace(memory, silence=silence), "node.silent", reports, acts)
    return _report(memory, "nodes.silent", general, acts)


def _told_of(silent: UnboundJob) -> str:
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
    """What the reservation must hold, as far as offer and lists know."""
    if memory.silence.is_general(view.n_nodes):
        return to_reserve(view.licenses, None)
    offer, live, counted = view.offer, set(), []
    for job in view.jobs.values():
        if job.order is not None and uses_licenses(job):
            owner = JobStart.of(job, job.order).owner(view.home)
            if LICENSE in job.licenses:  # an admin may have taken them
                live.add(owner)
            settled_at = view.settled_at.get(owner)
            if settled_at is not None and settled_at <= offer.asked_at:
                counted.append(job.order.ipus)
    claims = view.claims.values()
    largest = max([memory.largest, *sizes_awaiting_devices(claims, live)])
    young = view.listed_at is not None and view.at_s - view.listed_at <= FRESH_S
    if not young or not is_reusable_by_queue(offer.held, largest, alone=offer.alone):
        return to_reserve(view.licenses, offer.counts, counted)
    bare = Counter(sizes_without_licenses(claims, live, view.releasing))
    return to_reserve(view.licenses, offer.counts, held={size: n - bare[size] for size, n in offer.held.items()})
