"""Operator and proxy over TLS, by the rights that the chart gives them: a certificate is lost, and nothing restarts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.site import Site, ipu_site


@pytest.fixture
def site(cluster: KubernetesCluster) -> Iterator[Site]:
    with ipu_site(cluster) as found:
        yield found


def test_a_certificate_that_somebody_deletes_is_made_anew_and_believed(site: Site, namespace: str) -> None:
    cluster, before = site.cluster, site.proxy_ca()
    (name,) = [one["metadata"]["name"] for one in cluster.list("secrets", site.namespace) if one["type"] == "Opaque"]
    cluster.kubectl("delete", "secret", name, "-n", site.namespace)
    cluster.wait(lambda: site.proxy_ca() != before, 75, what=lambda: site.log("proxy")[-2000:])
    assert site.proxy_ca().startswith(before), "another replica may serve the old one"
    site.submit(namespace, "after")
    site.await_pods(namespace, "after", "after-worker-0", timeout=60)
    assert site.log("operator").count("election.won") == 1
    assert "Traceback" not in site.log("proxy")
