"""Jobs without devices on the embedded engine, and the CPUs that they share with the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.core.model.claims import CheckpointContract, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.workloads.jobs import Accelerators, JobSpec, Resources
from moorings.workloads.runs import Run, RunState
from tests.e2e.rig import ANN, Rig, job, running
from tests.waiting import patient

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(tmp_path, machine={"cpus": 4, "memory": 1 << 30}) as rig:
        yield rig


def plain(*command: str, tasks: int = 1, cpus: int = 1) -> JobSpec:
    wanted = replace(job(*command), tasks=tasks, accelerators=Accelerators(size=0), resources=Resources(cpus, 1 << 20))
    return replace(wanted, checkpoint=CheckpointContract(grace_s=1.0))


async def started(rig: Rig, wanted: JobSpec) -> Run:
    return (await rig.controller.runs.create_run(ANN, wanted)).run


async def ended(rig: Rig, run: Run) -> Run:
    return (await rig.controller.runs.get_run(ANN, run.id, wait_s=patient(20))).run


async def test_a_job_without_devices_runs_with_several_tasks(rig: Rig) -> None:
    run = await ended(rig, await started(rig, plain("/bin/sh", "-c", 'echo "$RANK of $WORLD_SIZE"', tasks=3)))
    assert (run.state, run.exit_code) == (RunState.SUCCEEDED, 0)
    chunks = [chunk async for chunk in await rig.controller.runs.logs(ANN, run.id, task=None, follow=False)]
    assert sorted(b"".join(chunks).splitlines()) == [b"[%d] %d of 3" % (rank, rank) for rank in range(3)]
    await rig.nothing_left()


async def test_a_job_waits_for_cpus_with_its_devices_and_a_cancelled_one_gives_them_back(rig: Rig) -> None:
    holds = await started(rig, plain("sleep", "1000", tasks=3))
    waits = await started(rig, replace(job("true", size=4), resources=Resources(cpus=2)))
    names_none = await started(rig, job("true", size=4))
    assert (await ended(rig, names_none)).state is RunState.SUCCEEDED
    assert waits.claim is not None
    assert rig.fleet.claims[waits.claim].state is ClaimState.PENDING
    view = await rig.controller.runs.get_run(ANN, waits.id)
    assert view.reason is not None
    assert (view.reason.code, view.reason.message) == (
        "machine.full", "waits for 2 CPUs of this machine: 1 of 4 are free",
    )  # fmt: skip
    await rig.controller.runs.cancel_run(ANN, holds.id)
    assert (await ended(rig, holds)).state is RunState.CANCELLED
    assert (await ended(rig, waits)).state is RunState.SUCCEEDED
    await rig.until(lambda: not any(rig.fleet.pools["machine"].used_resources.values()))


async def test_a_job_larger_than_the_machine_is_refused(rig: Rig) -> None:
    with pytest.raises(MooringsError) as caught:
        await started(rig, plain("true", tasks=5))
    assert caught.value.code == "claim.too_large"
