"""The operator on a real API server; what kubelets would tell is told by hand."""

from __future__ import annotations

import contextlib
import http.client
import socket
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from moorings.kubernetes.operator.create_failures import PATIENCE_S
from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.site import JOBS, Site, ipu_site, template
from tests.waiting import patient

MERGE = "application/merge-patch+json"
FINALIZER = "ipu.finalizers.graphcore.ai"
LAUNCHER = {"command": ["mpirun", "hostname"]}


def run_all(site: Site, namespace: str, *names: str) -> None:
    for name in sorted(names, reverse=True):  # workers before their launcher
        site.run_pod(namespace, name)


@pytest.mark.smoke
def test_a_training_job_from_its_making_to_its_end(site: Site, namespace: str) -> None:
    site.submit(namespace, "train", ipusPerJobInstance="4", workerPerJobInstance="2", launcher=LAUNCHER)
    pods = site.await_pods(namespace, "train", "train-launcher", "train-worker-0", "train-worker-1")
    (partition,) = site.pod.partitions()
    assert (partition["size"], partition["gcds"], partition["state"]) == (4, 2, "ACTIVE")
    assert partition["owner"].startswith(f"kubernetes/lab/{namespace}/train/")
    for number in range(2):
        container = pods[f"train-worker-{number}"]["spec"]["containers"][0]
        found = {one["name"]: one["value"] for one in container["env"]}
        assert found["IPUOF_VIPU_API_GCD_ID"] == str(number)
        assert found["IPUOF_VIPU_API_PARTITION_ID"] == partition["name"]
    assert pods["train-launcher"]["spec"]["nodeSelector"] == {"ipunode": "pod1"}
    assert site.job(namespace, "train")["metadata"]["finalizers"] == [FINALIZER]
    for kind in ("configmap/train-config", "role/train-launcher", "rolebinding/train-launcher"):
        site.cluster.kubectl("get", "-n", namespace, kind)
    run_all(site, namespace, *pods)
    status = site.await_state(namespace, "train", "Running")
    assert status["launcherStatus"] == "Running"
    assert status["workersStatus"]["active"] == 2
    assert status["iPUPartitionCreated"] is True
    site.end_pod(namespace, "train-launcher", 0)
    status = site.await_state(namespace, "train", "Completed")
    assert (status["lastMessage"], status["currentInstances"]) == ("All instances done", 0)
    site.await_empty()
    assert sorted(site.job_pods(namespace, "train")) == sorted(pods)
    site.delete(namespace, "train")
    site.cluster.wait(lambda: site.is_gone(namespace, "train"))
    site.cluster.wait(lambda: not site.job_pods(namespace, "train"))


def test_it_is_scaled_with_the_columns_that_people_know(site: Site, namespace: str) -> None:
    site.submit(namespace, "serve", ipusPerJobInstance="8")
    run_all(site, namespace, *site.await_pods(namespace, "serve", "serve-worker-0"))
    site.await_state(namespace, "serve", "Running")
    site.scale(namespace, "serve", 2)
    site.await_pods(namespace, "serve", "serve-worker-0", "serve-worker-1")
    run_all(site, namespace, "serve-worker-1")
    site.scale(namespace, "serve", 4)
    site.await_state(namespace, "serve", "Pending")
    row = site.cluster.kubectl("get", "ipujobs", "-n", namespace).splitlines()
    assert row[0].split() == ["NAME", "STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"]
    assert row[1].split()[:4] == ["serve", "Pending", "2", "4"]
    assert "waiting for a partition of 8 IPUs" in row[1]
    assert "2 of 4 instances running" in row[1]
    site.scale(namespace, "serve", 1)
    site.await_pods(namespace, "serve", "serve-worker-0")
    site.await_state(namespace, "serve", "Running")
    site.cluster.wait(lambda: len(site.pod.partitions()) == 1)
    site.scale(namespace, "serve", 0)
    site.await_empty()


def test_the_metrics_are_told_at_a_socket_for_its_own_user(site: Site, namespace: str) -> None:
    path = site.folder / "metrics.sock"
    path.touch()  # what an earlier container left
    site.stop_operator()
    site.start_operator("operator", f"--metrics-socket={path}")
    with contextlib.closing(http.client.HTTPConnection("operator")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(patient(20))
        connection.sock.connect(str(path))
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        assert b"\n# TYPE moorings_operator_jobs gauge\n" in answer.read()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_jobs_that_wait_hold_no_node_and_get_their_turn(site: Site, namespace: str) -> None:
    site.submit(namespace, "first", ipusPerJobInstance="16")
    site.await_pods(namespace, "first", "first-worker-0")
    site.submit(namespace, "second", ipusPerJobInstance="16")
    status = site.await_state(namespace, "second", "Pending")
    assert status["lastMessage"].startswith("waiting for a partition of 16 IPUs")
    assert site.job_pods(namespace, "second") == {}
    site.delete(namespace, "first")
    site.await_pods(namespace, "second", "second-worker-0")


@pytest.mark.parametrize(("policy", "code", "restarts"), [("OnFailure", 1, True), ("ExitCode", 2, False)])
def test_a_failure_is_started_anew_or_not(site: Site, namespace: str, policy: str, code: int, restarts: bool) -> None:
    site.submit(namespace, "job", restartPolicy={"type": policy, "backOffLimit": 1})
    site.await_pods(namespace, "job", "job-worker-0")
    site.run_pod(namespace, "job-worker-0")
    site.await_state(namespace, "job", "Running")
    uid = site.job_pods(namespace, "job")["job-worker-0"]["metadata"]["uid"]
    site.end_pod(namespace, "job-worker-0", code)
    if restarts:
        site.await_another(namespace, "job", "job-worker-0", uid)
        site.run_pod(namespace, "job-worker-0")
        status = site.await_state(namespace, "job", "Running")
        assert status["restartCount"] == 1
        site.end_pod(namespace, "job-worker-0", code)
    status = site.await_state(namespace, "job", "Failed")
    assert f"job-worker-0 failed: exit code {code}" in status["lastMessage"]
    site.await_empty()


def test_a_pod_deleted_by_hand_is_made_again_on_the_same_partition(site: Site, namespace: str) -> None:
    site.submit(namespace, "job")
    before = site.await_pods(namespace, "job", "job-worker-0")["job-worker-0"]["metadata"]["uid"]
    (partition,) = site.pod.partitions()
    site.cluster.kubectl("delete", "pod", "-n", namespace, "job-worker-0")
    site.await_another(namespace, "job", "job-worker-0", before)
    assert [one["id"] for one in site.pod.partitions()] == [partition["id"]]


def test_a_stranger_with_the_name_of_a_pod_is_left_alone_and_told_of(site: Site, namespace: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job-worker-0"}, "spec": template()["spec"]}
    stranger = site.cluster.api("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    site.submit(namespace, "job")
    site.cluster.wait(
        lambda: "there is a Pod job-worker-0 already" in site.status(namespace, "job").get("lastMessage", "")
    )
    found = site.cluster.api("GET", f"/api/v1/namespaces/{namespace}/pods/job-worker-0")
    assert found["metadata"]["uid"] == stranger["metadata"]["uid"]
    site.cluster.kubectl("delete", "pod", "-n", namespace, "job-worker-0")
    site.await_pods(namespace, "job", "job-worker-0")


def test_pods_over_a_quota_keep_no_partition_from_others(site: Site, namespace: str) -> None:
    """A tenant that may have no Pods does not block those who may."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    site.cluster.api("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    site.cluster.wait(
        lambda: site.cluster.get("resourcequota", "few", namespace).get("status", {}).get("hard") == {"pods": "1"}
    )
    site.submit(namespace, "two", ipusPerJobInstance="16", workerPerJobInstance="2")
    site.cluster.wait(lambda: "exceeded quota: few" in site.status(namespace, "two").get("lastMessage", ""))
    assert site.pod.partitions()
    site.cluster.wait(lambda: "exceeded quota: few" in events(site, namespace, "two").get("FailedCreate", ""))
    other = site.cluster.make_namespace("other")
    site.submit(other, "first", ipusPerJobInstance="16")
    site.await_pods(other, "first", "first-worker-0", timeout=PATIENCE_S * 3)
    assert site.job_pods(namespace, "two") == {}
    assert site.status(namespace, "two")["status"] == "Pending"
    told = "without a partition for now, because its Pods are refused"
    site.cluster.wait(lambda: told in site.status(namespace, "two")["lastMessage"])
    site.delete(other, "first")
    site.delete(namespace, "two")
    site.await_empty()


@pytest.mark.parametrize("phase", ["pending", "provisioning", "running"])
def test_a_job_deleted_at_any_time_leaves_nothing(site: Site, namespace: str, phase: str) -> None:
    if phase == "pending":
        site.submit(namespace, "blocker", ipusPerJobInstance="16")
        site.await_pods(namespace, "blocker", "blocker-worker-0")
    site.submit(namespace, "job", ipusPerJobInstance="4")
    if phase == "pending":
        site.await_state(namespace, "job", "Pending")
        site.delete(namespace, "blocker")
    elif phase == "running":
        site.await_pods(namespace, "job", "job-worker-0")
        site.run_pod(namespace, "job-worker-0")
        site.await_state(namespace, "job", "Running")
    site.delete(namespace, "job")
    site.cluster.wait(lambda: site.is_gone(namespace, "job"))
    site.await_empty()
    assert site.job_pods(namespace, "job") == {}


def test_a_job_that_came_past_the_webhooks_and_cannot_be_is_told_why(site: Site, namespace: str) -> None:
    site.submit(namespace, "x" * 40)
    status = site.await_state(namespace, "x" * 40, "Failed")
    assert "36" in status["lastMessage"]
    site.cluster.wait(lambda: "36" in events(site, namespace, "x" * 40).get("InvalidSpec", ""))
    site.submit(namespace, "large", ipusPerJobInstance="64")
    status = site.await_state(namespace, "large", "Failed")
    assert "64" in status["lastMessage"]
    site.await_empty()


def test_a_job_scaled_past_what_may_be_goes_on_as_it_was(site: Site, namespace: str) -> None:
    """No webhook sees a scaling: too many Pods are refused by the operator, and nothing that runs is touched."""
    site.submit(namespace, "wide", ipusPerJobInstance="2", workerPerJobInstance="2")
    before = site.await_pods(namespace, "wide", "wide-worker-0", "wide-worker-1")
    run_all(site, namespace, *before)
    site.await_state(namespace, "wide", "Running")
    site.scale(namespace, "wide", 4000)
    site.cluster.wait(lambda: "4096" in site.status(namespace, "wide")["lastMessage"])
    assert site.job_pods(namespace, "wide").keys() == before.keys()
    site.scale(namespace, "wide", 2)
    site.await_pods(namespace, "wide", *(f"wide-worker-{number}" for number in range(4)))


def test_a_size_that_was_changed_past_the_webhooks_is_told_of_and_the_program_goes_on(
    site: Site, namespace: str
) -> None:
    site.submit(namespace, "job", ipusPerJobInstance="4", workerPerJobInstance="2")
    before = site.await_pods(namespace, "job", "job-worker-0", "job-worker-1")
    run_all(site, namespace, *before)
    site.await_state(namespace, "job", "Running")
    patch = '{"spec": {"workerPerJobInstance": "4"}}'
    site.cluster.kubectl("patch", "ipujob", "job", "-n", namespace, "--type=merge", "-p", patch)
    words = "spec.workerPerJobInstance was changed to 4, and its partition has 2 GCDs"
    site.cluster.wait(lambda: words in site.status(namespace, "job")["lastMessage"])
    assert {name: pod["metadata"]["uid"] for name, pod in site.job_pods(namespace, "job").items()} == {
        name: pod["metadata"]["uid"] for name, pod in before.items()
    }
    undo = '{"spec": {"workerPerJobInstance": "2"}}'
    site.cluster.kubectl("patch", "ipujob", "job", "-n", namespace, "--type=merge", "-p", undo)
    for name in before:
        site.end_pod(namespace, name, 0)
    site.await_state(namespace, "job", "Completed")


def test_events_tell_the_story(site: Site, namespace: str) -> None:
    site.submit(namespace, "job")
    site.await_pods(namespace, "job", "job-worker-0")
    refused = "job-worker-0: Unschedulable: no nodes available"
    site.cluster.wait(lambda: events(site, namespace, "job").get("FailedScheduling", "").startswith(refused))
    site.run_pod(namespace, "job-worker-0")
    site.await_state(namespace, "job", "Running")
    site.end_pod(namespace, "job-worker-0", 3)
    site.await_state(namespace, "job", "Failed")

    def told() -> bool:
        text = site.cluster.kubectl("describe", "ipujob", "job", "-n", namespace)
        return "Running" in text and "InstanceFailed" in text and "exit code 3" in text

    site.cluster.wait(told)


def test_kubectl_waits_for_the_conditions_also_of_a_job_of_the_release_before(site: Site, namespace: str) -> None:
    def wait(kind: str) -> str:
        limit = f"--timeout={patient(60):.0f}s"
        return site.cluster.kubectl("wait", f"--for=condition={kind}", limit, "-n", namespace, "ipujob/job")

    with ThreadPoolExecutor() as threads:
        site.submit(namespace, "job")
        waits = [threads.submit(wait, kind) for kind in ("Admitted", "Ready", "Finished")]
        site.await_pods(namespace, "job", "job-worker-0")
        assert "condition met" in waits[0].result()
        assert not waits[1].done()
        site.run_pod(namespace, "job-worker-0")
        assert "condition met" in waits[1].result()
        site.stop_operator()
        former = site.status(namespace, "job")
        former["conditions"] = [one for one in former["conditions"] if one["type"] in ("Pending", "Running")]
        path = f"{JOBS}/namespaces/{namespace}/ipujobs/job/status"
        site.cluster.api("PATCH", path, {"status": former}, content_type=MERGE)
        site.start_operator()
        assert "condition met" in wait("Ready")
        job = site.job(namespace, "job")
        assert [one for one in job["status"]["conditions"] if "lastUpdateTime" in one] == former["conditions"]
        ours = [one for one in job["status"]["conditions"] if "lastUpdateTime" not in one]
        assert [one["type"] for one in ours] == ["Ready", "Admitted", "Finished"]
        assert {one["observedGeneration"] for one in ours} == {job["metadata"]["generation"]}
        assert not waits[2].done()
        site.end_pod(namespace, "job-worker-0", 0)
        assert "condition met" in waits[2].result()


def test_with_one_controller_down_and_one_full_the_message_says_what_it_waits_for(
    cluster: KubernetesCluster, namespace: str
) -> None:
    with ipu_site(cluster, sizes=(16, 16)) as site:
        down, full = site.pods
        site.submit(namespace, "first", ipusPerJobInstance="16")
        site.submit(namespace, "second", ipusPerJobInstance="16")
        site.await_pods(namespace, "first", "first-worker-0")
        site.await_pods(namespace, "second", "second-worker-0")
        down.kill()
        site.cluster.wait(lambda: f'reachable{{controller="127.0.0.1:{down.port}"}} 0.0' in metrics(site))
        site.submit(namespace, "third", ipusPerJobInstance="16")
        reserved = "waiting for a partition of 16 IPUs: a block of 16 IPUs is kept for it"
        site.cluster.wait(lambda: site.status(namespace, "third").get("lastMessage") == reserved, 3)
        full.kill()
        silent = f"waiting for a partition of 16 IPUs: 127.0.0.1:{down.port}, 127.0.0.1:{full.port} does not answer"
        site.cluster.wait(lambda: site.status(namespace, "third").get("lastMessage") == silent)


def metrics(site: Site) -> str:
    """The proxy's."""
    return site.ask_proxy("/metrics")


def events(site: Site, namespace: str, job: str) -> dict[str, str]:
    """The last message of each reason of a job's Events."""
    found = site.cluster.list("events", namespace)
    return {one["reason"]: one["message"] for one in found if one["involvedObject"]["name"] == job}


def test_an_idle_operator_writes_nothing(site: Site, namespace: str) -> None:
    site.submit(namespace, "job")
    site.await_pods(namespace, "job", "job-worker-0")
    site.run_pod(namespace, "job-worker-0")
    site.await_state(namespace, "job", "Running")

    def version() -> str:
        return str(site.job(namespace, "job")["metadata"]["resourceVersion"])

    def rests() -> str:
        before = version()
        time.sleep(1.5)  # what was put off is written by then
        return before if version() == before else ""

    rested = site.cluster.wait(rests)
    time.sleep(5)
    assert version() == rested
    assert "definition.outdated" not in site.log("operator"), "it kept all that it was given"


@pytest.mark.smoke  # it kills the operator
def test_a_job_from_before_a_limit_of_priorities_goes_on_and_a_new_one_is_refused(site: Site, namespace: str) -> None:
    site.stop_operator()
    site.start_operator("operator", "--max-priority=9")
    site.submit(namespace, "holds", ipusPerJobInstance="16")
    site.await_pods(namespace, "holds", "holds-worker-0")
    site.submit(namespace, "waits", ipusPerJobInstance="16", priority=9)
    site.await_state(namespace, "waits", "Pending")
    site.stop_operator()
    site.start_operator()
    site.submit(namespace, "new", priority=1)
    status = site.await_state(namespace, "new", "Failed")
    assert "spec.priority: 1 is above 0" in status["lastMessage"]
    site.delete(namespace, "holds")
    site.await_pods(namespace, "waits", "waits-worker-0")
    site.kill_operator()
    site.start_operator()
    assert site.status(namespace, "new")["status"] == "Failed"
    assert site.job_pods(namespace, "new") == {}
