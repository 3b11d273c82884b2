"""Who serves a connection to this machine: the user of the sockets at its other end, as the kernel knows it.

Any user may listen on a controller's port while that is down, and over plain HTTP nothing else says whose program
answers. sock_diag(7) needs some 0.05 ms; /proc/net/tcp, which took 3 ms and more, is read only where that is missing.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.privileged.places import CONTROLLER_USER

_SOCK_DIAG, _DIAG_BY_FAMILY, _REQUEST = 4, 20, 1  # linux/netlink.h, linux/sock_diag.h
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_QUERY = struct.Struct("=BBBxI")  # the beginning of inet_diag_req_v2; inet_diag_sockid follows
_NO_INTERFACE, _NO_COOKIE = bytes(4), b"\xff" * 8
_UID_AT = _HEADER.size + 4 + 48 + 12  # of inet_diag_msg
_ERROR = 2  # NLMSG_ERROR
_ANSWER_S = 1.0
_ANY_STATE = 0xFFFFFFFF
_IPV4, _IPV6 = 4, 16  # bytes
_LOOPBACK4, _LOOPBACK6 = 127, bytes(15) + b"\1"
_MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address in an IPv6 one
_LISTENING = "0A"  # a state in /proc/net/tcp

SocketAddress = tuple[bytes, int]  # address and port


def check_server_user(connected: socket.socket, server: str, server_user: str) -> None:
    """Check that a connection to this machine ends at a program of root's or of the expected user.

    Args:
        connected: the connection; one to another machine is not checked.
        server: its address, for the error.
        server_user: the name or uid of the expected user; empty: this process's, or a shared machine's controller's.

    Raises:
        MooringsError: ``controller.foreign``.
    """
    address = _address_of(connected.getpeername())[0]
    if address != _LOOPBACK6 and not (len(address) == _IPV4 and address[0] == _LOOPBACK4):
        return
    try:
        uids = find_server_uids(connected)
    except OSError as error:
        raise _refusal(server, f"it cannot be seen who serves it: {format_cause(error)}") from error
    for uid in uids:
        if not _is_expected(uid, server_user):
            expected = f"{server_user} or root" if server_user else f"you, root or {CONTROLLER_USER}"
            raise _refusal(server, f"the program there belongs to {_name_of(uid)}, not to {expected}")


def find_server_uids(connected: socket.socket) -> set[int]:
    """The users who can read what is sent: of the listening socket, and of the connection's own if it was accepted.

    The listening socket first: a connection that nobody has accepted belongs to root in older kernels, and whoever
    accepts it meanwhile is then seen as its owner. Neither is there if the other end is not on this machine: root
    redirects the port.

    Raises:
        OSError: the kernel does not say.
    """
    ours, theirs = _address_of(connected.getsockname()), _address_of(connected.getpeername())
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as diag:
            diag.settimeout(_ANSWER_S)
            if _query_uid(diag, ours, theirs) is not None:  # else the kernel has no such service: that socket is there
                nobody = (bytes(len(theirs[0])), 0)
                return {uid for peer in (nobody, ours) if (uid := _query_uid(diag, theirs, peer)) is not None}
    except OSError:
        pass  # a service may not be allowed to use netlink
    return set(_read_uids(ours, theirs))


def _query_uid(diag: socket.socket, place: SocketAddress, peer: SocketAddress) -> int | None:
    diag.sendto(build_query(place, peer), (0, 0))
    return parse_uid(diag.recv(4096))


def build_query(place: SocketAddress, peer: SocketAddress) -> bytes:
    """The question for the socket of this machine that receives what ``peer`` sends to ``place``."""
    family = socket.AF_INET if len(place[0]) == _IPV4 else socket.AF_INET6
    ports = struct.pack("!HH", place[1], peer[1])
    ends = place[0].ljust(_IPV6, b"\0") + peer[0].ljust(_IPV6, b"\0")
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE) + ports + ends + _NO_INTERFACE + _NO_COOKIE
    return _HEADER.pack(_HEADER.size + len(query), _DIAG_BY_FAMILY, _REQUEST, 0, 0) + query


def parse_uid(answer: bytes) -> int | None:
    """The user of the socket that was asked for; None: there is none.

    Raises:
        OSError: the kernel does not say.
    """
    if _HEADER.unpack_from(answer)[1] != _ERROR:
        return int(struct.unpack_from("=I", answer, _UID_AT)[0])
    number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
    if number != errno.ENOENT:
        raise OSError(number, os.strerror(number))
    return None


def _read_uids(ours: SocketAddress, theirs: SocketAddress) -> Iterator[int]:
    for name, width in (("tcp", _IPV4), ("tcp6", _IPV6)):
        path = Path("/proc/net") / name
        if width >= len(theirs[0]) and (name == "tcp" or path.exists()):  # a kernel may have no IPv6
            yield from parse_table(path.read_text(encoding="ascii"), ours, theirs, width)


def parse_table(text: str, ours: SocketAddress, theirs: SocketAddress, width: int) -> Iterator[int]:
    """The same from /proc/net/tcp or tcp6 (proc(5)), which lists the listening sockets first.

    Args:
        text: the file.
        ours: our end of the connection,
        theirs: and the other.
        width: bytes of an address in that file.
    """
    wanted = [_format_address(place, width) for place in (theirs, ours)]
    anywhere = _format_address((bytes(width), theirs[1]), width)
    for line in text.splitlines()[1:]:
        words = line.split()
        if words[1:3] == wanted or (words[3] == _LISTENING and words[1] in (wanted[0], anywhere)):
            yield int(words[7])


def _format_address(place: SocketAddress, width: int) -> str:
    """As in those files: 32-bit words in this machine's order of bytes."""
    address = place[0] if len(place[0]) == width else _MAPPED + place[0]
    words = [int.from_bytes(address[at : at + 4], sys.byteorder) for at in range(0, width, 4)]
    return f"{''.join(f'{word:08X}' for word in words)}:{place[1]:04X}"


def _address_of(name: tuple[str, int] | tuple[str, int, int, int]) -> SocketAddress:
    family = socket.AF_INET6 if ":" in name[0] else socket.AF_INET
    return socket.inet_pton(family, name[0].partition("%")[0]).removeprefix(_MAPPED), name[1]


def _is_expected(uid: int, server_user: str) -> bool:
    try:
        if uid == 0:
            return True
        if server_user.isdecimal():
            return uid == int(server_user)
        if server_user:
            return uid == pwd.getpwnam(server_user).pw_uid
        return uid == os.geteuid() or pwd.getpwuid(uid).pw_name == CONTROLLER_USER
    except KeyError:
        return False


def _name_of(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _refusal(server: str, why: str) -> MooringsError:
    return MooringsError(
        "controller.foreign",
        f"the access key was not sent to {server}: {why}",
        hint="is your controller down ('moor up')? If that program is it, name its user in MOORINGS_SERVER_USER or "
        "server_user; or use TLS",
    )
