"""The use cases of projects: saved through turns, and estimates that change nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorings.controller.projects import ProjectService
from moorings.core.forecast.whatif import PolicyComparison, compare_policies
from moorings.core.model.access import Caller, Role
from moorings.core.model.claims import CheckpointContract, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim, DefragmentPool, DriverResultReceived, ReleaseClaim
from moorings.core.model.partitions import PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.timestamps import SECOND
from tests.unit.controller.stepping import POOL, Stepper
from tests.waiting import patient

ROOT = Caller("root", Role.ADMIN, "", "k1")
ANN = Caller("ann", Role.USER, "user/ann", "k2")
LAB = Project(name="lab", shares=(ProjectShare(POOL.name, ((4, 1),)),), devices_max=4)


class Rig(Stepper):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.projects = ProjectService(self.loop, self.clock)

    async def asks(self, size: int, limit_s: float | None = None, *, resumable: bool = False) -> ClaimId:
        self._n_claims += 1
        ident = ClaimId(f"claim-{self._n_claims}")
        contract = CheckpointContract(resumable=resumable)
        spec = ClaimSpec(kind="ipu", size=size, time_limit_s=limit_s, checkpoint=contract)
        owner = f"local/run-{ident}" if resumable else "user/ann"
        await self.post(CreateClaim(id=ident, name=ident, owner=owner, subject="ann", spec=spec))
        return ident

    async def hardware_says(self, seen: ObservedState, of: PartitionState = PartitionState.PROVISIONING) -> None:
        """The driver's word of all partitions in a state."""
        for partition in list(self.loop.fleet.partitions.values()):
            if partition.state is of:
                order = "create" if seen is ObservedState.ACTIVE else "remove"
                answered = DriverResultReceived(
                    partition.id, partition.version, order, DriverResult(ResultCode.OK, seen)
                )
                await self.done(self.loop.submit(answered))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    await rig.settle()
    await rig.loop.turn()
    yield rig
    await rig.end()


def spec(size: int, **more: object) -> ClaimSpec:
    return ClaimSpec(kind="ipu", size=size, **more)  # type: ignore[arg-type]


async def test_a_project_is_made_changed_and_deleted(rig: Rig) -> None:
    made = await rig.done(rig.projects.set_project(ROOT, LAB, None))
    assert (made.version, rig.projects.get_project(ROOT, "lab")) == (1, made)
    again = Project(name="lab", weight=2.0)
    changed = await rig.done(rig.projects.set_project(ROOT, again, 1))
    assert (changed.version, changed.weight, changed.shares) == (2, 2.0, ())
    assert rig.projects.list_projects(ROOT) == [changed]
    await rig.done(rig.projects.delete_project(ROOT, "lab"))
    assert rig.projects.list_projects(ROOT) == []


async def test_who_is_no_admin_changes_no_project(rig: Rig) -> None:
    assert await rig.refused(rig.projects.set_project(ANN, LAB, None)) == "auth.denied"
    assert await rig.refused(rig.projects.delete_project(ANN, "lab")) == "auth.denied"
    assert rig.projects.list_projects(ROOT) == []


async def test_what_core_refuses_is_refused(rig: Rig) -> None:
    await rig.done(rig.projects.set_project(ROOT, LAB, None))
    assert await rig.refused(rig.projects.set_project(ROOT, LAB, None)) == "project.exists"
    assert await rig.refused(rig.projects.set_project(ROOT, LAB, 7)) == "project.changed"
    assert await rig.refused(rig.projects.delete_project(ROOT, "other")) == "project.unknown"
    with pytest.raises(MooringsError) as caught:
        rig.projects.get_project(ROOT, "lap")
    assert (caught.value.code, "did you mean lab?" in caught.value.hint) == ("project.unknown", True)


async def test_an_estimate_says_now_later_or_why_not(rig: Rig) -> None:
    now = await rig.projects.estimate(ANN, spec(4))
    assert (now.starts_now, now.starts_at) == (True, rig.clock.now())
    held = await rig.asks(8, limit_s=600.0)
    later = await rig.projects.estimate(ANN, spec(4))
    ready = rig.loop.fleet.claims[held].granted_at
    assert ready is not None
    assert later.starts_at is not None
    assert (later.starts_now, later.starts_at - ready) == (False, 600 * SECOND)
    assert (
        await rig.projects.estimate_claim(ANN, rig.loop.fleet.claims[await rig.asks(8)])
    ).starts_at == later.starts_at


async def test_where_somebody_holds_without_end_nobody_can_say(rig: Rig) -> None:
    await rig.asks(8)
    found = await rig.projects.estimate(ANN, spec(4))
    assert (found.starts_now, found.starts_at) == (False, None)
    assert "no time limit" in found.why


async def test_an_estimate_of_what_is_guaranteed_to_others_says_so(rig: Rig) -> None:
    """A project's rules keep it waiting for ever; that somebody has no time limit is the lesser reason."""
    await rig.done(rig.projects.set_project(ROOT, LAB, None))
    await rig.asks(4)
    found = await rig.projects.estimate(ANN, spec(8))
    assert found.starts_at is None
    assert "no time limit" in found.why
    firm = await rig.projects.estimate(ANN, spec(4))
    assert firm.starts_at is None
    assert firm.why.startswith("waits for 4 devices in ")
    assert "is guaranteed to other projects" in firm.why
    assert (await rig.projects.estimate(ANN, spec(4, preemptible=True))).starts_now


async def test_an_estimate_changes_nothing(rig: Rig) -> None:
    await rig.asks(4, limit_s=600.0)
    fleet, seq = rig.loop.fleet, rig.loop.seq
    before = (dict(fleet.claims), dict(fleet.partitions), list(fleet.queue), fleet.pools[POOL.name].free.n_free)
    await rig.projects.estimate(ANN, spec(8))
    await rig.settle()
    assert (dict(fleet.claims), dict(fleet.partitions), list(fleet.queue), fleet.pools[POOL.name].free.n_free) == before
    assert (rig.loop.seq, rig.loop.fleet) == (seq, fleet)


async def test_another_policy_is_compared_with_the_one_in_force(rig: Rig) -> None:
    await rig.asks(4, limit_s=600.0)
    first, short = await rig.asks(8, limit_s=600.0), await rig.asks(4, limit_s=1200.0)
    seq = rig.loop.seq
    view = await rig.projects.what_if(ANN, Policy(reserve=False))
    found = {one.claim: one for one in view.found.claims}
    assert view.claims.keys() == found.keys() == {first, short}
    assert found[short].then_at == view.at
    now_at = found[short].now_at
    assert now_at is not None
    assert now_at > view.at
    assert (view.found.is_complete, rig.loop.seq) == (True, seq)


async def test_a_comparison_that_takes_too_long_tells_what_is_known(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.asks(8, limit_s=600.0)
    await rig.asks(8, limit_s=600.0)
    monkeypatch.setattr("moorings.controller.projects.WHAT_IF_S_MAX", 0.0)
    assert not (await rig.projects.what_if(ANN, Policy())).found.is_complete


async def test_an_estimate_that_takes_too_long_says_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorings.controller.projects.ESTIMATE_S_MAX", 0.0)
    found = await rig.projects.estimate(ANN, spec(4))
    assert (found.starts_now, found.starts_at, "too long" in found.why) == (False, None, True)


async def test_an_estimate_does_not_wait_for_a_comparison(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, told = threading.Event(), threading.Event()

    def slow(*given: object) -> PolicyComparison:
        begun.set()
        assert told.wait(patient(60.0))
        return compare_policies(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("moorings.controller.projects.compare_policies", slow)
    compared = asyncio.create_task(rig.projects.what_if(ANN, Policy()))
    try:
        await rig.until(begun.is_set)
        assert (await rig.projects.estimate(ANN, spec(4))).starts_now
        assert not compared.done()
    finally:
        told.set()
    assert (await compared).found.is_complete


async def test_a_subject_asks_for_one_forecast_of_a_kind_at_a_time(rig: Rig) -> None:
    asked = asyncio.create_task(rig.projects.estimate(ANN, spec(4)))
    compared = asyncio.create_task(rig.projects.what_if(ANN, Policy()))
    await asyncio.sleep(0)
    assert await rig.refused(rig.projects.estimate(ANN, spec(4))) == "forecast.busy"
    assert await rig.refused(rig.projects.what_if(ANN, Policy())) == "forecast.busy"
    assert (await rig.projects.estimate(ROOT, spec(4))).starts_now
    assert ((await asked).starts_now, (await compared).found.is_complete) == (True, True)


async def test_room_is_made_on_demand_and_a_dry_run_moves_nobody(rig: Rig) -> None:
    jobs = [await rig.asks(2, limit_s=600.0, resumable=True) for _ in range(4)]
    await rig.hardware_says(ObservedState.ACTIVE)
    for ident in (jobs[0], jobs[2]):
        await rig.post(ReleaseClaim(ident, "done"))
    await rig.hardware_says(ObservedState.ABSENT, PartitionState.REMOVING)
    order = DefragmentPool(size=4)
    seq = rig.loop.seq
    dry = await rig.projects.defragment(ANN, order, dry_run=True)
    assert (rig.loop.seq, len(dry.moves)) == (seq, 1)
    assert await rig.refused(rig.projects.defragment(ANN, order, dry_run=False)) == "auth.denied"
    done = await rig.done(rig.projects.defragment(ROOT, order, dry_run=False))
    assert done.spot == dry.spot
    [(claim, block, to)] = done.moves
    moved = dry.moves[0][0]
    assert claim is not None
    assert moved is not None
    assert (claim.id, len(block), block.overlaps(to)) == (moved.id, 2, False)
    assert rig.loop.fleet.claims[claim.id].state is ClaimState.RECLAIMING


async def test_a_claim_that_shall_have_room_may_be_named(rig: Rig) -> None:
    await rig.asks(4)
    held = rig.loop.fleet.claims[await rig.asks(4)]
    order = DefragmentPool(claim=ClaimId(held.name))
    assert await rig.refused(rig.projects.defragment(ANN, order, dry_run=True)) == "claim.held"


async def test_what_can_never_start_is_told(rig: Rig) -> None:
    assert await rig.refused(rig.projects.estimate(ANN, spec(16))) == "claim.too_large"
    await rig.done(rig.projects.set_project(ROOT, LAB, None))
    assert await rig.refused(rig.projects.estimate(ANN, spec(1, project="lap"))) == "project.unknown"
    found = await rig.projects.estimate(ANN, spec(8, project="lab"))
    assert (found.starts_at, found.why) == (None, "project lab may hold 4 devices at once, and no more")


async def test_quotas_are_of_the_fleet_as_it_is(rig: Rig) -> None:
    await rig.done(rig.projects.set_project(ROOT, LAB, None))
    await rig.asks(2)
    found = {(row.project, row.pool): (row.guaranteed, row.borrowed) for row in rig.projects.list_quotas(ROOT)}
    assert found == {("default", POOL.name): (0, 2), ("lab", POOL.name): (4, 0)}
