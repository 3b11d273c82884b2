"""The application behind a real uvicorn, and a client that sends exactly the bytes it is told to."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

from moorings.api.application import Application, make_application
from moorings.api.limits import ApiLimits
from moorings.api.server import ApiServer
from moorings.controller.service import Controller
from tests.unit.api.pretend import USER, PretendController


@dataclass
class Served:
    """A server that runs; ``done`` ends when it has stopped."""

    server: ApiServer
    port: int
    done: asyncio.Task[None]

    async def stop(self) -> None:
        self.server.should_exit = True
        await self.done


@contextlib.asynccontextmanager
async def serving(controller: PretendController, limits: ApiLimits = ApiLimits()) -> AsyncIterator[Served]:  # noqa: B008
    async with serving_application(make_application(cast("Controller", controller), limits=limits)) as served:
        yield served


@contextlib.asynccontextmanager
async def serving_application(app: Application) -> AsyncIterator[Served]:
    """As ``serving``, whatever the application is."""
    # Listens now, so clients need not wait for the start; with IPv6 there is a second machine to come from.
    listening = (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        if socket.has_dualstack_ipv6()
        else socket.create_server(("127.0.0.1", 0))
    )
    server = ApiServer(app)
    served = Served(server, listening.getsockname()[1], asyncio.create_task(server.serve(sockets=[listening])))
    try:
        yield served
    finally:
        await served.stop()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def ask(self, method: str, path: str, body: bytes = b"", /, **headers: str) -> None:
        fields = {
            "host": "moorings",
            "authorization": f"Bearer {USER}",
            "content-length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
        self.send(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)

    async def head(self) -> Answer:
        """The head of an answer; its body is still to be read."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return Answer(int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, b"")

    async def answer(self) -> Answer:
        found = await self.head()
        found.body = await self.reader.readexactly(int(found.headers["content-length"]))
        return found

    async def chunk(self) -> bytes:
        """One chunk of a chunked answer; empty: its proper end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def connected(served: Served) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 22))
    try:
        yield client
    finally:
        await client.close()
