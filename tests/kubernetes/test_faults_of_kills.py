"""``kill -9`` of the operator before and after every single thing it does for a job, from the job's making to its end.

The places are found, not listed: every call that changes something is one, and who comes back dies at the next. So one
life of a job has dozens of operators, none of which knows what the one before did last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import KubernetesCluster
from tests.kubernetes.laws import Watcher
from tests.kubernetes.site import Site, ipu_site

PHOENIX = Path(__file__).with_name("phoenix.py")
LAUNCHER = {"command": ["mpirun", "hostname"]}


@pytest.fixture(scope="module")
def site(kept_cluster: KubernetesCluster) -> Iterator[Site]:
    with ipu_site(kept_cluster, start=False) as found:
        found.program = [str(PHOENIX)]
        found.start_proxy()
        yield found


@pytest.fixture
def places(site: Site, tmp_path: Path) -> Iterator[Path]:
    """Where operators died."""
    site.start_operator("operator", f"--places={tmp_path / 'places'}")
    yield tmp_path / "places"
    site.stop_operator()


def check_places(places: Path, *wanted: str) -> None:
    """It died before each of these, and after it, unless it did several at once and died of another."""
    hit = places.read_text().splitlines()
    for words in wanted:
        assert any(place.startswith(f"before {words}") for place in hit), f"no operator died before: {words}\n{hit}"
        together = words.startswith(("create", "delete")) or words.endswith((" 1", " 2"))
        assert together or any(place.startswith(f"after {words}") for place in hit), f"none after: {words}\n{hit}"
    kinds = {place.split()[1] for place in hit}  # the last of several at once is alone: it has its "after" too
    assert kinds == {place.split()[1] for place in hit if place.startswith("after ")}, hit
    assert len(hit) == len(set(hit))


def run_all(site: Site, namespace: str, *names: str) -> None:
    for name in sorted(names, reverse=True):  # workers before their launcher
        site.run_pod(namespace, name)


def test_a_training_job_that_fails_once_and_ends_well(site: Site, places: Path, watched: Watcher, home: str) -> None:
    pods = ("train-launcher", "train-worker-0", "train-worker-1")
    policy = {"type": "OnFailure"}
    site.submit(
        home, "train", ipusPerJobInstance="4", workerPerJobInstance="2", launcher=LAUNCHER, restartPolicy=policy
    )
    first = site.await_pods(home, "train", *pods, timeout=90)
    run_all(site, home, *pods)
    site.await_state(home, "train", "Running")
    site.end_pod(home, "train-launcher", 1)
    for name, pod in first.items():
        site.await_another(home, "train", name, pod["metadata"]["uid"])
    run_all(site, home, *pods)
    site.cluster.wait(lambda: site.status(home, "train").get("workersStatus", {}).get("active") == 2)
    site.end_pod(home, "train-launcher", 0)
    assert site.await_state(home, "train", "Completed")["restartCount"] == 1
    site.await_empty()
    (held,) = watched.partitions.values()
    assert len(held) == 1, "no second partition was made"
    assert sorted(site.job_pods(home, "train")) == sorted(pods)
    site.delete(home, "train")
    site.cluster.wait(lambda: site.is_gone(home, "train"))
    beside = ("ServiceAccount", "Role", "RoleBinding", "ConfigMap")
    made = [f"create {kind} train-" for kind in beside] + [f"create Pod {name} {n}" for name in pods for n in (0, 1)]
    gone = [f"delete Pod {name} {pod['metadata']['uid']}" for name, pod in first.items()]
    check_places(places, "patch IPUJob", "claim train 0", *made, *gone, "status train Completed", "release train 0")


def test_an_inference_job_that_is_restarted_and_scaled_and_deleted(
    site: Site, places: Path, watched: Watcher, home: str
) -> None:
    site.submit(home, "serve", ipusPerJobInstance="4", restartPolicy={"type": "OnFailure"})
    pod = site.await_pods(home, "serve", "serve-worker-0", timeout=60)["serve-worker-0"]
    site.run_pod(home, "serve-worker-0")
    site.await_state(home, "serve", "Running")
    site.end_pod(home, "serve-worker-0", 137)
    site.await_another(home, "serve", "serve-worker-0", pod["metadata"]["uid"])
    site.run_pod(home, "serve-worker-0")
    site.await_state(home, "serve", "Running")
    site.scale(home, "serve", 3)
    names = [f"serve-worker-{number}" for number in range(3)]
    site.await_pods(home, "serve", *names, timeout=60)
    run_all(site, home, *names)
    site.cluster.wait(lambda: site.status(home, "serve").get("currentInstances") == 3)
    site.scale(home, "serve", 1)
    site.await_pods(home, "serve", "serve-worker-0")
    site.cluster.wait(lambda: len(site.pod.partitions()) == 1)
    site.delete(home, "serve")
    site.cluster.wait(lambda: site.is_gone(home, "serve"), 60)
    site.await_empty()
    assert [len(held) for held in watched.partitions.values()] == [1, 1, 1], "no second partition was made"
    claims = [f"{what} serve {number}" for what in ("claim", "release") for number in range(3)]
    made = [f"create Pod serve-worker-{number}" for number in range(3)]
    gone = [f"delete Pod serve-worker-{number}" for number in range(3)]
    check_places(places, "patch IPUJob", *claims, *made, *gone, "reset serve 0", "status serve Running")
