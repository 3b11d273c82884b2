"""Claims that are asked to yield, and checkpoints that are told: the use cases over a real loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.app.clock import RandomIds
from moorings.controller.driver_manager import DriverManager
from moorings.controller.keys import AccessKeyManager
from moorings.controller.service import Controller
from moorings.controller.turn_record import AnyInput
from moorings.controller.views import ClaimView
from moorings.core.model.access import Caller, Role
from moorings.core.model.claims import ClaimId, ClaimSpec, ClaimState
from moorings.core.model.inputs import CancelPendingClaim, ReleaseClaim, ResetPartition, YieldClaim
from moorings.core.model.partitions import PartitionState
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.placement.fleet import FleetChanges
from moorings.engines.environments import FolderEnvironments
from moorings.ports.store import Seq
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.run_turn import CreateRun
from moorings.workloads.runs import Run, RunId
from tests.unit.controller.stepping import POOL, Stepper

ROOT = Caller("root", Role.ADMIN, "", "k1")
ANN = Caller("ann", Role.USER, "user/ann", "k2")
BOB = Caller("bob", Role.USER, "user/bob", "k3")


class Rig(Stepper):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.hardware = DriverManager(self.loop, {POOL.name: self.driver}, self.clock, self.installation)
        self.controller = Controller(
            loop=self.loop,
            store=self.store,
            hardware=self.hardware,
            engines={},
            keys=AccessKeyManager(self.store, self.clock, b"pepper"),
            clock=self.clock,
            ids=RandomIds(),
            installation=self.installation,
            environments=FolderEnvironments({}),
        )

    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self.hardware._orders.values())

    async def end(self) -> None:
        self.hardware._closing = True
        await super().end()

    def ask(self, ident: ClaimId) -> None:
        """As if a turn had asked it to yield: how turns choose is their own test."""
        claim = self.loop.fleet.claims[ident]
        assert claim.state is ClaimState.READY
        asked = replace(claim, state=ClaimState.RECLAIMING, asked_until=add_seconds(self.clock.now(), 60.0))
        self.loop.fleet.apply(FleetChanges(claims={ident: (asked, claim.version)}))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    await rig.settle()
    await rig.loop.turn()
    yield rig
    await rig.end()


async def test_a_claim_that_was_asked_yields_and_says_why(rig: Rig) -> None:
    ident = await rig.claim()
    rig.ask(ident)
    view = await rig.done(rig.controller.yield_claim(ANN, ident, " saved "))
    assert view.claim.reason is not None
    assert view.claim.reason.message == "saved"
    (told,) = (row.event for row in rig.store.list_events(Seq(0), 100, names=["claim.yielding"]))
    assert (told.claim, json.loads(told.data)["why"]) == (ident, "saved")
    waiting = rig.loop.fleet.claims[ident]
    assert waiting.attempt == 1, "its partition was removed, and it is served anew"


async def test_only_an_agent_says_since_when_its_job_waits(rig: Rig) -> None:
    """Otherwise any user could be first in the queue."""
    spec, then = ClaimSpec(kind="ipu", size=1), Timestamp(rig.clock.now() - 3600 * SECOND)

    def asking(caller: Caller, owner: str, since: Timestamp) -> Awaitable[ClaimView]:
        return rig.controller.create_claim(caller, spec, name=None, owner=owner, key=None, since=since)

    for caller, owner in ((ROOT, "user/root"), (ANN, "user/ann")):
        assert await rig.refused(asking(caller, owner, then)) == "auth.denied"
    agent = Caller("k8s", Role.AGENT, "kubernetes/lab", "k4")
    assert (await rig.done(asking(agent, "kubernetes/lab/a", then))).claim.arrival == then
    assert (await rig.done(asking(agent, "kubernetes/lab/b", Timestamp(-5)))).claim.arrival == 0


async def test_only_an_agent_says_for_whom_it_claims(rig: Rig) -> None:
    """Law 10: a person's name beside a claim is the scheduler's word, never another person's."""
    spec = ClaimSpec(kind="ipu", size=1, person="bob")

    def asking(caller: Caller, owner: str, key: str, spec: ClaimSpec = spec) -> Awaitable[ClaimView]:
        return rig.controller.create_claim(caller, spec, name=None, owner=owner, key=key)

    for caller, owner in ((ROOT, "user/root"), (ANN, "user/ann")):
        assert await rig.refused(asking(caller, owner, "k")) == "auth.denied"
    agent, owner = Caller("slurm", Role.AGENT, "slurm/lab", "k4"), "slurm/lab/1/n/0/i"
    first = (await rig.done(asking(agent, owner, "k"))).claim
    assert first.spec.person == "bob"
    again = (await rig.done(asking(agent, owner, "k", replace(spec, person="")))).claim
    assert again.id == first.id, "its users became private meanwhile"
    assert await rig.refused(asking(agent, owner, "l", replace(spec, person="a b"))) == "key.invalid"


async def test_a_claim_that_nobody_asked_keeps_what_it_has(rig: Rig) -> None:
    ident = await rig.claim()
    assert await rig.refused(rig.controller.yield_claim(ANN, ident, "")) == "claim.not_asked"
    assert rig.state(ident) is ClaimState.READY


async def test_only_who_may_act_for_its_owner_yields_or_tells_of_checkpoints(rig: Rig) -> None:
    ident = await rig.claim()
    rig.ask(ident)
    assert await rig.refused(rig.controller.yield_claim(BOB, ident, "")) == "claim.unknown"
    assert await rig.refused(rig.controller.record_checkpoint(BOB, ident)) == "claim.unknown"
    eye = Caller("eye", Role.VIEWER, "", "k5")  # knows that there is such a claim
    assert await rig.refused(rig.controller.yield_claim(eye, ident, "")) == "owner.denied"
    assert (await rig.done(rig.controller.record_checkpoint(ROOT, ident))).claim.checkpoint_at is not None


async def test_a_claim_that_is_read_again_is_explained_to_all(rig: Rig) -> None:
    """The answer to its save was lost: the database has it, and memory does not yet."""
    await rig.claim()
    spec = ClaimSpec(kind="ipu", size=8)
    waits = (await rig.done(rig.controller.create_claim(ANN, spec, name=None, owner=None, key=None))).claim
    del rig.loop.fleet.claims[waits.id]
    for caller in (ANN, Caller("eye", Role.VIEWER, "", "k5")):
        explained = await rig.controller.explain_claim(caller, waits.id)
        assert [reason.code for reason in explained.reasons] == ["controller.reloading"]


def on(ident: ClaimId) -> CreateRun:
    job = JobSpec(name="digits", command=("true",), workdir="/", accelerators=Accelerators(size=4))
    return CreateRun(id=RunId("run-1"), claim=ident, job=job, engine="local", subject="ann", within=True)


async def test_a_claim_of_a_run_yields_when_the_run_has_stopped(rig: Rig) -> None:
    ident = await rig.claim()
    await rig.done(rig.loop.submit(on(ident)))
    rig.ask(ident)
    assert await rig.refused(rig.controller.yield_claim(ROOT, ident, "")) == "claim.held_by_run"


@pytest.mark.parametrize("way", ["release", "withdraw", "yield", "reset"])
async def test_what_a_run_was_put_on_in_the_same_turn_is_not_taken_from_it(rig: Rig, way: str) -> None:
    """Law 4: the service knows nothing of that run yet; only the turn can say no."""
    ident = await rig.claim()
    if way == "yield":
        rig.ask(ident)
    partition = rig.loop.fleet.claims[ident].partition
    assert partition is not None
    ways: dict[str, AnyInput] = {
        "release": ReleaseClaim(ident, "done"),
        "withdraw": CancelPendingClaim(ident, "done"),
        "yield": YieldClaim(ident, "saved"),
        "reset": ResetPartition(partition),
    }
    made = asyncio.ensure_future(rig.loop.submit(on(ident)))
    await asyncio.sleep(0)
    assert await rig.refused(rig.loop.submit(ways[way])) == "claim.held_by_run"
    run = await made
    assert isinstance(run, Run)
    assert rig.loop.fleet.partitions[partition].state is PartitionState.ACTIVE


async def test_a_reason_to_yield_is_short(rig: Rig) -> None:
    ident = await rig.claim()
    rig.ask(ident)
    assert await rig.refused(rig.controller.yield_claim(ANN, ident, "a" * 201)) == "body.invalid"


async def test_a_checkpoint_is_kept_and_never_in_the_future(rig: Rig) -> None:
    ident = await rig.claim()
    earlier = add_seconds(rig.clock.now(), -5.0)
    assert (await rig.done(rig.controller.record_checkpoint(ANN, ident, earlier))).claim.checkpoint_at == earlier
    now = rig.clock.now()
    seen = await rig.done(rig.controller.record_checkpoint(ANN, ident, add_seconds(now, 60.0)))
    assert seen.claim.checkpoint_at == now
    again = await rig.done(rig.controller.record_checkpoint(ANN, ident, earlier))
    assert again.claim.checkpoint_at == now, "what was heard late changes nothing"


async def test_a_checkpoint_of_a_claim_that_has_ended_changes_nothing(rig: Rig) -> None:
    ident = await rig.claim()
    await rig.release(ident)
    seq = rig.loop.seq
    view = await rig.done(rig.controller.record_checkpoint(ANN, ident))
    assert (view.claim.state, view.claim.checkpoint_at) == (ClaimState.RELEASED, None)
    assert rig.loop.seq == seq


async def test_an_explanation_has_an_estimate_if_one_was_asked_for(rig: Rig) -> None:
    await rig.claim(size=8)
    waiting = await rig.claim(size=8)
    assert (await rig.controller.explain_claim(ROOT, waiting)).estimate is None
    told = await rig.controller.explain_claim(ANN, waiting, when=True)
    assert told.estimate is not None
    assert "no time limit" in told.estimate.why
