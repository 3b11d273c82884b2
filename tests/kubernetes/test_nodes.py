"""Two nodes: Pods of one reach those of the other, and a power cut at one moves its work to the other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster, Obj, new_folder
from tests.kubernetes.laws import lawful
from tests.kubernetes.node import Node
from tests.kubernetes.site import ipu_site, template

FETCH = """
import sys, time, urllib.request
for attempt in range(100):
    try:
        sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=2).read().decode())
        break
    except OSError:  # kube-proxy is a moment behind
        time.sleep(0.2)
"""

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[KubernetesCluster]:
    with KubernetesCluster(new_folder()) as cluster:
        cluster.with_node()
        cluster.with_node()
        cluster.import_image(images.busybox())
        yield cluster


def deploy(cluster: KubernetesCluster, namespace: str) -> None:
    """A Deployment of one Pod that answers on 8080, under the Service ``web``."""
    serve = "mkdir /w; hostname > /w/index.html; exec httpd -f -p 8080 -h /w"
    container = {"name": "main", "image": images.busybox().name, "command": ["sh", "-c", serve]}
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    cluster.apply(json.dumps(deployment))
    cluster.kubectl("expose", "deployment", "web", "--port=80", "--target-port=8080", "-n", namespace)


def running(cluster: KubernetesCluster, namespace: str) -> list[Obj]:
    pods = cluster.list("pods", namespace, "app=web")
    return [pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]


def test_a_power_cut_moves_a_pod_to_the_other_node(two_nodes: KubernetesCluster) -> None:
    cluster, namespace = two_nodes, two_nodes.make_namespace()
    deploy(cluster, namespace)
    (pod,) = cluster.wait(lambda: running(cluster, namespace), 60)
    lost, other = sorted(cluster.nodes, key=lambda node: node.name != pod["spec"]["nodeName"])

    address = cluster.get("service", "web", namespace)["spec"]["clusterIP"]
    answer = other.run(sys.executable, "-c", FETCH, f"http://{address}/", timeout=60)  # from one node to the other
    assert answer == f"{pod['metadata']['name']}\n"
    lost.kill()

    def moved() -> list[Obj]:
        return [each for each in running(cluster, namespace) if each["spec"]["nodeName"] == other.name]

    (after,) = cluster.wait(moved, 60)
    assert after["metadata"]["uid"] != pod["metadata"]["uid"]
    old = cluster.get("pod", pod["metadata"]["name"], namespace)
    assert old["status"]["phase"] == "Running"  # nobody is there to say otherwise
    lost.start()
    cluster.wait(lambda: cluster.find("pod", pod["metadata"]["name"], namespace) is None, 60)


def lives(node: Node, word: str) -> bool:
    """Whether a process runs on a node whose command has a word."""
    return bool(node.run("sh", "-c", f"pgrep -f '[{word[0]}]{word[1:]}' || true").split())  # not the one that asks


def test_a_node_that_only_seems_dead_loses_its_ipus_before_the_job_starts_elsewhere(
    two_nodes: KubernetesCluster,
) -> None:
    """Its kubelet is gone, and its containers run on: the partition is what is taken from them."""
    cluster = two_nodes
    with ipu_site(cluster) as site, lawful(site) as watched:
        home = watched.namespace
        for node in cluster.nodes:
            cluster.kubectl("label", "node", node.name, "ipunode=pod1", "--overwrite")
        pods = template("sleep", "54321", image=images.busybox().name, terminationGracePeriodSeconds=1)
        more: dict[str, Any] = {"restartPolicy": {"type": "OnFailure"}, "nodeLostSeconds": 12}
        more["workers"] = {"template": pods}
        site.submit(home, "job", ipusPerJobInstance="16", **more)
        site.await_state(home, "job", "Running")
        before = site.job_pods(home, "job")["job-worker-0"]
        (partition,) = site.pod.partitions()
        lost, other = sorted(cluster.nodes, key=lambda node: node.name != before["spec"]["nodeName"])
        lost.kill_kubelet()
        told = f"node {lost.name} with job-worker-0 has not answered since 20"
        cluster.wait(lambda: told in site.status(home, "job")["lastMessage"], 60)
        assert [one["id"] for one in site.pod.partitions()] == [partition["id"]], "its time is not over"

        site.await_another(home, "job", "job-worker-0", before["metadata"]["uid"])
        assert lives(lost, "54321"), "the old program runs on"
        assert partition["id"] not in [one["id"] for one in site.pod.partitions()], "but not on these IPUs"
        site.await_state(home, "job", "Running")
        assert site.job_pods(home, "job")["job-worker-0"]["spec"]["nodeName"] == other.name
        assert site.status(home, "job")["restartCount"] == 1

        lost.start_kubelet()
        cluster.wait(lambda: not lives(lost, "54321"), 60)
        assert site.status(home, "job")["restartCount"] == 1
