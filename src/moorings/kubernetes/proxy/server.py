"""The server under the routes: uvicorn, with the three timeouts of Table 6.1, and limits on connections and heads.

With TLS there are two servers: one for HTTPS, and one without TLS that serves no token.

``read``: from the first byte of a request (on a new connection: from its opening) to the end of its body. ``write``:
from there until the response is sent. ``idle``: between two requests. A timeout closes the connection.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from moorings.core.errors import MooringsError
from moorings.kubernetes.accepting import BoundedServer
from moorings.kubernetes.proxy.answers import problem_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp

HEAD_BYTES_MAX = 64 << 10  # tokens of service accounts have 1 to 2 KiB
PIPELINED_MAX = 16
SHUTDOWN_S = 3


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Timeouts of a client, in seconds, and the limit of connections."""

    idle_s: float = 60.0
    read_s: float = 30.0
    write_s: float = 300.0
    connections_max: int = 2048


class ProxyProtocol(HttpToolsProtocol):
    """One connection; a timeout ends it when its client takes too long."""

    times: ClassVar[ClientTimeouts] = ClientTimeouts()

    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        if len(self.connections) > self.times.connections_max:
            transport.close()
            return
        self._reading = self.loop.call_later(self.times.read_s, self._read_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reading()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._reading is None and not self._busy:
            self._reading = self.loop.call_later(self.times.read_s, self._read_late)
        if self._in_head or not self._busy:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(f"its head is larger than {HEAD_BYTES_MAX} bytes")

    @property
    def _busy(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        if self._reading is None:
            self._reading = self.loop.call_later(self.times.read_s, self._read_late)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError("too many requests ahead of their answers")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_reading()
        super().on_message_complete()
        if self._writing is None:
            self._writing = self.loop.call_later(self.times.write_s, self._write_late)

    def on_response_complete(self) -> None:
        if not self.transport.get_write_buffer_size():
            self._stop_writing()
        super().on_response_complete()
        if self._busy and self._writing is None:  # a request that was sent ahead
            self._writing = self.loop.call_later(self.times.write_s, self._write_late)

    def _read_late(self) -> None:
        self._reading = None
        if self._busy and self.cycle.response_started:
            self.transport.abort()
        else:
            self._refuse(f"it did not arrive within {self.times.read_s:g} s")

    def _write_late(self) -> None:
        self._writing = None
        if self._busy or self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait until all is sent

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _refuse(self, why: str) -> None:
        self._stop_reading()
        if not self.transport.is_closing():
            self.send_400_response(why)

    def send_400_response(self, msg: str) -> None:
        """Respond to bytes that are no valid request."""
        error = MooringsError("request.invalid", f"the HTTP request cannot be read: {msg}")
        answer = problem_response(error, "")
        head = b"".join(name + b": " + value + b"\r\n" for name, value in answer.head(""))
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + answer.body)
        self.transport.close()


class ProxyServer(BoundedServer):
    """uvicorn's server without its handling of signals.

    Args:
        app: the ASGI application.
        times: the timeouts of a client.
        closing: called when it stops, to end responses that would continue.
        context: TLS context; None: no TLS.
    """

    def __init__(
        self,
        app: ASGIApp,
        times: ClientTimeouts,
        closing: Callable[[], None] = lambda: None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        protocol = type("ProxyProtocol", (ProxyProtocol,), {"times": times})
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
                timeout_keep_alive=max(1, round(times.idle_s)),
                timeout_graceful_shutdown=SHUTDOWN_S,
                ssl_context_factory=(lambda _config, _default: context) if context is not None else None,
            )
        )
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on one address, or on all (IPv4 and, if the machine has it, IPv6).

    Raises:
        MooringsError: ``config.invalid``.
    """
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise MooringsError(
            "config.invalid", f"the proxy cannot listen on port {port}: {error.strerror}", hint="see --port"
        ) from error


def set_on_termination(stopping: asyncio.Event) -> None:
    """Set ``stopping`` on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
