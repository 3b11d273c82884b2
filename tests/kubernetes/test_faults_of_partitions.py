"""Proxy or controller away, hardware that loses a partition, too few of them: jobs wait, are told why, and continue."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.kubernetes.cluster import KubernetesCluster, Obj
from tests.kubernetes.laws import Watcher
from tests.kubernetes.site import Pod, Site, ipu_site
from tests.waiting import until

AGAIN = {"type": "OnFailure"}


@pytest.fixture(scope="module")
def site(kept_cluster: KubernetesCluster) -> Iterator[Site]:
    with ipu_site(kept_cluster, sizes=(16, 16)) as found:
        yield found


def await_words(site: Site, namespace: str, name: str, *words: str, timeout: float = 60) -> str:
    """Wait until LASTMESSAGE has one of these; it."""

    def told() -> str:
        message = str(site.status(namespace, name).get("lastMessage", ""))
        return message if any(word in message for word in words) else ""

    return site.cluster.wait(told, timeout, what=lambda: f"{name}: {site.status(namespace, name)}")


def held(site: Site) -> dict[str, set[str]]:
    """Owners of partitions, by controller."""
    return {pod.folder.name: {one["owner"].split("/")[3] for one in pod.partitions()} for pod in site.pods}


def resets(pod: Pod) -> int:
    """How many partitions a controller has reset."""
    return sum(one["name"] == "partition.reset" for one in pod.ask("GET", "/v1/events?limit=1000")[1]["items"])


def partition_of(pod: Obj) -> str:
    return str(pod["metadata"]["annotations"]["graphcore.ai/partition"])


# -- away --------------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_the_proxy_is_killed_in_the_midst_and_stays_away_for_a_while(site: Site, watched: Watcher, home: str) -> None:
    uids = {name: site.bring_up(home, name, restartPolicy=AGAIN) for name in ("stays", "fails", "goes")}
    site.submit(home, "begins")
    site.kill_proxy()
    site.submit(home, "comes")
    site.end_pod(home, "fails-worker-0", 1)
    site.delete(home, "goes")
    await_words(site, home, "comes", "proxy")
    await_words(site, home, "goes", "proxy")
    site.cluster.wait(lambda: site.status(home, "fails").get("restartCount") == 1)
    before = held(site)
    site.start_proxy()
    for name in ("begins", "comes"):
        site.await_pods(home, name, f"{name}-worker-0", timeout=10)  # and not when their next try is due
    site.await_another(home, "fails", "fails-worker-0", uids["fails"])
    site.cluster.wait(lambda: site.is_gone(home, "goes"))
    assert site.job_pods(home, "stays")["stays-worker-0"]["metadata"]["uid"] == uids["stays"]
    assert "goes" in set.union(*before.values())
    assert {owner: names for owner, names in watched.partitions.items() if len(names) != 1} == {}


@pytest.mark.smoke
def test_a_controller_is_killed_and_the_other_one_serves(site: Site, watched: Watcher, home: str) -> None:
    uid = site.bring_up(home, "first", ipusPerJobInstance="16")
    (where,) = [pod for pod in site.pods if "first" in held(site)[pod.folder.name]]
    (answers,) = [pod for pod in site.pods if pod is not where]
    before = resets(answers)
    where.kill()
    try:
        site.stop_operator()
        silent = f'moorings_proxy_controller_reachable{{controller="127.0.0.1:{where.port}"}} 0.0'
        until(lambda: silent in site.ask_proxy("/metrics"), 30)
        site.start_operator()  # one that has never heard all controllers
        site.submit(home, "elsewhere", ipusPerJobInstance="16")
        site.await_pods(home, "elsewhere", "elsewhere-worker-0", timeout=60)
        assert resets(answers) == before, "a new partition is not reset before its first use"
        site.submit(home, "waits", ipusPerJobInstance="16")
        await_words(site, home, "waits", "waiting")
        site.run_pod(home, "elsewhere-worker-0")
        site.await_state(home, "elsewhere", "Running")
        assert site.status(home, "first")["status"] == "Running"
        assert site.job_pods(home, "first")["first-worker-0"]["metadata"]["uid"] == uid
    finally:
        where.start()
    site.delete(home, "first")
    site.await_pods(home, "waits", "waits-worker-0", timeout=60)
    site.cluster.wait(lambda: site.is_gone(home, "first"))


def test_all_controllers_are_killed_and_nobody_loses_anything(site: Site, watched: Watcher, home: str) -> None:
    uid = site.bring_up(home, "stays", restartPolicy=AGAIN)
    for pod in site.pods:
        pod.kill()
    try:
        site.submit(home, "comes")
        await_words(site, home, "comes", "does not answer")
    finally:
        for pod in site.pods:
            pod.start()
    site.await_pods(home, "comes", "comes-worker-0", timeout=60)
    status = site.status(home, "stays")
    assert (status["status"], status.get("restartCount", 0)) == ("Running", 0)
    assert site.job_pods(home, "stays")["stays-worker-0"]["metadata"]["uid"] == uid
    assert {owner: names for owner, names in watched.partitions.items() if len(names) != 1} == {}


# -- lost --------------------------------------------------------------------------------------------------------------


def test_partitions_vanish_under_their_jobs(site: Site, watched: Watcher, home: str) -> None:
    """The hardware knows nothing of them any more; a controller believes that after half a minute."""
    with vanishing(site, 2):
        uid = site.bring_up(home, "again", ipusPerJobInstance="2", restartPolicy=AGAIN)
        site.bring_up(home, "never", ipusPerJobInstance="4")
        names = {name: partition_of(site.job_pods(home, name)[f"{name}-worker-0"]) for name in ("again", "never")}
        watched.vanished |= set(names.values())
        status = site.await_state(home, "never", "Failed")
        assert f"its partition {names['never']} vanished" in status["lastMessage"]
        site.cluster.wait(lambda: not site.job_pods(home, "never"))  # what lost its hardware runs no more
        site.await_another(home, "again", "again-worker-0", uid)
    site.run_pod(home, "again-worker-0")
    assert site.await_state(home, "again", "Running")["restartCount"] == 1
    site.end_pod(home, "again-worker-0", 0)
    site.await_state(home, "again", "Completed")
    held = {owner.split("/")[3]: len(ids) for owner, ids in watched.partitions.items()}
    assert held == {"again": 2, "never": 1}
    until(lambda: not any(pod.claims() for pod in site.pods))


@contextmanager
def vanishing(site: Site, times: int) -> Iterator[None]:
    """The next partitions of each controller disappear soon after they got ready."""
    files = [pod.data / "simulated" / f"pool{number}" / "faults.toml" for number, pod in enumerate(site.pods, 1)]
    for file in files:
        file.write_text(f'[[fault]]\nkind = "vanishes"\nseconds = 2.0\ntimes = {times}\n')
    yield
    for file in files:
        file.unlink()


# -- too few -----------------------------------------------------------------------------------------------------------


def test_jobs_that_race_for_the_last_partitions_follow_each_other(site: Site, watched: Watcher, home: str) -> None:
    """Two of four may run, as there are two controllers; the others are told why they wait."""
    until(lambda: not any(pod.partitions() for pod in site.pods), what=lambda: str(held(site)))
    names = {f"racer{number}" for number in range(4)}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: site.submit(home, name, ipusPerJobInstance="16"), sorted(names)))
    first = with_pods(site, home, names, 2)
    for name in names - first:
        await_words(site, home, name, "waiting for a partition of 16 IPUs")
    assert with_pods(site, home, names, 2) == first
    end_all(site, home, first)
    end_all(site, home, with_pods(site, home, names - first, 2))
    assert {len(partitions) for partitions in watched.partitions.values()} == {1}


def with_pods(site: Site, namespace: str, names: set[str], count: int) -> set[str]:
    """Wait until so many of the jobs have Pods; which."""

    def found() -> set[str]:
        have = {name for name in names if site.job_pods(namespace, name)}
        return have if len(have) == count else set()

    return site.cluster.wait(found)


def end_all(site: Site, namespace: str, names: set[str]) -> None:
    """Have jobs run to a good end."""
    for name in names:
        site.run_pod(namespace, f"{name}-worker-0")
        site.await_state(namespace, name, "Running")
        site.end_pod(namespace, f"{name}-worker-0", 0)
        site.await_state(namespace, name, "Completed")
