"""Jobs of an appliance on a real controller: compile and execute, priorities of a workflow, reservations, leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.controller import run_service
from moorings.core.model.access import Caller
from moorings.core.model.claims import ClaimSpec, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.ports.store import ApplianceJobQuery, PageQuery
from moorings.workloads.appliance import DEFAULT_PRIORITY, ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.runs import Run, RunState
from tests.e2e.rig import ADMIN, ANN, BOB, Rig, job, running
from tests.waiting import patient

GIB = 1 << 30
POOL = """
[[pool]]
name = "cs"
kind = "csx"
driver = "simulated"
topology = { type = "any-subset", domain_size = 4 }
resources = { memory = "128G" }
[pool.simulated]
provision_s = 0.2
provision_per_device_s = 0.0
remove_s = 0.2
remove_per_device_s = 0.0
"""
WORKFLOW, OTHER = "wflow-" + "a" * 22, "wflow-" + "b" * 22
COMPILE, EXECUTE = ApplianceJobType.COMPILE, ApplianceJobType.EXECUTE


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(tmp_path, POOL) as made:
        yield made


def wsjob(kind: ApplianceJobType, *command: str, systems: int = 1, workflow: str = WORKFLOW, **more: Any) -> JobSpec:
    asked = Accelerators("csx", 0, resources={"memory": 67 * GIB})
    if kind is EXECUTE:
        asked = Accelerators("csx", systems, resources={"memory": 32 * GIB})
    plain = job(*(command or ("true",)))
    part = WorkflowPart(kind, workflow)
    return replace(plain, accelerators=asked, appliance=part, priority=more.pop("priority", DEFAULT_PRIORITY), **more)


async def start(rig: Rig, kind: ApplianceJobType, *command: str, caller: Caller = ANN, **more: Any) -> Run:
    within = more.pop("within", None)
    return (await rig.controller.runs.create_run(caller, wsjob(kind, *command, **more), within=within)).run


async def end(rig: Rig, run: Run) -> Run:
    return (await rig.controller.runs.get_run(ADMIN, run.id, wait_s=patient(60))).run


def priority_of(rig: Rig, run: Run) -> int:
    assert run.claim is not None
    spec: ClaimSpec = rig.fleet.claims[run.claim].spec
    return spec.priority


async def test_a_workflow_compiles_without_a_system_and_executes_on_some(rig: Rig) -> None:
    first = await end(rig, await start(rig, COMPILE, "sh", "-c", "echo ${MOORINGS_DEVICES-none}"))
    assert first.state is RunState.SUCCEEDED
    assert first.id.startswith("wsjob-")
    assert len(first.id) == 28
    assert first.job.name == first.id
    second = await start(rig, EXECUTE, "sh", "-c", "echo $MOORINGS_DEVICES; sleep 1000", systems=2)
    await rig.until(lambda: rig.assembly.loop.runs.by_id[second.id].state is RunState.RUNNING)
    (shown,) = await rig.controller.runs.list_run_heads(ADMIN, PageQuery(), part=ApplianceJobQuery(kind=EXECUTE))
    assert shown.partition is not None
    assert len(shown.partition.block) == 2
    assert shown.claim is not None
    assert shown.claim.owner == f"appliance/{second.id}"
    both = await rig.controller.runs.list_run_heads(ADMIN, PageQuery(), part=ApplianceJobQuery(workflow=WORKFLOW))
    assert [view.run.id for view in both] == [first.id, second.id]
    with pytest.raises(MooringsError) as refused:
        await rig.controller.release_claim(ANN, shown.claim.id)
    assert refused.value.code == "claim.held_by_run"
    await rig.controller.runs.cancel_run(ANN, second.id, wait_s=patient(30))
    await rig.nothing_left("cs")


async def test_the_memory_of_the_management_node_is_what_compiles_wait_for(rig: Rig) -> None:
    one = await start(rig, COMPILE, "sleep", "1000")
    await rig.until(lambda: rig.assembly.loop.runs.by_id[one.id].state is RunState.RUNNING)
    two = await start(rig, COMPILE, "true", workflow=OTHER)
    view = await rig.controller.runs.get_run(ADMIN, two.id)
    assert view.run.state is RunState.WAITING
    assert view.reason is not None
    assert "memory" in view.reason.message
    await rig.controller.runs.cancel_run(ANN, one.id, wait_s=patient(30))
    assert (await end(rig, two)).state is RunState.SUCCEEDED


async def test_a_workflow_has_one_priority_and_p0_is_for_admins(rig: Rig) -> None:
    blocker = await start(rig, EXECUTE, "sleep", "1000", systems=4, caller=ADMIN, priority=-5, workflow=OTHER)
    team = await rig.shared_project()
    run = await start(rig, EXECUTE, systems=4, project=team)
    assert priority_of(rig, run) == -299
    for caller, ident, priority, code in (
        (ANN, run.id, -99, "priority.denied"),
        (BOB, run.id, -199, "owner.denied"),
        (ANN, "wsjob-none", -199, "run.unknown"),
    ):
        with pytest.raises(MooringsError) as refused:
            await rig.controller.runs.set_run_priority(caller, ident, priority)
        assert refused.value.code == code
    with pytest.raises(MooringsError) as refused:
        await start(rig, COMPILE, priority=0, workflow="wflow-" + "c" * 22)
    assert refused.value.code == "priority.denied"
    with pytest.raises(MooringsError) as refused:
        await start(rig, COMPILE, caller=BOB)
    assert refused.value.code == "owner.denied", "a workflow is one person's"
    view = await rig.controller.runs.set_run_priority(ADMIN, run.id, -50)
    assert view.claim is not None
    assert view.claim.spec.priority == -50
    later = await start(rig, EXECUTE, systems=4, project=team)
    assert priority_of(rig, later) == -50, "what its workflow has by now"
    await rig.controller.runs.set_run_priority(ANN, later.id, -399)
    assert (priority_of(rig, run), priority_of(rig, later)) == (-399, -399)
    overtaking = await start(rig, EXECUTE, systems=4, workflow="wflow-" + "d" * 22, project=team)
    await rig.controller.runs.cancel_run(ADMIN, blocker.id, wait_s=patient(30))
    ended = [await end(rig, one) for one in (overtaking, run, later)]
    claims = [(await rig.controller.get_claim(ADMIN, one.claim or "")).claim for one in ended]
    granted = [claim.granted_at or 0 for claim in claims]  # not when they started: an engine's clock is not the rig's
    assert granted == sorted(granted)
    with pytest.raises(MooringsError) as refused:
        await rig.controller.runs.set_run_priority(ANN, run.id, -199)
    assert refused.value.code == "run.ended"


async def test_a_reservation_keeps_the_systems_between_jobs_and_goes_with_its_lease(rig: Rig) -> None:
    team = await rig.shared_project()
    spec = ClaimSpec(kind="csx", size=2, resources={"memory": 32 * GIB}, lease_s=30.0, project=team)
    kept = (await rig.controller.create_claim(ANN, spec, name=None, owner=None, key=None, wait_s=patient(30))).claim
    assert kept.state is ClaimState.READY
    with pytest.raises(MooringsError) as refused:
        await start(rig, EXECUTE, systems=2, within=kept.id, caller=BOB, workflow=OTHER)
    assert refused.value.code == "owner.denied"
    with pytest.raises(MooringsError) as refused:
        await start(rig, EXECUTE, systems=3, within=kept.id)
    assert refused.value.code == "claim.other_shape"
    for _ in range(2):
        ended = await end(rig, await start(rig, EXECUTE, systems=2, within=kept.id))
        assert ended.state is RunState.SUCCEEDED
        assert ended.within
        assert rig.fleet.claims[kept.id].state is ClaimState.READY
        await rig.controller.renew_claim(ANN, kept.id)
    last = await start(rig, EXECUTE, "sleep", "1000", systems=2, within=kept.id)
    await rig.until(lambda: rig.assembly.loop.runs.by_id[last.id].state is RunState.RUNNING)
    partition = rig.fleet.claims[kept.id].partition
    gone = await end(rig, last)  # nobody renews
    assert gone.state is RunState.CANCELLED
    assert gone.detail == "nobody renewed its lease of 30 s"
    assert partition is not None
    await rig.nothing_left("cs")


async def test_a_client_that_is_gone_loses_its_job_and_one_that_is_heard_does_not(rig: Rig) -> None:
    alive = await start(rig, EXECUTE, "sleep", "1000", lease_s=20.0)
    dead = await start(rig, EXECUTE, "sleep", "1000", lease_s=20.0, workflow=OTHER)
    queued = await start(rig, EXECUTE, "true", systems=4, lease_s=20.0, workflow="wflow-" + "c" * 22)
    ended = asyncio.gather(end(rig, dead), end(rig, queued))
    while not ended.done():
        await rig.controller.renew_claim(ANN, alive.claim or "")
        await asyncio.sleep(0.2)  # two seconds of the controller's
    for one in await ended:
        assert one.state is RunState.CANCELLED
        assert one.detail == "nobody renewed its lease of 20 s"
    assert rig.assembly.loop.runs.by_id[alive.id].state is RunState.RUNNING
    await rig.controller.runs.cancel_run(ANN, alive.id, wait_s=patient(30))


async def test_labels_are_changed_and_found(rig: Rig) -> None:
    team = await rig.shared_project()
    run = await start(rig, EXECUTE, "sleep", "1000", labels={"team": "nlp", "exp": "a_b"}, project=team)
    twin = await start(rig, EXECUTE, "sleep", "1000", labels={"team": "nlp", "exp": "axb"}, workflow=OTHER)

    async def found(**labels: str) -> list[str]:
        views = await rig.controller.runs.list_run_heads(ADMIN, PageQuery(), part=ApplianceJobQuery(labels=labels))
        return [view.run.id for view in views]

    assert await found(team="nlp") == [run.id, twin.id]
    assert await found(team="nlp", exp="a_b") == [run.id]
    assert await found(team="nl") == []
    await rig.controller.runs.label_run(ANN, run.id, {"team": None, "stage": "2"})
    assert await found(team="nlp") == [twin.id]
    assert await found(stage="2") == [run.id]
    with pytest.raises(MooringsError) as refused:
        await rig.controller.runs.label_run(BOB, run.id, {"x": "y"})
    assert refused.value.code == "owner.denied"
    for one in (run, twin):
        await rig.controller.runs.cancel_run(ANN, one.id, wait_s=patient(30))
    with pytest.raises(MooringsError) as refused:
        await rig.controller.runs.label_run(ANN, run.id, {"x": "y"})
    assert refused.value.code == "run.ended"


async def test_a_workflow_whose_jobs_have_ended_is_still_its_owner_s(rig: Rig) -> None:
    await end(rig, await start(rig, COMPILE))
    with pytest.raises(MooringsError) as refused:
        await start(rig, COMPILE, caller=BOB)
    assert refused.value.code == "owner.denied"
    await end(rig, await start(rig, COMPILE))


async def test_of_two_who_begin_a_workflow_at_once_one_has_it(rig: Rig) -> None:
    for number in range(15):
        workflow = f"wflow-{'e' * 20}{number:02}".translate(str.maketrans("0123456789", "abcdefghij"))
        asked = [start(rig, COMPILE, "sleep", "1000", caller=who, workflow=workflow) for who in (ANN, BOB)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        made = [one for one in answers if isinstance(one, Run)]
        refused = [one.code for one in answers if isinstance(one, MooringsError)]
        assert (len(made), refused) == (1, ["owner.denied"])
        await rig.controller.runs.cancel_run(ADMIN, made[0].id, wait_s=patient(30))


async def test_nobody_gets_past_the_appliances_priorities_with_a_claim_or_a_plain_run(rig: Rig) -> None:
    holder = await start(rig, EXECUTE, "sleep", "1000", systems=4, caller=ADMIN, workflow=OTHER)
    first = await start(rig, EXECUTE, systems=4, caller=ADMIN, priority=-5, workflow="wflow-" + "c" * 22)
    plain = replace(job("true"), accelerators=Accelerators("csx", 4))
    last = (await rig.controller.runs.create_run(ANN, plain)).run
    assert priority_of(rig, last) == DEFAULT_PRIORITY
    claim = (
        await rig.controller.create_claim(ANN, ClaimSpec(kind="csx", size=4), name=None, owner=None, key=None)
    ).claim
    assert claim.spec.priority == DEFAULT_PRIORITY
    for refused in (
        rig.controller.runs.create_run(ANN, replace(plain, priority=1)),
        rig.controller.runs.set_run_priority(ANN, last.id, 1),
        rig.controller.create_claim(ANN, ClaimSpec(kind="csx", size=4, priority=1), name=None, owner=None, key=None),
    ):
        with pytest.raises(MooringsError) as error:
            await refused
        assert error.value.code == "priority.denied"
    view = await rig.controller.runs.get_run(ADMIN, first.id)
    assert view.position == 1
    await rig.controller.release_claim(ANN, claim.id)
    for one in (holder, first, last):
        await rig.controller.runs.cancel_run(ADMIN, one.id, wait_s=patient(30))


async def test_a_workflow_may_have_more_jobs_than_a_page(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_service, "_PAGE", 2)
    monkeypatch.setattr(run_service, "WORKFLOW_JOBS_MAX", 5)
    for number in range(5):
        run = await start(rig, COMPILE, priority=-199 if not number else -399)
        assert priority_of(rig, run) == -199, "as the first one"
        await end(rig, run)
    with pytest.raises(MooringsError, match="has 5 jobs already"):
        await start(rig, COMPILE)
