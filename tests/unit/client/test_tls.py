"""TLS from the client's side, against real servers: what is believed, what is shown, and what is said of a failure."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moorings.client.keyfiles import check_private_key, key_problem
from moorings.client.requests import build_call
from moorings.client.transport import Endpoint, Transport
from moorings.core.model.errors import MooringsError
from moorings.net.tls import make_server_context
from moorings.pki.authority import KeyPair, issue_server
from moorings.pki.files import client_certificate, client_key
from moorings.pki.folder import CertificateStore
from moorings.wire.operations import GET_VERSION
from tests.cases import cases
from tests.waiting import patient

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    made = CertificateStore(tmp_path_factory.mktemp("pki"))
    made.create(["127.0.0.1"], NOW, 9)
    made.issue("ann", NOW, 9)
    return made


@contextlib.contextmanager
def answering(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of one connection; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def work() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                connection.settimeout(patient(10))
                serve(connection)

        thread = threading.Thread(target=work)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(patient(15))
        assert not thread.is_alive()


def with_tls(context: ssl.SSLContext) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as spoken:
            spoken.recv(10_000)

    return serve


def problem(port: int, scheme: str = "https", **files: str) -> MooringsError:
    endpoint = Endpoint(f"{scheme}://127.0.0.1:{port}", timeout_s=10, **files)
    with Transport(endpoint) as transport, pytest.raises(MooringsError) as caught:
        transport.send(build_call(GET_VERSION))
    return caught.value


def plain_context(folder: Path, pair: KeyPair) -> ssl.SSLContext:
    (folder / "s.pem").write_bytes(pair.certificate)
    (folder / "s.key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "s.pem", folder / "s.key")
    return context


@pytest.mark.parametrize(
    ("names", "begun", "told", "hint"),
    [
        (["127.0.0.1"], NOW - timedelta(days=20), "has expired", "moor pki rotate"),
        (["127.0.0.1"], NOW + timedelta(days=2), "is not good yet", "clock"),
        (["10.0.0.1", "localhost"], NOW, "is for another name", "moor pki rotate --name HOST"),
    ],
)
def test_a_servers_certificate_that_is_not_good(
    pki: CertificateStore, tmp_path: Path, names: list[str], begun: datetime, told: str, hint: str
) -> None:
    authority = KeyPair(pki.bundle.read_bytes(), (pki.folder / "ca.key").read_bytes())
    context = plain_context(tmp_path, issue_server(authority, names, begun, 9))
    with answering(with_tls(context)) as port:
        error = problem(port, ca_file=str(pki.bundle))
    assert error.code == "controller.unreachable"
    assert not error.retryable
    assert told in error.detail
    assert hint in error.hint


def test_who_shows_no_certificate_is_told_that_one_is_asked_for(pki: CertificateStore) -> None:
    context = make_server_context(pki.folder / "server.pem", pki.folder / "server.key", pki.bundle)
    for version_of_tls in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.minimum_version = context.maximum_version = version_of_tls
        with answering(with_tls(context)) as port:
            error = problem(port, ca_file=str(pki.bundle))
        assert (error.code, error.retryable) == ("auth.certificate_refused", False)
        assert "MOORINGS_CERT_FILE" in error.hint


def test_http_where_tls_is_spoken_and_tls_where_http_is(pki: CertificateStore) -> None:
    def speak_plainly(connection: socket.socket) -> None:
        connection.recv(10_000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    def alert(connection: socket.socket) -> None:
        connection.recv(10_000)
        connection.sendall(b"\x15\x03\x01\x00\x02\x02\x46")

    with answering(speak_plainly) as port:
        assert "does not speak TLS" in problem(port, ca_file=str(pki.bundle)).detail
    with answering(alert) as port:
        error = problem(port, "http")
    assert (error.code, error.hint) == ("controller.unreachable", "write https:// instead of http://")


def test_files_that_cannot_be_used_are_told_before_anything_is_sent(pki: CertificateStore, tmp_path: Path) -> None:
    own, key = str(client_certificate(pki.folder, "ann")), str(client_key(pki.folder, "ann"))
    (tmp_path / "open.key").write_bytes(Path(key).read_bytes())
    (tmp_path / "open.key").chmod(0o604)
    (tmp_path / "garbage.pem").write_text("nothing")
    (tmp_path / "garbage.pem").chmod(0o600)
    cases: list[tuple[dict[str, str], str, str]] = [
        ({"ca_file": "/nowhere"}, "config.invalid", "there is no file /nowhere"),
        ({"ca_file": str(tmp_path / "garbage.pem")}, "config.invalid", "garbage.pem cannot be used"),
        ({"cert_file": own, "key_file": str(tmp_path / "open.key")}, "credentials.unsafe", "0604"),
        ({"cert_file": own, "key_file": str(pki.folder / "server.key")}, "config.invalid", "do not belong together"),
        ({"cert_file": own, "key_file": str(tmp_path / "garbage.pem")}, "config.invalid", "cannot be used"),
        ({"key_file": key}, "config.invalid", "has no certificate"),
    ]
    for files, code, told in cases:
        error = problem(1, **files)
        assert (error.code, told in error.detail) == (code, True), error.detail


@cases(
    ("mode", "owner", "fault"),
    [
        (0o100600, 7, ""),
        (0o100400, 7, ""),
        (0o100640, 7, "mode 0640"),
        (0o100604, 7, "mode 0604"),
        (0o100620, 7, "mode 0620"),
        (0o100640, 0, ""),
        (0o100660, 0, "mode 0660"),
        (0o100644, 0, "mode 0644"),
        (0o100600, 8, "belongs to user 8"),
    ],
)
def test_who_may_read_a_key(mode: int, owner: int, fault: str) -> None:
    found = key_problem(mode, owner, me=7)
    assert fault in found
    assert bool(found) is bool(fault)


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MooringsError) as caught:
        check_private_key(tmp_path / "none.key")
    assert caught.value.code == "config.invalid"
    (tmp_path / "one.key").touch(0o600)
    check_private_key(tmp_path / "one.key")
    assert (tmp_path / "one.key").stat().st_uid == os.geteuid()


def test_until_when_the_servers_certificate_is_good(pki: CertificateStore) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.folder / "server.pem", pki.folder / "server.key")
    with (
        answering(with_tls(context)) as port,
        Transport(Endpoint(f"https://127.0.0.1:{port}", ca_file=str(pki.bundle), timeout_s=10)) as transport,
    ):
        ends_s = transport.certificate_expiry()
    assert ends_s is not None
    assert abs(ends_s - (NOW + timedelta(days=9)).timestamp()) < 60
