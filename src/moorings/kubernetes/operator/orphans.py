"""Releases partitions whose job is gone.

A job may vanish despite our finalizer: a user removes it, or an API server that is about to remove the job does not see
the new finalizer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import POD, KubeApi, get_or_none
from moorings.kubernetes.kube.informer import MultiNamespaceInformer
from moorings.kubernetes.operator.executor import PartitionApi, may_use_partition
from moorings.kubernetes.proxy_api import shapes
from moorings.kubernetes.proxy_api.client import PartitionInformer
from moorings.kubernetes.proxy_api.shapes import PartitionBody

log = logging.getLogger("moorings.kubernetes.operator")


class OrphanSweeper:
    """Finds partitions without a job, and releases them.

    Args:
        kube: the API server.
        proxy: in front of the controllers.
        jobs: the watched IPUJobs.
        view: their watched partitions.
        namespaces: whose jobs we may read; empty: of all. About others nothing is concluded.
        is_leading: whether this operator leads.
    """

    def __init__(
        self,
        kube: KubeApi,
        proxy: PartitionApi,
        jobs: MultiNamespaceInformer,
        view: PartitionInformer,
        namespaces: Collection[str],
        is_leading: Callable[[], bool],
    ) -> None:
        self._kube = kube
        self._proxy = proxy
        self._jobs = jobs
        self._view = view
        self._namespaces = namespaces
        self._is_leading = is_leading

    async def release_orphans(self, namespace: str = "", name: str = "") -> int:
        """Release partitions whose job is gone, of one name or of all; how many.

        Raises:
            MooringsError: the API server or the proxy did not respond.
        """
        if not self._view.is_watching:
            return 0
        swept = 0
        for seen in self._view.by_job_name(namespace, name) if name else self._view.all():
            body = self._view.get(seen.namespace, seen.job, seen.uid).get(seen.instance)  # earlier calls took time
            if body is None or shapes.is_given_back(body) or not self._is_without_job(body):
                continue
            if await self._exists_in_cluster(body) or not self._is_leading():
                continue
            log.warning(
                "partition.orphan",
                extra={"job": f"{body.namespace}/{body.job}", "uid": body.uid, "partition": body.name},
            )
            await self._proxy.release(body.namespace, body.job, body.uid, body.instance)
            swept += 1
        return swept

    def _is_without_job(self, body: PartitionBody) -> bool:
        """Whether no watched job has it; False if we may not watch its namespace."""
        seen = self._jobs.get(body.namespace, body.job)
        is_ours = not self._namespaces or body.namespace in self._namespaces
        return is_ours and (seen is None or seen["metadata"]["uid"] != body.uid)

    async def _exists_in_cluster(self, body: PartitionBody) -> bool:
        """Whether a partition's job, or a Pod of it, exists after all: asks the API server itself."""
        found = await get_or_none(self._kube, IPU_JOB, body.job, body.namespace)
        if found is not None and found["metadata"]["uid"] == body.uid:
            return True
        listed = await self._kube.list(POD, body.namespace, labels=f"{names.JOB}={body.job}")
        return any(may_use_partition(pod, body.uid, body.name) for pod in listed.items)
