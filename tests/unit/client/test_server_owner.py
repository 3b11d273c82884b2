"""Over plain HTTP an access key reaches no other user of this machine: real sockets, of a real second user."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.client import server_owner
from moorings.client.requests import build_call
from moorings.client.server_owner import find_server_uids, parse_table
from moorings.client.transport import Endpoint, Transport
from moorings.core.model.errors import MooringsError
from moorings.wire import operations
from tests.cases import cases
from tests.processes import kill_tree, launch
from tests.unit.client.recorded import RecordedServer, Reply

EVE, BOB = 61_003, 61_002
# What it is sent, it prints; with an argument it accepts nothing.
THIEF = """
import socket, sys
on = socket.create_server(("127.0.0.1", 0))
print(on.getsockname()[1], flush=True)
if sys.argv[1:]:
    sys.stdin.read()
while True:
    print(on.accept()[0].recv(4096), flush=True)
"""
VERSION = Reply({"version": "0.1.0", "apiVersion": "moorings/v1", "installation": "i"})
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a second user")


@contextlib.contextmanager
def listening_as(uid: int, *words: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    keeps = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # Python may stand where only root reads
    become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *keeps, "--")
    words = (*become, sys.executable, "-c", THIEF, *words)
    with launch(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path("/")) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
        finally:
            kill_tree(process)


@ROOT_ONLY
@cases(
    ("words", "server_user"),
    [((), ""), (("waits",), ""), ((), str(BOB)), ((), "no-such-user"), ((), "daemon")],
)
def test_another_users_program_gets_no_access_key(words: tuple[str, ...], server_user: str) -> None:
    with listening_as(EVE, *words) as (server, process):
        endpoint = Endpoint(server, access_key="moor_secret", timeout_s=10, server_user=server_user)
        with Transport(endpoint) as transport, pytest.raises(MooringsError) as caught:
            transport.send(build_call(operations.GET_VERSION))
        assert caught.value.code == "controller.foreign"
        assert f"user {EVE}" in caught.value.detail
        assert not caught.value.retryable
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.stdout.readline() == b"b''\n", "it was closed before anything was sent"


@ROOT_ONLY
def test_the_user_that_the_context_names_gets_it() -> None:
    with listening_as(EVE) as (server, process):
        with (
            contextlib.suppress(MooringsError),
            Transport(  # it answers nothing
                Endpoint(server, access_key="moor_secret", timeout_s=0.2, server_user=str(EVE))
            ) as transport,
        ):
            transport.send(build_call(operations.GET_VERSION))
        assert process.stdout is not None
        assert b"moor_secret" in process.stdout.readline()


@ROOT_ONLY
def test_a_request_without_a_key_asks_nobody_who_they_are() -> None:
    with listening_as(EVE) as (server, process):
        with contextlib.suppress(MooringsError), Transport(Endpoint(server, timeout_s=0.2)) as transport:
            transport.send(build_call(operations.GET_VERSION))
        assert process.stdout is not None
        assert b"GET /version" in process.stdout.readline()


def test_the_same_without_netlink(server: RecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(server_owner, "_query_uid", refused)
    server.on("GET", "/version", VERSION)
    with Transport(Endpoint(server.url, access_key="moor_secret", timeout_s=10)) as transport:
        assert transport.send(build_call(operations.GET_VERSION)).version == "0.1.0"
    if os.geteuid() == 0:
        test_another_users_program_gets_no_access_key()


@cases(
    ("family", "address", "to_family", "to"),
    [
        (socket.AF_INET, "127.0.0.1", socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0", socket.AF_INET, "127.0.0.2"),
        (socket.AF_INET6, "::1", socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::", socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, "::", socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
def test_every_kind_of_address_has_an_owner(family: int, address: str, to_family: int, to: str) -> None:
    me = os.geteuid()
    both = family == socket.AF_INET6 and address == "::"
    listening = socket.create_server((address, 0), family=family, dualstack_ipv6=both)
    with listening, socket.socket(to_family) as connected:
        connected.connect((to, listening.getsockname()[1]))
        with listening.accept()[0]:
            assert find_server_uids(connected) == {me}
            assert set(server_owner._read_uids(*ends(connected))) == {me}  # where netlink is missing


def ends(connected: socket.socket) -> tuple[server_owner.SocketAddress, server_owner.SocketAddress]:
    names = (connected.getsockname(), connected.getpeername())
    ours, theirs = (server_owner._address_of(name) for name in names)
    return ours, theirs


def test_a_table_of_a_kernel_that_gives_root_what_nobody_has_accepted() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F9A 00000000:0000 0A 00000000:00000001 00:00000000 00000000 61003        0 1\n"
        "   1: 00000000:1F9B 00000000:0000 0A 00000000:00000000 00:00000000 00000000 61002        0 2\n"
        "   2: 0100007F:1F9A 0100007F:8AE2 01 00000000:00000000 00:00000000 00000000     0        0 0\n"
        "   3: 0100007F:8AE2 0100007F:1F9A 01 00000000:00000000 00:00000000 00000000  1000        0 3\n"
    )
    ours, theirs = (b"\x7f\0\0\1", 0x8AE2), (b"\x7f\0\0\1", 0x1F9A)
    assert list(parse_table(text, ours, theirs, 4)) == [61_003, 0]
