"""The API server is killed, forgets, refuses, is not reached, or lets others write: jobs continue where they were."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kubernetes import pki
from tests.kubernetes.api import KubernetesError
from tests.kubernetes.cluster import KubernetesCluster, new_folder
from tests.kubernetes.laws import Watcher, lawful
from tests.kubernetes.site import JOBS, OPERATOR, Site, ipu_site
from tests.kubernetes.ways import Way
from tests.waiting import patient

MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def site(kept_cluster: KubernetesCluster) -> Iterator[Site]:
    with ipu_site(kept_cluster) as found:
        yield found


def check_one_partition_each(watched: Watcher) -> None:
    """No job's instance ever had a second one."""
    assert {owner: len(names) for owner, names in watched.partitions.items() if len(names) != 1} == {}


def test_it_is_killed_while_jobs_are_made_run_and_end(site: Site, watched: Watcher, home: str) -> None:
    cluster = site.cluster
    uid = site.bring_up(home, "runs")
    site.submit(home, "begins")
    cluster.kill_api_server()
    cluster.start_api_server()
    site.await_pods(home, "begins", "begins-worker-0", timeout=60)
    assert site.job_pods(home, "runs")["runs-worker-0"]["metadata"]["uid"] == uid
    site.run_pod(home, "begins-worker-0")
    site.await_state(home, "begins", "Running")
    site.end_pod(home, "runs-worker-0", 0)
    site.await_state(home, "runs", "Completed")
    site.delete(home, "begins")
    cluster.kill_api_server()
    cluster.start_api_server()
    cluster.wait(lambda: site.is_gone(home, "begins"), 60)
    site.await_empty()
    check_one_partition_each(watched)


def test_a_job_lives_and_goes_without_the_controller_manager(site: Site, watched: Watcher, home: str) -> None:
    account = f"/api/v1/namespaces/{home}/serviceaccounts/default"
    site.cluster.wait(lambda: site.cluster.api("GET", account).get("secrets"))  # Pods are refused before it has one
    site.cluster.kill_controllers()
    try:
        site.bring_up(home, "job", restartPolicy={"type": "OnFailure"})
        uid = site.job_pods(home, "job")["job-worker-0"]["metadata"]["uid"]
        site.end_pod(home, "job-worker-0", 1)
        site.await_another(home, "job", "job-worker-0", uid)
        site.delete(home, "job")
        site.cluster.wait(lambda: site.is_gone(home, "job"))
        assert site.job_pods(home, "job") == {}
        site.await_empty()
    finally:
        site.cluster.start_controllers()
    check_one_partition_each(watched)


@contextmanager
def written_all_the_time(site: Site, namespace: str, name: str) -> Iterator[list[int]]:
    """Another writer changes annotations and status all the time; return how often."""
    ended, count = threading.Event(), [0]
    path = f"{JOBS}/namespaces/{namespace}/ipujobs/{name}"

    def write() -> None:
        while not ended.wait(0.005):
            try:
                meta = {"annotations": {"somebody": str(count[0])}}
                site.cluster.api("PATCH", path, {"metadata": meta}, content_type=MERGE)
                site.cluster.api("PATCH", f"{path}/status", {"status": {"lastMessage": "mine"}}, content_type=MERGE)
            except KubernetesError as error:
                if error.status not in (404, 409):
                    raise
            else:
                count[0] += 1

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield count
    finally:
        ended.set()
        thread.join()


def test_somebody_else_writes_the_job_all_the_time(site: Site, watched: Watcher, home: str) -> None:
    with written_all_the_time(site, home, "job") as count:
        uid = site.bring_up(home, "job", restartPolicy={"type": "OnFailure"})
        site.end_pod(home, "job-worker-0", 1)
        site.await_another(home, "job", "job-worker-0", uid)
        site.run_pod(home, "job-worker-0")
        assert site.await_state(home, "job", "Running")["restartCount"] == 1
        site.delete(home, "job")
        site.cluster.wait(lambda: site.is_gone(home, "job"))
    assert count[0] > 5  # a busy machine writes less often
    site.await_empty()
    check_one_partition_each(watched)


# -- the way there -----------------------------------------------------------------------------------------------------


class Road:
    """A ``Way`` for the operator, worked by a thread."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._way = Way(site.cluster)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._opened = self._way.open(site.cluster, folder)
        self._site = site
        self._folder = folder

    def __enter__(self) -> Road:
        self._thread.start()
        through = asyncio.run_coroutine_threadsafe(self._opened.__aenter__(), self._loop).result(patient(10))
        port = through.name.removeprefix("way-")
        file, token = self._folder / "operator", self._site.cluster.token(self._site.namespace, OPERATOR)
        url = f"https://127.0.0.1:{port}"
        self.kubeconfig = pki.write_kubeconfig(file, url, self._site.cluster.ca_file, token=token)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._opened.__aexit__(None, None, None), self._loop).result(patient(10))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def have(self, act: Callable[[Way], None]) -> None:
        """Have something done to it."""
        done = threading.Event()

        def do() -> None:
            act(self._way)
            done.set()

        self._loop.call_soon_threadsafe(do)
        assert done.wait(patient(10))


@pytest.fixture
def road(site: Site, tmp_path: Path) -> Iterator[Road]:
    """The site's operator reaches the API server by this way."""
    site.stop_operator()
    with Road(site, tmp_path) as found:
        site.start_operator("operator", f"--kubeconfig={found.kubeconfig}", "--lease-s=6")
        yield found
        site.stop_operator()
    site.start_operator()


def test_a_watch_is_cut_and_what_was_missed_is_forgotten(site: Site, watched: Watcher, home: str, road: Road) -> None:
    policy = {"type": "OnFailure"}
    uids = {name: site.bring_up(home, name, restartPolicy=policy) for name in ("fails", "loses", "goes", "stays")}
    road.have(lambda way: way.cut())  # once for nothing
    road.have(lambda way: way.cut(refuse=True))
    site.end_pod(home, "fails-worker-0", 1)
    site.cluster.kubectl("delete", "pod", "loses-worker-0", "-n", home)
    site.delete(home, "goes")
    site.submit(home, "comes")
    site.cluster.kill_api_server()
    site.cluster.start_api_server()  # which remembers nothing of before, and answers 410
    road.have(lambda way: way.cut(refuse=False))
    for name in ("fails", "loses"):
        site.await_another(home, name, f"{name}-worker-0", uids[name])
    site.cluster.wait(lambda: site.is_gone(home, "goes"))
    site.await_pods(home, "comes", "comes-worker-0")
    assert site.job_pods(home, "stays")["stays-worker-0"]["metadata"]["uid"] == uids["stays"]
    assert site.status(home, "fails")["restartCount"] == 1
    check_one_partition_each(watched)


def test_nothing_passes_for_longer_than_a_lease_is_renewed(site: Site, watched: Watcher, home: str, road: Road) -> None:
    uid = site.bring_up(home, "job")
    won = site.log("operator").count("election.won")
    road.have(lambda way: way.freeze())
    site.submit(home, "waits")
    site.cluster.wait(lambda: "election.lost" in site.log("operator").split("election.won")[-1], 60)
    assert site.job_pods(home, "waits") == {}
    road.have(lambda way: way.thaw())
    site.cluster.wait(lambda: site.log("operator").count("election.won") > won)
    site.await_pods(home, "waits", "waits-worker-0")
    assert site.job_pods(home, "job")["job-worker-0"]["metadata"]["uid"] == uid
    check_one_partition_each(watched)


# -- too much ----------------------------------------------------------------------------------------------------------


def test_a_server_that_is_asked_too_much_serves_in_the_end() -> None:
    flags = ("max-requests-inflight=4", "max-mutating-requests-inflight=1")
    off = "feature-gates=APIPriorityAndFairness=false"
    with (
        KubernetesCluster(new_folder(), api_flags=[f"--{flag}" for flag in (*flags, off)]) as cluster,
        ipu_site(cluster, sizes=(32,)) as site,
        lawful(site) as watched,
    ):
        names = [f"job{number}" for number in range(20)]
        for name in names:
            site.submit(watched.namespace, name)
        for name in names:
            site.await_pods(watched.namespace, name, f"{name}-worker-0", timeout=90)
        text = cluster.kubectl("get", "--raw", "/metrics")
        refused = [line for line in text.splitlines() if line.startswith("apiserver_dropped_requests_total")]
        assert refused, "it refused nothing"
    check_one_partition_each(watched)
