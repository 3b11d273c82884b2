"""When lost runs are retried, and what becomes of a retry that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.controller.retry_timer import FAILED_PAUSE_S, RetryTimer
from moorings.controller.turn import AnyReply
from moorings.controller.turn_record import AnyInput
from moorings.core.model.claims import CheckpointContract, ClaimId
from moorings.core.model.errors import MooringsError
from moorings.testing.builders import a_job
from moorings.workloads.jobs import Accelerators
from moorings.workloads.run_turn import CreateRun, PauseRun, ResumeRun
from moorings.workloads.runs import EndReason, EndRecord, Run, RunId, RunPhase, RunState, RunStatus
from tests.unit.controller.stepping import Stepper

RUN = RunId("run-1")
JOB = replace(
    a_job(),
    accelerators=Accelerators(size=4),
    checkpoint=CheckpointContract(resumable=True),
    checkpoint_directory="/c",
    retries=3,
)
LOST = RunStatus(RUN, RunPhase.ENDED, end=EndRecord(EndReason.LOST, 137, detail="its supervisor died"))


class Numbers:
    """Ids in order."""

    def __init__(self) -> None:
        self._last = 0

    def new(self, kind: str) -> str:
        self._last += 1
        return f"{kind}-{self._last}"


class Rig(Stepper):
    """A loop with a timer of retries, and one run that was lost."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.timer = RetryTimer(self.loop, self.clock, Numbers())
        self.serving: list[asyncio.Task[None]] = []

    @property
    def run(self) -> Run:
        return self.loop.runs.by_id[RUN]

    def state_now(self) -> RunState:
        return self.run.state

    async def lose(self) -> None:
        given = CreateRun(id=RUN, claim=ClaimId("claim-first"), job=JOB, engine="local", subject="ann")
        await self.done(self.loop.submit(given))
        claim = self.loop.fleet.claims[ClaimId("claim-first")]
        assert claim.partition is not None
        self.loop.runs.apply([replace(self.run, state=RunState.RUNNING)])
        await self.done(self.loop.submit(LOST))
        assert self.run.state is RunState.PAUSED

    async def later(self, seconds: float) -> None:
        """Let so much time pass."""
        await self.until(lambda: self.clock.sleepers > 0)
        self.clock.forward(seconds)
        for _ in range(50):
            await asyncio.sleep(0.002)
            await self.settle()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    await rig.loop.load()
    rig.serving.append(asyncio.create_task(rig.timer.serve()))
    yield rig
    for task in rig.serving:
        task.cancel()
    await asyncio.gather(*rig.serving, return_exceptions=True)
    rig.loop.close()


async def test_a_lost_run_is_resumed_when_its_time_has_come_and_not_before(rig: Rig) -> None:
    await rig.lose()
    await rig.later(9.0)
    assert rig.state_now() is RunState.PAUSED
    await rig.later(2.0)
    assert (rig.state_now(), rig.run.claim) == (RunState.WAITING, "claim-1")


async def test_another_controller_resumes_it(rig: Rig) -> None:
    await rig.lose()
    rig.serving.pop().cancel()
    rig.clock.forward(60.0)
    rig.timer = RetryTimer(rig.loop, rig.clock, Numbers())
    await rig.loop.load()
    rig.serving.append(asyncio.create_task(rig.timer.serve()))
    for _ in range(50):
        await asyncio.sleep(0.002)
        await rig.settle()
    assert rig.run.state is RunState.WAITING


async def test_a_run_that_was_resumed_or_held_meanwhile_is_left_alone(rig: Rig) -> None:
    await rig.lose()
    await rig.done(rig.loop.submit(PauseRun(RUN, "bob", 0.0)))
    await rig.later(60.0)
    assert rig.run.pause is not None
    assert rig.run.pause.reason == "paused by bob"


async def test_a_refused_retry_leaves_the_run_paused_with_the_reason(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.lose()
    real = rig.loop.submit

    async def refuse(given: AnyInput, key: None = None) -> AnyReply:
        if isinstance(given, ResumeRun):
            raise MooringsError("project.unknown", "there is no project 'lab'")
        return await real(given, key)

    monkeypatch.setattr(rig.loop, "submit", refuse)
    await rig.later(11.0)
    assert rig.run.pause is not None
    assert (rig.run.state, rig.run.pause.resume_at) == (RunState.PAUSED, None)
    assert rig.run.pause.reason == "paused by the controller: there is no project 'lab'"


async def test_a_retry_that_could_not_be_saved_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.lose()
    real, failures = rig.loop.submit, [MooringsError("store.unavailable", "it is away", retryable=True)]

    async def fail_once(given: AnyInput, key: None = None) -> AnyReply:
        if failures:
            raise failures.pop()
        return await real(given, key)

    monkeypatch.setattr(rig.loop, "submit", fail_once)
    await rig.later(11.0)
    assert rig.state_now() is RunState.PAUSED
    await rig.later(FAILED_PAUSE_S)
    assert rig.state_now() is RunState.WAITING
