"""Fencing: only the controller that became leader last may activate IPUJobs.

The API server does not know our leaders, and between its check of leadership and the creation of a job a controller may
be suspended for an hour. So a job is created without an instance, when it holds nothing, and activated by a change that
names the version that was read. A new leader first raises the epoch in a ConfigMap, and then changes every job that is
not active yet: an activation prepared before that fails on the job's version, a later one sees the epoch.
Rejected: an epoch in a Lease or ConfigMap alone. Nothing would tie it to the creation of the job.
"""

from __future__ import annotations

from collections.abc import Iterable

from moorings.engines.fence import require_latest
from moorings.kubernetes.engine.submission import EPOCH, INSTALLATION, epoch_of, is_active
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import CONFIG_MAP, ExpectedErrors, KubeApi, KubeError, get_or_none
from moorings.ports.store import Epoch

TRIES = 20


class ConfigMapFence:
    """The fence around the IPUJobs of an installation.

    Args:
        kube: the API server.
        namespaces: of its jobs; the ConfigMap is in the first one.
        installation: id of the installation.
    """

    def __init__(self, kube: KubeApi, namespaces: Iterable[str], installation: str) -> None:
        self._kube = kube
        self._namespaces = tuple(namespaces)
        self._installation = installation
        self._name = f"moorings-engine-{installation}"

    async def raise_epoch(self, epoch: Epoch) -> None:
        """From now on no job is activated under an earlier epoch.

        Raises:
            KubeError: this could not be ensured.
        """
        if await self._raise(epoch):
            for namespace in self._namespaces:
                ours = await self._kube.list(IPU_JOB, namespace, labels=f"{INSTALLATION}={self._installation}")
                for job in ours.items:
                    if not is_active(job) and epoch_of(job) < epoch:
                        await self._stamp_epoch(job["metadata"]["name"], namespace, epoch)

    async def check_epoch(self, epoch: Epoch) -> None:
        """Return if no controller has become leader since.

        Raises:
            KubeError: it cannot be determined.
            MooringsError: ``engine.unavailable``: another controller leads by now.
        """
        found = await get_or_none(self._kube, CONFIG_MAP, self._name, self._namespaces[0])
        if found is None:
            return
        require_latest(epoch, _epoch(found))

    async def _raise(self, epoch: Epoch) -> bool:
        """Raise the epoch, unless it is higher; whether it has this value now."""
        home = self._namespaces[0]
        body = {"metadata": {"name": self._name, "namespace": home}, "data": {"epoch": str(epoch)}}
        for _ in range(TRIES):
            try:
                found = await self._kube.get(CONFIG_MAP, self._name, home)
                if (newest := _epoch(found)) >= epoch:
                    return newest == epoch
                await self._kube.replace(CONFIG_MAP, {**found, "data": body["data"]}, home)
            except KubeError as error:
                if error.status == 409:
                    continue
                if error.status != 404:
                    raise
                try:
                    await self._kube.create(CONFIG_MAP, body, home)
                except KubeError as refusal:
                    if refusal.reason != "AlreadyExists":
                        raise
                    continue
            return True
        raise KubeError(409, "Conflict", f"the ConfigMap {self._name} changes all the time")

    async def _stamp_epoch(self, name: str, namespace: str, epoch: Epoch) -> None:
        with ExpectedErrors(404):
            await self._kube.patch(IPU_JOB, name, {"metadata": {"annotations": {EPOCH: str(epoch)}}}, namespace)


def _epoch(found: dict[str, object]) -> int:
    data = found.get("data")
    text = data.get("epoch", "") if isinstance(data, dict) else ""
    return int(text) if str(text).isdecimal() else 0
