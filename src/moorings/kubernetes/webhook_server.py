"""The server under the webhooks: uvicorn with a TLS context whose certificate is renewed while it serves.

Not ``api.server``: that one serves users, and the layers forbid the import. Every Pod of the cluster may reach the port
without authentication, in the process that reconciles. So connections are limited before anything is spent on them,
and requests in size, number and time; one address can use only a part of the connections.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from moorings.client.causes import format_cause
from moorings.core.errors import MooringsError
from moorings.kubernetes.accepting import BoundedServer, LimitedListener

if TYPE_CHECKING:
    from starlette.types import ASGIApp

PORT = 9443
CONNECTIONS_MAX = 256  # 0.3 MiB each; an API server keeps 25, and opens one for each concurrent review
HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 100  # an API server sends ten
ARRIVAL_S = 20.0  # of a whole request; the API server gives up after 30 s at most
KEEP_ALIVE_S = 120  # longer than API servers keep an idle one, so that they close it and lose no call
SHUTDOWN_S = 10


class WebhookProtocol(HttpToolsProtocol):
    """One connection; it ends if a request is late, or not as API servers send them."""

    _late: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_more()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._expect()
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        before: Any = self.cycle  # None at first, whatever uvicorn's types say
        if before is not None and not before.response_complete:
            raise ValueError("a request before the answer to the last one")  # thousands fit into one packet
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= HEADERS_MAX:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.cycle.response_complete:  # else it was refused before it arrived, and uvicorn has no timer left
            self._expect_no_more()
        super().on_message_complete()

    def _expect(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(ARRIVAL_S, self.timeout_keep_alive_handler)

    def _expect_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def make_webhook_server(app: ASGIApp, context: ssl.SSLContext) -> BoundedServer:
    """The server of ``app``, with the present certificate of ``context`` at each connection."""
    config = uvicorn.Config(
        app,
        http=WebhookProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_context_factory=lambda _config, _default: context,
    )
    return BoundedServer(config)


def listen(host: str = "", port: int = PORT) -> LimitedListener:
    """A socket for ``serve`` that limits its connections; without ``host`` on all addresses.

    Raises:
        MooringsError: ``config.invalid``: the port is taken, or the address is not this machine's.
    """
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        return LimitedListener(socket.create_server((host, port), family=family, dualstack_ipv6=both), CONNECTIONS_MAX)
    except OSError as error:
        detail = f"the webhooks cannot listen on {host or 'any address'}, port {port}: {format_cause(error)}"
        hint = "in the node's network another program may have the port: set admissionWebhooks.port"
        raise MooringsError("config.invalid", detail, hint=hint) from error
