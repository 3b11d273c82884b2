"""The socket by which a person's ``moor`` reaches the supervisor of a run: its terminal, commands beside it, its ports.

It lies in the run's folder, 0600, and takes only the run's own user and root, by the kernel's word (SO_PEERCRED). A
thread moves the bytes; it starts, reaps and signals no process. That is the main thread's, as for tasks: so a command
is in the job's cgroup, is a process of the run like any other, and ends with it. A process of its own was refused: it
would be one more that can be killed while the run lives.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moorings.engines.channels import Channel, ClientChannel
from moorings.engines.task_terminal import TaskTerminal, open_terminal
from moorings.engines.terminal_sessions import (
    AttachSession,
    ClientSession,
    CommandSession,
    ForwardSession,
    NewSession,
    connect_port,
)
from moorings.privileged.peers import peer_uid
from moorings.wire.frames import FrameKind, TerminalAction, TerminalFailure, TerminalRequest, WindowSize

SESSIONS_MAX = 32  # of a run: clients of its terminal, commands and connections together
STEP_S = 0.05  # between two looks, while a session waits for something that no descriptor shows
IDLE_S = 1.0
LAST_FLUSH_S = 2.0  # for which clients are sent what is left when the run has ended


@dataclass(frozen=True, slots=True, eq=False)
class CommandWish:
    """A command that a client wants to run."""

    client: ClientChannel
    request: TerminalRequest


@dataclass(frozen=True, slots=True)
class SignalWish:
    """A signal that a client wants for the process group of its command; None: the client has gone."""

    pid: int
    number: int | None


@dataclass(frozen=True, slots=True)
class StartedCommand:
    """A command that runs, with our ends of what it reads and writes."""

    pid: int
    stdin: int
    outputs: tuple[tuple[int, FrameKind], ...]
    is_terminal: bool


class TerminalServer:
    """Serves the socket of one run's attempt.

    Args:
        path: of the socket, in the run's folder.
        wake: wakes the main thread, so that it calls ``take_wishes``.
        log_error: writes a sentence to the supervisor's log.
    """

    def __init__(self, path: Path, wake: Callable[[], None], log_error: Callable[[str], None]) -> None:
        self._path = path
        self._wake_main = wake
        self._log_error = log_error
        self._listening: socket.socket | None = None
        self._terminal: TaskTerminal | None = None
        self._sessions: list[ClientSession] = []
        self._commands: dict[int, CommandSession] = {}
        self._wishes: deque[CommandWish | SignalWish] = deque()
        self._news: deque[Callable[[], None]] = deque()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._ends_at_s: float | None = None

    # -- the main thread's part

    def listen(self) -> None:
        """Make the socket; nothing is served before ``begin``.

        Raises:
            OSError: that failed.
        """
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._path.unlink(missing_ok=True)
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        before = os.umask(0o177)
        try:
            listening.bind(
                f"/proc/self/fd/{folder}/{self._path.name}"
            )  # a folder's own path may be longer than 108 bytes
            listening.listen(SESSIONS_MAX)
        except OSError:
            listening.close()
            raise
        finally:
            os.umask(before)
            os.close(folder)
        self._listening = listening

    def open_task_terminal(self, log: int) -> int:
        """Return the slave side of task 0's terminal; the caller closes it once the task has it.

        Args:
            log: a descriptor of the task's log; it becomes the terminal's.

        Raises:
            OSError: there is no terminal left.
        """
        master, slave = open_terminal(WindowSize())
        self._terminal = TaskTerminal(master, log)
        return slave

    def begin(self) -> None:
        """Serve from now on, in a thread."""
        self._thread = threading.Thread(target=self._serve, name="terminal", daemon=True)
        self._thread.start()

    @property
    def unattended_s(self) -> float | None:
        """For how long no client has been at task 0's terminal; None: there is one, or no terminal."""
        return self._terminal.unattended_s if self._terminal is not None else None

    @property
    def was_attended(self) -> bool:
        """Whether a client has ever been at task 0's terminal."""
        return self._terminal is not None and self._terminal.was_attended

    def take_wishes(self) -> list[CommandWish | SignalWish]:
        """What clients want of processes, in their order."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._wishes.popleft())
        return found

    def command_started(self, wish: CommandWish, started: StartedCommand) -> None:
        """Serve a command that was started."""
        self._pass_news(lambda: self._serve_command(wish, started))

    def command_failed(self, wish: CommandWish, failure: TerminalFailure) -> None:
        """Say why a command was not started."""
        self._pass_news(lambda: wish.client.fail(failure))

    def command_ended(self, pid: int, exit_code: int) -> None:
        """Say how a command ended."""
        self._pass_news(lambda: self._end_command(pid, exit_code))

    def finish(self, exit_code: int) -> None:
        """Send each client the last output and the exit code of task 0, and end; no process of the run is left."""
        if self._thread is not None and self._thread.is_alive():
            self._pass_news(lambda: self._begin_end(exit_code))
            self._thread.join(LAST_FLUSH_S * 3)
        if self._listening is not None:
            self._path.unlink(missing_ok=True)
            self._listening.close()

    # -- the thread's part

    def _pass_news(self, news: Callable[[], None]) -> None:
        self._news.append(news)
        os.eventfd_write(self._woken, 1)

    def _wish(self, wish: CommandWish | SignalWish) -> None:
        self._wishes.append(wish)
        self._wake_main()

    def _serve(self) -> None:
        while self._ends_at_s is None or (time.monotonic() < self._ends_at_s and self._has_unsent()):
            try:
                self._serve_once()
            except Exception as error:  # the job must not wait for a terminal that is read no more
                self._log_error(f"the terminal's clients are let go: {error!r}")
                for session in self._sessions:
                    session.client.close()
                time.sleep(STEP_S)

    def _serve_once(self) -> None:
        self._wait()
        while self._news:
            self._news.popleft()()
        if self._terminal is not None:
            for client in self._terminal.stalled_clients():
                client.close()
        for session in self._sessions:
            session.step()
        for session in [each for each in self._sessions if each.is_over]:
            self._sessions.remove(session)
            session.close()

    def _has_unsent(self) -> bool:
        return any(session.client.is_open and session.client.waiting for session in self._sessions)

    def _wait(self) -> None:
        """Wait for descriptors, and do what each is ready for."""
        poll, actions = select.poll(), dict[int, tuple[Channel | None, Callable[[], None] | None]]()

        def add(channel: Channel, act: Callable[[], None] | None) -> None:
            events = (select.POLLIN if act is not None else 0) | (select.POLLOUT if channel.waiting else 0)
            if events and channel.is_open:  # a descriptor without events would report its end again and again
                poll.register(channel.fd, events)
                actions[channel.fd] = (channel, act)

        poll.register(self._woken, select.POLLIN)
        actions[self._woken] = (None, lambda: _drain(self._woken))
        if self._listening is not None:
            poll.register(self._listening, select.POLLIN)
            actions[self._listening.fileno()] = (None, self._accept)
        for session in self._sessions:
            for channel, act in session.channels():
                add(channel, act)
        terminal = self._terminal
        if terminal is not None and terminal.channel.is_open and not terminal.channel.is_read:
            add(terminal.channel, terminal.take_output if terminal.takes_output else None)
        is_ending = self._ends_at_s is not None or any(session.is_ending for session in self._sessions)
        pause_s = STEP_S if is_ending else IDLE_S
        for fd, events in poll.poll(pause_s * 1000):
            ready, action = actions[fd]
            if ready is not None and not ready.is_open:
                continue  # an action before this one has closed it
            if ready is not None and events & (select.POLLOUT | select.POLLERR):
                ready.flush()
            if action is not None and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                action()

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            connected, _ = self._listening.accept()
        except OSError:  # it has gone again, or we are out of descriptors
            return
        if peer_uid(connected) not in (os.getuid(), 0):
            connected.close()
            return
        client = ClientChannel(connected)
        if len(self._sessions) >= SESSIONS_MAX:
            client.fail(
                TerminalFailure(f"the run has {SESSIONS_MAX} terminals, commands and connections", "end some of them")
            )
            client.close()
            return
        self._sessions.append(NewSession(client, self._begin_session))

    def _begin_session(self, client: ClientChannel, request: TerminalRequest) -> None:
        if request.action is TerminalAction.EXEC:
            self._sessions.append(ClientSession(client))
            self._wish(CommandWish(client, request))
        elif request.action is TerminalAction.FORWARD:
            self._sessions.append(self._forward(client, request.port))
        elif self._terminal is None:
            failure = TerminalFailure(
                "the run has no terminal", "'moor exec RUN -- bash' starts a shell beside its tasks"
            )
            client.fail(failure)
            self._sessions.append(ClientSession(client))
        else:
            self._terminal.attach(client, request.size)
            self._sessions.append(AttachSession(client, self._terminal))

    def _forward(self, client: ClientChannel, port: int) -> ClientSession:
        try:
            connected = connect_port(port)
        except OSError as error:
            client.fail(
                TerminalFailure(f"port {port} of the job's machine cannot be reached: {error.strerror or error}")
            )
            return ClientSession(client)
        client.send(FrameKind.READY)
        return ForwardSession(client, connected)

    def _serve_command(self, wish: CommandWish, started: StartedCommand) -> None:
        outward = {Channel(fd): kind for fd, kind in started.outputs}
        inward = next(iter(outward)) if started.is_terminal else Channel(started.stdin)
        terminal = inward if started.is_terminal else None
        session = CommandSession(
            wish.client, started.pid, inward, outward, terminal, lambda *wanted: self._wish(SignalWish(*wanted))
        )
        wish.client.send(FrameKind.READY)
        self._commands[started.pid] = session
        self._sessions = [each for each in self._sessions if each.client is not wish.client]
        self._sessions.append(session)

    def _end_command(self, pid: int, exit_code: int) -> None:
        session = self._commands.pop(pid, None)
        if session is not None:
            session.command_ended(exit_code)

    def _begin_end(self, exit_code: int) -> None:
        self._ends_at_s = time.monotonic() + LAST_FLUSH_S
        if self._terminal is not None:
            self._terminal.drain()
            self._terminal.close(exit_code)
        for session in self._sessions:
            session.end_of_run()


def _drain(eventfd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(eventfd)
