"""Pausing and resuming on the embedded engine: the devices are free meanwhile, and no saved work is lost."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.core.model.claims import CheckpointContract, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import Run, RunState
from tests.e2e.rig import ADMIN, ANN, BOB, Rig, job
from tests.e2e.test_reclaim import POLICY, ended, in_state, lending, now_of, output, story
from tests.e2e.test_resume import digits, saved_step
from tests.waiting import patient


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with lending(tmp_path, replace(POLICY, yield_s=6.0)) as rig:
        yield rig


async def paused(rig: Rig, run: Run, save_timeout_s: float | None = None) -> Run:
    found = (await rig.controller.runs.pause_run(BOB, run.id, save_timeout_s=save_timeout_s, wait_s=patient(30))).run
    assert found.state is RunState.PAUSED
    return found


async def resumed(rig: Rig, run: Run, resume_from: str | None = None) -> Run:
    return (await rig.controller.runs.resume_run(BOB, run.id, resume_from=resume_from)).run


# Saves step N for each line "N" that it is warned of, and works on; prints what it was given.
WORKS = f"""
echo "from ${{MOORINGS_RESUME_FROM:-nothing}}"
n=0
save() {{
    n=$((n + 1))
    {sys.executable} -c "import sys, zipfile; zipfile.ZipFile(sys.argv[1], 'w').writestr('a', b'x')" checkpoints/draft
    mv checkpoints/draft checkpoints/step-$(( ${{MOORINGS_RESUME_STEP:-0}} + n )).pt
}}
trap save USR2
touch ready
while [ ! -e go-on ]; do sleep 0.1; done
"""


def works(folder: Path, *, size: int = 2, resumable: bool = True) -> JobSpec:
    wanted = job("/bin/sh", "-c", WORKS, size=size, workdir=str(folder), project="guest", preemptible=True)
    contract = CheckpointContract(resumable=resumable, grace_s=2.0)
    return replace(wanted, checkpoint=contract, checkpoint_directory=str(folder / "checkpoints"))


async def started(rig: Rig, wanted: JobSpec) -> Run:
    run = (await rig.controller.runs.create_run(BOB, wanted)).run
    await rig.until((Path(wanted.workdir) / "ready").exists)
    return await in_state(rig, run, RunState.RUNNING)


async def test_a_training_that_was_paused_ends_as_if_it_had_not_been(rig: Rig, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "hurry").touch()
    undisturbed = (await rig.controller.runs.create_run(BOB, digits(tmp_path / "a"))).run
    assert (await ended(rig, undisturbed)).exit_code == 0
    run = (await rig.controller.runs.create_run(BOB, digits(tmp_path / "b"))).run
    await in_state(rig, run, RunState.RUNNING)
    step = await saved_step(rig, run, 0)
    await paused(rig, run)
    await resumed(rig, run)
    given = (await in_state(rig, run, RunState.RUNNING)).resumed_from
    assert given is not None
    assert (given.step or 0) >= step
    (tmp_path / "b" / "hurry").touch()
    end = await ended(rig, run)
    assert (end.state, end.attempt) == (RunState.SUCCEEDED, 1)
    last = [(await output(rig, one)).decode().splitlines()[-1] for one in (undisturbed, run)]
    assert last[0] == last[1]


async def test_its_devices_are_free_while_it_is_paused(rig: Rig, tmp_path: Path) -> None:
    run = await started(rig, works(tmp_path, size=16))
    before = await paused(rig, run, save_timeout_s=patient(60))
    assert [each.step for each in before.checkpoints] == [1], "it was stopped once it had saved, not a minute later"
    other = await rig.claim(16, project="lab")
    assert other.state is ClaimState.READY
    waiting = await resumed(rig, run)
    assert (waiting.state, waiting.claim != before.claim) == (RunState.WAITING, True)
    await rig.release(other)
    await in_state(rig, run, RunState.RUNNING)
    await paused(rig, run, save_timeout_s=patient(60))
    first, second = tmp_path / "checkpoints" / "step-1.pt", tmp_path / "checkpoints" / "step-2.pt"
    assert second.exists(), "the second attempt counted on from the step that it was given"
    await resumed(rig, run, "step-1.pt")
    await in_state(rig, run, RunState.RUNNING)
    (tmp_path / "go-on").touch()
    assert (await ended(rig, run)).state is RunState.SUCCEEDED
    assert (await output(rig, run)).decode().splitlines() == ["from nothing", f"from {first}", f"from {first}"]
    told = [name for name in story(rig, run) if name in ("run.pausing", "run.paused", "run.resumed", "run.ended")]
    assert told == ["run.pausing", "run.paused", "run.resumed"] * 2 + ["run.ended"]


async def test_whoever_is_owed_the_devices_does_not_wait_for_a_pause(rig: Rig, tmp_path: Path) -> None:
    """The program ignores its warning, and its user gave it an hour to save."""
    deaf = replace(works(tmp_path, size=16), command=("/bin/sh", "-c", "touch ready; while :; do sleep 0.1; done"))
    run = await started(rig, deaf)
    await rig.controller.runs.pause_run(BOB, run.id, save_timeout_s=3600)
    owed = await rig.claim(16, project="lab")
    assert owed.state is ClaimState.READY
    found = await in_state(rig, run, RunState.PAUSED)
    assert found.checkpoints == ()
    await rig.release(owed)
    await rig.controller.runs.cancel_run(BOB, run.id)
    assert (await ended(rig, run)).state is RunState.CANCELLED


async def test_a_run_that_waits_is_paused_at_once(rig: Rig, tmp_path: Path) -> None:
    held = await rig.claim(16, project="lab")
    run = (await rig.controller.runs.create_run(BOB, works(tmp_path))).run
    await in_state(rig, run, RunState.WAITING)
    await paused(rig, run)
    view = await rig.controller.runs.get_run(ADMIN, run.id)
    assert view.reason is not None
    assert (view.reason.code, view.reason.hint) == ("run.paused", f"moor resume {run.id}")
    await rig.release(held)
    (tmp_path / "go-on").touch()
    await resumed(rig, run)
    assert (await ended(rig, run)).state is RunState.SUCCEEDED


async def test_only_its_own_user_pauses_and_resumes_it_and_only_what_can_be(rig: Rig, tmp_path: Path) -> None:
    run = await started(rig, works(tmp_path))
    service = rig.controller.runs

    async def code_of(work: object) -> str:
        with pytest.raises(MooringsError) as refused:
            await work  # type: ignore[misc]
        return refused.value.code

    assert await code_of(service.pause_run(ANN, run.id)) == "run.unknown"
    assert await code_of(service.resume_run(BOB, run.id)) == "run.not_paused"
    await paused(rig, run, save_timeout_s=patient(60))
    assert await code_of(service.resume_run(ANN, run.id)) == "run.unknown"
    assert await code_of(service.resume_run(BOB, run.id, resume_from="step-9.pt")) == "checkpoint.invalid"
    assert await code_of(service.set_run_priority(BOB, run.id, 0)) == "run.not_running"
    assert now_of(rig, run).state is RunState.PAUSED
    await service.cancel_run(BOB, run.id)
    assert await code_of(service.resume_run(BOB, run.id)) == "run.ended"
    assert await code_of(service.pause_run(BOB, run.id)) == "run.ended"
    (tmp_path / "x").mkdir()
    forgets = await started(rig, works(tmp_path / "x", resumable=False))
    assert await code_of(service.pause_run(BOB, forgets.id)) == "run.not_pausable"
    await service.cancel_run(BOB, forgets.id)
    await ended(rig, forgets)


async def test_two_runs_that_save_into_one_folder_are_told_of_each_other(rig: Rig, tmp_path: Path) -> None:
    first = (await rig.controller.runs.create_run(BOB, works(tmp_path))).run
    second = await rig.controller.runs.create_run(BOB, works(tmp_path))
    assert second.notes == (
        f"run {first.id} saves into {tmp_path}/checkpoints, too, and each would resume from what the other saves",
    )
    for run in (first, second.run):
        await rig.controller.runs.cancel_run(BOB, run.id)
        await ended(rig, run)
    alone = await rig.controller.runs.create_run(BOB, works(tmp_path))
    assert alone.notes == ()
    await rig.controller.runs.cancel_run(BOB, alone.run.id)
    await ended(rig, alone.run)


async def test_a_run_at_whose_folder_nobody_can_look_is_not_paused(rig: Rig, tmp_path: Path) -> None:
    """It would be stopped without its work, because nobody sees that it has saved it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    run = await started(rig, works(tmp_path))
    await rig.until(lambda: now_of(rig, run).checkpoint_fault != "")
    with pytest.raises(MooringsError, match="symbolic link") as refused:
        await rig.controller.runs.pause_run(BOB, run.id)
    assert (refused.value.code, now_of(rig, run).state) == ("run.not_pausable", RunState.RUNNING)
    (tmp_path / "checkpoints").unlink()
    (tmp_path / "checkpoints").mkdir()
    await rig.until(lambda: now_of(rig, run).checkpoint_fault == "")
    found = await paused(rig, run, save_timeout_s=patient(60))
    with pytest.raises(MooringsError, match="no checkpoint"):
        await resumed(rig, run, "elsewhere/step-1.pt")
    await resumed(rig, run, "checkpoints/step-1.pt")
    assert [each.step for each in found.checkpoints] == [1]
    (tmp_path / "go-on").touch()
    assert (await ended(rig, run)).state is RunState.SUCCEEDED
