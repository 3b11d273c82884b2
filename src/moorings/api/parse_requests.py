"""Requests from wire shapes to core types: a claim's specification, a job.

Field by field: the two sides may drift apart, and mypy finds a line that no longer fits. Nothing is checked here
(``bodies`` did, and the controller will).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from moorings.core.model.claims import AUTO_SIGNAL, CheckpointContract, ClaimId, ClaimSpec, QueueMode
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import DefragmentPool
from moorings.core.model.projects import Project, ProjectShare, UserLimit
from moorings.core.model.queue_reports import QueuedJob
from moorings.core.model.timestamps import Timestamp
from moorings.ports.personal import ListedJob, ReportedFile, ReportedOutput, RunReport
from moorings.wire.codec import parse_time
from moorings.wire.forecasts import DefragmentRequest
from moorings.wire.shapes import (
    CheckpointRequest,
    CheckpointShape,
    ClaimRequest,
    EstimateRequest,
    JobShape,
    PartitionRequest,
    ProjectRequest,
    QueueRequest,
    RunReportRequest,
    SlurmJobShape,
    SubmitterShape,
)
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from moorings.workloads.runs import RunId, Submitter

_NO_TIME_GIVEN = Timestamp(1 << 62)  # the caller replaces it by the current time


def claim_spec(request: ClaimRequest) -> ClaimSpec:
    """The claim in ``POST /v1/claims``."""
    return ClaimSpec(
        kind=request.accelerator,
        size=request.size,
        gcds=request.gcds,
        replicas_per_gcd=request.replicas_per_gcd,
        pool=_pool(request.pool),
        resources=dict(request.resources),
        project=request.project,
        priority=request.priority,
        time_limit_s=request.time_limit_s,
        preemptible=request.preemptible,
        checkpoint=_contract(request.checkpoint),
        lease_s=request.lease_s,
        queue=QueueMode(request.queue),
        person=request.person or "",
    )


def partition_spec(request: PartitionRequest) -> ClaimSpec:
    """The claim in ``POST /v1/partitions``: it has no end, as its owner will release it."""
    return ClaimSpec(
        kind=request.accelerator,
        size=request.size,
        gcds=request.gcds,
        replicas_per_gcd=request.replicas_per_gcd,
        pool=_pool(request.pool),
    )


def job_spec(shape: JobShape) -> JobSpec:
    """The job in ``POST /v1/runs``."""
    wanted, resources, part = shape.accelerators, shape.resources, shape.appliance
    return JobSpec(
        name=shape.name,
        command=tuple(shape.command),
        workdir=shape.workdir,
        environment=dict(shape.environment),
        tasks=shape.tasks,
        accelerators=Accelerators(wanted.kind, wanted.size, wanted.replicas, wanted.pool, dict(wanted.resources or {})),
        resources=Resources(resources.cpus, resources.memory_bytes, resources.nodes),
        project=shape.project,
        priority=shape.priority,
        time_limit_s=shape.time_limit_s,
        checkpoint=_contract(shape.checkpoint),
        checkpoint_directory=shape.checkpoint_directory,
        image=shape.image,
        labels=dict(shape.labels or {}),
        lease_s=shape.lease_s,
        appliance=WorkflowPart(ApplianceJobType(part.kind), part.workflow) if part is not None else None,
        preemptible=bool(shape.preemptible),
        resume_args=shape.resume_args or (),
        retries=shape.retries or 0,
        setup=shape.setup or (),
        terminal_keep_s=shape.terminal_keep_s,
        after=shape.after or (),
        array=shape.array or "",
    )


def estimate_spec(request: EstimateRequest) -> ClaimSpec:
    """The claim in ``POST /v1/estimate``."""
    return ClaimSpec(
        kind=request.kind,
        size=request.size,
        gcds=request.gcds,
        pool=_pool(request.pool),
        project=request.project,
        priority=request.priority,
        time_limit_s=request.time_limit_s,
        preemptible=request.preemptible,
    )


def defragment_input(request: DefragmentRequest) -> DefragmentPool:
    """The block to free in ``POST /v1/defragment``.

    Raises:
        MooringsError: ``claim.size_not_allowed``: it names both a size and a claim, or neither.
    """
    if (request.size is None) == (request.claim is None):
        raise MooringsError(
            "claim.size_not_allowed", "either size or claim is needed", hint="room is made for one of them"
        )
    return DefragmentPool(
        size=request.size or 0,
        pool=_pool(request.pool),
        claim=ClaimId(request.claim) if request.claim is not None else None,
        cost_max=float(request.cost_max_s) if request.cost_max_s is not None else None,
    )


def project_from(name: str, request: ProjectRequest) -> Project:
    """The project in ``PUT /v1/projects/{project}``."""
    return Project(
        name=name,
        shares=tuple(
            ProjectShare(PoolName(share.pool), tuple((int(size), count) for size, count in share.blocks.items()))
            for share in request.shares
        ),
        weight=request.weight,
        devices_max=request.devices_max,
        user_devices_max=request.user_devices_max,
        priority_max=request.priority_max,
        waiting_max=request.waiting_max,
        waiting_bytes_max=request.waiting_bytes_max,
        members=tuple(request.members),
        aliases=tuple(request.aliases),
        admins=tuple(request.admins or ()),
        open=bool(request.open),
        user_limits=tuple(UserLimit(subject, most) for subject, most in (request.user_limits or {}).items()),
    )


def queued_jobs(request: QueueRequest) -> Sequence[QueuedJob]:
    """The jobs in ``POST /v1/queues``; a job without a time waits from now on.

    Raises:
        MooringsError: ``queue.invalid``: a time is malformed.
    """
    return [
        QueuedJob(
            owner=job.owner,
            spec=ClaimSpec(
                kind=request.accelerator,
                size=job.size,
                gcds=job.gcds,
                replicas_per_gcd=job.replicas_per_gcd,
                pool=_pool(job.pool),
                time_limit_s=job.time_limit_s,
                project=job.project,
                preemptible=bool(job.preemptible),
            ),
            since=_since(job.since),
        )
        for job in request.jobs
    ]


def waiting_since(request: ClaimRequest) -> Timestamp | None:
    """The time from which the job of a claim waits; None: from now on.

    Raises:
        MooringsError: ``claim.invalid``: the time is malformed.
    """
    return _claim_time(request.waiting_since)


def checkpoint_at(request: CheckpointRequest) -> Timestamp | None:
    """The time of the checkpoint in ``POST /v1/claims/{id}/checkpoint``; None: now.

    Raises:
        MooringsError: ``claim.invalid``: the time is malformed.
    """
    return _claim_time(request.at)


def _claim_time(text: str | None) -> Timestamp | None:
    try:
        return parse_time(text) if text is not None else None
    except MooringsError as error:
        raise MooringsError("claim.invalid", error.detail, hint=error.hint) from error


def _since(text: str | None) -> Timestamp:
    if text is None:
        return _NO_TIME_GIVEN
    try:
        return parse_time(text)
    except MooringsError as error:
        raise MooringsError("queue.invalid", error.detail, hint=error.hint) from error


def _pool(name: str | None) -> PoolName | None:
    return None if name is None else PoolName(name)


def _contract(shape: CheckpointShape) -> CheckpointContract:
    return CheckpointContract(shape.resumable, shape.warn_signal or AUTO_SIGNAL, shape.warn_s, shape.grace_s)


def submitter(shape: SubmitterShape | None) -> Submitter | None:
    """The person who submits a run to another scheduler."""
    return Submitter(shape.uid, shape.token_digest) if shape is not None else None


def run_report(request: RunReportRequest) -> RunReport:
    """The report in ``POST /v1/runs/{id}/report``.

    Raises:
        MooringsError: ``report.invalid``.
    """
    return RunReport(
        attempt=request.attempt,
        files=[ReportedFile(each.name, each.text, _time_of(each.modified_at)) for each in request.files],
        present=request.present,
        output=[ReportedOutput(each.task, each.offset, _bytes(each.data)) for each in request.output],
        job=listed_job(request.job) if request.job is not None else None,
        is_abandoned=request.abandoned,
    )


def listed_job(shape: SlurmJobShape) -> ListedJob:
    """A job in a listing.

    Raises:
        MooringsError: ``report.invalid``.
    """
    return ListedJob(
        run=RunId(shape.run),
        attempt=shape.attempt,
        job_id=shape.job,
        uid=shape.uid,
        state=shape.state,
        reason=shape.reason,
        restarts=shape.restarts,
        exit_code=shape.exit_code,
        exit_signal=shape.exit_signal,
        was_started=shape.started,
        ended_at=_time_of(shape.ended_at) if shape.ended_at is not None else None,
    )


def _time_of(text: str) -> Timestamp:
    try:
        return parse_time(text)
    except MooringsError as error:
        raise MooringsError("report.invalid", error.detail, hint=error.hint) from error


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise MooringsError("report.invalid", "output.data is no Base64") from error
