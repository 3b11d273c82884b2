"""Listens on this machine, and passes each connection to a port of a run's machine.

A port of 127.0.0.1 is open to everybody on the machine. So each connection's own user is looked up, and only the
person's and root's are let in.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from moorings.core.model.errors import MooringsError
from moorings.engines.loopback import client_user
from moorings.terminal.attaching import connect
from moorings.wire.frames import FrameKind, FrameReader, TerminalAction, TerminalRequest, encode_frame

READ_BYTES = 1 << 16
CONNECTIONS_MAX = 24  # at a time; a run's supervisor takes 32 sessions in all
PORTS_MAX = 16


class Forwarder(Protocol):
    """How connections get to a run's machine."""

    @property
    def connections_max(self) -> int:
        """How many at a time."""
        ...

    def forward(self, connection: socket.socket, port: int) -> None:
        """Pass bytes between a connection and that port until one of them is closed."""
        ...

    def close(self) -> None:
        """End all of them."""
        ...


def parse_ports(text: str) -> tuple[int, int]:
    """``[LOCAL:]REMOTE`` as two ports; local 0: any free one.

    Raises:
        MooringsError: ``port.invalid``.
    """
    local, colon, remote = text.rpartition(":")
    numbers = (local if colon else remote, remote)
    if not all(number.isascii() and number.isdecimal() and len(number) <= 5 for number in numbers):
        raise _invalid(text)
    found = int(numbers[0]), int(numbers[1])
    if not (0 <= found[0] <= 65535 and 1 <= found[1] <= 65535):
        raise _invalid(text)
    return found


def _invalid(text: str) -> MooringsError:
    return MooringsError(
        "port.invalid", f"{text[:40]!r} is no port", hint="write 8888, or 9000:8888 for another one here"
    )


class PortForwarder:
    """A context manager that listens on ports of 127.0.0.1.

    Args:
        forwarder: where to.
        ports: each here, and there.
        report: takes a sentence about a connection that failed.

    Attributes:
        ports: as they are, once it listens.
    """

    def __init__(self, forwarder: Forwarder, ports: Sequence[tuple[int, int]], report: Callable[[str], None]) -> None:
        self._forwarder = forwarder
        self._report = report
        self.ports = list(ports)
        self._listening: list[socket.socket] = []
        self._slots = threading.BoundedSemaphore(forwarder.connections_max)

    def __enter__(self) -> Self:
        if len(self.ports) > PORTS_MAX:
            raise MooringsError("port.invalid", f"{len(self.ports)} ports are too many", hint=f"up to {PORTS_MAX}")
        try:
            for at, (local, remote) in enumerate(self.ports):
                listening = self._listen(local)
                self._listening.append(listening)
                self.ports[at] = (listening.getsockname()[1], remote)
                threading.Thread(target=self._accept, args=(listening, remote), daemon=True).start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for listening in self._listening:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        self._forwarder.close()

    def _listen(self, port: int) -> socket.socket:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen(CONNECTIONS_MAX)
        except OSError as error:
            listening.close()
            hint = f"choose another one here: {port + 1 if port < 65535 else 9000}:REMOTE"
            detail = f"port {port} of 127.0.0.1 cannot be used: {error.strerror or error}"
            raise MooringsError("port.invalid", detail, hint=hint) from error
        return listening

    def _accept(self, listening: socket.socket, remote: int) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # closed
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, remote), daemon=True).start()

    def _serve(self, connection: socket.socket, remote: int) -> None:
        try:
            with connection:
                uid = client_user(connection)
                if uid not in (os.getuid(), 0):
                    self._report(f"a connection of user {uid} was refused")
                    return
                self._forwarder.forward(connection, remote)
        finally:
            self._slots.release()


class SupervisorForwarder:
    """Passes connections on by the supervisor of a run on this machine.

    Args:
        path: of its socket.
        report: takes a sentence about a connection that failed.
    """

    connections_max = CONNECTIONS_MAX

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self._path = path
        self._report = report

    def forward(self, connection: socket.socket, port: int) -> None:
        """Pass bytes on until the connection or its other end is closed."""
        try:
            supervisor = connect(self._path, TerminalRequest(action=TerminalAction.FORWARD, port=port))
        except MooringsError as error:
            self._report(error.detail)
            return
        with supervisor:
            supervisor.settimeout(None)
            threading.Thread(target=_forward_outgoing, args=(connection, supervisor), daemon=True).start()
            _forward_incoming(supervisor, connection)

    def close(self) -> None:
        """Nothing: connections end with this process."""


def _forward_outgoing(connection: socket.socket, supervisor: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := connection.recv(READ_BYTES):
            supervisor.sendall(encode_frame(FrameKind.INPUT, chunk))
        supervisor.sendall(encode_frame(FrameKind.END))


def _forward_incoming(supervisor: socket.socket, connection: socket.socket) -> None:
    frames = FrameReader()
    with contextlib.suppress(OSError, ValueError):
        while chunk := supervisor.recv(READ_BYTES):
            for kind, content in frames.feed(chunk):
                if kind is FrameKind.OUTPUT:
                    connection.sendall(content)
        connection.shutdown(socket.SHUT_RDWR)
