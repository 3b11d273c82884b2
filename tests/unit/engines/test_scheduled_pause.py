"""A run that its engine's scheduler has is paused: warned, and stopped once it has saved, or when its time is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.engines.run_folder import AttemptFolder, AttemptState
from moorings.engines.scheduled import NewestAttempt, ScheduledEngine
from moorings.testing.builders import NOW, a_run
from moorings.workloads.checkpoints import CheckpointRule, RunCheckpoint
from moorings.workloads.runs import EndReason, EndRecord, RunId, RunPhase, RunStatus

RUN = a_run().id
OLD = RunCheckpoint("/c/step-1.pt", 1, 1, NOW, is_whole=True, rule=CheckpointRule.ZIP)
NEW = replace(OLD, path="/c/step-2.pt", written_at=add_seconds(NOW, 5))
TORN = replace(NEW, path="/c/step-3.pt", is_whole=False)
RUNNING = RunStatus(RUN, RunPhase.RUNNING, checkpoints=(OLD,))


@dataclass(frozen=True, slots=True)
class Attempt(AttemptFolder):
    def read_state(self) -> AttemptState:
        raise NotImplementedError


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> Timestamp:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at = add_seconds(self.at, seconds)

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


class Engine(ScheduledEngine):
    scheduler = "Stand-in"
    settle_s = 0.0

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        super().__init__(self.clock)
        self.attempt = Attempt(folder, 0)
        self.sees = RUNNING
        self.done: list[str] = []
        self.refuses = False

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        return [self.sees for _ in runs]

    async def cancel(self, run: RunId, reason: str) -> None:
        self.done.append(f"stop: {reason}")

    async def _warn_of_pause(self, attempt: AttemptFolder, seen: RunStatus) -> None:
        self.done.append("warn")
        if self.refuses:
            raise MooringsError("engine.rejected", "no shell")

    async def _newest_attempt(self, run: RunId) -> NewestAttempt | None:
        return NewestAttempt(self.attempt, 1, ended=self.sees.phase is RunPhase.ENDED, grace_s=10.0)

    def _engine_error(self, error: MooringsError, what: str) -> MooringsError:
        return error

    async def ask(self, *, timeout_s: float = 60.0) -> list[str]:
        """Ask as the controller does at each look, with a new deadline each time."""
        deadline: Timestamp = add_seconds(self.clock.now(), timeout_s)
        await self.ask_to_yield(RUN, 0, "paused by ann", deadline, until_saved=True)
        return self.done


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


async def test_it_is_warned_once_and_stopped_once_it_has_saved(engine: Engine) -> None:
    for _ in range(3):
        assert await engine.ask() == ["warn"]
    engine.sees = replace(RUNNING, checkpoints=(TORN, OLD))
    assert await engine.ask() == ["warn"]
    engine.sees = replace(RUNNING, checkpoints=(TORN, NEW, OLD))
    assert await engine.ask() == ["warn", "stop: paused by ann"]


async def test_it_is_stopped_a_grace_period_before_its_time_is_over(engine: Engine) -> None:
    await engine.ask()
    engine.clock.advance(49)
    assert await engine.ask() == ["warn"]
    engine.clock.advance(2)
    assert await engine.ask() == ["warn", "stop: paused by ann"]


async def test_one_that_takes_no_signals_has_its_time_all_the_same(engine: Engine) -> None:
    engine.refuses = True
    assert await engine.ask() == ["warn"]
    assert await engine.ask() == ["warn"]


@pytest.mark.parametrize(
    ("phase", "done"),
    [(RunPhase.STARTING, ["stop: paused by ann"]), (RunPhase.UNKNOWN, []), (RunPhase.ENDED, [])],
)
async def test_what_does_not_run_is_stopped_at_once_if_its_scheduler_can_be_asked(
    engine: Engine, phase: RunPhase, done: list[str]
) -> None:
    engine.sees = RunStatus(RUN, phase)
    assert await engine.ask() == done


async def test_another_engine_s_request_to_yield_is_its_scheduler_s(engine: Engine) -> None:
    with pytest.raises(MooringsError, match="yields when Stand-in says so"):
        await engine.ask_to_yield(RUN, 0, "needed", NOW)


@pytest.mark.parametrize(
    ("end", "asked", "ending"),
    [
        (EndRecord(EndReason.CANCELLED, 143), True, EndReason.YIELDED),
        (EndRecord(EndReason.EXITED, 3), True, EndReason.YIELDED),  # it saved, and ended by itself
        (EndRecord(EndReason.EXITED, 0), True, EndReason.EXITED),  # it was done
        (EndRecord(EndReason.TIMED_OUT, 124), True, EndReason.TIMED_OUT),
        (EndRecord(EndReason.EXITED, 3), False, EndReason.EXITED),
    ],
)
async def test_how_it_ends_then(engine: Engine, end: EndRecord, asked: bool, ending: EndReason) -> None:
    if asked:
        await engine.ask()
    seen = await engine._of_attempt(RunStatus(RUN, RunPhase.ENDED, end=end), engine.attempt, None)
    assert seen.end is not None
    assert seen.end.ending is ending
