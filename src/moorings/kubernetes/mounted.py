"""Certificates that others keep, in a mounted Secret of type kubernetes.io/tls: a site by hand, or cert-manager."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

from moorings.core.errors import MooringsError
from moorings.core.instants import SECOND
from moorings.kubernetes.certificate_keeper import RECONCILE_S, TrustStore, load_certificate, make_server_context
from moorings.kubernetes.certificates import CertificateBundle, join_authorities
from moorings.ports.clock import Clock

log = logging.getLogger("moorings.kubernetes.certificates")

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"


class CertificateReloader:
    """A certificate out of a mounted Secret, served anew when the Secret has changed.

    Args:
        folder: with ``tls.crt`` and ``tls.key``.
        context: what serves it.
    """

    def __init__(self, folder: Path, context: ssl.SSLContext) -> None:
        self._folder = folder
        self._context = context
        self._seen: tuple[bytes, bytes] | None = None

    def look(self) -> bool:
        """Serve what the folder holds now; whether it was something new.

        Raises:
            MooringsError: ``config.invalid``, ``webhook.invalid``: it cannot be used, and the one before stays.
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
    """Keeps what a server shows in step with a mounted Secret, as ``CertificateRotator`` does with one of its own.

    Args:
        folder: with ``tls.crt``, ``tls.key`` and, for callers, ``ca.crt``.
        clock: the time.
        callers: who must believe it; None: others see to that.
    """

    def __init__(self, folder: Path, clock: Clock, callers: TrustStore | None = None) -> None:
        self.context = make_server_context()
        """For the server: always the newest certificate."""
        self.ready = False
        self._path = folder
        self._folder = CertificateReloader(folder, self.context)
        self._clock = clock
        self._callers = callers

    async def prepare(self) -> None:
        """Serve what is there.

        Raises:
            MooringsError: it cannot be used, or callers cannot be told.
        """
        await self.look()

    async def look(self) -> None:
        """Do now whatever is to be done.

        Raises:
            MooringsError: as ``prepare``.
        """
        if self._folder.look():
            log.info("certificate.taken", extra={"folder": str(self._path)})
        self.ready = True
        if self._callers is not None:
            # Who was told of an authority may know no other yet, and who shows a certificate of it may still be there.
            before = await self._callers.read()
            now = datetime.fromtimestamp(self._clock.now() / SECOND, UTC)
            await self._callers.tell(join_authorities([*before, self._authority()], now))

    async def run(self) -> None:
        """Look every minute, until cancelled."""
        while True:
            try:
                await self.look()
            except MooringsError as error:
                log.warning("certificate.unkept", extra={"code": error.code, "detail": error.detail})
            await self._clock.sleep(RECONCILE_S)

    def _authority(self) -> bytes:
        try:
            return (self._path / AUTHORITY).read_bytes()
        except OSError as error:
            detail = f"{error.filename} cannot be read: {error.strerror}"
            raise MooringsError("config.invalid", detail, hint="the issuer must tell its authority") from error
