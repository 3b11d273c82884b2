"""TLS of servers: contexts that reload while they serve, certificates of clients, alerts that reach the client.

It uses Python's ``ssl`` alone, and closes its gaps:

- A context cannot forget an authority, so a renewed one is a new context behind the same object
(``ReloadableContext``).
- asyncio and uvloop close without sending the alert of a failed handshake, and the client would only see a lost
  connection (``_AlertingSSLObject``).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.net.problems import build_bad_request


def make_bare_context() -> ssl.SSLContext:
    """The context of a server, without a certificate."""
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    return context


def make_server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """The context of a server; with ``client_ca`` each client must show a certificate of that authority.

    Raises:
        MooringsError: ``config.invalid``, with the file.
    """
    context = make_bare_context()
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
        problem = (
            "it is not the certificate of that key"
            if error.reason == "KEY_VALUES_MISMATCH"
            else format_tls_cause(error)
        )
        raise MooringsError(
            "config.invalid",
            f"{certificate} with {key} cannot be used: {problem}",
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
        detail = f"{file} cannot be used: {format_tls_cause(error)}"
        raise MooringsError("config.invalid", detail, hint="a PEM file of certificates is wanted") from error
    except OSError as error:
        raise MooringsError("config.invalid", f"{file} cannot be read: {format_cause(error)}") from error


def format_tls_cause(error: ssl.SSLError) -> str:
    """The cause of a TLS error, as the end of a sentence."""
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
        # no certificate.
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
HANDSHAKE_FAILURE: ContextVar[list[ssl.SSLError]] = ContextVar("HANDSHAKE_FAILURE")


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
            HANDSHAKE_FAILURE.get([]).append(error)
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


_NO_TLS = build_bad_request("this server speaks TLS", "write https:// instead of http://")
