"""The server under the application: uvicorn with httptools and uvloop, and the bounds it lacks.

uvicorn on httptools bounds neither the size of a request's head nor the time it takes to arrive, and counts
connections only to answer in plain text. The protocol class here adds those bounds in uvicorn's own hooks. A proxy in
front was refused as a condition: a controller must be safe to start with one command.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from moorings.api.application import Application
from moorings.api.limits import DEFAULT_LIMITS, Limits
from moorings.api.problems import MEDIA_TYPE, problem_body
from moorings.core.errors import MooringsError
from moorings.wire.codec import encode

PORT = 8090


class BoundedProtocol(HttpToolsProtocol):
    """One connection, whose requests' heads are bounded in size and time."""

    limits: ClassVar[Limits] = DEFAULT_LIMITS

    _in_head = False
    _body_ended = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections_max:
            transport.close()
            return
        # uvicorn waits for ever for the first byte; for later requests it uses the same timer.
        self.timeout_keep_alive_task = self.loop.call_later(self.limits.head_timeout_s, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_ended()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._body_ended = False
        super().data_received(data)
        if self._in_head:  # where another request ended in `data`, we cannot know how much of it is the head's
            self._head_unfinished(0 if self._body_ended else len(data))

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_ended()
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > self.limits.head_bytes_max:
            raise ValueError("the head is too large")  # the parser passes it on as its own error, which is answered
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._body_ended = True
        super().on_message_complete()

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
        """Answer what never became a request."""
        error = MooringsError("request.invalid", f"the HTTP request cannot be read: {msg}")
        body = problem_body(error, "")
        content = json.dumps(encode(body)).encode()
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (MEDIA_TYPE.encode(), len(content), content)
        )
        self.transport.close()


class ApiServer(uvicorn.Server):
    """uvicorn's server, which tells the application when it begins to stop: watches and waits end then, not later.

    Args:
        app: what it serves.
        config: from ``make_server_config``.
    """

    def __init__(self, app: Application, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.close()
        await super().shutdown(sockets)


def make_server_config(
    app: Application,
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    access_log: bool = False,
    loop: str = "uvloop",
) -> uvicorn.Config:
    """How ``app`` is served; its ``limits`` apply.

    Proxies' headers are not believed, logging is left as the program has set it up, and there is no lifespan: who
    starts the server starts and stops the controller around it.
    """
    limits = app.limits
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop=loop,
        http=type("ApiProtocol", (BoundedProtocol,), {"limits": limits}),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive_s,
        timeout_graceful_shutdown=limits.shutdown_s,
    )
