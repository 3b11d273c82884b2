"""Whose processes are at the ends of connections over 127.0.0.1: the kernel's tables know (proc(5)).

A loopback port is open to everybody on a machine, and anybody may listen on one that is free.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"
_CLOSED = "0"  # the inode of a socket that no process has


def client_user(connection: socket.socket) -> int | None:
    """The user of the process that has connected to 127.0.0.1; None: it is not found, or has closed the connection.

    Of a closed one the kernel keeps no user, and shows 0.
    """
    theirs, ours = _entry(*connection.getpeername()), _entry(*connection.getsockname())
    for fields in _lines(_TABLES[0]):
        if (fields[1], fields[2]) == (theirs, ours) and fields[9] != _CLOSED:
            return int(fields[7])
    return None


def is_open(connection: socket.socket) -> bool:
    """Whether the process that has connected to 127.0.0.1 still has the connection open, if only to read from it."""
    try:
        theirs = _entry(*connection.getpeername())
        ours = _entry(*connection.getsockname())
    except OSError:
        return False
    return any((each[1], each[2]) == (theirs, ours) and each[9] != _CLOSED for each in _lines(_TABLES[0]))


def listening_users(port: int) -> frozenset[int]:
    """The users whose processes listen on a port of this machine, at any of its addresses."""
    found = (fields for table in _TABLES for fields in _lines(table))
    return frozenset(int(each[7]) for each in found if each[3] == _LISTENS and each[1].endswith(f":{port:04X}"))


def _lines(table: Path) -> Iterator[list[str]]:
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        yield from (line.split() for line in table.read_text().splitlines()[1:])


def _entry(address: str, port: int) -> str:
    """An address as the table has it: its four bytes as a number of this machine."""
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"
