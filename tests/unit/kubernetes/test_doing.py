"""What the API server is asked before a partition goes, for what was watched may be old."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.types import InstanceStatus, IPUJobStatus, JobKind, StartAttempts
from moorings.kubernetes.kube.api import NODE, POD, SERVICE
from moorings.kubernetes.operator.actions import EnsureJobObjects, FencePartition, ReleasePartition
from moorings.kubernetes.operator.executor import JobExecutor, UnobservedPods
from moorings.kubernetes.operator.pod_builder import PodOptions, build_worker
from moorings.kubernetes.proxy_api.shapes import RELEASING, PartitionBody, PartitionRequest
from tests.unit.kubernetes.jobs import build_job, build_partition
from tests.unit.kubernetes.objects_kept import KeptObjects

JOB = build_job(workers=2, ipus=2)
PARTITION = build_partition(JOB)
AWAY = frozenset({"node1"})


class Partitions:
    """A proxy that gives back what it is told to."""

    def __init__(self) -> None:
        self.released: list[int] = []

    async def release(self, namespace: str, job: str, uid: str, instance: int) -> PartitionBody | None:
        self.released.append(instance)
        return replace(PARTITION, state=RELEASING, binding=None)

    async def create(self, request: PartitionRequest) -> PartitionBody:
        raise NotImplementedError

    async def yield_partition(self, namespace: str, job: str, uid: str, instance: int) -> PartitionBody:
        raise NotImplementedError

    async def reset(self, namespace: str, job: str, uid: str, instance: int) -> PartitionBody:
        raise NotImplementedError


def build_node(name: str, ready: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-09-21T14:13:20Z"}
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


async def failures(act: FencePartition | ReleasePartition, nodes: dict[str, str], workers: dict[int, str]) -> list[str]:
    """The errors' codes; empty: the partition was given back.

    Args:
        act: what is done.
        nodes: by name, what they say of being Ready; none: there is no such node.
        workers: by number, their nodes.
    """
    job = replace(JOB, kind=JobKind.INFERENCE)
    kube, proxy = KeptObjects(), Partitions()
    for name, ready in nodes.items():
        kube.put(NODE, build_node(name, ready))
    for number, node in workers.items():
        pod = build_worker(job, number, 0, PARTITION, PodOptions())
        pod["metadata"]["uid"] = f"uid-{number}"
        kube.put(POD, {**pod, "spec": {"nodeName": node}, "status": {"phase": "Running"}}, job.namespace)
    doer = JobExecutor(kube, proxy, PodOptions(), lambda: True, lambda _: None, lambda _: None, lambda: 0.0)
    failed = await doer.do(job, [act], {0: PARTITION}, UnobservedPods())
    assert proxy.released == ([] if failed else [0])
    return [one.error.code for one in failed]


@pytest.mark.parametrize(
    ("nodes", "workers", "refused"),
    [
        ({"node1": "Unknown"}, {0: "node1", 1: "node1"}, False),
        ({"node1": "False"}, {0: "node1"}, False),
        ({}, {0: "node1"}, False),
        ({}, {}, False),
        ({"node1": "True"}, {0: "node1"}, True),
        ({"node1": "Unknown", "node2": "True"}, {0: "node1", 1: "node2"}, True),
        ({"node1": "Unknown", "node2": "Unknown"}, {0: "node1", 1: "node2"}, True),
    ],
    ids=["silent", "not-ready", "node-removed", "no-pods", "answers-again", "another-program-runs", "another-node"],
)
async def test_a_lost_node_is_asked_for_again_before_its_programs_lose_their_partition(
    nodes: dict[str, str], workers: dict[int, str], refused: bool
) -> None:
    assert await failures(FencePartition(0, AWAY), nodes, workers) == (["ipujob.in_use"] if refused else [])


async def test_without_that_no_partition_goes_under_a_program_whatever_its_node_says() -> None:
    assert await failures(ReleasePartition(0), {"node1": "Unknown"}, {0: "node1"}) == ["ipujob.in_use"]


@pytest.mark.parametrize(
    ("changes", "ended", "refused"),
    [
        ({"ownerReferences": []}, False, True),
        ({"labels": {}}, False, True),
        ({"ownerReferences": []}, True, False),
        ({"ownerReferences": [], "annotations": {names.PARTITION: "another"}}, False, False),
    ],
    ids=["orphaned", "labels-removed", "orphaned-and-ended", "of-another-partition"],
)
async def test_a_pod_made_for_a_partition_holds_it_whatever_was_taken_from_it(
    changes: dict[str, Any], ended: bool, refused: bool
) -> None:
    job = replace(JOB, kind=JobKind.INFERENCE)
    kube, proxy = KeptObjects(), Partitions()
    pod = build_worker(job, 0, 0, PARTITION, PodOptions())
    pod["metadata"] |= {"uid": "uid-0", **changes}
    kube.put(POD, {**pod, "status": {"phase": "Succeeded" if ended else "Running"}}, job.namespace)
    doer = JobExecutor(kube, proxy, PodOptions(), lambda: True, lambda _: None, lambda _: None, lambda: 0.0)
    failed = await doer.do(job, [ReleasePartition(0)], {0: PARTITION}, UnobservedPods())
    assert [one.error.code for one in failed] == (["ipujob.in_use"] if refused else [])
    assert proxy.released == ([] if refused else [0])


async def test_what_stands_beside_its_pods_is_made_again_after_a_start_that_it_missed() -> None:
    kube, job = KeptObjects(), replace(JOB, kind=JobKind.INFERENCE)
    doer = JobExecutor(kube, Partitions(), PodOptions(), lambda: True, lambda _: None, lambda _: None, lambda: 0.0)
    for missed in (0, 1):
        status = IPUJobStatus(instances={0: InstanceStatus(start=StartAttempts(missed=missed))})
        assert await doer.do(replace(job, status=status), [EnsureJobObjects()], {0: PARTITION}, UnobservedPods()) == []
        assert await kube.get(SERVICE, job.name, job.namespace)
        kube.objects.clear()  # by hand
