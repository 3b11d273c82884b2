"""How long an instance may be active, and how long a job is kept after its end. Pure.

Both work as in `batch/v1` Jobs, with one difference: an instance is active while it has its partition, not while it
waits for one. The time limit of its claim begins then too, and the scheduler counts on it: an instance that outlives
it delays the claims that wait for its IPUs.
"""

from __future__ import annotations

from dataclasses import replace

from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds, seconds_between
from moorings.kubernetes.ipujob.types import DEADLINE_EXCEEDED, InstanceOutcome, InstanceStatus, IPUJob
from moorings.kubernetes.proxy_api import shapes
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from moorings.wire.codec import parse_time

_IN_USE = frozenset({shapes.READY, shapes.RECLAIMING, shapes.PREPARING})  # PREPARING: also while it is being reset


def update_active_time(
    job: IPUJob, record: InstanceStatus, partition: PartitionBody | None, now: Timestamp, *, runs: bool
) -> InstanceStatus:
    """The record with the start of the instance's active time, or its length.

    Args:
        job: without a limit nothing is recorded.
        record: of the instance.
        partition: as last known; None: there is none.
        now: the time.
        runs: whether a Pod of it has not ended: then it is active, whatever the state of its partition.
    """
    if job.active_deadline_s is None or record.outcome is not None:
        return record
    if record.started_at is None:
        if partition is None or partition.state != shapes.READY:
            return record
        since = parse_time(partition.since) if partition.since else now
        return replace(record, started_at=Timestamp(min(since, now) // SECOND * SECOND))
    if runs or (partition is not None and partition.state in _IN_USE):
        return record
    return replace(
        record, started_at=None, active_seconds=record.active_seconds + int(seconds_between(record.started_at, now))
    )


def without_activity(record: InstanceStatus) -> InstanceStatus:
    """The record of a suspended instance: as in a Job, its active time starts at zero when it is resumed."""
    return replace(record, started_at=None, active_seconds=0)


def active_until(job: IPUJob, record: InstanceStatus) -> Timestamp | None:
    """When an instance reaches its limit of active time; None: that is not known yet, or it has no limit."""
    return claim_expires_at(job, record) if record.outcome is None else None


def claim_expires_at(job: IPUJob, record: InstanceStatus) -> Timestamp | None:
    """When an instance reaches the time limit of its claim, whether or not it has ended since.

    None: that is not known yet, or it has no limit.
    """
    if job.active_deadline_s is None:
        return None
    if record.started_at is not None:
        return add_seconds(record.started_at, job.active_deadline_s - record.active_seconds)
    return Timestamp(0) if record.active_seconds >= job.active_deadline_s else None


def end_at_deadline(job: IPUJob, record: InstanceStatus) -> InstanceStatus:
    """The record of an instance that was active for too long: it never starts again."""
    why = f"it was active for longer than the {job.active_deadline_s} s of spec.activeDeadlineSeconds"
    return replace(record, outcome=InstanceOutcome.FAILED, detail=why, reason=DEADLINE_EXCEEDED)


def time_left_s(job: IPUJob, instance: int) -> float | None:
    """The longest time for which an instance needs a partition; None: no limit is known."""
    if job.active_deadline_s is None:
        return None
    record = job.status.instances.get(instance, InstanceStatus())
    return float(max(job.active_deadline_s - record.active_seconds, 1))


def ttl_expires_at(job: IPUJob) -> Timestamp | None:
    """When a job that has ended is deleted; None: it has not ended, or it is kept for ever."""
    if job.ttl_s_after_finished is None or job.status.completed_at is None:
        return None
    return add_seconds(job.status.completed_at, job.ttl_s_after_finished)
