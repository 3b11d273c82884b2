"""How the agent reaches a controller in secure mode: with vipu.conf's own words, against real TLS servers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from moorings.client.requests import build_call
from moorings.client.transport import Transport
from moorings.core.model.errors import MooringsError
from moorings.net.tls import make_server_context
from moorings.pki.files import client_certificate, client_key
from moorings.pki.folder import CertificateStore
from moorings.slurm.host.vipu_conf import VipuConf, parse_vipu_conf
from moorings.wire.operations import GET_VERSION
from tests.waiting import patient

NOW = datetime.now(UTC)
SECRET = "moor_aaaaaaaaaa_secret"
ANSWER = b'{"apiVersion": "moorings/v1", "kind": "Version", "version": "1", "installation": "abc"}'


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    return made_in(tmp_path_factory.mktemp("pki"))


def made_in(folder: Path) -> CertificateStore:
    made = CertificateStore(folder)
    made.create(["127.0.0.1"], NOW, 2)
    made.issue("slurm", NOW, 2)
    return made


def conf_for(pki: CertificateStore, port: int) -> VipuConf:
    return parse_vipu_conf(
        f"ApiHost=127.0.0.1 ApiPort={port}\nIsSecure=yes\nApiUser=slurm\nApiAccessKey={SECRET}\n"
        f"ClientCertFile={client_certificate(pki.folder, 'slurm')}\nClientKeyFile={client_key(pki.folder, 'slurm')}\n"
        f"ServerCertFile={pki.bundle}\n",
        "vipu.conf",
    )


@contextlib.contextmanager
def answering(context: ssl.SSLContext | None) -> Iterator[tuple[int, list[bytes]]]:
    """A controller that answers one request; its port, and what it heard."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(patient(10))

        def work() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                connection.settimeout(patient(10))
                spoken = connection if context is None else context.wrap_socket(connection, server_side=True)
                with spoken:
                    heard.append(spoken.recv(65536))
                    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(ANSWER)}\r\n\r\n"
                    spoken.sendall(head.encode() + ANSWER)

        thread = threading.Thread(target=work)
        thread.start()
        yield listening.getsockname()[1], heard
        thread.join(patient(15))
        assert not thread.is_alive()


def server_of(pki: CertificateStore, client_ca: Path | None = None) -> ssl.SSLContext:
    return make_server_context(pki.folder / "server.pem", pki.folder / "server.key", client_ca)


def ask(conf: VipuConf) -> None:
    with Transport(conf.endpoint(10.0)) as transport:
        transport.send(build_call(GET_VERSION))


def test_it_shows_its_certificate_and_its_key(pki: CertificateStore) -> None:
    with answering(server_of(pki, client_ca=pki.bundle)) as (port, heard):
        ask(conf_for(pki, port))
    assert f"Bearer {SECRET}".encode() in heard[0]


def test_it_tells_its_key_to_no_controller_of_another_authority(pki: CertificateStore, tmp_path: Path) -> None:
    stranger = server_of(made_in(tmp_path / "stranger"))
    with answering(stranger) as (port, heard), pytest.raises(MooringsError, match="is not trusted"):
        ask(conf_for(pki, port))
    assert heard == []


def test_it_tells_its_key_to_nobody_who_speaks_plain_http(pki: CertificateStore) -> None:
    with answering(None) as (port, heard), pytest.raises(MooringsError, match="does not speak TLS"):
        ask(conf_for(pki, port))
    assert not any(SECRET.encode() in text for text in heard)


def test_without_its_certificate_it_is_let_in_nowhere(pki: CertificateStore) -> None:
    with answering(server_of(pki, client_ca=pki.bundle)) as (port, heard), pytest.raises(MooringsError) as caught:
        ask(replace(conf_for(pki, port), client_cert=None, client_key=None))
    assert caught.value.code == "auth.certificate_refused"
    assert heard == []


@pytest.mark.parametrize("key", ["ClientCertFile", "ClientKeyFile", "ServerCertFile", "ApiUser", "ApiAccessKey"])
def test_secure_mode_is_whole_or_refused(pki: CertificateStore, key: str) -> None:
    lines = [
        "ApiHost=c",
        "IsSecure=yes",
        "ApiUser=slurm",
        f"ApiAccessKey={SECRET}",
        *(f"{name}=/etc/{name}" for name in ("ClientCertFile", "ClientKeyFile", "ServerCertFile")),
    ]
    with pytest.raises(MooringsError, match=f"IsSecure=yes needs {key}"):
        parse_vipu_conf("\n".join(line for line in lines if not line.startswith(f"{key}=")), "vipu.conf")
