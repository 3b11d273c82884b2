"""Idle devices on a machine that people share: their holder is shown them, later root, and nothing is stopped."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.shared_machine import PYTHON, SharedMachineRig, cannot_be_here
from tests.waiting import patient, until

pytestmark = [
    pytest.mark.skipif(bool(cannot_be_here()), reason=cannot_be_here()),
    pytest.mark.timeout(patient(120)),
    pytest.mark.slow,
]
SETTINGS = 'idle_after = "3s"\nidle_admin_after = "9s"\n'
# Sleeps, works once there is a file, and sleeps again without it.
NOW_AND_THEN = "while :; do while [ -e work ]; do :; done; sleep 0.2; done"
BUSY = "while :; do :; done"


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedMachineRig]:
    made = SharedMachineRig(tmp_path_factory.mktemp("machine"))
    try:
        settings = made.root / "etc/moorings/controller.toml"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(SETTINGS)
        made.up()
        yield made
        made.down()
    finally:
        made.close()


def start(machine: SharedMachineRig, person: str, name: str, *command: str) -> str:
    done = machine.moor(person, "run", "--detach", "--name", name, "--ipus", "2", "--", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def on_terminal(machine: SharedMachineRig, person: str, *words: str) -> str:
    """What ``moor`` prints there on a terminal."""
    ours, theirs = pty.openpty()
    try:
        argv = machine.argv(person, [PYTHON, "-m", "moorings.cli.main", *words])
        subprocess.run(argv, stdin=theirs, stdout=theirs, stderr=theirs, timeout=patient(60), check=False)
        os.set_blocking(ours, False)
        try:
            return os.read(ours, 1 << 16).decode()
        except BlockingIOError:
            return ""  # the machine was too busy for a login
    finally:
        os.close(ours)
        os.close(theirs)


def reasons(machine: SharedMachineRig, person: str) -> dict[str, str]:
    """The REASON of each job by its name, as that person sees it."""
    rows = [line.split() for line in machine.moor(person, "get", "queue").stdout.splitlines()[1:]]
    return {row[2]: " ".join(row[7:]) for row in rows}


def test_a_sleeper_is_shown_to_its_person_then_to_root_and_nothing_is_stopped(machine: SharedMachineRig) -> None:
    sleeps = start(machine, "ann", "sleeps", "sleep", "300")
    works = start(machine, "bob", "works", "sh", "-c", BUSY)
    until(lambda: reasons(machine, "ann").get("sleeps", "").startswith("idle "))
    seen = machine.ask("ann", "get", "run", sleeps)
    assert seen["idle"]["since"] >= seen["startedAt"]
    lines = until(lambda: machine.moor("ann", "motd").stdout.splitlines())
    assert lines[3].startswith("  sleeps holds 2 ipu and has used no CPU for "), lines
    assert "idle" not in str(machine.ask("eve", "get", "queue")), "she does not see the run"

    def root_is_shown() -> str:
        return "".join(line for line in machine.moor("root", "top", "--once").stdout.splitlines() if "Idle" in line)

    line = until(root_is_shown)
    assert line.startswith("Idle: ann holds 2 ipu and has used no CPU for "), line
    assert line.endswith(": sleeps"), line
    assert "Idle: ann holds 2 ipu" in until(lambda: on_terminal(machine, "root", "motd"))
    assert len(until(lambda: machine.moor("root", "motd").stdout.splitlines())) == 2, "it may be for everybody"
    assert "Idle" not in machine.moor("eve", "top", "--once").stdout
    assert "Idle" not in until(lambda: on_terminal(machine, "bob", "motd"))

    assert "idle" not in machine.ask("bob", "get", "run", works)
    names = [each["name"] for each in machine.ask("root", "get", "events")["items"] if "idle" in each["name"]]
    assert names == ["run.idled", "run.stayed_idle"], "of the sleeper, once each"
    for person, ident in (("ann", sleeps), ("bob", works)):
        assert machine.ask(person, "get", "run", ident)["state"] == "RUNNING"


def test_a_run_that_works_again_is_not_idle(machine: SharedMachineRig) -> None:
    work = machine.root / "home/ann/work"
    ident = start(machine, "ann", "turns", "sh", "-c", NOW_AND_THEN)
    for _ in range(2):
        until(lambda: "idle" in machine.ask("ann", "get", "run", ident))
        work.touch()
        until(lambda: "idle" not in machine.ask("ann", "get", "run", ident))
        work.unlink()
    machine.kill(machine.controller_pid())
    machine.up()
    until(lambda: "idle" in machine.ask("ann", "get", "run", ident))
    machine.kill(machine.daemon_pid())  # the kernel counts without it
    machine.up()
    assert machine.ask("ann", "get", "run", ident)["state"] == "RUNNING"
