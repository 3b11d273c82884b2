"""IPUJobs, Pods and partitions as values, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.kubernetes.ipujob.types import FINALIZER, CleanPodPolicy, IPUJob, IPUJobStatus, JobKind, RestartType
from moorings.kubernetes.proxy_api.shapes import READY, PartitionBody
from moorings.wire.shapes import BindingBody, GcdBody

START = Timestamp(1_790_000_000 * SECOND)
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "resnet"}},
    "spec": {
        "containers": [
            {"name": "resnet", "image": "resnet:latest", "env": [{"name": "POPLAR_LOG_LEVEL", "value": "INFO"}]}
        ]
    },
}


def build_job(kind: JobKind = JobKind.TRAINING, **changes: Any) -> IPUJob:
    """A job of one instance with one worker and one IPU, already with its finalizer."""
    job = IPUJob(
        namespace="default",
        name="sample",
        uid="uid-1",
        generation=1,
        resource_version="1",
        created_at=START,
        deleted=False,
        finalizers=(FINALIZER,),
        kind=kind,
        command=("mpirun", "hostname") if kind is JobKind.TRAINING else (),
        args=(),
        launcher={},
        ttl_s=60 if kind is JobKind.INTERACTIVE else None,
        instances=1,
        ipus=1,
        workers=1,
        replicas=1,
        template=TEMPLATE,
        restart_policy=RestartType.NEVER,
        backoff_limit=3,
        clean_pod_policy=CleanPodPolicy.NONE,
        release_on_finish=True,
        priority=0,
        status=IPUJobStatus(),
    )
    return replace(job, **changes)


def build_partition(job: IPUJob, instance: int = 0, state: str = READY, **changes: Any) -> PartitionBody:
    """The partition of an instance; with a binding if it is READY."""
    name = f"{job.name}-{instance}"
    gcds = tuple(GcdBody(gcd=number, devices=(f"a{number}",)) for number in range(job.workers))
    api = {"IPUOF_VIPU_API_HOST": "pod1", "IPUOF_VIPU_API_PORT": "8090", "IPUOF_VIPU_API_PARTITION_ID": name}
    body = PartitionBody(
        namespace=job.namespace,
        job=job.name,
        uid=job.uid,
        instance=instance,
        state=state,
        ipus=job.ipus,
        name=name,
        controller="pod1:8090",
        node_selector={"ipunode": "pod1"},
        binding=BindingBody(partition=name, api=api, gcds=gcds) if state == READY else None,
    )
    return replace(body, **changes)
