"""Prepares the removal of the chart: nothing of it may block IPUJobs, and none may wait for an absent operator.

Helm deletes what it has installed, but changes no other objects. So first: delete the webhooks (a missing server behind
them would refuse every IPUJob), end the operator (it would add its finalizer again), and remove the finalizer from all
IPUJobs. Running jobs continue, with Pods and partitions; a new installation of the operator finds them unchanged.

Each step may be repeated, and none waits for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND
from moorings.kubernetes.ipujob.types import FINALIZER, IPU_JOB
from moorings.kubernetes.kube.api import (
    DEPLOYMENT,
    LEASE,
    MUTATING_WEBHOOK,
    POD,
    SECRET,
    VALIDATING_WEBHOOK,
    ExpectedErrors,
    KubeApi,
    KubeError,
    KubeObject,
    ResourceType,
)
from moorings.kubernetes.kube.election import ObservedLease, observe_lease, parse_lease
from moorings.ports.clock import Clock

T = TypeVar("T")

log = logging.getLogger("moorings.kubernetes.uninstall")

WAIT_S = 60.0  # for the operator to end: twice the grace period of its Pods
LOOK_S = 1.0
ROUNDS = 20  # through the jobs; a round leaves only jobs that changed in between
PAUSE_S = 0.5
TRIES = 5  # of one call to an API server that is away or busy


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledNames:
    """The names of installed objects; all are in ``namespace``.

    Attributes:
        selector: labels of the operator's Pods.
        webhooks: name of the two webhook configurations.
        secrets: with the certificates of webhooks and proxy.
        proxy_lease: Lease of the leading proxy, where there are several; empty: none is deleted.
        jobs_in: namespaces whose IPUJobs were managed; empty: all.
    """

    namespace: str
    deployment: str
    selector: str
    lease: str
    webhooks: str
    secrets: tuple[str, ...] = ()
    proxy_lease: str = ""
    jobs_in: tuple[str, ...] = ()


async def uninstall(kube: KubeApi, clock: Clock, installed: InstalledNames) -> None:
    """Remove everything that helm would leave in the way.

    Raises:
        KubeError: the API server refuses, or stays away.
        MooringsError: ``kubernetes.refused``: some IPUJobs keep the finalizer.
    """
    steps = UninstallSteps(kube, clock)
    await steps.delete_webhooks(installed)
    await steps.end_operator(installed)
    await steps.strip_finalizers(installed)
    await steps.delete_leftovers(installed)


class UninstallSteps:
    """The single steps.

    Args:
        kube: the API server.
        clock: the time.
    """

    def __init__(self, kube: KubeApi, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def delete_webhooks(self, installed: InstalledNames) -> None:
        """Delete the webhook configurations, so that IPUJobs can be written without us."""
        for kind in (MUTATING_WEBHOOK, VALIDATING_WEBHOOK):
            await self._delete(kind, installed.webhooks)
        log.info("uninstall.webhooks_deleted")

    async def end_operator(self, installed: InstalledNames) -> None:
        """Return when no operator works any more, or after ``WAIT_S``: one on a dead node sends no sign."""
        scale = {"spec": {"replicas": 0}}
        await self._patch(DEPLOYMENT, installed.deployment, scale, installed.namespace, subresource="scale")
        seen: ObservedLease | None = None
        for _ in range(round(WAIT_S / LOOK_S)):
            try:
                if not (await self._kube.list(POD, installed.namespace, labels=installed.selector)).items:
                    log.info("uninstall.operator_ended")
                    return
                lease = parse_lease(await self._kube.get(LEASE, installed.lease, installed.namespace))
                now = self._clock.now() / SECOND
                seen = observe_lease(seen, lease, now)
                if not lease.holder or now > seen.at + lease.lease_s:
                    log.info("uninstall.operator_ended", extra={"lease": installed.lease})
                    return
            except KubeError as error:
                if error.status != 404 and not error.retryable:  # 404: no operator has led yet, but one may begin to
                    raise
            await self._clock.sleep(LOOK_S)
        log.warning("uninstall.operator_lingers", extra={"waited_s": WAIT_S})

    async def strip_finalizers(self, installed: InstalledNames) -> None:
        """Remove the finalizer from all IPUJobs.

        Raises:
            MooringsError: ``kubernetes.refused``: other clients changed the jobs first, every time.
        """
        stripped = 0
        jobs: Sequence[KubeObject] = ()
        for _ in range(ROUNDS):
            where: Sequence[str | None] = installed.jobs_in or (None,)
            jobs = [job for namespace in where for job in with_finalizer(await self._jobs(namespace))]
            if not jobs:
                log.info("uninstall.finalizers_stripped", extra={"jobs": stripped})
                return
            for job in jobs:
                stripped += await self._strip(job)
            await self._clock.sleep(PAUSE_S)
        names = ", ".join(f"{job['metadata']['namespace']}/{job['metadata']['name']}" for job in jobs[:5])
        raise MooringsError(
            "kubernetes.refused",
            f"{len(jobs)} IPUJobs still have the finalizer: {names}",
            hint="something puts it back: is another operator running? Then run helm uninstall again",
        )

    async def _jobs(self, namespace: str | None) -> Iterable[KubeObject]:
        with ExpectedErrors(404):  # without their definition there are none
            return (await self._retry(lambda: self._kube.list(IPU_JOB, namespace))).items
        return ()

    async def _strip(self, job: KubeObject) -> bool:
        """Whether the finalizer was removed; not if the job changed or is gone: the next round looks again."""
        metadata = job["metadata"]
        body = {
            "metadata": {
                "resourceVersion": metadata["resourceVersion"],
                "finalizers": [one for one in metadata["finalizers"] if one != FINALIZER],
            }
        }
        with ExpectedErrors(409):
            return await self._patch(IPU_JOB, metadata["name"], body, metadata["namespace"])
        return False

    async def delete_leftovers(self, installed: InstalledNames) -> None:
        """Delete objects that helm does not know: the Leases, and the certificates."""
        for lease in filter(None, (installed.lease, installed.proxy_lease)):
            await self._delete(LEASE, lease, installed.namespace)
        for secret in installed.secrets:
            await self._delete(SECRET, secret, installed.namespace)

    async def _delete(self, kind: ResourceType, name: str, namespace: str | None = None) -> None:
        await self._retry(lambda: self._kube.delete(kind, name, namespace))

    async def _patch(
        self, kind: ResourceType, name: str, body: KubeObject, namespace: str, *, subresource: str = ""
    ) -> bool:
        """Whether there was an object to patch."""
        with ExpectedErrors(404):
            await self._retry(lambda: self._kube.patch(kind, name, body, namespace, subresource=subresource))
            return True
        return False

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a call; repeats it while the API server is away or busy."""
        for _ in range(TRIES - 1):
            try:
                return await call()
            except KubeError as error:
                if error.status == 409 or not error.retryable:
                    raise
                log.warning("uninstall.retried", extra={"code": error.code, "detail": error.detail})
                pause_s = max(PAUSE_S, error.retry_after_s)
            await self._clock.sleep(pause_s)
        return await call()


def with_finalizer(jobs: Iterable[KubeObject]) -> list[KubeObject]:
    """The jobs that have our finalizer."""
    return [job for job in jobs if FINALIZER in (job["metadata"].get("finalizers") or ())]
