"""Commands that run beside a run's tasks, because its person asked for them: started, signalled and reaped here.

By the supervisor's main thread, as its tasks: each is a child of the supervisor, leads a session of its own, and has
the variables and the folder of task 0. It ends with the tasks, and how it ends is nothing to the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from moorings.engines.task_terminal import open_terminal
from moorings.engines.terminal_server import CommandWish, SignalWish, StartedCommand, TerminalServer
from moorings.wire.frames import FrameKind, TerminalFailure


@dataclass(frozen=True, slots=True)
class Streams:
    """What a process gets as its first three descriptors; ``is_terminal``: they are its controlling terminal."""

    stdin: int
    stdout: int
    stderr: int
    is_terminal: bool = False


class CommandNotStarted(Protocol):
    """Why a process was not started."""

    code: int
    detail: str


StartProcess = Callable[[tuple[str, ...], Mapping[str, str], Streams], "subprocess.Popen[bytes] | CommandNotStarted"]


class CommandRunner:
    """The commands of one run.

    Args:
        server: where they are wished.
        start: starts a process in the job's folder, or says why not.
    """

    def __init__(self, server: TerminalServer, start: StartProcess) -> None:
        self._server = server
        self._start = start
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def serve(self, environment: Mapping[str, str]) -> None:
        """Do what clients wish now.

        Args:
            environment: the variables of task 0.
        """
        for wish in self._server.take_wishes():
            if isinstance(wish, SignalWish):
                self._signal(wish)
                continue
            try:
                self._run(wish, environment)
            except OSError as error:  # out of descriptors, for example
                failure = TerminalFailure(f"the command cannot be started: {error.strerror or error}")
                self._server.command_failed(wish, failure)

    def send_hangup(self) -> None:
        """Send all commands HUP: an interactive shell ignores TERM."""
        for pid in self._running:
            self._signal(SignalWish(pid, signal.SIGHUP))

    def reaped(self, pid: int, returncode: int) -> None:
        """Note the end of a child that is no task."""
        process = self._running.pop(pid, None)
        if process is not None:
            process.returncode = returncode
            self._server.command_ended(pid, returncode if returncode >= 0 else 128 - returncode)

    def _run(self, wish: CommandWish, environment: Mapping[str, str]) -> None:
        request = wish.request
        with contextlib.ExitStack() as theirs:
            if request.tty:
                master, slave = open_terminal(request.size)
                theirs.callback(os.close, slave)
                streams, stdin, outputs = Streams(slave, slave, slave, is_terminal=True), master, {master: "OUTPUT"}
                variables = dict(environment) | ({"TERM": request.term} if request.term else {})
            else:
                (stdin_read, stdin), (out, out_write), (err, err_write) = os.pipe(), os.pipe(), os.pipe()
                for each in (stdin_read, out_write, err_write):
                    theirs.callback(os.close, each)
                streams, outputs = Streams(stdin_read, out_write, err_write), {out: "OUTPUT", err: "ERRORS"}
                variables = dict(environment)
            started = self._start(request.command, variables, streams)
        if isinstance(started, subprocess.Popen):
            self._running[started.pid] = started
            kinds = tuple((fd, FrameKind[name]) for fd, name in outputs.items())
            self._server.command_started(wish, StartedCommand(started.pid, stdin, kinds, request.tty))
            return
        for fd in {stdin, *outputs}:
            os.close(fd)
        self._server.command_failed(wish, TerminalFailure(started.detail, exit_code=started.code))

    def _signal(self, wish: SignalWish) -> None:
        """Send a signal to a command's process group; HUP if its client has gone, as when a terminal is closed."""
        if wish.pid in self._running:  # not reaped, so its id is not reused
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(wish.pid, signal.SIGHUP if wish.number is None else wish.number)
