"""The terminal of a run's task 0: its supervisor holds the master side, so that it outlives every ``moor``.

What the program writes goes to the run's log, to a bounded memory of the last output, which a client gets first, and to
all clients. Input is taken from each of them, and the window has the size of the client that was resized last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
import time
from collections.abc import Iterator

from moorings.engines.channels import Channel, ClientChannel
from moorings.wire.frames import FrameKind, WindowSize

SCROLLBACK_BYTES_MAX = 1 << 16
STALLED_S = 10.0  # after which a client that takes nothing is let go, so that the program runs on
DRAIN_S, DRAIN_POLL_MS = 2.0, 50


def open_terminal(size: WindowSize) -> tuple[int, int]:
    """Return the master and the slave side of a new terminal.

    Raises:
        OSError: there is none.
    """
    master, slave = os.openpty()
    set_size(master, size)
    return master, slave


def set_size(master: int, size: WindowSize) -> None:
    """Set the size of a terminal's window; its foreground processes get WINCH if it changes."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


class TaskTerminal:
    """The master side, and all that see it.

    Args:
        master: its descriptor, which is closed with it.
        log: a descriptor of the run's log, likewise.

    Attributes:
        was_attended: whether a client has ever been attached.
    """

    def __init__(self, master: int, log: int) -> None:
        self.channel = Channel(master)
        self._log = log
        self._scrollback = bytearray()
        self._is_cut = False
        self._clients: dict[ClientChannel, float | None] = {}  # since when each has had no room
        self._left_s: float | None = time.monotonic()
        self.was_attended = False

    @property
    def unattended_s(self) -> float | None:
        """For how long no client is attached; None: there is one."""
        left_s = self._left_s
        return None if left_s is None else time.monotonic() - left_s

    @property
    def takes_output(self) -> bool:
        """Whether the program's output is read now: each client has room for it."""
        return (
            self.channel.is_open and not self.channel.is_read and all(client.can_take_more for client in self._clients)
        )

    def attach(self, client: ClientChannel, size: WindowSize) -> None:
        """Show a client the last output, and everything from now on."""
        self._clients[client] = None
        self._left_s = None
        self.was_attended = True
        client.send(FrameKind.READY)
        if self._scrollback:
            client.send(FrameKind.OUTPUT, self._last_output())
            # A full-screen program draws its screen again if the size changes.
            set_size(self.channel.fd, WindowSize(size.rows, max(size.columns - 1, 1)))
        set_size(self.channel.fd, size)

    def resize(self, size: WindowSize) -> None:
        """Give the window a client's size."""
        set_size(self.channel.fd, size)

    def detach(self, client: ClientChannel) -> None:
        """Forget a client."""
        if client in self._clients:
            del self._clients[client]
            if not self._clients:
                self._left_s = time.monotonic()

    def take_output(self) -> None:
        """Pass on what the program has written."""
        chunk = self.channel.read()
        if not chunk:
            return
        with contextlib.suppress(OSError):  # a full disk costs the log, not the terminal
            os.write(self._log, chunk)
        self._scrollback += chunk
        if len(self._scrollback) > 2 * SCROLLBACK_BYTES_MAX:
            self._is_cut = True
            del self._scrollback[:-SCROLLBACK_BYTES_MAX]
        for client in self._clients:
            client.send(FrameKind.OUTPUT, chunk)

    def stalled_clients(self) -> Iterator[ClientChannel]:
        """The clients that have taken nothing for too long."""
        now_s = time.monotonic()
        for client, since_s in list(self._clients.items()):
            if client.can_take_more:
                self._clients[client] = None
            elif since_s is None:
                self._clients[client] = now_s
            elif now_s - since_s >= STALLED_S:
                yield client

    def drain(self) -> None:
        """Pass on what the program wrote last; no process of the run is left."""
        until_s = time.monotonic() + DRAIN_S
        poll = select.poll()
        poll.register(self.channel.fd, select.POLLIN)
        while not self.channel.is_read and time.monotonic() < until_s:
            poll.poll(DRAIN_POLL_MS)
            self.take_output()

    def close(self, exit_code: int) -> None:
        """Tell the clients the program's exit code; the terminal is gone."""
        for client in self._clients:
            client.send(FrameKind.EXIT, str(exit_code).encode())
            client.end()
        self._clients.clear()
        self.channel.close()
        os.close(self._log)

    def _last_output(self) -> bytes:
        shown = bytes(self._scrollback[-SCROLLBACK_BYTES_MAX:])
        is_whole = not self._is_cut and len(shown) == len(self._scrollback)
        return shown if is_whole else shown[shown.find(b"\n") + 1 :]  # not from the middle of a control sequence
