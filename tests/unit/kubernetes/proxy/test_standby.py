"""A proxy that stands by hands connections on, those of one address only so far as they leave room for others."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from moorings.kubernetes.proxy import standby
from moorings.kubernetes.proxy.standby import ConnectionForwarder
from tests.waiting import patient

LEADER, OWN = "127.0.0.1", "127.0.0.2"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        while data := await reader.read(100):
            writer.write(data)


async def say(stack: contextlib.AsyncExitStack, port: int, address: str) -> bytes:
    """What comes back over a connection, which stays open; empty: nothing, it was ended."""
    reader, writer = await asyncio.open_connection(OWN, port, local_addr=(address, 0))
    stack.callback(writer.close)
    async with asyncio.timeout(patient(10)):
        try:
            writer.write(b"x")
            return await reader.read(1)
        except ConnectionError:
            return b""


async def test_one_address_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "CONNECTIONS_MAX", 8)
    async with await asyncio.start_server(echo, LEADER, 0) as leader, contextlib.AsyncExitStack() as stack:
        port = leader.sockets[0].getsockname()[1]
        standing = asyncio.create_task(ConnectionForwarder(lambda: LEADER, OWN, [port]).serve())
        await asyncio.sleep(0.1)
        for _ in range(4):
            assert await say(stack, port, "127.0.0.3") == b"x"
        assert await say(stack, port, "127.0.0.3") == b""
        assert await say(stack, port, "127.0.0.4") == b"x"
        await stack.aclose()
        await asyncio.sleep(0.1)
        assert await say(stack, port, "127.0.0.3") == b"x", "places are given back"
        await stack.aclose()
        standing.cancel()
        await asyncio.gather(standing, return_exceptions=True)
