"""The CEL rules of the definition, on today's server: within its cost budget, and saying what the webhook says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorings.core.errors import MooringsError
from moorings.kubernetes.admission import check_ipujob, check_update
from moorings.kubernetes.ipujob import API_VERSION, KIND, PLURAL
from tests.kubernetes.cluster import KubernetesCluster, KubernetesError, Obj, new_folder, until
from tests.kubernetes.crd_server import CrdServer

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "kubernetes" / "CRDs-cel" / "graphcore.ai_ipujobs.yaml"
EXAMPLES = ROOT / "examples" / "kubernetes"
JOBS = f"/apis/{API_VERSION}/namespaces/default/{PLURAL}"
MERGE_PATCH = "application/merge-patch+json"
LAUNCHER = {"command": ["mpirun", "x"], "args": ["y"]}

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1200)]  # where it is not cached yet, it is built first

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[CrdServer]:
    """The server, with IPUJobs."""
    with KubernetesCluster(new_folder()) as cluster:
        server = CrdServer(cluster)
        definition = yaml.safe_load(FILE.read_text())
        server.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        until(lambda: is_served(server))
        yield server


def is_served(server: CrdServer) -> bool:
    try:
        server.api("GET", JOBS)
    except KubernetesError:  # not found, or told to come again
        return False
    return True


def a_job(**spec: Any) -> Obj:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    full = {"ipusPerJobInstance": "4", "workers": {"template": template}, **spec}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": f"job-{next(_numbers)}"},
        "spec": {name: value for name, value in full.items() if value is not None},
    }


def refused(server: CrdServer, job: Obj) -> str:
    """What the server says when it refuses a job; the webhook refuses it, too."""
    with pytest.raises(MooringsError):
        check_ipujob(job)
    with pytest.raises(KubernetesError) as caught:
        server.api("POST", JOBS, job)
    assert caught.value.status == 422
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_the_examples_are_let_in(server, name):
    (job,) = [each for each in yaml.safe_load_all((EXAMPLES / name).read_text()) if each["kind"] == KIND]
    made = server.api("POST", JOBS, job)
    assert made["spec"]["restartPolicy"] == {"type": "Never", "backOffLimit": 3}
    server.api("DELETE", f"{JOBS}/{job['metadata']['name']}")


@pytest.mark.parametrize(
    "spec",
    [
        {"ipusPerJobInstance": None, "modelReplicas": 4},
        {"ipusPerJobInstance": None, "ipusPerModelReplica": "4"},
        {"interactive": {}, "launcher": {"image": "i"}},
        {"jobInstances": 4096},
        {"jobInstances": 0},
    ],
    ids=str,
)
def test_what_can_run_is_let_in(server, spec):
    job = a_job(**spec)
    check_ipujob(job)
    server.api("POST", JOBS, job)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"ipusPerJobInstance": None}, "ipusPerJobInstance is missing"),
        ({"launcher": LAUNCHER, "interactive": {"ttl": 1}}, "launcher.command and interactive exclude each other"),
        ({"launcher": {"image": "i"}}, "launcher.command is missing"),
        ({"workerPerJobInstance": "3"}, "ipusPerJobInstance must be a multiple of workerPerJobInstance"),
        ({"workerPerJobInstance": 2, "jobInstances": 2049}, "is more than 4096 worker Pods"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(server, spec, message):
    assert message in refused(server, a_job(**spec))


def test_two_spellings_that_differ_are_refused(server):
    job = a_job(workerPerJobInstance="2")
    job["spec"]["workers"]["replicas"] = 4
    assert "workers.replicas and workerPerJobInstance mean the same and differ" in refused(server, job)
    job["spec"]["workers"]["replicas"] = 2
    server.api("POST", JOBS, job)


def test_a_name_over_the_vendor_s_limit_is_refused_with_the_reason(server):
    job = a_job()
    job["metadata"]["name"] = "x" * 37
    assert "at most 36 characters are allowed: the vendor's library fails on longer names" in refused(server, job)
    job["metadata"]["name"] = "x" * 36
    server.api("POST", JOBS, job)


# -- changes -----------------------------------------------------------------------------------------------------------


def change(server: CrdServer, made: Obj, spec: Obj) -> Obj:
    return server.api("PATCH", f"{JOBS}/{made['metadata']['name']}", {"spec": spec}, content_type=MERGE_PATCH)


@pytest.mark.parametrize(
    "spec",
    [
        {"jobInstances": 3},
        {"restartPolicy": {"type": "OnFailure", "backOffLimit": 3}},
        {"cleanPodPolicy": "All", "releaseOnFinish": False},
        {"ipusPerJobInstance": 4},  # the same, without quotes
    ],
    ids=str,
)
def test_what_may_change_changes(server, spec):
    made = server.api("POST", JOBS, a_job(launcher=LAUNCHER))
    after = change(server, made, spec)
    check_update(made, after)
    assert after["spec"] == {**made["spec"], **spec}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"ipusPerJobInstance": "8"}, "spec.ipusPerJobInstance"),
        ({"workerPerJobInstance": "4"}, "spec.workerPerJobInstance"),
        ({"modelReplicasPerWorker": 2}, "spec.modelReplicasPerWorker"),
        ({"launcher": {"command": ["other"]}}, "spec.launcher.command"),
        ({"launcher": {"args": ["other"]}}, "spec.launcher.args"),
        ({"launcher": None}, "spec"),
        ({"priority": 5}, "spec.priority"),
    ],
    ids=str,
)
def test_what_makes_the_partition_or_the_pods_stays(server, spec, field):
    made = server.api("POST", JOBS, a_job(launcher=LAUNCHER, workerPerJobInstance="2", modelReplicasPerWorker=1))
    wanted = {**made["spec"], **spec}
    if isinstance(spec.get("launcher"), dict):
        wanted["launcher"] = {**LAUNCHER, **spec["launcher"]}
    with pytest.raises(MooringsError):
        check_update(made, {**made, "spec": {name: value for name, value in wanted.items() if value is not None}})
    with pytest.raises(KubernetesError, match=f" {field}: Invalid value: .* while the job exists"):
        change(server, made, spec)


@pytest.mark.parametrize("state", ["Completed", "Failed"])
def test_a_job_that_has_ended_is_not_scaled(server, state):
    made = server.api("POST", JOBS, a_job())
    path = f"{JOBS}/{made['metadata']['name']}"
    server.api("PATCH", f"{path}/status", {"status": {"status": state}}, content_type=MERGE_PATCH)
    with pytest.raises(KubernetesError, match="the job has ended and cannot be scaled"):
        change(server, made, {"jobInstances": 2})
    with pytest.raises(KubernetesError, match="the job has ended and cannot be scaled"):
        server.api("PATCH", f"{path}/scale", {"spec": {"replicas": 2}}, content_type=MERGE_PATCH)
    change(server, made, {"cleanPodPolicy": "All"})


def test_a_job_is_not_scaled_beyond_what_a_job_may_have(server):
    made = server.api("POST", JOBS, a_job(workerPerJobInstance="4"))
    path = f"{JOBS}/{made['metadata']['name']}/scale"
    with pytest.raises(KubernetesError, match="is more than 4096 worker Pods"):
        server.api("PATCH", path, {"spec": {"replicas": 1025}}, content_type=MERGE_PATCH)
    assert server.api("PATCH", path, {"spec": {"replicas": 1024}}, content_type=MERGE_PATCH)["spec"]["replicas"] == 1024
