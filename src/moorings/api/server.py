"""The server under the API: its limits, and the names in clients' certificates."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from moorings.api.limits import ApiLimits
from moorings.api.tls import PEER, PERSON, peer_of
from moorings.core.model.access import Peer
from moorings.net.limits import ConnectionLimit
from moorings.net.server import BoundedProtocol, BoundedServer, HttpBounds

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

log = logging.getLogger("moorings.api")

RESERVED_PART = 1 / 4  # of all connections, if the process may have only few


def client_network(client: tuple[str, int] | None) -> str:
    """The network of a connection: a machine, or the smallest network whose addresses one user may choose from."""
    return find_network(client[0]) if client else ""


@lru_cache(maxsize=4096)
def find_network(host: str) -> str:
    """The network of an address."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:  # the transport's value for a peer without an address
        return host
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return "127.0.0.0/8" if found.is_loopback else str(found)


class ApiProtocol(BoundedProtocol):
    """One connection; its requests get the name in its client's certificate, and it ends when that expires.

    Those of a Unix socket get the uid that the kernel knows of its other side.
    """

    _peer: Peer | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self._peer = peer_of(certificate)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[PEER] = self._peer  # type: ignore[typeddict-unknown-key] # ours, and no header's
        self.scope[PERSON] = self.connection.person  # type: ignore[typeddict-unknown-key]
        if self.connection.person is not None:
            self.scope["client"] = (self.connection.address, 0)

    def check(self, now_s: float) -> None:
        super().check(now_s)
        self.close_if_expired(time.time())

    def close_if_expired(self, now_s: float) -> None:
        """Close the connection, after the response in progress, if its client's certificate has expired."""
        if self._peer is not None and now_s >= self._peer.expires_at_s:
            self.shutdown()


class ServedApplication(Protocol):
    """An ASGI application with limits, and a notice of the server's stop."""

    limits: ApiLimits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def close(self) -> None: ...


class ApiServer(BoundedServer):
    """The API's server. When it begins to stop the application gets a notice: watches and waits end then, not later.

    Args:
        app: the application; its ``limits`` apply.
        tls: its TLS; None: without TLS.
    """

    def __init__(self, app: ServedApplication, tls: ssl.SSLContext | None = None) -> None:
        limits = app.limits
        bounds = HttpBounds(
            head_bytes_max=limits.head_bytes_max,
            arrival_s=limits.head_timeout_s,
            keep_alive_s=limits.keep_alive_s,
            shutdown_s=limits.shutdown_s,
            body_s=limits.body_timeout_s,
            pipelined_max=limits.pipelined_max,
            unread_s=limits.write_timeout_s,
            handshake_s=limits.head_timeout_s,
        )
        reserved = min(limits.connections_reserved, int(limits.connections_max * RESERVED_PART))
        super().__init__(
            app,
            bounds,
            ConnectionLimit(limits.connections_max, limits.connections_per_address_max, reserved),
            log,
            tls=tls,
            protocol=ApiProtocol,
            network=find_network,
            closing=app.close,
        )
