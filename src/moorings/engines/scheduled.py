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
from moorings.engines.launch import as_unavailable, log_files_of_tasks, not_startable_error, rejected_error
from moorings.engines.logs import TaskLog, read_logs
from moorings.engines.polling import MissedListings, rate_limited, wait_for_change
from moorings.engines.run_folder import AttemptFolder
from moorings.ports.clock import Clock
from moorings.ports.engine import RunSubmission
from moorings.workloads.runs import EndRecord, RunId, RunPhase, RunStatus

CHANGED_S = 1.0


@dataclass(frozen=True, slots=True)
class NewestAttempt:
    """The newest attempt of a run, for readers of its output; ``ended``: its folder says so."""

    folder: AttemptFolder
    tasks: int
    ended: bool


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
        raise rejected_error(f"run {run} yields when {self.scheduler} says so")

    async def wait_for_change(self) -> None:
        await wait_for_change(self._changed, self._clock, CHANGED_S)

    async def logs(self, run: RunId, *, task: int | None, follow: bool) -> AsyncIterator[bytes]:
        """Yield the output of a run's newest attempt; nothing, at once, for a run that was never submitted.

        Raises:
            MooringsError: ``engine.rejected``, ``engine.unavailable``.
        """
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

    def _is_settled(self, run: RunId) -> bool:
        """Whether an ended run was first seen so long ago that none of its files can be late."""
        now = self._clock.now()
        return seconds_between(self._ended_since.setdefault(run, now), now) >= self.settle_s

    def _with_checkpoints(self, seen: RunStatus, record: CheckpointRecord | None) -> RunStatus:
        """Return the status with what whoever runs beside the tasks has seen of their checkpoints."""
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
