"""HTTP/1.1 for httpx2 on httptools, for programs that make hundreds of calls a second: a third of the CPU (ADR 0007).

httpx2 keeps what is the same for all: requests, authentication, answers and the names of errors.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast
from urllib.request import getproxies

import httptools
import httpx2

from moorings.client.causes import cause_text

HEAD_BYTES_MAX = 1 << 16
BUFFER_BYTES = 1 << 18  # of a body that nobody reads yet; then the peer is made to wait


def fast_transport(
    *, tls: ssl.SSLContext | None = None, connections: int, kept_s: float
) -> httpx2.AsyncBaseTransport | None:
    """The transport, or None where the environment names a proxy: httpx2's own goes through it.

    Args:
        tls: for https.
        connections: at once; a call waits for one.
        kept_s: how long an idle connection is kept, in seconds.
    """
    return None if getproxies() else HttptoolsTransport(tls=tls, connections=connections, kept_s=kept_s)


class HttptoolsTransport(httpx2.AsyncBaseTransport):
    """Connections that are kept for the next call.

    A call that fails is not made again. Raises the errors of httpx2: ``ConnectError``, ``ReadTimeout`` and so on.

    Args:
        tls: for https.
        connections: at once; a call waits for one, by the ``pool`` time-out.
        kept_s: how long an idle connection is kept, in seconds.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, connections: int = 100, kept_s: float = 60.0) -> None:
        self._tls = tls
        self._kept_s = kept_s
        self._free = asyncio.Semaphore(connections)
        self._idle: deque[_Connection] = deque()  # the youngest last

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        timeouts: Mapping[str, float | None] = request.extensions.get("timeout", {})
        body = await request.aread()
        await self._acquire(request, timeouts.get("pool"))
        connection = None
        try:
            connection = self._take(_origin(request.url)) or await self._connect(request, timeouts.get("connect"))
            connection.send(request, body)
            await connection.head(request, timeouts.get("read"))
        except BaseException:
            self.release(connection, whole=False)
            raise
        stream = _Body(self, connection, request, timeouts.get("read"))
        return httpx2.Response(connection.status, headers=connection.headers, stream=stream)

    async def aclose(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def _acquire(self, request: httpx2.Request, timeout_s: float | None) -> None:
        if not self._free.locked():  # the usual case, without a timer
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise httpx2.PoolTimeout("all connections are in use", request=request) from error

    def _take(self, origin: _Origin) -> _Connection | None:
        """An idle connection; those that are over are dropped."""
        while self._idle and (self._idle[0].is_over or time.monotonic() - self._idle[0].idle_since > self._kept_s):
            self._idle.popleft().abort()
        for connection in reversed(self._idle):
            if connection.origin == origin and not connection.is_over:
                self._idle.remove(connection)
                return connection
        return None

    async def _connect(self, request: httpx2.Request, timeout_s: float | None) -> _Connection:
        secure, host, port = origin = _origin(request.url)
        tls = (self._tls or ssl.create_default_context()) if secure else None
        try:
            async with asyncio.timeout(timeout_s):
                made = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(origin), host, port, ssl=tls, server_hostname=host if secure else None
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(f"{host}:{port} does not answer", request=request) from error
        except OSError as error:  # TLS's too
            raise httpx2.ConnectError(cause_text(error), request=request) from error
        return made[1]

    def release(self, connection: _Connection | None, *, whole: bool) -> None:
        """A call is over; ``whole``: the connection is good for another one."""
        self._free.release()
        if connection is not None and whole:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        elif connection is not None:
            connection.abort()


_Origin = tuple[bool, str, int]


def _origin(url: httpx2.URL) -> _Origin:
    secure = url.scheme == "https"
    return secure, url.host, url.port or (443 if secure else 80)


class _Connection(asyncio.Protocol):
    """One connection; its answers come one after the other."""

    def __init__(self, origin: _Origin) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_over = False
        self._transport: asyncio.Transport | None = None
        self._lost: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._begin()

    def _begin(self) -> None:
        """Another answer is awaited."""
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers = []
        self._head_bytes = 0
        self._has_head = False
        self._is_whole = False
        self._is_kept = False
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False

    # -- the call ------------------------------------------------------------------------------------------------------

    def send(self, request: httpx2.Request, body: bytes) -> None:
        assert self._transport is not None
        self._begin()
        lines = [b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%b: %b\r\n" % header for header in request.headers.raw]
        self._transport.write(b"".join([*lines, b"\r\n", body]))

    async def head(self, request: httpx2.Request, timeout_s: float | None) -> None:
        """Wait for the answer's status and headers."""
        await self._wait(lambda: self._has_head, request, timeout_s)

    async def chunk(self, request: httpx2.Request, timeout_s: float | None) -> bytes:
        """The next bytes of the body; empty: there are no more."""
        await self._wait(lambda: bool(self._chunks) or self._is_whole, request, timeout_s)
        if not self._chunks:
            return b""
        found = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and self._transport is not None and not self.is_over:
            self._paused = False
            self._transport.resume_reading()
        return found

    async def _wait(self, ready: Callable[[], bool], request: httpx2.Request, timeout_s: float | None) -> None:
        if ready():
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not ready():
                    if self.is_over:
                        raise httpx2.RemoteProtocolError(
                            "the connection was lost before the whole answer had come", request=request
                        ) from self._lost
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
        except TimeoutError as error:
            raise httpx2.ReadTimeout("no answer in time", request=request) from error
        finally:
            self._waiter = None

    @property
    def may_be_kept(self) -> bool:
        """Whether the answer has come whole, and the peer takes another request."""
        return self._is_whole and self._is_kept and not self.is_over

    def abort(self) -> None:
        self.is_over = True
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without the name

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost = error
            self.abort()
        self._wake()

    def eof_received(self) -> None:
        sized = any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        self._is_whole |= self._has_head and not sized

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        self._lost = self._lost or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the parser's --------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise ValueError(f"headers of more than {HEAD_BYTES_MAX} bytes")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > BUFFER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_whole = True
            self._is_kept = self._parser.should_keep_alive()  # not to be asked later
        else:  # 100 Continue and its like: the answer is still to come
            self.headers = []


class _Body(httpx2.AsyncByteStream):
    """The body of an answer as it comes."""

    def __init__(
        self, pool: HttptoolsTransport, connection: _Connection, request: httpx2.Request, read_s: float | None
    ) -> None:
        self._pool = pool
        self._connection: _Connection | None = connection
        self._request = request
        self._read_s = read_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._connection is not None and (chunk := await self._connection.chunk(self._request, self._read_s)):
            yield chunk

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection, whole=connection.may_be_kept)
