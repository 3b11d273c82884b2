"""Pods that are evicted or deleted, a node that is gone, and jobs that are deleted in the midst of being scaled."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from moorings.kubernetes.ipujob import names
from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.laws import Watcher, lawful
from tests.kubernetes.site import Site, ipu_site, template
from tests.waiting import patient

STRATEGIC = "application/strategic-merge-patch+json"
LAUNCHER = {"command": ["mpirun", "hostname"]}


@pytest.fixture(scope="module")
def site(kept_cluster: KubernetesCluster) -> Iterator[Site]:
    with ipu_site(kept_cluster) as found:
        yield found


def evict(site: Site, namespace: str, name: str) -> None:
    """As a kubelet that runs out of something does: the Pod has failed, and no container tells of it."""
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    site.cluster.api("PATCH", path, {"status": status}, content_type=STRATEGIC)


@pytest.mark.parametrize("policy", ["Never", "ExitCode"])
def test_a_pod_that_was_evicted_is_a_failure_that_may_pass(site: Site, home: str, policy: str) -> None:
    site.submit(home, "job", restartPolicy={"type": policy})
    pod = site.await_pods(home, "job", "job-worker-0")["job-worker-0"]
    evict(site, home, "job-worker-0")
    if policy == "Never":
        message = site.await_state(home, "job", "Failed")["lastMessage"]
        assert "job-worker-0 failed: Evicted: The node was low on resource: memory." in message
        site.await_empty()
    else:
        site.await_another(home, "job", "job-worker-0", pod["metadata"]["uid"])
        site.run_pod(home, "job-worker-0")
        assert site.await_state(home, "job", "Running")["restartCount"] == 1


@pytest.mark.parametrize("role", ["worker-1", "launcher"])
def test_a_pod_of_a_training_job_deleted_by_hand_is_made_again(
    site: Site, watched: Watcher, home: str, role: str
) -> None:
    site.submit(home, "train", ipusPerJobInstance="2", workerPerJobInstance="2", launcher=LAUNCHER)
    pods = site.await_pods(home, "train", "train-launcher", "train-worker-0", "train-worker-1")
    for name in sorted(pods, reverse=True):
        site.run_pod(home, name)
    site.await_state(home, "train", "Running")
    name = f"train-{role}"
    site.cluster.kubectl("delete", "pod", name, "-n", home)
    site.await_another(home, "train", name, pods[name]["metadata"]["uid"])
    site.run_pod(home, name)
    site.await_state(home, "train", "Running")
    (held,) = watched.partitions.values()
    assert len(held) == 1
    if role == "launcher":
        (init,) = site.job_pods(home, "train")[name]["spec"]["initContainers"]
        assert {"name": "MOORINGS_RESET", "value": "1"} in init["env"], "who comes later finds a clean partition"


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_job_deleted_while_it_is_scaled_leaves_nothing(site: Site, home: str, way: str) -> None:
    site.submit(home, "job", jobInstances=1 if way == "up" else 8)
    first = [f"job-worker-{number}" for number in range(1 if way == "up" else 8)]
    site.await_pods(home, "job", *first)
    site.scale(home, "job", 8 if way == "up" else 1)
    site.delete(home, "job")
    site.cluster.wait(lambda: site.is_gone(home, "job"))
    assert site.job_pods(home, "job") == {}
    site.await_empty()


def test_a_pod_that_is_refused_again_and_again_costs_no_reset_each_time(site: Site, home: str) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    site.cluster.api("POST", f"/api/v1/namespaces/{home}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{home}/resourcequotas/none"
    site.cluster.wait(lambda: site.cluster.api("GET", path)["status"].get("hard"))
    site.submit(home, "job")
    site.cluster.wait(lambda: "exceeded quota" in site.status(home, "job").get("lastMessage", ""))

    def tries() -> int:  # they are due after 5 ms, twice as long each time
        return site.log("operator").count(f"msg=work.failed logger=moorings.kubernetes.workqueue key={home}/job ")

    site.cluster.wait(lambda: tries() > 5)
    time.sleep(3)  # a hundred more, if they came as fast as the first ones
    assert tries() < 15
    assert [one["state"] for one in site.pod.partitions()] == ["ACTIVE"]
    site.cluster.api("DELETE", path)
    site.await_pods(home, "job", "job-worker-0")


# -- a real node -------------------------------------------------------------------------------------------------------

BUSYBOX = images.busybox().name
STUCK = {
    "typo": (
        template(image="busybox:latset"),
        "typo-worker-0 cannot pull its image: (ErrImagePull|ImagePullBackOff): ",
    ),
    "greedy": (template(image=BUSYBOX), "greedy-worker-0 cannot be scheduled: 0/1 nodes are available"),
    "crash": (template("false", image=BUSYBOX), "it crashes at start: crash-worker-0 failed: exit code 1"),
}
STUCK["greedy"][0]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "640"}}


def test_jobs_that_do_not_start_give_their_ipus_to_one_that_does(node_cluster: KubernetesCluster) -> None:
    restarts = {"type": "OnFailure", "backOffLimit": 1000}
    with ipu_site(node_cluster, sizes=(64,)) as site, lawful(site) as watched:
        home = watched.namespace
        node_cluster.kubectl("label", "node", node_cluster.nodes[0].name, "ipunode=pod1", "--overwrite")
        for name, (pods, _) in STUCK.items():
            more: dict[str, Any] = {
                "workers": {"template": pods},
                "restartPolicy": restarts,
                "startDeadlineSeconds": 15,
            }
            site.submit(home, name, ipusPerJobInstance="16", **more)
        node_cluster.wait(lambda: len(site.pod.partitions()) == len(STUCK))
        site.submit(home, "honest", ipusPerJobInstance="64", workers={"template": template(image=BUSYBOX)})

        def told() -> dict[str, str]:
            found = [one for one in site.cluster.list("events", home) if one["reason"] == "StartDeadlineExceeded"]
            return {one["involvedObject"]["name"]: one["message"] for one in found}

        node_cluster.wait(lambda: told().keys() == STUCK.keys(), 90, what=lambda: str(told()))
        for name, (_, words) in STUCK.items():
            assert re.match(f"instance 0 gives its partition back: it did not start in 15 s: {words}", told()[name])
        site.kill_operator()  # nothing is asked for sooner because of that
        site.start_operator()
        site.await_state(home, "honest", "Running")
        site.delete(home, "honest")
        node_cluster.wait(lambda: site.job_pods(home, "greedy"), 120, what=lambda: str(site.status(home, "greedy")))


def test_a_node_that_is_gone_keeps_its_partition_from_others_until_it_is_known_to_be(
    node_cluster: KubernetesCluster,
) -> None:
    (node,) = node_cluster.nodes
    with ipu_site(node_cluster) as site, lawful(site) as watched:
        home = watched.namespace
        node_cluster.kubectl("label", "node", node.name, "ipunode=pod1", "--overwrite")
        wanted: dict[str, Any] = {
            "ipusPerJobInstance": "16",
            "workers": {"template": template(image=images.busybox().name)},
        }
        site.submit(home, "runs", **wanted)
        site.await_state(home, "runs", "Running")
        site.submit(home, "waits", **wanted)
        (partition,) = site.pod.partitions()
        node.kill()
        site.delete(home, "runs")
        told = "waiting for runs-worker-0 to end"
        node_cluster.wait(lambda: told in site.status(home, "runs").get("lastMessage", ""), 60)
        ready = node_cluster.api("GET", f"/api/v1/nodes/{node.name}")["status"]["conditions"][-1]
        node_cluster.wait(lambda: not is_ready(node_cluster, node.name), 60, what=lambda: str(ready))
        assert [one["name"] for one in site.pod.partitions()] == [partition["name"]]
        assert "deletionTimestamp" in site.job_pods(home, "runs")["runs-worker-0"]["metadata"]
        assert site.job_pods(home, "waits") == {}
        force = ("--grace-period=0", "--force")  # somebody has seen that the machine is off
        node_cluster.kubectl("delete", "pod", "runs-worker-0", "-n", home, *force)
        node_cluster.wait(lambda: site.is_gone(home, "runs"))
        site.await_pods(home, "waits", "waits-worker-0")
        node.start()
        site.await_state(home, "waits", "Running")


def test_a_node_that_is_drained_ends_its_pods_and_the_job_goes_on_with_its_partition(
    node_cluster: KubernetesCluster,
) -> None:
    (node,) = node_cluster.nodes
    with ipu_site(node_cluster) as site, lawful(site) as watched:
        home = watched.namespace
        node_cluster.kubectl("label", "node", node.name, "ipunode=pod1", "--overwrite")
        site.submit(home, "runs", workers={"template": template(image=images.busybox().name)})
        site.await_state(home, "runs", "Running")
        uid = site.job_pods(home, "runs")["runs-worker-0"]["metadata"]["uid"]
        selector = f"--pod-selector=app=test,{names.JOB}=runs"  # not what other tests have left there
        try:
            node_cluster.kubectl("drain", node.name, selector, f"--timeout={patient(60):.0f}s", timeout=90)
            site.await_another(home, "runs", "runs-worker-0", uid)
            told = "unschedulable"
            node_cluster.wait(lambda: told in site.status(home, "runs").get("lastMessage", ""), 60)
        finally:
            node_cluster.kubectl("uncordon", node.name)
        assert site.await_state(home, "runs", "Running").get("restartCount", 0) == 0, "nobody is to blame"
        assert [len(ids) for ids in watched.partitions.values()] == [1]


def test_a_job_that_is_deleted_while_its_image_is_pulled_leaves_nothing(node_cluster: KubernetesCluster) -> None:
    (node,) = node_cluster.nodes
    with (
        socket.create_server((node_cluster.host, 0)) as registry,  # it takes the call, and never answers
        ipu_site(node_cluster) as site,
        lawful(site) as watched,
    ):
        home = watched.namespace
        node_cluster.kubectl("label", "node", node.name, "ipunode=pod1", "--overwrite")
        host, port = registry.getsockname()[:2]
        site.submit(home, "pulls", workers={"template": template(image=f"{host}:{port}/slow:1")})
        events = f"/api/v1/namespaces/{home}/events?fieldSelector=reason=Pulling"
        node_cluster.wait(lambda: node_cluster.api("GET", events)["items"], 60)
        assert len(site.pod.partitions()) == 1
        site.delete(home, "pulls")
        node_cluster.wait(lambda: site.is_gone(home, "pulls"), 60, what=lambda: str(site.job_pods(home, "pulls")))
        site.await_empty()


def is_ready(cluster: KubernetesCluster, node: str) -> bool:
    """Whether a node's kubelet was heard of lately."""
    conditions = cluster.api("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
