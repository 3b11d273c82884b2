"""The CEL rules of the definition: they let in what the webhook lets in, and say what it says.

Every case is put to ``rules.py``; in a whole run also to today's server, which has a cost budget besides, and all their
answers are compared: what is stored, or the causes of a refusal, word for word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.types import API_VERSION, KIND
from moorings.kubernetes.ipujob.validation import check_ipujob, check_update
from tests.kubernetes.cluster import KubernetesCluster, Obj, new_folder
from tests.kubernetes.crd_server import Agreeing, CrdServer, Server
from tests.kubernetes.rules import Evaluator, Judge, RefusedError
from tests.sampling import whole

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "kubernetes" / "CRDs-cel" / "graphcore.ai_ipujobs.yaml"
EXAMPLES = ROOT / "examples" / "kubernetes"
LAUNCHER = {"command": ["mpirun", "x"], "args": ["y"]}

_REAL = (pytest.mark.kubernetes, pytest.mark.timeout(1200))  # where it is not cached yet, it is built first
_numbers = count(1)


@pytest.fixture(scope="module", params=["evaluator", pytest.param("server", marks=_REAL if whole() else ())])
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    definition = yaml.safe_load(FILE.read_text())
    if request.param == "evaluator":
        yield Evaluator(definition)
        return
    if not whole():
        pytest.skip("a sample: today's CRD server is asked in a whole run")
    with KubernetesCluster(new_folder()) as cluster:
        yield Agreeing(Server(CrdServer(cluster), definition), Evaluator(definition))


def a_job(**spec: Any) -> Obj:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    full = {"ipusPerJobInstance": "4", "workers": {"template": template}, **spec}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": f"job-{next(_numbers)}"},
        "spec": {name: value for name, value in full.items() if value is not None},
    }


def refused(judge: Judge, job: Obj) -> str:
    """What the judge says when it refuses a job; the webhook refuses it, too."""
    with pytest.raises(MooringsError):
        check_ipujob(job)
    with pytest.raises(RefusedError) as caught:
        judge.create(job)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_the_examples_are_let_in(judge, name):
    (job,) = [each for each in yaml.safe_load_all((EXAMPLES / name).read_text()) if each["kind"] == KIND]
    job["metadata"]["name"] += f"-{next(_numbers)}"  # two have the same
    made = judge.create(job)
    assert made["spec"]["restartPolicy"] == {"type": "Never", "backOffLimit": 3}


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
def test_what_can_run_is_let_in(judge, spec):
    job = a_job(**spec)
    check_ipujob(job)
    judge.create(job)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"ipusPerJobInstance": None}, "ipusPerJobInstance is missing"),
        ({"launcher": LAUNCHER, "interactive": {"ttl": 1}}, "launcher.command and interactive exclude each other"),
        ({"launcher": {"image": "i"}}, "launcher.command is missing"),
        ({"workerPerJobInstance": "3"}, "ipusPerJobInstance must be a multiple of workerPerJobInstance"),
        ({"ipusPerJobInstance": 17, "workerPerJobInstance": 17, "jobInstances": 241}, "is more than 4096 worker Pods"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(judge, spec, message):
    assert message in refused(judge, a_job(**spec))


def test_two_spellings_that_differ_are_refused(judge):
    job = a_job(workerPerJobInstance="2")
    job["spec"]["workers"]["replicas"] = 4
    assert "workers.replicas and workerPerJobInstance mean the same and differ" in refused(judge, job)
    job["spec"]["workers"]["replicas"] = 2
    judge.create(job)


def test_a_name_over_the_vendor_s_limit_is_refused_with_the_reason(judge):
    job = a_job()
    job["metadata"]["name"] = "x" * 37
    assert "at most 36 characters are allowed: the vendor's library fails on longer names" in refused(judge, job)
    job["metadata"]["name"] = "x" * 36
    judge.create(job)


# -- changes -----------------------------------------------------------------------------------------------------------


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
def test_what_may_change_changes(judge, spec):
    made = judge.create(a_job(launcher=LAUNCHER))
    after = judge.change(made, spec)
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
        ({"priority": 5}, "spec"),
    ],
    ids=str,
)
def test_what_makes_the_partition_or_the_pods_stays(judge, spec, field):
    made = judge.create(a_job(launcher=LAUNCHER, workerPerJobInstance="2", modelReplicasPerWorker=1))
    wanted = {**made["spec"], **spec}
    if isinstance(spec.get("launcher"), dict):
        wanted["launcher"] = {**LAUNCHER, **spec["launcher"]}
    with pytest.raises(MooringsError):
        check_update(made, {**made, "spec": {name: value for name, value in wanted.items() if value is not None}})
    with pytest.raises(RefusedError) as caught:
        judge.change(made, spec)
    (cause,) = caught.value.causes
    assert re.match(f"{field}: Invalid value: .* while the job exists", cause)


@pytest.mark.parametrize(
    ("name", "value"),
    [("activeDeadlineSeconds", 60), ("managedBy", "a.example/x"), ("priorityClassName", "low")],
)
def test_what_the_queue_was_promised_neither_comes_nor_goes(judge, name, value):
    for before, after in ((None, value), (value, None)):
        made = judge.create(a_job(**{name: before}))
        with pytest.raises(MooringsError):
            check_update(made, a_job(**{name: after}))
        with pytest.raises(RefusedError, match=f"{name} cannot come or go while the job exists"):
            judge.change(made, {name: after})


@pytest.mark.parametrize("state", ["Completed", "Failed"])
def test_a_job_that_has_ended_is_not_scaled(judge, state):
    made = judge.change_status(judge.create(a_job()), {"status": state})
    with pytest.raises(RefusedError, match="the job has ended and cannot be scaled"):
        judge.change(made, {"jobInstances": 2})
    with pytest.raises(RefusedError, match="the job has ended and cannot be scaled"):
        judge.scale(made, 2)
    judge.change(made, {"cleanPodPolicy": "All"})


def test_a_job_is_not_scaled_beyond_what_a_job_may_have(judge):
    made = judge.create(a_job(workerPerJobInstance="4"))
    with pytest.raises(RefusedError, match="is more than 4096 worker Pods"):
        judge.scale(made, 1025)
    assert judge.scale(made, 1024)["spec"]["jobInstances"] == 1024
