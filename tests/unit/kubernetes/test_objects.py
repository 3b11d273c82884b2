"""The Pods of a job: what is added to the template's, and what is taken away."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.names import CONFIG_DIR
from moorings.kubernetes.ipujob.parsing import parse_ipujob
from moorings.kubernetes.ipujob.pod_security import AdmissionLimits
from moorings.kubernetes.ipujob.types import IPUJob, JobKind
from moorings.kubernetes.ipujob.validation import find_errors
from moorings.kubernetes.kube.api import KubeObject
from moorings.kubernetes.operator.pod_builder import (
    ANNOTATIONS_BYTES_MAX,
    PodOptions,
    build_config,
    build_launcher,
    build_launcher_rbac,
    build_worker,
)
from moorings.kubernetes.proxy_api.shapes import PartitionBody
from moorings.wire.shapes import BindingBody, GcdBody
from tests.pod_security import refused
from tests.unit.kubernetes.ipujobs import a_container, a_spec, a_template, an_object, anything
from tests.unit.kubernetes.jobs import build_job, build_partition

USUAL = PodOptions()
FILE = "p_gcd0_ipuof.conf"


def a_job(kind: JobKind = JobKind.INFERENCE, **container: Any) -> IPUJob:
    return build_job(kind, template=a_template(containers=[a_container(**container)]))


def worker(job: IPUJob, options: PodOptions = USUAL, partition: PartitionBody | None = None) -> KubeObject:
    return build_worker(job, 0, 0, partition or build_partition(job), options)


def launcher(job: IPUJob, options: PodOptions = USUAL, partition: PartitionBody | None = None) -> KubeObject:
    return build_launcher(job, 0, 0, partition or build_partition(job), options, reset=False)


def main(pod: KubeObject) -> KubeObject:
    found: KubeObject = pod["spec"]["containers"][0]
    return found


# -- power over the node -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("namespaces", "given"), [((), True), (("default", "a"), True), (("a",), False)])
def test_the_node_s_network_and_privileges_are_for_the_namespaces_that_are_named(
    namespaces: tuple[str, ...], given: bool
) -> None:
    options = PodOptions(privileged_namespaces=frozenset(namespaces))
    job = a_job(JobKind.TRAINING)
    for pod in (worker(job, options), launcher(job, options)):
        assert ("hostNetwork" in pod["spec"], "dnsPolicy" in pod["spec"]) == (given, given)
        assert main(pod).get("securityContext") == ({"privileged": True} if given else None)


def test_a_container_that_refuses_privileges_gets_none() -> None:
    """Both together make the API server refuse the Pod."""
    job = a_job(securityContext={"allowPrivilegeEscalation": False, "runAsUser": 7})
    assert main(worker(job))["securityContext"] == {"allowPrivilegeEscalation": False, "runAsUser": 7}
    job = a_job(securityContext={"runAsUser": 7})
    assert main(worker(job))["securityContext"] == {"privileged": True, "runAsUser": 7}


CLOSED: KubeObject = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
NOBODY: KubeObject = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted_specs() -> Iterator[KubeObject]:
    """Pods' specs that Pod Security's level ``restricted`` takes: what it asks is said of the Pod, or of containers."""
    yield {"containers": [a_container(securityContext=CLOSED)], "securityContext": NOBODY}
    yield {"containers": [a_container(securityContext=CLOSED | NOBODY)]}
    own = {"runAsNonRoot": True, "seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}
    yield {"containers": [a_container(securityContext=CLOSED | own)], "securityContext": {"runAsUser": 1000}}
    mixed = {"seccompProfile": {"type": "RuntimeDefault"}}
    yield {"containers": [a_container(securityContext=CLOSED | {"runAsNonRoot": True})], "securityContext": mixed}


@pytest.mark.parametrize("kind", list(JobKind))
@pytest.mark.parametrize("spec", list(restricted_specs()))
def test_pod_security_takes_pods_of_a_template_that_it_takes(spec: KubeObject, kind: JobKind) -> None:
    assert not refused(spec)
    job = build_job(kind, template={"spec": spec})
    closed = PodOptions(privileged=False, host_network=False, proxy_url="https://p", proxy_ca="pem")
    for options in (closed, PodOptions(privileged_namespaces=frozenset({"other"}))):
        assert refused(worker(job, options)["spec"]) == []
        assert refused(worker(job, options, by_file(job))["spec"]) == []
        if job.has_launcher:
            assert refused(launcher(job, options)["spec"]) == []


def test_the_init_container_runs_as_its_image_says_where_a_template_says_nothing() -> None:
    for context in ({}, {"runAsUser": 0}, {"runAsNonRoot": False, "seccompProfile": {"type": "Unconfined"}}):
        (init,) = launcher(a_job(JobKind.TRAINING, securityContext=context))["spec"]["initContainers"]
        assert init["securityContext"] == CLOSED | {"readOnlyRootFilesystem": True}


# -- what idles --------------------------------------------------------------------------------------------------------

WATCHED: dict[str, Any] = {
    name: {"exec": {"command": ["x"]}} for name in ("livenessProbe", "readinessProbe", "startupProbe")
}
WATCHED["lifecycle"] = {"postStart": {"exec": {"command": ["x"]}}}


@pytest.mark.parametrize("kind", [JobKind.TRAINING, JobKind.INTERACTIVE])
def test_nobody_looks_for_the_program_in_a_container_that_idles(kind: JobKind) -> None:
    helper = a_container(name="helper", **WATCHED)
    job = build_job(kind, template=a_template(containers=[a_container(args=["a"], **WATCHED), helper]))
    pod = worker(job)
    assert not {*WATCHED, "args"} & set(main(pod))
    assert set(WATCHED) < set(pod["spec"]["containers"][1]), "that one runs what it is for"
    assert not set(WATCHED) & set(main(launcher(job)))


def test_workers_that_run_their_program_are_watched() -> None:
    assert set(WATCHED) < set(main(worker(a_job(**WATCHED))))


# -- the proxy ---------------------------------------------------------------------------------------------------------


def test_a_launcher_knows_the_proxy_by_the_authorities_that_hold_when_it_is_made() -> None:
    job = a_job(JobKind.TRAINING)
    options = PodOptions(proxy_url="https://proxy", proxy_ca="pem")
    pod = launcher(job, options)
    annotations = pod["metadata"]["annotations"]
    assert (annotations[names.PROXY_CA], annotations[names.PROXY]) == ("pem", options.proxy_hash)
    (init,) = pod["spec"]["initContainers"]
    folder = next(one["mountPath"] for one in init["volumeMounts"] if one["name"] == "moorings-token")
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "moorings-token"]
    (item,) = volume["projected"]["sources"][1]["downwardAPI"]["items"]
    assert item["fieldRef"]["fieldPath"] == "metadata.annotations['graphcore.ai/proxy-ca']"
    assert {"name": "MOORINGS_PROXY_CA_FILE", "value": f"{folder}/{item['path']}"} in init["env"]
    others = [replace(options, proxy_ca="other"), replace(options, proxy_url="https://other")]
    assert len({options.proxy_hash, *(one.proxy_hash for one in others)}) == 3
    assert replace(options, proxy_ca="").proxy_hash == "", "what is not known outdates nobody"


# -- a GCD's file ------------------------------------------------------------------------------------------------------


def by_file(job: IPUJob, text: str = "{}\n", api: dict[str, str] | None = None) -> PartitionBody:
    gcd = GcdBody(gcd=0, devices=("a0",), file_name=FILE, file_text=text)
    return replace(build_partition(job), binding=BindingBody(partition="p", api=api or {}, gcds=(gcd,)))


@pytest.mark.parametrize("kind", [JobKind.TRAINING, JobKind.INFERENCE])
def test_where_there_is_no_api_a_worker_finds_its_gcd_s_file(kind: JobKind) -> None:
    job = build_job(kind, template=a_template(containers=[a_container(), a_container(name="helper")]))
    pod = worker(job, partition=by_file(job))
    assert pod["metadata"]["annotations"][names.IPUOF] == "{}\n"
    (volume,) = pod["spec"]["volumes"]
    items = [
        item for source in volume["projected"]["sources"] for item in source.get("downwardAPI", {}).get("items", ())
    ]
    place = {"apiVersion": "v1", "fieldPath": "metadata.annotations['graphcore.ai/ipuof']"}
    assert items == [{"path": f"ipuof/{FILE}", "fieldRef": place}]
    configs = [source["configMap"] for source in volume["projected"]["sources"] if "configMap" in source]
    assert configs == ([{"name": "sample-config"}] if kind is JobKind.TRAINING else [])
    for container in pod["spec"]["containers"]:
        mounts = [(mount["name"], mount["mountPath"]) for mount in container["volumeMounts"]]
        assert mounts == [(volume["name"], CONFIG_DIR)]
        found = {one["name"]: one["value"] for one in container["env"]}
        assert found["IPUOF_CONFIG_PATH"] == f"/etc/moorings/ipuof/{FILE}"
        assert not [name for name in found if name.startswith("IPUOF_VIPU")]
    if kind is JobKind.TRAINING:
        pod = launcher(job, partition=by_file(job))
        assert "IPUOF_CONFIG_PATH" not in {one["name"] for one in main(pod)["env"]}
        assert names.IPUOF not in pod["metadata"]["annotations"]


def test_where_there_is_an_api_there_is_no_file() -> None:
    """A program that finds both fails."""
    job = a_job()
    pod = worker(job, partition=by_file(job, api={"IPUOF_VIPU_API_HOST": "pod1"}))
    found = {one["name"]: one["value"] for one in main(pod)["env"]}
    assert (found["IPUOF_VIPU_API_HOST"], found["IPUOF_VIPU_API_GCD_ID"]) == ("pod1", "0")
    assert "IPUOF_CONFIG_PATH" not in found
    assert names.IPUOF not in pod["metadata"]["annotations"]
    assert "volumes" not in pod["spec"]


def test_a_file_that_no_annotation_holds_is_refused() -> None:
    job = a_job()
    annotations = worker(job, partition=by_file(job, ""))["metadata"]["annotations"]
    room = ANNOTATIONS_BYTES_MAX - sum(len(name) + len(text) for name, text in annotations.items())
    worker(job, partition=by_file(job, "x" * room))
    with pytest.raises(MooringsError, match=f"{FILE} makes the annotations of sample-worker-0 262145 bytes") as caught:
        worker(job, partition=by_file(job, "x" * (room + 1)))
    assert (caught.value.code, caught.value.retryable) == ("ipujob.invalid", False)


# -- any template ------------------------------------------------------------------------------------------------------


def build_all(job: IPUJob, options: PodOptions) -> None:
    """Everything that is made of a job's template."""
    for number in range(min(job.workers, 3)):
        worker_of = replace(build_partition(replace(job, workers=number + 1)), namespace=job.namespace)
        build_worker(job, number, 0, worker_of, options)
    if job.has_launcher:
        launcher(job, options)
        for instance in range(min(job.instances, 3)):
            build_config(job, instance)


RICH = a_spec(
    workerPerJobInstance=2,
    launcher={
        "command": ["x"],
        "args": ["y"],
        "image": "z",
        "env": [{"name": "L"}],
        "volumeMounts": [{"name": "v", "mountPath": "/l"}],
        "securityContext": {"runAsUser": 7},
    },
    workers={
        "template": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
            "spec": {
                "containers": [
                    a_container(
                        args=["a"],
                        env=[{"name": "E", "value": "x"}],
                        ports=[{"containerPort": 1}],
                        volumeMounts=[{"name": "v", "mountPath": "/a"}],
                        securityContext={"allowPrivilegeEscalation": False, "capabilities": {"add": ["x"]}},
                        livenessProbe={"exec": {"command": ["x"]}},
                    ),
                    a_container(name="d"),
                ],
                "initContainers": [a_container(name="i")],
                "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"audience": "a"}}]}}],
                "nodeSelector": {"a": "b"},
                "imagePullSecrets": [{"name": "s"}],
                "serviceAccountName": "x",
                "securityContext": {"sysctls": [{"name": "s"}], "seLinuxOptions": {"type": "t"}},
                "hostname": "h",
                "dnsPolicy": "None",
            },
        }
    },
)


def paths(found: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in a piece of JSON."""
    for key in found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ():
        yield (*above, key)
        yield from paths(found[key], (*above, key))


OPEN = [way for way in paths(RICH) if way[0] in ("launcher", "workers")]
OTHER: st.SearchStrategy[Any] = anything | st.sampled_from(
    [None, [], {}, "x", 0, False, ["x"], [["x"]], {"a": 1}, [{}], [{"name": ["x"]}]]
)


@given(st.lists(st.tuples(st.sampled_from(OPEN), OTHER), max_size=2), st.sampled_from(["launcher", "interactive", ""]))
def test_whatever_a_template_holds_is_refused_or_can_be_built(
    changes: list[tuple[tuple[Any, ...], Any]], kind: str
) -> None:
    spec = deepcopy(RICH)
    for (*way, last), value in changes:
        at = spec
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change has taken the way away
            for key in way:
                at = at[key]
            at[last] = value
    if kind != "launcher":
        del spec["launcher"]
    if kind == "interactive":
        spec["interactive"] = {}
    found = an_object(spec)
    find_errors(found, AdmissionLimits(privileged=False))
    if not find_errors(found):
        event("built")
        build_all(parse_ipujob(found), PodOptions(pull_secrets=("a",)))


LEFT_OUT: KubeObject = dict.fromkeys(("env", "volumeMounts", "ports", "securityContext", "args"))


@pytest.mark.parametrize(
    "spec",
    [
        a_spec(
            launcher={"command": ["x"], "env": None, "volumeMounts": None},
            workers={
                "template": {
                    "metadata": None,
                    **a_template(
                        containers=[a_container(**LEFT_OUT)],
                        **dict.fromkeys(("volumes", "nodeSelector", "imagePullSecrets", "initContainers")),
                    ),
                }
            },
        ),
        a_spec(
            interactive={}, workers={"template": {"metadata": {"labels": None, "annotations": None}, **a_template()}}
        ),
    ],
    ids=["spec", "metadata"],
)
def test_what_is_null_is_left_out(spec: KubeObject) -> None:
    found = an_object(spec)
    assert find_errors(found) == ()
    build_all(parse_ipujob(found), PodOptions(pull_secrets=("a",)))


@pytest.mark.parametrize("workers", [1, 300])
def test_a_launcher_sees_its_workers_alone_and_starts_processes_nowhere_else(workers: int) -> None:
    _, role, _ = build_launcher_rbac(build_job(instances=2, ipus=workers, workers=workers))
    every = [f"sample-worker-{number}" for number in range(2 * workers)]
    look, start = role["rules"]
    assert look == {"apiGroups": [""], "resources": ["pods"], "resourceNames": every, "verbs": ["get", "list", "watch"]}
    assert start == {"apiGroups": [""], "resources": ["pods/exec"], "resourceNames": every, "verbs": ["create"]}


def test_init_containers_of_a_worker_know_their_partition_too() -> None:
    template = a_template(containers=[a_container()], initContainers=[a_container(name="i")])
    pod = worker(build_job(JobKind.INFERENCE, template=template))
    (init,) = pod["spec"]["initContainers"]
    assert init["env"][-len(main(pod)["env"]) :] == main(pod)["env"]
    assert "MOORINGS_PARTITION_ID" in {one["name"] for one in init["env"]}
