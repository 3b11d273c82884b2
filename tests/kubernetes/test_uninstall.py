"""What helm uninstall runs first, as its own process with the chart's own rights, on a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.debian import ROOT
from tests.kubernetes.cluster import KubernetesCluster, Obj
from tests.packaging.chart import CHART, run_helm
from tests.waiting import patient

FINALIZER = "ipu.finalizers.graphcore.ai"
CRD = ROOT / "deploy" / "kubernetes" / "CRDs" / "graphcore.ai_ipujobs.yaml"
NAME = "gc-ipu-operator"
RUN_S = 150.0


@pytest.fixture
def chart(cluster: KubernetesCluster, namespace: str) -> Iterator[list[Obj]]:
    """The chart's objects, applied as ``helm install`` leaves them, but for Pods."""
    done = run_helm("template", "gc", str(CHART), f"--namespace={namespace}", values={})
    assert done.returncode == 0, done.stderr
    objects: list[Obj] = [each for each in yaml.safe_load_all(done.stdout) if each]
    applied = [each for each in objects if each["kind"] not in ("Job", "Deployment")]
    cluster.kubectl("apply", "-f", str(CRD))
    cluster.kubectl("wait", "--for=condition=Established", "crd/ipujobs.graphcore.ai")
    cluster.apply(yaml.safe_dump_all(applied))
    yield objects
    cluster.run_kubectl("delete", "-f", "-", "--ignore-not-found", input=yaml.safe_dump_all(applied))
    if cluster.find("crd", "ipujobs.graphcore.ai") is None:
        return
    for job in cluster.list("ipujobs.graphcore.ai"):
        where = f"--namespace={job['metadata']['namespace']}"
        patch = '{"metadata":{"finalizers":null}}'
        cluster.run_kubectl("patch", "ipujob", job["metadata"]["name"], where, "--type=merge", f"--patch={patch}")
    cluster.run_kubectl("delete", "-f", str(CRD), "--ignore-not-found")


def make_deployment(cluster: KubernetesCluster, objects: list[Obj], replicas: int) -> None:
    """The operator's Deployment; its Pods stay Pending."""
    (deployment,) = (
        each
        for each in objects
        if each["metadata"]["name"] == f"{NAME}-controller-manager" and each["kind"] == "Deployment"
    )
    cluster.apply(json.dumps({**deployment, "spec": {**deployment["spec"], "replicas": replicas}}))


def make_job(cluster: KubernetesCluster, namespace: str, name: str, *finalizers: str) -> None:
    container = {"name": "w", "image": "w"}
    spec = {"ipusPerJobInstance": "1", "workers": {"replicas": 1, "template": {"spec": {"containers": [container]}}}}
    metadata = {"name": name, "namespace": namespace, "finalizers": list(finalizers)}
    body = {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": metadata, "spec": spec}
    cluster.api("POST", f"/apis/graphcore.ai/v1alpha1/namespaces/{namespace}/ipujobs", body)


def uninstall(cluster: KubernetesCluster, namespace: str, objects: list[Obj]) -> subprocess.CompletedProcess[str]:
    """Run the hook's container's command as its account."""
    (job,) = (each for each in objects if each["kind"] == "Job" and each["metadata"]["name"] == f"{NAME}-uninstall")
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    kubeconfig = cluster.make_token_kubeconfig(namespace, spec["serviceAccountName"])
    argv = [sys.executable, *container["command"][1:], *container["args"], f"--kubeconfig={kubeconfig}"]
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(RUN_S),
        env={"PATH": os.environ["PATH"]},
        cwd=Path("/"),
    )


def unhook(cluster: KubernetesCluster) -> None:
    """Let IPUJobs be made while nobody serves the webhooks."""
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        patch = '[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]'
        cluster.kubectl("patch", kind, f"{NAME}-webhook", "--type=json", f"--patch={patch}")


def finalizers(cluster: KubernetesCluster) -> dict[str, list[str]]:
    found = cluster.list("ipujobs.graphcore.ai")
    return {each["metadata"]["name"]: each["metadata"].get("finalizers", []) for each in found}


def test_nothing_of_the_chart_is_left_in_the_way(cluster: KubernetesCluster, namespace: str, chart: list[Obj]) -> None:
    unhook(cluster)
    other = cluster.make_namespace()
    make_deployment(cluster, chart, 2)
    make_job(cluster, namespace, "one", FINALIZER)
    make_job(cluster, other, "two", FINALIZER, "site.org/audit")
    make_job(cluster, other, "going", FINALIZER)
    cluster.kubectl("delete", "ipujob", "going", f"--namespace={other}", "--wait=false")
    make_job(cluster, other, "bare")
    cluster.kubectl("create", "secret", "generic", f"{NAME}-webhook-certificate", f"--namespace={namespace}")
    done = uninstall(cluster, namespace, chart)
    assert done.returncode == 0, done.stderr
    assert finalizers(cluster) == {"one": [], "two": ["site.org/audit"], "bare": []}
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        assert cluster.find(kind, f"{NAME}-webhook") is None
    assert cluster.get("deployment", f"{NAME}-controller-manager", namespace)["spec"]["replicas"] == 0
    assert cluster.list("pods", namespace) == []
    assert cluster.find("secret", f"{NAME}-webhook-certificate", namespace) is None
    assert cluster.find("configmap", "ipu-partitions-tracker", namespace) is not None, "it stays"
    make_job(cluster, namespace, "later")
    again = uninstall(cluster, namespace, chart)
    assert again.returncode == 0, "it may be done twice"


def test_it_waits_for_a_leader_to_let_go(cluster: KubernetesCluster, namespace: str, chart: list[Obj]) -> None:
    """A Pod that does not go (its node is dead) holds nothing up, once its Lease has run out."""
    name = f"{NAME}-controller-manager"
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 3, "renewTime": now},
    }
    cluster.apply(json.dumps(lease))
    (deployment,) = (each for each in chart if each["kind"] == "Deployment" and each["metadata"]["name"] == name)
    template = deployment["spec"]["template"]
    metadata = {
        "name": "left",
        "namespace": namespace,
        "labels": template["metadata"]["labels"],
        "finalizers": ["a.b/c"],
    }
    bare = {"containers": [{"name": "a", "image": "a"}]}
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": bare}))
    try:
        done = uninstall(cluster, namespace, chart)
        assert done.returncode == 0, done.stderr
        assert "uninstall.operator_ended" in done.stderr
        assert cluster.find("lease", name, namespace) is None
    finally:
        patch = '{"metadata":{"finalizers":null}}'
        cluster.kubectl("patch", "pod", "left", f"--namespace={namespace}", "--type=merge", f"--patch={patch}")


def test_without_the_definition_of_ipujobs_there_is_nothing_to_strip(
    cluster: KubernetesCluster, namespace: str, chart: list[Obj]
) -> None:
    cluster.kubectl("delete", "-f", str(CRD))
    done = uninstall(cluster, namespace, chart)
    assert done.returncode == 0, done.stderr


def test_a_finalizer_that_may_not_be_taken_is_told(
    cluster: KubernetesCluster, namespace: str, chart: list[Obj]
) -> None:
    unhook(cluster)
    make_job(cluster, namespace, "one", FINALIZER)
    cluster.kubectl("delete", "clusterrolebinding", f"{NAME}-uninstall")
    done = uninstall(cluster, namespace, chart)
    assert done.returncode == 1
    assert "cannot delete resource" in done.stderr
    assert "Traceback" not in done.stderr
