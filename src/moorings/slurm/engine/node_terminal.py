"""The terminal of a run's first task on a node, where Moorings is not installed.

``build_terminal_archive`` packs this file and what it imports into one that ``python3`` runs::

    python3 ARCHIVE check                            do nothing: this Python will do
    python3 ARCHIVE serve ATTEMPT START COMMAND...   run a command in a terminal that outlives those who look at it
    python3 ARCHIVE attach SOCKET                    be such a look, in the terminal of this process

The socket lies in a folder of the node's own ``/tmp``, 0700: the attempt's folder may be on a file server that holds no
sockets. ``terminal.START`` in the attempt's folder says how to attach.

It handles no signal: Slurm sends one to every process of a step, so the command has it, too. A step that attaches
ignores those that stop the tasks, so that it shows what they write last.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.serialization import from_plain
from moorings.engines.processes import adopt_orphans, descendants, die_with_parent, list_processes, send_signal
from moorings.engines.terminal_server import CommandWish, TerminalServer
from moorings.files import write_atomically
from moorings.terminal.attaching import Relay, RelayEnd, connect, raw_terminal, window_size
from moorings.wire.frames import SOCKET_NAME, TerminalAction, TerminalFailure, TerminalRequest

TERMINAL_FILE = "terminal.json"
POLL_S = 1.0
KILL_RETRY_S = 0.1
CANNOT_START = 126  # a shell's code
HUP_EXIT = 129  # of a program that its terminal has stopped, whatever it says itself
DETACHED, CLOSED, UNREACHABLE = 90, 91, 92  # exit codes of ``attach``; 0: the program has ended

_MODULES = (
    "__init__",
    "core.__init__",
    *(f"core.model.{name}" for name in ("__init__", "devices", "errors", "reasons", "serialization", "state_machine")),
    *(f"core.model.{name}" for name in ("timestamps", "topology")),
    *(f"engines.{name}" for name in ("__init__", "channels", "loopback", "processes", "task_terminal")),
    *(f"engines.{name}" for name in ("terminal_server", "terminal_sessions")),
    "files",
    *(f"privileged.{name}" for name in ("__init__", "peers")),
    *(f"slurm.{name}" for name in ("__init__", "engine.__init__", "engine.node_terminal")),
    *(f"terminal.{name}" for name in ("__init__", "attaching")),
    *(f"wire.{name}" for name in ("__init__", "frames")),
    *(f"workloads.{name}" for name in ("__init__", "commands")),
)
_SETTABLE = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
_STOP_SIGNALS = (
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGCONT,
)  # a shell ignores TERM; a stopped process waits for CONT


@dataclass(frozen=True, slots=True)
class NodeTerminal:
    """What the program has to know of a job.

    Attributes:
        keep_s: for how long its command stays unattended.
        first_s: the same before anyone has been there: the run must first be seen to run.
        grace_s: between HUP and KILL.
        why: a sentence for one that was stopped so.
    """

    keep_s: float
    first_s: float
    grace_s: float
    why: str


@cache
def build_terminal_archive() -> bytes:
    """The program, as one file."""
    from moorings.engines.node_archive import pack  # not needed on a node

    return pack("slurm.engine.node_terminal", _MODULES, "a terminal cannot be had")


def main(words: Sequence[str]) -> None:
    """Do one of these and end."""
    what = words[0]
    if what == "attach":
        os._exit(attach(Path(words[1])))
    if what == "serve":
        os._exit(serve(Path(words[1]), words[2], words[3:]))


# -- the program's side ------------------------------------------------------------------------------------------------


def serve(attempt: Path, start: str, command: Sequence[str]) -> int:
    """Run a command in a terminal until it has ended; returns its exit code.

    Args:
        attempt: the folder of the attempt.
        start: how many times Slurm has restarted the job.
        command: program and arguments.
    """
    for number in _SETTABLE - {signal.SIGCHLD}:
        _ignore(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD})
    adopt_orphans()  # to stop what a shell leaves behind, too
    try:
        known = from_plain(NodeTerminal, json.loads((attempt / TERMINAL_FILE).read_text()))
        folder = Path(tempfile.mkdtemp(prefix="moorings-terminal-", dir="/tmp"))
        task = TerminalTask(attempt, known, folder, command)
        how = shlex.join([sys.executable, "-I", sys.argv[0], "attach", str(folder / SOCKET_NAME)])
        write_atomically(attempt / f"terminal.{start}", f"# {folder}\nexec {how}\n".encode())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _save_reason(attempt, f"it could not be given a terminal: {error}")
        return CANNOT_START
    return task.run()


class TerminalTask:
    """A command in a terminal, and the socket to it.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: it could not be started.
    """

    def __init__(self, attempt: Path, known: NodeTerminal, folder: Path, command: Sequence[str]) -> None:
        self._attempt = attempt
        self._known = known
        self._folder = folder
        self._stopped_s: float | None = None
        self._server = TerminalServer(folder / SOCKET_NAME, _wake_main_thread, _log_error)
        self._server.listen()
        slave = self._server.open_task_terminal(os.dup(1))
        try:
            self._process = _start(command, slave)
        finally:
            os.close(slave)
        self._server.begin()

    def run(self) -> int:
        """Wait for the command's end, or stop it once it was unattended for too long; returns its exit code."""
        pause_s = 0.0
        while (code := self._reap()) is None:
            for wish in self._server.take_wishes():
                if isinstance(wish, CommandWish):
                    self._server.command_failed(wish, TerminalFailure("'moor exec' is a step of its own on Slurm"))
            pause_s = self._stop_if_left()
            signal.sigtimedwait({signal.SIGCHLD}, pause_s)
        if self._stopped_s is not None:
            code = code or HUP_EXIT
        self._server.finish(code)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        return code

    def _stop_if_left(self) -> float:
        """Stop the command if no one has been there for too long; returns when to look again, in seconds."""
        now_s, unattended_s = time.monotonic(), self._server.unattended_s
        if self._stopped_s is not None:
            if now_s - self._stopped_s < self._known.grace_s:
                return min(POLL_S, self._known.grace_s)
            self._signal(signal.SIGKILL)
            return KILL_RETRY_S
        keep_s = self._known.keep_s if self._server.was_attended else self._known.first_s
        if unattended_s is not None and unattended_s >= keep_s:
            self._stopped_s = now_s
            _save_reason(self._attempt, self._known.why)
            (self._attempt / "unattended").touch()
            for number in _STOP_SIGNALS:
                self._signal(number)
        return POLL_S

    def _signal(self, number: int) -> None:
        for process in descendants([os.getpid()], list_processes()):
            send_signal(process, number)

    def _reap(self) -> int | None:
        """The command's exit code; None: it runs."""
        code = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == self._process.pid:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self._process.returncode = code
        return code if code is None or code >= 0 else 128 - code


def _start(command: Sequence[str], slave: int) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def before_exec() -> None:
        die_with_parent(parent)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in _SETTABLE:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    return subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=before_exec,  # no other thread runs yet
    )


def _save_reason(attempt: Path, sentence: str) -> None:
    with contextlib.suppress(OSError):
        write_atomically(attempt / "tasks" / "0.why", f"{sentence}\n".encode())


def _ignore(number: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # the C library's own
        signal.signal(number, signal.SIG_IGN)


def _wake_main_thread() -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None, "it runs"
    signal.pthread_kill(main_thread, signal.SIGCHLD)


def _log_error(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the log of the task: its standard output is
        os.write(1, f"moorings: {text}\n".encode())


# -- the person's side -------------------------------------------------------------------------------------------------


def attach(path: Path) -> int:
    """Show a terminal in that of this process until it has ended or is left; returns how (``DETACHED``, ...)."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        _ignore(number)
    try:
        request = TerminalRequest(action=TerminalAction.ATTACH, size=window_size(0))
        with connect(path, request) as connected, raw_terminal(0):
            result = Relay(connected, terminal=True).run()
    except (MooringsError, OSError, termios.error) as error:
        sys.stderr.write(f"moorings: {error.detail if isinstance(error, MooringsError) else error}\n")
        return UNREACHABLE
    return {RelayEnd.DETACHED: DETACHED, RelayEnd.CLOSED: CLOSED}.get(result.end, 0)
