"""Who is at the other side of a Unix socket."""

from __future__ import annotations

import socket
import struct


def peer_uid(connected: socket.socket) -> int:
    """The user of the process that has connected it, as the kernel knows it (SO_PEERCRED, unix(7)).

    Raises:
        OSError: it is no Unix socket, or is closed.
    """
    _, uid, _ = struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
