"""The server under our applications: uvicorn with httptools, and the bounds it lacks.

uvicorn bounds neither the size of a request's head nor the time it takes to arrive, nor how many requests are sent
ahead, waits for ever for a client to read, and counts connections only to answer in plain text. ``BoundedProtocol``
adds those bounds in uvicorn's own hooks. No protocol sees a connection before its TLS handshake, and asyncio and uvloop
do not limit how many there are: the server accepts connections itself, and counts them at once.

Rejected: requiring a proxy in front. A program must be safe to start with one command.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.net.limits import ConnectionLimit
from moorings.net.problems import build_bad_request
from moorings.net.tls import HANDSHAKE_FAILURE, format_tls_cause
from moorings.privileged.peers import peer_uid

if TYPE_CHECKING:
    from starlette.types import ASGIApp

READ_BYTES_MIN = 16 * 1024  # a client that reads less than this within ``unread_s`` counts as not reading
CHECK_TICKS = 10  # uvicorn's ticks, ten a second, between two checks of all connections
ACCEPTS_PER_WAKEUP = 64  # accepted before the open connections have a turn
ACCEPT_RETRY_S = 0.2  # when the process has no more file descriptors
TLS_SHUTDOWN_S = 5.0  # for a client to close its side
LOG_INTERVAL_S = 1.0  # failed handshakes are logged, but cannot fill the disk
BACKLOG = 512
UNBOUNDED = float("inf")


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The bounds of a server's connections; times in seconds.

    Attributes:
        head_bytes_max: largest request line and headers together.
        arrival_s: how long a request may take to arrive, from its first byte; on a new connection, from its opening.
        keep_alive_s: how long an idle connection is kept.
        shutdown_s: how long responses in progress may take once the server stops.
        body_s: None: ``arrival_s`` includes the body. Else it is for the head alone, and the application bounds the
            body; the rest of a body that it refuses may take this long.
        pipelined_max: requests that a connection may send ahead of their responses.
        headers_max: headers of a request.
        write_s: from the end of a request until its response is sent.
        unread_s: how long a client that does not read keeps its connection.
        handshake_s: how long a TLS handshake may take.
    """

    head_bytes_max: int
    arrival_s: float
    keep_alive_s: int
    shutdown_s: int
    body_s: float | None = None
    pipelined_max: int = 0
    headers_max: float = UNBOUNDED
    write_s: float = UNBOUNDED
    unread_s: float = UNBOUNDED
    handshake_s: float = 20.0


class ClientConnection:
    """A connection from its arrival to its end, as its limit counts it.

    Attributes:
        person: the uid of the process behind a Unix socket, as the kernel says it; None: it is no Unix socket.
    """

    def __init__(self, sock: socket.socket, address: str, person: int | None = None) -> None:
        self.socket = sock
        self.address = address
        self.person = person
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None  # after the handshake

    def abort(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.task is not None:
            self.task.cancel()


class BoundedProtocol(HttpToolsProtocol):
    """One connection, which ends if its client exceeds a bound. Its server sets the three attributes."""

    bounds: HttpBounds
    limit: ConnectionLimit[ClientConnection]
    connection: ClientConnection

    _running: RequestResponseCycle | None = None
    _timer: asyncio.TimerHandle | None = None
    _has_data = False
    _in_head = False
    _in_message = False
    _body_ended = False
    _head_bytes = 0
    _asked_s: float | None = None
    _unsent_bytes = 0
    _unsent_since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self.connection.transport = transport
        if self.limit.mark_idle(self.connection):
            self._start_timer(self.bounds.arrival_s)
        else:
            transport.abort()  # another one has replaced it meanwhile

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn notifies the last request; the one in progress may be an earlier one, and would keep waiting, and
        # write its response to a closed connection.
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self._stop_timer()
        self.limit.release(self.connection)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered or waits for that."""
        return not self.pipeline and (self._running is None or self._running.response_complete)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override] # wider
        self._running = cycle
        self.limit.mark_busy(self.connection)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type] # ASGI, as uvicorn types it

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_idle:
            self.limit.mark_idle(self.connection)
        if not self.transport.get_write_buffer_size():
            self._asked_s = None if self.is_idle else self.loop.time()

    def data_received(self, data: bytes) -> None:
        self._has_data = True
        self._body_ended = False
        super().data_received(data)
        if self._in_head:  # if another request ended in `data`, the head's part of it is unknown
            self._head_unfinished(0 if self._body_ended else len(data))
        elif self.is_idle:
            self._between_responses(len(data))

    def _between_responses(self, count: int) -> None:
        """Start a timer for unexpected data: uvicorn has cancelled its own, and would keep the connection for ever."""
        if self._in_message:  # the rest of a refused body
            if self._timer is None:
                self._start_timer(self.bounds.body_s or self.bounds.arrival_s)
        elif self._body_ended:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.bounds.keep_alive_s, self.timeout_keep_alive_handler
            )
        else:  # empty lines, which may precede a head
            self._head_unfinished(count)

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._head_bytes = 0
        if self.bounds.body_s is not None:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer(self.bounds.arrival_s)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.bounds.body_s is not None:
            self._stop_timer()
        # The parser raises a ValueError as its own error, and a response follows.
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > self.bounds.head_bytes_max:
            raise ValueError("the head is too large")
        if len(self.headers) > self.bounds.headers_max:
            raise ValueError("too many headers")
        if not self.is_idle and len(self.pipeline) >= self.bounds.pipelined_max:
            raise ValueError("too many requests ahead of their answers")  # 256 KB can hold fourteen thousand
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._body_ended = True
        self._in_message = False
        self._stop_timer()
        if self._asked_s is None:
            self._asked_s = self.loop.time()
        super().on_message_complete()

    def resume_writing(self) -> None:
        self._unsent_bytes = 0  # the client has read tens of kilobytes
        super().resume_writing()

    def check(self, now_s: float) -> None:
        """Abort the connection if its response takes too long, or its client does not read; called every second.

        Closing would not do: that waits until everything is sent. Without this, clients that never read would keep
        their responses, slots and connections for ever, until none are left for others.
        """
        unsent_bytes = self.transport.get_write_buffer_size()
        if not unsent_bytes or not self._unsent_bytes or self._unsent_bytes - unsent_bytes >= READ_BYTES_MIN:
            self._unsent_bytes, self._unsent_since_s = unsent_bytes, now_s
        elif now_s - self._unsent_since_s >= self.bounds.unread_s:
            self.transport.abort()
        if self.is_idle and not unsent_bytes:
            self._asked_s = None
        elif self._asked_s is not None and now_s - self._asked_s >= self.bounds.write_s:
            self.transport.abort()

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_unfinished(self, more_bytes: int) -> None:
        self._head_bytes += more_bytes
        if self._head_bytes > self.bounds.head_bytes_max:
            self._refuse(f"its head is larger than {self.bounds.head_bytes_max} bytes")
        elif self._timer is None and not self.transport.is_closing():
            self._start_timer(self.bounds.arrival_s)

    def _late(self) -> None:
        self._timer = None
        in_body = self._in_message and not self._in_head
        if not self._has_data or (in_body and self.is_idle):
            self.transport.close()
        elif self._running is not None and self._running.response_started and not self._running.response_complete:
            self.transport.abort()
        else:
            self._refuse(f"{'it' if in_body else 'its head'} did not arrive within {self.bounds.arrival_s:g} s")

    def _refuse(self, why: str) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.send_400_response(why)

    def send_400_response(self, msg: str) -> None:
        """Answer data that did not become a request."""
        self.transport.write(build_bad_request(f"the HTTP request cannot be read: {msg}"))
        self.transport.close()


class BoundedServer(uvicorn.Server):
    """A server that limits its connections, and leaves signals to the program around it.

    Args:
        app: the ASGI application.
        bounds: of each connection.
        limit: of all connections.
        log: for connections that fail.
        tls: TLS context; None: no TLS.
        protocol: the protocol of connections.
        network: returns under what an address is counted.
        closing: called when the server begins to stop, to end responses that would continue.
    """

    def __init__(
        self,
        app: ASGIApp,
        bounds: HttpBounds,
        limit: ConnectionLimit[ClientConnection],
        log: logging.Logger,
        *,
        tls: ssl.SSLContext | None = None,
        protocol: type[BoundedProtocol] = BoundedProtocol,
        network: Callable[[str], str] = str,
        closing: Callable[[], None] = lambda: None,
    ) -> None:
        # Proxies' headers are not trusted, logging stays as the program has configured it.
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=bounds.keep_alive_s,
                timeout_graceful_shutdown=bounds.shutdown_s,
            )
        )
        self.bounds = bounds
        self.limit = limit
        self.log = log
        self.tls = tls
        self.network = network
        self._protocol = protocol
        self._closing = closing

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None, "the caller listens"
        await super().startup([])
        acceptors: list[Any] = [Acceptor(listening, self) for listening in sockets]
        self.servers.extend(acceptors)

    def make_protocol(self, connection: ClientConnection) -> BoundedProtocol:
        """The protocol of a connection."""
        made = self._protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        made.bounds, made.limit, made.connection = self.bounds, self.limit, connection
        return made

    async def on_tick(self, counter: int) -> bool:
        if counter % CHECK_TICKS == 0:
            now_s = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.check(now_s)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing()
        await super().shutdown(sockets)


class Acceptor:
    """Accepts a server's connections within its limit, and hands them over after their handshake.

    For uvicorn it is one of its servers.
    """

    def __init__(self, listening: socket.socket, server: BoundedServer) -> None:
        self._listening = listening
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._quiet_until_s = 0.0
        self._unlogged = 0
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting, and end the handshakes in progress."""
        self._loop.remove_reader(self._listening.fileno())
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once no handshake is in progress."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKEUP):
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more file descriptors: new connections wait in the kernel's queue
                self._server.log.warning("connection.not_accepted", extra={"detail": format_cause(error)})
                self._loop.remove_reader(self._listening.fileno())
                self._retry = self._loop.call_later(
                    ACCEPT_RETRY_S, self._loop.add_reader, self._listening.fileno(), self._accept
                )
                return
            person = peer_uid(sock) if sock.family == socket.AF_UNIX else None
            client = f"uid {person}" if person is not None else self._server.network(address[0])
            connection = ClientConnection(sock, client, person)
            gone = self._server.limit.acquire(connection.address, connection)
            if gone is connection:
                sock.close()
                continue
            if gone is not None:
                gone.abort()
            sock.setblocking(False)
            connection.task = self._loop.create_task(self._serve(connection), name="handshake")
            self._tasks.add(connection.task)
            connection.task.add_done_callback(partial(self._served, connection))

    async def _serve(self, connection: ClientConnection) -> None:
        failures: list[ssl.SSLError] = []
        HANDSHAKE_FAILURE.set(failures)
        limits: dict[str, Any] = {}
        tls = self._server.tls if connection.person is None else None
        if tls is not None:
            limits["ssl_handshake_timeout"] = self._server.bounds.handshake_s
            limits["ssl_shutdown_timeout"] = TLS_SHUTDOWN_S
        try:
            await self._loop.connect_accepted_socket(
                partial(self._server.make_protocol, connection), connection.socket, ssl=tls, **limits
            )
        except OSError as error:  # ssl.SSLError and timeouts are OSErrors
            self._log_failure(connection.address, failures[0] if failures else error)

    def _served(self, connection: ClientConnection, task: asyncio.Task[None]) -> None:
        """A handshake is done, failed or was cancelled, perhaps before it had begun."""
        self._tasks.discard(task)
        if connection.transport is None:
            self._server.limit.release(connection)
            connection.socket.close()

    def _log_failure(self, client: str, error: OSError) -> None:
        if isinstance(error, ConnectionError) and not isinstance(error, ConnectionAbortedError):
            return  # a check whether the port is open
        now_s = self._loop.time()
        if now_s < self._quiet_until_s:
            self._unlogged += 1
            return
        detail = getattr(error, "verify_message", "") or (
            format_tls_cause(error) if isinstance(error, ssl.SSLError) else format_cause(error)
        )
        self._server.log.info("handshake.failed", extra={"client": client, "detail": detail, "untold": self._unlogged})
        self._quiet_until_s, self._unlogged = now_s + LOG_INTERVAL_S, 0


def listen(host: str, port: int, what: str, hint: str) -> socket.socket:
    """A listening socket on one address, or on all (IPv4 and, if the machine has it, IPv6).

    Args:
        host: the address; empty: all.
        port: the port; 0: a free one.
        what: the server, for the error.
        hint: what to do if the port is not available.

    Raises:
        MooringsError: ``config.invalid``: the port is taken, or the address is not this machine's.
    """
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=both, backlog=BACKLOG)
    except OSError as error:
        detail = f"{what} cannot listen on {host or 'any address'}, port {port}: {format_cause(error)}"
        raise MooringsError("config.invalid", detail, hint=hint) from error
