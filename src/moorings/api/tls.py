"""TLS under the API: contexts that reload while they serve, the names in certificates, handshakes with bounds.

It uses Python's ``ssl`` alone, and closes its gaps:

- A context cannot forget an authority, so a renewed one is a new context behind the same object
(``ReloadableContext``).
- asyncio and uvloop close without sending the alert of a failed handshake, and the client would only see a lost
  connection (``_AlertingSSLObject``).
- They do not see a connection before its handshake is done, so strangers could hold any number (``Handshakes``).

The name in the certificate goes into the ASGI scope, where no header can reach it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from moorings.api.problems import MEDIA_TYPE, problem_body
from moorings.client.causes import format_cause
from moorings.core.access import CONTROLLER_URI, SUBJECT_URI, Peer
from moorings.core.errors import MooringsError
from moorings.wire.codec import encode

log = logging.getLogger("moorings.api")

PEER: Final = "moorings.peer"  # in the ASGI scope: the name in the client's certificate, if one is required

SLOW_S = 1.0  # a slower handshake may be dropped in favour of others
SHUTDOWN_S = 5.0  # for a client to close its side
ACCEPT_AGAIN_S = 0.2  # after the process ran out of files
LOG_INTERVAL_S = 1.0  # failed handshakes are logged, but cannot fill the disk


def peer_of(certificate: Mapping[str, Any]) -> Peer:
    """The name in a certificate, from the result of ``ssl.SSLSocket.getpeercert``.

    The URI ``moorings:subject/<subject>`` among its alternative names, else its common name. Several names count as
    none.
    """
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    subjects = [uri.removeprefix(SUBJECT_URI) for uri in uris if uri.startswith(SUBJECT_URI)]
    controller = CONTROLLER_URI in uris
    if not subjects and not controller:
        pairs = (pair for relative in certificate.get("subject", ()) for pair in relative)
        subjects = [value for kind, value in pairs if kind == "commonName"]
    named = subjects[0] if len(subjects) == 1 and not controller else ""
    return Peer(named, controller, float(ssl.cert_time_to_seconds(certificate["notAfter"])))


def make_server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """The context of a controller's server; with ``client_ca`` each client must show a certificate of that authority.

    Raises:
        MooringsError: ``config.invalid``, with the file.
    """
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    load_chain(context, certificate, key)
    if client_ca is not None:
        load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session is not asked for a certificate again.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def make_client_context(certificate: Path, key: Path, ca: Path | None) -> ssl.SSLContext:
    """The TLS context for requests to another controller; without ``ca`` with the system's authorities.

    Raises:
        MooringsError: ``config.invalid``, with the file.
    """
    context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        load_authorities(context, ca)
    load_chain(context, certificate, key)
    return context


def load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load our own certificate.

    Raises:
        MooringsError: ``config.invalid``.
    """
    try:
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        told = "it is not the certificate of that key" if error.reason == "KEY_VALUES_MISMATCH" else _reason(error)
        raise MooringsError(
            "config.invalid",
            f"{certificate} with {key} cannot be used: {told}",
            hint="PEM files are wanted, unencrypted",
        ) from error
    except OSError as error:
        detail = f"{certificate} or {key} cannot be read: {format_cause(error)}"
        raise MooringsError("config.invalid", detail) from error


def load_authorities(context: ssl.SSLContext, file: Path) -> None:
    """Load the trusted authorities.

    Raises:
        MooringsError: ``config.invalid``.
    """
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        detail = f"{file} cannot be used: {_reason(error)}"
        raise MooringsError("config.invalid", detail, hint="a PEM file of certificates is wanted") from error
    except OSError as error:
        raise MooringsError("config.invalid", f"{file} cannot be read: {format_cause(error)}") from error


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


class ReloadableContext(ssl.SSLContext):
    """A context that delegates each new connection to the latest context.

    Args:
        make: makes a context from the current files.

    Raises:
        MooringsError: what ``make`` raises.
    """

    def __new__(cls, make: Callable[[], ssl.SSLContext]) -> ReloadableContext:
        # This object is what asyncio and httpcore hold; it makes no connection itself. If it did, it would trust
        # nobody.
        made = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        made._make = make
        made._latest = make()
        return made

    _make: Callable[[], ssl.SSLContext]
    _latest: ssl.SSLContext

    def __init__(self, _make: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()

    def renew(self) -> None:
        """Read the files again; open connections stay as they are.

        Raises:
            MooringsError: they are unusable, and the old context stays.
        """
        self._latest = self._make()

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self._latest.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


# Why a handshake failed, for the task that waits for it: after the alert the client closes, and only that is raised.
# Event loops call a connection's callbacks in the context in which it was accepted.
_FAILURE: ContextVar[list[ssl.SSLError]] = ContextVar("_FAILURE")


class _AlertingSSLObject(ssl.SSLObject):
    """A server's side of a connection that sends the reason of a failed handshake to the client.

    asyncio and uvloop close at once when a handshake fails, and OpenSSL's alert is lost. So the error is raised one
    call later: before that, the event loops send the pending data, as if more input were needed.
    """

    outgoing: ssl.MemoryBIO
    _failed: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                self.outgoing.write(_NO_TLS)
            if not self.outgoing.pending:
                raise
            self._failed = error
            _FAILURE.get([]).append(error)
            raise ssl.SSLWantReadError from error


class _ServerContext(ssl.SSLContext):
    sslobject_class = _AlertingSSLObject

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _AlertingSSLObject)
        made.outgoing = outgoing
        return made


def _no_tls() -> bytes:
    error = MooringsError("request.invalid", "this controller speaks TLS", hint="write https:// instead of http://")
    content = json.dumps(encode(problem_body(error, ""))).encode()
    return b"HTTP/1.1 400 Bad Request\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        MEDIA_TYPE.encode(),
        len(content),
        content,
    )


_NO_TLS = _no_tls()


@dataclass(slots=True)
class _Handshake:
    """A handshake in progress: its address, its start, and whether it is counted."""

    connection: socket.socket
    address: str
    since_s: float
    counted: bool = True


class Handshakes:
    """Accepts connections, and hands them over after their handshake; for uvicorn it is a server.

    Args:
        listening: the socket.
        context: the TLS context.
        new_protocol: makes the protocol of a connection.
        has_room: the key for counting one more connection, and whether it is within the limits, from its address and
            the number of handshakes in progress.
        end_idle: closes the connection of an address that has been idle for longest; returns whether there was one.
        limit_s: how long a handshake may take.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        new_protocol: Callable[[], asyncio.Protocol],
        has_room: Callable[[tuple[str, int], Counter[str]], tuple[str, bool]],
        end_idle: Callable[[str], bool],
        limit_s: float,
    ) -> None:
        self._listening = listening
        self._context = context
        self._new_protocol = new_protocol
        self._has_room = has_room
        self._end_idle = end_idle
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._by_address: Counter[str] = Counter()
        self._tasks: dict[asyncio.Task[None], _Handshake] = {}
        self._again: asyncio.TimerHandle | None = None
        self._quiet_until_s = 0.0
        self._untold = 0
        self._closed = False
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more connections; handshakes in progress are cancelled."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._listening.fileno())
        if self._again is not None:
            self._again.cancel()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is in progress."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(64):  # then the open connections get a turn
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more files: new connections wait in the kernel's queue
                log.warning("connection.not_accepted", extra={"detail": format_cause(error)})
                self._loop.remove_reader(self._listening.fileno())
                self._again = self._loop.call_later(ACCEPT_AGAIN_S, self._go_on)
                return
            counted, room = self._has_room(address[:2], self._by_address)
            if not room and not self._make_room(counted):
                connection.close()
                continue
            connection.setblocking(False)
            self._by_address[counted] += 1
            handshake = _Handshake(connection, counted, self._loop.time())
            task = self._loop.create_task(self._shake(handshake), name="handshake")
            self._tasks[task] = handshake
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        """A handshake is done, or was cancelled, perhaps before it had begun."""
        handshake = self._tasks.pop(task)
        self._uncount(handshake)
        if task.cancelled():
            handshake.connection.close()

    def _uncount(self, handshake: _Handshake) -> None:
        """Stop counting it as a handshake."""
        if handshake.counted:
            handshake.counted = False
            self._by_address[handshake.address] -= 1
            if not self._by_address[handshake.address]:
                del self._by_address[handshake.address]

    def _make_room(self, counted: str) -> bool:
        """Close the longest idle connection or handshake of an address; return whether there was any.

        Recent handshakes are spared, as long as there is something else.
        """
        mine = (task for task, one in self._tasks.items() if one.address == counted and one.counted)
        oldest = next((task for task in mine if not task.cancelling()), None)
        slow = oldest is not None and self._loop.time() - self._tasks[oldest].since_s > SLOW_S
        if not slow and self._end_idle(counted):
            return True
        if oldest is not None:
            oldest.cancel()
        return oldest is not None

    def _go_on(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _protocol_of(self, handshake: _Handshake) -> asyncio.Protocol:
        """The protocol for the connection after its handshake; it is counted there, and no longer here."""
        protocol = self._new_protocol()
        connection_made = protocol.connection_made

        def made(transport: asyncio.BaseTransport) -> None:
            self._uncount(handshake)
            connection_made(transport)

        protocol.connection_made = made  # type: ignore[method-assign]
        return protocol

    async def _shake(self, handshake: _Handshake) -> None:
        met: list[ssl.SSLError] = []
        _FAILURE.set(met)
        try:
            await self._loop.connect_accepted_socket(
                partial(self._protocol_of, handshake),
                handshake.connection,
                ssl=self._context,
                ssl_handshake_timeout=self._limit_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except (OSError, ssl.SSLError) as error:
            handshake.connection.close()
            self._tell(handshake.address, met[0] if met else error)

    def _tell(self, counted: str, error: Exception) -> None:
        if isinstance(error, ConnectionError) and not isinstance(error, ConnectionAbortedError):
            return  # a check whether the port is open
        now_s = self._loop.time()
        if now_s < self._quiet_until_s:
            self._untold += 1
            return
        detail = getattr(error, "verify_message", "") or (
            _reason(error) if isinstance(error, ssl.SSLError) else format_cause(error)
        )
        log.info("handshake.failed", extra={"client": counted, "detail": detail, "untold": self._untold})
        self._quiet_until_s, self._untold = now_s + LOG_INTERVAL_S, 0
