"""What one client of a run's supervisor has: task 0's terminal, a command of its own, or a connection to a port."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from moorings.engines.channels import Channel, ClientChannel
from moorings.engines.loopback import listening_users
from moorings.engines.task_terminal import TaskTerminal, set_size
from moorings.wire.frames import FrameKind, TerminalFailure, TerminalRequest, WindowSize, parse_request

REQUEST_S = 10.0  # within which a client says what it wants
LAST_OUTPUT_S = 0.1  # for which a command's output is read after its end, while others still have it open

Readable = Callable[[], None]


class ClientSession:
    """One client; without more it only gets what was sent to it.

    Args:
        client: its connection.
        inward: where its bytes go.
        outward: the channels whose bytes it gets, and as which frames.
        terminal: the terminal that it may resize.
    """

    def __init__(
        self,
        client: ClientChannel,
        inward: Channel | None = None,
        outward: Mapping[Channel, FrameKind] | None = None,
        terminal: Channel | None = None,
    ) -> None:
        self.client = client
        self.inward = inward
        self.outward = outward or {}
        self.terminal = terminal
        self.last_output_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done for it."""
        return not self.client.is_open or (self.client.is_read and not self.client.waiting)

    @property
    def is_ending(self) -> bool:
        """Whether it waits for something that no descriptor shows."""
        return False

    def channels(self) -> Iterator[tuple[Channel, Readable | None]]:
        """Its channels, and what to do when each can be read; None: it is not read now."""
        takes = not self.client.is_read and (self.inward is None or self.inward.can_take_more)
        yield self.client, self.take_frames if takes else None
        if self.inward is not None and self.inward not in self.outward and self.inward.is_open:
            yield self.inward, None
        for channel, kind in self.outward.items():
            if channel.is_open:
                reads = self.client.can_take_more and not channel.is_read
                yield channel, partial(self._pass_on, channel, kind) if reads else None

    def take_frames(self) -> None:
        """Do what the client's frames say; one that sends none is let go."""
        try:
            for kind, content in self.client.receive():
                self.take_frame(kind, content)
        except ValueError as error:
            self.client.fail(TerminalFailure(f"it cannot be understood: {error}"))
            self.client.is_read = True

    def take_frame(self, kind: FrameKind, content: bytes) -> None:
        """Do what a frame says.

        Raises:
            ValueError: it says nothing that can be done.
        """
        if kind is FrameKind.INPUT and self.inward is not None:
            self.inward.write(content)
        elif kind is FrameKind.SIZE and self.terminal is not None:
            set_size(self.terminal.fd, WindowSize.parse(content))
        elif kind is FrameKind.END and self.inward is not None and self.inward is not self.terminal:
            self.inward.end()

    def step(self) -> None:
        """Do what the time brings."""

    def end_of_run(self) -> None:
        """Send what is left; no process of the run is."""

    def close(self) -> None:
        """Give up everything of it."""
        self.client.close()
        for channel in (*self.outward, *((self.inward,) if self.inward is not None else ())):
            channel.close()

    def _pass_on(self, channel: Channel, kind: FrameKind) -> None:
        chunk = channel.read()
        if chunk:
            self.last_output_s = time.monotonic()
            self.client.send(kind, chunk)
        elif channel.is_read:
            self.output_ended(channel)

    def output_ended(self, channel: Channel) -> None:
        """One of its channels was read to its end."""


class NewSession(ClientSession):
    """A client that has not said what it wants."""

    def __init__(self, client: ClientChannel, accept: Callable[[ClientChannel, TerminalRequest], None]) -> None:
        super().__init__(client)
        self._accept = accept
        self._until_s = time.monotonic() + REQUEST_S
        self.is_replaced = False

    @property
    def is_over(self) -> bool:
        return self.is_replaced or super().is_over

    def take_frame(self, kind: FrameKind, content: bytes) -> None:
        if self.is_replaced or kind is not FrameKind.REQUEST:
            raise ValueError("a connection begins with one request, and waits for its answer")
        request = parse_request(content)
        self.is_replaced = True
        self._accept(self.client, request)

    def step(self) -> None:
        if time.monotonic() > self._until_s:
            self.client.close()

    def close(self) -> None:
        if not self.is_replaced:
            super().close()


class AttachSession(ClientSession):
    """A client of the terminal of task 0."""

    def __init__(self, client: ClientChannel, terminal: TaskTerminal) -> None:
        super().__init__(client, inward=terminal.channel, terminal=terminal.channel)
        self._task_terminal = terminal

    def channels(self) -> Iterator[tuple[Channel, Readable | None]]:
        yield next(super().channels())  # the terminal's own channel is everybody's

    def close(self) -> None:
        self._task_terminal.detach(self.client)
        self.client.close()


class CommandSession(ClientSession):
    """A client whose command runs beside the tasks."""

    def __init__(
        self,
        client: ClientChannel,
        pid: int,
        inward: Channel,
        outward: Mapping[Channel, FrameKind],
        terminal: Channel | None,
        send_signal: Callable[[int, int | None], None],
    ) -> None:
        super().__init__(client, inward, outward, terminal)
        self.pid = pid
        self._send_signal = send_signal
        self._exit_code: int | None = None

    def command_ended(self, code: int) -> None:
        """Its command has exited."""
        self._exit_code, self.last_output_s = code, time.monotonic()

    def take_frame(self, kind: FrameKind, content: bytes) -> None:
        if kind is FrameKind.SIGNAL:
            if not (content.isdigit() and 1 <= int(content[:4]) < 32):
                raise ValueError("it is no signal")
            self._send_signal(self.pid, int(content))
        else:
            super().take_frame(kind, content)

    @property
    def is_ending(self) -> bool:
        return self._exit_code is not None

    def step(self) -> None:
        if all(channel.is_read for channel in self.outward) or time.monotonic() - self.last_output_s > LAST_OUTPUT_S:
            self._send_exit()

    def end_of_run(self) -> None:
        for channel, kind in self.outward.items():
            while channel.is_open and (chunk := channel.read()):
                self.client.send(kind, chunk)
        self._send_exit()

    def _send_exit(self) -> None:
        if self._exit_code is not None and self.client.can_take_more:
            self.client.send(FrameKind.EXIT, str(self._exit_code).encode())
            self.client.end()
            self._exit_code = None

    def close(self) -> None:
        super().close()
        self._send_signal(self.pid, None)


class ForwardSession(ClientSession):
    """A client's connection to a port of the job's machine."""

    def __init__(self, client: ClientChannel, connected: socket.socket) -> None:
        channel = Channel.of_socket(connected)
        super().__init__(client, channel, {channel: FrameKind.OUTPUT})

    def output_ended(self, channel: Channel) -> None:
        self.client.send(FrameKind.END)
        self.client.end()


def connect_port(port: int) -> socket.socket:
    """Return a connection to a port of this machine's loopback addresses.

    Raises:
        OSError: nothing listens there, or another user's process does: it may wait for what is meant for the job.
    """
    _check_listeners(port)
    try:
        connection = _connect(socket.AF_INET, "127.0.0.1", port)
    except OSError:
        connection = _connect(socket.AF_INET6, "::1", port)
    try:
        _check_listeners(port)  # one may have come in between
    except PermissionError:
        connection.close()
        raise
    return connection


def _check_listeners(port: int) -> None:
    strangers = listening_users(port) - {os.getuid(), 0}
    if strangers:
        raise PermissionError(errno.EACCES, f"a process of user {min(strangers)} listens there")


def _connect(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(1.0)
        connection.connect((address, port))
    except OSError:
        connection.close()
        raise
    return connection
