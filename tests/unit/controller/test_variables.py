"""The values of a job's variables: in files, for as long as its run may start, and never in the records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from moorings.api.render import run_body
from moorings.app.clock import RandomIds
from moorings.controller.personal_runs import PersonalRuns
from moorings.controller.reasons import ReasonService
from moorings.controller.run_service import RunService
from moorings.controller.views import RunView
from moorings.core.model.access import Caller, Role
from moorings.core.model.errors import MooringsError
from moorings.engines.environments import FolderEnvironments
from moorings.ports.engine import RunSubmission
from moorings.wire.codec import encode
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.run_turn import CreateRun
from moorings.workloads.runs import RunId, RunState
from tests.unit.controller.test_running import RUN, HeldEngine, Rig

T = TypeVar("T")
ANN = Caller("ann", Role.USER, "user/ann", "k1")
VALUES = {"TOKEN": "hunter2", "PATH": "/usr/bin"}
JOB = JobSpec(name="n", command=("true",), workdir="/", environment=VALUES, accelerators=Accelerators(size=4))


class OpenEngine(HeldEngine):
    """An engine with a queue of its own that takes everything, and notes it."""

    queues = True

    async def submit(self, order: RunSubmission) -> str:
        self.orders.append(order)
        self.asked.set()
        return "1"

    def hold(self) -> None:
        super().hold()
        self.orders: list[RunSubmission] = []


class Desk(Rig):
    """One controller whose engine takes everything."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.engine = self.open = OpenEngine(folder / "runs", self.clock)
        self.running.engines = {"local": self.open}
        self.engine.hold()
        self.running._fenced["local"].set()
        reasons = ReasonService(self.loop, self.hardware, self.clock)
        self.environments = FolderEnvironments({"local": folder / "runs"})
        self.service = RunService(
            self.loop,
            self.store,
            self.running.engines,
            RandomIds(),
            reasons,
            self.environments,
            PersonalRuns(self.loop, {}),
        )

    async def finish(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        while not task.done():  # a thread saves, then a turn is due
            await asyncio.sleep(0)
            await self.settle()
        return await task

    async def create(self, job: JobSpec = JOB, key: str | None = None) -> RunView:  # type: ignore[override]
        return await self.finish(self.service.create_run(ANN, job, key=key))

    async def submitted(self) -> RunSubmission:
        await self.engine.asked.wait()
        return self.open.orders[0]

    def files(self) -> list[str]:
        return [path.name for path in (self.folder / "runs" / ".environments").glob("*")]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    await desk.end()


async def test_the_engine_gets_the_values_and_nothing_else_has_them(desk: Desk) -> None:
    view = await desk.create(key="k" * 20)
    assert (await desk.submitted()).job.environment == VALUES
    assert desk.files() == [f"{view.run.id}.json"]
    assert desk.store.get_jobs([view.run.id])[view.run.id].environment == {"TOKEN": "", "PATH": ""}
    assert "hunter2" not in str(encode(run_body(view)))
    assert "hunter2" not in str(encode(run_body(await desk.service.get_run(ANN, view.run.id))))
    for path in desk.folder.glob("moorings.db*"):
        assert b"hunter2" not in path.read_bytes(), path


async def test_the_same_key_again_keeps_one_file(desk: Desk) -> None:
    first = await desk.create(key="k" * 20)
    again = await desk.create(key="k" * 20)
    assert again.run.id == first.run.id
    assert desk.files() == [f"{first.run.id}.json"]


async def test_a_refused_run_leaves_no_values(desk: Desk) -> None:
    await desk.create(key="k" * 20)
    with pytest.raises(MooringsError) as caught:
        await desk.create(JobSpec(name="other", command=("x",), workdir="/", environment=VALUES), key="k" * 20)
    assert caught.value.code == "key.conflict"
    assert len(desk.files()) == 1


async def test_a_run_whose_values_are_gone_is_not_started_without_them(desk: Desk) -> None:
    job = JobSpec(name="n", command=("true",), workdir="/", environment=VALUES)
    desk.loop.submit_nowait(CreateRun(id=RUN, claim=None, job=job, engine="local", subject="ann"))
    while RUN not in desk.loop.runs.by_id or not desk.loop.runs.by_id[RUN].is_ended:
        await desk.settle()
        await asyncio.sleep(0)
        if desk.store.get_run(RUN) is not None and desk.store.get_run(RUN).is_ended:  # type: ignore[union-attr]
            break
    run = desk.store.get_run(RUN)
    assert run is not None
    assert run.state is RunState.FAILED
    assert "its variables are gone" in run.detail
    assert desk.open.orders == []


async def test_a_run_of_an_earlier_release_starts_with_the_values_of_its_row(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.loop.store, "get_jobs", lambda idents: dict.fromkeys(idents, JOB))
    desk.loop.submit_nowait(CreateRun(id=RUN, claim=None, job=JOB, engine="local", subject="ann"))
    await desk.settle()
    assert (await desk.submitted()).job.environment == VALUES
    assert "hunter2" not in str(encode(run_body(await desk.service.get_run(ANN, RUN))))


async def test_of_a_job_that_was_handed_in_no_value_is_kept(desk: Desk) -> None:
    desk.service._handed_in = ("local",)
    entry = "61001-" + "0123456789abcdef" * 2
    caller = Caller("ann", Role.USER, "user/ann", "uid-61001", uid=61001)
    await desk.finish(desk.service.create_run(caller, JOB, spool_entry=entry))
    assert (await desk.submitted()).job.environment == {"TOKEN": "", "PATH": ""}
    assert desk.files() == []


async def test_a_disk_that_is_away_only_delays_the_start(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(engine: str, run: RunId) -> None:
        raise MooringsError("engine.unavailable", "it is away", retryable=True)

    with monkeypatch.context() as broken:
        broken.setattr(desk.running, "environments", type("Away", (), {"load": staticmethod(away)})())
        view = await desk.create()
        await desk.until(lambda: bool(desk.clock.sleepers))
    assert desk.loop.runs.by_id[view.run.id].is_queued
    assert desk.open.orders == []
