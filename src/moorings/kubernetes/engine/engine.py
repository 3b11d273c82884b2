"""The engine ``kubernetes``, as the controller sees it.

All durable state is in the runs' folders and in Kubernetes: a new engine finds everything that an old one left. A run
starts only once because of two things: the IPUJob's name belongs to its attempt, and the folder records that the IPUJob
was activated, so a missing one is not created again. Deleting its IPUJob stops a run, since the operator then releases
the partition when nothing of the run is left; so tasks' ends and output are stored as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from moorings.core.errors import MooringsError
from moorings.core.instants import Timestamp, add_seconds, seconds_between
from moorings.core.records import from_plain
from moorings.engines.looks import LogReader, MissedListings, rate_limited, wait_for_change
from moorings.engines.orders import (
    log_files_of_tasks,
    not_startable_error,
    parse_signal,
    rejected_error,
    unavailable_error,
)
from moorings.kubernetes import names
from moorings.kubernetes.engine.calls import PodStreams
from moorings.kubernetes.engine.fence import ConfigMapFence
from moorings.kubernetes.engine.keeping import AttemptTracker, LiveAttempt
from moorings.kubernetes.engine.rundir import (
    KubernetesAttempt,
    KubernetesAttemptState,
    KubernetesRunFolder,
    StopRecord,
    SubmittedIPUJob,
)
from moorings.kubernetes.engine.settings import KubernetesEngineSettings
from moorings.kubernetes.engine.submission import (
    ATTEMPT,
    CONTAINER,
    INSTALLATION,
    RUN,
    SUBMITTED_JOB,
    build_job,
    build_secret,
    build_submitted_job,
    check_job,
    describe_differences,
    epoch_of,
    is_active,
    is_attempts_job,
)
from moorings.kubernetes.engine.verdict import (
    LIMIT,
    STOP_REQUESTED,
    began_at,
    build_end_record,
    have_all_ended,
    have_all_started,
)
from moorings.kubernetes.engine.watching import RunInformers
from moorings.kubernetes.ipujob import KubeObject
from moorings.kubernetes.kube import IPU_JOB, POD, SECRET, KubeApi, KubeError
from moorings.kubernetes.plan import ENDED
from moorings.kubernetes.reading import parse_status
from moorings.ports.clock import Clock
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import RunId, RunPhase, RunStatus

log = logging.getLogger("moorings.kubernetes.engine")

CHANGED_S = 1.0
SETTLE_S = 15.0  # an output that cannot be read to its end by then stays incomplete
STOP_AGAIN_S = 5.0
TIDY_S = 30.0
FORGOTTEN_S = 3600.0  # age of an IPUJob that an earlier leader created and never activated
TRIES = 20
LOOKS_AT_ONCE = 16

SIGNALS = (Path(__file__).parent / "signals.sh").read_text(encoding="utf-8")
NO_PROCESS, NO_SHELL = 3, (126, 127, 128)


class KubernetesEngine:
    """Runs jobs as IPUJobs of a Kubernetes cluster.

    Args:
        settings: the cluster, and the places of jobs in it.
        folder: of the runs, the same for all controllers of the installation.
        installation: id of the installation; its IPUJobs are ours.
        kube: the API server.
        calls: its way to kubelets.
        clock: the time, and waiting.
        read: reads logs (file, prefix of each line) to their ends, or follows them until they are complete.
    """

    def __init__(
        self,
        settings: KubernetesEngineSettings,
        folder: Path,
        installation: str,
        kube: KubeApi,
        calls: PodStreams,
        clock: Clock,
        read: LogReader,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._installation = installation
        self._kube = kube
        self._calls = calls
        self._clock = clock
        self._read = read
        self._fence = ConfigMapFence(kube, settings.namespaces, installation)
        self._news = asyncio.Event()
        self._keeping = AttemptTracker(folder, calls, clock, self._news.set)
        self._watching = RunInformers(kube, settings.namespaces, installation, self._keeping.take, self._news.set)
        self._doors: dict[RunId, asyncio.Lock] = {}
        self._missing = MissedListings()
        self._over: dict[RunId, Timestamp] = {}
        self._looking = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._epoch = Epoch(0)
        self._tending: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return "kubernetes"

    @property
    def schedules(self) -> bool:
        return True

    def check(self, job: JobSpec) -> Sequence[str]:
        check_job(job)
        return describe_differences(job, self._settings)

    async def fence(self, epoch: Epoch) -> None:
        self._start()
        with _as_unavailable("Kubernetes cannot be asked who leads"):
            await self._fence.set(epoch)
        self._epoch = max(self._epoch, epoch)

    def _start(self) -> None:
        self._watching.start()
        self._keeping.start()
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend(), name="engine-kubernetes")

    # -- submitting ----------------------------------------------------------------------------------------------------

    async def submit(self, order: RunSubmission) -> str:
        check_job(order.job)
        asked = build_submitted_job(order, self._settings)
        body = build_job(order, asked, self._settings, self._installation)
        self._start()
        async with self._doors.setdefault(order.run, asyncio.Lock()):
            with _as_unavailable(f"run {order.run} could not be submitted"):
                try:
                    reference = await self._submitted(order, asked, body)
                except KubeError as error:
                    if error.retryable or error.status == 401:
                        raise
                    await self._withdraw(order, asked)
                    raise rejected_error(f"Kubernetes refuses it: {error.detail}") from error
        self._news.set()
        return reference

    async def _submitted(self, order: RunSubmission, asked: SubmittedIPUJob, body: KubeObject) -> str:
        """Submit: the reference of this order's IPUJob, or of a later one."""
        await self._fence.check(order.epoch)
        folder = KubernetesRunFolder(self._folder / order.run)
        held = await self._newest(order.run)
        if held is not None:
            facts = await asyncio.to_thread(held.facts)
            if held.number > order.attempt or (held.number == order.attempt and (facts.end or facts.stop)):
                return _reference(facts.asked)
            if held.number < order.attempt and not await self._is_over(order.run):
                raise not_startable_error(order, f"attempt {held.number} has not ended")
        attempt = folder.attempt(order.attempt)
        await asyncio.to_thread(attempt.save_order, asked)
        facts = await asyncio.to_thread(attempt.facts)
        if not facts.alive:
            await self._make(order, facts.asked, body)
        await self._bring_to_life(order, attempt, facts.asked)
        return _reference(facts.asked)

    async def _withdraw(self, order: RunSubmission, asked: SubmittedIPUJob) -> None:
        """Delete the IPUJob of a submission that failed half way, unless it is active."""
        with contextlib.suppress(KubeError):  # else it is tidied away later
            found = await self._get(asked)
            ours = found is not None and is_attempts_job(found, order.run, order.attempt, self._installation)
            if found is not None and ours and not is_active(found):
                await self._kube.delete(IPU_JOB, asked.name, asked.namespace, uid=found["metadata"]["uid"])

    async def _make(self, order: RunSubmission, asked: SubmittedIPUJob, body: KubeObject) -> None:
        """Create the IPUJob without an instance, and its Secret."""
        try:
            found = await self._kube.create(IPU_JOB, body, asked.namespace)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await self._kube.get(IPU_JOB, asked.name, asked.namespace)
            if not is_attempts_job(found, order.run, order.attempt, self._installation):
                told = f"there is an IPUJob {_reference(asked)} already, which is not this run's"
                raise rejected_error(told, "delete or rename that one") from error
        secret = build_secret(order, asked, found["metadata"]["uid"])
        try:
            await self._kube.create(SECRET, secret, asked.namespace)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._kube.replace(SECRET, secret, asked.namespace)

    async def _bring_to_life(self, order: RunSubmission, attempt: KubernetesAttempt, asked: SubmittedIPUJob) -> None:
        """Activate the IPUJob: give it its instance, unless a newer leader does not know of it (see ``fence``)."""
        for _ in range(TRIES):
            facts = await asyncio.to_thread(attempt.facts)
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
                raise unavailable_error(f"{_reference(asked)} is being deleted")
            await self._fence.check(order.epoch)
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
        raise unavailable_error(f"{_reference(asked)} changes all the time")

    async def _is_over(self, run: RunId) -> bool:
        return (await self.observe([run]))[0].phase in (RunPhase.ENDED, RunPhase.ABSENT)

    async def _newest(self, run: RunId) -> KubernetesAttempt | None:
        """The newest attempt that the folder or Kubernetes knows.

        Raises:
            KubeError, OSError: it cannot be determined.
        """
        folder = KubernetesRunFolder.of(self._folder, run)
        if folder is None:
            return None
        held = await asyncio.to_thread(folder.newest)
        if held is not None:
            return held
        labels = f"{INSTALLATION}={self._installation},{RUN}={run}"
        found = [
            job
            for namespace in self._settings.namespaces
            for job in (await self._kube.list(IPU_JOB, namespace, labels=labels)).items
        ]
        for job in sorted(found, key=_attempt_of):  # another machine's folder knew them
            await asyncio.to_thread(self._adopt, folder, job)
        return await asyncio.to_thread(folder.newest)

    def _adopt(self, folder: KubernetesRunFolder, job: KubeObject) -> None:
        asked = _asked_in(job)
        if asked is not None and is_active(job):
            attempt = folder.attempt(_attempt_of(job))
            attempt.save_order(asked)
            attempt.save_alive()

    # -- observing -----------------------------------------------------------------------------------------------------

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        self._start()
        return await asyncio.gather(*(self._seen(run) for run in runs))

    async def _seen(self, run: RunId) -> RunStatus:
        async with self._looking:
            return await self._sighting(run)

    async def _sighting(self, run: RunId) -> RunStatus:
        try:
            attempt = await self._newest(run)
            if attempt is None:
                return RunStatus(run, RunPhase.ABSENT)
            facts = await asyncio.to_thread(attempt.facts)
            if facts.end is not None:
                return RunStatus(
                    run, RunPhase.ENDED, facts.end.started_at, facts.end, reference=_reference(facts.asked)
                )
            if not await self._watching.synced():
                return RunStatus(run, RunPhase.UNKNOWN, reason="Kubernetes cannot be asked")
            return await self._look(run, attempt, facts)
        except KubeError as error:
            log.warning("kubernetes.unseen", extra={"run": run, "code": error.code, "detail": error.detail})
            return RunStatus(run, RunPhase.UNKNOWN, reason=f"Kubernetes cannot be asked: {error.detail}")
        except (OSError, ValueError) as error:
            log.warning("run.unreadable", extra={"run": run, "detail": str(error)})
            return RunStatus(run, RunPhase.UNKNOWN)

    async def _look(self, run: RunId, attempt: KubernetesAttempt, facts: KubernetesAttemptState) -> RunStatus:
        asked = facts.asked
        life = await self._keeping.life(run, attempt)
        job = self._watching.job(asked.namespace, asked.name)
        if job is None or not is_active(job):
            job = await self._get(asked)  # a watch may be a little late
        if job is None:
            return await self._look_for_lost(run, attempt, facts, life)
        self._missing.forget(run)
        if not is_active(job):
            return await self._look_at_unborn(run, attempt, facts)
        status = parse_status(job.get("status"))
        deleting = job["metadata"].get("deletionTimestamp") is not None
        life.deleted = life.deleted or deleting
        if status.state in ENDED or (deleting and have_all_ended(asked, life.tasks)):
            ended = await self._conclude(run, attempt, facts, life, job)
            if ended is not None:
                return ended
        reference = _reference(asked)
        if have_all_started(asked, life.tasks):
            return RunStatus(run, RunPhase.RUNNING, began_at(life.tasks), reference=reference)
        reason = f"IPUJob {reference}: {status.message or 'it was not looked at yet'}"
        return RunStatus(run, RunPhase.STARTING, reference=reference, reason=reason)

    async def _get(self, asked: SubmittedIPUJob) -> KubeObject | None:
        try:
            return await self._kube.get(IPU_JOB, asked.name, asked.namespace)
        except KubeError as error:
            if error.status != 404:
                raise
            return None

    async def _look_at_unborn(self, run: RunId, attempt: KubernetesAttempt, facts: KubernetesAttemptState) -> RunStatus:
        """The status of a run whose IPUJob has no instance: its submission is incomplete, or a user scaled it down."""
        if facts.stop is None:
            return RunStatus(run, RunPhase.UNKNOWN if facts.alive else RunPhase.ABSENT)
        return await self._write_end(run, attempt, facts, LiveAttempt(), None)

    async def _look_for_lost(
        self, run: RunId, attempt: KubernetesAttempt, facts: KubernetesAttemptState, life: LiveAttempt
    ) -> RunStatus:
        """The status of a run without an IPUJob: it was never created, was deleted, or the API server lost it."""
        if not facts.alive:
            if facts.stop is None:
                return RunStatus(run, RunPhase.ABSENT)
            return await self._write_end(run, attempt, facts, life, None)
        if facts.stop is not None or life.deleted or have_all_ended(facts.asked, life.tasks):
            ended = await self._conclude(run, attempt, facts, life, None)
            return ended if ended is not None else RunStatus(run, RunPhase.UNKNOWN)
        if self._missing.again(run, self._clock.now()):
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
            self._keeping.take(pod)
            if not self._keeping.is_over(pod):
                return None
        since = self._over.setdefault(run, self._clock.now())
        if self._keeping.copies(run, attempt.number) and seconds_between(since, self._clock.now()) < SETTLE_S:
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
        facts = await asyncio.to_thread(attempt.facts)  # it may have been cancelled in between
        status = parse_status(job.get("status")) if job is not None else None
        record = build_end_record(facts.asked, life.tasks, facts.stop, status, life.deleted, self._clock.now())
        await asyncio.to_thread(attempt.save_end, record)
        facts = await asyncio.to_thread(attempt.facts)
        assert facts.end is not None
        self._over.pop(run, None)
        self._missing.forget(run)
        self._doors.pop(run, None)
        self._keeping.forget(run, attempt.number)
        with contextlib.suppress(KubeError):  # else it is tidied away later
            await self._kube.delete(IPU_JOB, facts.asked.name, facts.asked.namespace)
        return RunStatus(run, RunPhase.ENDED, facts.end.started_at, facts.end, reference=_reference(facts.asked))

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def cancel(self, run: RunId, reason: str) -> None:
        self._start()
        with _as_unavailable(f"run {run} could not be cancelled"):
            attempt = await self._newest(run)
            if attempt is None:
                return
            facts = await asyncio.to_thread(attempt.facts)
            life = await self._keeping.life(run, attempt)
            if facts.end is not None or (facts.stop is None and have_all_ended(facts.asked, life.tasks)):
                return
            await self._stop(
                run, attempt, facts, StopRecord(STOP_REQUESTED, " ".join(reason.split()), self._clock.now())
            )
        self._news.set()

    async def ask_to_yield(self, run: RunId, attempt: int, reason: str, by: Timestamp) -> None:
        raise rejected_error(f"run {run} yields when Kubernetes says so")

    async def _stop(
        self, run: RunId, attempt: KubernetesAttempt, facts: KubernetesAttemptState, stop: StopRecord
    ) -> None:
        """Delete its IPUJob and, in case the operator is away, its Pods: TERM, the grace period, KILL."""
        await asyncio.to_thread(attempt.save_stop, stop)
        asked = facts.asked
        found = await self._get(asked)
        ours = found is not None and is_attempts_job(found, run, attempt.number, self._installation)
        if found is not None and ours and found["metadata"].get("deletionTimestamp") is None:
            await self._kube.delete(IPU_JOB, asked.name, asked.namespace, uid=found["metadata"]["uid"])
        for pod in self._watching.pods(asked.namespace, asked.name):
            meta = pod["metadata"]
            if meta.get("deletionTimestamp") is None and not self._keeping.is_over(pod):
                await self._kube.delete(POD, meta["name"], asked.namespace, uid=meta["uid"])

    async def saved_at(self, folder: str) -> Timestamp | None:
        return None  # its scheduler decides which run must yield

    async def signal(self, run: RunId, signal_name: str) -> None:
        parse_signal(signal_name)
        self._start()
        with _as_unavailable(f"run {run} could not be signalled"):
            attempt = await self._newest(run)
            facts = await asyncio.to_thread(attempt.facts) if attempt is not None else None
            sent = 0
            if facts is not None and facts.end is None and await self._watching.synced():
                sent = await self._send(facts.asked, signal_name, everybody=True)
        if not sent:
            raise MooringsError("run.not_running", f"run {run} has no processes")

    async def _send(self, asked: SubmittedIPUJob, signal_name: str, *, everybody: bool) -> int:
        """Send a signal to all running tasks; returns their number.

        Raises:
            KubeError: a task could not be reached.
            MooringsError: ``engine.rejected``: the image has no shell.
        """
        number = parse_signal(signal_name)
        script = ("/bin/sh", "-c", SIGNALS, "signals", number.name.removeprefix("SIG"), str(number.value))
        words = (*script, "all" if everybody else "listeners")
        pods = [pod for pod in self._watching.pods(asked.namespace, asked.name) if self._keeping.is_running(pod)]

        async def send(pod: str) -> bool:
            try:
                code, said = await self._calls.execute(asked.namespace, pod, CONTAINER, words)
            except KubeError as error:
                if error.reason == "NotRun":
                    hint = "signals are sent by a shell in the task's container"
                    told = f"no signal can be sent to {pod}: {error.detail}"
                    raise rejected_error(told, hint) from error
                if error.status in (404, 400):  # the task has ended
                    return False
                raise
            if code in NO_SHELL:
                hint = "signals are sent by a shell in the task's container"
                raise rejected_error(f"no signal can be sent to {pod}: {said[:200]}", hint)
            if code not in (0, NO_PROCESS):
                log.warning("signal.unsent", extra={"pod": pod, "code": code, "detail": said[:200]})
            return code != NO_PROCESS

        sent = await asyncio.gather(*(send(pod["metadata"]["name"]) for pod in pods))
        return sum(sent)

    # -- background work -----------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Enforce time limits, and tidy up."""
        tidied = None
        while True:
            try:
                if await self._watching.synced():
                    for job in self._watching.jobs():
                        await self._keep_time(job)
                    now = self._clock.now()
                    if tidied is None or seconds_between(tidied, now) >= TIDY_S:
                        tidied = now
                        for job in self._watching.jobs():
                            await self._tidy(job)
            except (MooringsError, OSError, ValueError) as error:
                log.warning("kubernetes.untended", extra={"detail": str(error)})
            except Exception:  # a fault must not end the enforcement of time limits
                log.exception("engine.fault", extra={"engine": self.name})
            await self._clock.sleep(CHANGED_S / 2)

    async def _keep_time(self, job: KubeObject) -> None:
        """Warn or stop a run at its time limit."""
        run, number = _run_of(job), _attempt_of(job)
        life = self._keeping.known(run, number)
        began = began_at(life.tasks) if life is not None else None
        if life is None or began is None or job["metadata"].get("deletionTimestamp") is not None:
            return
        if life.asked is None:
            life.asked = _asked_in(job)
        asked = life.asked
        if asked is None or asked.time_limit_s is None or have_all_ended(asked, life.tasks):
            return
        now, due = self._clock.now(), add_seconds(began, asked.time_limit_s)
        attempt = KubernetesRunFolder(self._folder / run).attempt(number)
        if now >= due:
            if life.stopped_at is None or seconds_between(life.stopped_at, now) >= STOP_AGAIN_S:
                life.stopped_at = now
                facts = await asyncio.to_thread(attempt.facts)
                await self._stop(run, attempt, facts, StopRecord(LIMIT, "", now))
                self._news.set()
        elif 0 < asked.warn_s < asked.time_limit_s and now >= add_seconds(due, -asked.warn_s) and not life.warned:
            life.warned = True
            if not (await asyncio.to_thread(attempt.facts)).warned:
                await asyncio.to_thread(attempt.save_warned)
                await self._send(asked, asked.warn_signal, everybody=False)

    async def _tidy(self, job: KubeObject) -> None:
        """Delete an IPUJob whose run's end is recorded, or that an earlier leader created and never activated."""
        meta = job["metadata"]
        if meta.get("deletionTimestamp") is not None:
            return
        folder = KubernetesRunFolder.of(self._folder, _run_of(job))
        if folder is None:
            return
        attempt = folder.attempt(_attempt_of(job))
        ended = await asyncio.to_thread((attempt.path / "end.json").exists)
        if not ended and not is_active(job):
            made = self._keeping.age_s(job)
            ended = made > FORGOTTEN_S and epoch_of(job) < self._epoch
        if ended:
            await self._kube.delete(IPU_JOB, meta["name"], meta["namespace"], uid=meta["uid"])

    # -- output --------------------------------------------------------------------------------------------------------

    async def logs(self, run: RunId, *, task: int | None, follow: bool) -> AsyncIterator[bytes]:
        """The output of a run's newest attempt; of a run that was never submitted: nothing, at once.

        Raises:
            MooringsError: ``engine.rejected``, ``engine.unavailable``.
        """
        self._start()
        with _as_unavailable(f"run {run} cannot be looked at now"):
            attempt = await self._newest(run)
            if attempt is None:
                return
            facts = await asyncio.to_thread(attempt.facts)
        files = log_files_of_tasks(run, facts.asked.tasks, task, attempt.log)
        is_over = rate_limited(lambda: self._is_over(run), self._clock, CHANGED_S / 2)

        async def ended() -> bool:
            newest = await self._newest(run)
            if newest is None or newest.number > attempt.number:
                return True
            if (await asyncio.to_thread(newest.facts)).end is not None:
                return True
            return await is_over()

        with _as_unavailable(f"the output of run {run} cannot be read"):
            async for chunk in self._read(files, ended if follow else None):
                yield chunk

    async def changed(self) -> None:
        await wait_for_change(self._news, self._clock, CHANGED_S)

    async def close(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        await self._watching.close()
        await self._keeping.close()
        await self._calls.close()
        await self._kube.close()


def _reference(asked: SubmittedIPUJob) -> str:
    return f"{asked.namespace}/{asked.name}"


def _asked_in(job: KubeObject) -> SubmittedIPUJob | None:
    """The order, as the IPUJob itself stores it."""
    text = (job["metadata"].get("annotations") or {}).get(SUBMITTED_JOB)
    return from_plain(SubmittedIPUJob, json.loads(text)) if text is not None else None


def _run_of(job: KubeObject) -> RunId:
    return RunId((job["metadata"].get("labels") or {}).get(RUN, ""))


def _attempt_of(job: KubeObject) -> int:
    text = (job["metadata"].get("labels") or {}).get(ATTEMPT, "")
    return int(text) if text.isdecimal() else 0


def _as_retryable(error: KubeError) -> MooringsError:
    if error.status != 404:
        return error
    return unavailable_error(error.detail)


@contextlib.contextmanager
def _as_unavailable(what: str) -> Iterator[None]:
    try:
        yield
    except KubeError as error:
        raise unavailable_error(f"{what}: {error.detail}") from error
    except (OSError, ValueError) as error:
        raise unavailable_error(f"{what}: {error}") from error
