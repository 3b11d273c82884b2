"""Runs that start after others on the embedded engine, also over a restart of the controller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.ports.store import PageQuery
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import Run, RunState
from tests.e2e.rig import BOB, Rig, job, running
from tests.e2e.test_reclaim import ended, in_state, story

DONE = job("true")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(tmp_path / "data") as rig:
        yield rig
        await rig.nothing_left()


def waits_for(file: Path) -> JobSpec:
    return job("/bin/sh", "-c", f"while [ ! -e {file} ]; do sleep 0.1; done", size=2)


async def made(rig: Rig, wanted: JobSpec, *after: str) -> Run:
    return (await rig.controller.runs.create_run(BOB, replace(wanted, after=after))).run


async def refused(rig: Rig, wanted: JobSpec, *after: str) -> str:
    with pytest.raises(MooringsError) as error:
        await made(rig, wanted, *after)
    return error.value.code


async def test_a_run_starts_after_the_success_of_another(rig: Rig, tmp_path: Path) -> None:
    first = await made(rig, waits_for(tmp_path / "go"))
    second = await made(rig, DONE, first.id)
    third = await made(rig, DONE, f"{second.id}:ok", f"{first.id}:any")
    unwanted = await made(rig, DONE, f"{first.id}:failed")
    await in_state(rig, first, RunState.RUNNING)
    view = await rig.controller.runs.get_run(BOB, second.id)
    assert (view.run.claim, view.position) == (None, None)
    assert view.reason is not None
    assert (view.reason.code, view.reason.message) == ("run.dependency", f"waits for run {first.id} to end (ok)")
    with pytest.raises(MooringsError, match="has no place in the queue until then"):
        await rig.controller.runs.set_run_priority(BOB, second.id, -1)
    (tmp_path / "go").touch()
    assert [(await ended(rig, run)).state for run in (first, second, third)] == [RunState.SUCCEEDED] * 3
    assert (await ended(rig, unwanted)).state is RunState.CANCELLED
    assert story(rig, second)[:3] == ["run.created", "run.eligible", "run.starting"]


async def test_a_run_that_could_never_start_is_refused(rig: Rig, tmp_path: Path) -> None:
    first = await made(rig, waits_for(tmp_path / "go"))
    assert await refused(rig, DONE, first.id, f"{first.job.name}:any") == "job.invalid"
    assert await refused(rig, DONE, "run-none") == "run.unknown"
    assert await refused(rig, job("true", size=1 << 12), first.id) == "claim.too_large"
    (tmp_path / "go").touch()
    await ended(rig, first)
    assert await refused(rig, DONE, f"{first.id}:failed") == "run.never_starts"
    assert (await ended(rig, await made(rig, DONE, first.job.name))).state is RunState.SUCCEEDED


async def test_a_waiting_run_outlives_a_restart_of_the_controller(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as rig:
        first = await made(rig, waits_for(tmp_path / "go"))
        second = await made(rig, DONE, first.id)
        await in_state(rig, first, RunState.RUNNING)
    async with running(tmp_path / "data") as rig:
        assert rig.assembly.loop.runs.by_id[second.id] == second
        (tmp_path / "go").touch()
        assert (await ended(rig, second)).state is RunState.SUCCEEDED
        await rig.nothing_left()


async def test_an_array_runs_once_for_each_index_within_its_limit(rig: Rig, tmp_path: Path) -> None:
    script = f"mkdir {tmp_path}/on-$MOORINGS_ARRAY_INDEX; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
    wanted = replace(job("/bin/sh", "-c", script), array="0-4%2")
    first = await made(rig, wanted)
    assert first.job.array is not None
    array = first.job.array.id
    await rig.until(lambda: {path.name for path in tmp_path.glob("on-*")} == {"on-0", "on-1"})
    view = await rig.controller.runs.get_run(BOB, f"{array}-2")
    assert view.reason is not None
    assert view.reason.code == "run.array_limit"
    (tmp_path / "go").touch()
    await rig.until(lambda: not rig.assembly.loop.runs.of_array(array))
    found = await rig.controller.runs.list_runs(BOB, PageQuery(), array=array)
    assert [run.run.id for run in found] == [f"{array}-{index}" for index in range(5)]
    assert {each.run.state for each in found} == {RunState.SUCCEEDED}


async def test_an_array_that_no_pool_can_serve_makes_no_run(rig: Rig) -> None:
    assert await refused(rig, replace(job("true", size=1 << 12), array="0-9")) == "claim.too_large"
    assert rig.assembly.loop.runs.by_id == {}


async def test_a_repeated_request_gives_the_same_array(rig: Rig) -> None:
    wanted = replace(DONE, array="3-4")
    first = (await rig.controller.runs.create_run(BOB, wanted, key="k")).run
    again = (await rig.controller.runs.create_run(BOB, wanted, key="k")).run
    assert again.id == first.id
    assert first.job.array is not None
    array = first.job.array.id
    await rig.until(lambda: not rig.assembly.loop.runs.of_array(array))
    assert len(await rig.controller.runs.list_runs(BOB, PageQuery())) == 2


async def test_a_run_starts_after_all_runs_of_an_array(rig: Rig, tmp_path: Path) -> None:
    script = f"while [ ! -e {tmp_path}/go-$MOORINGS_ARRAY_INDEX ]; do sleep 0.1; done; exit $MOORINGS_ARRAY_INDEX"
    first = await made(rig, replace(job("/bin/sh", "-c", script, size=2), name="parts", array="0-1"))
    assert first.job.array is not None
    array = first.job.array.id
    waiting = {end: await made(rig, DONE, f"{name}:{end}") for name, end in ((array, "any"), ("parts", "failed"))}
    unwanted = await made(rig, DONE, "parts")
    assert await refused(rig, DONE, array, f"{array}:any") == "job.invalid"
    view = await rig.controller.runs.get_run(BOB, unwanted.id)
    assert view.reason is not None
    assert view.reason.message == f"waits for array {array} to end (ok)"
    (tmp_path / "go-1").touch()
    run = await ended(rig, unwanted)
    assert (run.state, run.detail.split(",")[0]) == (RunState.CANCELLED, f"run {array}-1 is FAILED")
    late = await made(rig, DONE, f"{array}:failed")
    assert await refused(rig, DONE, array) == "run.never_starts"
    (tmp_path / "go-0").touch()
    for each in (*waiting.values(), late):
        assert (await ended(rig, each)).state is RunState.SUCCEEDED
        assert story(rig, each)[:2] == ["run.created", "run.eligible"]
    assert (await ended(rig, await made(rig, DONE, f"{array}:failed"))).state is RunState.SUCCEEDED
    assert await refused(rig, DONE, "parts") == "run.unknown", "by name only while it has not ended"
