"""Jobs in container images: real rootless podman, by a person's own controller and on a machine that people share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.container_machine import IMAGE, ContainerMachine, cannot_be_here
from tests.e2e.shared_machine import PEOPLE
from tests.procfs import every_process
from tests.waiting import patient, until

pytestmark = [
    pytest.mark.skipif(bool(cannot_be_here()), reason=cannot_be_here()),
    pytest.mark.timeout(patient(120)),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerMachine]:
    made = ContainerMachine(tmp_path_factory.mktemp("machine"))
    try:
        made.give_image("ann")
        made.give_image("bob")
        made.up()
        started = made.moor("bob", "up", "--port", "0")
        assert started.returncode == 0, started.stderr
        yield made
    finally:
        made.close()


class Place:
    """Where jobs run: a person's own controller, or that of all.

    Args:
        machine: the machine.
        person: one of its people.
    """

    def __init__(self, machine: ContainerMachine, person: str) -> None:
        self.machine = machine
        self.person, self.uid = person, PEOPLE[person]
        self.home = machine.root / "home" / person

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output and progress of a job in the image."""
        done = self.machine.moor(self.person, "run", "--image", IMAGE, *words)
        return done.returncode, done.stdout, done.stderr

    def start(self, *words: str) -> str:
        """The id of a job in the image, once it says that it is up."""
        done = self.machine.moor(self.person, "run", "--detach", "--image", IMAGE, *words)
        assert done.returncode == 0, done.stderr
        ident = done.stdout.strip()
        until(lambda: "up" in self.moor("logs", ident), what=lambda: self.moor("describe", "run", ident))
        return ident

    def moor(self, *words: str) -> str:
        """What a command prints."""
        return self.machine.moor(self.person, *words).stdout

    def end(self, ident: str) -> tuple[int, str]:
        """How a run ended: exit code and reason."""
        done = self.machine.moor(self.person, "wait", ident)
        return done.returncode, done.stderr

    def assert_nothing_is_left(self) -> None:
        """Neither a process of a container nor of its runtime, nor a record."""
        until(lambda: running(self.person) == [], what=lambda: str(running(self.person)))
        assert self.machine.records(self.person) == []


def running(person: str) -> list[bytes]:
    """The names of a person's processes that are no Python: those of controllers and supervisors."""
    uid, found = f"Uid:\t{PEOPLE[person]}\t".encode(), []
    for _, content in every_process("status"):
        if uid in content and b"State:\tZ" not in content:
            found.append(content.split(b"\n", 1)[0].removeprefix(b"Name:\t"))
    return [name for name in found if not name.startswith(b"python")]


def kill_supervisors(place: Place) -> None:
    """Kill those of a person's runs."""
    for pid, content in every_process("cmdline"):
        if b"supervisor" in content and Path(f"/proc/{pid}").stat().st_uid == place.uid:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def own(machine: ContainerMachine) -> Place:
    """By a controller of the person's own."""
    return Place(machine, "bob")


@pytest.fixture
def shared(machine: ContainerMachine) -> Place:
    """By that of the machine."""
    return Place(machine, "ann")


def test_a_job_is_itself_in_the_image(own: Place) -> None:
    script = 'id -u; id -g; pwd; echo "$RANK $MOORINGS_DEVICES $GREETING"; cat /etc/os-release; id > made; exit 7'
    code, output, said = own.run("--ipus", "2", "--env", "GREETING=hello you", "--", "sh", "-c", script)
    assert (code, output.splitlines()[:4]) == (7, ["61002", "61002", "/home/bob", "0 pod64:0,pod64:1 hello you"]), said
    assert "can't open '/etc/os-release'" in output  # the image's files, and not the machine's
    assert (own.home / "made").stat().st_uid == own.uid
    own.assert_nothing_is_left()


def test_a_program_that_the_image_lacks_is_named(own: Place) -> None:
    code, _, said = own.run("--ipus", "1", "--", "python3", "train.py")
    assert (code, f"the program of task 0 was not found in the image {IMAGE}" in said) == (127, True), said


def test_an_image_that_cannot_be_pulled_is_refused_before_the_queue(own: Place) -> None:
    done = own.machine.moor("bob", "run", "--ipus", "1", "--image", "localhost:1/nosuch:1", "--", "true")
    assert (done.returncode, "pulling image localhost:1/nosuch:1\n" in done.stderr) == (2, True), done.stderr
    assert "(container.no_image)" in done.stderr
    assert "nosuch" not in own.moor("get", "runs", "--all", "-o", "json")


def test_a_person_without_subordinate_ids_is_refused_with_a_hint(machine: ContainerMachine) -> None:
    done = machine.moor("eve", "run", "--image", IMAGE, "--", "true")
    assert (done.returncode, "(container.no_runtime)" in done.stderr) == (2, True), done.stderr
    assert "usermod --add-subuids" in done.stderr


@pytest.mark.parametrize("place", ["own", "shared"])
def test_a_cancelled_job_leaves_nothing(place: str, request: pytest.FixtureRequest) -> None:
    where: Place = request.getfixturevalue(place)
    script = 'trap "echo ended by TERM; exit 5" TERM; echo up; while :; do sleep 0.1; done'
    ident = where.start("--ipus", "2", "--ntasks", "2", "--", "sh", "-c", script)
    where.moor("cancel", ident)
    assert where.end(ident)[0] == 5
    assert sorted(line for line in where.moor("logs", ident).splitlines() if "TERM" in line) == [
        "[0] ended by TERM",
        "[1] ended by TERM",
    ]
    where.assert_nothing_is_left()


def test_a_job_that_ignores_its_end_is_killed_without_a_trace(own: Place) -> None:
    job = own.home / "stubborn.toml"
    job.write_text(
        """command = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"]\n[checkpoint]\ngrace = 0.5\n"""
    )
    ident = own.start("stubborn.toml")
    own.moor("cancel", ident)
    assert own.end(ident)[0] == 137
    own.assert_nothing_is_left()


def test_a_killed_supervisor_leaves_nothing(own: Place) -> None:
    ident = own.start("--ipus", "2", "--", "sh", "-c", 'trap "" TERM; echo up; while :; do sleep 0.1; done')
    kill_supervisors(own)
    assert "its supervisor died" in own.end(ident)[1]
    own.assert_nothing_is_left()


def test_a_warning_reaches_the_program_that_handles_it(own: Place) -> None:
    job = own.home / "warned.toml"
    script = "trap 'echo warned; exit 9' USR1; echo up; while :; do sleep 0.1; done"
    job.write_text(f'command = ["sh", "-c", "{script}"]\ntime = 60\n[checkpoint]\nwarn = 59\n')
    code, output, said = own.run("warned.toml")
    assert (code, output) == (9, "up\nwarned\n"), said


def test_a_command_beside_a_task_is_in_its_container(own: Place) -> None:
    ident = own.start("--ipus", "2", "--", "sh", "-c", "echo up; sleep 60")
    done = own.machine.moor(
        "bob", "exec", ident, "--", "sh", "-c", 'cat /proc/1/comm; echo "$MOORINGS_DEVICES"; exit 4'
    )
    assert (done.returncode, done.stdout) == (4, "podman-init\npod64:0,pod64:1\n"), done.stderr
    own.moor("cancel", ident)
    own.end(ident)
    own.assert_nothing_is_left()


def test_a_job_of_a_shared_machine_sees_its_devices_alone(shared: Place) -> None:
    script = "for each in /dev/nvidia*; do echo $each; done; cat /proc/self/cgroup"
    code, output, said = shared.run("--ipus", "2", "--", "sh", "-c", script)
    found = [line for line in output.splitlines() if line.startswith("/dev/")]
    assert (code, found) == (0, ["/dev/nvidia0", "/dev/nvidia1"]), said
    assert "/moorings/61001-" in output, output  # the job's cgroup, with its limits


def test_a_job_of_a_shared_machine_has_its_memory_and_no_more(shared: Place) -> None:
    script = "head -c 200000000 /dev/zero | tail"
    code, _, said = shared.run("--size", "0", "--memory", "40M", "--", "sh", "-c", script)
    assert (code, "it used more memory than it has" in said) == (137, True), said


def test_after_a_kill_of_all_its_processes_the_next_job_mends_podman(shared: Place) -> None:
    ident = shared.start("--ipus", "2", "--", "sh", "-c", "echo up; sleep 60")
    kill_supervisors(shared)
    assert "its supervisor died" in shared.end(ident)[1]
    until(lambda: running(shared.person) == [])
    code, output, said = shared.run("--ipus", "1", "--", "sh", "-c", "echo works")
    assert (code, output) == (0, "works\n"), said
    shared.assert_nothing_is_left()
