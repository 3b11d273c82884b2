"""Creates the IPUJob of an attempt and activates it, each once: see ``fence``."""

from __future__ import annotations

import asyncio
import contextlib

from moorings.core.model.errors import MooringsError
from moorings.engines.launch import rejected_error, unavailable_error
from moorings.kubernetes.engine.fence import ConfigMapFence
from moorings.kubernetes.engine.run_folder import KubernetesAttempt, SubmittedIPUJob
from moorings.kubernetes.engine.submission import build_secret, is_active, is_attempts_job
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import SECRET, ExpectedErrors, KubeApi, KubeError, KubeObject, get_or_none
from moorings.ports.engine import RunSubmission

TRIES = 20


class IPUJobSubmitter:
    """Makes the IPUJobs of an installation.

    Args:
        kube: the API server.
        fence: which controller may activate them.
        installation: id of the installation.
    """

    def __init__(self, kube: KubeApi, fence: ConfigMapFence, installation: str) -> None:
        self._kube = kube
        self._fence = fence
        self._installation = installation

    async def submit(self, order: RunSubmission, attempt: KubernetesAttempt, body: KubeObject) -> SubmittedIPUJob:
        """Create and activate the IPUJob of an attempt with a saved order, as far as it was not; returns that order.

        Raises:
            KubeError, OSError: it is not known to be active.
            MooringsError: ``engine.rejected``, ``engine.unavailable``.
        """
        facts = await asyncio.to_thread(attempt.read_state)
        if not facts.alive:
            await self._create(order, facts.asked, body)
        await self._activate(order, attempt, facts.asked)
        return facts.asked

    async def withdraw(self, order: RunSubmission, asked: SubmittedIPUJob) -> None:
        """Delete the IPUJob of a submission that failed half way, unless it is active."""
        with contextlib.suppress(KubeError):  # else it is tidied away later
            found = await get_or_none(self._kube, IPU_JOB, asked.name, asked.namespace)
            ours = found is not None and is_attempts_job(found, order.run, order.attempt, self._installation)
            if found is not None and ours and not is_active(found):
                await self._kube.delete(IPU_JOB, asked.name, asked.namespace, uid=found["metadata"]["uid"])

    async def _create(self, order: RunSubmission, asked: SubmittedIPUJob, body: KubeObject) -> None:
        """Create the IPUJob without an instance, and its Secret."""
        try:
            found = await self._kube.create(IPU_JOB, body, asked.namespace)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await self._kube.get(IPU_JOB, asked.name, asked.namespace)
            if not is_attempts_job(found, order.run, order.attempt, self._installation):
                detail = f"there is an IPUJob {asked.reference} already, which is not this run's"
                raise rejected_error(detail, "delete or rename that one") from error
        secret = build_secret(order, asked, found["metadata"]["uid"])
        with ExpectedErrors("AlreadyExists"):
            await self._kube.create(SECRET, secret, asked.namespace)
            return
        await self._kube.replace(SECRET, secret, asked.namespace)

    async def _activate(self, order: RunSubmission, attempt: KubernetesAttempt, asked: SubmittedIPUJob) -> None:
        """Activate the IPUJob: give it its instance, unless a newer leader does not know of it."""
        for _ in range(TRIES):
            facts = await asyncio.to_thread(attempt.read_state)
            try:
                found = await self._kube.get(IPU_JOB, asked.name, asked.namespace)
            except KubeError as error:
                if error.status == 404 and facts.alive:
                    return  # it existed, and is not created a second time
                raise _as_retryable(error) from error
            if is_active(found) or facts.stop is not None:
                await asyncio.to_thread(attempt.save_alive)
                return
            if found["metadata"].get("deletionTimestamp") is not None:
                raise unavailable_error(f"{asked.reference} is being deleted")
            await self._fence.check_epoch(order.epoch)
            await asyncio.to_thread(attempt.save_alive)
            change = {
                "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
                "spec": {"jobInstances": 1},
            }
            try:
                await self._kube.patch(IPU_JOB, asked.name, change, asked.namespace)
            except KubeError as error:
                if error.status != 409:
                    raise
            else:
                return
        raise unavailable_error(f"{asked.reference} changes all the time")


def _as_retryable(error: KubeError) -> MooringsError:
    return unavailable_error(error.detail) if error.status == 404 else error
