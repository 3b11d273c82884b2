"""A descriptor that takes its time to be closed: a TCP socket that lingers with data that nobody reads."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

LINGER_S = 100_000


@contextlib.contextmanager
def send_lingering(connected: socket.socket, sent: bytes) -> Iterator[bool]:
    """Send it with those bytes, as its last reference; yields whether the kernel has let it pass."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given = socket.create_connection(listening.getsockname())
        with listening.accept()[0]:  # which never reads
            given.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    given.send(bytes(1 << 16))
            given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
            try:
                socket.send_fds(connected, [sent], [given.fileno()])
            except PermissionError:
                given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
                given.close()
                yield False
            else:
                given.close()
                yield True
