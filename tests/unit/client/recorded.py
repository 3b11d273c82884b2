"""A small real HTTP server with recorded answers: what the client and the command line are tested against.

Real sockets, so that lost connections, kept connections and half streams are the real thing.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from moorings.wire.codec import encode


@dataclass(frozen=True)
class Seen:
    """One request as it arrived; ``connection`` is the peer's port, the same for a kept connection."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def json(self) -> object:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """One recorded answer.

    Attributes:
        body: JSON data, or bytes as they are.
        chunks: a stream instead of a body.
        cut: the connection is closed before the answer (or the stream) is whole.
        cut_after: so many bytes of the body are sent, and the connection is closed.
        close: the connection is closed behind the answer, as idle servers do.
        then: called after the last chunk was sent, before the end of the stream.
    """

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Sequence[bytes] | None = None
    cut: bool = False
    cut_after: int | None = None
    close: bool = False
    then: Callable[[], object] | None = None


Answer = Reply | Callable[[Seen], Reply]


class RecordedServer:
    """The server; ``on`` records answers, ``seen`` holds what was asked."""

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.seen: list[Seen] = []
        self.connections: set[socket.socket] = set()
        self._answers: dict[tuple[str, str], list[Answer]] = {}
        self._lock = threading.Lock()
        outer = self

        class Handler(_Handler):
            server_of = outer

        self._server = _Server(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def on(self, method: str, path: str, *answers: Answer) -> None:
        """Answer these, in this order; the last one again and again."""
        with self._lock:
            self._answers[method, path] = list(answers)

    def asked(self, method: str, path: str) -> list[Seen]:
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    def answer(self, seen: Seen) -> Reply:
        with self._lock:
            self.seen.append(seen)
            recorded = self._answers.get((seen.method, seen.path))
            if recorded is None:
                return problem("path.unknown", f"nothing is recorded for {seen.method} {seen.path}", 404)
            chosen = recorded.pop(0) if len(recorded) > 1 else recorded[0]
        return chosen(seen) if callable(chosen) else chosen

    def close(self) -> None:
        """Stop as a process that ends does: with every connection."""
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_args: object) -> None:
        """A client that goes away, or does not trust us, is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: RecordedServer
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server_of.connections.add(self.connection)

    def finish(self) -> None:
        self.server_of.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_args: object) -> None:
        pass

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.command, self.path, headers, self.rfile.read(length), self.client_address[1])
        reply = self.server_of.answer(seen)
        self.close_connection = reply.cut or reply.close or reply.cut_after is not None
        with contextlib.suppress(ConnectionError):
            self._send(reply)
        if self.close_connection:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, reply: Reply) -> None:
        if reply.chunks is not None:
            self._stream(reply)
            return
        if reply.cut:
            return
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        if reply.status == 204:
            body = b""
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: reply.cut_after])

    def _stream(self, reply: Reply) -> None:
        assert reply.chunks is not None
        self.send_response(reply.status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in reply.chunks:
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            self.wfile.flush()
        if reply.then is not None:
            reply.then()
        if not reply.cut:
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the names http.server calls


def problem(code: str, detail: str, status: int, **more: object) -> Reply:
    """An error as the controller sends it."""
    body = {"title": "", "status": status, "code": code, "detail": detail, "requestId": "req-1", **more}
    return Reply(body, status, {"Content-Type": "application/problem+json"})


def body(item: object) -> Reply:
    """An object as the controller sends it."""
    return Reply(encode(item))


def listing(kind: str, items: Sequence[object], after: str | None = None) -> Reply:
    """A list as the controller sends it."""
    body = {"apiVersion": "moorings/v1", "kind": f"{kind}List", "items": list(items)}
    return Reply(body if after is None else {**body, "continue": after})


def event(seq: int, name: str, **about: object) -> dict[str, object]:
    """An event as the controller sends it."""
    return {"seq": seq, "name": name, "at": "2026-01-31T12:00:00.000000Z", "data": {}, **about}


def server_event(seq: int, name: str, **about: object) -> bytes:
    """The same in a stream."""
    return f"id: {seq}\nevent: {name}\ndata: {json.dumps(event(seq, name, **about))}\n\n".encode()


@contextlib.contextmanager
def recorded(port: int = 0, context: ssl.SSLContext | None = None) -> Iterator[RecordedServer]:
    """A server for the length of a ``with``."""
    server = RecordedServer(port, context)
    try:
        yield server
    finally:
        server.close()
