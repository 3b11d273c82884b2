"""What an operator that is started on a recorded state of a cluster decides, in words that outlive the code's names.

A recording holds a job with its Pods and nodes as the API server had them, and its partitions as the proxy told them;
see ``kube_record``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.engine.run_folder import KubernetesRunFolder
from moorings.kubernetes.ipujob.parsing import status_object
from moorings.kubernetes.ipujob.pods import Pod, parse_pod
from moorings.kubernetes.ipujob.types import IPUJob, needs_service
from moorings.kubernetes.operator.actions import (
    AcquirePartition,
    AddFinalizer,
    CleanPartition,
    CreateLauncher,
    CreateWorker,
    DeleteJob,
    DeletePod,
    DropFinalizer,
    EnsureJobObjects,
    FencePartition,
    JobAction,
    ReleasePartition,
    YieldPartition,
)
from moorings.kubernetes.operator.node_health import parse_not_ready
from moorings.kubernetes.operator.plan import JobPartitions, plan
from moorings.kubernetes.operator.pod_builder import (
    PodOptions,
    build_config,
    build_launcher,
    build_launcher_rbac,
    build_service,
    build_worker,
)
from moorings.kubernetes.operator.reconcile_state import ParsedJob
from moorings.kubernetes.operator.reconciler import worker_selector
from moorings.kubernetes.operator.status import build_status
from moorings.kubernetes.proxy_api.shapes import READY, PartitionBody
from moorings.wire.operations import parse_body

KUBE = Path(__file__).with_name("kubernetes")


def options_of(recording: Mapping[str, Any]) -> PodOptions:
    """How Pods were made there."""
    return PodOptions(proxy_url=recording["proxy_url"], proxy_ca=recording["proxy_ca"], host_network=False)


def decide(recording: Mapping[str, Any]) -> dict[str, Any]:
    """What an operator does about a job, and the status that it would have."""
    options, now = options_of(recording), Timestamp(recording["now"])
    job = ParsedJob().read(recording["job"], options.start_deadline_s)
    pods = [pod for one in recording["pods"] if (pod := parse_pod(one, options.proxy_hash)) is not None]
    assert len(pods) == len(recording["pods"]), "a Pod of the release is not taken for one of ours"
    known = {one["instance"]: parse_body(PartitionBody)(one) for one in recording["partitions"]}
    silent = {one["metadata"]["name"]: told for one in recording["nodes"] if (told := parse_not_ready(one)) is not None}
    partitions = JobPartitions(known, is_complete=True, is_watched=True)
    planned = plan(job, pods, partitions, now, None, None, silent)
    status = build_status(job, planned, pods, partitions, now)
    return {
        "acts": [neutral(act) for act in planned.acts],
        "save_first": planned.save_status_first,
        "again_s": planned.requeue_after_s,
        "deleting": planned.deleting,
        "status": {**status_object(status), "selector": worker_selector(job.name)},
        "pods": [_told(pod) for pod in pods],
        "objects": _objects(job, known, options) if recording["builds"] else [],
    }


def _told(pod: Pod) -> dict[str, Any]:
    """A Pod as it was read."""
    return {
        "name": pod.name,
        "instance": pod.instance,
        "worker": pod.worker,
        "restart": pod.restart,
        "partition": pod.partition,
        "phase": pod.phase,
        "deleting": pod.deleting,
        "exit_code": pod.exit_code,
        "outdated": pod.has_stale_proxy,
        "node": pod.node,
    }


def _objects(job: IPUJob, known: Mapping[int, PartitionBody], options: PodOptions) -> Sequence[Any]:
    """All that is made for the first instance of a job."""
    partition = known[0]
    assert partition.state == READY
    found: list[Any] = []
    if job.has_launcher:
        found += [
            build_config(job),
            *build_launcher_rbac(job),
            build_launcher(job, 0, 0, partition, options, reset=True),
        ]
    if needs_service(job):
        found.append(build_service(job))
    return [*found, *(build_worker(job, number, 0, partition, options) for number in range(job.workers))]


def neutral(act: JobAction) -> list[Any]:
    """An act as a kind and what it is done to."""
    match act:
        case AddFinalizer():
            return ["add finalizer"]
        case DropFinalizer():
            return ["drop finalizer"]
        case DeleteJob():
            return ["delete job"]
        case AcquirePartition(instance):
            return ["claim", instance]
        case ReleasePartition(instance):
            return ["release", instance]
        case FencePartition(instance, nodes):
            return ["fence", instance, sorted(nodes)]
        case CleanPartition(instance):
            return ["reset", instance]
        case YieldPartition(instance):
            return ["yield", instance]
        case EnsureJobObjects():
            return ["ensure beside"]
        case CreateWorker(number, restart):
            return ["create worker", number, restart]
        case CreateLauncher(instance, restart, reset):
            return ["create launcher", instance, restart, reset]
        case DeletePod(name, _, grace_s):
            return ["delete pod", name, grace_s]


def read_run(recording: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What the folder of a recorded run of the engine says."""
    for name, text in recording["files"].items():
        path = folder / recording["run"] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    attempt = KubernetesRunFolder(folder / recording["run"]).newest_attempt()
    assert attempt is not None
    facts = attempt.read_state()
    return {
        "asked": to_plain(facts.asked),
        "alive": facts.alive,
        "stop": to_plain(facts.stop) if facts.stop is not None else None,
        "warned": attempt.has_warned(""),
        "end": to_plain(facts.end) if facts.end is not None else None,
        "tasks": {str(rank): to_plain(task) for rank, task in sorted(attempt.tasks().items())},
    }
