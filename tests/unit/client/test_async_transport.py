"""httpx2 on our transport, against a server that answers as it is told, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import httpx2
import pytest

from moorings.client.async_transport import BUFFER_BYTES, HEAD_BYTES_MAX, HttptoolsTransport, fast_transport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
UNTIL_THE_END = b"HTTP/1.1 200 OK\r\n\r\nhi"
NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + OK


class Server:
    """Answers each request with the next of ``answers``; None: it stays silent."""

    def __init__(self, answers: Sequence[bytes | None], *, byte_by_byte: bool = False, ends: bool = False) -> None:
        self.answers = list(answers)
        self.asked: list[bytes] = []
        self.was_asked = asyncio.Event()
        self.connections = 0
        self.sent = 0
        self._byte_by_byte = byte_by_byte
        self._ends = ends

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(sizes[0].split(b":")[1])) if sizes else b""
                self.asked.append(head + body)
                self.was_asked.set()
                answer = self.answers.pop(0)
                if answer is None:
                    await asyncio.sleep(60)
                    return
                step = 1 if self._byte_by_byte else 1 << 16
                for at in range(0, len(answer), step):
                    writer.write(answer[at : at + step])
                    await writer.drain()
                    self.sent += step
                    await asyncio.sleep(0)
                if self._ends:
                    return


@asynccontextmanager
async def talking(
    server: Server, *, timeout_s: float = 5.0, connections: int = 10
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1")
    port = listening.sockets[0].getsockname()[1]
    transport = HttptoolsTransport(connections=connections)
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{port}", timeout=timeout_s) as http:
        yield http
    listening.close()


@pytest.mark.parametrize("byte_by_byte", [False, True])
@pytest.mark.parametrize("answer", [OK, CHUNKED, CLOSING, CONTINUED])
async def test_an_answer_is_read_however_it_comes(answer: bytes, byte_by_byte: bool) -> None:
    server = Server([answer, answer], byte_by_byte=byte_by_byte)
    async with talking(server) as http:
        for _ in range(2):
            found = await http.post("/a?b=c", content=b"body")
            assert (found.status_code, found.content) == (200, b"hi")
    assert server.connections == (2 if answer is CLOSING else 1)
    assert server.asked[0].startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert server.asked[0].endswith(b"\r\n\r\nbody")


async def test_an_answer_without_a_size_lasts_until_the_connection_ends() -> None:
    server = Server([UNTIL_THE_END, UNTIL_THE_END], ends=True)
    async with talking(server) as http:
        assert (await http.get("/")).content == b"hi"
        assert (await http.get("/")).content == b"hi"
    assert server.connections == 2


async def test_an_answer_without_a_body_leaves_the_connection_for_the_next() -> None:
    server = Server([NOTHING, OK])
    async with talking(server) as http:
        assert (await http.delete("/")).content == b""
        found = await http.get("/")
        assert (found.content, found.headers["x-a"]) == (b"hi", "1")
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (OK[:-1], httpx2.RemoteProtocolError),
        (CHUNKED[:-3], httpx2.RemoteProtocolError),
        (OK[:20], httpx2.RemoteProtocolError),
        (b"", httpx2.RemoteProtocolError),
        (b"SSH-2.0-OpenSSH\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (HEAD_BYTES_MAX + 1) + b"\r\n\r\n", httpx2.RemoteProtocolError),
    ],
)
async def test_an_answer_that_is_none_is_an_error_and_no_connection_for_the_next(
    answer: bytes, error: type[Exception]
) -> None:
    server = Server([answer, OK], ends=True)
    async with talking(server) as http:
        with pytest.raises(error):
            await http.get("/")
        assert (await http.get("/")).content == b"hi"
    assert server.connections == 2


async def test_a_server_that_is_silent_is_given_up_and_its_connection_with_it() -> None:
    server = Server([None, OK])
    async with talking(server, timeout_s=0.05) as http:
        with pytest.raises(httpx2.ReadTimeout):
            await http.get("/")
        assert (await http.get("/", timeout=5)).content == b"hi"
    assert server.connections == 2


async def test_a_server_that_falls_silent_within_a_body_is_given_up() -> None:
    server = Server([OK[:-1]])
    async with talking(server, timeout_s=0.05) as http, http.stream("GET", "/") as answer:
        with pytest.raises(httpx2.ReadTimeout):
            await answer.aread()


async def test_nobody_listens() -> None:
    async with httpx2.AsyncClient(transport=HttptoolsTransport()) as http:
        with pytest.raises(httpx2.ConnectError, match=r"(?i)connect|refused"):
            await http.get("http://127.0.0.1:1/")


async def test_no_more_connections_than_allowed() -> None:
    server = Server([None, OK])
    async with talking(server, timeout_s=5, connections=1) as http:
        first = asyncio.create_task(http.get("/"))
        await server.was_asked.wait()
        with pytest.raises(httpx2.PoolTimeout):
            await http.get("/", timeout=httpx2.Timeout(5, pool=0.05))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await http.get("/")).content == b"hi", "who gave up has given its connection back"


async def test_an_idle_connection_that_the_server_has_ended_is_not_used() -> None:
    server = Server([OK, OK], ends=True)
    async with talking(server) as http:
        assert (await http.get("/")).content == b"hi"
        await asyncio.sleep(0.05)
        assert (await http.get("/")).content == b"hi"
    assert server.connections == 2


async def test_an_idle_connection_is_kept_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("moorings.client.async_transport.time.monotonic", lambda: now[0])
    server = Server([OK, OK, OK])
    async with talking(server) as http:
        for now[0] in (0.0, 59.0, 120.0):
            assert (await http.get("/")).content == b"hi"
    assert server.connections == 2


async def test_a_stream_that_is_left_early_ends_its_connection() -> None:
    server = Server([CHUNKED[:-5], OK])
    async with talking(server) as http:
        async with http.stream("GET", "/") as answer:
            async for chunk in answer.aiter_raw():
                assert chunk.startswith(b"h")
                break
        assert (await http.get("/")).content == b"hi"
    assert server.connections == 2


async def test_a_body_that_nobody_reads_is_not_taken_into_memory() -> None:
    size = 64 * BUFFER_BYTES
    server = Server([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size])
    async with talking(server) as http, http.stream("GET", "/") as answer:
        before = -1
        while server.sent != before:
            before = server.sent
            await asyncio.sleep(0.2)
        assert server.sent < size // 2
        assert sum([len(chunk) async for chunk in answer.aiter_raw()]) == size


def test_behind_a_proxy_httpx2_s_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    make: Callable[[], object] = lambda: fast_transport(connections=1, kept_s=1.0)  # noqa: E731
    assert isinstance(make(), HttptoolsTransport)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert make() is None
