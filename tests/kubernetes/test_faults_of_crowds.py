"""Many jobs that come and go, jobs that go while nobody looks, and everything of ours away and back again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from moorings.app.kubernetes_operator import STOP_S
from moorings.kubernetes.ipujob.parsing import parse_ipujob
from moorings.kubernetes.kube.client import connect
from moorings.kubernetes.operator.actions import AcquirePartition, AddFinalizer, CleanPartition, ReleasePartition
from moorings.kubernetes.operator.executor import JobExecutor, UnobservedPods
from moorings.kubernetes.operator.pod_builder import PodOptions
from moorings.kubernetes.proxy_api.client import ProxyClient
from tests.kubernetes.api import KubernetesError
from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.laws import Watcher, clear
from tests.kubernetes.site import JOBS, OPERATOR, Site, ipu_site

MERGE = "application/merge-patch+json"
CROWD = 200
NEVER_S = 3600.0


@pytest.fixture(scope="module")
def site(kept_cluster: KubernetesCluster) -> Iterator[Site]:
    with ipu_site(kept_cluster, sizes=(256,), flags=(f"--sweep-s={NEVER_S}",)) as found:
        yield found


def owners(site: Site) -> set[str]:
    """Jobs that hold a partition, or wait for one."""
    return {one["owner"].split("/")[3] for one in [*site.pod.partitions(), *site.pod.claims()]}


def test_a_third_of_200_jobs_is_deleted_at_random_while_they_start(site: Site, watched: Watcher, home: str) -> None:
    chance = random.Random(200)
    names = [f"job{number}" for number in range(CROWD)]
    doomed = set(chance.sample(names, CROWD // 3))

    def live(name: str) -> None:
        site.submit(home, name)
        if name in doomed:
            time.sleep(chance.random() * 2)
            site.delete(home, name)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(live, names))
    path = f"{JOBS}/namespaces/{home}/ipujobs"
    rest = set(names) - doomed

    def all_stand() -> bool:
        found = {one["metadata"]["name"]: one for one in site.cluster.api("GET", path)["items"]}
        return found.keys() == rest and all(
            one.get("status", {}).get("currentInstances") == 1 for one in found.values()
        )

    site.cluster.wait(all_stand, 85, what=lambda: site.log("operator")[-3000:])
    site.cluster.wait(lambda: owners(site) == rest)
    assert len(site.pod.partitions()) == len(rest)
    assert {len(partitions) for partitions in watched.partitions.values()} == {1}


# -- unseen ------------------------------------------------------------------------------------------------------------


def orphans(site: Site) -> str:
    """What the operator said of partitions whose job was gone."""
    return "\n".join(line for line in site.log("operator").splitlines() if "partition.orphan" in line)


def remove_by_force(site: Site, namespace: str, name: str) -> None:
    """Delete a job and take its finalizer away."""
    site.delete(namespace, name)
    path = f"{JOBS}/namespaces/{namespace}/ipujobs/{name}"
    site.cluster.api("PATCH", path, {"metadata": {"finalizers": []}}, content_type=MERGE)
    assert site.is_gone(namespace, name)


@pytest.mark.usefixtures("watched")
def test_what_is_left_of_jobs_that_went_unseen_is_given_back_after_their_pods(site: Site, home: str) -> None:
    for name in ("lingers", "waits", "stays"):
        site.submit(home, name)
        site.await_pods(home, name, f"{name}-worker-0")
        site.run_pod(home, f"{name}-worker-0")
    pod = f"/api/v1/namespaces/{home}/pods/lingers-worker-0"
    site.cluster.api("PATCH", pod, {"metadata": {"finalizers": ["example.com/keep"]}}, content_type=MERGE)
    site.stop_operator()
    for name in ("lingers", "waits"):
        remove_by_force(site, home, name)
    # As the garbage collector of newer Kubernetes leaves a Pod that it is about to remove, with its container running.
    site.cluster.api("PATCH", f"{pod}/status", {"status": {"phase": "Failed"}}, content_type=MERGE)
    site.start_operator("operator", "--sweep-s=0.5")
    site.cluster.wait(lambda: owners(site) == {"lingers", "stays"}, 60)
    time.sleep(3)  # it is looked at again and again, and left alone
    assert owners(site) == {"lingers", "stays"}
    site.cluster.api("PATCH", pod, {"metadata": {"finalizers": []}}, content_type=MERGE)
    site.cluster.wait(lambda: owners(site) == {"stays"}, 60)
    told = {name for name in ("lingers", "waits", "stays") if f"{home}/{name} " in orphans(site)}
    assert told == {"lingers", "waits"}


def test_a_job_made_again_under_its_name_while_nobody_looks_gets_its_own(
    site: Site, watched: Watcher, home: str
) -> None:
    site.submit(home, "twin", ipusPerJobInstance="2")
    site.await_pods(home, "twin", "twin-worker-0")
    (old,) = site.pod.partitions()
    site.stop_operator()
    remove_by_force(site, home, "twin")
    site.submit(home, "twin", ipusPerJobInstance="4")
    site.start_operator()
    site.cluster.wait(lambda: [one["size"] for one in site.pod.partitions()] == [4], 60)
    (new,) = site.pod.partitions()
    pod = site.await_pods(home, "twin", "twin-worker-0", timeout=60)["twin-worker-0"]
    assert pod["metadata"]["annotations"]["graphcore.ai/partition"] == new["name"]
    assert new["owner"] != old["owner"]
    assert watched.partitions.keys() == {old["owner"], new["owner"]}


# -- uninstalled -------------------------------------------------------------------------------------------------------


def test_everything_is_stopped_with_jobs_running_and_goes_on_when_it_is_back(
    site: Site, watched: Watcher, home: str
) -> None:
    for name in ("serve", "ends", "goes"):
        site.submit(home, name)
        site.await_pods(home, name, f"{name}-worker-0")
        site.run_pod(home, f"{name}-worker-0")
        site.await_state(home, name, "Running")
    site.submit(home, "train", workerPerJobInstance="1", launcher={"command": ["true"]})
    pods = site.await_pods(home, "train", "train-launcher", "train-worker-0")
    before = {one["name"] for one in site.pod.partitions()}
    uid = site.job_pods(home, "serve")["serve-worker-0"]["metadata"]["uid"]
    assert site.stop_operator() == 0
    assert STOP_S < 30, "a kubelet waits no longer"
    site.kill_proxy()
    site.end_pod(home, "ends-worker-0", 0)
    site.delete(home, "goes")
    site.submit(home, "comes")
    assert {one["name"] for one in site.pod.partitions()} == before
    site.start_proxy()
    site.start_operator()
    site.await_state(home, "ends", "Completed")
    site.await_pods(home, "comes", "comes-worker-0")
    site.cluster.wait(lambda: site.is_gone(home, "goes"))
    assert site.job_pods(home, "serve")["serve-worker-0"]["metadata"]["uid"] == uid
    now = site.job_pods(home, "train")
    assert {name: pod["metadata"]["uid"] for name, pod in now.items()} == {
        name: pod["metadata"]["uid"] for name, pod in pods.items()
    }
    site.cluster.wait(lambda: owners(site) == {"serve", "train", "comes"})
    assert {len(names) for names in watched.partitions.values()} == {1}


def test_a_namespace_is_deleted_with_all_that_is_in_it(site: Site) -> None:
    namespace = site.cluster.make_namespace()
    site.submit(namespace, "serve", jobInstances=3)
    site.await_pods(namespace, "serve", *(f"serve-worker-{number}" for number in range(3)))
    site.cluster.kubectl("delete", "namespace", namespace, "--wait=false")

    def is_gone() -> bool:
        try:
            site.cluster.api("GET", f"/api/v1/namespaces/{namespace}")
        except KubernetesError as error:
            return error.status == 404
        return False

    site.cluster.wait(is_gone, 90)
    site.await_empty()


async def test_nothing_is_claimed_for_a_job_that_went_before_it_was_taken_on(site: Site, home: str) -> None:
    """A job without our finalizer is gone at once; who still sees it must not ask for its partition."""
    site.submit(home, "gone")
    site.cluster.wait(lambda: site.pod.partitions())
    seen = parse_ipujob(site.job(home, "gone"))
    clear(site, home)
    token = site.cluster.token(site.namespace, OPERATOR, "moorings-proxy")
    kube = connect({}, path=str(site.cluster.kubeconfig))
    async with ProxyClient(site.proxy_url, token=lambda: token) as proxy:
        proxy.add_authorities(site.proxy_ca())
        doer = JobExecutor(kube, proxy, PodOptions(), lambda: True, lambda _: None, lambda _: None, time.monotonic)
        failed = await doer.do(
            replace(seen, finalizers=()), [AddFinalizer(), AcquirePartition(0)], {}, UnobservedPods()
        )
    await kube.close()
    assert [failure.error.code for failure in failed] == ["kubernetes.refused"]
    assert "gone" not in owners(site)  # a job of another test may still be leaving


@pytest.mark.parametrize("act", [ReleasePartition(0), CleanPartition(0)])
async def test_who_stopped_leading_while_it_looked_takes_no_partition_away(
    site: Site, home: str, act: ReleasePartition | CleanPartition
) -> None:
    """To look whether a program runs takes time; another operator may have started one meanwhile."""
    site.submit(home, "job")
    site.cluster.wait(lambda: site.pod.partitions())
    seen = parse_ipujob(site.job(home, "job"))
    token = site.cluster.token(site.namespace, OPERATOR, "moorings-proxy")
    leads = iter([True, False])
    kube = connect({}, path=str(site.cluster.kubeconfig))
    async with ProxyClient(site.proxy_url, token=lambda: token) as proxy:
        proxy.add_authorities(site.proxy_ca())
        doer = JobExecutor(
            kube, proxy, PodOptions(), lambda: next(leads), lambda _: None, lambda _: None, time.monotonic
        )
        failed = await doer.do(replace(seen, name="gone"), [act], {}, UnobservedPods())
    await kube.close()
    assert [failure.error.code for failure in failed] == ["kubernetes.not_leading"]
    clear(site, home)
