"""The engine ``kubernetes``, as the controller sees it.

All durable state is in the runs' folders and in Kubernetes: a new engine finds everything that an old one left. A run
starts only once because of two things: the IPUJob's name belongs to its attempt, and the folder records that the IPUJob
was activated, so a missing one is not created again. Deleting its IPUJob stops a run, since the operator then releases
the partition when nothing of the run is left; so tasks' ends and output are stored as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.launch import parse_signal, rejected_error, unavailable_error
from moorings.engines.run_folder import AttemptFolder
from moorings.engines.scheduled import NewestAttempt, ScheduledEngine
from moorings.kubernetes.engine.attempt_control import AttemptControl
from moorings.kubernetes.engine.attempts import AttemptTracker, LiveAttempt
from moorings.kubernetes.engine.fence import ConfigMapFence
from moorings.kubernetes.engine.maintenance import RunMaintenance
from moorings.kubernetes.engine.run_folder import (
    KubernetesAttempt,
    KubernetesAttemptState,
    KubernetesRunFolder,
    StopRecord,
    SubmittedIPUJob,
)
from moorings.kubernetes.engine.run_informers import RunInformers
from moorings.kubernetes.engine.run_status import (
    STOP_REQUESTED,
    began_at,
    build_end_record,
    first_running,
    have_all_ended,
    have_all_started,
    is_pod_over,
    were_all_stopped,
)
from moorings.kubernetes.engine.settings import KubernetesEngineSettings
from moorings.kubernetes.engine.submission import (
    CONTAINER,
    INSTALLATION,
    RUN,
    attempt_key_of,
    build_job,
    build_submitted_job,
    check_job,
    describe_differences,
    is_active,
    parse_submitted_job,
)
from moorings.kubernetes.engine.submitter import IPUJobSubmitter
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.parsing import parse_status
from moorings.kubernetes.ipujob.types import ENDED, IPU_JOB
from moorings.kubernetes.kube.api import POD, KubeApi, KubeError, KubeObject, get_or_none
from moorings.kubernetes.kube.pod_streams import PodStreams
from moorings.ports.clock import Clock
from moorings.ports.engine import RunSubmission, TaskContainer
from moorings.ports.store import Epoch
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId, RunPhase, RunStatus

log = logging.getLogger("moorings.kubernetes.engine")

SETTLE_S = 15.0  # an output that cannot be read to its end by then stays incomplete
LOOKS_AT_ONCE = 16


class KubernetesEngine(ScheduledEngine):
    """Runs jobs as IPUJobs of a Kubernetes cluster.

    Args:
        settings: the cluster, and the places of jobs in it.
        folder: of the runs, the same for all controllers of the installation.
        installation: id of the installation; its IPUJobs are ours.
        kube: the API server.
        calls: its way to kubelets.
        clock: the time, and waiting.
    """

    scheduler = "Kubernetes"
    settle_s = SETTLE_S

    def __init__(
        self,
        settings: KubernetesEngineSettings,
        folder: Path,
        installation: str,
        kube: KubeApi,
        calls: PodStreams,
        clock: Clock,
    ) -> None:
        super().__init__(clock)
        self._settings = settings
        self._folder = folder
        self._installation = installation
        self._kube = kube
        self._calls = calls
        self._fence = ConfigMapFence(kube, settings.namespaces, installation)
        self._submitter = IPUJobSubmitter(kube, self._fence, installation)
        self._tracker = AttemptTracker(folder, calls, clock, self._changed.set)
        self._informers = RunInformers(
            kube,
            settings.namespaces,
            installation,
            self._tracker.observe_pod,
            self._tracker.observe_gone,
            self._changed.set,
        )
        self._control = AttemptControl(kube, calls, self._informers, installation)
        self._maintenance = RunMaintenance(
            kube, folder, self._informers, self._tracker, self._control, clock, self._changed.set
        )
        self._submit_locks: dict[RunId, asyncio.Lock] = {}
        self._looking = asyncio.Semaphore(LOOKS_AT_ONCE)

    def check_job(self, job: JobSpec) -> Sequence[str]:
        check_job(job)
        return describe_differences(job, self._settings)

    async def fence_below(self, epoch: Epoch) -> None:
        self._start()
        with self._as_unavailable("Kubernetes cannot be asked who leads"):
            await self._fence.raise_epoch(epoch)
        self._maintenance.epoch = max(self._maintenance.epoch, epoch)

    def _start(self) -> None:
        self._informers.start()
        self._tracker.start()
        self._maintenance.start()

    # -- submitting ----------------------------------------------------------------------------------------------------

    async def submit(self, order: RunSubmission) -> str:
        check_job(order.job)
        asked = build_submitted_job(order, self._settings)
        body = build_job(order, asked, self._settings, self._installation)
        self._start()
        async with self._submit_locks.setdefault(order.run, asyncio.Lock()):
            with self._as_unavailable(f"run {order.run} could not be submitted"):
                try:
                    reference = await self._submitted(order, asked, body)
                except KubeError as error:
                    if error.retryable or error.status == 401:
                        raise
                    await self._submitter.withdraw(order, asked)
                    raise rejected_error(f"Kubernetes refuses it: {error.detail}") from error
        self._changed.set()
        return reference

    async def _submitted(self, order: RunSubmission, asked: SubmittedIPUJob, body: KubeObject) -> str:
        """Submit: the reference of this order's IPUJob, or of a later one."""
        await self._fence.check_epoch(order.epoch)
        folder = KubernetesRunFolder(self._folder / order.run)
        held = await self._newest(order.run)
        if held is not None:
            facts = await asyncio.to_thread(held.read_state)
            if held.number > order.attempt or (held.number == order.attempt and (facts.end or facts.stop)):
                return facts.asked.reference
            await self._require_earlier_ended(order, held)
        attempt = folder.attempt(order.attempt)
        await asyncio.to_thread(attempt.save_order, asked)
        return (await self._submitter.submit(order, attempt, body)).reference

    async def _newest(self, run: RunId) -> KubernetesAttempt | None:
        """The newest attempt that the folder or Kubernetes knows.

        Raises:
            KubeError, OSError: it cannot be determined.
        """
        folder = KubernetesRunFolder.find(self._folder, run)
        if folder is None:
            return None
        held = await asyncio.to_thread(folder.newest_attempt)
        if held is not None:
            return held
        labels = f"{INSTALLATION}={self._installation},{RUN}={run}"
        found = [
            job
            for namespace in self._settings.namespaces
            for job in (await self._kube.list(IPU_JOB, namespace, labels=labels)).items
        ]
        await asyncio.to_thread(self._adopt, folder, found)  # another machine's folder knew them
        return await asyncio.to_thread(folder.newest_attempt)

    def _adopt(self, folder: KubernetesRunFolder, found: Sequence[KubeObject]) -> None:
        """Save the attempts of these IPUJobs, the newest first: once one is saved, the folder is taken for complete."""
        jobs = [(key[1], job) for job in found if (key := attempt_key_of(job)) is not None and is_active(job)]
        for number, job in sorted(jobs, key=lambda pair: pair[0], reverse=True):
            asked = parse_submitted_job(job)
            if asked is not None:
                attempt = folder.attempt(number)
                attempt.save_order(asked)
                attempt.save_alive()

    # -- observing -----------------------------------------------------------------------------------------------------

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        self._start()
        return await asyncio.gather(*(self._observe_bounded(run) for run in runs))

    async def _observe_bounded(self, run: RunId) -> RunStatus:
        async with self._looking:
            return await self._sighting(run)

    async def _sighting(self, run: RunId) -> RunStatus:
        try:
            attempt = await self._newest(run)
            if attempt is None:
                return RunStatus(run, RunPhase.ABSENT)
            facts = await asyncio.to_thread(attempt.read_state)
            if facts.end is not None:
                seen = self._ended(run, facts.end, facts.asked.reference)
            elif not await self._informers.synced():
                return RunStatus(run, RunPhase.UNKNOWN, reason="Kubernetes cannot be asked")
            else:
                seen = await self._observe_job(run, attempt, facts)
            record = await asyncio.to_thread(attempt.last_checkpoints)
            if record is None and facts.asked.unseen:
                record = CheckpointRecord(attempt.number, (), facts.asked.unseen)
            seen = await self._of_attempt(seen, attempt, record)
            life = self._tracker.get_attempt((run, attempt.number))
            given = life.resumed_from if life is not None else None
            return replace(seen, resumed_from=given or seen.resumed_from)
        except KubeError as error:
            log.warning("kubernetes.unseen", extra={"run": run, "code": error.code, "detail": error.detail})
            return RunStatus(run, RunPhase.UNKNOWN, reason=f"Kubernetes cannot be asked: {error.detail}")
        except (OSError, ValueError) as error:
            log.warning("run.unreadable", extra={"run": run, "detail": str(error)})
            return RunStatus(run, RunPhase.UNKNOWN)

    async def _observe_job(self, run: RunId, attempt: KubernetesAttempt, facts: KubernetesAttemptState) -> RunStatus:
        asked = facts.asked
        life = await self._tracker.load_attempt(run, attempt)
        job = self._informers.job(asked.namespace, asked.name)
        if job is None or not is_active(job):
            job = await get_or_none(self._kube, IPU_JOB, asked.name, asked.namespace)  # a watch may be a little late
        if job is None:
            return await self._observe_missing(run, attempt, facts, life)
        self._missing.clear(run)
        if not is_active(job):
            return await self._observe_inactive(run, attempt, facts)
        status = parse_status(job.get("status"))
        deleting = job["metadata"].get("deletionTimestamp") is not None
        life.deleted = life.deleted or deleting
        if status.state in ENDED or (deleting and have_all_ended(asked, life.tasks)):
            ended = await self._conclude(run, attempt, facts, life, job)
            if ended is not None:
                return ended
        reference = asked.reference
        starts_again = were_all_stopped(asked, life.tasks) and not (status.state in ENDED or deleting or facts.stop)
        if have_all_started(asked, life.tasks) and not starts_again:
            return RunStatus(run, RunPhase.RUNNING, began_at(life.tasks), reference=reference)
        reason = f"IPUJob {reference}: {status.message or 'it was not looked at yet'}"
        return RunStatus(run, RunPhase.STARTING, reference=reference, reason=reason)

    async def _observe_inactive(
        self, run: RunId, attempt: KubernetesAttempt, facts: KubernetesAttemptState
    ) -> RunStatus:
        """The status of a run whose IPUJob has no instance: its submission is incomplete, or a user scaled it down."""
        if facts.stop is None:
            return RunStatus(run, RunPhase.UNKNOWN if facts.alive else RunPhase.ABSENT)
        return await self._write_end(run, attempt, facts, LiveAttempt(), None)

    async def _observe_missing(
        self, run: RunId, attempt: KubernetesAttempt, facts: KubernetesAttemptState, life: LiveAttempt
    ) -> RunStatus:
        """The status of a run without an IPUJob: it was never created, was deleted, or the API server lost it."""
        if not facts.alive:
            if facts.stop is None:
                return RunStatus(run, RunPhase.ABSENT)
            return await self._write_end(run, attempt, facts, life, None)
        gone = facts.stop is not None or life.deleted or have_all_ended(facts.asked, life.tasks)
        if gone or self._missing.record_miss(run, self._clock.now()):
            ended = await self._conclude(run, attempt, facts, life, None)
            if ended is not None:
                return ended
        return RunStatus(run, RunPhase.UNKNOWN)

    async def _conclude(
        self,
        run: RunId,
        attempt: KubernetesAttempt,
        facts: KubernetesAttemptState,
        life: LiveAttempt,
        job: KubeObject | None,
    ) -> RunStatus | None:
        """Record how a run ended, if nothing of it runs and its output is here; None: not yet."""
        asked = facts.asked
        labels = f"{names.JOB}={asked.name},{RUN}={run}"
        for pod in (await self._kube.list(POD, asked.namespace, labels=labels)).items:  # a watch may be a little late
            self._tracker.observe_pod(pod)
            if not is_pod_over(pod):
                return None
        settled = self._is_settled(run)
        if self._tracker.count_copies(run, attempt.number) and not settled:
            return None
        return await self._write_end(run, attempt, facts, life, job)

    async def _write_end(
        self,
        run: RunId,
        attempt: KubernetesAttempt,
        facts: KubernetesAttemptState,
        life: LiveAttempt,
        job: KubeObject | None,
    ) -> RunStatus:
        facts = await asyncio.to_thread(attempt.read_state)  # it may have been cancelled in between
        status = parse_status(job.get("status")) if job is not None else None
        record = build_end_record(facts.asked, life.tasks, facts.stop, status, life.deleted, self._clock.now())
        await asyncio.to_thread(attempt.save_end, record)
        facts = await asyncio.to_thread(attempt.read_state)
        self._submit_locks.pop(run, None)
        self._tracker.forget(run, attempt.number)
        with contextlib.suppress(KubeError):  # else it is tidied away later
            await self._kube.delete(IPU_JOB, facts.asked.name, facts.asked.namespace)
        return self._ended(run, facts.end, facts.asked.reference)

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def cancel(self, run: RunId, reason: str) -> None:
        self._start()
        with self._as_unavailable(f"run {run} could not be cancelled"):
            attempt = await self._newest(run)
            if attempt is None:
                return
            facts = await asyncio.to_thread(attempt.read_state)
            life = await self._tracker.load_attempt(run, attempt)
            over = have_all_ended(facts.asked, life.tasks) and not were_all_stopped(facts.asked, life.tasks)
            if facts.end is not None or (facts.stop is None and over):
                return
            stop = StopRecord(STOP_REQUESTED, " ".join(reason.split()), self._clock.now())
            await self._control.stop(run, attempt, facts.asked, stop)
        self._changed.set()

    async def _warn_of_pause(self, attempt: AttemptFolder, seen: RunStatus) -> None:
        assert isinstance(attempt, KubernetesAttempt)
        await self._control.warn((await asyncio.to_thread(attempt.read_state)).asked)

    async def signal(self, run: RunId, signal_name: str) -> None:
        parse_signal(signal_name)
        self._start()
        with self._as_unavailable(f"run {run} could not be signalled"):
            attempt = await self._newest(run)
            facts = await asyncio.to_thread(attempt.read_state) if attempt is not None else None
            sent = 0
            if facts is not None and facts.end is None and await self._informers.synced():
                sent = await self._control.signal(facts.asked, signal_name)
        if not sent:
            raise MooringsError("run.not_running", f"run {run} has no processes")

    async def find_terminal(self, run: RunId, *, attended: bool = False) -> str | TaskContainer:
        self._start()
        with self._as_unavailable(f"the terminal of run {run} cannot be found now"):
            attempt = await self._newest(run)
            facts = await asyncio.to_thread(attempt.read_state) if attempt is not None else None
            if attempt is not None and facts is not None and facts.end is None:
                if not await self._informers.synced():
                    raise unavailable_error("Kubernetes cannot be asked")
                if pod := first_running(self._informers.pods(facts.asked.namespace, facts.asked.name)):
                    life = self._tracker.get_attempt((run, attempt.number))
                    if attended and life is not None:
                        life.attended_at = self._clock.now()
                    return TaskContainer(facts.asked.namespace, pod, CONTAINER)
        raise MooringsError("run.not_running", f"task 0 of run {run} does not run")

    # -- output --------------------------------------------------------------------------------------------------------

    async def _newest_attempt(self, run: RunId) -> NewestAttempt | None:
        self._start()
        with self._as_unavailable(f"run {run} cannot be looked at now"):
            attempt = await self._newest(run)
            if attempt is None:
                return None
            facts = await asyncio.to_thread(attempt.read_state)
        return NewestAttempt(attempt, facts.asked.tasks, facts.end is not None, facts.asked.grace_s)

    def _engine_error(self, error: MooringsError, what: str) -> MooringsError:
        return unavailable_error(f"{what}: {error.detail}") if isinstance(error, KubeError) else error

    async def close(self) -> None:
        await self._maintenance.close()
        await self._informers.close()
        await self._tracker.close()
        await self._calls.close()
        await self._kube.close()
