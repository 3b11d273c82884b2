"""A job in the API's form. Here, because ``workloads`` defines jobs, and ``wire`` has plain shapes."""

from __future__ import annotations

from moorings.core.model.claims import AUTO_SIGNAL, CheckpointContract
from moorings.wire.shapes import AcceleratorsShape, ApplianceShape, CheckpointShape, JobShape, ResourcesShape
from moorings.workloads.jobs import JobSpec


def job_shape(job: JobSpec) -> JobShape:
    """``job`` for a request: complete, nothing left to look up."""
    wanted, needs, part = job.accelerators, job.resources, job.appliance
    return JobShape(
        name=job.name,
        command=job.command,
        workdir=job.workdir,
        environment=job.environment,
        tasks=job.tasks,
        accelerators=AcceleratorsShape(
            kind=wanted.kind,
            size=wanted.size,
            replicas=wanted.replicas,
            pool=wanted.pool,
            resources=wanted.resources or None,  # an earlier release does not know these: they are left out if unused
        ),
        resources=ResourcesShape(cpus=needs.cpus, memory_bytes=needs.memory_bytes, nodes=needs.nodes),
        project=job.project,
        priority=job.priority,
        time_limit_s=job.time_limit_s,
        checkpoint=checkpoint_shape(job.checkpoint),
        checkpoint_directory=job.checkpoint_directory,
        image=job.image,
        labels=job.labels or None,
        lease_s=job.lease_s,
        appliance=ApplianceShape(kind=part.kind, workflow=part.workflow) if part is not None else None,
        preemptible=job.preemptible or None,
        resume_args=job.resume_args or None,
        retries=job.retries or None,
        setup=job.setup or None,
        terminal_keep_s=job.terminal_keep_s,
        after=job.after or None,
        array=job.array or None,
    )


def checkpoint_shape(contract: CheckpointContract) -> CheckpointShape:
    """What a job promises about checkpoints."""
    return CheckpointShape(
        resumable=contract.resumable,
        warn_signal=contract.warn_signal if contract.warn_signal != AUTO_SIGNAL else None,
        warn_s=contract.warn_s,
        grace_s=contract.grace_s,
    )
