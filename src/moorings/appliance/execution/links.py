"""A system's connections to the weight servers: who asks for what, and what is said when a server has gone.

What is asked for may be taken later: the next layer's weights travel while this layer is computed.
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
    """Where one server listens, and what makes it let one in."""

    path: Path
    token: str


class ServerConnection:
    """One connection to one server.

    Args:
        server: its number, for sentences.
        most: how long the body of an answer may be, in bytes.
        why_gone: what is known of a server that has gone, as a clause; may be empty.
    """

    def __init__(self, sock: socket.socket, server: int, most: int, why_gone: Callable[[int], str]) -> None:
        self._sock = sock
        self._server = server
        self._most = most
        self._why_gone = why_gone

    @classmethod
    def connect(
        cls, place: ServerAddress, server: int, system: int, most: int, why_gone: Callable[[int], str]
    ) -> ServerConnection:
        """A connection that the server takes for one of ``system``.

        Raises:
            OSError: nobody listens there.
            MooringsError: another user does.
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
        return cls(sock, server, most, why_gone)

    def say(self, op: str, arrays: Arrays | None = None, **head: object) -> None:
        """Send a message."""
        try:
            send_frame(self._sock, {"op": op, **head}, arrays)
        except OSError:
            while True:  # until what it said before it left, if it said why, or that it has gone
                self.hear()

    def hear(self) -> Frame:
        """The answer to the oldest message that has one and was not heard yet."""
        try:
            frame = receive_frame(self._sock, self._most)
        except (OSError, FrameError) as error:
            raise self._gone() from error
        if frame is None:
            raise self._gone()
        if "error" in frame.head:
            raise execution_error(str(frame.head["error"]))
        return frame

    def ask(self, op: str, arrays: Arrays | None = None, **head: object) -> Mapping[str, Any]:
        """Send a message and wait for its answer."""
        self.say(op, arrays, **head)
        return self.hear().head

    def close(self) -> None:
        """Leave without a word; the server takes it for a death unless ``bye`` was said."""
        self._sock.close()

    def _gone(self) -> Exception:
        why = self._why_gone(self._server)
        return execution_error(f"weight server {self._server} has gone" + (f": {why}" if why else ""))


class ServerConnections:
    """All connections of one system.

    Args:
        places: of the servers.
        shares: which layers each keeps.
        shapes: of the weights of each layer.
        system: which this is.
    """

    def __init__(
        self,
        places: Sequence[ServerAddress],
        shares: Sequence[Sequence[int]],
        shapes: Sequence[Shapes],
        system: int,
        why_gone: Callable[[int], str] = lambda _server: "",
    ) -> None:
        self.system: Final = system
        self._keeper = {layer: server for server, share in enumerate(shares) for layer in share}
        self._down: list[ServerConnection] = []
        self._up: list[ServerConnection] = []
        most = max(map(body_bytes_max, shapes), default=0)
        try:
            for server, place in enumerate(places):
                for links in (self._down, self._up):
                    links.append(ServerConnection.connect(place, server, system, most, why_gone))
        except BaseException:
            self.close()
            raise

    def down(self, layer: int) -> ServerConnection:
        """On which that layer's weights come."""
        return self._down[self._keeper[layer]]

    def up(self, layer: int) -> ServerConnection:
        """On which its gradients go, and all else that is said about it."""
        return self._up[self._keeper[layer]]

    @property
    def council(self) -> ServerConnection:
        """On which the systems hear of each other: the first server's."""
        return self._up[0]

    def ask_all(self, op: str, **head: object) -> list[Mapping[str, Any]]:
        """Ask every server at once; their answers in order."""
        for link in self._up:
            link.say(op, None, **head)
        return [link.hear().head for link in self._up]

    def leave(self) -> None:
        """Say that no more is wanted, and close; the first system, which ends the servers, goes last."""
        if self.system == 0:
            self.ask_all("farewell")
        for link in self._down + self._up:
            link.say("bye")
        self.close()

    def close(self) -> None:
        """Close all, also in the middle of something."""
        for link in self._down + self._up:
            link.close()


def _check_ours(sock: socket.socket, place: ServerAddress) -> None:
    if peer_uid(sock) != os.getuid():
        raise execution_error(f"another user listens at {place.path}", "nothing was sent there")
