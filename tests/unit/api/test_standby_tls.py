"""One that stands by, with TLS: whom it believes to be the leader, and whom it takes for the holder of a key."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from moorings.api.application import Application
from moorings.api.forwarding import ForwardingApplication
from moorings.api.limits import ApiLimits
from moorings.api.tls import PEER
from moorings.core.model.access import Peer
from moorings.net.tls import make_client_context, make_server_context
from moorings.pki.folder import CertificateStore
from tests.unit.api.pretend import PretendController
from tests.unit.api.sockets import connected, serving, serving_application

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    return made_in(tmp_path_factory.mktemp("pki"))


def made_in(folder: Path) -> CertificateStore:
    made = CertificateStore(folder)
    made.create(["127.0.0.1"], NOW, 2)
    return made


@contextlib.asynccontextmanager
async def leading(context: ssl.SSLContext) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A process that claims to lead, and the requests it got."""
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65536))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


def files(pki: CertificateStore) -> tuple[Path, Path, Path]:
    return pki.folder / "server.pem", pki.folder / "server.key", pki.bundle


@pytest.mark.parametrize("known", [True, False])
async def test_an_access_key_goes_to_no_leader_of_another_authority(
    pki: CertificateStore, tmp_path: Path, known: bool
) -> None:
    its = pki if known else made_in(tmp_path / "stranger")
    # It takes any client's certificate, as one would who wants to hear access keys.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files(its)[:2])
    async with leading(context) as (url, heard):
        standby = ForwardingApplication(lambda: url, "abc", patience_s=0.5, tls=make_client_context(*files(pki)))
        try:
            async with (
                serving_application(Application(standby, standby.closing, ApiLimits())) as served,
                connected(served) as client,
            ):
                client.ask("GET", "/v1/pools")
                answer = await client.answer()
        finally:
            await standby.close()
    if known:
        assert (answer.status, len(heard)) == (200, 1)
    else:
        assert (answer.status, answer.json().get("code")) == (503, "controller.no_leader")
        assert not any(b"Bearer" in text for text in heard)


async def test_it_shows_its_own_certificate_to_the_leader(pki: CertificateStore) -> None:
    async with leading(make_server_context(*files(pki))) as (url, heard):
        standby = ForwardingApplication(lambda: url, "abc", patience_s=0.5, tls=make_client_context(*files(pki)))
        try:
            async with (
                serving_application(Application(standby, standby.closing, ApiLimits())) as served,
                connected(served) as client,
            ):
                client.ask("GET", "/v1/pools")
                assert (await client.answer()).status == 200
        finally:
            await standby.close()
    assert len(heard) == 1


@pytest.mark.parametrize(("subject", "status"), [("ann", 200), ("bert", 403), ("", 403)])
async def test_it_looks_at_the_certificate_itself(controller: PretendController, subject: str, status: int) -> None:
    """The leader sees only the certificate of the one that stands by."""
    async with serving(controller) as leader:
        url = f"http://127.0.0.1:{leader.port}"
        standby = ForwardingApplication(lambda: url, "abc", patience_s=0.5, authenticate=controller.authenticate)

        async def shown(scope: Scope, receive: Receive, send: Send) -> None:
            scope[PEER] = Peer(subject, is_controller=False, expires_at_s=4e9)
            await standby(scope, receive, send)

        try:
            async with (
                serving_application(Application(shown, standby.closing, ApiLimits())) as served,
                connected(served) as client,
            ):
                client.ask("GET", "/v1/claims")
                assert (await client.answer()).status == status
        finally:
            await standby.close()
