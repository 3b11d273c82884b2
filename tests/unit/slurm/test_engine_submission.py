"""What Slurm is told of a run, and what an admin says of the cluster."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.bindings import NO_BINDING
from moorings.core.claims import CheckpointContract
from moorings.core.errors import MooringsError
from moorings.core.tables import Table
from moorings.ports.engine import StartOrder
from moorings.slurm.engine.settings import Place, SlurmEngineSettings
from moorings.slurm.engine.submission import build_files, build_submit, check_order, parse_submit, signal_of
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from moorings.workloads.runs import RunId

ATTEMPT = Path("/shared/runs/run-1/0")


def order(**job: Any) -> StartOrder:
    spec = {"name": "digits", "command": ("python3", "train.py"), "workdir": "/work", **job}
    return StartOrder(RunId("run-1"), 0, JobSpec(**spec), NO_BINDING)


SLURMS_OWN = Place()


def words(place: Place = SLURMS_OWN, **job: Any) -> list[str]:
    return build_submit(order(**job), place, ATTEMPT)


def test_the_job_file_means_the_same():
    told = words(
        Place("lab", "ipu,spare", "high"),
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


def test_what_is_not_asked_for_is_slurms_own_default():
    told = [word.partition("=")[0] for word in words(checkpoint=CheckpointContract(resumable=False, warn_s=0.0))]
    left = {"--time", "--signal", "--nice", "--account", "--partition", "--qos", "--num-replicas", "--mem-per-cpu"}
    assert not left & set(told)
    assert "--no-requeue" in told


def test_nothing_of_command_folder_and_variables_is_on_the_command_line():
    told = " ".join(words(command=("secret-program",), workdir="/secret-folder", environment={"A": "secret-value"}))
    assert "secret" not in told


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({"accelerators": Accelerators(kind="gpu")}, "gpu"),
        ({"accelerators": Accelerators(pool="pod16")}, "pool"),
        ({"priority": 1}, "priority"),
        ({"resources": Resources(nodes=2)}, "nodes"),
        ({"environment": {"UID": "0"}}, "UID"),
        ({"checkpoint": CheckpointContract(warn_signal="NOSUCH")}, "NOSUCH"),
    ],
)
def test_what_slurm_cannot_do_is_refused_by_name(job, named):
    with pytest.raises(MooringsError) as caught:
        check_order(order(**job))
    assert caught.value.code == "engine.rejected"
    assert named in caught.value.detail


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


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


@given(value=TEXTS, argument=TEXTS)
def test_variables_and_arguments_come_through_the_shell_as_they_are(tmp_path_factory, value, argument):
    folder = tmp_path_factory.mktemp("attempt")
    text = build_files(order(environment={"VALUE": value}, command=("x", argument)), folder)["environment"]
    (folder / "environment").write_bytes(text)
    script = '. "$0"; printf "%s\\0%s" "$VALUE" "$2"'
    done = subprocess.run(["/bin/sh", "-c", script, str(folder / "environment")], capture_output=True, check=True)
    assert done.stdout == value.encode() + b"\0" + argument.encode()


def test_the_scripts_are_scripts():
    files = build_files(order(time_limit_s=1e6, checkpoint=CheckpointContract(warn_s=60.0)), ATTEMPT)
    for name in ("batch.sh", "task.sh"):
        subprocess.run(["/bin/sh", "-n"], input=files[name], check=True)
    assert b"limit=1000000.000\nwarn=999940.000\n" in files["batch.sh"]


# -- settings ------------------------------------------------------------------------------------------------------


def settings(text: str) -> SlurmEngineSettings:
    return SlurmEngineSettings.read(Table.parse(text, source="controller.toml", code="config.invalid").table("slurm"))


def test_a_project_goes_where_the_admin_says():
    read = settings(
        '[slurm]\nfolder = "/shared/runs"\nconf = "/etc/slurm/slurm.conf"\npartition = "ipu"\n'
        '[slurm.projects.vision]\naccount = "lab-vision"\nqos = "high"\n'
    )
    assert (read.folder, read.conf) == (Path("/shared/runs"), Path("/etc/slurm/slurm.conf"))
    assert read.place_of("vision") == Place("lab-vision", "ipu", "high")
    assert read.place_of("speech") == Place("speech", "ipu", "")
    assert read.place_of("default") == Place("", "ipu", "")
    assert replace(read, usual=Place("all")).place_of("speech") == Place("all")


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
