"""The server under TLS: what is bounded before anybody is known, and whom a certificate names."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from moorings.api.application import make_application
from moorings.api.limits import ApiLimits
from moorings.api.server import ApiServer
from moorings.api.tls import peer_of
from moorings.controller.service import Controller
from moorings.core.model.access import Peer
from moorings.core.model.errors import MooringsError
from moorings.net.tls import ReloadableContext, make_client_context, make_server_context
from moorings.pki.files import client_certificate, client_key
from moorings.pki.folder import CertificateStore
from tests.cases import cases
from tests.unit.api.pretend import PretendController
from tests.unit.api.sockets import Client, Served
from tests.waiting import patient, until_async

ENDS = "Nov 21 23:19:32 2027 GMT"
ENDS_S = 1826839172.0


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    made = CertificateStore(tmp_path_factory.mktemp("pki"))
    made.create(["127.0.0.1", "::1"], datetime.now(UTC), 2)
    made.issue("ann", datetime.now(UTC), 2)
    made.issue("bert", datetime.now(UTC), 2)
    return made


DEFAULT_LIMITS = ApiLimits()


@contextlib.asynccontextmanager
async def serving(
    controller: PretendController, pki: CertificateStore, limits: ApiLimits = DEFAULT_LIMITS
) -> AsyncIterator[Served]:
    folder = pki.folder
    context = ReloadableContext(lambda: make_server_context(folder / "server.pem", folder / "server.key", pki.bundle))
    app = make_application(cast("Controller", controller), limits=limits)
    listening = (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        if socket.has_dualstack_ipv6()
        else socket.create_server(("127.0.0.1", 0))
    )
    server = ApiServer(app, context)
    served = Served(server, listening.getsockname()[1], asyncio.create_task(server.serve(sockets=[listening])))
    try:
        yield served
    finally:
        await served.stop()


def context_of(pki: CertificateStore, subject: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=pki.bundle)
    context.load_cert_chain(client_certificate(pki.folder, subject), client_key(pki.folder, subject))
    return context


@contextlib.asynccontextmanager
async def connected(served: Served, context: ssl.SSLContext, host: str = "127.0.0.1") -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection(host, served.port, ssl=context))
    try:
        yield client
    finally:
        client.writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await client.writer.wait_closed()


# -- whom it names ---------------------------------------------------------------------------------------------------


def certificate(*uris: str, common: tuple[str, ...] = ("ann",)) -> dict[str, Any]:
    return {
        "notAfter": ENDS,
        "subject": tuple(((("commonName", name),)) for name in common),
        "subjectAltName": tuple(("URI", uri) for uri in uris),
    }


@cases(
    ("shown", "subject", "controller"),
    [
        (certificate("moorings:subject/ann"), "ann", False),
        (certificate("moorings:subject/bert"), "bert", False),
        (certificate("https://example.org/ann"), "ann", False),
        (certificate(), "ann", False),
        (certificate(common=()), "", False),
        (certificate(common=("ann", "bert")), "", False),
        (certificate("moorings:subject/ann", "moorings:subject/bert"), "", False),
        (certificate("moorings:controller"), "", True),
        (certificate("moorings:controller", "moorings:subject/ann"), "", True),
        (certificate("moorings:subject/"), "", False),
        (certificate("Moorings:Subject/bert", common=()), "", False),
        ({"notAfter": ENDS}, "", False),
    ],
)
def test_whom_a_certificate_names(shown: dict[str, Any], subject: str, controller: bool) -> None:
    assert peer_of(shown) == Peer(subject, controller, ENDS_S)


async def test_the_certificate_must_be_of_the_keys_subject(
    controller: PretendController, pki: CertificateStore
) -> None:
    async with serving(controller, pki) as served:
        async with connected(served, context_of(pki, "ann")) as client:
            client.ask("GET", "/v1/claims")
            assert (await client.answer()).status == 200
            client.ask("GET", "/v1/claims", authorization="Bearer moor_none")
            assert (await client.answer()).status == 401
        async with connected(served, context_of(pki, "bert")) as client:
            client.ask("GET", "/v1/claims")
            answer = await client.answer()
            assert (answer.status, answer.json().get("code")) == (403, "auth.certificate_mismatch")
            client.ask("GET", "/healthz", authorization="")
            assert (await client.answer()).status == 200


# -- bounds ----------------------------------------------------------------------------------------------------------


async def test_a_handshake_has_no_more_time_than_a_head(controller: PretendController, pki: CertificateStore) -> None:
    async with serving(controller, pki, ApiLimits(head_timeout_s=0.2)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"\x16\x03\x01")
        assert await asyncio.wait_for(reader.read(), patient(10)) == b""
        writer.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6: there is no second machine to come from")
async def test_silent_connections_of_one_address_leave_room_for_others(
    controller: PretendController, pki: CertificateStore
) -> None:
    limits = ApiLimits(connections_per_address_max=4, head_timeout_s=3600)
    async with serving(controller, pki, limits) as served:
        silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(4)]
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        assert await asyncio.wait_for(silent[0][0].read(), patient(10)) == b"", "the oldest makes room for the fifth"
        async with connected(served, context_of(pki, "ann")) as client:
            client.ask("GET", "/v1/claims")
            assert (await client.answer()).status == 200, "and who asks for something is not shut out by them"
        writer.close()
        async with connected(served, context_of(pki, "ann"), "::1") as client:
            client.ask("GET", "/v1/claims")
            assert (await client.answer()).status == 200
        for _, each in silent:
            each.close()

        async def answers() -> bool:
            async with connected(served, context_of(pki, "ann")) as client:
                client.ask("GET", "/v1/claims")
                return (await client.answer()).status == 200

        await until_async(answers, 10, what="what they held is given back", not_yet=(OSError, ssl.SSLError))


async def test_connections_and_handshakes_count_together(controller: PretendController, pki: CertificateStore) -> None:
    ann = context_of(pki, "ann")
    async with (
        serving(controller, pki, ApiLimits(connections_per_address_max=2)) as served,
        connected(served, ann) as one,
        connected(served, ann) as two,
    ):
        for client in (one, two):
            client.ask("GET", "/v1/events?watch=1")
            assert (await client.head()).status == 200
        with pytest.raises((OSError, ssl.SSLError)):
            await asyncio.open_connection("127.0.0.1", served.port, ssl=ann)


async def test_a_server_that_stops_lets_go_of_handshakes(controller: PretendController, pki: CertificateStore) -> None:
    async with serving(controller, pki, ApiLimits(head_timeout_s=3600)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        async with connected(served, context_of(pki, "ann")) as client:
            client.ask("GET", "/v1/claims")
            await client.answer()
        await asyncio.wait_for(served.stop(), patient(10))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), patient(10)) == b""
        writer.close()


async def test_failed_handshakes_do_not_fill_the_log(
    controller: PretendController, pki: CertificateStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="moorings.api"):
        async with serving(controller, pki) as served:
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert b"400 Bad Request" in await asyncio.wait_for(reader.readuntil(b"}"), patient(10))
                writer.close()
    told = [record for record in caplog.records if record.message == "handshake.failed"]
    assert 1 <= len(told) <= 5
    assert told[0].__dict__["client"] == "127.0.0.0/8"
    assert told[0].__dict__["detail"] == "http request"


# -- contexts --------------------------------------------------------------------------------------------------------


def test_a_context_is_renewed_or_stays_as_it_is(tmp_path: Path, pki: CertificateStore) -> None:
    mine = CertificateStore(tmp_path / "mine")
    mine.create(["127.0.0.1"], datetime.now(UTC), 2)
    files = (mine.folder / "server.pem", mine.folder / "server.key", mine.bundle)
    context = ReloadableContext(lambda: make_server_context(*files))
    before = context._latest
    files[1].write_text("nothing")
    with pytest.raises(MooringsError) as caught:
        context.renew()
    assert caught.value.code == "config.invalid"
    assert context._latest is before
    mine.renew_server([], datetime.now(UTC), 2)
    context.renew()
    assert context._latest is not before


def test_a_context_that_is_renewable_verifies_as_its_latest(pki: CertificateStore) -> None:
    """Through ``wrap_bio``, which is all that the event loops and httpx call."""
    folder = pki.folder
    server = ReloadableContext(lambda: make_server_context(folder / "server.pem", folder / "server.key", pki.bundle))
    client = ReloadableContext(lambda: make_client_context(folder / "server.pem", folder / "server.key", pki.bundle))
    pipes = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(pipes[0], pipes[1], server_side=True),
        client.wrap_bio(pipes[1], pipes[0], server_hostname="127.0.0.1"),
    ]
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert [bool(end.getpeercert()) for end in ends] == [True, True]
    assert ends[0].version() == "TLSv1.3"


def test_a_client_context_checks_names(pki: CertificateStore) -> None:
    made = make_client_context(pki.folder / "server.pem", pki.folder / "server.key", pki.bundle)
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, True)
    system = make_client_context(pki.folder / "server.pem", pki.folder / "server.key", None)
    assert (system.verify_mode, system.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(
    tmp_path: Path, pki: CertificateStore
) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((pki.folder / "server.key").read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "locked.key").write_bytes(locked)
    with pytest.raises(MooringsError, match=r"locked\.key cannot be used"):
        make_server_context(pki.folder / "server.pem", tmp_path / "locked.key", None)


def test_certificates_last_as_they_are_asked_to(pki: CertificateStore) -> None:
    ends = [entry.not_after for entry in pki.entries() if entry.kind == "client"]
    assert all(timedelta(days=1) < each - datetime.now(UTC) <= timedelta(days=2) for each in ends)
