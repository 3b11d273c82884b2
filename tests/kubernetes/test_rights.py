"""What the chart's roles let people do, asked of a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.site import CHART, CRD

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
    words = ("auth", "can-i", verb, f"{kind}.graphcore.ai", f"--as={user}", "-n", namespace)
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
