"""The server under the routes, with the three timeouts of Table 6.1, and limits on connections and heads.

With TLS there are two servers: one for HTTPS, and one without TLS that serves no token.

``read``: from the first byte of a request (on a new connection: from its opening) to the end of its body. ``write``:
from there until the response is sent. ``idle``: between two requests. A timeout closes the connection. No connection
replaces another one, and addresses are counted as they are, as in ``webhook_server``.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moorings.net import server
from moorings.net.limits import ConnectionLimit
from moorings.net.server import BoundedServer, HttpBounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp

log = logging.getLogger("moorings.kubernetes.connections")

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


class ProxyServer(BoundedServer):
    """The server.

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
        bounds = HttpBounds(
            head_bytes_max=HEAD_BYTES_MAX,
            arrival_s=times.read_s,
            write_s=times.write_s,
            keep_alive_s=max(1, round(times.idle_s)),
            shutdown_s=SHUTDOWN_S,
            pipelined_max=PIPELINED_MAX,
        )
        limit: ConnectionLimit[server.ClientConnection] = ConnectionLimit(times.connections_max, evicts=False)
        super().__init__(app, bounds, limit, log, tls=context, closing=closing)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on one address, or on all (IPv4 and, if the machine has it, IPv6).

    Raises:
        MooringsError: ``config.invalid``.
    """
    return server.listen(host, port, "the proxy", "see --port")


def set_on_termination(stopping: asyncio.Event) -> None:
    """Set ``stopping`` on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
