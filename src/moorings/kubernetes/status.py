"""Makes the status of an IPUJob from its plan, and Events from the changes of its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Literal

from moorings.core.instants import Timestamp
from moorings.kubernetes.conditions import (
    ADMITTED,
    PROJECT_LIMIT,
    TYPES,
    build_conditions,
    find_condition,
    not_ready_conditions,
)
from moorings.kubernetes.estimates import latest_start
from moorings.kubernetes.ipujob import Condition, InstanceOutcome, IPUJob, IPUJobStatus
from moorings.kubernetes.plan import COMPLETED, ENDED, FAILED, HOLDS_NOTHING, JobPartitions, JobPlan, PlannedInstance
from moorings.kubernetes.pods import FAILED as POD_FAILED
from moorings.kubernetes.pods import RUNNING as POD_RUNNING
from moorings.kubernetes.pods import SUCCEEDED, Pod
from moorings.kubernetes.proxy import shapes

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
    standing = [one for one in plan.instances.values() if one.standing and one.record.outcome is None]
    starts_at, certainty = latest_start(
        partitions.known[number] for number in plan.instances if number in partitions.known
    )
    held = [one for one in partitions.known.values() if one.state == shapes.READY]
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
        active=sum(not pod.ended for pod in pods),
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
    told = []
    for number, record in after.instances.items():
        was = before.instances.get(number)
        if after.state == SUSPENDED and record.outcome is None:
            continue  # the Event of its restart comes later
        if record.restarts > (was.restarts if was is not None else 0):
            why = f" ({record.detail})" if record.detail else ""
            told.append(
                JobEvent("Warning" if record.detail else "Normal", "Restarting", f"instance {number} starts anew{why}")
            )
        elif record.outcome is InstanceOutcome.FAILED and (was is None or was.outcome is not InstanceOutcome.FAILED):
            told.append(
                JobEvent("Warning", record.reason or "InstanceFailed", f"instance {number} failed: {record.detail}")
            )
        if record.start.missed > (was.start.missed if was is not None else 0):
            message = f"instance {number} gives its partition back: {record.start.why}"
            told.append(JobEvent("Warning", "StartDeadlineExceeded", message))
    admitted, admitted_before = find_condition(after.conditions, ADMITTED), find_condition(before.conditions, ADMITTED)
    reason_before = admitted_before.reason if admitted_before is not None else ""
    if admitted is not None and admitted.reason == PROJECT_LIMIT != reason_before:
        told.append(JobEvent("Warning", PROJECT_LIMIT, admitted.message))
    if SUSPENDED in (before.state, after.state) and before.state != after.state and after.state not in ENDED:
        reason = SUSPENDED if after.state == SUSPENDED else "Resumed"
        told.append(JobEvent("Normal", reason, after.message))
    if after.state != before.state and after.state in (RUNNING, COMPLETED):
        told.append(JobEvent("Normal", after.state, after.message))
    return told


def _state(job: IPUJob, instances: Mapping[int, PlannedInstance]) -> str:
    live = [one for one in instances.values() if one.record.outcome is None]
    if instances and not live:
        return FAILED if any(one.record.outcome is InstanceOutcome.FAILED for one in instances.values()) else COMPLETED
    if job.suspended:
        return SUSPENDED
    if live and all(one.standing for one in live) and any(one.running for one in live):
        return RUNNING
    return RESTARTING if any(one.restarting for one in live) else PENDING


def _message(job: IPUJob, state: str, instances: Mapping[int, PlannedInstance]) -> str:
    failed = {number: one for number, one in instances.items() if one.record.outcome is InstanceOutcome.FAILED}
    if state == COMPLETED:
        return ALL_DONE
    if state == SUSPENDED:
        return next((one.waits for one in instances.values() if one.waits not in ("", HOLDS_NOTHING)), HOLDS_NOTHING)
    if not instances and state == FAILED and job.instances:
        return "it was refused when it was first looked at, and stays so: delete the job and create it again"
    if not instances:
        return "no instance is wanted: it is scaled to 0"
    if failed:
        first = min(failed)
        detail = "; ".join(filter(None, (failed[first].record.detail, failed[first].waits)))
        return detail if len(instances) == 1 else f"{len(failed)} of {len(instances)} instances failed: {detail}"
    waiting = [one for one in instances.values() if one.waits and (one.code or not one.standing)]
    if state == RUNNING and not waiting:
        return ALL_WELL
    waiting = waiting or [one for one in instances.values() if one.waits]
    waiting.sort(key=lambda one: one.standing)  # instances without a partition before those that only start
    told = waiting[0].waits if waiting else "waiting for its Pods"
    running = sum(one.running for one in instances.values())
    return told if job.instances == 1 else f"{told}; {running} of {job.instances} instances running"


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
