"""The transport over real sockets: kept and lost connections, repeats, refusals, TLS."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from moorings.client.requests import ApiError, build_call
from moorings.client.transport import Endpoint, RetryPolicy, Transport, parse_server, socket_path
from moorings.core.model.errors import MooringsError
from moorings.wire import operations
from moorings.wire.shapes import ClaimRequest, KeyRequest
from tests.unit.client.recorded import RecordedServer, Reply, problem, recorded

VERSION = Reply({"version": "0.1.0", "apiVersion": "moorings/v1", "installation": "i"})
KEY = Reply({"id": "k", "subject": "a", "role": "user", "ownerPrefix": "", "createdAt": "2026-01-31T12:00:00Z"})
QUICK = RetryPolicy(retry_for_s=20, pause_s=0.01, pause_s_max=0.05)


def transport_to(server, **settings):
    return Transport(Endpoint(server.url, access_key="moor_secret", timeout_s=10), **settings)


def test_a_connection_is_kept(server):
    server.on("GET", "/version", VERSION)
    with transport_to(server) as transport:
        for _ in range(3):
            assert transport.send(build_call(operations.GET_VERSION)).version == "0.1.0"
    assert len({seen.connection for seen in server.seen}) == 1
    assert transport.connections_lost == 0


def test_a_kept_connection_that_the_server_closed_is_opened_anew(server):
    server.on("GET", "/version", Reply(VERSION.body, close=True), VERSION)
    with transport_to(server) as transport:
        transport.send(build_call(operations.GET_VERSION))
        assert transport.send(build_call(operations.GET_VERSION)).version == "0.1.0"
    assert len({seen.connection for seen in server.seen}) == 2


def test_the_headers_carry_key_and_idempotency_key(server):
    server.on("POST", "/v1/claims", problem("claim.no_room", "full", 409))
    with transport_to(server) as transport, pytest.raises(ApiError) as caught:
        transport.send(build_call(operations.CREATE_CLAIM, body=ClaimRequest(size=1), key="key-1"))
    assert caught.value.request_id == "req-1"
    headers = server.seen[0].headers
    assert headers["authorization"] == "Bearer moor_secret"
    assert headers["idempotency-key"] == "key-1"
    assert headers["content-type"] == "application/json"


def test_a_lost_answer_is_asked_for_again_where_that_does_no_harm(server):
    server.on("GET", "/version", Reply(cut=True), VERSION)
    with transport_to(server, patience=QUICK) as transport:
        assert transport.send(build_call(operations.GET_VERSION)).version == "0.1.0"
    assert transport.connections_lost == 1


@pytest.mark.parametrize("sent", [0, 10])
def test_an_answer_that_breaks_off_is_a_lost_one(server, sent):
    """As one of a controller that is killed meanwhile: http.client says nothing when a part is missing."""
    server.on("GET", "/version", Reply(VERSION.body, cut_after=sent), VERSION)
    with transport_to(server, patience=QUICK) as transport:
        assert transport.send(build_call(operations.GET_VERSION)).version == "0.1.0"
    assert transport.connections_lost == 1


def test_a_lost_answer_to_a_call_without_a_key_is_an_error_and_not_sent_twice(server):
    server.on("POST", "/v1/keys", Reply(cut=True), KEY)
    with transport_to(server, patience=QUICK) as transport, pytest.raises(MooringsError) as caught:
        transport.send(build_call(operations.CREATE_KEY, body=KeyRequest(subject="ann")))
    assert caught.value.code == "controller.unreachable"
    assert len(server.seen) == 1


def test_patience_waits_for_a_busy_controller_and_tells(server):
    told = []
    server.on("GET", "/version", problem("controller.busy", "too much to do", 503, retryable=True), VERSION)
    patience = RetryPolicy(20, 0.01, on_retry=lambda error, pause_s: told.append((error.code, pause_s)))
    with transport_to(server, patience=patience) as transport:
        transport.send(build_call(operations.GET_VERSION))
    assert told == [("controller.busy", 0.01)]


def test_without_patience_the_first_error_is_the_answer(server):
    server.on("GET", "/version", problem("controller.busy", "too much to do", 503, retryable=True), VERSION)
    with transport_to(server) as transport, pytest.raises(ApiError):
        transport.send(build_call(operations.GET_VERSION))
    assert len(server.seen) == 1


def test_a_refusal_is_not_repeated_however_patient(server):
    server.on("GET", "/version", problem("auth.denied", "no", 403), VERSION)
    with transport_to(server, patience=QUICK) as transport, pytest.raises(ApiError) as caught:
        transport.send(build_call(operations.GET_VERSION))
    assert caught.value.code == "auth.denied"
    assert len(server.seen) == 1


def test_patience_survives_a_restart():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    servers: list[RecordedServer] = []

    def start(_error, _pause_s):
        if not servers:
            servers.append(stack.enter_context(recorded(port)))
            servers[0].on("GET", "/version", VERSION)

    endpoint = Endpoint(f"http://127.0.0.1:{port}", timeout_s=10)
    with contextlib.ExitStack() as stack, Transport(endpoint, RetryPolicy(20, 0.01, on_retry=start)) as transport:
        assert transport.send(build_call(operations.GET_VERSION)).version == "0.1.0"
    assert len(servers) == 1


@pytest.mark.parametrize(("server_url", "word"), [("http://127.0.0.1:1", "listens"), ("http://no.invalid", "host")])
def test_an_absent_controller_is_unreachable_with_a_hint(server_url, word):
    with Transport(Endpoint(server_url, timeout_s=10)) as transport, pytest.raises(MooringsError) as caught:
        transport.send(build_call(operations.GET_VERSION))
    assert caught.value.code == "controller.unreachable"
    assert caught.value.retryable
    assert word in caught.value.detail
    assert "--server" in caught.value.hint


def test_something_that_is_no_controller_is_told_so(server):
    server.on("GET", "/version", Reply(b"<html>"))
    with transport_to(server) as transport, pytest.raises(MooringsError) as caught:
        transport.send(build_call(operations.GET_VERSION))
    assert caught.value.code == "controller.unreachable"
    assert "address" in caught.value.hint


def test_a_stream_comes_in_chunks_and_its_loss_is_an_error(server):
    server.on("GET", "/v1/runs/r/logs", Reply(chunks=[b"one\n", b"two\n"], cut=True))
    got = []
    with (
        transport_to(server) as transport,
        pytest.raises(MooringsError) as caught,
        transport.open_stream(build_call(operations.GET_LOGS, "r")) as chunks,
    ):
        got.extend(chunks)
    assert b"".join(got) == b"one\ntwo\n"
    assert caught.value.code == "controller.unreachable"
    assert "IncompleteRead" not in caught.value.detail
    assert "was lost" in caught.value.detail


def test_a_refused_stream_raises_what_the_controller_said(server):
    server.on("GET", "/v1/runs/r/logs", problem("run.unknown", "no run", 404))
    with (
        transport_to(server) as transport,
        pytest.raises(ApiError) as caught,
        transport.open_stream(build_call(operations.GET_LOGS, "r")) as chunks,
    ):
        list(chunks)
    assert caught.value.code == "run.unknown"


def test_the_key_is_in_no_text(server):
    lines: list[str] = []
    server.on("GET", "/version", VERSION)
    with transport_to(server, trace=lines.append) as transport:
        transport.send(build_call(operations.GET_VERSION))
    assert lines == [f"GET {server.url}/version: 200"]
    assert "secret" not in repr(transport.endpoint)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://h:8090", (False, "h", 8090)),
        ("https://h", (True, "h", 443)),
        ("http://[::1]:80/", (False, "::1", 80)),
    ],
)
def test_addresses_are_read(text, parts):
    assert parse_server(text) == parts


@pytest.mark.parametrize("text", ["h:8090", "ftp://h", "http://", "http://h:99999", "http://h/path", ""])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(MooringsError) as caught:
        parse_server(text)
    assert caught.value.code == "config.invalid"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    request += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.fixture
def secure_server(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with recorded(context=context) as running:
        running.on("GET", "/version", VERSION)
        yield running


def test_https_with_the_authority_named(secure_server, certificate):
    endpoint = Endpoint(secure_server.url, ca_file=str(certificate[0]), timeout_s=10)
    with Transport(endpoint) as transport:
        assert transport.send(build_call(operations.GET_VERSION)).version == "0.1.0"


def test_https_with_an_unknown_authority_is_refused_with_a_hint(secure_server):
    with Transport(Endpoint(secure_server.url, timeout_s=10)) as transport, pytest.raises(MooringsError) as caught:
        transport.send(build_call(operations.GET_VERSION))
    assert caught.value.code == "controller.unreachable"
    assert "--ca-file" in caught.value.hint
    assert not caught.value.retryable


def test_a_missing_certificate_is_a_matter_of_configuration():
    with (
        Transport(Endpoint("https://127.0.0.1:1", ca_file="/nowhere/ca.pem")) as transport,
        pytest.raises(MooringsError) as caught,
    ):
        transport.send(build_call(operations.GET_VERSION))
    assert caught.value.code == "config.invalid"
    assert "/nowhere/ca.pem" in caught.value.detail


# -- a socket of this machine ------------------------------------------------------------------------------------------


def test_a_unix_socket_is_an_address():
    assert socket_path("unix:///run/moorings/controller/api") == "/run/moorings/controller/api"
    assert socket_path("http://127.0.0.1:8090") is None
    for text in ("unix://", "unix://run/x", "unix:///a\0b"):
        with pytest.raises(MooringsError) as refused:
            socket_path(text)
        assert refused.value.code == "config.invalid"


def test_no_key_is_sent_to_a_unix_socket(tmp_path):
    path = tmp_path / "api"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        seen = []

        def answer():
            connected, _ = listening.accept()
            with connected:
                seen.append(connected.recv(1 << 16))
                body = b'{"version": "0.1.0", "apiVersion": "moorings/v1", "installation": "i"}'
                connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        thread = threading.Thread(target=answer)
        thread.start()
        with Transport(Endpoint(f"unix://{path}", access_key="moor_secret")) as transport:
            assert transport.send(build_call(operations.GET_VERSION)).version == "0.1.0"
        thread.join()
    assert b"moor_secret" not in seen[0]


def test_a_socket_that_is_missing_says_who_starts_it(tmp_path):
    with Transport(Endpoint(f"unix://{tmp_path}/api")) as transport, pytest.raises(MooringsError) as away:
        transport.send(build_call(operations.GET_VERSION))
    assert (away.value.code, away.value.retryable) == ("controller.unreachable", True)
    assert "moor up --system" in away.value.hint
