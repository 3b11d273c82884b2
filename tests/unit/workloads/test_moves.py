"""Each entry of each state table is reached by what turns do: an entry that no code enters is a lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType

import pytest

from moorings.core.model import claims, devices, partitions
from moorings.core.model.access import Role
from moorings.core.model.claims import CheckpointContract, Claim, ClaimId, ClaimState, PartitionId
from moorings.core.model.devices import Device, DeviceState
from moorings.core.model.driver_results import ObservedState, ResultCode
from moorings.core.model.inputs import (
    CheckpointSaved,
    DefragmentPool,
    DrainDevice,
    ReleaseClaim,
    ResetPartition,
    ResumeDevice,
    RetryRemoval,
    YieldClaim,
)
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, a_claim, a_run
from moorings.workloads import runs
from moorings.workloads.run_turn import CancelRun, PauseRun, ResumeRun, RunRegistry, RunTurn
from moorings.workloads.runs import EndReason, EndRecord, RunPause, RunPhase, RunState, RunStatus
from tests.unit.core.worlds import POD, World

MACHINES: Sequence[ModuleType] = (claims, partitions, devices, runs)
Move = tuple[str, str, str]
Entered = set[Move]


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Entered:
    """The moves made while the test runs: the file of the table, the state and the event."""
    made: Entered = set()
    for module in MACHINES:
        monkeypatch.setattr(module, "transition", _noting(module, made))
    return made


def _noting(module: ModuleType, made: Entered) -> Callable[..., str]:
    real = module.transition

    def advance(table, kind, ident, state, event, story):
        after = real(table, kind, ident, state, event, story)
        made.add((module.__name__, str(state), str(event)))
        return after

    return advance


def test_each_move_is_made_by_a_turn(entered: Entered) -> None:
    for life in (_granted, _ready, _asked_to_yield, _resetting, _not_removed, _out_of_service, _runs):
        life()
    known = {
        (module.__name__, str(state), str(event))
        for module in MACHINES
        for state, row in module.NEXT.items()
        for event in row
    }
    assert sorted(known - entered) == []


def _says(
    world: World, claim: Claim, seen: ObservedState, verdict: ResultCode = ResultCode.OK, order: str = "list"
) -> None:
    world.says(world.partition(claim), seen, verdict, order)


def _granted() -> None:
    world = World(POD)
    world.step(ReleaseClaim(world.create(1).id, "changed my mind"))
    _says(world, world.create(1), ObservedState.UNKNOWN, ResultCode.REJECTED, "create")
    _says(world, world.create(1), ObservedState.ERROR)
    claim = world.create(1)
    partition = world.partition(claim)
    world.says(partition, ObservedState.UNKNOWN, ResultCode.BROKEN, "create")
    world.ready(8)
    world.step(ReleaseClaim(world.create(8).id, "it waited"))


def _ready() -> None:
    world = World(POD)
    world.end(world.ready(4))
    claim = world.ready(4)
    _says(world, claim, ObservedState.ABSENT)
    world.end(claim)


def _asked_to_yield() -> None:
    for goes in (_yields, _yields_and_ends, _ends, _is_lost):
        world = World(POD)
        jobs = [
            world.ready(4, owner=f"local/run-{n}", name=f"job-{n}", preemptible=True, checkpoint=KEEPS)
            for n in range(4)
        ]
        for one in (jobs[0], jobs[2]):
            world.end(one)
        world.step(*(CheckpointSaved(one.id, world.now) for one in (jobs[1], jobs[3])), DefragmentPool(size=8))
        [asked] = [one for one in world.fleet.claims.values() if one.state is ClaimState.RECLAIMING]
        goes(world, asked)


KEEPS = CheckpointContract(resumable=True)


def _yields(world: World, claim: Claim) -> None:
    world.step(YieldClaim(claim.id, "stopped"))
    _says(world, claim, ObservedState.ABSENT, order="remove")


def _yields_and_ends(world: World, claim: Claim) -> None:
    world.step(YieldClaim(claim.id, "stopped"))
    world.step(ReleaseClaim(claim.id, "done"))


def _ends(world: World, claim: Claim) -> None:
    world.step(ReleaseClaim(claim.id, "done"))


def _is_lost(world: World, claim: Claim) -> None:
    _says(world, claim, ObservedState.ABSENT)


def _resetting() -> None:
    for then in (ObservedState.ACTIVE, ObservedState.ERROR, None):
        world = World(POD)
        claim = world.ready(4)
        world.step(ResetPartition(world.partition(claim).id))
        if then is None:
            world.end(claim)
        else:
            _says(world, claim, then, order="reset")


def _not_removed() -> None:
    world = World(POD)
    claim = world.ready(4)
    ident = world.partition(claim).id
    world.step(ReleaseClaim(claim.id, "done"))
    world.says(world.fleet.partitions[ident], ObservedState.UNKNOWN, ResultCode.BROKEN, "remove")
    world.step(RetryRemoval(PartitionId(ident)))
    world.says(world.fleet.partitions[ident], ObservedState.ABSENT, order="remove")


def _out_of_service() -> None:
    """A device that was put out of service while a partition is on it, and what becomes of it when that breaks."""
    for state in DeviceState:
        for removed in (False, True):
            world = World(POD)
            claim = world.ready(1)
            ident = world.partition(claim).id
            # Two of these are what a database that was turned back may hold: see controller/rewind_recovery.py.
            world.devices[POD.name, 0] = Device(POD.name, 0, state, "", world.now)
            world.fleet = world._reloaded()
            if removed:
                world.step(ReleaseClaim(claim.id, "done"))
                world.says(world.fleet.partitions[ident], ObservedState.UNKNOWN, ResultCode.BROKEN, "remove")
            else:
                _says(world, claim, ObservedState.ERROR)
    world = World(POD)
    world.step(DrainDevice(POD.name, 0, "look"), DrainDevice(POD.name, 0, "again"), ResumeDevice(POD.name, 0))
    _says(world, world.ready(1), ObservedState.ERROR)
    world.step(DrainDevice(POD.name, 0, "board swap"))
    world = World(POD)
    _says(world, world.ready(1), ObservedState.ERROR)
    world.step(ResumeDevice(POD.name, 0), DrainDevice(POD.name, 0, "board swap"))


def _runs() -> None:
    later = Timestamp(NOW + SECOND)
    run = a_run()
    ends = [EndRecord(ending, code) for ending in EndReason for code in (0, 1)]
    endings = [RunStatus(run.id, RunPhase.ENDED, end=end) for end in ends]
    others = [RunStatus(run.id, phase) for phase in (RunPhase.STARTING, RunPhase.RUNNING, RunPhase.ABSENT)]
    for state in RunState:
        inputs: Sequence[RunStatus | CancelRun] = (*endings, *others, CancelRun(run.id, "enough"))
        for given in inputs:
            for claim in (None, run.claim):
                turn = RunTurn(RunRegistry([a_run(state=state, claim=claim)]), lambda _: None, later)
                turn.handle_input(given)
        for claim_state in ClaimState:
            held = a_claim(state=claim_state)
            RunTurn(RunRegistry([a_run(state=state)]), {held.id: held}.get, later).apply_claim_changes([held])
    saves = a_claim(spec=replace(a_claim().spec, checkpoint=CheckpointContract(resumable=True)))
    job = replace(run.job, checkpoint_directory="/c")
    pause = PauseRun(run.id, "ann", 60.0)
    for state in (RunState.WAITING, RunState.RUNNING):
        turn = RunTurn(RunRegistry([a_run(state=state, job=job)]), {saves.id: saves}.get, later)
        turn.handle_input(pause)
        turn.handle_input(endings[0])
    lost = replace(saves, state=ClaimState.LOST)
    turn = RunTurn(
        RunRegistry([a_run(state=RunState.RUNNING, job=replace(job, retries=1))]), {lost.id: lost}.get, later
    )
    turn.apply_claim_changes([lost])
    turn.handle_input(RunStatus(run.id, RunPhase.ABSENT))
    resume = ResumeRun(run.id, ClaimId("claim-next"), saves.spec, Role.USER)
    paused = a_run(state=RunState.PAUSED, pause=RunPause("ann", NOW, 60.0, 0))
    RunTurn(RunRegistry([paused]), lambda _: None, later).handle_input(resume)
    waits = a_run(state=RunState.YIELDING, pause=paused.pause)
    RunTurn(RunRegistry([waits]), {saves.id: saves}.get, later).handle_input(RunStatus(run.id, RunPhase.ABSENT))
    asked = a_claim(state=ClaimState.RECLAIMING)
    turn = RunTurn(RunRegistry([a_run(state=RunState.YIELDING)]), {asked.id: asked}.get, later)
    turn.handle_input(RunStatus(run.id, RunPhase.ABSENT))
