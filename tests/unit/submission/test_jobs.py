"""A job from a command line, a file, or both; nonsense is refused before any network."""

import os
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.submission.job_building import JobFlags, build_job, job_name_of
from moorings.workloads.jobs import Resources
from tests.cases import cases

ENVIRONMENT = {"PATH": "/bin", "HOME": "/home/ann", "TOKEN": "t"}
JOB = """
command = ["python3", "train.py"]
tasks = 2
time = "10:00"
[accelerators]
size = 4
replicas = 2
[environment]
pass = ["HOME"]
set = { A = "1" }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "digits.toml"
    path.write_text(JOB)
    return path


def built(file=None, command=(), *, folder="/work", usual_project="default", **flags):
    return build_job(file, command, JobFlags(**flags), ENVIRONMENT, Path(folder), usual_project)


def test_a_command_alone():
    job = built(command=["/usr/bin/python3", "train.py"], size=4, kind="ipu")
    assert job.command == ("/usr/bin/python3", "train.py")
    assert (job.name, job.workdir, job.tasks) == ("python3", "/work", 1)
    assert job.accelerators.size == 4
    assert job.environment == {"PATH": "/bin", "HOME": "/home/ann"}


def test_a_job_without_devices_has_one_cpu_if_it_names_none():
    assert built(command=["x"], size=0).resources == Resources(cpus=1)
    assert built(command=["x"], size=0, tasks=3, cpus=2, memory="1G").resources == Resources(2, 1 << 30)


def test_a_file_alone(file):
    job = built(str(file))
    assert (job.name, job.tasks, job.time_limit_s, job.workdir) == ("digits", 2, 600.0, str(file.parent))
    assert job.environment == {"HOME": "/home/ann", "A": "1"}


def test_flags_win_over_the_file(file):
    job = built(
        str(file),
        ["other"],
        size=16,
        kind="gpu",
        pool="p",
        tasks=4,
        replicas=8,
        cpus=3,
        memory="4G",
        time="2h",
        name="n",
        priority=3,
        project="proj",
        environment=("A=2", "TOKEN"),
        workdir="sub",
    )
    assert job.command == ("other",)
    assert (job.name, job.tasks, job.priority, job.project) == ("n", 4, 3, "proj")
    assert (job.accelerators.size, job.accelerators.kind) == (16, "gpu")
    assert (job.accelerators.pool, job.accelerators.replicas) == ("p", 8)
    assert job.resources == Resources(3, 4 << 30)
    assert job.time_limit_s == 7200.0
    assert job.environment == {"HOME": "/home/ann", "A": "2", "TOKEN": "t"}
    assert job.workdir == "/work/sub"


def test_a_flag_lets_a_job_be_stopped_for_others(file):
    assert not built(str(file)).preemptible
    assert built(str(file), preemptible=True).preemptible


def test_a_relative_file_is_found_from_the_folder(file):
    assert built("digits.toml", folder=str(file.parent)).name == "digits"


def test_the_project_of_the_configuration_is_for_commands(file):
    assert built(command=["x"], usual_project="site").project == "site"
    assert built(command=["x"], usual_project="site", project="flag").project == "flag"
    assert built(str(file), usual_project="site").project == "default"


@cases(
    ("flags", "code"),
    [
        ({"size": 4, "tasks": 3}, "claim.gcds_invalid"),
        ({"size": 4, "tasks": 2, "replicas": 3}, "claim.replicas_invalid"),
        ({"cpus": 0}, "job.invalid"),
        ({"memory": "much"}, "size.invalid"),
        ({"memory": "0"}, "job.invalid"),
        ({"memory": "4000"}, "size.invalid"),
        ({"array": ""}, "job.invalid"),
        ({"size": 0, "pool": "p"}, "job.invalid"),
        ({"size": -1}, "claim.size_invalid"),
        ({"tasks": 0}, "job.invalid"),
        ({"time": "soon"}, "duration.invalid"),
        ({"name": "a/b"}, "job.invalid"),
        ({"environment": ("NOPE",)}, "job.invalid"),
        ({"environment": ("RANK=1",)}, "job.invalid"),
        ({"environment": ("=1",)}, "job.invalid"),
    ],
)
def test_what_cannot_work_is_refused(flags, code):
    with pytest.raises(MooringsError) as caught:
        built(command=["x"], **flags)
    assert caught.value.code == code


def test_a_file_that_is_not_there_says_how_to_run_a_command():
    with pytest.raises(MooringsError) as caught:
        built("python3")
    assert caught.value.code == "job.invalid"
    assert "--" in caught.value.hint


@pytest.mark.parametrize("what", ["folder", "fifo"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, what):
    path = tmp_path / what
    path.mkdir() if what == "folder" else os.mkfifo(path)
    with pytest.raises(MooringsError, match=r"cannot be read: (it is no regular file|is a directory)") as caught:
        built(str(path))
    assert caught.value.code == "job.invalid"
    assert "[Errno" not in caught.value.detail


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/python3"], "python3"),
        (["./my job.sh"], "my-job.sh"),
        (["..."], "job"),
        ([], "job"),
        (["x" * 99], "x" * 63),
    ],
)
def test_a_job_is_named_after_its_program(command, name):
    assert job_name_of(command) == name


def test_the_flags_image_wins_over_the_files(file):
    assert built(str(file), image="registry.example/a:1").image == "registry.example/a:1"
