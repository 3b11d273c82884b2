"""Sends requests to one controller: a persistent connection, timeouts, retries, and streams.

``http.client`` and not a library: httpx costs 50 to 140 ms of start-up, and the command line needs one connection. The
connection is kept because a TLS handshake costs more than most requests.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from moorings import __version__
from moorings.client.error_text import format_cause
from moorings.client.requests import ApiCall, ApiError, is_transient, parse_problem
from moorings.client.server_owner import check_server_user
from moorings.client.tls import make_context, read_tls_alert, tls_problem
from moorings.core.model.errors import MooringsError
from moorings.wire.operations import KEY_HEADER, NOT_A_CONTROLLER_HINT

T = TypeVar("T")

UNIX_SCHEME = "unix://"
STREAM_CHUNK_BYTES = 1 << 16
ANSWER_BYTES_MAX = 1 << 28  # far above any page; another server must not fill the memory
STREAM_SILENCE_S_MAX = 60.0  # the controller sends a heartbeat every 15 s on event streams
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a controller and the credentials for it.

    Attributes:
        server: ``http://host:port``, ``https://host:port``, or ``unix:///path`` of a Unix socket of this machine, which
            knows who asks.
        access_key: sent as bearer token; empty: none. Never shown.
        ca_file: PEM file of the authority that signed the server's certificate; empty: the system's.
        cert_file: PEM file of our own certificate, for servers that require one; empty: none.
        key_file: PEM file of its private key.
        timeout_s: for a connection, and for a response beyond the requested wait.
        server_user: the name or uid of the controller's user, if it is on this machine: over plain HTTP no other user's
            program there gets the access key, but root's. Empty: this process's own, or ``moorings``.
    """

    server: str
    access_key: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    timeout_s: float = 30.0
    server_user: str = ""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a call is retried while the controller is away (it restarts, or the network fails).

    Attributes:
        retry_for_s: from the first failure; 0: no retries.
        pause_s: before the second try; doubled each time.
        pause_s_max: the longest pause.
        on_retry: called before each pause with the error and the pause in seconds.
    """

    retry_for_s: float = 0.0
    pause_s: float = 0.2
    pause_s_max: float = 5.0
    on_retry: Callable[[MooringsError, float], None] = lambda _error, _pause_s: None


class Retries:
    """The retries of one call: ``wait`` waits before the next one, or raises at the limit."""

    def __init__(self, patience: RetryPolicy) -> None:
        self._patience = patience
        self._next_s = patience.pause_s
        self._until: float | None = None

    def wait(self, error: MooringsError) -> None:
        """Wait before the next try.

        Raises:
            MooringsError: ``error`` itself, if it is permanent or has lasted too long.
        """
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._patience.retry_for_s
        asked_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
        pause_s = max(self._next_s, asked_s)
        if not is_transient(error) or now + pause_s > self._until:
            raise error
        self._patience.on_retry(error, pause_s)
        time.sleep(pause_s)
        self._next_s = min(self._next_s * 2, self._patience.pause_s_max)


class Transport:
    """One controller, for one thread. Close it, or use it in a ``with``.

    ``connections_lost`` counts the connections that were lost or refused.

    Args:
        endpoint: the controller's address and credentials.
        patience: the retry policy.
        trace: called with method, address and status of each exchange; never with a header or a body.

    Raises (from every call):
        MooringsError: ``controller.unreachable``, retryable if that is transient; or the controller's error.
    """

    def __init__(
        self, endpoint: Endpoint, patience: RetryPolicy = RetryPolicy(), *, trace: Callable[[str], None] | None = None
    ) -> None:
        self.endpoint = endpoint
        self.patience = patience
        self.connections_lost = 0
        self.key_expires = ""  # when the access key expires, from the last response; "": never, or not known
        self.sent = 0  # requests of which at least a part may have reached the server
        self._trace = trace
        self._kept: http.client.HTTPConnection | None = None
        self._socket = socket_path(endpoint.server)
        self._address = parse_server(endpoint.server) if self._socket is None else None

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def certificate_expiry(self) -> float | None:
        """The end of the server certificate's validity, in seconds since 1970; None without TLS.

        The server has not checked our certificate by then.
        """
        with contextlib.closing(self._connect()) as connection:
            try:
                connection.connect()
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            if not isinstance(connection.sock, ssl.SSLSocket):
                return None
            certificate = connection.sock.getpeercert()
        assert certificate, "it was verified"
        return float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))

    def send(self, call: ApiCall[T]) -> T:
        """The parsed response to ``call``; retried if that does no harm and the policy allows it."""
        retries = Retries(self.patience)
        while True:
            try:
                return self._send_once(call)
            except MooringsError as error:
                if not call.is_retryable:
                    raise
                retries.wait(error)

    @contextlib.contextmanager
    def open_stream(
        self, call: ApiCall[Any], *, last_event_id: str = "", silence_s: float | None = None
    ) -> Iterator[Iterator[bytes]]:
        """The response to ``call`` as it comes, on its own connection; not retried: the reader knows where to resume.

        Args:
            call: the request.
            last_event_id: the event after which a stream resumes.
            silence_s: the longest silence; None: unlimited (the kernel's probes still notice a dead peer).
        """
        with contextlib.closing(self._connect()) as connection:
            extra = {"Last-Event-ID": last_event_id} if last_event_id else {}
            answer = self._exchange(connection, call, extra)
            if answer.status >= 400:
                raise self._refusal(answer, self._read(answer))
            if connection.sock is not None:
                connection.sock.settimeout(silence_s)
            yield self._chunks(answer)

    def _send_once(self, call: ApiCall[T]) -> T:
        kept = self._take_kept() if call.is_retryable else None
        if kept is not None:
            try:
                return self._finish(kept, call)
            except MooringsError as error:
                if not isinstance(error.__cause__, ConnectionError | ssl.SSLEOFError):  # RemoteDisconnected is one
                    raise
                # Servers close idle connections; this says nothing about a new one.
        return self._finish(self._connect(), call)

    def _finish(self, connection: http.client.HTTPConnection, call: ApiCall[T]) -> T:
        try:
            answer = self._exchange(connection, call, {})
            body = self._read(answer)
        except BaseException:
            connection.close()  # also on an interrupt: the rest of the response must not become the next one
            raise
        if answer.will_close:
            connection.close()
        else:
            self._keep(connection)
        if answer.status >= 400:
            raise self._refusal(answer, body)
        return call.parse(self._json(body))

    def _exchange(
        self, connection: http.client.HTTPConnection, call: ApiCall[T], extra: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        try:
            if connection.sock is None:
                connection.connect()
                self._check_server(connection)
            assert connection.sock is not None
            connection.sock.settimeout(self.endpoint.timeout_s + call.wait_s)
            self.sent += 1
            connection.request(call.method, call.target, body=call.body, headers={**self._headers(call), **extra})
            answer = connection.getresponse()
            self.key_expires = answer.headers.get("Moorings-Key-Expires", "")
            if self._trace is not None:
                self._trace(f"{call.method} {self.endpoint.server}{call.target}: {answer.status}")
            return answer
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(read_tls_alert(connection, error)) from error

    def _check_server(self, connection: http.client.HTTPConnection) -> None:
        """Before an access key is sent without TLS."""
        if self.endpoint.access_key and isinstance(connection, _Connection):
            try:
                check_server_user(connection.sock, self.endpoint.server, self.endpoint.server_user)
            except MooringsError:
                connection.close()
                raise

    def _headers(self, call: ApiCall[T]) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": f"moorings/{__version__}"}
        if self.endpoint.access_key and self._socket is None:
            headers["Authorization"] = f"Bearer {self.endpoint.access_key}"
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        if call.key is not None:
            headers[KEY_HEADER] = call.key
        return headers

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            body = answer.read(ANSWER_BYTES_MAX + 1)
            if len(body) <= ANSWER_BYTES_MAX and answer.length:  # with a number, ``read`` says nothing of a lost rest
                raise http.client.IncompleteRead(body, answer.length)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        if len(body) > ANSWER_BYTES_MAX:
            raise MooringsError(
                "controller.unreachable",
                f"{self.endpoint.server} sends more than {ANSWER_BYTES_MAX} bytes in one answer",
                hint=NOT_A_CONTROLLER_HINT,
            )
        return body

    def _chunks(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        while True:
            try:
                chunk = answer.read1(STREAM_CHUNK_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            if not chunk:
                return
            yield chunk

    def _json(self, body: bytes) -> object:
        if not body:
            return None
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MooringsError(
                "controller.unreachable",
                f"{self.endpoint.server} does not answer as a controller does",
                hint=NOT_A_CONTROLLER_HINT,
            ) from error

    def _refusal(self, answer: http.client.HTTPResponse, body: bytes) -> ApiError:
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return parse_problem(answer.status, headers, body, server=self.endpoint.server)

    def _connect(self) -> http.client.HTTPConnection:
        if self._socket is not None:
            return _LocalConnection(self._socket, timeout=self.endpoint.timeout_s)
        assert self._address is not None
        secure, host, port = self._address
        if not secure:
            return _Connection(host, port, timeout=self.endpoint.timeout_s)
        endpoint = self.endpoint  # the files are read for each connection: certificates may be renewed meanwhile
        context = make_context(endpoint.ca_file, endpoint.cert_file, endpoint.key_file)
        return _SecureConnection(host, port, timeout=endpoint.timeout_s, context=context)

    def _take_kept(self) -> http.client.HTTPConnection | None:
        connection, self._kept = self._kept, None
        if connection is None or connection.sock is None:
            return None
        if select.select([connection.sock], [], [], 0)[0]:  # without a request, this can only be the end
            connection.close()
            return None
        return connection

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        if self._kept is not None and self._kept is not connection:
            self._kept.close()
        self._kept = connection

    def _unreachable(self, error: Exception) -> MooringsError:
        self.connections_lost += 1
        server = self.endpoint.server
        problem = tls_problem(server, error, shown=self.endpoint.cert_file)
        if problem is not None:
            return problem
        if self._socket is not None and isinstance(error, FileNotFoundError | ConnectionRefusedError):
            hint = "is the machine's controller running? Its admin starts it with 'moor up --system'"
            return MooringsError("controller.unreachable", f"nothing listens at {server}", hint=hint, retryable=True)
        if isinstance(error, ConnectionRefusedError):
            hint = "is it running? On this machine 'moor up' starts one; else name it with --server or MOORINGS_SERVER"
            return MooringsError("controller.unreachable", f"nothing listens at {server}", hint=hint, retryable=True)
        if isinstance(error, socket.gaierror):
            detail = f"the host of {server} is not known"
            return MooringsError("controller.unreachable", detail, hint="name it with --server", retryable=True)
        if isinstance(error, TimeoutError):
            detail = f"{server} did not answer in {self.endpoint.timeout_s:g} s"
            return MooringsError("controller.unreachable", detail, hint="see --request-timeout", retryable=True)
        broken = isinstance(error, http.client.HTTPException) and not isinstance(error, ConnectionError)
        why = "its answer broke off, or is no HTTP" if broken else format_cause(error)
        detail = f"the connection to {server} was lost: {why}"
        return MooringsError("controller.unreachable", detail, retryable=True)


class _Connection(http.client.HTTPConnection):
    """A connection with keep-alive probes: the kernel notices a peer that died silently."""

    def connect(self) -> None:
        super().connect()
        _probe(self.sock)


class _LocalConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _SecureConnection(http.client.HTTPSConnection):
    """The same, with TLS."""

    def connect(self) -> None:
        super().connect()
        _probe(self.sock)


def _probe(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def socket_path(server: str) -> str | None:
    """The path in a ``unix://`` address; None: it is another one.

    Raises:
        MooringsError: ``config.invalid``.
    """
    if not server.startswith(UNIX_SCHEME):
        return None
    path = server.removeprefix(UNIX_SCHEME)
    if not path.startswith("/") or "\0" in path:
        detail = f"the server {server[:200]!r} is no path of a socket"
        raise MooringsError("config.invalid", detail, hint=f"as {UNIX_SCHEME}/run/moorings/controller/api")
    return path


def parse_server(server: str) -> tuple[bool, str, int]:
    """Whether an address is https, with its host and its port.

    Raises:
        MooringsError: ``config.invalid``.
    """
    parts = urlsplit(server)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.path not in ("", "/"):
        raise MooringsError(
            "config.invalid",
            f"the server {server[:200]!r} is not an address",
            hint="write http://HOST:8090 or https://HOST:8090",
        )
    secure = parts.scheme == "https"
    return secure, parts.hostname, port or (443 if secure else 80)
