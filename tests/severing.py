"""A way to a PostgreSQL server that is cut at the one moment that matters: when a commit is on its way.

It understands just enough of the protocol to see the message that says COMMIT. Killing the server there by chance was
refused: it hits that moment once in thousands of tries, and nobody would know whether it did.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
from collections.abc import Iterator

from tests.waiting import patient

PATIENCE_S = patient(60)


class Cut(enum.Enum):
    """What happens to the next COMMIT."""

    BEFORE = enum.auto()  # the server never hears it, and both ends find the connection closed
    AFTER = enum.auto()  # the server carries it out; its answer is lost with the connection
    SILENCE = enum.auto()  # the server carries it out; its answer never comes, and nothing says why
    LATE = enum.auto()  # the client loses the connection at once; the server hears it when ``late`` is set


class SeveredWay:
    """Takes connections on ``port`` and passes them on to a server's port."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.next_cut: Cut | None = None
        self.cut = threading.Event()
        self.late = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._take, daemon=True)]
        self._threads[0].start()

    def arm(self, cut: Cut) -> None:
        """Cut the next commit."""
        self.cut.clear()
        self.late.clear()
        self.next_cut = cut

    def close(self) -> None:
        self.late.set()
        _close(self._listening)
        for one in self._sockets:
            _close(one)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _take(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each message waits for 40 ms
            self._sockets += [client, server]
            passing = _Passing(self, client, server)
            for way in (passing.up, passing.down):
                self._threads.append(threading.Thread(target=way, daemon=True))
                self._threads[-1].start()


class _Passing:
    """One connection: ``up`` and ``down`` run in a thread each."""

    def __init__(self, way: SeveredWay, client: socket.socket, server: socket.socket) -> None:
        self._way, self._client, self._server = way, client, server
        self._cut: Cut | None = None

    def up(self) -> None:
        """From the client to the server, a message at a time."""
        with contextlib.suppress(OSError):
            for message in _messages(self._client):
                if self._way.next_cut is not None and message[:1] == b"Q" and message[5:-1] == b"COMMIT":
                    self._cut, self._way.next_cut = self._way.next_cut, None
                    if self._cut is Cut.BEFORE:
                        self._way.cut.set()
                        break
                    if self._cut is Cut.LATE:
                        _close(self._client)
                        self._way.cut.set()
                        self._way.late.wait(PATIENCE_S)
                        self._server.sendall(message)
                        return  # ``down`` sees the answer and ends it
                self._server.sendall(message)
        self._end()

    def down(self) -> None:
        """From the server to the client, until an answer is to be lost."""
        with contextlib.suppress(OSError):
            while data := self._server.recv(1 << 16):
                if self._cut is None:
                    self._client.sendall(data)
                    continue
                assert b"COMMIT" in data, data  # the server's word that it is done
                self._way.cut.set()
                if self._cut is not Cut.SILENCE:
                    break
        if self._cut is not Cut.SILENCE:
            self._end()

    def _end(self) -> None:
        _close(self._client)
        _close(self._server)


def _messages(client: socket.socket) -> Iterator[bytes]:
    """What a client sends, cut where its messages end; the first one has no type."""
    reader = client.makefile("rb")
    head = 4
    while len(start := reader.read(head)) == head:
        length = int.from_bytes(start[-4:], "big")
        yield start + reader.read(length - 4)
        head = 5


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):  # already closed
        one.shutdown(socket.SHUT_RDWR)
    one.close()
