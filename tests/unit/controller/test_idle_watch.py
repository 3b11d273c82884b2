"""Idle runs are shown and reported once a period, and what cannot be read is not idle."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.controller.idle_watch import IdleWatch
from moorings.core.model.claims import ClaimId
from moorings.ports.store import Seq
from moorings.testing.builders import a_job
from moorings.workloads.idleness import IdleLimits, Idleness, UsageReading
from moorings.workloads.jobs import Accelerators
from moorings.workloads.run_turn import CreateRun
from moorings.workloads.runs import Run, RunId, RunState
from tests.unit.controller.stepping import Stepper

RUN = RunId("run-1")
LIMITS = IdleLimits(1800.0, 14_400.0)


class Meter:
    """A meter whose readings are set; without one the run is not there."""

    def __init__(self) -> None:
        self.used_s: dict[RunId, float] = {RUN: 1.0}
        self.asked: list[list[RunId]] = []
        self.attempt = 0
        self.fault: Exception | None = None

    async def read_usage(self, runs: Sequence[RunId]) -> Mapping[RunId, UsageReading]:
        self.asked.append(list(runs))
        if self.fault is not None:
            raise self.fault
        return {run: UsageReading(self.attempt, self.used_s[run]) for run in runs if run in self.used_s}


class Rig(Stepper):
    """A loop with one run that holds devices."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.meter = Meter()
        self.watch = IdleWatch(self.loop, {"local": self.meter}, LIMITS, self.clock)

    @property
    def run(self) -> Run:
        return self.loop.runs.by_id[RUN]

    def become(self, **changes: object) -> None:
        self.loop.runs.apply([replace(self.run, **changes)])  # type: ignore[arg-type]

    async def pass_minutes(self, minutes: int, used_s: float = 0.0) -> None:
        for _ in range(minutes):
            self.clock.forward(60.0)
            self.meter.used_s = {run: before + used_s for run, before in self.meter.used_s.items()}
            await self.watch.look()
            await self.settle()

    def reports(self) -> list[str]:
        return [row.event.name for row in self.store.list_events(Seq(0), 10_000) if "idle" in row.event.name]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    await rig.loop.load()
    job = replace(a_job(), accelerators=Accelerators(size=4))
    given = CreateRun(id=RUN, claim=ClaimId("claim-first"), job=job, engine="local", subject="ann")
    await rig.done(rig.loop.submit(given))
    rig.become(state=RunState.RUNNING)
    yield rig
    rig.loop.close()


async def test_it_is_shown_then_reported_once_to_its_holder_and_once_to_admins(rig: Rig) -> None:
    await rig.pass_minutes(30)
    assert (rig.loop.runs.idleness(rig.run), rig.reports()) == (None, [])
    await rig.pass_minutes(100)
    idle = rig.loop.runs.idleness(rig.run)
    assert idle is not None
    assert (idle.is_long, rig.reports()) == (False, ["run.idled"])
    await rig.pass_minutes(200)
    assert rig.loop.runs.idleness(rig.run) == Idleness(idle.since, is_long=True)
    assert rig.reports() == ["run.idled", "run.stayed_idle"]
    (event,) = [row.event for row in rig.store.list_events(Seq(0), 10_000) if row.event.name == "run.idled"]
    assert json.loads(event.data) == {"kind": "ipu", "since": idle.since, "size": 4}
    assert (event.run, event.ownership.subject, rig.run.state) == (RUN, "ann", RunState.RUNNING)


async def test_work_ends_it_and_the_next_period_is_reported_again(rig: Rig) -> None:
    await rig.pass_minutes(40)
    assert rig.loop.runs.idleness(rig.run) is not None
    await rig.pass_minutes(1, used_s=5.0)
    assert rig.loop.runs.idleness(rig.run) is None
    await rig.pass_minutes(40)
    assert rig.reports() == ["run.idled", "run.idled"]


async def test_a_busy_run_is_never_idle(rig: Rig) -> None:
    await rig.pass_minutes(300, used_s=1.0)
    assert (rig.loop.runs.idleness(rig.run), rig.reports()) == (None, [])


async def test_a_missing_reading_is_not_idle_and_the_time_begins_again(rig: Rig) -> None:
    await rig.pass_minutes(40)
    used, rig.meter.used_s = rig.meter.used_s, {}
    await rig.pass_minutes(1)
    assert rig.loop.runs.idleness(rig.run) is None
    rig.meter.used_s = used
    await rig.pass_minutes(30)
    assert rig.loop.runs.idleness(rig.run) is None
    await rig.pass_minutes(1)
    assert rig.loop.runs.idleness(rig.run) is not None


async def test_a_meter_that_fails_makes_nothing_idle(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.pass_minutes(40)
    rig.meter.fault = OSError("no mounts")
    await rig.pass_minutes(1)
    assert rig.loop.runs.idleness(rig.run) is None
    assert "engine.fault" in caplog.text


@pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.RUNNING])
async def test_only_a_run_that_runs_is_read_or_shown(rig: Rig, state: RunState) -> None:
    await rig.pass_minutes(40)
    before, asked = rig.run, len(rig.meter.asked)
    changed = replace(before, state=state)
    assert rig.loop.runs.idleness(changed) is None, "at once, and not at the next reading"
    rig.loop.runs.apply([changed])
    await rig.pass_minutes(1)
    assert rig.meter.asked[asked:] == [[]]


async def test_a_run_without_devices_or_at_another_attempt_is_not_idle(rig: Rig) -> None:
    rig.become(job=replace(rig.run.job, accelerators=Accelerators(size=0)))
    await rig.pass_minutes(40)
    assert rig.meter.asked[-1] == []
    rig.become(job=replace(rig.run.job, accelerators=Accelerators(size=4)))
    await rig.pass_minutes(40)
    assert rig.loop.runs.idleness(rig.run) is not None
    rig.become(attempt=1)  # the meter still reads the one before
    await rig.pass_minutes(1)
    assert rig.loop.runs.idleness(rig.run) is None


async def test_another_controller_begins_again(rig: Rig) -> None:
    await rig.pass_minutes(40)
    begun = rig.clock.now()
    rig.watch = IdleWatch(rig.loop, {"local": rig.meter}, LIMITS, rig.clock)
    await rig.pass_minutes(30)
    assert rig.loop.runs.idleness(rig.run) is None
    await rig.pass_minutes(1)
    idle = rig.loop.runs.idleness(rig.run)
    assert idle is not None
    assert idle.since > begun, "since its own first reading"


async def test_memory_that_is_read_again_loses_nothing_but_a_moment(rig: Rig) -> None:
    await rig.pass_minutes(40)
    rig.loop._needs_reload = True
    await rig.loop.load()
    rig.become(state=RunState.RUNNING)
    await rig.pass_minutes(1)
    assert rig.loop.runs.idleness(rig.run) is not None
    assert rig.reports() == ["run.idled"]


async def test_without_a_limit_nothing_is_read(rig: Rig) -> None:
    await IdleWatch(rig.loop, {"local": rig.meter}, IdleLimits(0.0, 60.0), rig.clock).serve()
    assert rig.meter.asked == []
