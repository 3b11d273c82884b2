"""The list of an appliance's jobs that have not ended comes from memory; it is what the database would give."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.core.model.access import Caller
from moorings.ports.store import ApplianceJobQuery, PageQuery, Store
from moorings.workloads.appliance import DEFAULT_PRIORITY, ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import Accelerators
from moorings.workloads.runs import ENDED, RunId, RunState
from tests.databases import open_new
from tests.e2e.rig import ADMIN, ANN, BOB, Rig, job, running
from tests.e2e.test_appliance_runs import GIB, POOL
from tests.waiting import patient

UNENDED = frozenset(RunState) - ENDED
COMPILE, EXECUTE = ApplianceJobType.COMPILE, ApplianceJobType.EXECUTE


FIRST = PageQuery()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_new(tmp_path / "moorings.db")


@pytest.fixture
async def rig(tmp_path: Path, store: Store) -> AsyncIterator[Rig]:
    async with running(tmp_path, POOL, store=store) as made:
        yield made


async def start(rig: Rig, number: int, kind: ApplianceJobType, caller: Caller = ANN, **labels: str) -> RunId:
    size, memory = (0, 67) if kind is COMPILE else (4, 32)
    spec = replace(
        job("sleep", "1000"),
        accelerators=Accelerators("csx", size, resources={"memory": memory * GIB}),
        appliance=WorkflowPart(kind, f"wflow-{number:022d}"),
        priority=DEFAULT_PRIORITY,
        labels=labels,
    )
    return (await rig.controller.runs.create_run(caller, spec)).run.id


async def test_pages_and_filters_are_those_of_the_database(rig: Rig, store: Store) -> None:
    async def listed(page: PageQuery = FIRST, **where: Any) -> list[RunId]:
        states = where.pop("states", UNENDED)
        found = [view.run.id for view in await rig.controller.runs.list_run_heads(ADMIN, page, states=states, **where)]
        assert found == [run.id for run in store.list_runs(page, states=states, **where)]
        return found

    plain = (
        await rig.controller.runs.create_run(ANN, replace(job("sleep", "1000"), accelerators=Accelerators("csx", 1)))
    ).run
    await rig.until(lambda: rig.assembly.loop.runs.by_id[plain.id].state is RunState.RUNNING)
    made = [
        await start(rig, n, COMPILE if n % 3 == 0 else EXECUTE, BOB if n == 4 else ANN, n=str(n % 2)) for n in range(6)
    ]
    await rig.until(lambda: rig.assembly.loop.runs.by_id[made[0]].state is RunState.RUNNING)
    every = ApplianceJobQuery()
    assert await listed(part=every) == made
    assert await listed() == [plain.id, *made]
    assert await listed(part=ApplianceJobQuery(kind=COMPILE)) == [made[0], made[3]]
    assert await listed(part=ApplianceJobQuery(workflow=f"wflow-{5:022d}")) == [made[5]]
    assert await listed(part=ApplianceJobQuery(labels={"n": "1"}), subject="ann") == [made[1], made[3], made[5]]
    assert await listed(part=every, subject="bob") == [made[4]]
    assert await listed(part=every, states=frozenset({RunState.RUNNING})) == [made[0]]
    assert await listed(PageQuery(2), part=every) == made[:2]
    assert await listed(PageQuery(2, made[1]), part=every) == made[2:4]
    assert await listed(PageQuery(0), part=every) == []
    assert await listed(PageQuery(2, "wsjob-none"), part=every) == []
    await rig.controller.runs.cancel_run(ANN, made[1], wait_s=patient(30))
    assert await listed(PageQuery(9, made[1]), part=every) == made[2:], (
        "the job that the page before ended with is over"
    )
    assert await listed(PageQuery(9, made[0]), part=every) == made[2:]
    for one in (plain.id, *made):
        await rig.controller.runs.cancel_run(ADMIN, one, wait_s=patient(30))
