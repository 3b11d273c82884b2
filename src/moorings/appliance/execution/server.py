"""A weight server's process: ``python -m moorings.appliance.execution.server SOCKET_FD``, started by the first system.

It gets a listening socket, and on its standard input one line of JSON: its share. That pipe is its lifeline: it ends
when the other end closes, for any reason, and removes its socket and the notice. TERM and INT are ignored, for they are
sent to all processes of a job, and the systems need a last checkpoint from here when they stop.

Two connections a system: one for weights to it, one for everything from it. On a single one both sides could wait for
each other to read.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final, Self

from moorings.appliance.execution.frames import (
    Frame,
    FrameError,
    TruncatedFrameError,
    body_bytes_max,
    receive_frame,
    send_frame,
)
from moorings.appliance.execution.optimizer import AdamW
from moorings.appliance.execution.weights import Shapes, WeightShard, WorkLostError

GREETING_MOST: Final = 1 << 10
CONNECTIONS: Final = 2  # of each system
_GREETING_S: Final = 10.0
_LINE_MOST: Final = 64 << 20
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid: unix(7), SO_PEERCRED
_ERRORS = (WorkLostError, FrameError, OSError, KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The configuration of one server.

    Attributes:
        token: required of every connection.
        systems: how many there are.
        shapes: of the weights of its layers, by layer number.
        optimizer: None: nothing is trained.
        address_file: the absolute path of the file with the servers' addresses.
    """

    token: str
    systems: int
    shapes: Mapping[int, Shapes]
    optimizer: AdamW | None
    address_file: str

    def dump(self) -> bytes:
        """As a line of JSON."""
        optimizer = asdict(self.optimizer) if self.optimizer else None
        return json.dumps({**asdict(self), "shapes": dict(self.shapes), "optimizer": optimizer}).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """From that line."""
        record = json.loads(line)
        shapes = {
            int(layer): {name: tuple(shape) for name, shape in each.items()} for layer, each in record["shapes"].items()
        }
        optimizer = AdamW(**record["optimizer"]) if record["optimizer"] else None
        return cls(record["token"], record["systems"], shapes, optimizer, record["address_file"])


def peer_uid(sock: socket.socket) -> int:
    """The user of the process at the other end of an AF_UNIX socket."""
    found = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(found[1])


class WeightServer:
    """The connections of one share."""

    def __init__(self, plan: ServerConfig) -> None:
        self._plan = plan
        self._share = WeightShard(plan.shapes, plan.systems, plan.optimizer)
        self._most = max(map(body_bytes_max, plan.shapes.values()), default=0)

    def accept(self, listener: socket.socket) -> None:
        """Accept connections, until the process ends."""
        while True:
            sock, _ = listener.accept()
            Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                system = self._authenticate(sock)
            except (FrameError, OSError, TypeError):
                return  # another user's process, which learns nothing and has changed nothing
            self._share.add_connection(system)
            try:
                left = self._serve_requests(sock, system)
                why = None if left else f"system {system} has gone"
            except (OSError, TruncatedFrameError):
                why = f"system {system} has gone"
            except _ERRORS as error:
                why = str(error) if isinstance(error, (WorkLostError, FrameError)) else f"system {system}: {error!r}"
                self._try_send_error(sock, why)
            if why is not None:
                self._share.fail(why)

    def _authenticate(self, sock: socket.socket) -> int:
        """The number of the system that has connected.

        Raises:
            FrameError: it is not one of ours.
        """
        if peer_uid(sock) != os.getuid():
            raise FrameError("another user")
        sock.settimeout(_GREETING_S)
        frame = receive_frame(sock, GREETING_MOST)
        head = frame.head if frame else {}
        if not hmac.compare_digest(str(head.get("token")), self._plan.token):
            raise FrameError("another job")
        system = int(head.get("system", -1))
        if not 0 <= system < self._plan.systems:
            raise FrameError("no such system")
        sock.settimeout(None)
        return system

    def _serve_requests(self, sock: socket.socket, system: int) -> bool:
        """Respond until the peer closes; return whether it announced that."""
        while (frame := receive_frame(sock, self._most)) is not None:
            if frame.head["op"] == "bye":
                self._share.remove_connection(system)
                return True
            self._handle(sock, system, frame)
        return False

    def _handle(self, sock: socket.socket, system: int, frame: Frame) -> None:
        share, head = self._share, frame.head
        match head["op"]:
            case "weights":
                send_frame(sock, {}, share.weights(head["layer"], head["step"]))
            case "gradients":  # no response: an error in it goes to the next waiting request
                share.add_gradients(head["layer"], head["step"], system, frame.arrays)
            case "report":
                share.add_report(system, head["loss"], head["stop"])
            case "verdict":
                send_frame(sock, {"verdict": share.wait_for_decision(head["step"])})
            case other if system == 0:
                send_frame(sock, *self._handle_leader(str(other), frame))
            case other:
                raise WorkLostError(f"system {system} may not say {str(other)[:20]!r}")

    def _handle_leader(self, op: str, frame: Frame) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Requests of the first system only."""
        share, head = self._share, frame.head
        match op:
            case "put":
                share.set_weights(head["layer"], head["part"], frame.arrays)
            case "missing":
                return {"missing": share.missing_systems(CONNECTIONS)}, {}
            case "begin":
                share.begin(head["step"])
            case "part":
                return {}, share.part(head["layer"], head["part"])
            case "squares":
                return {"squares": sorted(share.gradient_squares().items())}, {}
            case "apply":
                share.apply(head["step"], head["scale"])
            case "farewell":
                share.await_leave(CONNECTIONS)
            case "collect":
                return {"reports": share.collect()}, {}
            case "decide":
                share.set_decision(head["step"], head["verdict"])
            case other:
                raise WorkLostError(f"there is nothing called {other[:20]!r}")
        return {}, {}

    @staticmethod
    def _try_send_error(sock: socket.socket, why: str) -> None:
        with contextlib.suppress(OSError):  # closed too
            send_frame(sock, {"error": why})


def main() -> None:
    """Serve until the lifeline ends."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    line = sys.stdin.buffer.readline(_LINE_MOST)
    notice = None
    if line.endswith(b"\n"):  # else the first system died before the line was complete
        plan = ServerConfig.parse(line)
        notice = Path(plan.address_file)
        Thread(target=WeightServer(plan).accept, args=(listener,), daemon=True).start()
        sys.stdin.buffer.read(1)
    _remove(Path(listener.getsockname()), notice)
    os._exit(0)  # at once: threads wait for weights that will never come


def _remove(place: Path, notice: Path | None) -> None:
    """Remove our socket and the notice, if the first system was killed: otherwise it removes them itself.

    If our socket is gone, the notice is another job's.
    """
    with contextlib.suppress(OSError):
        place.unlink()
        if notice is not None:
            notice.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        place.parent.rmdir()  # succeeds for the last server


if __name__ == "__main__":
    main()
