"""Acts on engines, step by step: what is seen of a run that is being started, cancelled or forgotten.

The engine is the local one on a folder of its own; here it only ever refuses to start, so no process is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from moorings.app.clock import RandomIds
from moorings.controller.driver_manager import DriverManager
from moorings.controller.run_manager import (
    ORPHAN_SWEEP_S,
    RETRY_S_MAX,
    RunManager,
)
from moorings.core.model.bindings import NO_BINDING
from moorings.core.model.claims import CheckpointContract, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim, ReleaseClaim, ResetPartition, SetProject
from moorings.core.model.partitions import PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.reconcile import LISTINGS_REQUIRED
from moorings.drivers.simulated.faults import Fault, FaultKind, VendorCall
from moorings.engines.environments import FolderEnvironments
from moorings.local.engine import LocalEngine
from moorings.local.records import AttemptEnd
from moorings.local.run_folder import LocalRunFolder
from moorings.ports.engine import RunSubmission
from moorings.testing.builders import a_job, a_run
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.run_turn import CancelRun, CreateRun, PauseRun
from moorings.workloads.runs import EndReason, EndRecord, Run, RunId, RunPhase, RunState, RunStatus
from tests.unit.controller.stepping import POOL, Stepper

RUN = RunId("run-1")
LABS = ClaimId("claim-lab")
SAVES: Any = {"checkpoint": CheckpointContract(resumable=True), "checkpoint_directory": "/c"}


class HeldEngine(LocalEngine):
    """The local engine on a machine that takes its time: answers come when ``go_on`` is set, and no start succeeds."""

    queues = False

    @property
    def has_scheduler(self) -> bool:
        return self.queues

    def hold(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.to_yield: list[tuple[int, str, Timestamp]] = []
        self.until_saved: list[bool] = []
        self.submitted: list[RunId] = []

    async def submit(self, order: RunSubmission) -> str:
        self.submitted.append(order.run)
        self.asked.set()
        await self.go_on.wait()
        raise MooringsError("engine.unavailable", "the connection was cut", retryable=True)

    async def ask_to_yield(
        self, run: RunId, attempt: int, reason: str, deadline: Timestamp, *, until_saved: bool = False
    ) -> None:
        self.to_yield.append((attempt, reason, deadline))
        self.until_saved.append(until_saved)

    async def observe(self, runs: Sequence[RunId]) -> Sequence[RunStatus]:
        seen = await super().observe(runs)
        self.asked.set()
        await self.go_on.wait()
        return seen


class Rig(Stepper):
    """One controller's hardware and engine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.hardware = DriverManager(self.loop, {POOL.name: self.driver}, self.clock, self.installation)
        self.engine = HeldEngine(folder / "runs", self.clock)
        ids = RandomIds()
        self.running = RunManager(
            self.loop,
            {"local": self.engine},
            self.hardware,
            self.clock,
            ids,
            self.installation,
            FolderEnvironments({"local": folder / "runs"}),
        )
        self.extra: list[asyncio.Task[None]] = []

    def tasks(self) -> list[asyncio.Task[None]]:
        return [*self.hardware._orders.values(), *self.extra]

    @property
    def run(self) -> Run:
        assert RUN in self.loop.runs.by_id, "it has ended"
        return self.loop.runs.by_id[RUN]

    async def create(self, within: ClaimId | None = None) -> None:
        """Put a run in, to an engine that answers only when it is told to; it makes its claim, or has that one."""
        self.engine.hold()
        await self.engine.fence_below(self.loop.epoch)
        self.running._fenced["local"].set()
        job = JobSpec(name="digits", command=("true",), workdir="/", accelerators=Accelerators(size=4), **SAVES)
        claim = within or a_run(1).claim
        inside = within is not None
        self.loop.submit_nowait(CreateRun(id=RUN, claim=claim, job=job, engine="local", subject="ann", within=inside))

    async def lend_and_take_back(self) -> None:
        """A run on borrowed devices, asked to make room while it is submitted."""
        self.loop.policy = Policy(min_run_s=0.0, yield_s=60.0)
        self.loop.submit_nowait(SetProject(Project(name="lab", shares=(ProjectShare(POOL.name, ((8, 1),)),)), None))
        await self.settle()
        self.engine.hold()
        await self.engine.fence_below(self.loop.epoch)
        self.running._fenced["local"].set()
        wanted = Accelerators(size=4)
        job = JobSpec(name="digits", command=("true",), workdir="/", accelerators=wanted, preemptible=True, **SAVES)
        self.loop.submit_nowait(CreateRun(id=RUN, claim=a_run(1).claim, job=job, engine="local", subject="ann"))
        await self.settle()
        await self.engine.asked.wait()
        spec = ClaimSpec(kind="ipu", size=8, project="lab")
        self.loop.submit_nowait(CreateClaim(id=LABS, name="labs", owner="user/bob", subject="bob", spec=spec))
        await self.settle()
        assert self.run.state is RunState.YIELDING

    async def look(self) -> None:
        """One look at the engine, which answers at once, and what follows."""
        self.engine.go_on.set()
        await self.running._observe_engine(self.engine)
        await self.settle()

    async def queue(self) -> None:
        """Put a run in that claims nothing, to an engine that schedules itself; it is being submitted."""
        self.engine.hold()
        self.engine.queues = True
        await self.engine.fence_below(self.loop.epoch)
        self.running._fenced["local"].set()
        job = JobSpec(name="digits", command=("true",), workdir="/", accelerators=Accelerators(size=4))
        self.loop.submit_nowait(CreateRun(id=RUN, claim=None, job=job, engine="local", subject="ann"))
        await self.settle()
        await self.engine.asked.wait()

    async def start(self) -> None:
        """A run whose partition is ACTIVE, at the moment at which the engine is asked to start it."""
        await self.create()
        await self.settle()
        await self.engine.asked.wait()

    async def end(self) -> None:
        self.hardware._closing = self.running._closing = True
        for task in (acts := [*self.running._acts.values()]):
            task.cancel()
        await asyncio.gather(*acts, return_exceptions=True)
        await super().end()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    await rig.end()


async def test_a_run_that_is_cancelled_while_it_is_submitted_has_not_ended(rig: Rig) -> None:
    """Law 3: its processes may be starting; the engine knows nothing of it only because it has not answered yet."""
    await rig.start()
    rig.loop.submit_nowait(CancelRun(RUN, "changed my mind"))
    await rig.settle()
    assert rig.run.state is RunState.STOPPING
    rig.engine.asked.clear()
    look = asyncio.create_task(rig.running._observe_engine(rig.engine))
    await rig.engine.asked.wait()
    rig.engine.go_on.set()
    await look
    await rig.settle()
    assert rig.run.state is RunState.STOPPING
    assert rig.run.claim is not None
    assert rig.state(rig.run.claim) is ClaimState.READY


async def test_a_look_that_is_older_than_a_start_ends_nothing(rig: Rig) -> None:
    """Law 3: when the look was begun the engine had not heard of the run, which runs by now."""
    await rig.start()
    rig.engine.go_on.set()
    await rig.until(lambda: not rig.running._submitting)
    rig.engine.hold()
    look = asyncio.create_task(rig.running._observe_engine(rig.engine))
    await rig.engine.asked.wait()
    rig.loop.submit_nowait(RunStatus(RUN, RunPhase.RUNNING))
    await rig.settle()
    assert rig.run.state is RunState.RUNNING
    rig.engine.go_on.set()
    await look
    await rig.settle()
    assert rig.run.state is RunState.RUNNING


async def test_no_run_starts_on_a_partition_that_is_to_be_reset(rig: Rig) -> None:
    """Law 4: the driver has not heard of the reset, and would give a binding of what is about to be wiped."""
    claim = await rig.claim()
    (partition,) = rig.loop.fleet.partitions
    rig.loop.submit_nowait(ResetPartition(partition))
    await rig.create(within=claim)
    await rig.loop.turn()
    assert rig.loop.fleet.partitions[partition].state is PartitionState.RESETTING
    assert rig.run.state is RunState.STARTING
    await rig.until(lambda: bool(rig.engine.submitted or rig.clock.sleepers))  # it submits, or thinks better of it
    assert rig.engine.submitted == []


async def test_no_run_starts_before_the_engine_knows_who_leads(rig: Rig) -> None:
    """An earlier leader might start it too, in a partition that it believes to be another run's."""
    await rig.create()
    rig.running._fenced["local"].clear()
    await rig.settle()
    for _ in range(50):  # more than it needs from here to the engine, by way of the thread that reads its job
        await asyncio.to_thread(lambda: None)
    assert rig.run.state is RunState.STARTING
    assert rig.engine.submitted == []
    rig.running._fenced["local"].set()
    await rig.engine.asked.wait()
    assert rig.engine.submitted == [RUN]


async def test_a_run_that_was_stopped_while_its_binding_was_made_is_not_started(rig: Rig) -> None:
    """Law 4: by the time the driver has answered, its partition may be gone and another's."""
    rig.driver.faults.add(Fault(kind=FaultKind.HANG, calls=frozenset({VendorCall.BINDING}), seconds=5.0))
    await rig.create()
    await rig.settle()
    await rig.until(lambda: rig.clock.sleepers > 0)  # the driver takes its time over the binding
    rig.loop.submit_nowait(CancelRun(RUN, "changed my mind"))
    await rig.settle()
    assert rig.run.state is RunState.STOPPING
    rig.clock.forward(5.0)
    await rig.until(lambda: bool(rig.engine.submitted or rig.clock.sleepers))  # told to stop, it is asked again later
    assert rig.engine.submitted == []


async def test_a_run_that_its_engines_scheduler_has_is_not_submitted_again(rig: Rig) -> None:
    """Law 3: it may have run there, and would run a second time."""
    await rig.queue()
    rig.loop.submit_nowait(RunStatus(RUN, RunPhase.STARTING, reference="7"))
    await rig.settle()
    rig.engine.go_on.set()  # the answer to its submission was lost
    await rig.until(lambda: rig.clock.sleepers > 0 or not rig.running._acts)
    rig.clock.forward(RETRY_S_MAX)
    await rig.until(lambda: not rig.running._acts or len(rig.engine.submitted) > 1)
    assert rig.engine.submitted == [RUN]
    assert (rig.run.state, rig.run.reference) == (RunState.WAITING, "7")


async def test_a_run_that_its_engine_does_not_have_yet_is_submitted_again(rig: Rig) -> None:
    await rig.queue()
    rig.engine.go_on.set()
    await rig.until(lambda: rig.clock.sleepers > 0)
    rig.clock.forward(RETRY_S_MAX)
    await rig.until(lambda: len(rig.engine.submitted) > 1)
    assert rig.run.state is RunState.WAITING


async def test_a_run_that_cannot_be_submitted_says_why_it_waits(rig: Rig) -> None:
    """Law 8; and a look that finds nothing of it there does not unsay it."""
    await rig.queue()
    rig.engine.go_on.set()
    await rig.until(lambda: rig.clock.sleepers > 0)
    await rig.running._observe_engine(rig.engine)
    reason = rig.loop.runs.wait_reason(rig.run)
    assert reason is not None
    assert (reason.code, reason.message) == (
        "engine.waiting",
        "it could not be submitted yet: the connection was cut",
    )


async def test_a_claim_of_a_run_that_nobody_knows_is_released(rig: Rig) -> None:
    """Law 2: a net under the transactions that make run and claim together; one look is not enough (law 3)."""
    claim = await rig.claim(owner="local/run-nobody-knows")
    kept = await rig.claim(owner="user/ann")
    rig.extra.append(asyncio.create_task(rig.running._sweep_orphans()))
    for _ in range(LISTINGS_REQUIRED):
        await rig.settle()
        assert rig.state(claim) is ClaimState.READY
        rig.clock.forward(ORPHAN_SWEEP_S)
    await rig.settle()
    assert rig.state(claim) is ClaimState.RELEASED
    assert rig.state(kept) is ClaimState.READY
    assert len(await rig.names()) == 1


async def test_a_run_that_is_asked_to_make_room_while_it_is_submitted_has_not_made_it(rig: Rig) -> None:
    """Law 3: its processes may be starting; the engine knows nothing of it only because it has not answered yet."""
    await rig.lend_and_take_back()
    rig.engine.asked.clear()
    look = asyncio.create_task(rig.running._observe_engine(rig.engine))
    await rig.engine.asked.wait()
    rig.engine.go_on.set()
    await look
    await rig.settle()
    assert rig.run.state is RunState.YIELDING
    assert rig.run.claim is not None
    assert rig.state(rig.run.claim) is ClaimState.RECLAIMING


async def test_the_engine_is_told_until_when_to_make_room_and_why(rig: Rig) -> None:
    await rig.lend_and_take_back()
    by = add_seconds(rig.clock.now(), 60.0)
    rig.engine.go_on.set()  # the answer to its submission was lost
    await rig.until(lambda: rig.clock.sleepers > 0)
    rig.clock.forward(RETRY_S_MAX)
    await rig.until(lambda: bool(rig.engine.to_yield))
    ((attempt, why, until),) = rig.engine.to_yield
    assert attempt == 0
    assert "lab" in why
    assert 0 <= by - until < 1_000, "microseconds: settling takes some"


async def test_a_run_that_is_paused_is_stopped_once_it_has_saved_and_by_others_need_in_their_time(rig: Rig) -> None:
    await rig.lend_and_take_back()
    rig.engine.go_on.set()  # the answer to its submission was lost
    rig.loop.submit_nowait(PauseRun(RUN, "ann", 3600.0))
    await rig.until(lambda: rig.clock.sleepers > 0)
    rig.clock.forward(RETRY_S_MAX)
    await rig.until(lambda: bool(rig.engine.to_yield))
    ((_, why, until),) = rig.engine.to_yield
    assert ("lab" in why, rig.engine.until_saved) == (True, [False])
    assert until < add_seconds(rig.clock.now(), 61.0)


async def test_the_engine_is_told_of_a_pause(rig: Rig) -> None:
    await rig.start()
    rig.engine.go_on.set()
    rig.loop.submit_nowait(PauseRun(RUN, "ann", 3600.0))
    await rig.settle()
    await rig.until(lambda: rig.clock.sleepers > 0)
    rig.clock.forward(RETRY_S_MAX)
    await rig.until(lambda: bool(rig.engine.to_yield))
    ((attempt, why, until),) = rig.engine.to_yield
    assert (attempt, why, rig.engine.until_saved) == (0, "paused by ann", [True])
    assert until == add_seconds(rig.clock.now(), 3600.0), "counted from when the engine is asked"


async def test_the_end_of_an_earlier_attempt_is_not_the_run_s(rig: Rig) -> None:
    """Its folder tells how that one ended until the next has been submitted."""
    await rig.lend_and_take_back()
    rig.engine.go_on.set()
    await rig.until(lambda: not rig.running._submitting)
    rig.clock.forward(RETRY_S_MAX)
    folder = LocalRunFolder(rig.folder / "runs" / RUN)
    folder.create()
    folder.save(RunSubmission(RUN, 0, a_job(), NO_BINDING))
    folder.save_end(AttemptEnd(0, EndRecord(EndReason.YIELDED, 85, (85,), detail="lab needs it")))
    await rig.look()
    assert (rig.run.state, rig.run.attempt) == (RunState.WAITING, 1)
    assert rig.state(LABS) is ClaimState.READY
    rig.loop.submit_nowait(ReleaseClaim(LABS, "done"))
    await rig.settle()
    assert rig.run.state is RunState.STARTING
    submitted = len(rig.engine.submitted)
    await rig.look()
    assert rig.run.state is RunState.STARTING
    rig.clock.forward(RETRY_S_MAX)
    await rig.until(lambda: len(rig.engine.submitted) > submitted)
    rig.loop.submit_nowait(CancelRun(RUN, "changed my mind"))
    await rig.settle()
    await rig.until(lambda: not rig.running._submitting)
    await rig.look()
    assert RUN not in rig.loop.runs.by_id, "of its second attempt there never was anything"
    stored = rig.store.get_run(RUN)
    assert stored is not None
    assert (stored.state, stored.attempt) == (RunState.CANCELLED, 1)


async def test_a_run_of_which_the_database_knows_nothing_is_not_started(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was turned back; the next turn finds out."""
    monkeypatch.setattr(rig.loop.store, "get_jobs", lambda _: {})
    await rig.create()
    await rig.settle()
    await rig.until(lambda: rig.clock.sleepers > 0)
    assert rig.engine.submitted == []
    monkeypatch.undo()
    rig.clock.forward(RETRY_S_MAX)
    await rig.until(lambda: bool(rig.engine.submitted))
