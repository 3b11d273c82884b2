"""Ways to an API server that fail as networks do: cut, silent, or with something in front that refuses."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.kubernetes import pki
from tests.kubernetes.cluster import KubernetesCluster


class Way:
    """Takes TCP connections on 127.0.0.1 and passes them on, byte by byte."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        parts = urlsplit(cluster.url)
        self._server = (parts.hostname, parts.port)
        self._open: set[asyncio.StreamWriter] = set()
        self._taking: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._refuses = False
        self.taken = 0  # connections so far
        self.silent = False  # for new ones: taken, and nothing ever comes

    @contextlib.asynccontextmanager
    async def open(self, cluster: KubernetesCluster, folder: Path) -> AsyncIterator[Path]:
        """The kubeconfig that leads through here."""
        async with await asyncio.start_server(self._take, "127.0.0.1") as listening:
            port = listening.sockets[0].getsockname()[1]
            pair = (cluster.folder / "pki" / "admin.crt", cluster.folder / "pki" / "admin.key")
            file = folder / f"way-{port}"
            yield pki.write_kubeconfig(file, f"https://127.0.0.1:{port}", cluster.ca_file, pair=pair)
            self._refuses = True
            self.thaw()
            self.cut()
            for task in self._taking:
                task.cancel()
            if self._taking:
                await asyncio.wait(self._taking)

    def freeze(self) -> None:
        """Nothing passes any more on connections that are open, and nobody is told."""
        self._flows.clear()

    def thaw(self) -> None:
        """What is open passes on again."""
        self._flows.set()

    def renew(self) -> None:
        """What is frozen stays so for ever; new connections pass."""
        self._flows = asyncio.Event()
        self._flows.set()

    def cut(self, *, refuse: bool | None = None) -> None:
        """Close what is open, and from now on refuse what is new (or not)."""
        if refuse is not None:
            self._refuses = refuse
        for writer in self._open:
            writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        if self._refuses:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()  # else a test may end before the socket is closed
            return
        flows = self._flows
        self._open.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)
        try:
            if self.silent:
                await asyncio.Event().wait()
            server_reader, server_writer = await asyncio.open_connection(*self._server)
            self._open.add(server_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(reader, server_writer, flows))
                    group.create_task(_pump(server_reader, writer, flows))
            finally:
                self._open.discard(server_writer)
                server_writer.transport.abort()
        except (OSError, ExceptionGroup, asyncio.CancelledError):  # 3.11's streams choke on a cancelled task
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event) -> None:
    while chunk := await reader.read(65536):
        await flows.wait()
        writer.write(chunk)
        await writer.drain()
    raise ConnectionError("one end closed: so does the other")


class Front:
    """Speaks TLS in place of the API server, and answers the next ``refusals`` requests itself: 429."""

    def __init__(self, cluster: KubernetesCluster, folder: Path) -> None:
        self.refusals = 0
        self.asked_at: list[float] = []  # of refused requests
        self._cluster = cluster
        self._folder = folder
        parts = urlsplit(cluster.url)
        self._server = (parts.hostname, parts.port)
        self._towards = ssl.create_default_context(cafile=str(cluster.ca_file))
        self._towards.load_cert_chain(cluster.folder / "pki" / "admin.crt", cluster.folder / "pki" / "admin.key")

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Path]:
        """The kubeconfig that leads through here."""
        authority = pki.Authority(self._folder, "front-ca")
        ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ours.load_cert_chain(*authority.issue("front", "front", hosts=["127.0.0.1"]))
        async with await asyncio.start_server(self._take, "127.0.0.1", ssl=ours) as listening:
            port = listening.sockets[0].getsockname()[1]
            file = self._folder / "front.kubeconfig"
            yield pki.write_kubeconfig(file, f"https://127.0.0.1:{port}", authority.certificate, token="none")

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if self.refusals:
                self.refusals -= 1
                self.asked_at.append(asyncio.get_running_loop().time())
                writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\n\r\nwait")
                await writer.drain()
                return
            # Our certificate says who asks, not the token; and a connection carries one request.
            lines = [
                line for line in head.split(b"\r\n") if not line.lower().startswith((b"authorization:", b"connection:"))
            ]
            lines.insert(1, b"Connection: close")
            server_reader, server_writer = await asyncio.open_connection(*self._server, ssl=self._towards)
            try:
                server_writer.write(b"\r\n".join(lines))
                async with asyncio.TaskGroup() as group:
                    flows = asyncio.Event()
                    flows.set()
                    group.create_task(_pump(reader, server_writer, flows))
                    group.create_task(_pump(server_reader, writer, flows))
            finally:
                server_writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError, ExceptionGroup):
            pass
        finally:
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.close()
