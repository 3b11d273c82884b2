"""The controller's TLS: which settings go together, and files that change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from moorings.app.settings import Settings, read_settings
from moorings.app.tls import TlsContexts, is_loopback, make_tls, watch_certificates
from moorings.core.model.errors import MooringsError
from moorings.pki.folder import CertificateStore
from tests.waiting import until_async


@pytest.fixture
def pki(tmp_path: Path) -> CertificateStore:
    made = CertificateStore(tmp_path / "pki")
    made.create(["127.0.0.1"], datetime.now(UTC), 2)
    return made


def settings(*flags: str) -> Settings:
    return read_settings(["--data", "/d", *flags], {})


def tls_of(pki: CertificateStore) -> TlsContexts:
    folder = pki.folder
    found = make_tls(settings("--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key")))
    assert found is not None
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_this_machine_alone_needs_no_tls(host: str) -> None:
    assert is_loopback(host)
    assert make_tls(settings("--host", host)) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "pod1.example.org", "localhost.example.org", ""])
def test_other_addresses_do_unless_it_is_said(host: str) -> None:
    with pytest.raises(MooringsError) as caught:
        make_tls(settings("--host", host))
    assert caught.value.code == "config.invalid"
    assert "--plain-http, or plain_http = true in /etc/moorings/controller.toml" in caught.value.hint
    assert "moor up --pki DIR" in caught.value.hint
    assert make_tls(settings("--host", host, "--plain-http")) is None


def test_client_certificates_are_asked_for_where_their_authority_is_named(pki: CertificateStore) -> None:
    assert tls_of(pki).server._latest.verify_mode is ssl.CERT_NONE
    flags = ("--tls-cert", str(pki.folder / "server.pem"), "--tls-key", str(pki.folder / "server.key"))
    secure = make_tls(settings(*flags, "--tls-client-ca", str(pki.bundle), "--host", "0.0.0.0"))
    assert secure is not None
    assert secure.server._latest.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("given", ["--tls-cert", "--tls-key", "--tls-client-ca", "--tls-ca"])
def test_half_of_it_is_refused(given: str) -> None:
    with pytest.raises(MooringsError) as caught:
        make_tls(settings(given, "/some/file"))
    assert caught.value.code == "config.invalid"
    assert given[2:].replace("-", "_") in caught.value.detail


def test_a_key_that_others_can_read_is_refused(pki: CertificateStore) -> None:
    (pki.folder / "server.key").chmod(0o644)
    with pytest.raises(MooringsError) as caught:
        tls_of(pki)
    assert caught.value.code == "credentials.unsafe"


async def test_changed_files_are_noticed(pki: CertificateStore, caplog: pytest.LogCaptureFixture) -> None:
    tls = tls_of(pki)

    async def told(name: str, times: int) -> None:
        await until_async(lambda: sum(record.message == name for record in caplog.records) >= times)

    with caplog.at_level(logging.INFO, logger="moorings.controller"):
        watch = asyncio.create_task(watch_certificates(tls, every_s=0.02))
        pki.renew_server([], datetime.now(UTC), 2)
        await told("certificates.taken", 1)
        (pki.folder / "server.pem").unlink()
        await told("certificates.refused", 1)
        await asyncio.sleep(0.2)  # ten looks at the same fault
        pki.renew_server(["127.0.0.1"], datetime.now(UTC), 2)
        await told("certificates.taken", 2)
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
    refused = [record for record in caplog.records if record.message == "certificates.refused"]
    assert len(refused) <= 2, "a fault is told once, not at every look"


@pytest.mark.parametrize(("line", "on"), [("plain_http = true", True), ("plain_http = false", False), ("", False)])
def test_plain_http_in_the_file(tmp_path: Path, line: str, on: bool) -> None:
    (tmp_path / "c.toml").write_text(line)
    assert read_settings(["--config", str(tmp_path / "c.toml")], {}).plain_http is on


def test_where_the_files_are_may_be_said_in_three_ways(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        'tls_cert = "/file/c.pem"\ntls_key = "/file/k.pem"\ntls_client_ca = "/file/ca.pem"\n'
    )
    read = read_settings(
        ["--config", str(tmp_path / "c.toml"), "--tls-cert", "/flag/c.pem"], {"MOORINGS_TLS_KEY": "/variable/k.pem"}
    )
    assert [str(read.tls_cert), str(read.tls_key), str(read.tls_client_ca)] == [
        "/flag/c.pem",
        "/variable/k.pem",
        "/file/ca.pem",
    ]
