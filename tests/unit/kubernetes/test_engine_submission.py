"""What Kubernetes is told of a run, and what an admin says of the cluster."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.bindings import NO_BINDING
from moorings.core.model.claims import NAME_CHARS_MAX, CheckpointContract
from moorings.core.model.errors import MooringsError
from moorings.core.model.serialization import from_plain
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.toml_table import TomlTable
from moorings.engines.node_program import WatchedJob, resume_commands
from moorings.kubernetes.engine.checkpoint_containers import FOLDER
from moorings.kubernetes.engine.run_status import is_unattended
from moorings.kubernetes.engine.settings import KubernetesEngineSettings, Volume
from moorings.kubernetes.engine.submission import (
    ATTENDED_S,
    NODE_LOST_S,
    START_S,
    build_job,
    build_secret,
    build_submitted_job,
    check_job,
    describe_differences,
    name_of,
)
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.types import JobKind
from moorings.kubernetes.ipujob.validation import check_ipujob
from moorings.kubernetes.kube.api import KubeObject
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from moorings.workloads.runs import RunId
from tests.pseudoterminal import Pseudoterminal
from tests.waiting import patient, until

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


# -- checkpoints ------------------------------------------------------------------------------------------------------

SEEING = replace(SETTINGS, checkpoint_image="moorings/launcher:1", user=1000)
RESUMABLE = CheckpointContract(resumable=True)


def resumable(**more: Any) -> RunSubmission:
    return order(checkpoint=RESUMABLE, checkpoint_directory="/work/c", **more)


def test_a_job_that_makes_room_and_resumes_says_so_to_the_operator() -> None:
    notes = built(resumable(preemptible=True))["metadata"]["annotations"]
    assert (notes[names.PREEMPTIBLE], notes[names.RESUMABLE]) == ("true", "true")
    assert not {names.PREEMPTIBLE, names.RESUMABLE} & set(built(order())["metadata"]["annotations"])
    job = check_ipujob(built(resumable(preemptible=True), SEEING))
    assert (job.preemptible, job.resumable) == (True, True)


def test_a_time_limit_is_known_to_the_queue_unless_a_run_may_start_several_times() -> None:
    assert check_ipujob(built(order(time_limit_s=100.5))).active_deadline_s == 101 + START_S
    assert check_ipujob(built(order(time_limit_s=100.5, preemptible=True))).active_deadline_s is None
    assert check_ipujob(built(order())).active_deadline_s is None


def test_a_job_with_retries_does_not_wait_for_its_node_for_ever() -> None:
    assert check_ipujob(built(resumable(retries=1))).node_lost_s == NODE_LOST_S
    assert check_ipujob(built(resumable())).node_lost_s == 0


def test_its_checkpoints_are_looked_at_by_containers_of_ours() -> None:
    seeing = replace(SEEING, volumes=(WORK, Volume("/data", claim="data")))
    spec = pod_spec(resumable(resume_args=("--from={}",), command=("python3", "$HOME")), seeing)
    (init,), (task, beside) = spec["initContainers"], spec["containers"]
    for one, what in ((init, "begin"), (beside, "watch")):
        program, text = one["command"][:-1], one["command"][-1]
        assert program == ["python3", "-m", "moorings.app.kubernetes_checkpoints", what]
        watched = from_plain(WatchedJob, json.loads(text.replace("$$", "$")))
        assert watched == WatchedJob("/work/c", ("python3", "$HOME"), ("--from={}",), resumable=True)
        assert one["image"] == "moorings/launcher:1"
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        mounts = {mount["name"]: mount.get("readOnly", False) for mount in one["volumeMounts"]}
        assert mounts == {"volume-0": True, "moorings": False}  # no other volume of the site
    assert task["command"][:2] == ["/bin/sh", "-c"]
    assert task["command"][3:] == ["python3", "python3", "$$HOME"]
    assert [mount["name"] for mount in task["volumeMounts"]] == ["volume-0", "volume-1", "moorings"]
    assert sorted((task["name"], beside["name"])) == [task["name"], beside["name"]]  # so does kubelet


def test_its_task_is_started_as_what_it_resumes_from_says(tmp_path: Path) -> None:
    (_, _, script, *words) = pod_spec(resumable(command=("echo", "one two")), SEEING)["containers"][0]["command"]
    script = script.replace("$$", "$").replace(FOLDER, str(tmp_path))

    def start() -> str:
        run = ["/bin/sh", "-c", script, *words]
        return subprocess.run(run, capture_output=True, text=True, check=True, timeout=patient(10)).stdout

    assert start() == "one two\n"
    assert (tmp_path / "began").exists()
    watched = WatchedJob("/work/c", ("echo", "one two"), ("--from={}",), resumable=True)
    saved = RunCheckpoint("/work/c/it's 7.pt", 7, 1, Timestamp(1), is_whole=True, rule=CheckpointRule.ZIP)
    (tmp_path / "resume").write_text(resume_commands(watched, saved) + 'echo "$MOORINGS_RESUME_FROM"\n')
    assert start() == "/work/c/it's 7.pt\none two --from=/work/c/it's 7.pt\n"
    (tmp_path / "resume").write_text("_moorings_refuse 126 'it is gone'\n")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        start()
    assert (refused.value.returncode, refused.value.stdout, refused.value.stderr) == (126, "", "it is gone\n")


@pytest.mark.parametrize(
    ("settings", "folder"),
    [(SETTINGS, "/work/c"), (SEEING, "/home/c"), (SEEING, None)],
    ids=["image", "volume", "none"],
)
def test_nobody_looks_where_there_is_nothing_to_see(settings: KubernetesEngineSettings, folder: str | None) -> None:
    wanted = order(checkpoint=RESUMABLE, checkpoint_directory=folder)
    spec = pod_spec(wanted, settings)
    assert "initContainers" not in spec
    assert [one["name"] for one in spec["containers"]] == ["task"]
    assert any("nobody sees its checkpoints" in one for one in describe_differences(wanted.job, settings))
    unseen = build_submitted_job(wanted, settings).unseen
    assert unseen.startswith("nobody sees its checkpoints, since ") == (folder is not None)


def test_what_is_different_of_a_run_that_borrows_is_said() -> None:
    told = describe_differences(resumable(preemptible=True).job, SEEING)
    assert any("TERM" in one for one in told)
    assert not any("nobody sees" in one for one in told)
    assert read('namespace = "a"\ncheckpoint_image = "registry:5000/launcher@sha256:0a"').checkpoint_image
    with pytest.raises(MooringsError, match="checkpoint_image"):
        read('namespace = "a"\ncheckpoint_image = "two words"')


def test_an_interactive_run_has_a_terminal_in_its_container() -> None:
    wanted = order(terminal_keep_s=600.0)
    check_job(wanted.job)
    assert check_ipujob(built(wanted)).kind is JobKind.INFERENCE
    (task,) = pod_spec(wanted)["containers"]
    assert (task["stdin"], task["tty"], task.get("stdinOnce")) == (True, True, None)
    assert task["command"][-2:] == ["python3", "train.py"]
    asked = build_submitted_job(wanted, SETTINGS)
    assert [is_unattended(asked, Timestamp(0), add_seconds(Timestamp(0), after_s)) for after_s in (599, 600)] == [
        False,
        True,
    ]
    assert not is_unattended(replace(asked, keep_s=0.0), Timestamp(0), add_seconds(Timestamp(0), ATTENDED_S - 1))
    assert any("noticed after 30 s" in one for one in describe_differences(order(terminal_keep_s=0.0).job, SETTINGS))
    (plain,) = pod_spec(order())["containers"]
    assert not {"stdin", "tty"} & plain.keys()
    assert not is_unattended(build_submitted_job(order(), SETTINGS), Timestamp(0), Timestamp(1 << 60))


def at_terminal(program: str) -> list[str]:
    """The command of an interactive run's container."""
    (task,) = pod_spec(order(terminal_keep_s=600.0, command=("sh", "-c", program)))["containers"]
    return [word.replace("$$", "$") for word in task["command"]]


def test_the_first_task_waits_until_its_terminal_has_a_size() -> None:
    usual = {"PATH": os.environ["PATH"], "RANK": "0"}
    with Pseudoterminal(at_terminal("echo begun; read word; echo $word"), usual, rows=0, columns=0) as terminal:
        until(lambda: b"stty" in _commands_of(terminal.process.pid) or b"sleep" in _commands_of(terminal.process.pid))
        terminal.read(0)
        assert terminal.output == b""
        terminal.resize(24, 80)
        terminal.wait_for("begun")
        terminal.type("typed\r")
        terminal.wait_for("typed")
        assert terminal.wait() == 0


def test_other_tasks_start_at_once_without_input() -> None:
    environment = {"PATH": os.environ["PATH"], "RANK": "1"}
    with Pseudoterminal(at_terminal("cat; echo begun"), environment, rows=0, columns=0) as terminal:
        terminal.wait_for("begun")


def _commands_of(parent: int) -> bytes:
    """The command lines of a process's children."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    found = b""
    for child in children:
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{child}/cmdline").read_bytes()
    return found
