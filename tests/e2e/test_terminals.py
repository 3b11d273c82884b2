"""Terminals of runs on one's own machine: real terminals around real ``moor``, controllers and supervisors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.engines.terminal_server import SESSIONS_MAX
from moorings.terminal import attaching
from moorings.terminal.attaching import TerminalRefusedError, connect
from moorings.wire.frames import FrameKind, TerminalAction, TerminalRequest, encode_frame
from tests.e2e.processes import ControllerProcess
from tests.procfs import HEARING
from tests.pseudoterminal import Pseudoterminal
from tests.waiting import patient, until

DETACH = "\x10\x11"
# What it prints comes from the foreground of its terminal, so Ctrl-C is for it from then on.
BEGUN_THEN_SLEEP = "sh -c 'echo be\"\"gun; exec sleep 1000'"
SHELL = ("bash", "--norc", "--noprofile")
ATTACH = TerminalRequest(action=TerminalAction.ATTACH)


class Person:
    """Somebody who types ``moor``."""

    def __init__(self, controller: ControllerProcess, home: Path) -> None:
        self.controller = controller
        self.home = home

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "TERM": "xterm",
            "SHELL": "/bin/bash",
            "MOORINGS_SERVER": f"http://127.0.0.1:{self.controller.port}",
            "MOORINGS_ACCESS_KEY": self.controller.key,
        }

    @staticmethod
    def command(*words: str) -> list[str]:
        return [*HEARING, sys.executable, "-m", "moorings.cli.main", *words]

    def terminal(self, *words: str, stderr: int | None = None) -> Pseudoterminal:
        return Pseudoterminal(self.command(*words), self.environment, folder=self.home, stderr=stderr)

    def interactive(self, *flags: str) -> Pseudoterminal:
        return self.terminal("run", "-i", *flags, "--size", "2", "--", *SHELL)

    def moor(self, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        call = self.command(*words)
        return subprocess.run(
            call,
            env=self.environment,
            cwd=self.home,
            input=given,
            capture_output=True,
            timeout=patient(60),
            check=False,
        )

    def start(self, *command: str, flags: tuple[str, ...] = ()) -> str:
        made = self.moor("run", "--detach", "--size", "2", *flags, "--", *command)
        assert made.returncode == 0, made.stderr
        run = made.stdout.decode().strip()
        until(lambda: self.state(run) == "RUNNING")
        return run

    def run(self, run: str) -> dict[str, object]:
        found: dict[str, object] = self.controller.ask("GET", f"/v1/runs/{run}")[1]
        return found

    def state(self, run: str) -> str:
        return str(self.run(run)["state"])

    def socket(self, run: str) -> Path:
        return Path(self.controller.ask("GET", f"/v1/runs/{run}/terminal")[1]["socket"])

    def supervisor(self, run: str) -> int:
        status = json.loads((self.controller.data / "runs" / run / "status.json").read_text())
        return int(status["supervisor"]["pid"])


@pytest.fixture
def person(controller: ControllerProcess, tmp_path: Path) -> Iterator[Person]:
    """A person; afterwards nothing of their runs is left."""
    home = tmp_path / "home"
    home.mkdir()
    yield Person(controller, home)
    if controller.process is not None and controller.process.poll() is None:
        for run in controller.ask("GET", "/v1/runs")[1]["items"]:
            controller.ask("POST", f"/v1/runs/{run['id']}/cancel")
        until(lambda: not controller.ask("GET", "/v1/runs")[1]["items"])
        until(lambda: not controller.holders())


def run_of(terminal: Pseudoterminal) -> str:
    """The run of which a terminal shows the start."""
    terminal.wait_for("detaches")
    found = re.search(r"run-\w+", terminal.output.decode())
    assert found is not None
    return found[0]


def is_echoing(terminal: Pseudoterminal) -> bool:
    return bool(int(str(terminal.settings()[3])) & termios.ECHO)


def test_interactive_run_has_a_terminal_of_its_own(person: Person) -> None:
    with person.interactive() as terminal:
        before = terminal.settings()
        run_of(terminal)
        terminal.type("tty; stty size; echo devices=$MOORINGS_DEVICES\n")
        terminal.wait_for("/dev/pts/")
        terminal.wait_for("24 80")
        terminal.wait_for("devices=pod16:0,pod16:1")
        terminal.resize(33, 99)
        terminal.type("until [ \"$(stty size)\" = '33 99' ]; do sleep 0.05; done; echo re''sized\n")
        terminal.wait_for("resized")
        terminal.type("exit 7\n")
        assert terminal.wait() == 7
        assert terminal.settings() == before


def test_control_c_is_the_programs(person: Person) -> None:
    with person.interactive() as terminal:
        run_of(terminal)
        terminal.type(f"{BEGUN_THEN_SLEEP}; echo code''=$?\n")
        terminal.wait_for("begun")
        terminal.type("\x03")
        terminal.type("\n")
        terminal.type("echo al''ive\n")
        terminal.wait_for("alive")
        terminal.type("exit\n")
        assert terminal.wait() == 0 or terminal.process.returncode == 130


def test_detached_terminal_shows_its_last_output_again(person: Person) -> None:
    with person.interactive() as terminal:
        run = run_of(terminal)
        terminal.type("echo re''membered\n")
        terminal.wait_for("remembered")
        terminal.type(DETACH)
        terminal.wait_for(f"moor attach {run}")
        assert terminal.wait() == 0
        assert is_echoing(terminal)
    assert person.state(run) == "RUNNING"
    with person.terminal("attach", run) as again, person.terminal("attach", run) as second:
        again.wait_for("remembered")
        second.wait_for("remembered")
        again.type("echo se''en\n")
        second.wait_for("seen")  # each sees what the other types
        second.type("exit 3\n")
        assert (again.wait(), second.wait()) == (3, 3)
    assert b"remembered" in person.moor("logs", run).stdout


def test_closed_terminal_hangs_up_an_interactive_run(person: Person) -> None:
    with person.interactive("--keep", "1s") as terminal:
        run = run_of(terminal)
        terminal.close()
        assert terminal.process.wait(patient(20)) == 128 + signal.SIGHUP
    until(lambda: person.state(run) == "CANCELLED")
    assert "--keep" in str(person.run(run)["detail"])


def test_kept_run_ends_though_it_ignores_hangup(person: Person, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        'command = ["sh", "-c", "trap : HUP TERM; while :; do sleep 1; done"]\n[checkpoint]\ngrace = "0:01"\n'
    )
    made = person.moor("run", "-i", "--detach", "--keep", "0s", "--size", "2", str(job))
    run = made.stdout.decode().strip()
    until(lambda: person.state(run) == "CANCELLED")


@pytest.mark.parametrize("stderr", ["terminal", "file", "broken pipe"])
def test_closed_terminal_leaves_a_run_running(person: Person, tmp_path: Path, stderr: str) -> None:
    read, write = os.pipe()
    with (tmp_path / "stderr").open("wb") as log:
        given = {"terminal": None, "file": log.fileno(), "broken pipe": write}[stderr]
        words = ("run", "--size", "2", "--", "sh", "-c", "echo be''gun; sleep 1000")
        terminal = person.terminal(*words, stderr=given)
        os.close(write)
    with terminal:
        terminal.wait_for("begun")
        os.close(read)
        terminal.close()
        assert terminal.process.wait(patient(20)) == 128 + signal.SIGHUP
    (run,) = person.controller.ask("GET", "/v1/runs")[1]["items"]
    assert run["state"] == "RUNNING"
    if stderr == "file":
        assert f"moor logs -f {run['id']}" in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("is_deaf", [False, True], ids=["hung up", "deaf to it"])
def test_closed_terminal_leaves_an_array_running(person: Person, tmp_path: Path, *, is_deaf: bool) -> None:
    words = person.command("run", "--size", "0", "--array", "0-1", "--", "sh", "-c", f"touch {tmp_path}/on; sleep 1000")
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words] if is_deaf else words
    with (tmp_path / "stderr").open("wb") as log:
        stderr = None if is_deaf else log.fileno()
        terminal = Pseudoterminal(words, person.environment, folder=person.home, stderr=stderr)
    with terminal:
        until((tmp_path / "on").exists)
        terminal.close()
        assert terminal.process.wait(patient(30)) == 128 + signal.SIGHUP
    runs = person.controller.ask("GET", "/v1/runs")[1]["items"]
    assert [run["state"] in ("STARTING", "RUNNING") for run in runs] == [True, True]
    if not is_deaf:
        assert f"moor wait {runs[0]['array']['id']}" in (tmp_path / "stderr").read_text()


def test_output_to_a_dead_terminal_leaves_a_run_running(person: Person) -> None:
    script = "echo be''gun; while :; do echo more; sleep 0.1; done"
    words = person.command("run", "--size", "2", "--", "sh", "-c", script)
    deaf = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words]  # to HUP: only its writing fails
    with Pseudoterminal(deaf, person.environment, folder=person.home) as terminal:
        terminal.wait_for("begun")
        terminal.close()
        assert terminal.process.wait(patient(20)) == 128 + signal.SIGHUP
    (run,) = person.controller.ask("GET", "/v1/runs")[1]["items"]
    assert run["state"] == "RUNNING"


def test_control_c_cancels_a_run_without_terminal(person: Person) -> None:
    with person.terminal("run", "--size", "2", "--", "sh", "-c", "echo be''gun; sleep 1000") as terminal:
        terminal.wait_for("begun")
        terminal.type("\x03")
        terminal.wait_for("CANCELLED")
        assert terminal.wait() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_leaves_and_restores_the_terminal(person: Person, number: signal.Signals) -> None:
    with person.interactive() as terminal:
        before = terminal.settings()
        run = run_of(terminal)
        until(lambda: not is_echoing(terminal))
        terminal.process.send_signal(number)
        assert terminal.wait() == 128 + number
        assert terminal.settings() == before
        assert f"moor attach {run}" in terminal.output.decode()
    assert person.state(run) == "RUNNING"


def test_killed_moor_keeps_devices_no_longer_than_keep(person: Person) -> None:
    with person.interactive("--keep", "1s") as terminal:
        run = run_of(terminal)
        terminal.process.kill()
        terminal.process.wait()
        until(lambda: person.state(run) == "CANCELLED")
    until(lambda: not person.controller.holders())


def test_terminal_outlives_a_killed_controller(person: Person) -> None:
    with person.interactive() as terminal:
        run = run_of(terminal)
        person.controller.kill()
        terminal.type("echo still''here\n")
        terminal.wait_for("stillhere")
        person.controller.start()
        assert person.state(run) == "RUNNING"
        terminal.type("exit 4\n")
        assert terminal.wait(60) == 4


def test_killed_supervisor_ends_terminal_command_and_claim(person: Person) -> None:
    with person.interactive() as terminal:
        run = run_of(terminal)
        with person.terminal("exec", run, "--", "sh", "-c", "echo pid=$$; exec sleep 1000") as command:
            command.wait_for("pid=")
            pid = int(command.wait_for("\n"))
            os.kill(person.supervisor(run), signal.SIGKILL)
            assert command.wait() == 128 + signal.SIGKILL
            until(lambda: not Path(f"/proc/{pid}").exists())
        terminal.wait_for("LOST")
        assert terminal.wait() != 0
    until(lambda: not person.controller.holders())


def test_exec_keeps_output_errors_and_code_apart(person: Person) -> None:
    run = person.start("sleep", "1000", flags=("--env", "COLOUR=red"))
    script = "echo out $COLOUR $MOORINGS_RUN_ID $RANK; pwd; cat; echo err >&2; exit 9"
    done = person.moor("exec", run, "--", "sh", "-c", script, given=b"given\n")
    assert (done.returncode, done.stderr) == (9, b"err\n")
    assert done.stdout.decode() == f"out red {run} 0\n{person.home}\ngiven\n"
    assert person.moor("exec", run, "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert (person.moor("exec", run, "--", "no-such").returncode, person.moor("exec", run, "--", "/").returncode) == (
        127,
        126,
    )
    much = bytes(range(256)) * 20_000
    assert person.moor("exec", run, "--", "cat", given=much).stdout == much
    assert person.state(run) == "RUNNING"  # what a command does is nothing to the run


def test_exec_in_a_terminal_has_one_of_its_own(person: Person) -> None:
    run = person.start("sleep", "1000")
    with person.terminal("exec", run, "--", *SHELL) as terminal:
        terminal.type(f"stty size; {BEGUN_THEN_SLEEP}; echo code''=$?\n")
        terminal.wait_for("24 80")
        terminal.wait_for("begun")
        terminal.type("\x03\nexit 5\n")
        assert terminal.wait() == 5


def test_exec_ends_with_its_client(person: Person) -> None:
    run = person.start("sleep", "1000")
    with person.terminal("exec", run, "--no-tty", "--", "sh", "-c", "echo pid=$$; exec sleep 1000") as terminal:
        terminal.wait_for("pid=")
        pid = int(terminal.wait_for("\n"))
        terminal.process.kill()
        until(lambda: not Path(f"/proc/{pid}").exists())
    assert person.state(run) == "RUNNING"


def test_exec_ends_with_its_run(person: Person) -> None:
    run = person.start("sleep", "1000")
    with person.terminal("exec", run, "--", *SHELL) as terminal:
        terminal.type("echo be''gun\n")
        terminal.wait_for("begun")
        assert person.moor("cancel", run).returncode == 0  # though a shell ignores TERM
        assert terminal.wait() != 0


def test_run_without_terminal_says_so(person: Person) -> None:
    run = person.start("sleep", "1000")
    with person.terminal("attach", run) as terminal:
        terminal.wait_for("the run has no terminal")
        assert terminal.wait() == 4
    assert person.moor("attach", run).returncode == 2  # nor has this process one


def test_output_of_a_quick_program_is_shown(person: Person) -> None:
    for _ in range(3):
        with person.terminal("run", "-i", "--size", "2", "--", "echo", "qu" + "ick") as terminal:
            assert terminal.wait() == 0
            assert terminal.output.count(b"quick") == 1


def test_all_output_of_a_terminal_is_in_the_log(person: Person) -> None:
    with person.terminal("run", "-i", "--size", "2", "--", "seq", "200000") as terminal:
        assert terminal.wait() == 0
        (run,) = set(re.findall(r"run-\w+", terminal.output.decode()))
    lines = person.moor("logs", run).stdout.split()
    assert lines == [str(number).encode() for number in range(1, 200_001)]


def test_keep_and_i_are_refused_without_a_terminal(person: Person) -> None:
    for flags in (("--keep", "1m"), ("-i",)):
        assert person.moor("run", *flags, "--size", "2", "--", "true").returncode == 2


# ---------------------------------------------------------------------------------------------------------- the socket


def test_port_forward_reaches_the_job_and_refuses_strangers(person: Person) -> None:
    server = (
        "import socket; l = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1], flush=True)\n"
        "while True:\n    c, _ = l.accept()\n    d = b''\n"
        "    while (m := c.recv(65536)): d += m\n    c.sendall(d[::-1]); c.close()"
    )
    run = person.start("python3", "-c", server)
    remote = int(until(lambda: person.moor("logs", run).stdout.strip()))
    with person.terminal("port-forward", run, f"0:{remote}") as terminal:
        terminal.wait_for("127.0.0.1:")
        port = int(terminal.wait_for(" ->").split()[0])
        for size in (1, 300_000):
            assert exchange(port, b"ab" * size) == b"ba" * size
        if os.geteuid() == 0:
            ask = (
                f"import socket; c = socket.create_connection(('127.0.0.1', {port})); c.sendall(b'x'); print(c.recv(9))"
            )
            stranger = ["setpriv", "--reuid=61001", "--regid=61001", "--clear-groups", "/usr/bin/python3", "-c", ask]
            done = subprocess.run(stranger, capture_output=True, check=False)
            assert done.stdout in (b"b''\n", b"")
            terminal.wait_for("a connection of user 61001 was refused")
        terminal.type("\x03")
        assert terminal.wait() == 130


def exchange(port: int, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), patient(20)) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while chunk := connection.recv(1 << 16):
            found += chunk
        return found


def test_sessions_of_a_run_are_bounded(person: Person) -> None:
    run = person.start("sleep", "1000")
    request = TerminalRequest(action=TerminalAction.EXEC, command=("cat",))
    with contextlib.ExitStack() as stack:
        for _ in range(SESSIONS_MAX):
            stack.enter_context(connect(person.socket(run), request))
        with pytest.raises(TerminalRefusedError, match="32 terminals"):
            connect(person.socket(run), request)
    until(lambda: person.moor("exec", run, "--", "true").returncode == 0)


def test_nonsense_on_the_socket_ends_only_its_sender(person: Person) -> None:
    with person.interactive() as terminal:
        run = run_of(terminal)
        path = person.socket(run)
        assert path.stat().st_mode & 0o777 == 0o600
        for sent in (
            os.urandom(5000),
            b"Q\xff\xff\xff\xff",
            encode_frame(FrameKind.REQUEST, b"[" * 5000),
            encode_frame(FrameKind.REQUEST, ATTACH.encode().replace(b"80", b"-1")),
            encode_frame(FrameKind.INPUT, b"x"),
            b"",
        ):
            with attaching._connect(path) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(patient(20))
                with contextlib.suppress(ConnectionResetError):
                    while connection.recv(1 << 16):
                        pass
        terminal.type("echo al''ive; exit\n")
        terminal.wait_for("alive")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_stranger_reaches_no_supervisor_and_is_not_reached(person: Person, tmp_path: Path) -> None:
    run = person.start("sleep", "1000")
    path = person.socket(run)
    path.chmod(0o666)
    for folder in (path.parent, *path.parents):
        with contextlib.suppress(OSError):
            folder.chmod(folder.stat().st_mode | 0o011)
    assert as_stranger(f"c.connect({str(path)!r}); print(c.recv(9))") == b"b''"
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o777)
    theirs.chmod(0o777)
    listener = "l = c; l.bind('terminal'); l.listen(); print('listens', flush=True); l.accept()[0].recv(9)"
    with subprocess.Popen(stranger_command(listener), cwd=theirs, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        code = (
            "import sys, pathlib; from moorings.terminal.attaching import connect; from moorings.wire.frames import *\n"
            "connect(pathlib.Path(sys.argv[1]), TerminalRequest(action=TerminalAction.ATTACH))"
        )
        person_61002 = ["setpriv", "--reuid=61002", "--regid=61002", "--clear-groups", "--inh-caps=+dac_read_search"]
        call = [*person_61002, "--ambient-caps=+dac_read_search", sys.executable, "-c", code, str(theirs / "terminal")]
        (theirs / "terminal").chmod(0o666)
        done = subprocess.run(call, capture_output=True, check=False)
        process.kill()
    assert b"a process of user 61001 listens" in done.stderr, done.stderr


def stranger_command(code: str) -> list[str]:
    program = f"import socket; c = socket.socket(socket.AF_UNIX); {code}"
    return ["setpriv", "--reuid=61001", "--regid=61001", "--clear-groups", "/usr/bin/python3", "-c", program]


def as_stranger(code: str) -> bytes:
    return subprocess.run(stranger_command(code), capture_output=True, check=False).stdout.strip()
