"""Enforces time limits, stops runs with a terminal that is left, and deletes IPUJobs that no run needs any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.core.model.timestamps import Timestamp, add_seconds, seconds_between
from moorings.engines.scheduled import CHANGED_S
from moorings.kubernetes.engine.attempt_control import AttemptControl
from moorings.kubernetes.engine.attempts import AttemptTracker, LiveAttempt
from moorings.kubernetes.engine.run_folder import KubernetesRunFolder, StopRecord, SubmittedIPUJob
from moorings.kubernetes.engine.run_informers import RunInformers
from moorings.kubernetes.engine.run_status import LIMIT, STOP_REQUESTED, began_at, have_all_ended, is_unattended
from moorings.kubernetes.engine.submission import (
    AttemptKey,
    attempt_key_of,
    epoch_of,
    is_active,
    parse_submitted_job,
)
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import KubeApi, KubeObject
from moorings.ports.clock import Clock
from moorings.ports.store import Epoch
from moorings.wire.codec import parse_time

log = logging.getLogger("moorings.kubernetes.engine")

STOP_AGAIN_S = 5.0
TIDY_S = 30.0
FORGOTTEN_S = 3600.0  # age of an IPUJob that an earlier leader created and never activated


class RunMaintenance:
    """Watches over the IPUJobs of an installation.

    Args:
        kube: the API server.
        folder: of the runs.
        informers: of the IPUJobs.
        tracker: of their Pods.
        control: stops and warns runs.
        clock: the time, and waiting.
        news: called when a run was told to stop.

    Attributes:
        epoch: under which this controller leads.
    """

    def __init__(
        self,
        kube: KubeApi,
        folder: Path,
        informers: RunInformers,
        tracker: AttemptTracker,
        control: AttemptControl,
        clock: Clock,
        news: Callable[[], None],
    ) -> None:
        self.epoch = Epoch(0)
        self._kube = kube
        self._folder = folder
        self._informers = informers
        self._tracker = tracker
        self._control = control
        self._clock = clock
        self._news = news
        self._tidied_at: Timestamp | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, unless it has started."""
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name="engine-kubernetes")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _serve(self) -> None:
        while True:
            try:
                if await self._informers.synced():
                    await self._inspect_jobs()
            except (MooringsError, OSError, ValueError) as error:
                log.warning("kubernetes.untended", extra={"detail": str(error)})
            except Exception:  # a fault must not end the enforcement of time limits
                log.exception("engine.fault", extra={"engine": "kubernetes"})
            await self._clock.sleep(CHANGED_S / 2)

    async def _inspect_jobs(self) -> None:
        for job in self._informers.jobs():
            await self._enforce_limits(job)
        now = self._clock.now()
        if self._tidied_at is None or seconds_between(self._tidied_at, now) >= TIDY_S:
            self._tidied_at = now
            for job in self._informers.jobs():
                await self._delete_finished(job)

    async def _enforce_limits(self, job: KubeObject) -> None:
        """Warn or stop a run at its time limit, or once its terminal was unattended for too long."""
        key = attempt_key_of(job)
        life = self._tracker.get_attempt(key) if key is not None else None
        began = began_at(life.tasks) if life is not None else None
        if key is None or life is None or began is None or job["metadata"].get("deletionTimestamp") is not None:
            return
        if life.asked is None:
            life.asked = parse_submitted_job(job)
        asked = life.asked
        if asked is None or have_all_ended(asked, life.tasks):
            return
        if asked.keep_s is not None:
            await self._enforce_keep(key, life, asked, began)
        if asked.time_limit_s is not None:
            await self._enforce_time_limit(key, life, asked, add_seconds(began, asked.time_limit_s))

    async def _enforce_keep(self, key: AttemptKey, life: LiveAttempt, asked: SubmittedIPUJob, began: Timestamp) -> None:
        """Stop a run whose terminal is unattended; a new controller counts from its own first look."""
        assert asked.keep_s is not None
        now = self._clock.now()
        life.attended_at = max(life.attended_at or now, began)
        if not is_unattended(asked, life.attended_at, now):
            return
        detail = f"its terminal was unattended for {duration_text(asked.keep_s)} ('--keep')"
        await self._stop(key, life, StopRecord(STOP_REQUESTED, detail, now))

    async def _stop(self, key: AttemptKey, life: LiveAttempt, stop: StopRecord) -> None:
        """Stop a run, and again every few seconds until it has ended."""
        if life.stopped_at is None or seconds_between(life.stopped_at, stop.at) >= STOP_AGAIN_S:
            life.stopped_at = stop.at
            attempt = KubernetesRunFolder(self._folder / key[0]).attempt(key[1])
            facts = await asyncio.to_thread(attempt.read_state)
            await self._control.stop(key[0], attempt, facts.asked, stop)
            self._news()

    async def _enforce_time_limit(
        self, key: AttemptKey, life: LiveAttempt, asked: SubmittedIPUJob, due: Timestamp
    ) -> None:
        now = self._clock.now()
        assert asked.time_limit_s is not None
        if now >= due:
            await self._stop(key, life, StopRecord(LIMIT, "", now))
        elif (
            0 < asked.warn_s < asked.time_limit_s
            and now >= add_seconds(due, -asked.warn_s)
            and life.warned != (start := life.tasks[min(life.tasks)].uid)
        ):
            life.warned = start
            attempt = KubernetesRunFolder(self._folder / key[0]).attempt(key[1])
            if not await asyncio.to_thread(attempt.has_warned, start):
                await asyncio.to_thread(attempt.save_warned, start)
                await self._control.warn(asked)

    async def _delete_finished(self, job: KubeObject) -> None:
        """Delete an IPUJob whose run's end is recorded, or that an earlier leader created and never activated."""
        meta, key = job["metadata"], attempt_key_of(job)
        if key is None or meta.get("deletionTimestamp") is not None:
            return
        folder = KubernetesRunFolder.find(self._folder, key[0])
        if folder is None:
            return
        attempt = folder.attempt(key[1])
        ended = await asyncio.to_thread((attempt.path / "end.json").exists)
        if not ended and not is_active(job):
            ended = self._age_s(job) > FORGOTTEN_S and epoch_of(job) < self.epoch
        if ended:
            await self._kube.delete(IPU_JOB, meta["name"], meta["namespace"], uid=meta["uid"])

    def _age_s(self, found: KubeObject) -> float:
        try:
            return seconds_between(parse_time(found["metadata"]["creationTimestamp"]), self._clock.now())
        except (KeyError, MooringsError):
            return 0.0
