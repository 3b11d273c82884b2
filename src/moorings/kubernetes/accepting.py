"""Accepts connections, bounded before TLS costs anything; one address leaves room for the others.

Protocols see a connection when its handshake is done. Until then strangers could hold any number of them: asyncio and
uvloop bound none, and uvloop calls no Python for a new one.
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
ACCEPTS_PER_WAKEUP = 64  # taken in before those who are connected have a turn
ACCEPT_RETRY_S = 1.0  # when there are no more files


class CountedSocket(socket.socket):
    """A connection that gives its place back when it is closed, or forgotten."""

    def __init__(self, connection: socket.socket, places: DynamicLimit, host: str) -> None:
        super().__init__(fileno=connection.detach())
        self.leave = weakref.finalize(self, places.give, host)
        self.leave.atexit = False

    def close(self) -> None:
        super().close()
        self.leave()


class LimitedListener(socket.socket):
    """A listening socket whose connections are bounded.

    Args:
        listening: the socket.
        connections: how many, of all addresses; one address: half of them.
    """

    def __init__(self, listening: socket.socket, connections: int) -> None:
        super().__init__(fileno=listening.detach())
        self.places = DynamicLimit(connections)


class Acceptor:
    """Takes connections in; a server in uvicorn's eyes.

    Args:
        listening: where they come.
        context: how TLS is spoken; None: without.
        new_protocol: makes what serves a connection.
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
        """Take in no more."""
        self._loop.remove_reader(self._listening.fileno())
        if self._again is not None:
            self._again.cancel()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Returns once no handshake is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKEUP):
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more files: what waits stays in the kernel's queue
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
        with contextlib.suppress(OSError, asyncio.CancelledError):  # ssl.SSLError and time-outs are of the first
            await self._loop.connect_accepted_socket(self._new_protocol, connection, ssl=self._context, **limit)
            return
        connection.leave()  # the loop closes it

    def _go_on(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._accept)


class BoundedServer(uvicorn.Server):
    """A server that bounds the connections of each ``LimitedListener``, and leaves signals to the program around it."""

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
