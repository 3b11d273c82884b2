"""Calls to a server that answers as a test says, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import httpx2
import pytest

from moorings.client.async_http import (
    BUFFER_BYTES,
    HEAD_BYTES_MAX,
    DirectHttpClient,
    HttpClient,
    HttpError,
    HttpResponse,
    HttpTimeoutError,
    ProxiedHttpClient,
    make_http_client,
)

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
async def talking(server: Server, *, make: Callable[[str], HttpClient] = DirectHttpClient) -> AsyncIterator[HttpClient]:
    """A client of a server."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1")
    port = listening.sockets[0].getsockname()[1]
    http = make(f"http://127.0.0.1:{port}")
    yield http
    await http.close()
    listening.close()


async def get(http: HttpClient, *, timeout_s: float = 5.0) -> HttpResponse:
    return await http.call("GET", "/", headers={}, timeout_s=timeout_s)


def one_connection(server: str) -> HttpClient:
    return DirectHttpClient(server, connections=1)


def by_httpx2(server: str) -> HttpClient:
    return ProxiedHttpClient(httpx2.AsyncClient(base_url=server, trust_env=False))


both = pytest.mark.parametrize("make", [DirectHttpClient, by_httpx2])


@both
@pytest.mark.parametrize("byte_by_byte", [False, True])
@pytest.mark.parametrize("answer", [OK, CHUNKED, CLOSING, CONTINUED])
async def test_an_answer_is_read_however_it_comes(
    answer: bytes, byte_by_byte: bool, make: Callable[[str], HttpClient]
) -> None:
    server = Server([answer, answer], byte_by_byte=byte_by_byte)
    async with talking(server, make=make) as http:
        for _ in range(2):
            found = await http.call("POST", "/a?b=c", headers={"X-B": "2"}, body=b"body", timeout_s=5)
            assert (found.status, found.content) == (200, b"hi")
    assert server.connections == (2 if answer is CLOSING else 1)
    assert server.asked[0].startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert b"\r\nx-b: 2\r\n" in server.asked[0].lower()
    assert server.asked[0].endswith(b"\r\n\r\nbody")


async def test_a_path_in_the_server_s_url_and_its_headers_are_of_every_call() -> None:
    server = Server([OK])

    def behind(url: str) -> HttpClient:
        return DirectHttpClient(f"{url}/clusters/c-1/", headers={"Accept": "a/b"})

    async with talking(server, make=behind) as http:
        await http.call("DELETE", "/api", headers={}, timeout_s=5)
    line, *headers = server.asked[0].decode().split("\r\n")
    assert line == "DELETE /clusters/c-1/api HTTP/1.1"
    assert [text.split(":")[0] for text in headers if text] == ["Host", "Accept"]


@pytest.mark.parametrize(("target", "headers"), [("/a\r\nX: 1", {}), ("/a b\n", {}), ("/", {"X": "1\r\nY: 2"})])
async def test_nothing_is_sent_that_could_end_a_line(target: str, headers: dict[str, str]) -> None:
    server = Server([OK])
    async with talking(server) as http:
        with pytest.raises(HttpError, match="printable ASCII"):
            await http.call("GET", target, headers=headers, timeout_s=5)
    assert server.connections == 0


async def test_an_answer_without_a_size_lasts_until_the_connection_ends() -> None:
    server = Server([UNTIL_THE_END, UNTIL_THE_END], ends=True)
    async with talking(server) as http:
        assert (await get(http)).content == b"hi"
        assert (await get(http)).content == b"hi"
    assert server.connections == 2


async def test_an_answer_without_a_body_leaves_the_connection_for_the_next() -> None:
    server = Server([NOTHING, OK])
    async with talking(server) as http:
        assert (await http.call("DELETE", "/", headers={}, timeout_s=5)).content == b""
        found = await get(http)
        assert (found.content, found.headers["x-a"]) == (b"hi", "1")
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        *(OK[:-1], OK[:20], CHUNKED[:-3], b"", b"SSH-2.0-OpenSSH\r\n"),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (HEAD_BYTES_MAX + 1) + b"\r\n\r\n",
    ],
)
async def test_an_answer_that_is_none_is_an_error_and_no_connection_for_the_next(answer: bytes) -> None:
    server = Server([answer, OK], ends=True)
    async with talking(server) as http:
        with pytest.raises(HttpError, match="the connection was lost before"):
            await get(http)
        assert (await get(http)).content == b"hi"
    assert server.connections == 2


@both
async def test_a_server_that_is_silent_is_given_up_and_its_connection_with_it(
    make: Callable[[str], HttpClient],
) -> None:
    server = Server([None, OK])
    async with talking(server, make=make) as http:
        with pytest.raises(HttpTimeoutError):
            await get(http, timeout_s=0.05)
        assert (await get(http)).content == b"hi"
    assert server.connections == 2


async def test_a_server_that_dribbles_is_given_up() -> None:
    server = Server([b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + b"x" * 9999], byte_by_byte=True)
    async with talking(server) as http:
        with pytest.raises(HttpTimeoutError):
            await get(http, timeout_s=0.05)


@both
async def test_a_server_that_falls_silent_within_a_body_is_given_up(make: Callable[[str], HttpClient]) -> None:
    async with (
        talking(Server([OK[:-1]]), make=make) as http,
        http.stream("GET", "/", headers={}, timeout_s=5, silence_s=0.05) as answer,
    ):
        with pytest.raises(HttpTimeoutError):
            [_ async for _ in answer.chunks]


@both
async def test_a_stream_that_does_not_begin_is_given_up(make: Callable[[str], HttpClient]) -> None:
    async with talking(Server([None]), make=make) as http:
        with pytest.raises(HttpTimeoutError):
            async with http.stream("GET", "/", headers={}, timeout_s=0.05, silence_s=5):
                pass


@pytest.mark.parametrize("make", [DirectHttpClient, by_httpx2])
async def test_nobody_listens(make: Callable[[str], HttpClient]) -> None:
    with pytest.raises(HttpError, match=r"(?i)connect|refused"):
        await get(make("http://127.0.0.1:1"))


async def test_no_more_connections_than_allowed() -> None:
    server = Server([None, OK])
    async with talking(server, make=one_connection) as http:
        first = asyncio.create_task(get(http))
        await server.was_asked.wait()
        with pytest.raises(HttpTimeoutError):
            await get(http, timeout_s=0.05)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await get(http)).content == b"hi", "who gave up has given its connection back"


async def test_an_idle_connection_that_the_server_has_ended_is_not_used() -> None:
    server = Server([OK, OK], ends=True)
    async with talking(server) as http:
        assert (await get(http)).content == b"hi"
        await asyncio.sleep(0.05)
        assert (await get(http)).content == b"hi"
    assert server.connections == 2


async def test_an_idle_connection_is_kept_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("moorings.client.async_http.time.monotonic", lambda: now[0])
    server = Server([OK, OK, OK])
    async with talking(server) as http:
        for now[0] in (0.0, 59.0, 120.0):
            assert (await get(http)).content == b"hi"
    assert server.connections == 2


@pytest.mark.parametrize("surplus", [OK.replace(b"200 OK", b"500 No"), b"x"])
@pytest.mark.parametrize("late", [False, True])
async def test_what_comes_unasked_is_no_answer_to_the_next_call(surplus: bytes, late: bool) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(OK if late or len(writers) > 1 else OK + surplus)

    async with await asyncio.start_server(serve, "127.0.0.1") as listening:
        http = DirectHttpClient(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        found = await http.call("GET", "/", headers={}, timeout_s=5)
        assert (found.status, found.content, found.headers["x-a"]) == (200, b"hi", "1")
        if late:
            writers[0].write(surplus)
            await asyncio.sleep(0.1)
        assert (await http.call("GET", "/", headers={}, timeout_s=5)).status == 200
        await http.close()
    assert len(writers) == 2


async def test_a_stream_that_is_left_early_ends_its_connection() -> None:
    server = Server([CHUNKED[:-5], OK])
    async with talking(server) as http:
        async with http.stream("GET", "/", headers={}, timeout_s=5, silence_s=5) as answer:
            async for chunk in answer.chunks:
                assert chunk.startswith(b"h")
                break
        assert (await get(http)).content == b"hi"
    assert server.connections == 2


async def test_a_body_that_nobody_reads_is_not_taken_into_memory() -> None:
    size = 256 * BUFFER_BYTES  # the kernel alone holds 10 MB on the way
    server = Server([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size])
    async with (
        talking(server) as http,
        http.stream("GET", "/", headers={}, timeout_s=5, silence_s=5) as answer,
    ):
        before = -1
        while server.sent != before:
            before = server.sent
            await asyncio.sleep(0.2)
        assert server.sent < size // 2
        assert sum([len(chunk) async for chunk in answer.chunks]) == size


async def test_a_whole_body_may_be_longer_than_what_is_held_back() -> None:
    size = 8 * BUFFER_BYTES
    async with talking(Server([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size])) as http:
        assert len((await get(http, timeout_s=30)).content) == size


def test_behind_a_proxy_httpx2_s_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> HttpClient:
        return make_http_client("https://api:6443", tls=None, connections=1, kept_s=1.0, headers={})

    assert isinstance(make(), DirectHttpClient)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert isinstance(make(), ProxiedHttpClient)
