"""Borrowed IPUs go back to who is guaranteed them: Pods end, the job waits in its old place, and goes on (law 6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster, Obj
from tests.kubernetes.laws import Watcher, lawful
from tests.kubernetes.site import CLUSTER, Site, ipu_site, template

PHOENIX = Path(__file__).with_name("phoenix.py")
PREEMPTIBLE = {"graphcore.ai/preemptible": "true"}
POLICY = 'min_run = 0\nyield = "40s"\n'
LAUNCHER = {"command": ["mpirun", "train"]}


@pytest.fixture(scope="module")
def site(kept_cluster: KubernetesCluster) -> Iterator[Site]:
    with ipu_site(kept_cluster, start=False, policy=POLICY) as found:
        found.start_proxy()
        yield found


@pytest.fixture
def lab(site: Site, watched: Watcher) -> Iterator[str]:
    """A namespace that is guaranteed all 16 IPUs; everybody else only borrows them."""
    with lawful(site) as watcher:
        project = f"lab-{watcher.namespace}"
        shares = [{"pool": "pool1", "blocks": {"16": 1}}]
        body = {"shares": shares, "aliases": [f"kubernetes/{CLUSTER}/{watcher.namespace}"]}
        status, answer = site.pod.ask("PUT", f"/v1/projects/{project}", body)
        assert status in (200, 201), answer
        yield watcher.namespace
    site.cluster.wait(lambda: site.pod.ask("DELETE", f"/v1/projects/{project}")[0] in (200, 204))


@pytest.fixture
def operator(site: Site) -> Iterator[None]:
    site.start_operator()
    yield
    site.stop_operator()


@pytest.fixture
def places(site: Site, tmp_path: Path) -> Iterator[Path]:
    """Where operators died."""
    program, site.program = site.program, [str(PHOENIX)]
    site.start_operator("operator", f"--places={tmp_path / 'places'}")
    yield tmp_path / "places"
    site.stop_operator()
    site.program = program


def claim_of(site: Site, job: str) -> Obj:
    (found,) = (one for one in site.pod.claims() if one["owner"].split("/")[3] == job)
    return found


def lend(site: Site, home: str, *, launcher: bool) -> dict[str, Obj]:
    """A job that runs on all IPUs, and may be asked to give them back; its Pods."""
    more = {"launcher": LAUNCHER} if launcher else {}
    site.submit(home, "lent", annotations=PREEMPTIBLE, ipusPerJobInstance="16", workerPerJobInstance="2", **more)
    names = ["lent-worker-0", "lent-worker-1", *(["lent-launcher"] if launcher else [])]
    pods = site.await_pods(home, "lent", *names, timeout=90)
    for name in names:
        site.run_pod(home, name)
    site.await_state(home, "lent", "Running")
    return pods


def go_on(site: Site, lab: str, home: str, before: dict[str, Obj]) -> None:
    """The lab's job has its IPUs, and ends; then the borrower continues with new Pods."""
    site.await_pods(lab, "own", "own-worker-0", timeout=120)
    site.run_pod(lab, "own-worker-0")
    site.await_state(lab, "own", "Running")
    site.await_state(home, "lent", "Pending")
    # An operator that was killed at its last word may say so a moment later.
    site.cluster.wait(lambda: "waiting for" in site.status(home, "lent")["lastMessage"])
    status = site.status(home, "lent")
    assert (status["status"], status.get("restartCount", 0)) == ("Pending", 0)
    assert (claim_of(site, "lent")["state"], claim_of(site, "lent")["attempt"]) == ("PENDING", 1)
    site.end_pod(lab, "own-worker-0", 0)
    site.await_state(lab, "own", "Completed")
    for name, pod in before.items():
        site.await_another(home, "lent", name, pod["metadata"]["uid"])
    for name in before:
        site.run_pod(home, name)
    site.await_state(home, "lent", "Running")


@pytest.mark.smoke
@pytest.mark.parametrize("launcher", [True, False], ids=["training", "inference"])
def test_a_borrower_gives_its_ipus_back_keeps_its_place_and_goes_on(
    site: Site, operator: None, watched: Watcher, home: str, lab: str, launcher: bool
) -> None:
    before = lend(site, home, launcher=launcher)
    arrived = claim_of(site, "lent")["createdAt"]
    site.submit(lab, "own", ipusPerJobInstance="16")
    go_on(site, lab, home, before)
    claim = claim_of(site, "lent")
    assert (claim["state"], claim["createdAt"]) == ("READY", arrived)
    told = {one["reason"]: one["message"] for one in site.cluster.list("events", home)}
    assert "its IPUs were lent, and are needed" in told["MakingRoom"]
    ends = ["lent-launcher"] if launcher else ["lent-worker-0", "lent-worker-1"]
    for name in ends:
        site.end_pod(home, name, 0)
    assert site.await_state(home, "lent", "Completed").get("restartCount", 0) == 0


def test_one_that_does_not_say_so_is_never_asked(
    site: Site, operator: None, watched: Watcher, home: str, lab: str
) -> None:
    site.submit(home, "firm", ipusPerJobInstance="16")
    site.cluster.wait(lambda: "guaranteed to others" in site.status(home, "firm").get("lastMessage", ""))
    assert claim_of(site, "firm")["state"] == "PENDING"
    site.submit(lab, "own", ipusPerJobInstance="16")
    site.await_pods(lab, "own", "own-worker-0", timeout=60)


def test_a_job_that_is_deleted_while_it_makes_room_leaves_nothing(
    site: Site, operator: None, watched: Watcher, home: str, lab: str
) -> None:
    lend(site, home, launcher=True)
    site.stop_operator()
    site.submit(lab, "own", ipusPerJobInstance="16")
    site.delete(home, "lent")
    site.start_operator()
    site.cluster.wait(lambda: site.is_gone(home, "lent"), 60)
    site.await_pods(lab, "own", "own-worker-0", timeout=60)


def test_a_program_that_does_not_mind_is_ended_in_time(node_cluster: KubernetesCluster) -> None:
    """On a real node: TERM is ignored, and the Pod says that it may take ten minutes."""
    (node,) = node_cluster.nodes
    with ipu_site(node_cluster, policy='min_run = 0\nyield = "10s"\n') as site, lawful(site) as watched:
        home = watched.namespace
        project = {"shares": [{"pool": "pool1", "blocks": {"16": 1}}]}
        assert site.pod.ask("PUT", "/v1/projects/lab", project)[0] in (200, 201)
        node_cluster.kubectl("label", "node", node.name, "ipunode=pod1", "--overwrite")
        busybox = images.busybox().name
        deaf = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
        pods = template(*deaf, image=busybox, terminationGracePeriodSeconds=600)
        site.submit(home, "lent", annotations=PREEMPTIBLE, ipusPerJobInstance="16", workers={"template": pods})
        site.await_state(home, "lent", "Running")
        claim = {"size": 16, "project": "lab", "accelerator": "ipu", "name": "own"}
        status, own = site.pod.ask("POST", "/v1/claims", claim)
        assert status in (200, 201), own
        begun = time.monotonic()
        node_cluster.wait(lambda: site.pod.ask("GET", f"/v1/claims/{own['id']}")[1]["state"] == "READY", 60)
        assert time.monotonic() - begun > 3, "it had some time"
        site.await_state(home, "lent", "Pending")
        assert site.job_pods(home, "lent") == {}
        site.pod.ask("DELETE", f"/v1/claims/{own['id']}")
        site.await_state(home, "lent", "Running")
        site.delete(home, "lent")
        node_cluster.kubectl("delete", "pod", "lent-worker-0", "-n", home, "--grace-period=0", "--force")


def test_the_operator_is_killed_before_and_after_everything_it_does_for_it(
    site: Site, places: Path, watched: Watcher, home: str, lab: str
) -> None:
    before = lend(site, home, launcher=True)
    site.submit(lab, "own", ipusPerJobInstance="16")
    go_on(site, lab, home, before)
    hit = places.read_text().splitlines()
    assert {"before yield lent 0", "after yield lent 0"} <= set(hit)
    for name, pod in before.items():
        assert f"before delete Pod {name} {pod['metadata']['uid']}" in hit


def test_a_job_that_can_go_on_is_moved_by_an_order_and_nothing_is_charged(
    site: Site, operator: None, watched: Watcher, home: str
) -> None:
    """Defragmentation: it runs again on the devices kept for it, in its old place, and the room is one block."""
    with lawful(site):
        for name in ("first", "second", "third"):
            said = {**PREEMPTIBLE, "graphcore.ai/resumable": "true"}
            site.submit(home, name, annotations=said, ipusPerJobInstance="4")
            site.await_pods(home, name, f"{name}-worker-0", timeout=60)
            site.run_pod(home, f"{name}-worker-0")
            site.await_state(home, name, "Running")
        site.delete(home, "first")
        site.cluster.wait(lambda: site.is_gone(home, "first"), 60)
        before = {name: claim_of(site, name) for name in ("second", "third")}
        pods = {name: site.job_pods(home, name)[f"{name}-worker-0"] for name in before}
        status, told = site.pod.ask("POST", "/v1/defragment", {"size": 8, "pool": "pool1"})
        assert status == 200, told
        (move,) = told["moves"]
        (moved,) = (name for name, claim in before.items() if claim["id"] == move["claim"])
        site.await_another(home, moved, f"{moved}-worker-0", pods[moved]["metadata"]["uid"])
        site.run_pod(home, f"{moved}-worker-0")
        assert site.await_state(home, moved, "Running").get("restartCount", 0) == 0
        after = {name: claim_of(site, name) for name in before}
        assert (after[moved]["devices"], after[moved]["attempt"]) == (move["to"], 1)
        assert after[moved]["createdAt"] == before[moved]["createdAt"]
        (other,) = set(before) - {moved}
        assert after[other]["devices"] == before[other]["devices"]
        site.submit(home, "large", ipusPerJobInstance="8")
        site.await_pods(home, "large", "large-worker-0", timeout=60)


@pytest.mark.parametrize("watching", [True, False], ids=["operator-sees-it", "both-away"])
def test_the_controller_is_killed_while_a_job_makes_room(
    site: Site, operator: None, watched: Watcher, home: str, lab: str, watching: bool
) -> None:
    before = lend(site, home, launcher=True)
    if not watching:
        site.stop_operator()
    claim = {"size": 16, "project": f"lab-{lab}", "accelerator": "ipu", "name": f"own-{lab}"}
    status, own = site.pod.ask("POST", "/v1/claims", claim)
    assert status in (200, 201), own
    site.cluster.wait(lambda: claim_of(site, "lent")["state"] == "RECLAIMING", 30)
    site.pod.kill()
    if not watching:
        site.start_operator()
    site.pod.start()
    site.cluster.wait(lambda: site.pod.ask("GET", f"/v1/claims/{own['id']}")[1]["state"] == "READY", 60)
    assert site.await_state(home, "lent", "Pending").get("restartCount", 0) == 0
    assert site.job_pods(home, "lent") == {}
    (held,) = site.pod.partitions()
    assert held["owner"] == own["owner"]
    site.pod.ask("DELETE", f"/v1/claims/{own['id']}")
    for name, pod in before.items():
        site.await_another(home, "lent", name, pod["metadata"]["uid"])
        site.run_pod(home, name)
    site.await_state(home, "lent", "Running")
    assert claim_of(site, "lent")["attempt"] == 1
