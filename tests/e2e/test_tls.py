"""A controller with TLS, as a process: who gets in, who does not and why, and certificates that change under it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moorings.cli.processes import user_subject
from moorings.pki.authority import KeyPair, issue_client, issue_server, make_authority
from moorings.pki.files import client_certificate, client_key
from moorings.pki.folder import CertificateStore
from tests.e2e.processes import POOLS, ControllerProcess, Twin
from tests.waiting import patient, until

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)
ADMIN = user_subject()
OPEN = ("/healthz", "/livez", "/readyz", "/version", "/metrics")


@dataclass
class Secure(ControllerProcess):
    """A controller that lets in only who shows a certificate; ``ask`` shows the admin's."""

    pki: CertificateStore = field(default_factory=lambda: CertificateStore(Path()))

    def command(self) -> list[str]:
        folder = self.pki.folder
        given = {
            "--tls-cert": folder / "server.pem",
            "--tls-key": folder / "server.key",
            "--tls-client-ca": self.pki.bundle,
        }
        return [*super().command(), *(str(word) for pair in given.items() for word in pair)]

    def log(self) -> str:
        file = self.folder / "controller.log"
        return file.read_text() if file.exists() else ""

    def context(self, subject: str = ADMIN) -> ssl.SSLContext:
        """As ``subject``; empty: without a certificate."""
        context = ssl.create_default_context(cafile=self.pki.bundle)
        if subject:
            context.load_cert_chain(client_certificate(self.pki.folder, subject), client_key(self.pki.folder, subject))
        return context

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> tuple[int, Any]:
        chosen = context or self.context()
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=patient(30), context=chosen)
        with contextlib.closing(connection):
            sent = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text and path != "/metrics" else None

    def serial(self) -> str:
        """Of the certificate that it shows now."""
        with shaken(self.port, self.context()) as connection:
            certificate = connection.getpeercert()
        assert certificate
        return str(certificate["serialNumber"]).lower().lstrip("0")

    def reload(self) -> None:
        """Send SIGHUP and wait for what became of it."""
        assert self.process is not None
        before = self.log().count("reload.done")
        self.process.send_signal(signal.SIGHUP)
        until(lambda: self.log().count("reload.done") > before)


@dataclass
class SecureTwin(Secure, Twin):
    """One of two of them."""


def served_serial(pki: CertificateStore) -> str:
    return next(entry.serial for entry in pki.entries() if entry.kind == "server").lstrip("0")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    made = CertificateStore(tmp_path_factory.mktemp("pki") / "pki")
    made.create(["127.0.0.1", "localhost"], NOW, 365)
    made.issue(ADMIN, NOW, 365)
    made.issue("bert", NOW, 365)
    return made


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, pki: CertificateStore) -> Iterator[Secure]:
    controller = Secure(tmp_path_factory.mktemp("secure"), POOLS, pki=pki)
    controller.start()
    yield controller
    assert controller.stop() == 0


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Secure]:
    """One whose certificates a test may change."""
    made = CertificateStore(tmp_path / "pki")
    made.create(["127.0.0.1"], NOW, 365)
    made.issue(ADMIN, NOW, 365)
    controller = Secure(tmp_path, POOLS, pki=made)
    controller.start()
    yield controller
    assert controller.stop() == 0


@contextlib.contextmanager
def shaken(port: int, context: ssl.SSLContext, **more: Any) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=patient(20)) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1", **more) as connection,
    ):
        yield connection


def refusal(port: int, context: ssl.SSLContext) -> str:
    """OpenSSL's word for why the server does not continue; a client of TLS 1.3 learns it at its first read."""
    try:
        with shaken(port, context) as connection:
            connection.sendall(b"GET /v1/pools HTTP/1.1\r\nhost: x\r\n\r\n")
            return f"none: {connection.recv(1000)!r}"
    except ssl.SSLError as error:
        return str(error.reason)


def showing(bundle: Path, pair: KeyPair, folder: Path) -> ssl.SSLContext:
    """A client that shows a certificate of a test's own making."""
    (folder / "shown.pem").write_bytes(pair.certificate)
    (folder / "shown.key").write_bytes(pair.key)
    context = ssl.create_default_context(cafile=bundle)
    context.load_cert_chain(folder / "shown.pem", folder / "shown.key")
    return context


def authority_of(pki: CertificateStore) -> KeyPair:
    return KeyPair(pki.bundle.read_bytes(), (pki.folder / "ca.key").read_bytes())


def moor(secure: Secure, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MOORINGS_")},
        "HOME": str(secure.folder),
        "MOORINGS_CREDENTIALS": str(secure.credentials),
        **variables,
    }
    argv = [sys.executable, "-m", "moorings.cli.main", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=patient(60))


# -- who gets in -----------------------------------------------------------------------------------------------------


def test_the_admin_gets_in_with_certificate_and_key(secure: Secure) -> None:
    assert secure.ask("GET", "/v1/pools")[0] == 200
    for path in OPEN:
        assert secure.ask("GET", path)[0] == 200


def test_the_first_key_comes_with_what_the_command_needs(secure: Secure) -> None:
    done = moor(secure, "get", "pools")
    assert done.returncode == 0, done.stderr
    assert "pod16" in done.stdout


def test_the_key_of_one_and_the_certificate_of_another_open_nothing(secure: Secure) -> None:
    status, body = secure.ask("GET", "/v1/pools", context=secure.context("bert"))
    assert (status, body["code"]) == (403, "auth.certificate_mismatch")
    status, made = secure.ask("POST", "/v1/keys", {"subject": "bert", "role": "user"})
    assert status == 201
    assert secure.ask("GET", "/v1/pools", context=secure.context("bert"), key=made["secret"])[0] == 200
    assert secure.ask("GET", "/v1/pools", key=made["secret"])[0] == 403


def test_a_certificate_alone_opens_nothing(secure: Secure) -> None:
    assert secure.ask("GET", "/v1/pools", key="moor_aaaaaaaaaa_" + "0" * 64)[1]["code"] == "auth.invalid"


@pytest.mark.parametrize("header", ["x-moorings-standby", "x-forwarded-for", "x-ssl-client-cert", "x-moorings-peer"])
def test_no_header_stands_for_a_certificate(secure: Secure, header: str) -> None:
    status, body = secure.ask("GET", "/v1/pools", context=secure.context("bert"), headers={header: ADMIN})
    assert (status, body["code"]) == (403, "auth.certificate_mismatch")


def test_a_controllers_certificate_is_no_persons(secure: Secure, pki: CertificateStore, tmp_path: Path) -> None:
    pair = KeyPair((pki.folder / "server.pem").read_bytes(), (pki.folder / "server.key").read_bytes())
    context = showing(pki.bundle, pair, tmp_path)
    assert secure.ask("GET", "/v1/pools", context=context)[1]["code"] == "auth.certificate_mismatch"
    # It may hand on what others asked it; whose access key that was is still looked at.
    standby = {"x-moorings-standby": "1"}
    assert secure.ask("GET", "/v1/pools", context=context, headers=standby)[0] == 200
    assert secure.ask("GET", "/v1/pools", context=context, headers=standby, key="moor_a_b")[0] == 401


# -- hostile handshakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_without_a_certificate_nobody_gets_in_and_is_told_so(secure: Secure, version: ssl.TLSVersion) -> None:
    context = secure.context("")
    context.maximum_version = version
    assert refusal(secure.port, context) in ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE")


@pytest.mark.parametrize(
    ("story", "told"),
    [
        ("of another authority", "TLSV1_ALERT_UNKNOWN_CA"),
        ("expired", "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        ("not yet good", "SSLV3_ALERT_BAD_CERTIFICATE"),
        ("an authority's", "TLSV1_ALERT_UNKNOWN_CA"),
    ],
)
def test_a_certificate_that_is_not_good_gets_nobody_in(
    secure: Secure, pki: CertificateStore, tmp_path: Path, story: str, told: str
) -> None:
    made = {
        "of another authority": lambda: issue_client(make_authority(NOW), ADMIN, NOW),
        "expired": lambda: issue_client(authority_of(pki), ADMIN, NOW - timedelta(days=366), 365),
        "not yet good": lambda: issue_client(authority_of(pki), ADMIN, NOW + timedelta(days=1), 365),
        "an authority's": lambda: make_authority(NOW),
    }[story]()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = showing(pki.bundle, made, tmp_path)
        context.maximum_version = version
        assert refusal(secure.port, context) == told


def test_plain_http_is_answered_with_a_hint(secure: Secure) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", secure.port, timeout=patient(20))
    with contextlib.closing(connection):
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["hint"]) == (400, "write https:// instead of http://")


@pytest.mark.parametrize("flag", ["-tls1_1", "-tls1"])
def test_old_tls_is_not_spoken(secure: Secure, pki: CertificateStore, flag: str) -> None:
    own = ("-cert", str(client_certificate(pki.folder, ADMIN)), "-key", str(client_key(pki.folder, ADMIN)))
    argv = ["openssl", "s_client", flag, "-cipher", "ALL:@SECLEVEL=0", "-connect", f"127.0.0.1:{secure.port}", *own]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=patient(30)
    )
    assert done.returncode != 0
    assert "alert protocol version" in done.stderr


def test_garbage_and_silence_leave_nothing_behind(secure: Secure) -> None:
    assert secure.process is not None
    files = Path(f"/proc/{secure.process.pid}/fd")
    secure.ask("GET", "/healthz")
    until(lambda: len(list(files.iterdir())) < 200)
    before = len(list(files.iterdir()))
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    shapes = [
        b"\0" * 70_000,
        os.urandom(70_000),
        hello,
        hello + b"\xff" * 600,
        b"\x15\x03\x03\x00\x02\x02\x28",
        b"\n",
        b"",
    ]
    for shape in shapes * 5:
        with (
            socket.create_connection(("127.0.0.1", secure.port), timeout=patient(20)) as connection,
            contextlib.suppress(OSError),
        ):
            connection.sendall(shape)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1000):
                pass
    silent = [socket.create_connection(("127.0.0.1", secure.port)) for _ in range(200)]
    assert secure.ask("GET", "/v1/pools")[0] == 200, "others are served meanwhile"
    for connection in silent:
        connection.settimeout(patient(20))
        assert connection.recv(10) == b"", "a handshake has no more time than a request's head"
        connection.close()
    until(lambda: len(list(files.iterdir())) <= before)
    assert secure.ask("GET", "/v1/pools")[0] == 200
    assert "Traceback" not in secure.log()


def test_many_at_once_get_in(secure: Secure) -> None:
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(secure.ask("GET", "/v1/pools")[0])) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 64


# -- what the command says -------------------------------------------------------------------------------------------


def test_the_command_says_what_is_wrong(secure: Secure, pki: CertificateStore, tmp_path: Path) -> None:
    other = CertificateStore(tmp_path / "other")
    other.create(["127.0.0.1"], NOW, 365)
    other.issue(ADMIN, NOW, 365)
    url = f"https://127.0.0.1:{secure.port}"
    files = {"MOORINGS_CERT_FILE": str(client_certificate(other.folder, ADMIN))}
    files["MOORINGS_KEY_FILE"] = str(client_key(other.folder, ADMIN))
    done = moor(secure, "get", "pools", **files)
    assert done.returncode == 4
    assert "of an authority that the controller does not know (auth.certificate_refused)" in done.stderr
    done = moor(
        secure, "--server", url, "--ca-file", str(pki.bundle), "version", MOORINGS_CREDENTIALS=str(tmp_path / "no")
    )
    assert "asks for a client certificate, and none was shown (auth.certificate_refused)" in done.stderr
    assert "MOORINGS_CERT_FILE" in done.stderr
    done = moor(secure, "get", "pools", MOORINGS_CA_FILE=str(other.bundle))
    assert done.returncode == 7
    assert "is not trusted" in done.stderr
    assert "--ca-file" in done.stderr
    named = moor(secure, "--server", f"https://localhost.localdomain:{secure.port}", "version")
    assert named.returncode in (0, 7), named.stderr
    key = tmp_path / "open.key"
    key.write_bytes(client_key(pki.folder, ADMIN).read_bytes())
    key.chmod(0o644)
    done = moor(secure, "get", "pools", MOORINGS_KEY_FILE=str(key))
    assert "0644: others may use it (credentials.unsafe)" in done.stderr


def examined(own: Secure) -> tuple[int, dict[str, Any]]:
    """The doctor's code and findings; on a busy machine its 10 seconds may not be enough for all."""

    def look() -> tuple[int, dict[str, Any]] | None:
        told = moor(own, "doctor", "--data", str(own.data), "-o", "json")
        found = {item["id"]: item for item in json.loads(told.stdout)["items"]}
        return (told.returncode, found) if {"certificate.server", "host.tls"} <= set(found) else None

    return until(look, 60)


def test_the_doctor_looks_at_certificates(own: Secure) -> None:
    _, found = examined(own)
    for check in ("certificate.client", "certificate.server", "host.tls", "transport"):
        assert found[check]["verdict"] == "PASS", found[check]
    elsewhere = issue_server(authority_of(own.pki), ["localhost"], NOW, 20)
    (own.pki.folder / "server.pem").write_bytes(elsewhere.certificate)
    (own.pki.folder / "server.key").write_bytes(elsewhere.key)
    own.pki.renew_client(ADMIN, NOW, 20)
    client_key(own.pki.folder, ADMIN).chmod(0o640 if os.geteuid() else 0o644)
    own.reload()
    code, found = examined(own)
    assert code == 8
    assert "others may use it" in found["certificate.client"]["evidence"]
    assert found["host.tls"]["evidence"] == "the certificate does not name 127.0.0.1"
    own.pki.renew_client(ADMIN, NOW, 20)
    _, found = examined(own)
    assert found["certificate.client"]["verdict"] == "WARN"
    assert "is for another name" in found["certificate.server"]["evidence"]


# -- certificates that change ----------------------------------------------------------------------------------------


def test_new_certificates_are_taken_without_a_restart(own: Secure) -> None:
    first = own.serial()
    assert first == served_serial(own.pki)
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", own.port, context=own.context())) as kept:
        kept.request("GET", "/healthz")
        kept.getresponse().read()
        own.pki.renew_server([], NOW, 365)
        own.reload()
        assert own.serial() == served_serial(own.pki) != first
        kept.request("GET", "/healthz")
        assert kept.getresponse().status == 200, "who is connected stays so"
    own.pki.renew_server([], NOW, 365)  # nobody tells it
    until(lambda: own.serial() == served_serial(own.pki))


def test_files_that_cannot_be_used_change_nothing(own: Secure) -> None:
    first = own.serial()
    (own.pki.folder / "server.pem").write_text("nothing")
    own.reload()
    assert "certificates.refused" in own.log()
    assert own.serial() == first
    own.pki.renew_server(["127.0.0.1"], NOW, 365, only=True)
    (own.pki.folder / "server.key").chmod(0o644)
    own.reload()
    assert own.serial() == first
    (own.pki.folder / "server.key").chmod(0o600)
    own.reload()
    assert own.serial() == served_serial(own.pki)


def test_an_authority_is_changed_with_nobody_shut_out(own: Secure) -> None:
    old = own.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2  # with sessions to come back with
    with shaken(own.port, old) as connection:
        session = connection.session
    own.pki.renew_authority(NOW)
    own.reload()
    assert own.ask("GET", "/healthz", context=old)[0] == 200
    own.pki.renew_client(ADMIN, NOW, 365)
    assert own.ask("GET", "/healthz")[0] == 200, "a certificate of the new authority, while the server's is of the old"
    own.pki.renew_server([], NOW, 365)
    own.reload()
    assert own.ask("GET", "/healthz")[0] == 200
    assert own.pki.drop_old_authorities() == 1
    own.reload()
    assert own.ask("GET", "/healthz")[0] == 200
    old.load_verify_locations(own.pki.bundle)  # it would believe the server
    assert refusal(own.port, old) == "TLSV1_ALERT_UNKNOWN_CA"
    with pytest.raises(ssl.SSLError), shaken(own.port, old, session=session):
        pass


def test_a_connection_ends_with_its_certificate(own: Secure, tmp_path: Path) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=4) - timedelta(days=1)
    context = showing(own.pki.bundle, issue_client(authority_of(own.pki), ADMIN, soon, 1), tmp_path)
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", own.port, context=context)) as kept:
        kept.request("GET", "/v1/pools", headers={"Authorization": f"Bearer {own.key}"})
        assert kept.getresponse().read()
        assert kept.sock is not None
        kept.sock.settimeout(patient(20))
        assert kept.sock.recv(1) == b"", "long before an idle one would"
    assert refusal(own.port, context) == "SSLV3_ALERT_CERTIFICATE_EXPIRED"


# -- what is refused at the start ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--host", "0.0.0.0"), "would travel to 0.0.0.0 in the clear"),
        (("--tls-cert", "PKI/server.pem"), "tls_cert without tls_key"),
        (("--tls-client-ca", "PKI/ca.pem"), "tls_client_ca without tls_cert"),
        (("--tls-cert", "PKI/server.pem", "--tls-key", "PKI/ca.key"), "it is not the certificate of that key"),
        (("--tls-cert", "PKI/nothing.pem", "--tls-key", "PKI/server.key"), "cannot be read: no such file"),
        (("--tls-cert", "PKI/server.pem", "--tls-key", "PKI/nothing.key"), "cannot be read: no such file"),
        (("--tls-cert", "PKI/server.key", "--tls-key", "PKI/server.key"), "cannot be used"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, pki: CertificateStore, flags: tuple[str, ...], told: str
) -> None:
    given = tuple(word.replace("PKI", str(pki.folder)) for word in flags)
    controller = ControllerProcess(tmp_path, POOLS, flags=given)
    with pytest.raises(AssertionError) as caught:
        controller.start()
    assert told in str(caught.value)
    assert "(config.invalid)" in str(caught.value)


def test_plain_http_beyond_this_machine_must_be_said(tmp_path: Path) -> None:
    controller = ControllerProcess(tmp_path, POOLS, flags=("--host", "0.0.0.0", "--plain-http"))
    controller.start()
    assert controller.ask("GET", "/v1/pools")[0] == 200
    assert controller.stop() == 0


def test_tls_without_client_certificates(tmp_path: Path, pki: CertificateStore) -> None:
    flags = ("--tls-cert", str(pki.folder / "server.pem"), "--tls-key", str(pki.folder / "server.key"))
    controller = ControllerProcess(tmp_path, POOLS, flags=flags)
    controller.start()
    try:
        context = ssl.create_default_context(cafile=pki.bundle)
        with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", controller.port, context=context)) as asking:
            asking.request("GET", "/v1/pools", headers={"Authorization": f"Bearer {controller.key}"})
            assert asking.getresponse().status == 200
    finally:
        assert controller.stop() == 0


# -- two controllers -------------------------------------------------------------------------------------------------


@pytest.fixture
def twins(tmp_path: Path, database_url: str, pki: CertificateStore) -> Iterator[tuple[SecureTwin, SecureTwin]]:
    made: list[SecureTwin] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        twin = SecureTwin(tmp_path / name, POOLS, database=database_url, shared=tmp_path / "shared", pki=pki)
        made.append(twin)
        twin.start()
        until(lambda: made[0].leads)
    yield made[0], made[1]
    for twin in made:
        if twin.process is not None and twin.process.poll() is None:
            assert twin.stop() == 0


def test_one_that_stands_by_looks_at_certificates_and_hands_on(twins: tuple[SecureTwin, SecureTwin]) -> None:
    one, two = twins
    key = one.key
    status, made = two.ask("POST", "/v1/claims?wait=20s", {"size": 1}, key=key)
    assert (status, made["state"]) == (201, "READY")
    status, body = two.ask("GET", "/v1/pools", key=key, context=two.context("bert"))
    assert (status, body["code"]) == (403, "auth.certificate_mismatch")
    forged = {"x-moorings-standby": "1"}
    assert two.ask("GET", "/v1/pools", key=key, context=two.context("bert"), headers=forged)[0] == 503
    assert one.ask("GET", "/v1/pools", key=key, context=one.context("bert"), headers=forged)[0] == 403
    one.kill()
    until(lambda: two.leads)
    assert two.ask("GET", "/v1/pools", key=key)[0] == 200


def test_the_leaders_certificate_must_be_good(tmp_path: Path, database_url: str, pki: CertificateStore) -> None:
    """One that stands by hands no access key to somebody who is not known to be a controller."""
    stranger = CertificateStore(tmp_path / "stranger")
    stranger.create(["127.0.0.1"], NOW, 365)
    stranger.issue(ADMIN, NOW, 365)
    made = []
    for name, its in (("one", stranger), ("two", pki)):
        (tmp_path / name).mkdir()
        twin = SecureTwin(tmp_path / name, POOLS, database=database_url, shared=tmp_path / "shared", pki=its)
        made.append(twin)
        twin.start()
        until(lambda: made[0].leads)
    status, body = made[1].ask("GET", "/v1/pools", key=made[0].key)
    assert (status, body["code"]) == (503, "controller.no_leader")
    for twin in made:
        assert twin.stop() == 0


def test_a_servers_certificate_for_another_name_is_not_believed(
    secure: Secure, pki: CertificateStore, tmp_path: Path
) -> None:
    pair = issue_server(authority_of(pki), ["elsewhere.example.org"], NOW)
    (tmp_path / "c.pem").write_bytes(pair.certificate)
    (tmp_path / "k.pem").write_bytes(pair.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                server.wrap_socket(listening.accept()[0], server_side=True)

        thread = threading.Thread(target=serve)
        thread.start()
        done = moor(secure, "--server", f"https://127.0.0.1:{listening.getsockname()[1]}", "version")
        thread.join()
    assert "is for another name" in done.stderr
    assert "moor pki rotate --name HOST" in done.stderr
