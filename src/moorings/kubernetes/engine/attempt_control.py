"""Stops and signals what runs of an attempt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.engines.launch import parse_signal, rejected_error
from moorings.kubernetes.engine.run_folder import KubernetesAttempt, StopRecord, SubmittedIPUJob
from moorings.kubernetes.engine.run_informers import RunInformers
from moorings.kubernetes.engine.run_status import is_pod_over, is_pod_running
from moorings.kubernetes.engine.submission import CONTAINER, is_attempts_job
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import POD, KubeApi, KubeError, get_or_none
from moorings.kubernetes.kube.pod_streams import PodStreams
from moorings.workloads.runs import RunId

log = logging.getLogger("moorings.kubernetes.engine")

SIGNALS = (Path(__file__).parent / "signals.sh").read_text(encoding="utf-8")
NO_PROCESS, NO_SHELL = 3, (126, 127, 128)


class AttemptControl:
    """Acts on IPUJobs and Pods of attempts.

    Args:
        kube: the API server.
        calls: its way to kubelets.
        informers: of the Pods.
        installation: id of the installation.
    """

    def __init__(self, kube: KubeApi, calls: PodStreams, informers: RunInformers, installation: str) -> None:
        self._kube = kube
        self._calls = calls
        self._informers = informers
        self._installation = installation

    async def stop(self, run: RunId, attempt: KubernetesAttempt, asked: SubmittedIPUJob, stop: StopRecord) -> None:
        """Delete its IPUJob and, in case the operator is away, its Pods: TERM, the grace period, KILL.

        A shell at a terminal ignores TERM, so it gets HUP, too.
        """
        await asyncio.to_thread(attempt.save_stop, stop)
        found = await get_or_none(self._kube, IPU_JOB, asked.name, asked.namespace)
        ours = found is not None and is_attempts_job(found, run, attempt.number, self._installation)
        if found is not None and ours and found["metadata"].get("deletionTimestamp") is None:
            await self._kube.delete(IPU_JOB, asked.name, asked.namespace, uid=found["metadata"]["uid"])
        for pod in self._informers.pods(asked.namespace, asked.name):
            meta = pod["metadata"]
            if meta.get("deletionTimestamp") is None and not is_pod_over(pod):
                await self._kube.delete(POD, meta["name"], asked.namespace, uid=meta["uid"])
        if asked.keep_s is not None:
            with contextlib.suppress(MooringsError):  # then TERM alone, and KILL
                await self.signal(asked, "HUP")

    async def warn(self, asked: SubmittedIPUJob) -> int:
        """Warn all running tasks, each with the first of its signals that a process of it handles; as ``signal``."""
        return await self._signal(asked, asked.warn_signal.split(), "listeners")

    async def signal(self, asked: SubmittedIPUJob, signal_name: str) -> int:
        """Send a signal to all running tasks; returns their number.

        Raises:
            KubeError: a task could not be reached.
            MooringsError: ``engine.rejected``: the image has no shell.
        """
        return await self._signal(asked, [signal_name], "all")

    async def _signal(self, asked: SubmittedIPUJob, names: Sequence[str], to: str) -> int:
        numbers = [parse_signal(name) for name in names]
        choices = " ".join(f"{number.name.removeprefix('SIG')}:{number.value}" for number in numbers)
        words = ("/bin/sh", "-c", SIGNALS, "signals", choices, to)
        pods = [pod for pod in self._informers.pods(asked.namespace, asked.name) if is_pod_running(pod)]

        async def send(pod: str) -> bool:
            try:
                code, said = await self._calls.execute(asked.namespace, pod, CONTAINER, words)
            except KubeError as error:
                if error.reason == "NotRun":
                    raise _unsent_error(pod, error.detail) from error
                if error.status in (404, 400):  # the task has ended
                    return False
                raise
            if code in NO_SHELL:
                raise _unsent_error(pod, said[:200])
            if code not in (0, NO_PROCESS):
                log.warning("signal.unsent", extra={"pod": pod, "code": code, "detail": said[:200]})
            return code != NO_PROCESS

        sent = await asyncio.gather(*(send(pod["metadata"]["name"]) for pod in pods))
        return sum(sent)


def _unsent_error(pod: str, why: str) -> MooringsError:
    hint = "signals are sent by a shell in the task's container"
    return rejected_error(f"no signal can be sent to {pod}: {why}", hint)
