"""``moor port-forward``: its ports, and whose processes are at the ends of loopback connections."""

import os
import socket

import pytest

from moorings.core.model.errors import MooringsError
from moorings.engines.loopback import client_user, is_open, listening_users
from moorings.engines.terminal_sessions import connect_port
from moorings.terminal.port_forwarding import PortForwarder, SupervisorForwarder, parse_ports
from tests.cases import cases
from tests.procfs import strangers_port


@cases(
    "text, expected", [("8888", (8888, 8888)), ("9000:8888", (9000, 8888)), ("0:1", (0, 1)), ("65535", (65535, 65535))]
)
def test_ports_here_and_there(text, expected):
    assert parse_ports(text) == expected


@cases("text", ["", "0", "x", "1:", ":1", "65536", "1:65536", "-1", "1:2:3", "٣", "9" * 5000])
def test_no_port_is_refused(text):
    with pytest.raises(MooringsError, match="is no port"):
        parse_ports(text)


def test_users_at_both_ends_are_known():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_users(port) == {os.getuid()}
        with connect_port(port), server.accept()[0] as accepted:
            assert client_user(accepted) == os.getuid()
    assert listening_users(port) == frozenset()
    with pytest.raises(OSError):
        connect_port(port)


def test_client_that_has_closed_is_of_no_user():
    """The kernel shows 0 for it, as for root: a stranger who sends and closes must not be let in."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        client.sendall(b"POST / HTTP/1.0\r\n\r\n")
        client.close()
        with server.accept()[0] as accepted:
            assert client_user(accepted) is None


def test_port_in_use_is_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        wanted = [(0, 1), (server.getsockname()[1], 1)]
        forwarder = SupervisorForwarder(tmp_path / "terminal", print)
        with pytest.raises(MooringsError, match="cannot be used"), PortForwarder(forwarder, wanted, print):
            pass


def test_closed_client_is_told_from_one_that_only_sends_no_more():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        with server.accept()[0] as accepted:
            client.shutdown(socket.SHUT_WR)
            assert accepted.recv(1) == b""
            assert is_open(accepted)
            client.close()
            assert not is_open(accepted)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_port_of_another_user_is_not_connected_to():
    with strangers_port(61001) as port, pytest.raises(PermissionError, match="user 61001"):
        connect_port(port)
