"""Two operators: one works; the other follows when it dies or stands still, and nobody who wakes up later does harm."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.laws import Watcher
from tests.kubernetes.site import JOBS, Site, ipu_site

LEASE_S = 6.0
SLACK_S = 10.0  # looks, starts, and a machine that is busy


@pytest.fixture(scope="module")
def site(kept_cluster: KubernetesCluster) -> Iterator[Site]:
    with ipu_site(kept_cluster, flags=(f"--lease-s={LEASE_S}",)) as found:
        found.start_operator("other", leads=False)
        yield found


def leads(site: Site, name: str) -> bool:
    """Whether the last that it said of the election is that it has won."""
    said = [line for line in site.log(name).splitlines() if "election." in line]
    return bool(said) and "election.won" in said[-1]


def world(site: Site, namespace: str) -> list[tuple[str, str]]:
    """What an operator might change: versions of jobs and Pods, and partitions."""
    jobs = site.cluster.api("GET", f"{JOBS}/namespaces/{namespace}/ipujobs")["items"]
    pods = site.cluster.api("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    versions = [(one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in [*jobs, *pods]]
    return sorted([*versions, *((one["name"], one["state"]) for one in site.pod.partitions())])


def test_a_leader_that_stands_still_is_followed_and_does_nothing_when_it_wakes_up(
    site: Site, watched: Watcher, home: str
) -> None:
    """And it follows the one that followed it, when that one is killed."""
    assert leads(site, "operator")
    assert not leads(site, "other")
    names = [f"job{number}" for number in range(5)]
    site.submit(home, "old", ipusPerJobInstance="2")
    site.await_pods(home, "old", "old-worker-0")
    for name in names:
        site.submit(home, name)
    site.operators["operator"].send_signal(signal.SIGSTOP)  # in the midst of its work
    begun = time.monotonic()
    try:
        site.cluster.wait(lambda: leads(site, "other"), LEASE_S + SLACK_S)
        # What it knew is not so any more: a job is another one of the same name, one is gone, one has another size.
        uid = site.job(home, "old")["metadata"]["uid"]
        site.delete(home, "old")
        site.cluster.wait(lambda: site.is_gone(home, "old"))
        site.submit(home, "old", ipusPerJobInstance="1")
        site.delete(home, "job0")
        site.scale(home, "job1", 2)
        site.cluster.wait(lambda: site.is_gone(home, "job0"))
        site.await_pods(home, "job1", "job1-worker-0", "job1-worker-1")
        for name in ("old", *names[2:]):
            site.await_pods(home, name, f"{name}-worker-0")
        site.cluster.wait(lambda: site.status(home, "job1").get("currentInstances") == 2)
        time.sleep(max(0.0, begun + LEASE_S + 1 - time.monotonic()))
        before = site.cluster.wait(lambda: rested(site, home))
    finally:
        site.operators["operator"].send_signal(signal.SIGCONT)
    site.cluster.wait(lambda: not leads(site, "operator"))
    time.sleep(3)
    assert world(site, home) == before
    assert site.job(home, "old")["metadata"]["uid"] != uid
    site.kill_operator("other")
    kept, begun = partitions(site, home), time.monotonic()
    site.submit(home, "later")
    site.await_pods(home, "later", "later-worker-0", timeout=LEASE_S + SLACK_S)
    assert leads(site, "operator")
    assert partitions(site, home) == kept, f"after {time.monotonic() - begun} s"
    again = {owner: held for owner, held in watched.partitions.items() if len(held) != 1}
    assert watched.partitions
    assert again == {}, "\n".join(site.log(name)[-8000:] for name in ("operator", "other", "proxy"))


def rested(site: Site, namespace: str) -> list[tuple[str, str]] | None:
    """The world, once statuses that were put off are written."""
    before = world(site, namespace)
    time.sleep(1)
    return before if world(site, namespace) == before else None


def partitions(site: Site, namespace: str, *, but: str = "later") -> dict[str, str]:
    """Which partition each Pod was made for, but a job's."""
    pods = site.cluster.api("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    found = {pod["metadata"]["uid"]: pod for pod in pods if not pod["metadata"]["name"].startswith(but)}
    return {uid: pod["metadata"]["annotations"]["graphcore.ai/partition"] for uid, pod in found.items()}
