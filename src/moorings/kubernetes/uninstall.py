"""Before the chart goes: nothing of it may block an IPUJob then, and none may wait for an operator that is gone.

Helm deletes what it has installed, but not what stands in other people's objects. So first: the webhooks go (a missing
one would refuse every IPUJob), the operator ends (it would put its finalizer back), and the finalizer is taken from all
IPUJobs. Jobs that run go on, with Pods and partitions; an operator that is installed again finds them as they are.

Each step may be done twice, none waits for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moorings.core.errors import MooringsError
from moorings.core.instants import SECOND
from moorings.kubernetes.election import ObservedLease, observe_lease, parse_lease
from moorings.kubernetes.ipujob import FINALIZER, KubeObject
from moorings.kubernetes.kube import (
    DEPLOYMENT,
    IPU_JOB,
    LEASE,
    MUTATING_WEBHOOK,
    POD,
    SECRET,
    VALIDATING_WEBHOOK,
    KubeApi,
    KubeError,
    ResourceType,
)
from moorings.ports.clock import Clock

log = logging.getLogger("moorings.kubernetes.uninstall")

WAIT_S = 60.0  # for the operator to end: twice what its Pods are given
LOOK_S = 1.0
ROUNDS = 20  # through the jobs; a round leaves only those that others have changed meanwhile
PAUSE_S = 0.5
TRIES = 5  # of one call to an API server that is away or busy


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledNames:
    """What has been installed: names in ``namespace``.

    Attributes:
        selector: labels of the operator's Pods.
        webhooks: name of the two webhook configurations.
        secrets: with the certificates of webhooks and proxy.
        proxy_lease: of the proxy that works, where there are several; empty: is left.
        jobs_in: namespaces whose IPUJobs were looked after; empty: all.
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
    """Take away what helm would leave in the way.

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
    """The steps, each by itself.

    Args:
        kube: the API server.
        clock: the time.
    """

    def __init__(self, kube: KubeApi, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def delete_webhooks(self, installed: InstalledNames) -> None:
        """Let IPUJobs be written without us."""
        for kind in (MUTATING_WEBHOOK, VALIDATING_WEBHOOK):
            await self._delete(kind, installed.webhooks)
        log.info("uninstall.webhooks_deleted")

    async def end_operator(self, installed: InstalledNames) -> None:
        """Returns when no operator works any more, or ``WAIT_S`` have passed: one on a dead node says nothing."""
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
                if error.status != 404 and not error.retryable:  # 404: it has never led, but may begin to
                    raise
            await self._clock.sleep(LOOK_S)
        log.warning("uninstall.operator_lingers", extra={"waited_s": WAIT_S})

    async def strip_finalizers(self, installed: InstalledNames) -> None:
        """Take the finalizer from all IPUJobs.

        Raises:
            MooringsError: ``kubernetes.refused``: others were quicker, every time.
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
        for tries_left in reversed(range(TRIES)):
            try:
                return (await self._kube.list(IPU_JOB, namespace)).items
            except KubeError as error:
                if error.status == 404:
                    return ()  # without their definition there are none
                await self._pause(error, tries_left)
        raise AssertionError("the last try returns or raises")

    async def _strip(self, job: KubeObject) -> bool:
        """Whether it was taken; not, if the job was changed or has gone: the next round sees."""
        metadata = job["metadata"]
        body = {
            "metadata": {
                "resourceVersion": metadata["resourceVersion"],
                "finalizers": [one for one in metadata["finalizers"] if one != FINALIZER],
            }
        }
        try:
            return await self._patch(IPU_JOB, metadata["name"], body, metadata["namespace"])
        except KubeError as error:
            if error.status != 409:
                raise
            return False

    async def delete_leftovers(self, installed: InstalledNames) -> None:
        """Delete what helm knows nothing of: the Leases, and the certificates."""
        for lease in filter(None, (installed.lease, installed.proxy_lease)):
            await self._delete(LEASE, lease, installed.namespace)
        for secret in installed.secrets:
            await self._delete(SECRET, secret, installed.namespace)

    async def _delete(self, kind: ResourceType, name: str, namespace: str | None = None) -> None:
        for tries_left in reversed(range(TRIES)):
            try:
                await self._kube.delete(kind, name, namespace)
            except KubeError as error:
                await self._pause(error, tries_left)
            else:
                return

    async def _patch(
        self, kind: ResourceType, name: str, body: KubeObject, namespace: str, *, subresource: str = ""
    ) -> bool:
        """Whether there was something to patch."""
        for tries_left in reversed(range(TRIES)):
            try:
                await self._kube.patch(kind, name, body, namespace, subresource=subresource)
            except KubeError as error:
                if error.status == 404:
                    return False
                await self._pause(error, tries_left)
            else:
                return True
        raise AssertionError("the last try returns or raises")

    async def _pause(self, error: KubeError, tries_left: int) -> None:
        if error.status == 409 or not error.retryable or not tries_left:
            raise error
        log.warning("uninstall.retried", extra={"code": error.code, "detail": error.detail})
        await self._clock.sleep(max(PAUSE_S, error.retry_after_s))


def with_finalizer(jobs: Iterable[KubeObject]) -> list[KubeObject]:
    """Those that have our finalizer."""
    return [job for job in jobs if FINALIZER in (job["metadata"].get("finalizers") or ())]
