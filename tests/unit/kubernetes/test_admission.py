"""What is let in: each rule with a job that keeps it and one that breaks it, and the sentence that is said then."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.names import BIN_DIR, CONFIG_DIR
from moorings.kubernetes.ipujob.parsing import parse_ipujob
from moorings.kubernetes.ipujob.types import FINALIZER, JobKind
from moorings.kubernetes.ipujob.validation import OUR_VARIABLES, check_ipujob, check_update, default_ipujob, find_errors
from moorings.kubernetes.kube.api import KubeObject
from moorings.kubernetes.operator.pod_builder import VOLUMES
from tests.cases import cases
from tests.unit.kubernetes.ipujobs import EXAMPLES, a_container, a_spec, a_template, an_object, example, objects

NAMES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
LAUNCHER = {"command": ["mpirun"]}


def workers(**spec: Any) -> KubeObject:
    return {"template": a_template(**spec)}


def refused(found: KubeObject) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        check_ipujob(found)
    assert caught.value.code == "ipujob.invalid"
    return caught.value


@pytest.mark.parametrize("name", ["preemptible", "resumable"])
def test_an_annotation_that_says_neither_yes_nor_no_is_refused(name: str) -> None:
    found = an_object(a_spec())
    found["metadata"]["annotations"] = {f"graphcore.ai/{name}": "yes"}
    error = refused(found)
    assert error.detail.endswith(f'metadata.annotations[graphcore.ai/{name}]: must be "true" or "false", not \'yes\'')
    for value in ("true", "false"):
        found["metadata"]["annotations"] = {f"graphcore.ai/{name}": value}
        assert getattr(check_ipujob(found), name) is (value == "true")


# -- a new job -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_are_let_in(name):
    assert check_ipujob(example(name)) == parse_ipujob(example(name))


GOOD: list[KubeObject] = [
    a_spec(),
    a_spec(ipusPerJobInstance=1 << 20),
    a_spec(workerPerJobInstance=4),
    a_spec(ipusPerJobInstance="3", workerPerJobInstance="3"),  # what sizes there are is the pool's to say
    a_spec(workerPerJobInstance=2, modelReplicasPerWorker=2),
    a_spec(ipusPerJobInstance=4096, jobInstances=1, workerPerJobInstance=4096),
    a_spec(jobInstances=4096),
    a_spec(launcher=LAUNCHER),
    a_spec(launcher={**LAUNCHER, "args": ["-np", "1"], "image": "other"}),
    a_spec(interactive={"ttl": 1}),
    a_spec(interactive={}, launcher={"image": "other"}),
    a_spec(workers=workers(restartPolicy="Never")),
    a_spec(workers=workers(restartPolicy="OnFailure")),
    a_spec(workers=workers(serviceAccountName="launcher")),
    a_spec(workers=workers(serviceAccountName="other-launcher-account")),
    a_spec(workers=workers(hostPID=True)),  # where an admin has not named namespaces
    a_spec(workers=workers(containers=[a_container(env=[{"name": "IPUOF_LOG_LEVEL", "value": "INFO"}])])),
    a_spec(workers=workers(containers=[a_container(env=[{"name": "IPUOF_VIPU_API_TIMEOUT", "value": "600"}])])),
    a_spec(workers=workers(containers=[a_container(), a_container(name="d")])),
    a_spec(
        workers=workers(
            volumes=[{"name": "v"}],
            containers=[a_container(volumeMounts=[{"name": "v", "mountPath": "/etc/moorings2"}])],
        )
    ),
    a_spec(
        launcher={**LAUNCHER, "volumeMounts": [{"name": "v", "mountPath": "/a"}]},
        workers=workers(volumes=[{"name": "v"}]),
    ),
]


@cases("spec", GOOD, ids=str)
def test_what_can_run_is_let_in(spec):
    assert find_errors(an_object(spec)) == ()


SPEC = "spec.workers.template.spec"
AN_OBJECT, A_STRING = "must be an object, not 'x'", "must be a string, not ['x']"

BAD: list[tuple[KubeObject, str, str]] = [
    (a_spec(ipusPerJobInstance="0"), "spec.ipusPerJobInstance", "must be a whole number from 1 to 1048576, not '0'"),
    (
        a_spec(ipusPerJobInstance=(1 << 20) + 1),
        "spec.ipusPerJobInstance",
        "must be a whole number from 1 to 1048576, not 1048577",
    ),
    (
        a_spec(ipusPerJobInstance=None, modelReplicas=1 << 10, ipusPerModelReplica=1 << 11),
        "spec.ipusPerJobInstance",
        "size 2097152 is out of range",
    ),
    (a_spec(workerPerJobInstance=3), "spec.workerPerJobInstance", "3 GCDs do not divide a partition of 4 devices"),
    (
        a_spec(workerPerJobInstance=2, modelReplicasPerWorker=4),
        "spec.modelReplicasPerWorker",
        "4 replicas do not divide the 2 devices of one GCD",
    ),
    (
        a_spec(workerPerJobInstance=4, jobInstances=1025),
        "spec.jobInstances",
        "1025 instances of 4 workers are more than 4096 Pods",
    ),
    (a_spec(launcher={}), "spec.launcher.command", "is missing"),
    (a_spec(launcher={"args": ["x"]}), "spec.launcher.command", "is missing"),
    (a_spec(launcher=LAUNCHER, interactive={"ttl": 1}), "spec.launcher.command", "excludes spec.interactive"),
    (a_spec(workers={}), "spec.workers.template.spec.containers", "is missing"),
    (a_spec(workers=workers(containers=[])), "spec.workers.template.spec.containers", "is missing"),
    (
        a_spec(workers=workers(containers=[{"name": "c"}])),
        "spec.workers.template.spec.containers[0].image",
        "is missing",
    ),
    (
        a_spec(workers=workers(initContainers=[{"image": "i"}])),
        "spec.workers.template.spec.initContainers[0].name",
        "is missing",
    ),
    (
        a_spec(workers=workers(containers=[a_container(), a_container()])),
        "spec.workers.template.spec.containers",
        "two are called 'c'",
    ),
    *(
        (
            a_spec(workers=workers(containers=[a_container(**{field: value})])),
            f"spec.workers.template.spec.containers[0].{field}",
            "must not restart the container",
        )
        for field, value in (("restartPolicy", "Always"), ("restartPolicyRules", [{"action": "Restart"}]))
    ),
    (
        a_spec(workers=workers(restartPolicy="Always")),
        "spec.workers.template.spec.restartPolicy",
        "must not be Always",
    ),
    (
        a_spec(workers={"template": {"metadata": {"labels": {"graphcore.ai/worker": "0"}}, **a_template()}}),
        "spec.workers.template.metadata.labels",
        "'graphcore.ai/worker' is one of Moorings' own",
    ),
    (
        a_spec(workers={"template": {"metadata": {"annotations": {"graphcore.ai/partition": "p"}}, **a_template()}}),
        "spec.workers.template.metadata.annotations",
        "'graphcore.ai/partition' is one of Moorings' own",
    ),
    (
        a_spec(workers=workers(volumes=[{"name": VOLUMES[0]}])),
        "spec.workers.template.spec.volumes[0].name",
        f"'{VOLUMES[0]}' is a name of Moorings' own",
    ),
    (
        a_spec(workers=workers(initContainers=[a_container(name="moorings-x")])),
        "spec.workers.template.spec.initContainers[0].name",
        "'moorings-x' is a name of Moorings' own",
    ),
    (
        a_spec(workers=workers(containers=[a_container(env=[{"name": "A"}, {"name": "IPUOF_CONFIG_PATH"}])])),
        "spec.workers.template.spec.containers[0].env[1].name",
        "'IPUOF_CONFIG_PATH' is not yours to set",
    ),
    (
        a_spec(launcher={**LAUNCHER, "env": [{"name": "MOORINGS_RESET"}]}),
        "spec.launcher.env[0].name",
        "'MOORINGS_RESET' is not yours to set",
    ),
    (
        a_spec(workers=workers(containers=[a_container(volumeMounts=[{"name": "v", "mountPath": "/a"}])])),
        "spec.workers.template.spec.containers[0].volumeMounts[0].name",
        "there is no volume 'v'",
    ),
    (
        a_spec(launcher={**LAUNCHER, "volumeMounts": [{"name": "v", "mountPath": "/a"}]}),
        "spec.launcher.volumeMounts[0].name",
        "there is no volume 'v'",
    ),
    (
        a_spec(
            workers=workers(
                volumes=[{"name": "v"}],
                containers=[a_container(volumeMounts=[{"name": "v", "mountPath": f"{BIN_DIR}/"}])],
            )
        ),
        "spec.workers.template.spec.containers[0].volumeMounts[0].mountPath",
        f"'{BIN_DIR}/' is Moorings' own",
    ),
    (
        a_spec(
            launcher={**LAUNCHER, "volumeMounts": [{"name": "v", "mountPath": CONFIG_DIR}]},
            workers=workers(volumes=[{"name": "v"}]),
        ),
        "spec.launcher.volumeMounts[0].mountPath",
        f"'{CONFIG_DIR}' is Moorings' own",
    ),
    (
        a_spec(
            launcher={**LAUNCHER, "volumeMounts": [{"name": "v", "mountPath": "/a"}]},
            workers=workers(
                volumes=[{"name": "v"}], containers=[a_container(volumeMounts=[{"name": "v", "mountPath": "/a"}])]
            ),
        ),
        "spec.launcher.volumeMounts[0].mountPath",
        "'/a' is mounted already",
    ),
    # of another kind than Kubernetes has it
    (a_spec(workers={"template": {"metadata": "x", **a_template()}}), "spec.workers.template.metadata", AN_OBJECT),
    (
        a_spec(workers={"template": {"metadata": {"labels": {"a": 1}}, **a_template()}}),
        "spec.workers.template.metadata.labels[a]",
        "must be a string, not 1",
    ),
    (
        a_spec(workers={"template": {"metadata": {"annotations": ["x"]}, **a_template()}}),
        "spec.workers.template.metadata.annotations",
        "must be an object of strings, not ['x']",
    ),
    (a_spec(workers=workers(containers=["x", a_container()])), f"{SPEC}.containers[0]", AN_OBJECT),
    (a_spec(workers=workers(volumes={"name": "v"})), f"{SPEC}.volumes", "must be a list of objects, not {'name': 'v'}"),
    (a_spec(workers=workers(volumes=[{"name": ["x"]}])), f"{SPEC}.volumes[0].name", A_STRING),
    (a_spec(workers=workers(nodeSelector="x")), f"{SPEC}.nodeSelector", "must be an object of strings, not 'x'"),
    (a_spec(workers=workers(imagePullSecrets=["x"])), f"{SPEC}.imagePullSecrets[0]", AN_OBJECT),
    (a_spec(workers=workers(containers=[a_container(image=["x"])])), f"{SPEC}.containers[0].image", A_STRING),
    (
        a_spec(workers=workers(containers=[a_container(env=[{"name": ["x"]}])])),
        f"{SPEC}.containers[0].env[0].name",
        A_STRING,
    ),
    (a_spec(workers=workers(containers=[a_container(env=["x"])])), f"{SPEC}.containers[0].env[0]", AN_OBJECT),
    (
        a_spec(workers=workers(containers=[a_container(securityContext="x")])),
        f"{SPEC}.containers[0].securityContext",
        AN_OBJECT,
    ),
    (
        a_spec(
            workers=workers(
                volumes=[{"name": "v"}],
                containers=[a_container(volumeMounts=[{"name": "v", "mountPath": ["x"]}])],
            )
        ),
        f"{SPEC}.containers[0].volumeMounts[0].mountPath",
        A_STRING,
    ),
    (a_spec(launcher={**LAUNCHER, "env": ["x"]}), "spec.launcher.env[0]", AN_OBJECT),
    # with another's rights
    *(
        (
            a_spec(workers=workers(**{field: name})),
            f"{SPEC}.{field}",
            f"{name!r} is called like a launcher's account, which is for that launcher alone",
        )
        for field in ("serviceAccountName", "serviceAccount")
        for name in ("other-launcher", "job-launcher-12")
    ),
    (
        a_spec(
            workers=workers(
                volumes=[
                    {"name": "a", "projected": {"sources": [{"serviceAccountToken": {"path": "a"}}]}},
                    {
                        "name": "b",
                        "projected": {
                            "sources": [
                                {"configMap": {"name": "c"}},
                                {"serviceAccountToken": {"path": "b", "audience": "moorings-proxy"}},
                            ]
                        },
                    },
                ]
            )
        ),
        f"{SPEC}.volumes[1].projected.sources[1].serviceAccountToken.audience",
        "a token for moorings-proxy is for the operator and for launchers alone",
    ),
]


@cases(("spec", "path", "problem"), BAD, ids=[f"{path}: {problem}" for _, path, problem in BAD])
def test_what_cannot_run_is_refused(spec, path, problem):
    assert refused(an_object(spec)).detail == f"{path}: {problem}"


def test_of_several_faults_each_has_its_own_hint_beside_it():
    env = [{"name": "IPUOF_VIPU_API_HOST", "value": "x"}]
    error = refused(an_object(a_spec(workers=workers(containers=[a_container(env=env)])), name="x" * 37))
    name, variable = error.detail.split("); ", 1)
    name += ")"
    assert name.startswith("metadata.name: has 37 characters")
    assert name.endswith("(longer names make the vendor's library fail later with a misleading device error)")
    assert variable.endswith("is not yours to set (Moorings sets it itself: leave it out)")
    assert error.hint == ""


@cases("variable", sorted(OUR_VARIABLES))
def test_what_leads_to_the_partition_is_not_the_user_s(variable):
    given_env = [{"name": variable, "value": "x"}]
    error = refused(an_object(a_spec(workers=workers(containers=[a_container(env=given_env)]))))
    assert variable in error.detail
    assert error.hint == "Moorings sets it itself: leave it out"


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "4train", "a-b", "x" * 36])
def test_a_name_that_the_vendor_takes_is_let_in(name):
    assert check_ipujob(an_object(name=name)).name == name


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("x" * 37, "metadata.name: has 37 characters; at most 36 are allowed"),
        ("x" * 400, "metadata.name: has 400 characters; at most 36 are allowed"),
        ("a.b", "metadata.name: 'a.b' has a dot, and mpirun cuts the names of hosts there"),
        ("", "metadata.name: claim name '' is not allowed"),
    ],
)
def test_a_name_that_fails_later_is_refused_with_the_reason(name, detail):
    error = refused(an_object(name=name))
    assert error.detail == detail
    assert error.hint


def test_a_long_name_is_refused_because_of_the_vendor_s_library():
    assert "vendor's library" in refused(an_object(name="x" * 37)).hint


@pytest.mark.parametrize(("length", "fits"), [(31, True), (32, False)])
def test_a_name_that_is_made_up_has_room_for_what_is_added(length, fits):
    found = an_object(name="", generateName="x" * (length - 1) + "-")
    del found["metadata"]["name"]
    assert (find_errors(found) == ()) is fits


def test_a_name_that_becomes_a_service_s_begins_with_a_letter():
    assert "begins with a digit" in refused(an_object(a_spec(workerPerJobInstance=2), name="4x")).detail
    assert find_errors(an_object(a_spec(workerPerJobInstance=2), name="x4")) == ()
    assert find_errors(an_object(a_spec(workerPerJobInstance=2, launcher=LAUNCHER), name="4x")) == ()


def test_everything_that_is_wrong_is_told_at_once():
    error = refused(an_object(a_spec(ipusPerJobInstance="x", cleanPodPolicy="y", launcher={}), name="x" * 40))
    assert [part.partition(":")[0] for part in error.detail.split("; ")[::1] if part.startswith(("spec", "meta"))] == [
        "metadata.name",
        "spec.ipusPerJobInstance",
        "spec.cleanPodPolicy",
        "spec.launcher.command",
    ]


def test_not_more_is_told_than_anybody_reads():
    labels = {f"graphcore.ai/{number}": "x" for number in range(20)}
    error = refused(an_object(a_spec(workers={"template": {"metadata": {"labels": labels}, **a_template()}})))
    assert error.detail.count("; ") == 8
    assert error.detail.endswith("; and 12 more")


@given(objects)
def test_no_json_breaks_the_rules(found):
    faults = find_errors(found)
    assert all(fault.path.startswith(("metadata", "spec")) and fault.problem for fault in faults)
    if faults:
        assert refused(found).detail.startswith(f"{faults[0].path}: {faults[0].problem}")
    else:
        assert check_ipujob(found).ipus >= 1


# -- changes ---------------------------------------------------------------------------------------------------------

OLD = a_spec(launcher=LAUNCHER, priority=1, workerPerJobInstance="2", ipusPerJobInstance="4")


def changed(**spec: Any) -> KubeObject:
    return an_object({name: value for name, value in {**OLD, **spec}.items() if value is not None})


def refused_change(old: KubeObject, new: KubeObject) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        check_update(old, new)
    assert caught.value.code == "ipujob.invalid"
    return caught.value


@cases(
    "spec",
    [
        {"jobInstances": 3},
        {"jobInstances": 0},
        {"restartPolicy": {"type": "OnFailure", "backOffLimit": 7}},
        {"cleanPodPolicy": "All"},
        {"releaseOnFinish": False},
        {"startDeadlineSeconds": 0, "nodeLostSeconds": 300},
        {"ipusPerJobInstance": 4, "workerPerJobInstance": 2},  # the same, without quotes
        {"workerPerJobInstance": None, "workers": {"replicas": 2, **OLD["workers"]}},  # the same, spelled otherwise
        {"modelReplicasPerWorker": "1"},  # the default, spelled out
    ],
    ids=str,
)
def test_what_may_change_changes(spec):
    new = changed(**spec)
    assert check_update(an_object(OLD), new) == parse_ipujob(new)


@cases(
    ("spec", "path"),
    [
        ({"ipusPerJobInstance": "8"}, "spec.ipusPerJobInstance"),
        ({"workerPerJobInstance": "4"}, "spec.workerPerJobInstance"),
        ({"workerPerJobInstance": None, "workers": {"replicas": 4, **OLD["workers"]}}, "spec.workerPerJobInstance"),
        ({"modelReplicasPerWorker": "2"}, "spec.modelReplicasPerWorker"),
        ({"launcher": {"command": ["mpirun", "other"]}}, "spec.launcher"),
        ({"launcher": {**LAUNCHER, "args": ["x"]}}, "spec.launcher"),
        ({"launcher": {**LAUNCHER, "image": "other"}}, "spec.launcher"),
        ({"launcher": None}, "spec.launcher"),
        ({"launcher": None, "interactive": {"ttl": 5}}, "spec.interactive"),
        ({"workers": workers(containers=[a_container(image="other")])}, "spec.workers.template"),
        ({"priority": 2}, "spec.priority"),
    ],
    ids=str,
)
def test_what_makes_the_partition_or_the_pods_stays(spec, path):
    error = refused_change(an_object(OLD), changed(**spec))
    assert error.detail == f"{path}: cannot be changed while the job exists"
    assert error.hint == "delete the job and create it anew"


@pytest.mark.parametrize("state", ["Completed", "Failed"])
def test_a_job_that_has_ended_is_not_scaled(state):
    old, new = an_object(OLD, status={"status": state}), changed(jobInstances=2)
    error = refused_change(old, new)
    assert error.detail == f"spec.jobInstances: cannot be changed: the job is {state}, and is not started anew"
    check_update(old, changed(cleanPodPolicy="All"))


@pytest.mark.parametrize("state", ["Pending", "Running", "Restarting", ""])
def test_a_job_that_has_not_ended_is_scaled(state):
    assert check_update(an_object(OLD, status={"status": state}), changed(jobInstances=2)).instances == 2


def test_a_job_is_not_scaled_beyond_what_a_job_may_have():
    assert "more than 4096 Pods" in refused_change(an_object(OLD), changed(jobInstances=4000)).detail


def test_metadata_of_a_job_that_is_wrong_may_change():
    wrong = a_spec(ipusPerJobInstance="0")
    check_update(an_object(wrong, finalizers=[FINALIZER]), an_object(wrong, finalizers=[]))


def test_a_job_that_is_being_deleted_may_change_in_any_way():
    check_update(an_object(OLD), an_object({}, deletionTimestamp="2021-03-22T10:10:31Z"))


def test_what_was_wrong_before_does_not_keep_a_job_from_being_scaled():
    wrong = a_spec(workers=workers(restartPolicy="Always"))
    check_update(an_object(wrong), an_object({**wrong, "jobInstances": 2}))


# -- defaults --------------------------------------------------------------------------------------------------------


def patched(found: KubeObject) -> KubeObject:
    """What a server makes of the patch."""
    made = copy.deepcopy(found)
    for op in default_ipujob(found):
        assert op["op"] == "add"
        *way, last = op["path"].split("/")[1:]
        holder: Any = made
        for name in way:
            holder = holder[name]
        if isinstance(holder, list):
            assert last == "-"
            holder.append(copy.deepcopy(op["value"]))
        else:
            assert holder.get(last) is None, "something that was given would be changed"
            holder[last] = copy.deepcopy(op["value"])
    return made


def test_defaults_are_added_to_a_small_job():
    made = patched(an_object(a_spec()))
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert made["spec"] == {
        **a_spec(),
        "jobInstances": 1,
        "workerPerJobInstance": "1",
        "modelReplicasPerWorker": "1",
        "restartPolicy": {"type": "Never", "backOffLimit": 3},
        "cleanPodPolicy": "None",
        "releaseOnFinish": True,
        "priority": 0,
    }


def test_other_spellings_are_left_as_they_are():
    spec = a_spec(ipusPerJobInstance=None, modelReplicas=4, ipusPerModelReplica=1, workers={"replicas": 2, **workers()})
    made = patched(an_object(spec))["spec"]
    assert not {"ipusPerJobInstance", "workerPerJobInstance", "modelReplicasPerWorker"} & set(made)
    assert {name: made[name] for name in spec} == spec


def test_what_is_inside_is_added_only_where_there_is_something_around_it():
    made = patched(an_object(a_spec(restartPolicy={"type": "Always"}, interactive={})))["spec"]
    assert made["restartPolicy"] == {"type": "Always", "backOffLimit": 3}
    assert made["interactive"] == {"ttl": 3600}
    assert "interactive" not in patched(an_object(a_spec()))["spec"]


def test_others_finalizers_stay():
    assert patched(an_object(finalizers=["other/one"]))["metadata"]["finalizers"] == ["other/one", FINALIZER]


@given(objects)
def test_defaults_change_nothing_that_was_given_and_are_added_once(found):
    assume(isinstance(found["metadata"].get("finalizers"), list | None))
    made = patched(found)
    assert default_ipujob(made) == []
    assert parse_ipujob(made).status == parse_ipujob(found).status


@given(objects)
def test_a_job_means_the_same_with_its_defaults(found):
    assume(isinstance(found["metadata"].get("finalizers"), list | None))
    before, after = parse_ipujob(found), parse_ipujob(patched(found))
    assert replace(before, finalizers=after.finalizers) == after
    assert find_errors(patched(found)) == find_errors(found)


def test_an_inference_job_stays_one():
    assert parse_ipujob(patched(an_object(a_spec()))).kind is JobKind.INFERENCE
