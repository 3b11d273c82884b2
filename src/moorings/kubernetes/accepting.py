"""Accepts connections and limits their number before TLS costs anything; one address gets at most half.

Protocols see a connection only after its handshake. Until then strangers could hold any number of connections: asyncio
and uvloop do not limit them, and uvloop calls no Python for a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import uvicorn

from moorings.client.causes import format_cause
from moorings.kubernetes.shares import DynamicLimit

log = logging.getLogger("moorings.kubernetes.connections")

HANDSHAKE_S = 20.0
ACCEPTS_PER_WAKEUP = 64  # accepted before the open connections have a turn
ACCEPT_RETRY_S = 1.0  # when the process has no more file descriptors


class CountedSocket(socket.socket):
    """A connection that frees its slot when it is closed or garbage collected."""

    def __init__(self, connection: socket.socket, places: DynamicLimit, host: str) -> None:
        super().__init__(fileno=connection.detach())
        self.leave = weakref.finalize(self, places.give, host)
        self.leave.atexit = False

    def close(self) -> None:
        super().close()
        self.leave()


class LimitedListener(socket.socket):
    """A listening socket with a connection limit.

    Args:
        listening: the socket.
        connections: limit for all addresses together; one address gets half of it.
    """

    def __init__(self, listening: socket.socket, connections: int) -> None:
        super().__init__(fileno=listening.detach())
        self.places = DynamicLimit(connections)


class Acceptor:
    """Accepts connections; to uvicorn it is one of its servers.

    Args:
        listening: the socket to accept from.
        context: TLS context; None: no TLS.
        new_protocol: makes the protocol of a connection.
    """

    def __init__(
        self, listening: LimitedListener, context: ssl.SSLContext | None, new_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._listening = listening
        self._context = context
        self._new_protocol = new_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting."""
        self._loop.remove_reader(self._listening.fileno())
        if self._again is not None:
            self._again.cancel()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once no handshake is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKEUP):
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more file descriptors: pending connections stay in the kernel's queue
                log.warning("connection.not_accepted", extra={"detail": format_cause(error)})
                self._loop.remove_reader(self._listening.fileno())
                self._again = self._loop.call_later(ACCEPT_RETRY_S, self._go_on)
                return
            host = address[0]
            if not self._listening.places.take(host):
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(CountedSocket(connection, self._listening.places, host)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: CountedSocket) -> None:
        limit: dict[str, Any] = {} if self._context is None else {"ssl_handshake_timeout": HANDSHAKE_S}
        with contextlib.suppress(OSError, asyncio.CancelledError):  # ssl.SSLError and timeouts are OSErrors
            await self._loop.connect_accepted_socket(self._new_protocol, connection, ssl=self._context, **limit)
            return
        connection.leave()  # the loop closes it

    def _go_on(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._accept)


class BoundedServer(uvicorn.Server):
    """A server that limits the connections of each ``LimitedListener`` and leaves signals to the program around it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        bounded = [one for one in sockets or () if isinstance(one, LimitedListener)]
        others = None if sockets is None else [one for one in sockets if not isinstance(one, LimitedListener)]
        await super().startup(others)
        config, state = self.config, self.lifespan.state

        def new_protocol() -> asyncio.Protocol:
            made: Callable[..., asyncio.Protocol] = cast("Any", config.http_protocol_class)
            return made(config=config, server_state=self.server_state, app_state=state)

        acceptors: Sequence[Any] = [Acceptor(one, config.ssl, new_protocol) for one in bounded]
        self.servers.extend(acceptors)
