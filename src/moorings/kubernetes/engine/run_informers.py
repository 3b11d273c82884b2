"""Informers of our IPUJobs and their Pods, in each namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from moorings.kubernetes.engine.submission import INSTALLATION
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import POD, KubeApi, KubeObject
from moorings.kubernetes.kube.informer import Informer, ObjectKey, without_managed_fields

SYNC_S = 10.0
SILENT_S = 100.0  # a living server sends a bookmark every minute


class RunInformers:
    """Our IPUJobs and Pods.

    Args:
        kube: the API server.
        namespaces: of the IPUJobs.
        installation: id of the installation.
        on_pod: called with each Pod that is new or has changed.
        on_gone: called with the namespace and the name of each Pod that is gone.
        on_change: called after each change.
    """

    def __init__(
        self,
        kube: KubeApi,
        namespaces: Iterable[str],
        installation: str,
        on_pod: Callable[[KubeObject], None],
        on_gone: Callable[[str, str], None],
        on_change: Callable[[], None],
    ) -> None:
        self._on_pod = on_pod
        self._on_gone = on_gone
        self._on_change = on_change
        labels = f"{INSTALLATION}={installation}"
        self._jobs: dict[str, Informer] = {}
        self._pods: dict[str, Informer] = {}
        for namespace in namespaces:
            self._jobs[namespace] = Informer(
                kube, IPU_JOB, namespace=namespace, labels=labels, on_change=lambda _: on_change()
            )
            self._pods[namespace] = Informer(
                kube,
                POD,
                namespace=namespace,
                labels=labels,
                on_change=self._pod_changed,
                trim=_trim_pod,
                index=lambda pod: (job_key_of(pod),),
            )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start, unless they have started."""
        if not self._tasks:
            informers = (*self._jobs.values(), *self._pods.values())
            self._tasks = [asyncio.create_task(one.serve(), name="engine-informer") for one in informers]

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def synced(self) -> bool:
        """Whether the copy is complete and not old; waits a little for the first list."""
        informers = (*self._jobs.values(), *self._pods.values())
        try:
            async with asyncio.timeout(SYNC_S):
                for one in informers:
                    await one.synced.wait()
        except TimeoutError:
            return False
        return all(one.age_s < SILENT_S for one in informers)

    def job(self, namespace: str, name: str) -> KubeObject | None:
        """An IPUJob of this installation."""
        informer = self._jobs.get(namespace)
        return informer.get(namespace, name) if informer is not None else None

    def jobs(self) -> list[KubeObject]:
        """All IPUJobs of this installation."""
        return [job for informer in self._jobs.values() for job in informer]

    def pods(self, namespace: str, job: str) -> Sequence[KubeObject]:
        """The Pods of a job."""
        informer = self._pods.get(namespace)
        return informer.indexed(f"{namespace}/{job}") if informer is not None else ()

    def _pod_changed(self, key: ObjectKey) -> None:
        pod = self._pods[key.namespace].get(key.namespace, key.name)
        if pod is not None:
            self._on_pod(pod)
        else:
            self._on_gone(key.namespace, key.name)
        self._on_change()


def job_key_of(pod: KubeObject) -> str:
    """``namespace/name`` of the IPUJob of a Pod."""
    meta = pod["metadata"]
    return f"{meta['namespace']}/{(meta.get('labels') or {}).get(names.JOB, '')}"


def _trim_pod(pod: KubeObject) -> KubeObject:
    return {"metadata": without_managed_fields(pod)["metadata"], "status": pod.get("status") or {}}
