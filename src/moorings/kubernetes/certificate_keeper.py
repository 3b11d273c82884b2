"""One replica's share in the webhooks' certificates: read, write, serve, and tell the API server whom to believe.

Every replica does the same, once a minute; a write is good only if nobody was quicker. That the leader alone should do
it was refused: the replicas that do not lead serve too, and a first certificate must not wait for an election.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime

from moorings.core.errors import MooringsError
from moorings.core.instants import SECOND
from moorings.kubernetes.certificates import (
    Certificates,
    believed_by,
    build_secret,
    build_secret_data,
    ends_at,
    parse_secret,
    put_bundle,
    renew,
)
from moorings.kubernetes.ipujob import Obj
from moorings.kubernetes.kube import MUTATING_WEBHOOK, SECRET, VALIDATING_WEBHOOK, Kind, Kube, KubeError
from moorings.ports.clock import Clock

log = logging.getLogger("moorings.kubernetes.certificates")

CONFIGURATIONS = (MUTATING_WEBHOOK, VALIDATING_WEBHOOK)
LOOK_S = 60.0
PAUSE_S, PAUSE_S_MAX = 1.0, 30.0
TRIES = 5  # of a write that others were quicker with


async def find(kube: Kube, kind: Kind, name: str, namespace: str | None = None) -> Obj | None:
    """An object, or None if there is none.

    Raises:
        KubeError: anything else.
    """
    try:
        return await kube.get(kind, name, namespace)
    except KubeError as error:
        if error.status == 404:
            return None
        raise


async def patch_configuration(
    kube: Kube, kind: Kind, name: str, bundle: bytes, failure_policy: str = ""
) -> bool | None:
    """Have a webhook configuration believe ``bundle``; whether it was changed, None if there is none.

    Written as a whole with its version, and only when it differs: who may only get and update can do that.

    Raises:
        KubeError: it cannot be read or written.
    """
    for tries_left in reversed(range(TRIES)):
        found = await find(kube, kind, name)
        if found is None:
            return None
        changed = put_bundle(found, bundle, failure_policy)
        if changed is None:
            return False
        try:
            await kube.replace(kind, changed)
        except KubeError as error:
            if error.status != 409 or not tries_left:
                raise
        else:
            return True
    raise AssertionError("the last try returns or raises")


# -- serving -----------------------------------------------------------------------------------------------------------


def make_server_context() -> ssl.SSLContext:
    """How the webhooks speak TLS; ``take`` gives it a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def take(context: ssl.SSLContext, held: Certificates) -> None:
    """Serve a certificate to whoever connects from now on.

    Raises:
        MooringsError: ``webhook.invalid``: certificate and key cannot be used, and the context stays as it is.
    """
    # ssl reads files alone; this one never was on a disk, and a read-only root does not matter.
    memory = os.memfd_create("certificate")
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(held.cert.rstrip() + b"\n" + held.key)
        path = f"/proc/self/fd/{memory}"
        make_server_context().load_cert_chain(path, password="")  # a context that failed would be half changed
        context.load_cert_chain(path, password="")
    except OSError as error:  # ssl.SSLError is one
        hint = "delete the Secret: the operator makes a new one"
        raise MooringsError("webhook.invalid", "the webhooks' certificate and key cannot be used", hint=hint) from error
    finally:
        os.close(memory)


class CertificateKeeper:
    """Keeps one replica's certificate, and what the API server believes, in step with the Secret.

    Args:
        kube: the API server.
        clock: the time.
        namespace: of the Secret.
        secret: its name.
        webhooks: name of the Mutating- and of the ValidatingWebhookConfiguration.
        names: what the certificate must be good for, as ``service_names`` gives them.
    """

    def __init__(
        self, kube: Kube, clock: Clock, *, namespace: str, secret: str, webhooks: str, names: Sequence[str]
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._namespace = namespace
        self._secret = secret
        self._webhooks = webhooks
        self._names = tuple(names)
        self._served: Certificates | None = None
        self._missing: frozenset[str] = frozenset()
        self.context = make_server_context()
        """For the server: always the newest certificate."""

    @property
    def ready(self) -> bool:
        """Whether there is a certificate to serve."""
        return self._served is not None

    async def prepare(self) -> None:
        """Returns once there is a certificate; an API server that is away is waited for.

        Raises:
            MooringsError: the API server refuses what has to be done.
        """
        pause_s = PAUSE_S
        while True:
            try:
                await self.look()
            except KubeError as error:
                if self.ready:
                    return  # to serve is what matters; ``run`` sees to the rest
                if not error.retryable:
                    raise self._refused(error) from error
                log.warning("webhook.certificate_awaited", extra={"code": error.code, "detail": error.detail})
                await self._clock.sleep(max(pause_s, error.retry_after_s))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                return

    async def run(self) -> None:
        """Look every minute, until cancelled."""
        pause_s = PAUSE_S
        while True:
            try:
                await self.look()
            except MooringsError as error:
                told = self._refused(error) if isinstance(error, KubeError) and not error.retryable else error
                log.warning(
                    "webhook.certificate_unkept", extra={"code": told.code, "detail": told.detail, "hint": told.hint}
                )
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, LOOK_S)
            else:
                pause_s = PAUSE_S
                await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Do now whatever is to be done.

        Raises:
            KubeError: a call to the API server.
            MooringsError: ``webhook.invalid``: what the Secret holds cannot be served.
        """
        found = [await find(self._kube, kind, self._webhooks) for kind in CONFIGURATIONS]
        believed = [bundle for one in found if one is not None for bundle in believed_by(one)]
        held = await self._keep_secret(believed)
        if self._served is None or (held.cert, held.key) != (self._served.cert, self._served.key):
            take(self.context, held)
            ends = ends_at(held).isoformat()
            log.info("webhook.certificate_taken", extra={"secret": self._secret, "ends": ends})
        self._served = held
        for kind, one in zip(CONFIGURATIONS, found, strict=True):
            if one is None:
                self._tell_missing(kind)
            elif put_bundle(one, held.ca) is not None:
                changed = await patch_configuration(self._kube, kind, self._webhooks, held.ca)
                if changed:
                    log.info("webhook.configuration_patched", extra={"kind": kind.name, "webhook": self._webhooks})
        self._missing = frozenset(kind.name for kind, one in zip(CONFIGURATIONS, found, strict=True) if one is None)

    async def _keep_secret(self, believed: Sequence[bytes]) -> Certificates:
        """What the Secret holds, after what had to be changed; who loses a race takes the winner's."""
        for tries_left in reversed(range(TRIES)):
            found = await find(self._kube, SECRET, self._secret, self._namespace)
            held = parse_secret(found) if found is not None else None
            if found is not None and held is None:
                log.warning("webhook.secret_unreadable", extra={"secret": self._secret, "namespace": self._namespace})
            changed = renew(held, self._names, believed, datetime.fromtimestamp(self._clock.now() / SECOND, UTC))
            if changed is None:
                assert held is not None, "nothing is never good as it is"
                return held
            try:
                await self._write(found, changed)
            except KubeError as error:
                if error.status != 409 or not tries_left:  # AlreadyExists or Conflict: another replica was quicker
                    raise
            else:
                return changed
        raise AssertionError("the last try returns or raises")

    async def _write(self, found: Obj | None, changed: Certificates) -> None:
        data = build_secret_data(changed)
        if found is None:
            await self._kube.create(SECRET, build_secret(self._namespace, self._secret, data), self._namespace)
        else:
            await self._kube.replace(SECRET, found | {"data": (found.get("data") or {}) | data}, self._namespace)
        log.info("webhook.certificate_made", extra={"secret": self._secret, "namespace": self._namespace})

    def _tell_missing(self, kind: Kind) -> None:
        if kind.name not in self._missing:
            hint = "the chart makes it; without it the API server does not ask us"
            log.warning(
                "webhook.configuration_missing", extra={"kind": kind.name, "webhook": self._webhooks, "hint": hint}
            )

    def _refused(self, error: KubeError) -> MooringsError:
        hint = (
            f"the operator's account must be let get, create and update Secrets in {self._namespace}, and get and "
            f"update the webhook configurations {self._webhooks}"
        )
        return MooringsError(error.code, f"the webhooks' certificates cannot be kept: {error.detail}", hint=hint)
