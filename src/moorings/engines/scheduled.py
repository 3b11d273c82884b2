"""What the engines with a scheduler of their own share: ``slurm`` and ``kubernetes``.

Runs wait in that scheduler's queue, and it decides which run must yield. Their folders are on the controller's disk, so
output is read here.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.engines.checkpoint_watch import CheckpointRecord
from moorings.engines.launch import (
    as_unavailable,
    log_files_of_tasks,
    no_terminal_error,
    not_startable_error,
    rejected_error,
)
from moorings.engines.logs import TaskLog, read_logs
from moorings.engines.polling import MissedListings, rate_limited, wait_for_change
from moorings.engines.run_folder import AttemptFolder, PauseOrder
from moorings.ports.clock import Clock
from moorings.ports.engine import RunSubmission, TaskContainer
from moorings.workloads.checkpoints import newest_whole
from moorings.workloads.runs import EndReason, EndRecord, RunId, RunPhase, RunStatus

CHANGED_S = 1.0


@dataclass(frozen=True, slots=True)
class NewestAttempt:
    """The newest attempt of a run.

    Attributes:
        folder: its folder.
        tasks: how many it has.
        ended: its folder says so.
        grace_s: between TERM and KILL.
    """

    folder: AttemptFolder
    tasks: int
    ended: bool
    grace_s: float


class ScheduledEngine(ABC):
    """An engine whose scheduler arranges partitions and decides about preemption.

    Args:
        clock: for waiting, and for ends without a recorded time.
    """

    scheduler: ClassVar[str]  # its name for people; in lower case the engine's
    settle_s: ClassVar[float]  # how long files of an ended run may be late

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = asyncio.Event()
        self._missing = MissedListings()
        self._ended_since: dict[RunId, Timestamp] = {}  # since when the scheduler says so

    @property
    def name(self) -> str:
        return self.scheduler.lower()

    @property
    def has_scheduler(self) -> bool:
        return True

    async def ask_to_yield(
        self, run: RunId, attempt: int, reason: str, deadline: Timestamp, *, until_saved: bool = False
    ) -> None:
        if not until_saved:
            raise rejected_error(f"run {run} yields when {self.scheduler} says so")
        with self._as_unavailable(f"run {run} could not be paused"):
            newest = await self._newest_attempt(run)
            if newest is None or newest.ended or newest.folder.number != attempt:
                return
            (seen,) = await self.observe([run])
            if seen.phase is RunPhase.UNKNOWN:
                return
            saved = newest_whole(seen.checkpoints or ())
            order = await asyncio.to_thread(newest.folder.pause_order)
            if order is None:
                known = (saved.path, saved.written_at) if saved is not None else (None, None)
                order = PauseOrder(reason, deadline, *known)
                await asyncio.to_thread(newest.folder.save_pause_order, order)
                if seen.phase is RunPhase.RUNNING:
                    with contextlib.suppress(MooringsError):  # it has none of the processes, or takes no signals
                        await self._warn_of_pause(newest.folder, seen)
        has_saved = saved is not None and (saved.path, saved.written_at) != (order.known, order.known_at)
        left_s = seconds_between(self._clock.now(), order.deadline)
        if seen.phase is not RunPhase.RUNNING or has_saved or left_s <= newest.grace_s:
            await self.cancel(run, order.reason)

    async def wait_for_change(self) -> None:
        await wait_for_change(self._changed, self._clock, CHANGED_S)

    async def find_terminal(self, run: RunId, *, attended: bool = False) -> str | TaskContainer:
        raise no_terminal_error(self.scheduler)

    async def logs(
        self, run: RunId, *, task: int | None, follow: bool, since: Timestamp | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the output of a run's newest attempt; nothing, at once, for a run that was never submitted.

        Raises:
            MooringsError: ``engine.rejected``, ``engine.unavailable``.
        """
        if since is not None:
            raise rejected_error(
                f"run {run} does not run on this machine: when its output was written is not known",
                "without --since it is shown from its beginning; --tail shows the last lines",
            )
        attempt = await self._newest_attempt(run)
        if attempt is None:
            return
        files = log_files_of_tasks(run, attempt.tasks, task, attempt.folder.log_path)
        # The folder is read often, the scheduler is asked seldom.
        is_over = rate_limited(lambda: self._is_over(run), self._clock, CHANGED_S)

        async def ended() -> bool:
            with contextlib.suppress(MooringsError):  # the folder cannot be read now
                newest = await self._newest_attempt(run)
                if newest is None or newest.folder.number > attempt.folder.number or newest.ended:
                    return True
            return await is_over()

        with self._as_unavailable(f"the output of run {run} cannot be read"):
            logs = [TaskLog(*file) for file in files]
            async for chunk in read_logs(logs, ended=ended if follow else None, pause=self._clock.sleep):
                yield chunk

    @abstractmethod
    async def cancel(self, run: RunId, reason: str) -> None: ...

    @abstractmethod
    async def _warn_of_pause(self, attempt: AttemptFolder, seen: RunStatus) -> None:
        """Warn the programs of a run that runs, so that they save.

        Raises:
            MooringsError: that failed.
        """

    @abstractmethod
    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]: ...

    @abstractmethod
    async def _newest_attempt(self, run: RunId) -> NewestAttempt | None:
        """Return the newest attempt of a run; None: it was never submitted.

        Raises:
            MooringsError: ``engine.unavailable``.
        """

    @abstractmethod
    def _engine_error(self, error: MooringsError, what: str) -> MooringsError:
        """Return the engine's error for one of its scheduler; others as they are."""

    @contextlib.contextmanager
    def _as_unavailable(self, what: str) -> Iterator[None]:
        with as_unavailable(what):
            try:
                yield
            except MooringsError as error:
                ours = self._engine_error(error, what)
                if ours is error:
                    raise
                raise ours from error

    async def _is_over(self, run: RunId) -> bool:
        return (await self.observe([run]))[0].phase in (RunPhase.ENDED, RunPhase.ABSENT)

    async def _require_earlier_ended(self, order: RunSubmission, newest: AttemptFolder) -> None:
        if newest.number < order.attempt and not await self._is_over(order.run):
            raise not_startable_error(order, f"attempt {newest.number} has not ended")

    def _is_settled(self, run: RunId, wait_s: float | None = None) -> bool:
        """Whether an ended run was first seen so long ago (``settle_s``, or ``wait_s``) that no file can be late."""
        now = self._clock.now()
        wait_s = self.settle_s if wait_s is None else wait_s
        return seconds_between(self._ended_since.setdefault(run, now), now) >= wait_s

    async def _of_attempt(self, seen: RunStatus, attempt: AttemptFolder, record: CheckpointRecord | None) -> RunStatus:
        """Return the status of an attempt, with what whoever runs beside its tasks has seen of their checkpoints."""
        seen = replace(seen, attempt=attempt.number)
        if seen.end is not None and (seen.end.ending is EndReason.CANCELLED or _has_failed(seen.end)):
            asked = False
            with contextlib.suppress(OSError, ValueError):
                asked = await asyncio.to_thread(attempt.pause_order) is not None
            if asked:  # also if it saved, and ended itself with a code that says so
                seen = replace(seen, end=replace(seen.end, ending=EndReason.YIELDED))
        if record is None or seen.phase in (RunPhase.ABSENT, RunPhase.UNKNOWN):
            return seen
        found = record.found if not record.fault else None
        return replace(seen, checkpoints=found, checkpoint_fault=record.fault, resumed_from=record.resumed_from)

    def _ended(self, run: RunId, end: EndRecord | None, reference: str | None = None) -> RunStatus:
        """Return the status of a run whose end is recorded."""
        assert end is not None
        self._ended_since.pop(run, None)
        self._missing.clear(run)
        return RunStatus(run, RunPhase.ENDED, end.started_at, end, reference=reference)


def _has_failed(end: EndRecord) -> bool:
    return end.ending is EndReason.EXITED and end.exit_code != 0
