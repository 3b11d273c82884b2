"""Operator and proxy over TLS, by the rights that the chart gives: a certificate is lost, or one of two proxies."""

from __future__ import annotations

from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.site import Site, ipu_site


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


def test_one_of_two_proxies_is_killed_and_jobs_go_on(cluster: KubernetesCluster, namespace: str) -> None:
    """The operator asks the one that stands by, which hands on to the other one, and follows it."""
    with ipu_site(cluster, start=False, values={"vipuProxy.replicas": "2"}) as site:

        def start(host: str) -> None:
            lease = "--lease-name=lab-ipu-operator-vipu-proxy"
            site.proxy_host, site.proxy_flags = host, [f"--host={host}", f"--replica-address={host}", lease]
            site.start_proxy()

        start("127.0.0.1")
        leader = site.proxy
        assert leader is not None
        start("127.0.0.2")
        assert site.log("proxy").count("proxy.started") == 1, "one works"
        site.start_operator()
        site.submit(namespace, "before")
        before = site.await_pods(namespace, "before", "before-worker-0")["before-worker-0"]["metadata"]["uid"]
        (partition,) = site.pod.partitions()

        leader.kill()
        leader.wait()
        site.submit(namespace, "after")
        site.await_pods(namespace, "after", "after-worker-0", timeout=60)
        assert site.log("proxy").count("proxy.started") == 2
        assert partition["id"] in [one["id"] for one in site.pod.partitions()]
        assert site.job_pods(namespace, "before")["before-worker-0"]["metadata"]["uid"] == before
        assert len(site.pod.partitions()) == 2
