"""Certificates in a mounted Secret of type kubernetes.io/tls, maintained by the site or by cert-manager."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND
from moorings.kubernetes.kube.certificates import CertificateBundle, join_authorities
from moorings.kubernetes.kube.serving_certificate import RECONCILE_S, TrustStore, load_certificate
from moorings.net.tls import make_bare_context
from moorings.ports.clock import Clock

log = logging.getLogger("moorings.kubernetes.certificates")

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"


class CertificateReloader:
    """A certificate from a mounted Secret; serves the new one when the Secret has changed.

    Args:
        folder: with ``tls.crt`` and ``tls.key``.
        context: the TLS context of the server.
    """

    def __init__(self, folder: Path, context: ssl.SSLContext) -> None:
        self._folder = folder
        self._context = context
        self._seen: tuple[bytes, bytes] | None = None

    def reload_if_changed(self) -> bool:
        """Serve the present content of the folder; whether it is new.

        Raises:
            MooringsError: ``config.invalid``, ``webhook.invalid``: it cannot be used, and the previous one stays.
        """
        try:
            now = (self._folder / CERTIFICATE).read_bytes(), (self._folder / KEY).read_bytes()
        except OSError as error:
            raise MooringsError(
                "config.invalid",
                f"{error.filename} cannot be read: {error.strerror}",
                hint=f"the Secret needs {CERTIFICATE} and {KEY}, as one of type kubernetes.io/tls has them",
            ) from error
        if now == self._seen:
            return False
        load_certificate(self._context, CertificateBundle(ca=b"", cert=now[0], key=now[1]))
        self._seen = now
        return True


class MountedCertificate:
    """Keeps a server's certificate in step with a mounted Secret, as ``CertificateRotator`` does with its own Secret.

    Args:
        folder: with ``tls.crt``, ``tls.key`` and, for callers, ``ca.crt``.
        clock: the time.
        callers: the trust store of its callers; None: the site maintains it.
    """

    def __init__(self, folder: Path, clock: Clock, callers: TrustStore | None = None) -> None:
        self.context = make_bare_context()
        """For the server: always with the newest certificate."""
        self.is_ready = False
        self._path = folder
        self._folder = CertificateReloader(folder, self.context)
        self._clock = clock
        self._callers = callers

    async def prepare(self) -> None:
        """Serve the present content.

        Raises:
            MooringsError: it cannot be used, or the trust store cannot be written.
        """
        await self.reconcile()

    async def reconcile(self) -> None:
        """Bring certificate and trust store up to date.

        Raises:
            MooringsError: as ``prepare``.
        """
        if self._folder.reload_if_changed():
            log.info("certificate.taken", extra={"folder": str(self._path)})
        self.is_ready = True
        if self._callers is not None:
            # Callers may still trust only the old authority, and another replica may still serve its certificate.
            before = await self._callers.read()
            now = datetime.fromtimestamp(self._clock.now() / SECOND, UTC)
            await self._callers.publish(join_authorities([*before, self._authority()], now))

    async def run(self) -> None:
        """Run ``look`` every minute, until cancelled."""
        while True:
            try:
                await self.reconcile()
            except MooringsError as error:
                log.warning("certificate.unkept", extra={"code": error.code, "detail": error.detail})
            await self._clock.sleep(RECONCILE_S)

    def _authority(self) -> bytes:
        try:
            return (self._path / AUTHORITY).read_bytes()
        except OSError as error:
            detail = f"{error.filename} cannot be read: {error.strerror}"
            raise MooringsError("config.invalid", detail, hint="the issuer must provide its authority") from error
