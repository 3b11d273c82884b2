"""How long an instance may be active, and how long a job is kept when it has ended. Pure.

Both as `batch/v1` Jobs have it, but for one thing: an instance is active while it has its partition, not while it waits
for one. That is also when the time limit of its claim begins, which the queue reckons with: an instance that outlived
it would delay whoever was promised its IPUs.
"""

from __future__ import annotations

from dataclasses import replace

from moorings.core.instants import SECOND, Timestamp, add_seconds, seconds_between
from moorings.kubernetes.ipujob import InstanceOutcome, InstanceStatus, IPUJob
from moorings.kubernetes.proxy import shapes
from moorings.kubernetes.proxy.shapes import PartitionBody
from moorings.wire.codec import parse_time

DEADLINE_EXCEEDED = "DeadlineExceeded"  # a Job's reason
_IN_USE = frozenset({shapes.READY, shapes.RECLAIMING, shapes.PREPARING})  # PREPARING: also while it is being cleaned


def update_active_time(
    job: IPUJob, record: InstanceStatus, partition: PartitionBody | None, now: Timestamp, *, runs: bool
) -> InstanceStatus:
    """The record with when the instance became active, or how long it was.

    Args:
        job: without a limit nothing is noted.
        record: of the instance.
        partition: as it is known; None: there is none.
        now: the time.
        runs: whether a Pod of it has not ended: then it is active, whatever became of its partition.
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
    """The record of an instance that is suspended: as a Job's, its time begins anew when it is resumed."""
    return replace(record, started_at=None, active_seconds=0)


def active_until(job: IPUJob, record: InstanceStatus) -> Timestamp | None:
    """When an instance has been active for as long as it may; None: that cannot be told yet, or it has no limit."""
    return claim_expires_at(job, record) if record.outcome is None else None


def claim_expires_at(job: IPUJob, record: InstanceStatus) -> Timestamp | None:
    """When an instance has held its partition for as long as its claim said, whether or not it has ended since.

    None: that cannot be told yet, or it has no limit.
    """
    if job.active_deadline_s is None:
        return None
    if record.started_at is not None:
        return add_seconds(record.started_at, job.active_deadline_s - record.active_seconds)
    return Timestamp(0) if record.active_seconds >= job.active_deadline_s else None


def end_at_deadline(job: IPUJob, record: InstanceStatus) -> InstanceStatus:
    """The record of an instance that has been active for too long: nothing starts it anew."""
    why = f"it was active for longer than the {job.active_deadline_s} s of spec.activeDeadlineSeconds"
    return replace(record, outcome=InstanceOutcome.FAILED, detail=why, reason=DEADLINE_EXCEEDED)


def time_left_s(job: IPUJob, instance: int) -> float | None:
    """For how long an instance wants a partition at most; None: no limit is known."""
    if job.active_deadline_s is None:
        return None
    record = job.status.instances.get(instance, InstanceStatus())
    return float(max(job.active_deadline_s - record.active_seconds, 1))


def ttl_expires_at(job: IPUJob) -> Timestamp | None:
    """When a job that has ended is to be deleted; None: it has not, or it is kept for ever."""
    if job.ttl_s_after_finished is None or job.status.completed_at is None:
        return None
    return add_seconds(job.status.completed_at, job.ttl_s_after_finished)
