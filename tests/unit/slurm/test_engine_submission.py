"""What Slurm is told of a run, and what an admin says of the cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.bindings import NO_BINDING
from moorings.core.model.claims import CheckpointContract
from moorings.core.model.errors import MooringsError
from moorings.core.model.toml_table import TomlTable
from moorings.ports.engine import RunSubmission
from moorings.slurm.engine.node_terminal import build_terminal_archive
from moorings.slurm.engine.settings import SlurmEngineSettings, SubmitTarget
from moorings.slurm.engine.submission import (
    build_files,
    build_submit,
    check_job,
    describe_differences,
    explain_refusal,
    parse_submit,
    signal_of,
)
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from moorings.workloads.runs import RunId
from tests.cases import cases

ATTEMPT = Path("/shared/runs/run-1/0")


def order(**job: Any) -> RunSubmission:
    spec = {"name": "digits", "command": ("python3", "train.py"), "workdir": "/work", **job}
    return RunSubmission(RunId("run-1"), 0, JobSpec(**spec), NO_BINDING)


SLURMS_OWN = SubmitTarget()


def words(place: SubmitTarget = SLURMS_OWN, **job: Any) -> list[str]:
    return build_submit(order(**job), place, ATTEMPT)


def test_the_job_file_means_the_same():
    told = words(
        SubmitTarget("lab", "ipu,spare", "high"),
        tasks=2,
        accelerators=Accelerators(size=8, replicas=4),
        resources=Resources(cpus=3, memory_bytes=10 << 30, nodes=2),
        priority=-5,
        time_limit_s=3600.0,
        checkpoint=CheckpointContract(resumable=True, warn_s=120.0, grace_s=30.0),
    )
    assert {
        *("--ntasks=2", "--nodes=2", "--cpus-per-task=3", "--mem-per-cpu=3414M", "--ipus=8", "--num-replicas=4"),
        *("--time=62", "--signal=B:USR1@150", "--requeue", "--nice=5", "--job-name=digits"),
        *("--account=lab", "--partition=ipu,spare", "--qos=high", "--comment=moorings:run-1/0"),
    } <= set(told)
    assert told[-1] == "/shared/runs/run-1/0/batch.sh"


def test_a_job_without_devices_names_no_ipus():
    job: dict[str, Any] = {"accelerators": Accelerators(size=0), "resources": Resources(2, 4 << 30)}
    check_job(order(tasks=3, preemptible=True, **job).job)
    told = words(tasks=3, preemptible=True, **job)
    assert {"--ntasks=3", "--cpus-per-task=2", "--mem-per-cpu=2048M", "--requeue"} <= set(told)
    assert not [word for word in told if "ipu" in word]


def test_the_tasks_of_a_job_without_devices_have_their_ranks(tmp_path):
    """The variables come with the partition of a job with devices."""
    given = order(tasks=2, command=("env",), workdir=str(tmp_path), accelerators=Accelerators(size=0))
    for name in ("tasks", "logs"):
        (tmp_path / name).mkdir()
    for name, content in build_files(given, tmp_path, "true", tmp_path / "program").items():
        (tmp_path / name).write_bytes(content)
    told = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "30007"}
    variables = {**told, "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "PATH": os.environ["PATH"]}
    subprocess.run(["/bin/sh", tmp_path / "task.sh", "0", "true"], env=variables, check=True)
    printed = (tmp_path / "logs" / "1.log").read_text().splitlines()
    assert {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=20007"} <= set(printed)


def run_task(folder: Path, python: str) -> int:
    """The script of the first task of a run with a terminal; returns what it has recorded."""
    given = order(command=("sh", "-c", "test -t 0 && exit 4"), workdir=str(folder), terminal_keep_s=60.0)
    for name in ("tasks", "logs"):
        (folder / name).mkdir()
    program = folder / "terminal.pyz"
    program.write_bytes(build_terminal_archive())
    for name, content in build_files(given, folder, python, program, terminal=program).items():
        (folder / name).write_bytes(content)
    told = {"SLURM_PROCID": "0", "SLURM_LOCALID": "1", "SLURMD_NODENAME": "n1", "PATH": os.environ["PATH"]}
    subprocess.run(["/bin/sh", folder / "task.sh", "0", python], env=told, check=False)
    return int((folder / "tasks" / "0").read_text())


def test_first_task_has_a_terminal_on_request(tmp_path):
    assert run_task(tmp_path, sys.executable) == 4
    assert (tmp_path / "began.0").exists()


def test_node_without_python_refuses_a_terminal_before_the_task_begins(tmp_path):
    assert run_task(tmp_path, "python-of-nowhere") == 126
    assert "node n1 has none called python-of-nowhere" in (tmp_path / "tasks" / "0.why").read_text()
    assert not (tmp_path / "began.0").exists()


def test_what_is_not_asked_for_is_slurms_own_default():
    told = [word.partition("=")[0] for word in words(checkpoint=CheckpointContract(resumable=False, warn_s=0.0))]
    left = {"--time", "--signal", "--nice", "--account", "--partition", "--qos", "--num-replicas", "--mem-per-cpu"}
    assert not left & set(told)
    assert "--no-requeue" in told


def test_nothing_of_command_folder_and_variables_is_on_the_command_line():
    told = " ".join(words(command=("secret-program",), workdir="/secret-folder", environment={"A": "secret-value"}))
    assert "secret" not in told


@cases(
    ("job", "named"),
    [
        ({"accelerators": Accelerators(kind="gpu")}, "gpu"),
        ({"accelerators": Accelerators(size=0, resources={"memory": 1})}, "devices"),
        ({"accelerators": Accelerators(pool="pod16")}, "pool"),
        ({"priority": 1}, "priority"),
        ({"resources": Resources(nodes=2)}, "nodes"),
        ({"environment": {"UID": "0"}}, "UID"),
        ({"checkpoint": CheckpointContract(warn_signal="NOSUCH")}, "NOSUCH"),
    ],
)
def test_what_slurm_cannot_do_is_refused_by_name(job, named):
    with pytest.raises(MooringsError) as caught:
        check_job(order(**job).job)
    assert caught.value.code == "engine.rejected"
    assert caught.value.hint
    assert named in caught.value.detail


def test_one_that_may_be_asked_to_make_room_may_be_requeued_and_its_script_is_warned():
    contract = CheckpointContract(resumable=False)
    told = words(preemptible=True, checkpoint=contract)
    assert {"--ipu-preemptible=B:USR1", "--requeue"} <= set(told)
    assert "--no-requeue" in words(checkpoint=contract)
    assert not any("preemptible" in word for word in words(checkpoint=contract))
    said = describe_differences(order(preemptible=True, checkpoint=contract).job, SLURMS_OWN, "ann")
    assert any("asked to make room" in sentence for sentence in said)


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", "usr1"])
def test_signals_have_slurms_names(name):
    assert signal_of(name) == "USR1"


@pytest.mark.parametrize(("answer", "job"), [(b"12\n", 12), (b"12;cluster-2\n", 12)])
def test_the_answer_of_sbatch_is_the_jobs_id(answer, job):
    assert parse_submit(answer) == job


@pytest.mark.parametrize("answer", [b"", b"Submitted batch job 12\n", b"12 13\n", b"x\n"])
def test_another_answer_is_no_job(answer):
    with pytest.raises(MooringsError) as caught:
        parse_submit(answer)
    assert caught.value.code == "slurm.unreadable"


WORDS = frozenset(
    (
        *("--parsable", "--export", "--input", "--chdir", "--open-mode", "--output", "--job-name", "--comment"),
        *("--ntasks", "--cpus-per-task", "--nodes", "--ipus", "--no-requeue", "--requeue", "--num-replicas"),
        *("--mem-per-cpu", "--time", "--signal", "--nice", "--account", "--partition", "--qos"),
    )
)
NAMES = st.sampled_from(("a", "uid", "root", "0", "A.b-c_d", "SBATCH_UID"))


@given(
    name=NAMES,
    project=NAMES,
    variables=st.dictionaries(st.sampled_from(("USER", "SBATCH_UID", "SLURM_JOB_UID")), NAMES),
    priority=st.integers(-9, 0),
    command=st.lists(st.sampled_from(("--uid=0", "sudo", "-u", "root", "--gid=0")), min_size=1),
)
def test_nothing_in_a_job_says_as_whom_it_runs(name, project, variables, priority, command):
    place = SlurmEngineSettings(Path("/shared/runs")).target_for(project)
    job = {"name": name, "project": project, "environment": variables, "command": tuple(command)}
    program, *options, script = words(place, priority=priority, **job)
    assert (program, script) == ("sbatch", "/shared/runs/run-1/0/batch.sh")
    assert {word.partition("=")[0] for word in options} <= WORDS


def test_what_is_otherwise_in_slurm_is_said():
    job = order(
        accelerators=Accelerators(size=4),
        resources=Resources(cpus=3, memory_bytes=10 << 30),
        priority=-5,
        checkpoint=CheckpointContract(resumable=True),
    ).job
    told = "\n".join(describe_differences(job, SubmitTarget("lab", "ipu", "high"), "the user moorings"))
    assert "a job of the user moorings, account lab, partition ipu, QOS high" in told
    assert "3414 MiB for each of a task's 3" in told
    assert "--nice=5" in told
    assert "the usual limit of Slurm's partition" in told
    assert "start it again" in told


def test_what_is_the_same_in_slurm_is_not_said():
    job = order(time_limit_s=60.0, resources=Resources(cpus=2, memory_bytes=4 << 30)).job
    assert len(describe_differences(job, SubmitTarget(), "moorings")) == 1  # whose job it is there


def refused(code: str, detail: str) -> MooringsError:
    error = explain_refusal(MooringsError(code, detail), SubmitTarget(partition="nope"))
    assert error is not None
    return error


def test_a_refusal_is_told_in_slurms_words_and_with_what_the_admin_said():
    told = refused(
        "slurm.refused",
        "sbatch --parsable: sbatch: error: invalid partition specified: nope sbatch: error: Batch job submission "
        "failed: Invalid partition name specified",
    )
    assert told.code == "engine.rejected"
    assert told.detail == (
        "Slurm refuses it: invalid partition specified: nope; "
        "Batch job submission failed: Invalid partition name specified"
    )
    assert told.hint == 'it was to go to partition = "nope": see [slurm] in the controller\'s settings'
    assert refused("slurm.denied", "sbatch --parsable: exit code 1").detail.endswith("sbatch --parsable: exit code 1")


def test_what_may_yet_come_is_no_refusal():
    assert explain_refusal(MooringsError("slurm.unavailable", "timed out", retryable=True), SubmitTarget()) is None
    assert explain_refusal(MooringsError("slurm.missing", "sbatch cannot be run"), SubmitTarget()) is None


def files_of(given: RunSubmission) -> dict[str, bytes]:
    return build_files(given, ATTEMPT, "python3.12", Path("/shared/looks.pyz"))


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


@given(value=TEXTS, argument=TEXTS)
def test_variables_and_arguments_come_through_the_shell_as_they_are(tmp_path_factory, value, argument):
    folder = tmp_path_factory.mktemp("attempt")
    text = files_of(order(environment={"VALUE": value}, command=("x", argument)))["environment"]
    (folder / "environment").write_bytes(text)
    script = '. "$0"; printf "%s\\0%s" "$VALUE" "$2"'
    done = subprocess.run(["/bin/sh", "-c", script, str(folder / "environment")], capture_output=True, check=True)
    assert done.stdout == value.encode() + b"\0" + argument.encode()


def test_the_scripts_are_scripts():
    files = files_of(order(time_limit_s=1e6, checkpoint=CheckpointContract(warn_s=60.0)))
    for name in ("batch.sh", "task.sh"):
        subprocess.run(["/bin/sh", "-n"], input=files[name], check=True)
    assert b"limit=1000000.000\nwarn=999940.000\n" in files["batch.sh"]
    assert "watched.json" not in files


def test_a_program_is_warned_by_the_signals_of_its_contract():
    batch = files_of(order())["batch.sh"]
    assert b"plain_signal=USR1\nlimit_signals='USR2 USR1'\nyield_signals='USR2 USR1 TERM'\npython=python3.12\n" in batch
    batch = files_of(order(checkpoint=CheckpointContract(warn_signal="SIGHUP")))["batch.sh"]
    assert b"plain_signal=HUP\nlimit_signals=HUP\nyield_signals=HUP\n" in batch


def test_what_looks_at_the_checkpoints_knows_the_job():
    saves = {"checkpoint_directory": "/c", "command": ("train",), "resume_args": ("--from", "{}")}
    for resumable in (True, False):
        files = files_of(order(**saves, checkpoint=CheckpointContract(resumable=resumable)))
        assert b"watched=yes\n" in files["batch.sh"]
        assert json.loads(files["watched.json"]) == {
            "directory": "/c",
            "command": ["train"],
            "resume_args": ["--from", "{}"] if resumable else [],
            "resumable": resumable,
        }


# -- settings ------------------------------------------------------------------------------------------------------


def settings(text: str) -> SlurmEngineSettings:
    return SlurmEngineSettings.read(
        TomlTable.parse(text, source="controller.toml", code="config.invalid").table("slurm")
    )


def test_a_project_goes_where_the_admin_says():
    read = settings(
        '[slurm]\nfolder = "/shared/runs"\nconf = "/etc/slurm/slurm.conf"\npartition = "ipu"\n'
        '[slurm.projects.vision]\naccount = "lab-vision"\nqos = "high"\n'
    )
    assert (read.folder, read.conf) == (Path("/shared/runs"), Path("/etc/slurm/slurm.conf"))
    assert read.python == "python3"
    assert read.target_for("vision") == SubmitTarget("lab-vision", "ipu", "high")
    assert read.target_for("speech") == SubmitTarget("speech", "ipu", "")
    assert read.target_for("default") == SubmitTarget("", "ipu", "")
    assert replace(read, default_target=SubmitTarget("all")).target_for("speech") == SubmitTarget("all")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[slurm]\nfolder = "runs"', 2),
        ('[slurm]\nfolder = "/runs/%j"', 2),
        ('[slurm]\nfolder = "/runs"\nconf = "slurm.conf"', 3),
        ('[slurm]\nfolder = "/runs"\naccount = "a b"', 3),
        ('[slurm]\nfolder = "/runs"\nqueue = "x"', 3),
        ('[slurm]\nfolder = "/runs"\n[slurm.projects.x]\nqos = "-x"', 4),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text, line):
    with pytest.raises(MooringsError) as caught:
        settings(text)
    assert caught.value.code == "config.invalid"
    assert f"controller.toml:{line}" in caught.value.detail
