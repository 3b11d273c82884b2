"""The commands that run containers, and which of a job's processes get a signal."""

import os
import signal

import pytest

from moorings.core.model.errors import MooringsError
from moorings.engines import containers
from moorings.engines.containers import (
    ContainerRuntime,
    ContainerTask,
    RuntimeKind,
    build_beside,
    build_run,
    build_variables,
    choose_folders,
    choose_lacking,
    choose_receivers,
    container_name,
    find_own_runtime,
    find_programs,
    find_runtime,
    has_subordinate_ids,
    parse_list,
)
from moorings.engines.processes import Process
from tests.cases import cases

PODMAN = ContainerRuntime(RuntimeKind.PODMAN, "/usr/bin/podman")
APPTAINER = ContainerRuntime(RuntimeKind.APPTAINER, "/usr/bin/apptainer")
TASK = ContainerTask(
    image="registry.example/digits:1",
    name="moorings-run-1-0-3",
    command=("python3", "train.py"),
    workdir="/home/ann/work",
    folders=("/home/ann", "/scratch/ann"),
    devices=("/dev/nvidia3",),
    variables={"RANK": "3", "TOKEN": "secret", "PATH": "/opt/bin", "LD_PRELOAD": "/x.so"},
)


def changed(**given):
    return ContainerTask(**{name: given.get(name, getattr(TASK, name)) for name in TASK.__dataclass_fields__})


def test_podman_gets_the_task_alone_and_no_value_on_its_command_line():
    assert build_run(PODMAN, TASK) == (
        *("/usr/bin/podman", "--cgroup-manager=cgroupfs", "--log-level=error"),
        *("run", "--rm", "--replace", "--name=moorings-run-1-0-3", "--init", "--entrypoint="),
        *("--cgroups=disabled", "--cgroupns=host", "--userns=keep-id", "--group-add=keep-groups", "--cap-drop=all"),
        *("--security-opt=no-new-privileges", "--security-opt=label=disable", "--network=host", "--ulimit=host"),
        *("--http-proxy=false", "--log-driver=none"),
        "--mount=type=bind,source=/home/ann,destination=/home/ann",
        "--mount=type=bind,source=/scratch/ann,destination=/scratch/ann",
        "--mount=type=bind,source=/dev/shm,destination=/dev/shm",
        "--mount=type=bind,source=/tmp,destination=/tmp",
        "--device=/dev/nvidia3",
        *("--env=RANK", "--env=TOKEN", "--env=PATH=/opt/bin", "--env=LD_PRELOAD=/x.so"),
        *("--workdir=/home/ann/work", "registry.example/digits:1", "python3", "train.py"),
    )


def test_apptainer_gets_the_same_folders_and_devices():
    assert build_run(APPTAINER, TASK) == (
        *("/usr/bin/apptainer", "--silent", "exec", "--contain", "--no-home", "--no-privs", "--pwd=/home/ann/work"),
        "--mount=type=bind,source=/home/ann,destination=/home/ann",
        "--mount=type=bind,source=/scratch/ann,destination=/scratch/ann",
        "--mount=type=bind,source=/dev/shm,destination=/dev/shm",
        "--mount=type=bind,source=/tmp,destination=/tmp",
        "--mount=type=bind,source=/dev/nvidia3,destination=/dev/nvidia3",
        *("docker://registry.example/digits:1", "python3", "train.py"),
    )
    assert build_beside(APPTAINER, TASK) == build_run(APPTAINER, TASK)


@cases(
    ("runtime", "image", "named"),
    [
        (PODMAN, "docker://debian:12", "debian:12"),
        (PODMAN, "localhost/tiny:1", "localhost/tiny:1"),
        (APPTAINER, "docker://debian:12", "docker://debian:12"),
        (APPTAINER, "oras://registry.example/x:1", "oras://registry.example/x:1"),
        (APPTAINER, "/opt/digits.sif", "/opt/digits.sif"),
    ],
)
def test_an_image_is_named_as_its_runtime_reads_it(runtime, image, named):
    assert build_run(runtime, changed(image=image))[-3:] == (named, "python3", "train.py")


def test_a_terminal_is_podmans_own_and_has_no_keys_to_detach():
    words = build_run(PODMAN, changed(is_terminal=True))
    assert {"--interactive", "--tty", "--detach-keys="} <= set(words)
    assert {"--interactive", "--tty"}.isdisjoint(build_run(PODMAN, TASK))


@cases(("is_terminal", "streams"), [(False, ()), (True, ("--tty", "--detach-keys="))])
def test_a_command_beside_a_task_enters_its_container(is_terminal, streams):
    assert build_beside(PODMAN, changed(is_terminal=is_terminal)) == (
        *("/usr/bin/podman", "--cgroup-manager=cgroupfs", "--log-level=error", "exec", "--interactive", *streams),
        *("--env=RANK", "--env=TOKEN", "--env=PATH=/opt/bin", "--env=LD_PRELOAD=/x.so", "--workdir=/home/ann/work"),
        *("moorings-run-1-0-3", "python3", "train.py"),
    )


def test_a_runtime_obeys_its_users_variables_and_none_of_the_jobs():
    own = {"HOME": "/home/ann", "PATH": "/evil", "LANG": "C"}
    given = {"HOME": "/elsewhere", "LD_PRELOAD": "/x.so", "TOKEN": "secret"}
    found = build_variables(PODMAN, own, given)
    assert (found["HOME"], found["TOKEN"], "LD_PRELOAD" in found) == ("/home/ann", "secret", False)
    assert build_variables(APPTAINER, own, given)["APPTAINERENV_LD_PRELOAD"] == "/x.so"


def test_folders_within_others_and_the_root_folder_are_left_out():
    named = ("/home/ann/", "/home/ann/work", "/home/anna", "/", "/tmp/x", "/dev/shm", "/scratch")
    assert choose_folders(named) == ("/home/ann", "/home/anna", "/scratch")


@cases("folder", ["/a,b", '/a"b', "/a\nb"])
def test_a_folder_that_no_runtime_can_be_told_is_refused(folder):
    with pytest.raises(MooringsError) as caught:
        choose_folders([folder])
    assert caught.value.code == "engine.rejected"


def test_without_a_runtime_the_refusal_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MooringsError, match="no podman or apptainer") as caught:
        find_runtime("debian:12")
    assert (caught.value.code, caught.value.hint) == (
        "container.no_runtime",
        "its admin installs it: apt install podman",
    )
    put_program(tmp_path, "podman")
    assert find_runtime("debian:12") == ContainerRuntime(RuntimeKind.PODMAN, str(tmp_path / "podman"))
    with pytest.raises(MooringsError, match="no apptainer"):
        find_runtime("/opt/digits.sif")


def put_program(folder, name):
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_podman_is_refused_to_root_and_the_refusal_says_who_may(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    put_program(tmp_path, "podman")
    with pytest.raises(MooringsError, match="podman runs no job as root: root in it would not be confined") as caught:
        find_own_runtime("debian:12")
    assert (caught.value.code, caught.value.hint) == ("container.no_runtime", "run moor as a user other than root")


@cases(
    ("here", "lacking"),
    [
        ({"newuidmap", "newgidmap", "crun"}, ()),
        ({"newuidmap", "newgidmap", "runc"}, ()),
        ({"newuidmap", "crun"}, (("newgidmap", "uidmap"),)),
        ({"newgidmap"}, (("newuidmap", "uidmap"), ("crun or runc", "crun"))),
    ],
)
def test_what_podman_lacks_is_found(here, lacking):
    assert choose_lacking(here.__contains__) == lacking


def test_the_refusal_names_what_podman_lacks_and_its_packages(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(containers, "RUNTIME_PATH", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    put_program(tmp_path, "podman")
    with pytest.raises(MooringsError, match="this machine: newuidmap, newgidmap, crun or runc") as caught:
        find_own_runtime("debian:12")
    assert (caught.value.code, caught.value.hint) == (
        "container.no_runtime",
        "its admin installs them: apt install uidmap crun",
    )
    for name in ("newuidmap", "newgidmap", "crun"):
        put_program(tmp_path, name)
    monkeypatch.setattr(containers, "SUBORDINATE_IDS", ())
    assert find_own_runtime("debian:12") == ContainerRuntime(RuntimeKind.PODMAN, str(tmp_path / "podman"))


@cases(
    ("text", "has"),
    [("ann:100000:65536\n", True), ("7:1:2", True), ("anna:1:2\n", False), ("", False), ("ann\n", False)],
)
def test_subordinate_ids_are_found_by_name_and_number(text, has):
    assert has_subordinate_ids(text, "ann", 7) is has


def test_containers_of_ours_name_their_run():
    name = container_name("run-abc", 1, 2)
    assert parse_list(f"other\n{name}\nmoorings-x\n") == {name: "run-abc"}


# -- signals: podman 2 and its monitor 3 outside, the init 4 with a program 5 and its child 6 inside, a pause process 7,
# and a command beside, 9, under a monitor 8 of its own


def process(pid, parent, name):
    return Process(pid, 1, parent, pid, pid, "S", name)


EVERYONE = [
    process(2, 1, "podman"),
    process(3, 1, "conmon"),
    process(4, 3, "podman-init"),
    process(5, 4, "python3"),
    process(6, 5, "conmon"),  # a program may call itself as it likes
    process(7, 1, "catatonit"),
    process(8, 1, "conmon"),
    process(9, 8, "sh"),
]
INSIDE = frozenset({4, 5, 6, 9})


@cases(
    ("pids", "signum", "late", "receivers"),
    [
        ((2, 3, 4, 5, 6, 7), signal.SIGTERM, False, [5, 6]),
        ((2, 3, 4, 5, 6, 7), signal.SIGKILL, False, [4, 5, 6]),
        ((2, 3, 7), signal.SIGTERM, False, [2, 3, 7]),
        ((2, 3, 7), signal.SIGKILL, False, [7]),
        ((2, 3, 7), signal.SIGKILL, True, [2, 3, 7]),
        ((2, 3, 4), signal.SIGTERM, False, []),
    ],
)
def test_a_runtime_gets_no_signal_while_a_program_is_inside(pids, signum, late, receivers):
    everyone = [each for each in EVERYONE if each.pid in pids]
    found = choose_receivers(everyone, signum, INSIDE.__contains__, runtime_is_late=late)
    assert [each.pid for each in found] == receivers


def test_programs_of_tasks_are_found_whoever_is_their_parent():
    table = {each.pid: each for each in EVERYONE}
    assert [each.pid for each in find_programs(RuntimeKind.PODMAN, [2], EVERYONE, table, INSIDE.__contains__)] == [5]
    starter = [process(2, 1, "starter"), process(3, 2, "python3"), process(4, 3, "python3"), process(9, 1, "sh")]
    table = {each.pid: each for each in starter}
    found = find_programs(RuntimeKind.APPTAINER, [2], starter, table, {3, 4, 9}.__contains__)
    assert [each.pid for each in found] == [3]
