"""Makes the status of an IPUJob from its plan, and Events from the changes of its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Literal

from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.ipujob.pods import FAILED as POD_FAILED
from moorings.kubernetes.ipujob.pods import RUNNING as POD_RUNNING
from moorings.kubernetes.ipujob.pods import SUCCEEDED, Pod
from moorings.kubernetes.ipujob.types import COMPLETED, ENDED, FAILED, Condition, InstanceOutcome, IPUJob, IPUJobStatus
from moorings.kubernetes.operator.estimates import latest_start
from moorings.kubernetes.operator.plan import HOLDS_NOTHING, JobPartitions, JobPlan, PlannedInstance
from moorings.kubernetes.proxy_api import shapes

PENDING, RUNNING, RESTARTING = "Pending", "Running", "Restarting"
SUSPENDED = "Suspended"

ALL_WELL = "Successfully reconciled IPUJob"
ALL_DONE = "All instances done"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An Event of the job: ``Normal`` or ``Warning``, a reason and a sentence."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def build_status(
    job: IPUJob, plan: JobPlan, pods: Sequence[Pod], partitions: JobPartitions, now: Timestamp, problem: str = ""
) -> IPUJobStatus:
    """The status that a job should have.

    Args:
        job: with its present status.
        plan: its plan.
        pods: its Pods.
        partitions: its partitions.
        now: the time.
        problem: what failed, as a sentence; it comes before all other messages.
    """
    before = job.status
    if plan.deleting is not None:
        message = problem or plan.deleting or before.message
        conditions = before.conditions if before.state in ENDED else not_ready_conditions(job, "Deleting", message, now)
        return replace(before, message=message, conditions=conditions)
    workers = [pod for pod in pods if not pod.is_launcher]
    launchers = {pod.instance: pod for pod in pods if pod.is_launcher}
    state = before.state if before.state in ENDED else _state(job, plan.instances)
    message = problem or _message(job, state, plan.instances)
    standing = [one for one in plan.instances.values() if one.has_pods and one.record.outcome is None]
    starts_at, certainty = latest_start(
        partitions.by_instance[number] for number in plan.instances if number in partitions.by_instance
    )
    held = [one for one in partitions.by_instance.values() if one.state == shapes.READY]
    return IPUJobStatus(
        state=state,
        current=len(standing),
        desired=before.desired if before.state in ENDED else job.instances,  # scaling does not restart an ended job
        message=message,
        conditions=(
            *_state_conditions(job, state, _reason(state, plan.instances), message, now),
            *build_conditions(job, state, message, plan.instances, pods, partitions, now),
        ),
        partition_created=bool(held or standing),
        launcher=launchers[min(launchers)].phase if launchers else before.launcher,
        restart_count=sum(one.record.restarts for one in plan.instances.values()),
        starts_at=starts_at,
        certainty=certainty or "",
        started_at=before.started_at or now,
        completed_at=(before.completed_at or now) if state in ENDED else None,
        active=sum(not pod.has_ended for pod in pods),
        ready=sum(pod.phase == SUCCEEDED or (pod.ready and not pod.deleting) for pod in pods),
        workers_active=sum(pod.phase == POD_RUNNING and not pod.deleting for pod in workers),
        workers_succeeded=sum(pod.phase == SUCCEEDED for pod in workers),
        workers_failed=sum(pod.phase == POD_FAILED for pod in workers),
        observed_generation=job.generation,
        instances=plan.records,
    )


def is_same_but_messages(one: IPUJobStatus, other: IPUJobStatus) -> bool:
    """Whether only messages differ: a waiting job has many of them, and they may be written a little later."""
    conditions = list(map(_MEANT, one.conditions)) == list(map(_MEANT, other.conditions))
    return conditions and _BESIDE(one) == _BESIDE(other)


def build_events(before: IPUJobStatus, after: IPUJobStatus) -> list[JobEvent]:
    """The Events for the change between two statuses."""
    events = []
    for number, record in after.instances.items():
        was = before.instances.get(number)
        if after.state == SUSPENDED and record.outcome is None:
            continue  # the Event of its restart comes later
        if record.restarts > (was.restarts if was is not None else 0):
            why = f" ({record.detail})" if record.detail else ""
            events.append(
                JobEvent("Warning" if record.detail else "Normal", "Restarting", f"instance {number} starts anew{why}")
            )
        elif record.outcome is InstanceOutcome.FAILED and (was is None or was.outcome is not InstanceOutcome.FAILED):
            events.append(
                JobEvent("Warning", record.reason or "InstanceFailed", f"instance {number} failed: {record.detail}")
            )
        if record.start.missed > (was.start.missed if was is not None else 0):
            message = f"instance {number} gives its partition back: {record.start.why}"
            events.append(JobEvent("Warning", "StartDeadlineExceeded", message))
    admitted, admitted_before = find_condition(after.conditions, ADMITTED), find_condition(before.conditions, ADMITTED)
    reason_before = admitted_before.reason if admitted_before is not None else ""
    if admitted is not None and admitted.reason == PROJECT_LIMIT != reason_before:
        events.append(JobEvent("Warning", PROJECT_LIMIT, admitted.message))
    if SUSPENDED in (before.state, after.state) and before.state != after.state and after.state not in ENDED:
        reason = SUSPENDED if after.state == SUSPENDED else "Resumed"
        events.append(JobEvent("Normal", reason, after.message))
    if after.state != before.state and after.state in (RUNNING, COMPLETED):
        events.append(JobEvent("Normal", after.state, after.message))
    return events


def _state(job: IPUJob, instances: Mapping[int, PlannedInstance]) -> str:
    live = [one for one in instances.values() if one.record.outcome is None]
    if instances and not live:
        return FAILED if any(one.record.outcome is InstanceOutcome.FAILED for one in instances.values()) else COMPLETED
    if job.suspended:
        return SUSPENDED
    if live and all(one.has_pods for one in live) and any(one.is_running for one in live):
        return RUNNING
    return RESTARTING if any(one.restarting for one in live) else PENDING


def _message(job: IPUJob, state: str, instances: Mapping[int, PlannedInstance]) -> str:
    failed = {number: one for number, one in instances.items() if one.record.outcome is InstanceOutcome.FAILED}
    if state == COMPLETED:
        return ALL_DONE
    if state == SUSPENDED:
        return next(
            (one.message for one in instances.values() if one.message not in ("", HOLDS_NOTHING)), HOLDS_NOTHING
        )
    if not instances and state == FAILED and job.instances:
        return "it was refused when it was first looked at, and stays so: delete the job and create it again"
    if not instances:
        return "no instance is wanted: it is scaled to 0"
    if failed:
        first = min(failed)
        detail = "; ".join(filter(None, (failed[first].record.detail, failed[first].message)))
        return detail if len(instances) == 1 else f"{len(failed)} of {len(instances)} instances failed: {detail}"
    waiting = [one for one in instances.values() if one.message and (one.code or not one.has_pods)]
    if state == RUNNING and not waiting:
        return ALL_WELL
    waiting = waiting or [one for one in instances.values() if one.message]
    waiting.sort(key=lambda one: one.has_pods)  # instances without a partition before those that only start
    message = waiting[0].message if waiting else "waiting for its Pods"
    running = sum(one.is_running for one in instances.values())
    return message if job.instances == 1 else f"{message}; {running} of {job.instances} instances running"


def _state_conditions(job: IPUJob, state: str, reason: str, message: str, now: Timestamp) -> tuple[Condition, ...]:
    """One condition for each state that the job has had; that of the present state is true."""
    words = {
        PENDING: "is waiting for resources to be ready." if message in ("", ALL_WELL) else f"is pending: {message}.",
        RUNNING: "is running.",
        RESTARTING: f"is restarting: {message}.",
        SUSPENDED: f"is suspended: {message}.",
        COMPLETED: "has completed.",
        FAILED: f"has failed: {message}.",
    }
    found = []
    for one in job.status.conditions:
        if one.type in TYPES:
            continue
        if one.type == state:
            text = f"IPUJob {job.key} {words[state]}"
            if not one.status or one.message != text:
                changed_at = one.changed_at if one.status else now
                one = replace(one, status=True, message=text, changed_at=changed_at, updated_at=now)
        elif one.status:
            one = replace(one, status=False, changed_at=now, updated_at=now)
        found.append(one)
    if all(one.type != state for one in found):
        text = f"IPUJob {job.key} {words[state]}"
        found.append(Condition(type=state, status=True, reason=reason, message=text, changed_at=now, updated_at=now))
    return tuple(found)


def _reason(state: str, instances: Mapping[int, PlannedInstance]) -> str:
    reasons = [one.record.reason for one in instances.values() if one.record.reason] if state == FAILED else []
    return reasons[0] if reasons else f"IPUJob{state}"


# All but messages: of a condition, and of a status beside its conditions.
_MEANT = attrgetter(*(one.name for one in fields(Condition) if one.name not in ("message", "updated_at")))
_BESIDE = attrgetter(*(one.name for one in fields(IPUJobStatus) if one.name not in ("message", "conditions")))


# -- conditions --------------------------------------------------------------------------------------------------------
# Conditions of an IPUJob in kubebuilder's style: ``Ready``, ``Admitted`` and ``Finished``. They stand beside the
# vendor's conditions, one for each state that the job has had. ``kubectl wait`` reads them. A reason is one word with
# a fixed meaning: it changes only with the needed action; the message changes with every detail.

READY, ADMITTED, FINISHED = "Ready", "Admitted", "Finished"
TYPES = frozenset({READY, ADMITTED, FINISHED})

PROJECT_LIMIT = "ProjectLimit"
QUEUED = "Queued"
STARTING = "PodsStarting"

_GRANTED = frozenset({shapes.PREPARING, shapes.READY})
_REASONS = {
    "": STARTING,
    "pods": STARTING,
    "restart": "Restarting",
    "refused": "PodsRefused",
    "start": "StartDeadlineExceeded",
    "node": "NodeNotReady",
    "proxy": "ProxyUnreachable",
    "claim": "Requested",
    "partition": "Requested",
    "partition.waiting": "Requested",
    "partition.resetting": "PartitionPreparing",
    "controller.none": "NoController",
    "controller.unreachable": "ControllerUnreachable",
    "pool.unreachable": "ControllerUnreachable",
    "project.limit": PROJECT_LIMIT,
    "claim.reclaiming": "MakingRoom",
    "lost": "PartitionLost",
    "claim.lost": "PartitionLost",
}
_QUEUES = ("pool.", "queue.", "project.", "claim.")  # codes that mean a place in a queue


@dataclass(frozen=True, slots=True)
class _ConditionStatus:
    holds: bool | None  # None: unknown
    reason: str
    message: str


def build_conditions(
    job: IPUJob,
    state: str,
    message: str,
    instances: Mapping[int, PlannedInstance],
    pods: Sequence[Pod],
    partitions: JobPartitions,
    now: Timestamp,
) -> tuple[Condition, ...]:
    """The three conditions.

    Args:
        job: with its present conditions.
        state: its STATUS.
        message: its LASTMESSAGE.
        instances: the planned instances, by number.
        pods: of the job.
        partitions: of the job.
        now: the time.
    """
    live = {number: one for number, one in instances.items() if one.record.outcome is None}
    if state in ENDED:
        admitted = _admitted_before(job, state, message)
        ready = _ConditionStatus(False, state, message)
        finished = _ConditionStatus(True, state, message)
    else:
        admitted = _admitted(live, partitions)
        ready = _ready(live, pods, admitted, message)
        ended = len(instances) - len(live)
        finished = _ConditionStatus(False, "NotFinished", f"{ended} of {len(instances)} instances have ended")
    return (
        _condition(job, READY, ready, now),
        _condition(job, ADMITTED, admitted, now),
        _condition(job, FINISHED, finished, job.status.completed_at or now),
    )


def not_ready_conditions(job: IPUJob, reason: str, message: str, now: Timestamp) -> tuple[Condition, ...]:
    """All conditions of a job that is no longer Ready, for a reason that no other field shows."""
    ready = _condition(job, READY, _ConditionStatus(False, reason, message), now)
    return (*(one for one in job.status.conditions if one.type != READY), ready)


def reason_of(code: str) -> str:
    """The CamelCase reason of a code; ``partition.preparing`` is ``PartitionPreparing``."""
    if code in _REASONS:
        return _REASONS[code]
    if code.startswith(_QUEUES):
        return QUEUED
    return "".join(word[:1].upper() + word[1:] for word in code.replace("_", ".").split("."))


def find_condition(conditions: Sequence[Condition], kind: str) -> Condition | None:
    """The condition of that type."""
    return next((one for one in conditions if one.type == kind), None)


def _admitted(live: Mapping[int, PlannedInstance], partitions: JobPartitions) -> _ConditionStatus:
    """Whether every instance was granted its partition."""
    if not live:
        return _ConditionStatus(False, "ScaledToZero", "no instance is wanted")
    known = partitions.by_instance
    lacking = [number for number, one in live.items() if not _is_granted(one, known.get(number))]
    if not lacking:
        return _ConditionStatus(True, "Granted", "every instance was granted its partition")
    first = live[lacking[0]]
    count = f"; {len(live) - len(lacking)} of {len(live)} instances have theirs" if len(live) > 1 else ""
    holds = None if first.code == "proxy" else False
    return _ConditionStatus(holds, reason_of(first.code or "partition"), first.message + count)


def _is_granted(one: PlannedInstance, partition: shapes.PartitionBody | None) -> bool:
    """Whether an instance has its partition; an instance with Pods has one, even while the proxy does not list it."""
    return one.has_pods if partition is None else partition.state in _GRANTED


def _admitted_before(job: IPUJob, state: str, message: str) -> _ConditionStatus:
    """The Admitted condition of a job that has ended: whether it was ever admitted."""
    before = find_condition(job.status.conditions, ADMITTED)
    if before is not None and before.status:
        return _ConditionStatus(True, before.reason, before.message)
    ran = state == COMPLETED or any(one.type == RUNNING for one in job.status.conditions)  # of an earlier release
    if before is None and ran:
        return _ConditionStatus(True, "Granted", "every instance was granted its partition")
    return _ConditionStatus(False, state, message)


def _ready(
    live: Mapping[int, PlannedInstance], pods: Sequence[Pod], admitted: _ConditionStatus, message: str
) -> _ConditionStatus:
    """Whether every instance runs, and every running Pod is Ready."""
    if not live:
        return _ConditionStatus(False, admitted.reason, admitted.message)
    if not admitted.holds:
        return _ConditionStatus(False, "NotAdmitted", admitted.message)
    waiting = [one for one in live.values() if not one.is_running]
    if waiting:
        return _ConditionStatus(False, reason_of(waiting[0].code), message)
    late = [pod for pod in pods if pod.instance in live and pod.phase == POD_RUNNING and not pod.ready]
    if late:
        return _ConditionStatus(False, "PodsNotReady", f"waiting for {late[0].name} to be ready")
    return _ConditionStatus(True, "Running", "every instance runs")


def _condition(job: IPUJob, kind: str, verdict: _ConditionStatus, now: Timestamp) -> Condition:
    before = find_condition(job.status.conditions, kind)
    found = Condition(
        type=kind,
        status=verdict.holds,
        reason=verdict.reason,
        message=verdict.message,
        changed_at=now if before is None or before.status is not verdict.holds else before.changed_at,
        observed_generation=job.generation,
    )
    # A definition of an earlier release drops the generation: this alone is no reason to write it repeatedly.
    if before is not None and job.status.observed_generation == job.generation:
        same = replace(found, observed_generation=before.observed_generation)
        return before if same == before else found
    return found
