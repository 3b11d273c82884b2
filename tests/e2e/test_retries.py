"""Retries on the embedded engine: what a machine or a device loses goes on from its checkpoint, by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo import processes_of
from moorings.drivers.simulated.faults import Fault, FaultKind
from moorings.local.records import SupervisorStatus
from moorings.local.run_folder import LocalRunFolder
from moorings.workloads.runs import Run, RunState
from tests.e2e.rig import ADMIN, BOB, Rig
from tests.e2e.test_pause import works
from tests.e2e.test_reclaim import POLICY, ended, in_state, lending, now_of, output, story
from tests.e2e.test_resume import digits, saved_step


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with lending(tmp_path, POLICY) as rig:
        yield rig


def kill_supervisor(folder: Path, run: Run) -> None:
    status = LocalRunFolder(folder / "data" / "runs" / run.id).read(SupervisorStatus, run.attempt)
    assert status is not None
    os.kill(status.supervisor.pid, signal.SIGKILL)


async def test_a_training_whose_supervisor_is_killed_ends_as_if_it_had_not_been(rig: Rig, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "hurry").touch()
    undisturbed = (await rig.controller.runs.create_run(BOB, digits(tmp_path / "a"))).run
    assert (await ended(rig, undisturbed)).exit_code == 0
    run = (await rig.controller.runs.create_run(BOB, replace(digits(tmp_path / "b"), retries=1))).run
    run = await in_state(rig, run, RunState.RUNNING)
    step = await saved_step(rig, run, 0)
    kill_supervisor(tmp_path, run)
    lost = await in_state(rig, run, RunState.PAUSED)
    assert processes_of(run.id) == []
    view = await rig.controller.runs.get_run(ADMIN, run.id)
    assert view.reason is not None
    assert (view.reason.code, view.reason.message) == (
        "run.retrying",
        "its last attempt was lost: its supervisor died; retry 1 of 1 follows 10 s after that",
    )
    assert lost.loss_record is not None
    given = (await in_state(rig, run, RunState.RUNNING)).resumed_from
    assert given is not None
    assert (given.step or 0) >= step
    (tmp_path / "b" / "hurry").touch()
    end = await ended(rig, run)
    assert (end.state, end.attempt) == (RunState.SUCCEEDED, 1)
    last = [(await output(rig, one)).decode().splitlines()[-1] for one in (undisturbed, run)]
    assert last[0] == last[1]
    events = [name for name in story(rig, run) if name in ("run.retrying", "run.resumed", "run.lost", "run.ended")]
    assert events == ["run.retrying", "run.resumed", "run.ended"]


async def test_a_run_whose_partition_vanishes_goes_on_with_another(rig: Rig, tmp_path: Path) -> None:
    rig.driver().faults.add(Fault(kind=FaultKind.VANISHES, seconds=2.0, times=1))
    run = (await rig.controller.runs.create_run(BOB, replace(works(tmp_path), retries=2))).run
    await in_state(rig, run, RunState.PAUSED)
    loss = now_of(rig, run).pause
    assert loss is not None
    assert "was lost" in loss.reason
    (tmp_path / "go-on").touch()
    assert (await ended(rig, run)).state is RunState.SUCCEEDED


async def test_a_run_that_waits_for_its_retry_resumes_at_once_if_its_user_wants_that(rig: Rig, tmp_path: Path) -> None:
    run = (await rig.controller.runs.create_run(BOB, replace(works(tmp_path), retries=2))).run
    await rig.until((tmp_path / "ready").exists)
    run = await in_state(rig, run, RunState.RUNNING)
    kill_supervisor(tmp_path, run)
    lost = await in_state(rig, run, RunState.PAUSED)
    assert lost.pause is not None
    assert lost.pause.resume_at is not None
    (tmp_path / "go-on").touch()
    await rig.controller.runs.resume_run(BOB, run.id)
    end = await ended(rig, run)
    assert end.state is RunState.SUCCEEDED
    assert end.ended_at is not None
    assert end.ended_at < lost.pause.resume_at
