"""The terminal of a run's first task, as its program on a node runs it: without Moorings beside it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moorings.core.model.serialization import to_plain
from moorings.engines.processes import handles_signal, read_process
from moorings.slurm.engine import node_terminal
from moorings.slurm.engine.node_terminal import NodeTerminal, build_terminal_archive
from tests.pseudoterminal import Pseudoterminal
from tests.waiting import patient, until

ENVIRONMENT = {"PATH": os.environ["PATH"], "TERM": "xterm", "PS1": "ready> "}


class Node:
    """A node with the program and an attempt's folder."""

    def __init__(self, folder: Path) -> None:
        self.attempt = folder / "attempt"
        (self.attempt / "tasks").mkdir(parents=True)
        self.archive = folder / "terminal.pyz"
        self.archive.write_bytes(build_terminal_archive())
        self.log = folder / "log"

    def command(self, *words: str) -> list[str]:
        # -I: neither a variable nor the current folder shows it our own source; -S: nor what is installed here
        return [sys.executable, "-I", "-S", str(self.archive), *words]

    @contextmanager
    def serving(
        self, *command: str, keep_s: float = 600, first_s: float = 600, grace_s: float = 10
    ) -> Iterator[subprocess.Popen[bytes]]:
        known = NodeTerminal(keep_s, first_s, grace_s, "it was left")
        (self.attempt / "terminal.json").write_text(json.dumps(to_plain(known)))
        with self.log.open("ab") as log:
            words = self.command("serve", str(self.attempt), "0", *command)
            process = subprocess.Popen(words, stdout=log, stdin=subprocess.DEVNULL, env=ENVIRONMENT)
        with process:
            try:
                yield process
            finally:
                process.kill()
                process.wait()
                self._remove_socket()

    def _remove_socket(self) -> None:
        """As the batch script does for a terminal that was killed."""
        if (self.attempt / "terminal.0").exists():
            shutil.rmtree(self.socket().parent, ignore_errors=True)

    def attach(self) -> Pseudoterminal:
        how = self.attempt / "terminal.0"
        until(how.exists)
        return Pseudoterminal(shlex.split(how.read_text().splitlines()[1])[1:], ENVIRONMENT)

    def socket(self) -> Path:
        return Path(shlex.split((self.attempt / "terminal.0").read_text().splitlines()[1])[-1])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_shell_is_left_and_found_again_with_its_exit_code(node: Node) -> None:
    with node.serving("bash", "--norc") as process:
        with node.attach() as first:
            first.wait_for("ready> ")
            first.type("mark=here; stty size\r")
            first.wait_for("24 80")
            first.type("\x10\x11")
            assert first.wait() == node_terminal.DETACHED
        with node.attach() as again:
            again.wait_for("24 80")
            again.type("echo $mark; exit 7\r")
            again.wait_for("here")
            assert again.wait() == 0
        assert process.wait(patient(20)) == 7
    assert b"24 80" in node.log.read_bytes()
    assert not node.socket().parent.exists()


def test_socket_lies_in_a_folder_of_its_own_user_on_the_node(node: Node) -> None:
    with node.serving("sleep", "60"):
        until((node.attempt / "terminal.0").exists)
        path = node.socket()
        assert path.parent.parent == Path("/tmp")
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.parent.stat().st_uid == os.getuid()


def test_unattended_command_gets_hup_and_says_why(node: Node) -> None:
    script = "trap '' TERM; trap 'echo hung up; exit 0' HUP; echo here; sleep 60 & wait"
    with node.serving("sh", "-c", script, keep_s=0.1) as process:
        with node.attach() as terminal:
            terminal.wait_for("here")
        assert process.wait(patient(20)) == 129
    assert (node.attempt / "tasks" / "0.why").read_text() == "it was left\n"
    assert (node.attempt / "unattended").exists()
    assert b"hung up" in node.log.read_bytes()


def test_stubborn_command_is_killed_with_all_that_it_has_started(node: Node) -> None:
    script = "trap '' HUP TERM; setsid sh -c 'trap \"\" HUP TERM; echo $$; sleep 60; sleep 60' & wait; wait"
    with node.serving("sh", "-c", script, first_s=0.5, grace_s=0.2) as process:
        assert process.wait(patient(20)) == 137
    left = int(node.log.read_text().split()[0])
    until(lambda: (found := read_process(left)) is None or found.has_exited)


def test_signals_of_slurm_are_for_the_command_alone(node: Node) -> None:
    with node.serving("sh", "-c", "echo here; exec sleep 60") as process, node.attach() as terminal:
        terminal.wait_for("here")
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            process.send_signal(number)
            assert not handles_signal(process.pid, number)  # else a warning would not reach the command
        terminal.type("\x03")
        assert process.wait(patient(20)) == 130


def test_command_that_cannot_be_given_a_terminal_says_why(node: Node) -> None:
    (node.attempt / "terminal.json").write_text("{")
    done = subprocess.run(node.command("serve", str(node.attempt), "0", "true"), check=False)
    assert done.returncode == 126
    assert (node.attempt / "tasks" / "0.why").read_text().startswith("it could not be given a terminal: ")


def test_terminal_that_has_gone_is_not_reached(node: Node, tmp_path: Path) -> None:
    with Pseudoterminal(node.command("attach", str(tmp_path / "terminal")), ENVIRONMENT) as terminal:
        assert terminal.wait() == node_terminal.UNREACHABLE
        terminal.wait_for("cannot be reached")
