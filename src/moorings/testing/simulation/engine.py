"""An engine with processes in virtual time, beside the controllers: they survive every crash of a controller.

It keeps the engine contract in memory: a run is started at most once, an end is reported only when none of its
processes runs any more. Delays, lost responses and outages are in ``gates``, not here. A lost node ends all of a run's
processes and leaves no record; a damaged record is reported as such.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, add_seconds, seconds_between
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.testing.simulation.fault_plan import FaultPlan
from moorings.testing.simulation.virtual_time import SteadyClock, VirtualLoop, WallClock
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.runs import EndReason, EndRecord, RunId, RunPhase, RunStatus

ENGINE_NAME = "local"
RUNS_MEAN_S = 12.0
STARTS_MEAN_S = 0.3
GRACE_MAX_S = 4.0
RUSH_RUNS_MEAN_S = 300.0
RUSH_DEAF_OF = 0.4
CHANGED_S = 1.0
SAVES_EVERY_S = 2.0  # between two checkpoints of a run


@dataclass(slots=True)
class SimulatedProcess:
    """A run in the engine; ``end`` is its record once none of its processes runs."""

    order: RunSubmission
    phase: RunPhase
    started_at: Timestamp | None = None
    end: EndRecord | None = None
    cancelled: str | None = None
    asked_until: Timestamp | None = None  # to yield: the earliest time given
    starts: int = 0  # before this one

    @property
    def is_alive(self) -> bool:
        """Whether its processes may use its partition."""
        return self.phase in (RunPhase.STARTING, RunPhase.RUNNING)


class SimulatedCluster:
    """The machines that run processes.

    Attributes:
        starts_mean_s: mean time to start a run's processes.
        runs_mean_s: mean time for which they run.
        ignore_yield_ratio: the fraction that ignore a request to yield until they are killed.

    Args:
        loop: their virtual time.
        odds: how long they run and how they end.
        clock: the clock for their records.
        wall: the clock of the deadlines to yield: it may be set.
        on_start: called for each run before its first process starts.
    """

    starts_mean_s = STARTS_MEAN_S

    def __init__(
        self,
        loop: VirtualLoop,
        odds: FaultPlan,
        clock: SteadyClock,
        wall: WallClock,
        on_start: Callable[[RunSubmission], None],
    ) -> None:
        self.processes: dict[RunId, SimulatedProcess] = {}
        self.live: dict[RunId, SimulatedProcess] = {}
        self.rejected: set[RunId] = set()
        self.epoch = Epoch(0)
        self._waiting: list[asyncio.Future[None]] = []
        self._loop = loop
        self._odds = odds
        self._clock = clock
        self._wall = wall
        self._on_start = on_start
        self.runs_mean_s = RUSH_RUNS_MEAN_S if odds.rush else RUNS_MEAN_S
        self.ignore_yield_ratio = RUSH_DEAF_OF if odds.rush else 0.0

    def fence(self, epoch: Epoch) -> None:
        """Start nothing for earlier leaders any more."""
        self.epoch = max(self.epoch, epoch)

    def submit(self, order: RunSubmission) -> str:
        """Start a run unless it was started before; a rejected run stays rejected."""
        if order.run in self.rejected:
            raise MooringsError("engine.rejected", "it will not run this")
        known = self.processes.get(order.run)
        if known is None or (not known.is_alive and known.order.attempt < order.attempt):
            self._on_start(order)
            starts = known.starts + 1 if known is not None else 0
            self.processes[order.run] = self.live[order.run] = SimulatedProcess(order, RunPhase.STARTING, starts=starts)
            self._loop.call_later(self._odds.chance.expovariate(1 / self.starts_mean_s), self._begin, order.run)
            self._notify()
        return f"{order.run}/{order.attempt}"

    def observe(self, runs: Sequence[RunId]) -> list[RunStatus]:
        """The status of each."""
        return [self._status(run) for run in runs]

    def _status(self, run: RunId) -> RunStatus:
        process = self.processes.get(run)
        if process is None:
            return RunStatus(run, RunPhase.ABSENT)
        seen = RunStatus(run, process.phase, process.started_at, process.end, attempt=process.order.attempt)
        return _with_checkpoints(seen, self._clock.now())

    def cancel(self, run: RunId, reason: str) -> None:
        """TERM now; within the grace period it is gone."""
        process = self.live.get(run)
        if process is not None and process.cancelled is None:
            process.cancelled = reason
            grace_s = self._odds.chance.uniform(0, GRACE_MAX_S)
            self._loop.call_later(grace_s, self.end_run, run, EndReason.CANCELLED, 143, reason)

    def ask_to_yield(self, run: RunId, attempt: int, reason: str, by: Timestamp, *, until_saved: bool = False) -> None:
        """It ends after a checkpoint, at the latest at ``by``; ``until_saved``: after the next."""
        process = self.live.get(run)
        if process is None or process.order.attempt != attempt:
            return
        if process.asked_until is None or by < process.asked_until:
            process.asked_until = by
            left_s = max(seconds_between(self._wall.now(), by), 0.0)
            deaf = self.ignore_yield_ratio and self._odds.chance.random() < self.ignore_yield_ratio
            ends_s = min(left_s, SAVES_EVERY_S) if until_saved else left_s
            within_s = left_s if deaf else self._odds.chance.uniform(0, ends_s)
            self._loop.call_later(within_s, self._end_of, run, process.starts, EndReason.YIELDED, 143, reason)

    async def changed(self) -> None:
        """Wait until something has changed, or for a second."""
        news: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(news)
        timer = self._loop.call_later(CHANGED_S, _wake, news)
        try:
            await news
        finally:
            timer.cancel()

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            _wake(news)

    def signal(self, run: RunId) -> None:
        """No effect on a simulated process."""
        if run not in self.live:
            raise MooringsError("run.not_running", f"run {run} has no processes")

    def _begin(self, run: RunId) -> None:
        process = self.live.get(run)
        if process is None:
            return
        chance = self._odds.chance
        if chance.random() < 0.05:
            self.end_run(run, EndReason.NOT_STARTED, 127, "no such command")
            return
        process.phase, process.started_at = RunPhase.RUNNING, process.started_at or self._clock.now()
        lasts_s = chance.expovariate(1 / self.runs_mean_s)
        limit_s = process.order.job.time_limit_s
        if limit_s is not None and lasts_s > limit_s:
            self._loop.call_later(
                limit_s, self._end_of, run, process.starts, EndReason.TIMED_OUT, 143, "its time limit"
            )
        else:
            code = chance.choice((0, 0, 0, 1, 137))
            self._loop.call_later(lasts_s, self._end_of, run, process.starts, EndReason.EXITED, code, "")
        self._began(run, process)
        self._notify()

    def _began(self, run: RunId, process: SimulatedProcess) -> None:
        """Its processes run now."""

    def _end_of(self, run: RunId, start: int, ending: EndReason, exit_code: int, detail: str) -> None:
        """The end of this start; ignored if it was stopped before."""
        if run in self.live and self.live[run].starts == start:
            self.end_run(run, ending, exit_code, detail)

    def end_run(self, run: RunId, ending: EndReason, exit_code: int, detail: str) -> None:
        """None of its processes runs any more."""
        process = self.live.pop(run, None)
        if process is None:
            return
        process.phase = RunPhase.ENDED
        codes = (exit_code,) * process.order.job.tasks
        process.end = EndRecord(ending, exit_code, codes, process.started_at, self._clock.now(), detail)
        self._notify()


def _with_checkpoints(seen: RunStatus, now: Timestamp) -> RunStatus:
    """The status with what looks at the run's folder find: by its id, so that no other chance changes."""
    if seen.started_at is None:
        return seen
    kind = zlib.crc32(seen.run.encode()) % 8
    if kind == 0:
        return replace(seen, checkpoint_fault="/c is a symbolic link: name the folder itself")
    ended_at = seen.end.ended_at if seen.end is not None else None
    step = int(seconds_between(seen.started_at, ended_at or now) // SAVES_EVERY_S)
    if kind == 1 or step < 1:
        return seen  # it saves nothing, or has not yet
    found = [
        RunCheckpoint(f"/c/step-{step - ago}.pt", step - ago, 1, written_at, whole, CheckpointRule.ZIP)
        for ago, whole in ((0, kind > 2), (1, True))
        if step > ago
        for written_at in [add_seconds(seen.started_at, (step - ago) * SAVES_EVERY_S)]
    ]
    return replace(seen, checkpoints=tuple(found))


def _wake(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
