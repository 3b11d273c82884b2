"""A replica of the proxy that does not lead: it forwards each connection to the leader, byte by byte.

Two proxies that decide at the same time could each end the claim that the other one has chosen, so only one decides.
The others still belong to the Service: a Pod that is never Ready would block a rollout, and a Service of the leader
alone would need a component that labels Pods. The bytes are not read: TLS is between client and leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from moorings.kubernetes.kube.election import Elector
from moorings.kubernetes.proxy.server import listen
from moorings.net.limits import ClientLimit

log = logging.getLogger("moorings.kubernetes.proxy.standby")

CHUNK_BYTES = 64 << 10
REACHED_S = 3.0
LOOK_S = 5.0
CONNECTIONS_MAX = 1024  # one address: half; the leader sees them all from one address, with as many slots there


class ConnectionForwarder:
    """Forwards connections.

    Args:
        leader: returns the address of the leading replica; empty: none leads.
        host: address to listen on; empty: all.
        ports: ports to listen on here, and to connect to there.
    """

    def __init__(self, leader: Callable[[], str], host: str, ports: Sequence[int]) -> None:
        self._leader = leader
        self._host = host
        self._ports = ports
        self._open: set[asyncio.Task[None]] = set()
        self._places = ClientLimit(CONNECTIONS_MAX)

    async def serve(self) -> None:
        """Forward until cancelled; then all connections end, and their clients connect again."""
        servers: list[asyncio.Server] = []
        try:
            for port in self._ports:
                server = await asyncio.start_server(self._accept_on(port), sock=listen(self._host, port))
                servers.append(server)
            await asyncio.Event().wait()
        finally:
            for server in servers:
                server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            await asyncio.sleep(0.05)  # the ports are free after a turn of the loop

    def _accept_on(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            leader, address = self._leader(), str((writer.get_extra_info("peername") or ("",))[0])
            if not leader or not self._places.acquire(address):
                writer.transport.abort()
                return
            task = asyncio.get_running_loop().create_task(_forward(reader, writer, leader, port))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            task.add_done_callback(lambda _task: self._places.release(address))

        return accept


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    there: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(REACHED_S):
            back, there = await asyncio.open_connection(host, port)
        ways = [asyncio.ensure_future(_copy(reader, there)), asyncio.ensure_future(_copy(back, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
    except (OSError, TimeoutError) as error:
        log.debug("leader.unreached", extra={"leader": host, "detail": str(error)})
    finally:
        for one in (writer, there):
            if one is not None:
                one.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy until one of the two ends; what was read before is written."""
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            sink.write(data)
            await sink.drain()


async def lead_or_forward(elector: Elector, standby: ConnectionForwarder, work: Callable[[], Awaitable[None]]) -> None:
    """Work while this replica leads, and forward while another one does; returns when the work ends by itself."""
    standing = asyncio.create_task(standby.serve())

    async def lead() -> None:
        nonlocal standing
        await _stop(standing)
        try:
            await work()
        finally:
            standing = asyncio.create_task(standby.serve())

    leading = asyncio.create_task(elector.lead(lead))
    try:
        while not leading.done():
            await asyncio.wait((leading, standing), return_when=asyncio.FIRST_COMPLETED)
            if standing.done() and not standing.cancelled():
                standing.result()  # it could not listen
            elif standing.done():
                await asyncio.wait((leading,), timeout=LOOK_S)  # this replica works now
        leading.result()
    finally:
        await _stop(leading)
        await _stop(standing)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
