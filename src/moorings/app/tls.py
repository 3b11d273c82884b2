"""The controller's TLS: made from the settings, and again when its files change.

Changes are noticed in two ways: SIGHUP loads new files at once, and every ``RELOAD_CHECK_S`` the files are checked,
because a program that renews certificates (certbot, a cron job with ``moor pki rotate``) often cannot signal another
user's process. inotify was refused: it reports nothing for certificates on a network file system.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from pathlib import Path

from moorings.app.settings import DEFAULT_CONFIG, Settings
from moorings.client.keyfiles import check_private_key
from moorings.core.model.errors import MooringsError
from moorings.net.tls import ReloadableContext, make_client_context, make_server_context

log = logging.getLogger("moorings.controller")

RELOAD_CHECK_S = 10.0

Fingerprint = tuple[tuple[int, int, int] | None, ...]


class TlsContexts:
    """A controller's TLS, to its clients and to the other controllers.

    Args:
        certificate: PEM file of its own certificate.
        key: PEM file of the key.
        client_ca: the authorities of clients' certificates; None: clients show none.
        ca: the authorities of the other controllers; None: the system's.

    Raises:
        MooringsError: ``config.invalid``, ``credentials.unsafe``.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None, ca: Path | None) -> None:
        self._key = key
        self._files = tuple(filter(None, (certificate, key, client_ca, ca)))
        self._seen = self._fingerprint()
        check_private_key(key)
        self.server = ReloadableContext(lambda: make_server_context(certificate, key, client_ca))
        """For incoming connections."""
        self.client = ReloadableContext(lambda: make_client_context(certificate, key, ca))
        """For requests to the leader."""

    def reload(self) -> None:
        """Load the present files; if they are unusable, keep the old ones and log that."""
        self._seen = self._fingerprint()
        try:
            check_private_key(self._key)
            self.client.renew()
            self.server.renew()
        except MooringsError as error:
            log.warning("certificates.refused", extra={"code": error.code, "detail": error.detail, "hint": error.hint})
        else:
            log.info("certificates.taken", extra={"file": str(self._files[0])})

    def reload_if_changed(self) -> None:
        """As ``renew``, if a file has changed since."""
        if self._fingerprint() != self._seen:
            self.reload()

    def _fingerprint(self) -> Fingerprint:
        return tuple(_file_version(path) for path in self._files)


def _file_version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


async def watch_certificates(tls: TlsContexts, every_s: float = RELOAD_CHECK_S) -> None:
    """Load new files as they come, until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(tls.reload_if_changed)


def make_tls(settings: Settings) -> TlsContexts | None:
    """The controller's TLS; None if it speaks plain HTTP.

    Raises:
        MooringsError: ``config.invalid``: settings that contradict each other, or a file; ``credentials.unsafe``.
    """
    if settings.tls_cert is not None and settings.tls_key is not None:
        ca = settings.tls_ca or settings.tls_client_ca
        return TlsContexts(settings.tls_cert, settings.tls_key, settings.tls_client_ca, ca)
    given = [name for name in ("tls_cert", "tls_key", "tls_client_ca", "tls_ca") if getattr(settings, name) is not None]
    if given:
        raise MooringsError(
            "config.invalid",
            f"{' and '.join(given)} without {'tls_key' if 'tls_cert' in given else 'tls_cert'}",
            hint="TLS needs both tls_cert and tls_key; 'moor pki init' makes them",
        )
    if not settings.plain_http and not is_loopback(settings.host):
        raise MooringsError(
            "config.invalid",
            f"without TLS, access keys would travel to {settings.host} in the clear",
            hint="'moor pki init' makes certificates: name them with 'moor up --pki DIR', or tls_cert and tls_key; if "
            f"everybody there may read the keys: --plain-http, or plain_http = true in {DEFAULT_CONFIG}",
        )
    return None


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine; a name is not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
