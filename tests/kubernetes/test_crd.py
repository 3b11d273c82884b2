"""The definition of IPUJobs on a real API server: what it takes, fills in, refuses, scales and prints."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.ipujob.fields import NAME
from moorings.kubernetes.ipujob.parsing import parse_ipujob, parse_status, status_object
from moorings.kubernetes.ipujob.types import API_VERSION, KIND, PLURAL, Condition, InstanceStatus, IPUJobStatus
from moorings.kubernetes.ipujob.validation import default_ipujob
from moorings.wire.codec import parse_time
from tests.kubernetes.cluster import KubernetesCluster, KubernetesError, Obj

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "kubernetes"
DEFINITIONS = ROOT / "deploy" / "kubernetes"
FILE = DEFINITIONS / "CRDs" / "graphcore.ai_ipujobs.yaml"
FILE_CEL = DEFINITIONS / "CRDs-cel" / "graphcore.ai_ipujobs.yaml"

JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
SELECTOR = "graphcore.ai/job-name=job,graphcore.ai/job-role=worker"


@pytest.fixture
def served(cluster: KubernetesCluster) -> KubernetesCluster:
    """The cluster, with IPUJobs."""
    try:
        cluster.api("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}")
    except KubernetesError:
        cluster.kubectl("apply", "-f", str(FILE))
    cluster.wait(lambda: cluster.run_kubectl("get", PLURAL).returncode == 0)
    return cluster


def path_of(namespace: str, name: str = "") -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}" + (f"/{name}" if name else "")


def a_job(**spec: Any) -> Obj:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    full = {"ipusPerJobInstance": "4", "workers": {"template": template}, **spec}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "job"},
        "spec": {name: value for name, value in full.items() if value is not None},
    }


def create(served: KubernetesCluster, namespace: str, **spec: Any) -> Obj:
    return served.api("POST", path_of(namespace), a_job(**spec))


def write_status(served: KubernetesCluster, namespace: str, status: IPUJobStatus) -> Obj:
    value = {**status_object(status), "selector": SELECTOR}
    body = [{"op": "add", "path": "/status", "value": value}]
    return served.api("PATCH", f"{path_of(namespace, 'job')}/status", body, content_type=JSON_PATCH)


# -- the definition --------------------------------------------------------------------------------------------------


def test_the_definition_is_taken_as_it_is(served):
    found = served.get("crd", NAME)
    holds = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert holds.get("NamesAccepted") == "True"
    assert "NonStructuralSchema" not in holds
    written = yaml.safe_load(FILE.read_text())["spec"]["versions"][0]
    assert found["spec"]["versions"][0] == written


@pytest.mark.of_1_20
def test_kubectl_refuses_rules_that_this_server_does_not_know(served):
    done = served.run_kubectl("apply", "-f", str(FILE_CEL))
    assert done.returncode == 1
    assert 'unknown field "x-kubernetes-validations"' in done.stderr


def test_applying_it_again_changes_nothing(served):
    assert (
        served.kubectl("apply", "-f", str(FILE)).strip()
        == f"customresourcedefinition.apiextensions.k8s.io/{NAME} unchanged"
    )


# -- jobs that are taken ---------------------------------------------------------------------------------------------


@pytest.fixture
def room(served: KubernetesCluster, namespace: str) -> Iterator[str]:
    """A namespace; what the examples make outside of it is taken away."""
    yield namespace
    served.kubectl("delete", "ipujobs", "--all", "-n", "default", "--wait=false")
    served.kubectl("delete", "pv", "--all", "--wait=false")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_an_example_is_stored_with_its_defaults(served, room, name):
    (given,) = [each for each in yaml.safe_load_all((EXAMPLES / name).read_text()) if each["kind"] == KIND]
    namespace = given["metadata"].get("namespace", room)
    said = served.kubectl("apply", "-f", str(EXAMPLES / name), "-n", namespace)
    assert f"ipujob.graphcore.ai/{given['metadata']['name']} created" in said
    stored = served.get("ipujob", given["metadata"]["name"], namespace)
    added = {name: stored["spec"][name] for name in stored["spec"].keys() - given["spec"].keys()}
    assert {name: stored["spec"][name] for name in given["spec"]} == given["spec"]
    assert added == {
        **({} if "cleanPodPolicy" in given["spec"] else {"cleanPodPolicy": "None"}),
        "releaseOnFinish": True,
        "restartPolicy": {"backOffLimit": 3, "type": "Never"},
    }


def test_nothing_of_a_template_is_lost(served, namespace):
    template = {
        "metadata": {"labels": {"app": "a"}, "annotations": {"b": "c"}, "somethingNew": {"a": 1}},
        "spec": {
            "containers": [{"name": "c", "image": "i", "somethingNew": [1], "resources": {"limits": {"cpu": 32}}}],
            "volumes": [{"name": "devshm", "emptyDir": {"medium": "Memory", "sizeLimit": "10Gi"}}],
            "hostIPC": True,
            "restartPolicy": "Never",
            "somethingNew": "x",
        },
    }
    launcher = {
        "command": ["mpirun"],
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "resources": {"limits": {"memory": "1Gi"}},
    }
    made = create(served, namespace, workers={"template": template}, launcher=launcher)
    assert made["spec"]["workers"] == {"template": template}
    assert made["spec"]["launcher"] == launcher


@pytest.mark.parametrize("number", [2, "2"])
def test_numbers_may_be_quoted_or_not(served, namespace, number):
    made = create(served, namespace, ipusPerJobInstance=number, workerPerJobInstance=number)
    assert made["spec"]["ipusPerJobInstance"] == number
    assert (parse_ipujob(made).ipus, parse_ipujob(made).workers) == (2, 2)


def test_older_names_are_taken(served, namespace):
    made = create(served, namespace, ipusPerJobInstance=None, modelReplicas=4, ipusPerModelReplica=1)
    assert (parse_ipujob(made).ipus, parse_ipujob(made).replicas) == (4, 4)


def test_what_is_inside_gets_defaults_too(served, namespace):
    made = create(served, namespace, interactive={}, restartPolicy={"type": "Always"})["spec"]
    assert made["interactive"] == {"ttl": 3600}
    assert made["restartPolicy"] == {"type": "Always", "backOffLimit": 3}


def test_the_webhook_s_patch_is_one_that_the_server_takes(served, namespace):
    made = create(served, namespace)
    patch = default_ipujob(made)
    assert patch
    after = served.api("PATCH", path_of(namespace, "job"), patch, content_type=JSON_PATCH)
    assert default_ipujob(after) == []
    assert after["spec"] == {**made["spec"], "workerPerJobInstance": "1", "modelReplicasPerWorker": "1", "priority": 0}
    served.api("PATCH", path_of(namespace, "job"), {"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)


# -- jobs that are refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"ipusPerJobInstance": "0"}, 'spec.ipusPerJobInstance: Invalid value: "0"'),
        ({"ipusPerJobInstance": 0}, "spec.ipusPerJobInstance in body should be greater than or equal to 1"),
        ({"ipusPerJobInstance": "many"}, 'spec.ipusPerJobInstance: Invalid value: "many"'),
        ({"ipusPerJobInstance": 1.5}, "spec.ipusPerJobInstance in body must be of type integer,string"),
        ({"ipusPerJobInstance": 1 << 21}, "spec.ipusPerJobInstance in body should be less than or equal to 1048576"),
        ({"workers": None}, "spec.workers: Required value"),
        ({"workers": {}}, "spec.workers.template: Required value"),
        (
            {"workers": {"template": {"spec": {"containers": []}}}},
            "spec.workers.template.spec.containers in body should have at least 1 items",
        ),
        ({"workers": {"template": {"metadata": {}}}}, "spec.workers.template.spec: Required value"),
        ({"jobInstances": -1}, "spec.jobInstances in body should be greater than or equal to 0"),
        ({"jobInstances": "1"}, "spec.jobInstances in body must be of type integer"),
        ({"launcher": {"command": "mpirun"}}, "spec.launcher.command in body must be of type array"),
        ({"launcher": {"command": []}}, "spec.launcher.command in body should have at least 1 items"),
        ({"launcher": {"command": ["x", 1]}}, "in body must be of type string"),  # today's says which of them
        ({"interactive": {"ttl": 0}}, "spec.interactive.ttl in body should be greater than or equal to 1"),
        (
            {"restartPolicy": {"type": "Maybe"}},
            'spec.restartPolicy.type: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"',
        ),
        ({"restartPolicy": {"backOffLimit": -1}}, "spec.restartPolicy.backOffLimit in body should be greater than"),
        ({"cleanPodPolicy": "Some"}, 'spec.cleanPodPolicy: Unsupported value: "Some"'),
        ({"releaseOnFinish": "no"}, "spec.releaseOnFinish in body must be of type boolean"),
        ({"priority": 1 << 30}, "spec.priority in body should be less than or equal to 1000000"),
    ],
    ids=str,
)
def test_what_is_of_the_wrong_kind_is_refused(served, namespace, spec, message):
    with pytest.raises(KubernetesError) as caught:
        create(served, namespace, **spec)
    assert caught.value.status == 422
    assert message in str(caught.value)


def test_a_job_without_a_spec_is_refused(served, namespace):
    with pytest.raises(KubernetesError, match="spec: Required value"):
        served.api("POST", path_of(namespace), {name: value for name, value in a_job().items() if name != "spec"})


# -- status, scale, columns ------------------------------------------------------------------------------------------


def a_condition(name: str, at: str, *, status: bool) -> Condition:
    moment = parse_time(at)
    message = f"IPUJob default/job is {name.lower()}."
    return Condition(
        type=name, status=status, reason=f"IPUJob{name}", message=message, changed_at=moment, updated_at=moment
    )


STATUS = IPUJobStatus(
    state="Running",
    current=4,
    desired=4,
    message="Successfully reconciled IPUJob",
    conditions=(
        a_condition("Pending", "2021-03-22T10:10:31Z", status=False),
        a_condition("Running", "2021-03-22T10:10:45Z", status=True),
    ),
    partition_created=True,
    launcher="Running",
    started_at=parse_time("2021-03-22T10:10:31Z"),
    completed_at=Timestamp(0),
    workers_active=1,
    observed_generation=1,
    instances={0: InstanceStatus(restarts=1, failures=1, detail="exit code 1")},
)


def test_a_status_is_kept_as_it_was_written(served, namespace):
    create(served, namespace)
    write_status(served, namespace, STATUS)
    stored = served.get("ipujob", "job", namespace)
    assert stored["status"] == {**status_object(STATUS), "selector": SELECTOR}
    assert parse_status(stored["status"]) == STATUS
    assert write_status(served, namespace, IPUJobStatus())["status"] == {
        **status_object(IPUJobStatus()),
        "selector": SELECTOR,
    }


def test_the_columns_are_those_people_know(served, namespace):
    create(served, namespace, jobInstances=4)
    heads, before = served.kubectl("get", "ipujobs", "-n", namespace).splitlines()
    assert heads.split() == ["NAME", "STATUS", "CURRENT", "DESIRED", "LASTMESSAGE", "AGE"]
    assert re.fullmatch(r"job +4 +\d+s", before)
    write_status(served, namespace, STATUS)
    for words in (("ipujobs",), ("ipuj",), ("ipujobs.graphcore.ai",)):
        _, after = served.kubectl("get", *words, "-n", namespace).splitlines()
        assert re.fullmatch(r"job +Running +4 +4 +Successfully reconciled IPUJob +\d+s", after)


def test_it_is_listed_with_everything(served, namespace):
    create(served, namespace)
    assert "ipujob.graphcore.ai/job " in served.kubectl("get", "all", "-n", namespace)


def test_describe_shows_what_it_always_showed(served, namespace):
    create(served, namespace)
    write_status(served, namespace, STATUS)
    # Without spaces: how a name is parted is kubectl's own, "I PU Partition" in 1.20 and "IPU Partition" in 1.36.
    said = [
        "".join(line.split()) for line in served.kubectl("describe", "ipujobs", "job", "-n", namespace).splitlines()
    ]
    for line in (
        "API Version: graphcore.ai/v1alpha1",
        "Clean Pod Policy: None",
        "Back Off Limit: 3",
        "Last Transition Time: 2021-03-22T10:10:31Z",
        "Reason: IPUJobPending",
        "IPU Partition Created: true",
        "Launcher Status: Running",
        "Restart Count: 0",
        "Start Time: 2021-03-22T10:10:31Z",
        "Workers Status:",
        "Active: 1",
    ):
        assert line.replace(" ", "") in said, said


def test_a_job_is_scaled(served, namespace):
    create(served, namespace)
    for number in (2, 4, 1, 0):
        said = served.kubectl("scale", "ipujob.graphcore.ai/job", "--replicas", str(number), "-n", namespace)
        assert said.strip() == "ipujob.graphcore.ai/job scaled"
        assert served.get("ipujob", "job", namespace)["spec"]["jobInstances"] == number
    done = served.run_kubectl("scale", "ipujob/job", "--replicas", "4097", "-n", namespace)
    assert "spec.jobInstances in body should be less than or equal to 4096" in done.stderr


def test_who_scales_it_sees_how_many_there_are_and_which_pods(served, namespace):
    create(served, namespace, jobInstances=2)
    write_status(served, namespace, STATUS)
    scale = served.api("GET", f"{path_of(namespace, 'job')}/scale")
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 4, "selector": SELECTOR}


def test_the_spec_and_the_status_are_written_apart(served, namespace):
    made = create(served, namespace)
    write_status(served, namespace, STATUS)
    changed = copy.deepcopy(made)
    changed["status"] = {"status": "Failed"}
    changed["spec"]["jobInstances"] = 3
    del changed["metadata"]["resourceVersion"]
    body = json.loads(json.dumps({"spec": changed["spec"], "status": changed["status"]}))
    after = served.api("PATCH", path_of(namespace, "job"), body, content_type=MERGE_PATCH)
    assert (after["spec"]["jobInstances"], after["status"]["status"]) == (3, "Running")
    assert after["metadata"]["generation"] == 2


@pytest.mark.whole  # an API server of 1.20 tells of another's definitions minutes later
@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("ipujob", "A job on IPUs"),
        ("ipujob.spec", "IPUs of the partition of each instance"),
        ("ipujob.spec.ipusPerJobInstance", "IPUs of the partition of each instance"),
        ("ipujob.spec.restartPolicy.backOffLimit", "Restarts after failures, at most"),
        ("ipujob.spec.workers.template", "Template of the worker Pods"),
        ("ipujob.status.conditions.lastUpdateTime", "When anything of it changed last"),
    ],
)
def test_fields_are_explained(served, field, words):
    def explained() -> bool:
        done = served.run_kubectl("explain", field)  # the server publishes a new definition a little later
        return words in " ".join(done.stdout.split())

    served.wait(explained)
