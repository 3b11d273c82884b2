"""The server under the webhooks, and under the guard of metrics.

Every Pod of the cluster may reach the port without authentication, in the process that reconciles. So connections are
limited before anything is spent on them, and requests in size, number and time; one address can use only a part of the
connections. No connection replaces another one: those of an API server are idle most of the time. Addresses are
counted as they are: all Pods of a node may be in one IPv6 /64.
"""

from __future__ import annotations

import logging
import socket
import ssl
from typing import TYPE_CHECKING

from moorings.net import server
from moorings.net.limits import ConnectionLimit
from moorings.net.server import BoundedServer, HttpBounds

if TYPE_CHECKING:
    from starlette.types import ASGIApp

log = logging.getLogger("moorings.kubernetes.connections")

PORT = 9443
CONNECTIONS_MAX = 256  # 0.3 MiB each; an API server keeps 25, and opens one for each concurrent review
HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 100  # an API server sends ten
ARRIVAL_S = 20.0  # of a whole request; the API server gives up after 30 s at most
KEEP_ALIVE_S = 120  # longer than API servers keep an idle one, so that they close it and lose no call
SHUTDOWN_S = 10


def make_webhook_server(app: ASGIApp, context: ssl.SSLContext | None) -> BoundedServer:
    """The server of ``app``, with the present certificate of ``context`` at each connection; None: without TLS.

    It takes no request ahead of the response to the last one: API servers send none.
    """
    bounds = HttpBounds(
        head_bytes_max=HEAD_BYTES_MAX,
        headers_max=HEADERS_MAX,
        arrival_s=ARRIVAL_S,
        unread_s=ARRIVAL_S,
        keep_alive_s=KEEP_ALIVE_S,
        shutdown_s=SHUTDOWN_S,
    )
    return BoundedServer(app, bounds, ConnectionLimit(CONNECTIONS_MAX, evicts=False), log, tls=context)


def listen(
    host: str = "",
    port: int = PORT,
    what: str = "the webhooks",
    setting: str = "admissionWebhooks.port",
) -> socket.socket:
    """A listening socket; without ``host`` on all addresses.

    Args:
        host: the address.
        port: the port.
        what: the server, and
        setting: its value of the chart, for the error.

    Raises:
        MooringsError: ``config.invalid``: the port is taken, or the address is not this machine's.
    """
    hint = f"in the node's network another program may have the port: set {setting}"
    return server.listen(host, port, what, hint)
