"""Descriptors that never block their reader: what the thread that serves a run's terminals moves bytes between."""

from __future__ import annotations

import contextlib
import os
import socket

from moorings.wire.frames import FrameKind, FrameReader, TerminalFailure, encode_frame

READ_BYTES = 1 << 16
WAITING_BYTES_MAX = 1 << 18  # that wait to be written; beyond it the source is not read


class Channel:
    """A descriptor of ours, with the bytes that wait to be written to it.

    Args:
        fd: a pipe, a terminal's master side, or a socket; it is closed with the channel.
        connected: that socket, if it is one.
    """

    def __init__(self, fd: int, connected: socket.socket | None = None) -> None:
        self.fd = fd
        self.waiting = bytearray()
        self.is_open = True
        self.is_read = False  # to its end
        self._ends = False
        self._socket = connected
        os.set_blocking(fd, False)

    @classmethod
    def of_socket(cls, connected: socket.socket) -> Channel:
        """The channel of a socket."""
        return cls(connected.fileno(), connected)

    @property
    def can_take_more(self) -> bool:
        """Whether more may be written."""
        return len(self.waiting) < WAITING_BYTES_MAX

    def read(self) -> bytes:
        """What can be read now; empty: nothing, or ``is_read``."""
        if not self.is_open:
            return b""
        try:
            chunk = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:  # EIO: a terminal that no process has open any more; or a connection that was reset
            chunk = b""
        self.is_read = not chunk
        return chunk

    def write(self, chunk: bytes) -> None:
        """Write these bytes, now or when there is room; after ``close`` they are dropped."""
        if self.is_open and not self._ends:
            self.waiting += chunk
            self.flush()

    def end(self) -> None:
        """Write no more: the reader sees the end after what waits."""
        self._ends = True
        self.flush()

    def flush(self) -> None:
        """Write what can be written now."""
        while self.is_open and self.waiting:
            try:
                written = os.write(self.fd, self.waiting[:READ_BYTES])
            except BlockingIOError:
                return
            except OSError:  # it has no reader any more
                self.waiting.clear()
                self._ends = True
                break
            del self.waiting[:written]
        if self._ends and not self.waiting:
            self._shut_down()

    def close(self) -> None:
        """Close the descriptor."""
        if not self.is_open:
            return
        self.is_open = False
        self.waiting.clear()
        if self._socket is not None:
            self._socket.close()
        else:
            os.close(self.fd)

    def _shut_down(self) -> None:
        if not self.is_open:
            return
        if self._socket is None:
            self.close()
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


class ClientChannel(Channel):
    """The connection of a client, with frames."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected.fileno(), connected)
        self._frames = FrameReader()

    def receive(self) -> list[tuple[FrameKind, bytes]]:
        """The frames that have come.

        Raises:
            ValueError: what came is none.
        """
        return list(self._frames.feed(self.read()))

    def send(self, kind: FrameKind, content: bytes = b"") -> None:
        """Send a frame."""
        self.write(encode_frame(kind, content))

    def fail(self, failure: TerminalFailure) -> None:
        """Say why it is not done, and end."""
        self.send(FrameKind.FAILED, failure.encode())
        self.end()
