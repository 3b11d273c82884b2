"""What Kubernetes is told of a run, and what an admin says of the cluster."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.bindings import NO_BINDING
from moorings.core.model.claims import NAME_CHARS_MAX, CheckpointContract
from moorings.core.model.errors import MooringsError
from moorings.core.model.toml_table import TomlTable
from moorings.kubernetes.engine.settings import KubernetesEngineSettings, Volume
from moorings.kubernetes.engine.submission import (
    build_job,
    build_secret,
    build_submitted_job,
    check_job,
    describe_differences,
    name_of,
)
from moorings.kubernetes.ipujob.types import JobKind
from moorings.kubernetes.ipujob.validation import check_ipujob
from moorings.kubernetes.kube.api import KubeObject
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from moorings.workloads.runs import RunId

WORK = Volume("/work", claim="work")
SETTINGS = KubernetesEngineSettings(namespace="runs", projects={"vision": "lab-vision"}, volumes=(WORK,))


def order(**job: Any) -> RunSubmission:
    spec = {"name": "digits", "command": ("python3", "train.py"), "workdir": "/work", "image": "digits:1", **job}
    return RunSubmission(RunId("run-k3v7q2mzp4ya"), 0, JobSpec(**spec), NO_BINDING, epoch=Epoch(7))


def built(wanted: RunSubmission, settings: KubernetesEngineSettings = SETTINGS) -> KubeObject:
    return build_job(wanted, build_submitted_job(wanted, settings), settings, "lab")


def pod_spec(wanted: RunSubmission, settings: KubernetesEngineSettings = SETTINGS) -> KubeObject:
    spec: KubeObject = built(wanted, settings)["spec"]["workers"]["template"]["spec"]
    return spec


def test_a_run_is_an_inference_job_that_every_webhook_lets_in() -> None:
    accelerators = Accelerators(size=16, replicas=8)
    body = built(order(tasks=4, accelerators=accelerators, priority=5, project="vision"))
    job = check_ipujob(body)
    assert (job.kind, job.ipus, job.workers, job.replicas, job.priority) == (JobKind.INFERENCE, 16, 4, 2, 5)
    assert (job.namespace, job.name) == ("lab-vision", "run-k3v7q2mzp4ya")
    assert job.instances == 0  # it comes to life later


def test_its_pods_are_marked_as_the_job_is() -> None:
    body = built(order())
    labels = {"moorings/run": "run-k3v7q2mzp4ya", "moorings/attempt": "0", "moorings/installation": "lab"}
    assert body["metadata"]["labels"] == labels
    assert body["spec"]["workers"]["template"]["metadata"]["labels"] == labels
    assert body["metadata"]["annotations"]["moorings/epoch"] == "7"


def test_what_a_task_needs_of_its_node_is_what_its_container_asks_for() -> None:
    wanted = order(resources=Resources(cpus=3, memory_bytes=5 << 30), checkpoint=CheckpointContract(grace_s=12.3))
    spec = pod_spec(wanted)
    assert spec["terminationGracePeriodSeconds"] == 13
    memory = {"memory": str(5 << 30)}
    assert spec["containers"][0]["resources"] == {"requests": {"cpu": "3", **memory}, "limits": memory}
    shared = replace(SETTINGS, request_cpus=False)
    assert pod_spec(wanted, shared)["containers"][0]["resources"] == {"requests": memory, "limits": memory}


def test_no_grace_at_all_is_a_second_for_zero_would_be_a_kill_without_a_word() -> None:
    assert pod_spec(order(checkpoint=CheckpointContract(grace_s=0)))["terminationGracePeriodSeconds"] == 1


def test_volumes_and_users_are_the_settings() -> None:
    host = Volume("/data", host_path="/srv/data", read_only=True)
    spec = pod_spec(order(), replace(SETTINGS, volumes=(WORK, host), user=1000, group=100))
    assert spec["volumes"] == [
        {"name": "volume-0", "persistentVolumeClaim": {"claimName": "work", "readOnly": False}},
        {"name": "volume-1", "hostPath": {"path": "/srv/data"}},
    ]
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "volume-0", "mountPath": "/work", "readOnly": False},
        {"name": "volume-1", "mountPath": "/data", "readOnly": True},
    ]
    assert spec["securityContext"] == {"runAsUser": 1000, "runAsGroup": 100}
    assert "securityContext" not in pod_spec(order())


def test_variables_stand_in_the_secret_and_nowhere_else() -> None:
    wanted = replace(order(environment={"TOKEN": "tell-nobody"}, checkpoint_directory="/work/c"), resume_from="/work/7")
    assert "tell-nobody" not in str(built(wanted))
    secret = build_secret(wanted, build_submitted_job(wanted, SETTINGS), "uid-1")
    assert {name: base64.b64decode(value).decode() for name, value in secret["data"].items()} == {
        "TOKEN": "tell-nobody",
        "MOORINGS_RUN_ID": "run-k3v7q2mzp4ya",
        "MOORINGS_JOB_ID": "run-k3v7q2mzp4ya",
        "MOORINGS_CHECKPOINT_DIR": "/work/c",
        "MOORINGS_RESUME_FROM": "/work/7",
    }
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    name = secret["metadata"]["name"]
    assert pod_spec(wanted)["containers"][0]["envFrom"] == [{"secretRef": {"name": name}}]


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True), st.integers(0, 10_000))
def test_every_run_has_a_name_that_kubernetes_and_the_vendor_take(run: str, attempt: int) -> None:
    name = name_of(RunId(run), attempt)
    assert len(name) <= NAME_CHARS_MAX
    assert name.replace("-", "x").isalnum()
    assert name[0].isalpha()
    assert name == name.lower()
    assert name != name_of(RunId(run), attempt + 1)


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ({"image": None}, "needs a container image"),
        ({"accelerators": Accelerators(kind="gpu")}, "none of kind 'gpu'"),
        ({"accelerators": Accelerators(size=0)}, "needs devices"),
        ({"accelerators": Accelerators(pool="pod16")}, "cannot choose a pool"),
        ({"command": ("cat", "\udcff")}, "not UTF-8"),
        ({"checkpoint": CheckpointContract(warn_signal="NOPE")}, "no signal 'NOPE'"),
    ],
)
def test_what_kubernetes_cannot_run_is_refused(job: dict[str, Any], told: str) -> None:
    with pytest.raises(MooringsError, match=told) as refusal:
        check_job(order(**job).job)
    assert refusal.value.code == "engine.rejected"
    assert refusal.value.hint


def test_an_id_that_is_no_label_is_refused() -> None:
    with pytest.raises(MooringsError, match="cannot be the id of a run"):
        build_submitted_job(replace(order(), run=RunId("../etc")), SETTINGS)


def test_what_does_not_travel_is_said() -> None:
    told = describe_differences(order(workdir="/home/ann", checkpoint_directory="/home/ann/c").job, SETTINGS)
    assert "its working folder /home/ann does not travel: there is what its image has, or an empty folder" in told
    assert "its checkpoints in /home/ann/c are lost when it ends: that is in no volume" in told
    told = describe_differences(order(workdir="/work/ann", checkpoint_directory="/work/c").job, SETTINGS)
    assert "its working folder /work/ann is in /work, which is the claim work" in told
    assert not any("lost" in one for one in told)


def read(text: str) -> KubernetesEngineSettings:
    return KubernetesEngineSettings.read(TomlTable.parse(text, source="c.toml", code="config.invalid"))


def test_settings_are_read_from_their_table() -> None:
    text = (
        'namespace = "runs"\nkubeconfig = "/etc/k"\nuser = 1000\nrequest_cpus = false\n[[volumes]]\npath = "/work"\n'
        'claim = "work"\n[projects.vision]\nnamespace = "lab-vision"\n'
    )
    found = read(text)
    assert found == replace(SETTINGS, kubeconfig="/etc/k", user=1000, request_cpus=False)
    assert (found.namespace_of("vision"), found.namespace_of("other")) == ("lab-vision", "runs")
    assert found.namespaces == ("runs", "lab-vision")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "namespace is missing"),
        ('namespace = "No"', "c.toml:1: namespace 'No'"),
        ('namespace = "a"\nuser = -1', "c.toml:2: user -1"),
        ('namespace = "a"\n[[volumes]]\npath = "/w"', "either a claim or a host_path"),
        ('namespace = "a"\n[[volumes]]\npath = "/"\nclaim = "w"', "and not / itself"),
        ('namespace = "a"\nqos = "high"', "'qos' is not known"),
    ],
)
def test_wrong_settings_are_told_with_their_line(text: str, told: str) -> None:
    with pytest.raises(MooringsError) as refusal:
        read(text)
    assert told in refusal.value.detail


def test_the_volume_of_a_folder_is_the_deepest_that_holds_it() -> None:
    deep = Volume("/work/data", claim="data")
    settings = replace(SETTINGS, volumes=(WORK, deep))
    assert settings.volume_of("/work/data/x") == deep
    assert settings.volume_of("/work/database") == WORK
    assert settings.volume_of("/works") is None
