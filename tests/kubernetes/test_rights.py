"""What the chart's roles let people and the operator do, asked of a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.site import CHART, CRD, OPERATOR, Site, ipu_site, template

READS = {("get", "ipujobs"), ("list", "ipujobs"), ("watch", "ipujobs"), ("get", "ipujobs/status")}
WRITES = {(verb, "ipujobs") for verb in ("create", "update", "patch", "delete")}
SCALES = {("update", "ipujobs/scale"), ("patch", "ipujobs/scale")}
OPERATORS = {("update", "ipujobs/status"), ("patch", "ipujobs/status"), ("update", "ipujobs/finalizers")}
ROLES = {"view": READS, "edit": READS | WRITES | SCALES, "admin": READS | WRITES | SCALES}


@pytest.fixture(scope="module")
def chart_cluster(kept_cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """A cluster with the definition, and with the chart's ClusterRoles."""
    kept_cluster.apply(CRD.read_text())
    kept_cluster.wait(lambda: kept_cluster.list("ipujobs.graphcore.ai") is not None)
    rendered = yaml.safe_load_all(kept_cluster.helm("template", "rights", str(CHART), "-n", "default"))
    roles = [one for one in rendered if one and one["kind"] == "ClusterRole"]
    kept_cluster.apply(yaml.safe_dump_all(roles))
    yield kept_cluster
    kept_cluster.kubectl("delete", "clusterrole", *(one["metadata"]["name"] for one in roles))


def may(cluster: KubernetesCluster, user: str, namespace: str, verb: str, resource: str) -> bool:
    kind, _, part = resource.partition("/")
    kind = f"{kind}.graphcore.ai" if kind == "ipujobs" else kind
    words = ("auth", "can-i", verb, kind, f"--as={user}", "-n", namespace)
    return cluster.run_kubectl(*words, *([f"--subresource={part}"] if part else [])).stdout.strip() == "yes"


@pytest.mark.parametrize("role", ROLES)
def test_kubernetes_own_roles_cover_ipujobs(chart_cluster: KubernetesCluster, role: str) -> None:
    cluster, home, elsewhere = chart_cluster, chart_cluster.make_namespace(), chart_cluster.make_namespace()
    user = f"{role}-user"
    cluster.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={user}", "-n", home)
    cluster.wait(lambda: may(cluster, user, home, "list", "ipujobs"))
    asked = READS | WRITES | SCALES | OPERATORS
    assert {one for one in asked if may(cluster, user, home, *one)} == ROLES[role]
    assert not may(cluster, user, elsewhere, "get", "ipujobs")


def may_exec(site: Site, namespace: str) -> bool:
    account = f"system:serviceaccount:{site.namespace}:{OPERATOR}"
    return may(site.cluster, account, namespace, "create", "pods/exec")


def train(site: Site, namespace: str) -> None:
    """A job with a launcher has all its Pods; its launcher may exec into its worker and into no other Pod."""
    site.submit(namespace, "train", launcher={"command": ["true"]}, workers={"template": template()})
    site.await_pods(namespace, "train", "train-launcher", "train-worker-0", timeout=60)
    launcher = f"system:serviceaccount:{namespace}:train-launcher"
    assert may(site.cluster, launcher, namespace, "create", "pods/exec") is False, "into any"
    words = ("auth", "can-i", "create", "pods/train-worker-0", "--subresource=exec", "-n", namespace)
    assert site.cluster.run_kubectl(*words, f"--as={launcher}").stdout.strip() == "yes"


def test_the_operator_may_exec_only_where_jobs_with_launchers_are(kept_cluster: KubernetesCluster) -> None:
    cluster, home, elsewhere = kept_cluster, kept_cluster.make_namespace(), kept_cluster.make_namespace()
    with ipu_site(cluster) as site:
        assert not may_exec(site, home)
        train(site, home)
        assert may_exec(site, home)
        assert not may_exec(site, elsewhere)
        (role,) = {one["metadata"]["name"] for one in cluster.list("rolebindings", home)} - {"train-launcher"}
        site.scale(home, "train", 2)  # its launchers' role changes, and the second launcher has a hostfile of its own
        site.await_pods(home, "train", *(f"train-{one}" for one in ("launcher", "launcher-1", "worker-0", "worker-1")))
        assert cluster.get("configmap", "train-config-1", home)["data"] == {"hostfile-1": "train-worker-1 slots=1\n"}
        site.stop_operator()
        cluster.kubectl("delete", "clusterrole", role)
        cluster.wait(lambda: cluster.find("rolebinding", role, home) is None, 60)
        cluster.kubectl(
            "patch", "ipujob", "train", "-n", home, "--type=merge", '--patch={"metadata":{"finalizers":null}}'
        )


def test_in_named_namespaces_the_operator_can_do_nothing_elsewhere(kept_cluster: KubernetesCluster) -> None:
    cluster, home, elsewhere = kept_cluster, kept_cluster.make_namespace(), kept_cluster.make_namespace()
    with ipu_site(cluster, values={"watchNamespaces": f"{{{home}}}"}) as site:
        account = f"system:serviceaccount:{site.namespace}:{OPERATOR}"
        for namespace in (home, elsewhere, "kube-system"):
            for verb, kind in (("create", "pods"), ("get", "configmaps"), ("update", "roles"), ("list", "ipujobs")):
                assert may(cluster, account, namespace, verb, kind) is (namespace == home), (namespace, verb, kind)
        site.submit(elsewhere, "other")
        train(site, home)
        assert "status" not in site.job(elsewhere, "other"), "nobody looks after it"
        cluster.kubectl("delete", "ipujob", "train", "-n", home, "--wait=false")
        for pod in site.job_pods(home, "train"):
            cluster.run_kubectl("delete", "pod", pod, "-n", home, "--grace-period=0", "--force")
        site.await_empty()
        assert "sweep.failed" not in site.log("operator")
