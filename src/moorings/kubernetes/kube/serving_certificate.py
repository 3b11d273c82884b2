"""One replica's part in the certificate of webhooks or proxy: read, write, serve, and publish the trusted authorities.

Every replica does the same, once a minute; a write succeeds only if no other replica wrote first. Rejected: let only
the leader do it. The other replicas serve too, and a first certificate must not wait for an election.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND
from moorings.kubernetes.kube.api import (
    CONFIG_MAP,
    MUTATING_WEBHOOK,
    SECRET,
    VALIDATING_WEBHOOK,
    KubeApi,
    KubeError,
    KubeObject,
    ResourceType,
    get_or_none,
    retry_on_conflict,
)
from moorings.kubernetes.kube.certificates import (
    PROPAGATION,
    CertificateBundle,
    build_secret,
    build_secret_data,
    expires_at,
    parse_secret,
    plan_rotation,
    trusted_bundles_in,
    with_ca_bundle,
)
from moorings.net.tls import make_bare_context
from moorings.ports.clock import Clock

log = logging.getLogger("moorings.kubernetes.certificates")

CONFIGURATIONS = (MUTATING_WEBHOOK, VALIDATING_WEBHOOK)
RECONCILE_S = 60.0
PAUSE_S, PAUSE_S_MAX = 1.0, 30.0
CA_FILE = "ca.crt"  # of a ConfigMap with authorities


async def patch_configuration(
    kube: KubeApi, kind: ResourceType, name: str, bundle: bytes, failure_policy: str = ""
) -> bool | None:
    """Make a webhook configuration trust ``bundle``; whether it changed, None if there is none.

    Replaces the whole object with its version, and only when it differs: this needs only the rights to get and update.

    Raises:
        KubeError: it cannot be read or written.
    """

    async def attempt() -> bool | None:
        found = await get_or_none(kube, kind, name)
        if found is None:
            return None
        changed = with_ca_bundle(found, bundle, failure_policy)
        if changed is None:
            return False
        await kube.replace(kind, changed)
        return True

    return await retry_on_conflict(attempt)


# -- trust stores ------------------------------------------------------------------------------------------------------


class TrustStore(Protocol):
    """Where the server's callers read the authorities that they trust; both calls raise KubeError."""

    async def read(self) -> list[bytes]:
        """The bundles that callers trust now, as PEM."""
        ...

    async def publish(self, bundle: bytes) -> None:
        """Make callers trust this bundle."""
        ...


class WebhookTrustStore:
    """The API server, which reads the two webhook configurations of one name.

    Args:
        kube: the API server.
        name: of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration.
    """

    def __init__(self, kube: KubeApi, name: str) -> None:
        self._kube = kube
        self._name = name
        self._found: list[KubeObject | None] = []
        self._missing: frozenset[str] = frozenset()

    async def read(self) -> list[bytes]:
        self._found = [await get_or_none(self._kube, kind, self._name) for kind in CONFIGURATIONS]
        return [bundle for one in self._found if one is not None for bundle in trusted_bundles_in(one)]

    async def publish(self, bundle: bytes) -> None:
        for kind, one in zip(CONFIGURATIONS, self._found, strict=True):
            if one is None:
                self._log_missing(kind)
            elif with_ca_bundle(one, bundle) is not None and await patch_configuration(
                self._kube, kind, self._name, bundle
            ):
                log.info("webhook.configuration_patched", extra={"kind": kind.name, "webhook": self._name})
        self._missing = frozenset(
            kind.name for kind, one in zip(CONFIGURATIONS, self._found, strict=True) if one is None
        )

    def _log_missing(self, kind: ResourceType) -> None:
        if kind.name not in self._missing:
            hint = "the chart makes it; without it the API server does not ask us"
            log.warning("webhook.configuration_missing", extra={"kind": kind.name, "webhook": self._name, "hint": hint})


class ConfigMapTrustStore:
    """All readers of the authorities in a ConfigMap's ``ca.crt``.

    Args:
        kube: the API server.
        namespace: of the ConfigMap.
        name: its name.
    """

    def __init__(self, kube: KubeApi, namespace: str, name: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._found: KubeObject | None = None

    async def read(self) -> list[bytes]:
        self._found = await get_or_none(self._kube, CONFIG_MAP, self._name, self._namespace)
        authorities = parse_authorities(self._found)
        return [authorities.encode()] if authorities else []

    async def publish(self, bundle: bytes) -> None:
        if parse_authorities(self._found) == bundle.decode():
            return
        data = {"data": {CA_FILE: bundle.decode()}}
        if self._found is not None:
            await self._kube.patch(CONFIG_MAP, self._name, data, self._namespace)
        else:
            metadata = {"name": self._name, "namespace": self._namespace}
            await self._kube.create(CONFIG_MAP, {"metadata": metadata, **data}, self._namespace)
        log.info("certificate.authorities_told", extra={"configmap": self._name, "namespace": self._namespace})


def parse_authorities(found: KubeObject | None) -> str:
    """The authorities in a ConfigMap, as PEM; empty: there are none."""
    text = ((found or {}).get("data") or {}).get(CA_FILE)
    return text if isinstance(text, str) else ""


# -- serving -----------------------------------------------------------------------------------------------------------


def load_certificate(context: ssl.SSLContext, held: CertificateBundle) -> None:
    """Serve this certificate on all new connections.

    Raises:
        MooringsError: ``webhook.invalid``: certificate and key cannot be used; the context is unchanged.
    """
    # ssl reads only files; a memory file keeps the key off the disk and works on a read-only root.
    memory = os.memfd_create("certificate")
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(held.cert.rstrip() + b"\n" + held.key)
        path = f"/proc/self/fd/{memory}"
        make_bare_context().load_cert_chain(path, password="")  # a failure would leave the context half changed
        context.load_cert_chain(path, password="")
    except OSError as error:  # ssl.SSLError is one
        hint = "delete the Secret: the operator makes a new one"
        raise MooringsError("webhook.invalid", "the certificate and its key cannot be used", hint=hint) from error
    finally:
        os.close(memory)


class CertificateRotator:
    """Keeps one replica's certificate, and its callers' trust, in step with the Secret.

    Args:
        kube: the API server.
        clock: the time.
        namespace: of the Secret.
        secret: its name.
        callers: the trust store of its callers.
        names: names that the certificate must be valid for, as ``service_names`` returns them.
        spread: time until all callers trust a published authority.
    """

    def __init__(
        self,
        kube: KubeApi,
        clock: Clock,
        *,
        namespace: str,
        secret: str,
        callers: TrustStore,
        names: Sequence[str],
        spread: timedelta = PROPAGATION,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._namespace = namespace
        self._secret = secret
        self._callers = callers
        self._names = tuple(names)
        self._spread = spread
        self._served: CertificateBundle | None = None
        self.context = make_bare_context()
        """For the server: always with the newest certificate."""

    @property
    def is_ready(self) -> bool:
        """Whether there is a certificate to serve."""
        return self._served is not None

    async def prepare(self) -> None:
        """Return once there is a certificate; wait while the API server is away.

        Raises:
            MooringsError: the API server refuses a needed call.
        """
        pause_s = PAUSE_S
        while True:
            try:
                await self.reconcile()
            except KubeError as error:
                if self.is_ready:
                    return  # serving matters most; ``run`` retries the rest
                if not error.retryable:
                    raise self._explain_refusal(error) from error
                log.warning("certificate.awaited", extra={"code": error.code, "detail": error.detail})
                await self._clock.sleep(max(pause_s, error.retry_after_s))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                return

    async def run(self) -> None:
        """Run ``look`` every minute, until cancelled."""
        pause_s = PAUSE_S
        while True:
            try:
                await self.reconcile()
            except MooringsError as error:
                explained = (
                    self._explain_refusal(error) if isinstance(error, KubeError) and not error.retryable else error
                )
                log.warning(
                    "certificate.unkept",
                    extra={"code": explained.code, "detail": explained.detail, "hint": explained.hint},
                )
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, RECONCILE_S)
            else:
                pause_s = PAUSE_S
                await self._clock.sleep(RECONCILE_S)

    async def reconcile(self) -> None:
        """Bring certificate, Secret and trust store up to date.

        Raises:
            KubeError: a call to the API server failed.
            MooringsError: ``webhook.invalid``: the content of the Secret cannot be served.
        """
        believed = await self._callers.read()
        held = await retry_on_conflict(lambda: self._reconcile_secret(believed))
        if self._served is None or (held.cert, held.key) != (self._served.cert, self._served.key):
            load_certificate(self.context, held)
            ends = expires_at(held).isoformat()
            log.info("certificate.taken", extra={"secret": self._secret, "ends": ends})
        self._served = held
        await self._callers.publish(held.ca)

    async def _reconcile_secret(self, believed: Sequence[bytes]) -> CertificateBundle:
        """The content of the Secret, after any needed change; 409: another replica was quicker."""
        found = await get_or_none(self._kube, SECRET, self._secret, self._namespace)
        held = parse_secret(found) if found is not None else None
        if found is not None and held is None:
            log.warning("certificate.unreadable", extra={"secret": self._secret, "namespace": self._namespace})
        now = datetime.fromtimestamp(self._clock.now() / SECOND, UTC)
        changed = plan_rotation(held, self._names, believed, now, self._spread)
        if changed is None:
            assert held is not None, "nothing is never good as it is"
            return held
        await self._write(found, changed)
        return changed

    async def _write(self, found: KubeObject | None, changed: CertificateBundle) -> None:
        data = build_secret_data(changed)
        if found is None:
            await self._kube.create(SECRET, build_secret(self._namespace, self._secret, data), self._namespace)
        else:
            await self._kube.replace(SECRET, found | {"data": (found.get("data") or {}) | data}, self._namespace)
        log.info("certificate.made", extra={"secret": self._secret, "namespace": self._namespace})

    def _explain_refusal(self, error: KubeError) -> MooringsError:
        hint = (
            f"this Pod's account must be let get, create and update Secrets in {self._namespace}, and write what its "
            "callers believe: the chart's roles let it"
        )
        return MooringsError(error.code, f"the certificate cannot be kept: {error.detail}", hint=hint)
