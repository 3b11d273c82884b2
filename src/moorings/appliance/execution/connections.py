"""A system's connections to the weight servers: the order of requests, and the error when a server has gone.

A response may be read later than its request: the next layer's weights travel while this layer is computed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moorings.appliance.execution.errors import execution_error
from moorings.appliance.execution.frames import Arrays, Frame, FrameError, body_bytes_max, receive_frame, send_frame
from moorings.appliance.execution.server import peer_uid
from moorings.appliance.execution.weights import Shapes

_CONNECT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of one server, and the token to connect."""

    path: Path
    token: str


class ServerConnection:
    """One connection to one server.

    Args:
        server: its number, for sentences.
        most: the longest body of a response, in bytes.
        describe_loss: gives the reason why a server has gone, as a clause; may be empty.
    """

    def __init__(self, sock: socket.socket, server: int, most: int, describe_loss: Callable[[int], str]) -> None:
        self._sock = sock
        self._server = server
        self._most = most
        self._describe_loss = describe_loss

    @classmethod
    def connect(
        cls, place: ServerAddress, server: int, system: int, most: int, describe_loss: Callable[[int], str]
    ) -> ServerConnection:
        """Connect to a server as ``system``.

        Raises:
            OSError: no process listens there.
            MooringsError: the process belongs to another user.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(_CONNECT_S)
            sock.connect(str(place.path))
            _check_ours(sock, place)
            sock.settimeout(None)
            send_frame(sock, {"token": place.token, "system": system})
        except BaseException:
            sock.close()
            raise
        return cls(sock, server, most, describe_loss)

    def send(self, op: str, arrays: Arrays | None = None, **head: object) -> None:
        """Send a message."""
        try:
            send_frame(self._sock, {"op": op, **head}, arrays)
        except OSError:
            while True:  # until its last message with the reason, if any, or the end of the connection
                self.receive()

    def receive(self) -> Frame:
        """The response to the oldest request without one."""
        try:
            frame = receive_frame(self._sock, self._most)
        except (OSError, FrameError) as error:
            raise self._closed_error() from error
        if frame is None:
            raise self._closed_error()
        if "error" in frame.head:
            raise execution_error(str(frame.head["error"]))
        return frame

    def call(self, op: str, arrays: Arrays | None = None, **head: object) -> Mapping[str, Any]:
        """Send a request and wait for its response."""
        self.send(op, arrays, **head)
        return self.receive().head

    def close(self) -> None:
        """Close without notice; the server takes it for a failure unless ``bye`` was sent."""
        self._sock.close()

    def _closed_error(self) -> Exception:
        why = self._describe_loss(self._server)
        return execution_error(f"weight server {self._server} has gone" + (f": {why}" if why else ""))


class ServerConnections:
    """All connections of one system.

    Args:
        places: the servers' addresses.
        shares: the layers of each server.
        shapes: of the weights of each layer.
        system: this system's number.
    """

    def __init__(
        self,
        places: Sequence[ServerAddress],
        shares: Sequence[Sequence[int]],
        shapes: Sequence[Shapes],
        system: int,
        describe_loss: Callable[[int], str] = lambda _server: "",
    ) -> None:
        self.system: Final = system
        self._server_of_layer = {layer: server for server, share in enumerate(shares) for layer in share}
        self._down: list[ServerConnection] = []
        self._up: list[ServerConnection] = []
        most = max(map(body_bytes_max, shapes), default=0)
        try:
            for server, place in enumerate(places):
                for links in (self._down, self._up):
                    links.append(ServerConnection.connect(place, server, system, most, describe_loss))
        except BaseException:
            self.close()
            raise

    def weights_connection(self, layer: int) -> ServerConnection:
        """The connection for that layer's weights."""
        return self._down[self._server_of_layer[layer]]

    def control_connection(self, layer: int) -> ServerConnection:
        """The connection for its gradients, and all other messages about it."""
        return self._up[self._server_of_layer[layer]]

    @property
    def coordinator(self) -> ServerConnection:
        """The connection for the exchange between systems: to the first server."""
        return self._up[0]

    def call_all(self, op: str, **head: object) -> list[Mapping[str, Any]]:
        """Send a request to all servers at once; return their responses in order."""
        for link in self._up:
            link.send(op, None, **head)
        return [link.receive().head for link in self._up]

    def leave(self) -> None:
        """Announce the end, and close; the first system, which ends the servers, comes last."""
        if self.system == 0:
            self.call_all("farewell")
        for link in self._down + self._up:
            link.send("bye")
        self.close()

    def close(self) -> None:
        """Close all, also in the middle of an exchange."""
        for link in self._down + self._up:
            link.close()


def _check_ours(sock: socket.socket, place: ServerAddress) -> None:
    if peer_uid(sock) != os.getuid():
        raise execution_error(f"another user listens at {place.path}", "nothing was sent there")
