"""The server under the application: uvicorn with httptools and uvloop, and the bounds it lacks.

uvicorn on httptools bounds neither the size of a request's head nor the time it takes to arrive, nor how many requests
are sent ahead, waits for ever for a client to read, and counts connections only to answer in plain text. The protocol
class here adds those bounds in uvicorn's own hooks. Requiring a proxy in front was refused: a controller must be safe
to start with one command.

With TLS, ``api.tls.Handshakes`` accepts the connections, and bounds what no protocol class sees.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import ssl
import time
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from moorings.api.limits import DEFAULT_LIMITS, ApiLimits
from moorings.api.problems import MEDIA_TYPE, problem_body
from moorings.api.tls import PEER, Handshakes, peer_of
from moorings.core.access import Peer
from moorings.core.errors import MooringsError
from moorings.wire.codec import encode

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PORT = 8090


READ_BYTES_MIN = 16 * 1024  # a client that reads less than this within ``unread_s`` counts as not reading
LOOK_TICKS = 10  # uvicorn's ticks, ten a second, between two checks for clients that do not read
RESERVED_ADDRESS_MAX = 8  # connections of an address that may use the reserved ones, at most
RESERVED_PART = 1 / 4  # of all connections, if the process may have only few


def client_network(client: tuple[str, int] | None) -> str:
    """The network of a connection: a machine, or the smallest network whose addresses one user may choose from."""
    return _counted_as(client[0]) if client else ""


@lru_cache(maxsize=4096)
def _counted_as(host: str) -> str:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:  # the transport's value for a peer without an address
        return host
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return "127.0.0.0/8" if found.is_loopback else str(found)


def is_within_limits(limits: ApiLimits, of_address: int, in_all: int) -> bool:
    """Whether a connection is within the limits; the numbers include it."""
    reserved = min(limits.connections_reserved, int(limits.connections_max * RESERVED_PART))
    most = limits.connections_max - (reserved if of_address > RESERVED_ADDRESS_MAX else 0)
    return in_all <= most and of_address <= limits.connections_per_address_max


class BoundedProtocol(HttpToolsProtocol):
    """One connection with bounds on its requests' heads in size and time; it is closed if its client does not read."""

    limits: ClassVar[ApiLimits] = DEFAULT_LIMITS
    addresses: ClassVar[Counter[str]] = Counter()  # of the open connections; each server has its own
    idle: ClassVar[dict[str, dict[BoundedProtocol, None]]] = {}  # of each address, the longest idle first; likewise
    asks_certificates: ClassVar[bool] = False

    _address = ""
    _peer: Peer | None = None
    _running: RequestResponseCycle | None = None
    _unsent_bytes = 0
    _unsent_since_s = 0.0
    _in_head = False
    _in_message = False
    _body_ended = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._address = client_network(self.client)
        self.addresses[self._address] += 1
        room = is_within_limits(self.limits, self.addresses[self._address], len(self.connections))
        if not room and not self.make_room(self._address):
            transport.close()
            return
        self._rests()
        if self.asks_certificates:
            self._peer = peer_of(transport.get_extra_info("peercert"))
        # uvicorn waits for ever for the first byte; for later requests it uses the same timer.
        self.timeout_keep_alive_task = self.loop.call_later(self.limits.head_timeout_s, self.timeout_keep_alive_handler)

    @classmethod
    def make_room(cls, address: str) -> bool:
        """Close the connection of an address that has been idle for longest; return whether there was one.

        Without this, a user who fills an address with silent connections would block all others on that machine: a new
        connection gets a request within milliseconds, so it is never the oldest.
        """
        longest = next(iter(cls.idle.get(address, ())), None)
        if longest is None:
            return False
        longest.works()
        longest.transport.abort()
        return True

    def _rests(self) -> None:
        """Mark the connection as idle."""
        self.idle.setdefault(self._address, {})[self] = None

    def works(self) -> None:
        """Mark the connection as busy, or gone."""
        resting = self.idle.get(self._address, {})
        resting.pop(self, None)
        if not resting:
            self.idle.pop(self._address, None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and (self._running is None or self._running.response_complete):
            self._rests()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override] # wider
        self._running = cycle
        self.works()
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type] # ASGI, as uvicorn types it

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn notifies the last request; the one in progress may be an earlier one, and would keep waiting, and
        # write its response to a closed connection.
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self._head_ended()
        self.works()
        self._unset_keepalive_if_required()
        self.addresses[self._address] -= 1
        if not self.addresses[self._address]:
            del self.addresses[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._body_ended = False
        super().data_received(data)
        if self._in_head:  # if another request ended in `data`, the head's part of it is unknown
            self._head_unfinished(0 if self._body_ended else len(data))
        elif self._running is None or self._running.response_complete:
            self._between_answers(len(data))

    def _between_answers(self, count: int) -> None:
        """Start a timer for unexpected data: uvicorn has cancelled its own, and would keep the connection for ever."""
        if self._in_message:  # the rest of a refused body
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(self.limits.body_timeout_s, self.timeout_keep_alive_handler)
        elif self._body_ended:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.limits.keep_alive_s, self.timeout_keep_alive_handler
            )
        else:  # empty lines, which may precede a head
            self._head_unfinished(count)

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope[PEER] = self._peer  # type: ignore[typeddict-unknown-key] # ours, and no header's

    def on_headers_complete(self) -> None:
        self._head_ended()
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > self.limits.head_bytes_max:
            raise ValueError("the head is too large")  # the parser raises it as its own error, and a response follows
        if len(self.pipeline) >= self.limits.pipelined_max:
            raise ValueError("too many requests ahead of their answers")  # 256 KB can hold fourteen thousand
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._body_ended = True
        self._in_message = False
        self._head_ended()
        super().on_message_complete()

    def resume_writing(self) -> None:
        self._unsent_bytes = 0  # the client has read tens of kilobytes
        super().resume_writing()

    def cut_if_unread(self, now_s: float) -> None:
        """Abort the connection if its client has read next to nothing for too long; called every second.

        Closing would not do: that waits until everything is sent. Without this, clients that never read would keep
        their responses, slots and connections for ever, until none are left for others.
        """
        unsent_bytes = self.transport.get_write_buffer_size()
        if not unsent_bytes or not self._unsent_bytes or self._unsent_bytes - unsent_bytes >= READ_BYTES_MIN:
            self._unsent_bytes, self._unsent_since_s = unsent_bytes, now_s
        elif now_s - self._unsent_since_s >= self.limits.unread_s:
            self.transport.abort()

    def end_if_expired(self, now_s: float) -> None:
        """Close the connection, after the response in progress, if its client's certificate has expired."""
        if self._peer is not None and now_s >= self._peer.expires_s:
            self.shutdown()

    def _head_unfinished(self, more_bytes: int) -> None:
        self._head_bytes += more_bytes
        if self._head_bytes > self.limits.head_bytes_max:
            self._refuse(f"its head is larger than {self.limits.head_bytes_max} bytes")
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self._head_late)

    def _head_late(self) -> None:
        self._refuse(f"its head did not arrive within {self.limits.head_timeout_s:g} s")

    def _head_ended(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, why: str) -> None:
        self._head_ended()
        if not self.transport.is_closing():
            self.send_400_response(why)

    def send_400_response(self, msg: str) -> None:
        """Answer data that did not become a request."""
        error = MooringsError("request.invalid", f"the HTTP request cannot be read: {msg}")
        body = problem_body(error, "")
        content = json.dumps(encode(body)).encode()
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (MEDIA_TYPE.encode(), len(content), content)
        )
        self.transport.close()


class ServedApplication(Protocol):
    """An ASGI application with limits, and a notice of the server's stop."""

    limits: ApiLimits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def close(self) -> None: ...


class ApiServer(uvicorn.Server):
    """uvicorn's server with a notice to the application when it begins to stop: watches and waits end then, not later.

    Args:
        app: the application.
        config: from ``make_server_config``.
        tls: its TLS; None: without TLS.
    """

    def __init__(self, app: ServedApplication, config: uvicorn.Config, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._app = app
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
            return
        assert sockets is not None, "with TLS the caller listens"
        await super().startup([])
        for listening in sockets:
            handshakes = Handshakes(
                listening,
                self._tls,
                self._new_protocol,
                self._room_for,
                self._protocol.make_room,
                self._app.limits.head_timeout_s,
            )
            self.servers.append(cast("asyncio.base_events.Server", handshakes))

    def _new_protocol(self) -> asyncio.Protocol:
        made = self._protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        assert isinstance(made, asyncio.Protocol)
        return made

    @property
    def _protocol(self) -> type[BoundedProtocol]:
        found = self.config.http_protocol_class
        assert issubclass(found, BoundedProtocol), "as make_server_config sets it"
        return found

    def _room_for(self, client: tuple[str, int], handshakes: Counter[str]) -> tuple[str, bool]:
        """The key under which a new client is counted, and whether it is within the limits."""
        address = client_network(client)
        of_address = self._protocol.addresses[address] + handshakes[address] + 1
        in_all = len(self.server_state.connections) + handshakes.total() + 1
        return address, is_within_limits(self._app.limits, of_address, in_all)

    async def on_tick(self, counter: int) -> bool:
        if counter % LOOK_TICKS == 0:
            now_s = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.cut_if_unread(now_s)
                    connection.end_if_expired(time.time())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.close()
        await super().shutdown(sockets)


def make_server_config(
    app: ServedApplication,
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    access_log: bool = False,
    loop: str = "uvloop",
    asks_certificates: bool = False,
) -> uvicorn.Config:
    """The configuration to serve ``app``; its ``limits`` apply.

    With ``asks_certificates`` the server's TLS requires a certificate, and each request gets the name in it.

    Proxies' headers are not trusted, logging stays as the program has configured it, and there is no lifespan: the
    caller starts and stops the controller around the server.
    """
    limits = app.limits
    own = {"limits": limits, "addresses": Counter(), "idle": {}, "asks_certificates": asks_certificates}
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop=loop,
        http=type("ApiProtocol", (BoundedProtocol,), own),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive_s,
        timeout_graceful_shutdown=limits.shutdown_s,
    )
