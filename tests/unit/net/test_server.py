"""The bounded server, with an application that answers at once, late, or before it has read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.core.model.errors import MooringsError
from moorings.net.limits import ConnectionLimit
from moorings.net.server import BoundedServer, ClientConnection, HttpBounds, listen
from moorings.privileged import peers
from tests.lingering import send_lingering
from tests.waiting import patient
from tests.waiting import until_async as until

LONG_S = 3600
BOUNDS = HttpBounds(head_bytes_max=1000, arrival_s=LONG_S, keep_alive_s=LONG_S, shutdown_s=1)

pytestmark = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers; under /late after the client has gone; under /body when the body is there."""
    if scope["path"] == "/late":
        while (await receive())["type"] != "http.disconnect":
            pass
    if scope["path"] == "/body":
        while (await receive()).get("more_body"):
            pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def serving(bounds: HttpBounds, listening: socket.socket) -> AsyncIterator[BoundedServer]:
    limit: ConnectionLimit[ClientConnection] = ConnectionLimit(8, evicts=False)
    server = BoundedServer(app, bounds, limit, logging.getLogger("tests"))
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield server
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def connected(bounds: HttpBounds) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    listening = listen("127.0.0.1", 0, "the test", "")
    async with serving(bounds, listening) as server:
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            async with asyncio.timeout(patient(20)):
                yield reader, writer
        finally:
            writer.close()
        await until(lambda: not len(server.limit))


def request(path: str, length: int = 0) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()


async def test_response_that_takes_too_long_ends_the_connection() -> None:
    async with connected(replace(BOUNDS, write_s=0.2)) as (reader, writer):
        writer.write(request("/late"))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


async def test_body_that_does_not_arrive_is_refused() -> None:
    async with connected(replace(BOUNDS, arrival_s=0.3)) as (reader, writer):
        writer.write(request("/body", 10) + b"x")
        assert b"it did not arrive within 0.3 s" in await reader.read()


@pytest.mark.parametrize("body", [b"x" * 10, b"x"])
async def test_body_after_the_response_does_not_keep_the_connection(body: bytes) -> None:
    async with connected(replace(BOUNDS, arrival_s=0.5, keep_alive_s=1)) as (reader, writer):
        writer.write(request("/", 10))
        assert b"ok" in await reader.readuntil(b"ok")
        writer.write(body)
        assert await reader.read() == b""


async def test_requests_ahead_are_bounded() -> None:
    async with connected(replace(BOUNDS, pipelined_max=1)) as (reader, writer):
        writer.write(request("/") * 2)
        for _ in range(2):
            await reader.readuntil(b"ok")
        writer.write(request("/late") * 3)
        assert b"400 Bad Request" in await reader.read()


async def test_unix_socket_is_served_within_the_limit(tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(tmp_path / "s"))
    listening.listen()
    async with serving(BOUNDS, listening) as server:
        ends = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(5)]
        async with asyncio.timeout(patient(20)):
            assert await ends[4][0].read() == b"", "a peer without an address gets half"
            ends[0][1].write(request("/"))
            assert b"ok" in await ends[0][0].readuntil(b"ok")
            assert len(server.limit) == 4
        for _, writer in ends:
            writer.close()


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM and its timer are as before again: they may be those of the test's timeout."""
    handler, (left_s, interval_s) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("number", [peers.PASS_RIGHTS, 9999], ids=["refused", "an older kernel"])
async def test_descriptor_that_is_slow_to_close_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(peers, "PASS_RIGHTS", number)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(tmp_path / "s"))
    peers.refuse_descriptors(listening)
    listening.listen()
    async with serving(BOUNDS, listening):
        with socket.socket(socket.AF_UNIX) as attacker:
            attacker.connect(str(tmp_path / "s"))
            with send_lingering(attacker, request("/")):
                reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
                writer.write(request("/"))
                async with asyncio.timeout(patient(20)):
                    assert b"ok" in await reader.readuntil(b"ok")
                writer.close()


def test_port_that_is_taken_is_named(anyio_backend: object) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(MooringsError) as caught:
        listen("127.0.0.1", taken.getsockname()[1], "the test", "choose another")
    assert caught.value.code == "config.invalid"
    assert caught.value.detail.startswith("the test cannot listen on 127.0.0.1, port ")
