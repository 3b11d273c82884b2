"""What is read of Pods, from what kubelets really report."""

from __future__ import annotations

from typing import Any

import pytest

from moorings.app.kubernetes_operator import job_key_of
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.pods import FAILED, PENDING, RUNNING, SUCCEEDED, Pod, parse_pod, trim_pod
from tests.cases import cases


def pod(status: dict[str, Any], *containers: str, **meta: Any) -> Pod:
    labels = {
        names.JOB: "job",
        names.INSTANCE: "1",
        names.ROLE: names.WORKER_ROLE,
        names.WORKER: "3",
        names.RESTART: "2",
    }
    annotations = {names.PARTITION: "job-1", "other": "x"}
    metadata = {"name": "p", "namespace": "n", "uid": "u", "labels": labels, "annotations": annotations, **meta}
    found = {"metadata": metadata, "spec": {"containers": [{"name": name} for name in containers]}, "status": status}
    whole, trimmed = parse_pod(found), parse_pod(trim_pod(found))
    assert whole == trimmed
    assert whole is not None
    return whole


def ended(code: int, **more: Any) -> dict[str, Any]:
    return {"name": "main", "state": {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z", **more}}}


def test_labels_tell_which_one_it_is() -> None:
    found = pod({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
    assert (found.instance, found.worker, found.restart, found.partition) == (1, 3, 2, "job-1")
    assert (found.phase, found.ready, found.deleting, found.has_ended) == (RUNNING, True, False, False)
    assert pod({}).phase == PENDING
    assert pod({}, deletionTimestamp="2026-01-01T00:00:00Z").deleting


@pytest.mark.parametrize(
    "labels", [{}, {names.INSTANCE: "x"}, {names.INSTANCE: "0", names.ROLE: names.WORKER_ROLE}, None]
)
def test_a_pod_with_other_labels_is_not_ours(labels: dict[str, str] | None) -> None:
    assert parse_pod({"metadata": {"name": "p", "uid": "u", "labels": labels}}) is None


@pytest.mark.parametrize(("label", "keys"), [("train", ("n/train",)), ("", ())])
def test_the_job_that_it_belongs_to_is_looked_at(label: str, keys: tuple[str, ...]) -> None:
    """A label may be empty; with no name every partition of the cluster would be looked at."""
    assert job_key_of({"metadata": {"name": "p", "namespace": "n", "labels": {names.JOB: label}}}) == keys


ASKING = {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}
DONE = {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]}


@pytest.mark.parametrize(
    ("status", "mark", "proxy", "outdated"),
    [
        (ASKING, None, "b", True),
        (ASKING, "a", "b", True),
        ({}, "a", "b", True),
        (ASKING, "b", "b", False),
        (ASKING, None, "", False),
        (DONE, "a", "b", False),
        ({"phase": "Running"}, "a", "b", False),
        ({"phase": "Failed"}, "a", "b", False),
    ],
)
def test_a_launcher_that_has_yet_to_ask_the_proxy_is_outdated_by_another_proxy(
    status: dict[str, Any], mark: str | None, proxy: str, outdated: bool
) -> None:
    labels = {names.INSTANCE: "0", names.ROLE: names.LAUNCHER_ROLE}
    annotations = {names.PROXY: mark} if mark else None
    metadata = {"name": "p", "namespace": "n", "uid": "u", "labels": labels, "annotations": annotations}
    found = {"metadata": metadata, "spec": {}, "status": status}
    for one in (found, trim_pod(found)):
        read = parse_pod(one, proxy)
        assert read is not None
        assert read.has_stale_proxy is outdated
    assert pod(status).has_stale_proxy is False, "a worker asks nobody"


@cases(
    ("status", "code", "why"),
    [
        ({"phase": "Failed", "containerStatuses": [ended(3, reason="Error")]}, 3, "exit code 3"),
        ({"phase": "Failed", "containerStatuses": [ended(137, reason="OOMKilled")]}, 137, "exit code 137 (OOMKilled)"),
        ({"phase": "Succeeded", "containerStatuses": [ended(0, reason="Completed")]}, 0, "exit code 0"),
        (
            {"phase": "Failed", "initContainerStatuses": [ended(121, message="no\n proxy")], "containerStatuses": []},
            121,
            "init container main: exit code 121 (no proxy)",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, None, "Evicted: low on memory"),
        ({"phase": "Failed"}, None, "it was ended from outside"),
        (
            {"phase": "Failed", "containerStatuses": [ended(255, reason="Unknown")]},
            None,
            "its end is unknown: its node was lost",
        ),
        (
            {"phase": "Failed", "containerStatuses": [ended(137, reason="ContainerStatusUnknown")]},
            None,
            "its end is unknown: its node was lost",
        ),
    ],
)
def test_how_it_ended(status: dict[str, Any], code: int | None, why: str) -> None:
    found = pod(status)
    assert found.has_ended
    assert found.phase in (FAILED, SUCCEEDED)
    assert (found.exit_code, found.reason_text) == (code, why)


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
def test_a_pod_whose_program_still_runs_has_not_ended_whatever_its_phase(kind: str) -> None:
    """Past its deadline, or evicted, a Pod is Failed at once, and its containers have their grace period then."""
    found = pod({"phase": "Failed", "reason": "DeadlineExceeded", kind: [{"name": "a", "state": {"running": {}}}]})
    assert not found.has_ended


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                ]
            },
            "Unschedulable: 0/1 nodes",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such\nimage"}}}]},
            "ErrImagePull: no such image",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "E", "message": "a lookup " * 40}}}]},
            "E:" + " a lookup" * 17 + " a…",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "E", "message": "x" * 400}}}]},
            "E: " + "x" * 157 + "…",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({}, ""),
    ],
)
def test_what_it_waits_for(status: dict[str, Any], why: str) -> None:
    assert pod({"phase": "Pending", **status}).reason_text == why


def test_the_first_container_of_a_pod_decides_however_kubelet_sorts_them() -> None:
    sidecar = {**ended(0), "name": "a-sidecar"}
    assert pod({"phase": "Failed", "containerStatuses": [sidecar, ended(7)]}, "main", "a-sidecar").exit_code == 7
    assert pod({"phase": "Succeeded", "containerStatuses": [sidecar, ended(0)]}, "main", "a-sidecar").exit_code == 0


def test_what_looks_at_checkpoints_decides_nothing() -> None:
    beside = {**ended(137, reason="OOMKilled"), "name": "task-checkpoints"}
    found = pod({"phase": "Failed", "containerStatuses": [{**ended(0), "name": "task"}, beside]}, "task")
    assert (found.phase, found.exit_code) == (SUCCEEDED, 0)
    found = pod({"phase": "Failed", "containerStatuses": [{**ended(3), "name": "task"}, beside]}, "task")
    assert (found.phase, found.exit_code) == (FAILED, 3)
