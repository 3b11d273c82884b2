"""Conditions of an IPUJob in kubebuilder's style: ``Ready``, ``Admitted`` and ``Finished``. Pure.

They stand beside the vendor's conditions, one for each state that the job has had. ``kubectl wait`` reads them. A
reason is one word with a fixed meaning: it changes only with the needed action; the message changes with every detail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moorings.core.instants import Timestamp
from moorings.kubernetes.ipujob import Condition, IPUJob
from moorings.kubernetes.plan import COMPLETED, ENDED, JobPartitions, PlannedInstance
from moorings.kubernetes.pods import RUNNING, Pod
from moorings.kubernetes.proxy import shapes

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
    known = partitions.known
    lacking = [number for number, one in live.items() if not _is_granted(one, known.get(number))]
    if not lacking:
        return _ConditionStatus(True, "Granted", "every instance was granted its partition")
    first = live[lacking[0]]
    count = f"; {len(live) - len(lacking)} of {len(live)} instances have theirs" if len(live) > 1 else ""
    holds = None if first.code == "proxy" else False
    return _ConditionStatus(holds, reason_of(first.code or "partition"), first.waits + count)


def _is_granted(one: PlannedInstance, partition: shapes.PartitionBody | None) -> bool:
    """Whether an instance has its partition; an instance with Pods has one, even while the proxy does not list it."""
    return one.standing if partition is None else partition.state in _GRANTED


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
    waiting = [one for one in live.values() if not one.running]
    if waiting:
        return _ConditionStatus(False, reason_of(waiting[0].code), message)
    late = [pod for pod in pods if pod.instance in live and pod.phase == RUNNING and not pod.ready]
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
