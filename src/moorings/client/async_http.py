"""HTTP/1.1 to one server, on httptools: for programs with hundreds of requests a second (ADR 0007).

A failed request is not repeated, and redirects are not followed. If the environment names a proxy, ``make_http_client``
uses httpx2 to go through it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

import httptools
import httpx2

from moorings.client.error_text import format_cause

HEAD_BYTES_MAX = 1 << 16
BUFFER_BYTES = 1 << 18  # of unread body data; then the peer has to wait


class HttpError(Exception):
    """There is no complete response: the server was not reached, or the connection was lost."""


class HttpTimeoutError(HttpError):
    """There was no response in time."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response.

    Attributes:
        status: of HTTP.
        raw_headers: as received.
        content: the body.
    """

    status: int
    raw_headers: Sequence[tuple[bytes, bytes]]
    content: bytes

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, their names in lower case."""
        return _parse_headers(self.raw_headers)


@dataclass(frozen=True, slots=True)
class HttpStream:
    """A response whose body is still to come.

    Attributes:
        status: of HTTP.
        headers: their names in lower case.
        chunks: the body as it comes; raises ``HttpError``.
    """

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class HttpClient(Protocol):
    """Requests to one server."""

    async def call(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes = b"", timeout_s: float
    ) -> HttpResponse:
        """The complete response.

        Args:
            method: of HTTP.
            target: path and query, percent-encoded; a path in the server's URL stands before it.
            headers: in addition to those of every request.
            body: of the request.
            timeout_s: for all of it, in seconds.

        Raises:
            HttpError: there is none.
        """

    def stream(
        self, method: str, target: str, *, headers: Mapping[str, str], timeout_s: float, silence_s: float
    ) -> AbstractAsyncContextManager[HttpStream]:
        """A response whose body is read as it comes; if the block is left early, the connection is closed.

        Args:
            method: of HTTP.
            target: as in ``call``.
            headers: in addition to those of every request.
            timeout_s: until the body begins, in seconds.
            silence_s: the longest time between two parts of the body, in seconds.

        Raises:
            HttpError: there is none.
        """

    async def close(self) -> None:
        """Close the idle connections."""


def make_http_client(
    server: str, *, tls: ssl.SSLContext | None, connections: int, kept_s: float, headers: Mapping[str, str]
) -> HttpClient:
    """A client through the proxy in the environment, if any; arguments as for ``DirectHttpClient``."""
    if not getproxies():
        return DirectHttpClient(server, tls=tls, connections=connections, keep_alive_s=kept_s, headers=headers)
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=kept_s)
    return ProxiedHttpClient(
        httpx2.AsyncClient(verify=True if tls is None else tls, base_url=server, headers=dict(headers), limits=limits)
    )


class DirectHttpClient:
    """An ``HttpClient`` that keeps connections for later requests.

    Args:
        server: its URL.
        tls: for https.
        connections: the most at once; a request waits for one.
        keep_alive_s: how long an idle connection is kept, in seconds.
        headers: of every request.
    """

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | None = None,
        connections: int = 100,
        keep_alive_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        url = urlsplit(server)
        self._host = url.hostname or ""
        self._secure = url.scheme == "https"
        self._port = url.port or (443 if self._secure else 80)
        self._before = url.path.rstrip("/")
        self._tls = tls
        self._kept_s = keep_alive_s
        self._common = _lines({"Host": url.netloc.rpartition("@")[2], **(headers or {})})
        self._free = asyncio.Semaphore(connections)
        self._idle: deque[_HttpConnection] = deque()  # the newest last

    async def call(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes = b"", timeout_s: float
    ) -> HttpResponse:
        request = self._request(method, target, headers, body)
        try:
            async with asyncio.timeout(timeout_s), self._connected() as connection:
                await connection.send_request(request)
                parts: list[bytes] = []
                while part := await connection.read_chunk():
                    parts.append(part)
                return HttpResponse(connection.status, connection.headers, b"".join(parts))
        except TimeoutError as error:
            raise HttpTimeoutError("there was no answer in time") from error

    @asynccontextmanager
    async def stream(
        self, method: str, target: str, *, headers: Mapping[str, str], timeout_s: float, silence_s: float
    ) -> AsyncIterator[HttpStream]:
        request = self._request(method, target, headers, b"")
        try:
            async with asyncio.timeout(timeout_s) as limit, self._connected() as connection:
                await connection.send_request(request)
                limit.reschedule(None)
                yield HttpStream(connection.status, _parse_headers(connection.headers), connection.chunks(silence_s))
        except TimeoutError as error:
            raise HttpTimeoutError("there was no answer in time") from error

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
        line = f"{method} {self._before}{target} HTTP/1.1"
        if not (line.isascii() and line.isprintable()):
            raise HttpError("a request line is of printable ASCII")
        size = b"Content-Length: %d\r\n" % len(body) if body or method not in ("GET", "DELETE") else b""
        return b"".join((line.encode(), b"\r\n", self._common, _lines(headers), size, b"\r\n", body))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[_HttpConnection]:
        """A connection for one request."""
        await self._free.acquire()
        connection = None
        try:
            connection = self._take() or await self._connect()
            yield connection
        finally:
            self._free.release()
            if connection is not None and connection.is_reusable:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            elif connection is not None:
                connection.abort()

    def _take(self) -> _HttpConnection | None:
        """The newest idle connection; closed ones are dropped."""
        while self._idle and (self._idle[0].is_closed or time.monotonic() - self._idle[0].idle_since > self._kept_s):
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
        return None

    async def _connect(self) -> _HttpConnection:
        tls = (self._tls or ssl.create_default_context()) if self._secure else None
        name = self._host if self._secure else None
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                _HttpConnection, self._host, self._port, ssl=tls, server_hostname=name
            )
        except OSError as error:  # also TLS errors
            raise HttpError(format_cause(error)) from error
        return made


def _lines(headers: Mapping[str, str]) -> bytes:
    if not all(text.isascii() and text.isprintable() for header in headers.items() for text in header):
        raise HttpError("a header is of printable ASCII")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()


def _parse_headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


class _HttpConnection(asyncio.Protocol):
    """One connection; its responses come one after the other."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.is_closed = False
        self._transport: asyncio.Transport | None = None
        self._lost: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._begin()

    def _begin(self) -> None:
        """Prepare for the next response."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._has_head = False
        self._is_whole = False
        self._is_kept = False
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False

    # -- the call ------------------------------------------------------------------------------------------------------

    async def send_request(self, request: bytes) -> None:
        """Send a request, and wait for the response's status and headers."""
        assert self._transport is not None
        self._begin()
        self._transport.write(request)
        while not self._has_head:
            await self._more()

    async def read_chunk(self) -> bytes:
        """The next bytes of the body; empty: the end."""
        while not self._chunks and not self._is_whole:
            await self._more()
        found = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and self._transport is not None and not self.is_closed:
            self._paused = False
            self._transport.resume_reading()
        return found

    async def chunks(self, silence_s: float) -> AsyncIterator[bytes]:
        """The body as it comes."""
        try:
            while True:
                async with asyncio.timeout(silence_s):
                    found = await self.read_chunk()
                if not found:
                    return
                yield found
        except TimeoutError as error:
            raise HttpTimeoutError(f"nothing came for {silence_s:g} s") from error

    async def _more(self) -> None:
        """Wait for more of the response."""
        if self.is_closed:
            raise HttpError("the connection was lost before the whole answer had come") from self._lost
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    @property
    def is_reusable(self) -> bool:
        """Whether the response is complete, and the connection takes another request."""
        return self._is_whole and self._is_kept and not self.is_closed

    def abort(self) -> None:
        """Close it at once."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without the base class

    def data_received(self, data: bytes) -> None:
        if self._is_whole:  # unsolicited
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost = error
            self.abort()
        self._wake()

    def eof_received(self) -> None:
        sized = _parse_headers(self.headers).keys() & {"content-length", "transfer-encoding"}
        self._is_whole |= self._has_head and not sized

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._lost = self._lost or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the parser's --------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise ValueError("an unsolicited answer")

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
            self._is_kept = self._parser.should_keep_alive()  # later the parser no longer knows
        else:  # 100 Continue and the like: the response is still to come
            self.headers = []


class ProxiedHttpClient:
    """An ``HttpClient`` by httpx2, which supports proxies."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def call(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes = b"", timeout_s: float
    ) -> HttpResponse:
        with _map_errors():
            async with asyncio.timeout(timeout_s):
                answer = await self._client.request(
                    method, target, headers=dict(headers), content=body or None, timeout=timeout_s
                )
        return HttpResponse(answer.status_code, answer.headers.raw, answer.content)

    @asynccontextmanager
    async def stream(
        self, method: str, target: str, *, headers: Mapping[str, str], timeout_s: float, silence_s: float
    ) -> AsyncIterator[HttpStream]:
        timeout = httpx2.Timeout(timeout_s, read=silence_s)
        with _map_errors():
            async with self._client.stream(method, target, headers=dict(headers), timeout=timeout) as answer:
                yield HttpStream(answer.status_code, answer.headers, _chunks(answer))

    async def close(self) -> None:
        await self._client.aclose()


async def _chunks(answer: httpx2.Response) -> AsyncIterator[bytes]:
    with _map_errors():
        async for chunk in answer.aiter_raw():
            yield chunk


@contextmanager
def _map_errors() -> Iterator[None]:
    """Map httpx2's errors to ours."""
    try:
        yield
    except (TimeoutError, httpx2.TimeoutException) as error:
        raise HttpTimeoutError("there was no answer in time") from error
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as error:
        raise HttpError(format_cause(error)) from error
