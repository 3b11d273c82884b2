"""A job as the API takes it. Here, because what a job is belongs to ``workloads``, and ``wire`` holds plain shapes."""

from __future__ import annotations

from moorings.wire.shapes import AcceleratorsShape, CheckpointShape, JobShape, ResourcesShape
from moorings.workloads.jobs import JobSpec


def job_shape(job: JobSpec) -> JobShape:
    """``job`` as it is sent: complete, nothing left to look up."""
    wanted, needs, contract = job.accelerators, job.resources, job.checkpoint
    return JobShape(
        name=job.name,
        command=job.command,
        workdir=job.workdir,
        environment=job.environment,
        tasks=job.tasks,
        accelerators=AcceleratorsShape(kind=wanted.kind, size=wanted.size, replicas=wanted.replicas, pool=wanted.pool),
        resources=ResourcesShape(cpus=needs.cpus, memory_bytes=needs.memory_bytes, nodes=needs.nodes),
        project=job.project,
        priority=job.priority,
        time_limit_s=job.time_limit_s,
        checkpoint=CheckpointShape(
            resumable=contract.resumable,
            warn_signal=contract.warn_signal,
            warn_s=contract.warn_s,
            grace_s=contract.grace_s,
        ),
        checkpoint_directory=job.checkpoint_directory,
        image=job.image,
    )
