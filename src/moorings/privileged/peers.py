"""Who is at the other side of a Unix socket, and what they may not send."""

from __future__ import annotations

import signal
import socket
import struct

PASS_RIGHTS = 83  # SO_PASSRIGHTS, Linux 6.16
INTERRUPT_S = 0.05


def peer_uid(connected: socket.socket) -> int:
    """The user of the process that has connected it, as the kernel knows it (SO_PEERCRED, unix(7)).

    Raises:
        OSError: it is no Unix socket, or is closed.
    """
    _, uid, _ = struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def refuse_descriptors(listening: socket.socket) -> None:
    """Take no descriptors from the clients of a socket; from the main thread of a program that serves it.

    What nobody takes from a connection is closed by the process that reads it, and such a close may wait for its
    sender: a TCP socket that lingers with data that nobody reads, for days. An older kernel passes them on all the
    same. There a timer's signal ends such a wait; a forked process has no timer, and not its own SIGALRM.
    """
    try:
        listening.setsockopt(socket.SOL_SOCKET, PASS_RIGHTS, 0)
    except OSError:
        signal.signal(signal.SIGALRM, lambda _number, _frame: None)
        signal.setitimer(signal.ITIMER_REAL, INTERRUPT_S, INTERRUPT_S)


def end_after(seconds: int) -> None:
    """Have the kernel kill this process, which was forked, after that time."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
