"""Pods on nodes that do not answer: told of, and where the job asks for it given up, partition first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.kubernetes.ipujob.pods import RUNNING, SUCCEEDED, Pod
from moorings.kubernetes.ipujob.types import CleanPodPolicy, InstanceOutcome, IPUJob, JobKind, RestartType
from moorings.kubernetes.operator.actions import AcquirePartition, DeletePod, FencePartition, ReleasePartition
from moorings.kubernetes.operator.node_health import NotReadyNode, parse_not_ready, trim_node
from moorings.kubernetes.operator.plan import JobPartitions, JobPlan, plan
from moorings.kubernetes.operator.status import build_status
from moorings.kubernetes.proxy_api import shapes
from moorings.wire.codec import format_time
from tests.unit.kubernetes.jobs import START, build_job, build_partition

LOST_S = 300
LATE = add_seconds(START, LOST_S)
SILENT = {"node1": NotReadyNode(START)}
NOBODY = JobPartitions(is_complete=True, is_watched=True)
FENCE = FencePartition(0, frozenset({"node1"}))


def pod(job: IPUJob, number: int, node: str, phase: str = RUNNING, **changes: Any) -> Pod:
    name = f"{job.name}-worker-{number}" if number >= 0 else f"{job.name}-launcher"
    found = Pod(name, f"uid-{name}", 0, number, 0, f"{job.name}-0", phase, True, False, node=node)
    return replace(found, **changes)


def held(job: IPUJob, **changes: Any) -> JobPartitions:
    return JobPartitions({0: build_partition(job, **changes)}, is_complete=True, is_watched=True)


def look(
    job: IPUJob,
    pods: list[Pod],
    partitions: JobPartitions,
    now: Timestamp = LATE,
    silent: dict[str, NotReadyNode] | None = None,
) -> tuple[IPUJob, JobPlan, str]:
    found = plan(job, pods, partitions, now, silent=SILENT if silent is None else silent)
    status = build_status(job, found, pods, partitions, now)
    return replace(job, status=status), found, status.message


def test_a_node_that_does_not_answer_is_named_with_the_time() -> None:
    job = build_job(JobKind.INFERENCE)
    job, found, message = look(job, [pod(job, 0, "node1")], held(job), add_seconds(LATE, 1e6))
    assert found.acts == (), "nobody asked for more"
    assert found.requeue_after_s is None
    assert job.status.state == "Running"
    assert message == "node node1 with sample-worker-0 has not answered since 2026-09-21 14:13:20 UTC"
    going = pod(job, 0, "node1", deleting=True)
    _, _, message = look(job, [going], held(job), silent={"node1": NotReadyNode(START, kubelet_reports=True)})
    assert message == (
        "waiting for sample-worker-0, which is being deleted, to be gone; "
        "node node1 with sample-worker-0 has not been Ready since 2026-09-21 14:13:20 UTC"
    )
    _, _, message = look(replace(job, deleted=True), [going], held(job))
    told = "node node1 with sample-worker-0 has not answered since 2026-09-21 14:13:20 UTC"
    assert message == f"deleted; waiting for sample-worker-0 to end: {told}"


def test_before_its_time_a_job_says_when_it_is_given_up() -> None:
    job = build_job(JobKind.INFERENCE, node_lost_s=LOST_S)
    _, found, message = look(job, [pod(job, 0, "node1")], held(job), add_seconds(START, 100))
    assert (found.acts, found.requeue_after_s) == ((), 200)
    assert message.endswith("since 2026-09-21 14:13:20 UTC; it is given up at 2026-09-21 14:18:20 UTC")


@pytest.mark.parametrize("kind", [JobKind.TRAINING, JobKind.INFERENCE])
def test_other_pods_then_the_partition_then_the_lost_pods_then_it_starts_elsewhere(kind: JobKind) -> None:
    job = build_job(kind, workers=2, ipus=2, node_lost_s=LOST_S, restart_policy=RestartType.ON_FAILURE)
    lost, other = pod(job, 0, "node1", deleting=True), pod(job, -1 if job.has_launcher else 1, "node2")
    job, found, message = look(job, [lost, other], held(job))
    assert found.save_status_first
    assert found.acts == (DeletePod(other.name, other.uid),)
    told = "node node1 with sample-worker-0 has not answered since 2026-09-21 14:13:20 UTC"
    assert message.startswith(f"its partition is removed before anything starts anew: {told}")
    job, found, _ = look(job, [lost], held(job))
    assert found.acts == (FENCE,)
    job, found, _ = look(job, [lost], held(job, state=shapes.RELEASING, code=shapes.GIVEN_BACK))
    assert found.acts == ()
    job, found, _ = look(job, [lost], JobPartitions())
    assert found.acts == (), "a controller that does not answer may still have it"
    job, found, _ = look(job, [lost], NOBODY)
    assert found.acts == (DeletePod(lost.name, lost.uid, 0),)
    job, found, _ = look(job, [], NOBODY)
    assert found.acts == (AcquirePartition(0),)
    assert (job.status.restart_count, job.status.instances[0].failures) == (1, 1)


@pytest.mark.parametrize("clean", list(CleanPodPolicy))
def test_without_a_restart_it_fails_and_holds_nothing(clean: CleanPodPolicy) -> None:
    job = build_job(JobKind.INFERENCE, node_lost_s=LOST_S, clean_pod_policy=clean)
    lost = pod(job, 0, "node1")
    job, found, _ = look(job, [lost], held(job))
    assert found.acts == (FENCE,)
    assert job.status.instances[0].outcome is InstanceOutcome.FAILED
    _, found, message = look(job, [lost], NOBODY)
    assert found.acts == (DeletePod(lost.name, lost.uid, 0),)
    assert message.startswith("node node1 with sample-worker-0 has not answered since")


def test_what_failed_for_another_reason_says_what_holds_its_partition_and_is_looked_at_when_that_is_lost() -> None:
    job = build_job(JobKind.INFERENCE, node_lost_s=LOST_S, active_deadline_s=60)
    ready = held(job, since=format_time(START))
    job, _, _ = look(job, [pod(job, 0, "node1")], ready, START)
    job, found, message = look(job, [pod(job, 0, "node1")], ready, add_seconds(START, 60))
    assert found.requeue_after_s == LOST_S - 60
    assert message == (
        "it was active for longer than the 60 s of spec.activeDeadlineSeconds; node node1 with sample-worker-0 has not "
        "answered since 2026-09-21 14:13:20 UTC; it is given up at 2026-09-21 14:18:20 UTC"
    )
    _, found, _ = look(job, [pod(job, 0, "node1", deleting=True)], ready)
    assert found.acts == (FENCE,)


def test_a_suspended_job_on_a_lost_node_says_what_is_done() -> None:
    job = build_job(JobKind.INFERENCE, node_lost_s=LOST_S, suspended=True)
    job, _, _ = look(job, [pod(job, 0, "node1")], held(job), add_seconds(START, 100))
    job, found, message = look(job, [pod(job, 0, "node1", deleting=True)], held(job))
    assert found.acts == (FENCE,)
    assert message.startswith("its partition is removed before anything starts anew; node node1 with")


def test_a_node_that_is_back_in_time_costs_nothing() -> None:
    job = build_job(JobKind.INFERENCE, node_lost_s=LOST_S)
    _, found, message = look(job, [pod(job, 0, "node1")], held(job), silent={})
    assert (found.acts, message) == ((), "Successfully reconciled IPUJob")


def test_one_that_is_back_after_its_failure_was_counted_has_its_pod_deleted_as_ever() -> None:
    job = build_job(JobKind.INFERENCE, node_lost_s=LOST_S, restart_policy=RestartType.ON_FAILURE)
    lost = pod(job, 0, "node1")
    job, _, _ = look(job, [lost], held(job))
    _, found, _ = look(job, [lost], held(job), silent={})
    assert found.acts == (DeletePod(lost.name, lost.uid),)


def test_what_was_done_before_its_workers_node_was_lost_is_done() -> None:
    job = build_job(node_lost_s=LOST_S)
    pods = [pod(job, 0, "node1"), pod(job, -1, "node2", SUCCEEDED, exit_code=0)]
    job, found, _ = look(job, pods, held(job))
    assert job.status.state == "Completed"
    assert found.acts == (ReleasePartition(0),)


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "scaled-down"])
def test_a_job_that_goes_is_not_held_by_a_lost_node(deleted: bool) -> None:
    job = build_job(JobKind.INFERENCE, node_lost_s=LOST_S, deleted=deleted, instances=int(deleted))
    lost = pod(job, 0, "node1", deleting=True)
    assert look(job, [lost], held(job), add_seconds(START, 100))[1].requeue_after_s == 200
    assert look(job, [lost], held(job))[1].acts == (FENCE,)
    assert look(job, [lost], NOBODY)[1].acts == (DeletePod(lost.name, lost.uid, 0),)


@pytest.mark.parametrize("status", ["False", "Unknown", "True", ""])
def test_what_a_node_says_of_itself(status: str) -> None:
    other = {"type": "DiskPressure", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    ready = {"type": "Ready", "status": status, "lastTransitionTime": "2026-09-21T14:13:20Z"}
    node = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {}}, "spec": {"podCIDR": "x"}}
    node["status"] = {"conditions": [other, ready] if status else [other], "images": [{}]}
    expected = {"False": NotReadyNode(START, kubelet_reports=True), "Unknown": NotReadyNode(START)}.get(status)
    assert parse_not_ready(node) == expected
    trimmed = trim_node(node)
    assert parse_not_ready(trimmed) == expected
    assert trimmed["metadata"] == {"name": "n", "uid": "u", "resourceVersion": "1"}
    assert "images" not in trimmed["status"]


def test_of_a_node_that_never_said_when_nothing_is_known() -> None:
    assert parse_not_ready({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}) is None
    assert parse_not_ready({}) is None
