"""Stop and resume on the embedded engine: a preempted training loses nothing that a whole checkpoint has."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.core.model.claims import CheckpointContract, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import Run, RunState
from tests.e2e.rig import ANN, BOB, Rig, job
from tests.e2e.test_reclaim import POLICY, ended, in_state, lending, now_of, output

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EPOCHS = 100
# The example as it is, but each line that it prints takes a moment until the file "hurry" is there: however busy the
# machine, a training that is to be preempted has not ended before.
SLOWLY = """
import builtins, os, runpy, sys, time
real = print
def told(*words, **more):
    real(*words, **more)
    time.sleep(0 if os.path.exists("hurry") else 0.2)
builtins.print = told
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with lending(tmp_path, replace(POLICY, yield_s=6.0)) as rig:
        yield rig


def digits(folder: Path, *more: str, epochs: int = EPOCHS) -> JobSpec:
    """The example as its job file recommends it, for a guest."""
    command = (
        sys.executable,
        *("-c", SLOWLY),
        str(EXAMPLES / "digits" / "train.py"),
        "--epochs",
        str(epochs),
        "--batch-size",
        "16",
        *more,
    )
    wanted = job(*command, size=2, workdir=str(folder), project="guest", preemptible=True)
    return replace(
        wanted,
        environment={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        checkpoint=CheckpointContract(resumable=True, grace_s=4.0),
        checkpoint_directory=str(folder / "checkpoints"),
    )


async def saved_step(rig: Rig, run: Run, after: int) -> int:
    """The step of the newest whole checkpoint that is known, once it is later than that."""
    await rig.until(lambda: any((each.step or 0) > after for each in now_of(rig, run).checkpoints if each.is_whole))
    return max(each.step or 0 for each in now_of(rig, run).checkpoints if each.is_whole)


async def test_a_preempted_training_ends_as_if_it_had_not_been(rig: Rig, tmp_path: Path) -> None:
    """``MOORINGS_RESUME_FROM`` is set by nobody but the engine."""
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "hurry").touch()
    undisturbed = (await rig.controller.runs.create_run(BOB, digits(tmp_path / "a"))).run
    assert (await ended(rig, undisturbed)).exit_code == 0
    run = (await rig.controller.runs.create_run(BOB, digits(tmp_path / "b"))).run
    step = 0
    for attempt in (1, 2):
        await in_state(rig, run, RunState.RUNNING)
        step = await saved_step(rig, run, step)
        claim = await rig.claim(16, project="lab")
        assert claim.state is ClaimState.READY
        waiting = now_of(rig, run)
        assert (waiting.state, waiting.attempt) == (RunState.WAITING, attempt)
        await rig.release(claim)
        resumed = await in_state(rig, run, RunState.STARTING, RunState.RUNNING)
        assert resumed.resumed_from is not None
        assert (resumed.resumed_from.step or 0) >= step, "no more is lost than what came after the last whole one"
        step = resumed.resumed_from.step or 0  # the next attempt is stopped once it has saved itself
    (tmp_path / "b" / "hurry").touch()
    end = await ended(rig, run)
    assert (end.state, end.attempt) == (RunState.SUCCEEDED, 2)
    told = (await output(rig, run)).decode()
    assert len(re.findall(r"resuming from .*/step-\d+\.npz at step \d+", told)) == 2
    assert told.splitlines()[-1] == (await output(rig, undisturbed)).decode().splitlines()[-1]
    last = f"epoch {EPOCHS}/{EPOCHS}"
    assert [line for line in told.splitlines() if last in line] == [
        line for line in (await output(rig, undisturbed)).decode().splitlines() if last in line
    ]


# Prints what it is given; saves a whole checkpoint and a torn newer one, and waits to be stopped.
SAVES = f"""
echo "from ${{MOORINGS_RESUME_FROM:-nothing}} step ${{MOORINGS_RESUME_STEP:-none}} with $*"
if [ -z "$MOORINGS_RESUME_FROM" ]; then
    {sys.executable} -c "import zipfile; zipfile.ZipFile('checkpoints/step-5.pt', 'w').writestr('a', b'x' * 100)"
    sleep 0.05
    head -c 150 checkpoints/step-5.pt > checkpoints/step-6.pt
    touch ready
    while :; do sleep 3600 & wait; done
fi
"""


async def test_a_torn_newer_checkpoint_is_named_and_not_given(rig: Rig, tmp_path: Path) -> None:
    wanted = job("/bin/sh", "-c", SAVES, "sh", size=2, workdir=str(tmp_path), project="guest", preemptible=True)
    wanted = replace(
        wanted,
        checkpoint=CheckpointContract(resumable=True, grace_s=1.0),
        checkpoint_directory=str(tmp_path / "checkpoints"),
        resume_args=("--resume", "{}"),
    )
    run = (await rig.controller.runs.create_run(BOB, wanted)).run
    await rig.until((tmp_path / "ready").exists)
    await in_state(rig, run, RunState.RUNNING)
    claim = await rig.claim(16, project="lab")
    await rig.release(claim)
    end = await ended(rig, run)
    assert (end.state, end.attempt) == (RunState.SUCCEEDED, 1)
    whole = tmp_path / "checkpoints" / "step-5.pt"
    assert (await output(rig, run)).decode().splitlines() == [
        "from nothing step none with ",
        f"from {whole} step 5 with --resume {whole}",
    ]
    torn, given = end.checkpoints[0], end.resumed_from
    assert (torn.step, torn.is_whole) == (6, False)
    assert "zip directory" in torn.why
    assert given is not None
    assert given.path == str(whole)
    assert (tmp_path / "checkpoints" / "step-6.pt").exists(), "a torn one is not removed"


async def test_only_a_whole_checkpoint_counts_as_saved_work(rig: Rig, tmp_path: Path) -> None:
    """Of two jobs alike the one with a whole checkpoint yields, though the other's torn one is newer."""
    runs = []
    for name in ("torn", "whole"):
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        script = "touch ready; while :; do sleep 3600 & wait; done"
        wanted = job("/bin/sh", "-c", script, size=8, workdir=str(folder), project="guest", preemptible=True)
        wanted = replace(
            wanted,
            checkpoint=CheckpointContract(resumable=True, grace_s=1.0),
            checkpoint_directory=str(folder / "checkpoints"),
        )
        run = (await rig.controller.runs.create_run(BOB, wanted)).run
        await rig.until((folder / "ready").exists)
        runs.append(await in_state(rig, run, RunState.RUNNING))
    torn, whole = runs
    content = _zip_bytes(tmp_path)
    (tmp_path / "whole" / "checkpoints" / "step-1.pt").write_bytes(content)
    await rig.until(lambda: rig.fleet.claims[whole.claim].checkpoint_at is not None)
    (tmp_path / "torn" / "checkpoints" / "step-1.pt").write_bytes(content[:-9])
    await rig.until(lambda: now_of(rig, torn).checkpoints != ())
    assert rig.fleet.claims[torn.claim].checkpoint_at is None
    claim = await rig.claim(8, project="lab")
    assert claim.state is ClaimState.READY
    assert (now_of(rig, whole).attempt, now_of(rig, torn).attempt) == (1, 0)
    for run in runs:
        await rig.controller.runs.cancel_run(BOB, run.id)
    await rig.release(claim)


def _zip_bytes(folder: Path) -> bytes:
    path = folder / "made.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"x" * 100)
    return path.read_bytes()


async def test_a_new_run_begins_from_an_earlier_ones_checkpoint(rig: Rig, tmp_path: Path) -> None:
    wanted = job("/bin/sh", "-c", SAVES.replace("while", "exit 0; while"), "sh", size=2, workdir=str(tmp_path))
    wanted = replace(wanted, project="guest", preemptible=True)
    wanted = replace(wanted, checkpoint_directory=str(tmp_path / "checkpoints"), resume_args=("--resume", "{}"))
    first = (await rig.controller.runs.create_run(BOB, wanted)).run
    assert (await ended(rig, first)).state is RunState.SUCCEEDED
    whole = tmp_path / "checkpoints" / "step-5.pt"
    again = (await rig.controller.runs.create_run(BOB, wanted, resume=first.id, resume_from="step-5.pt")).run
    assert (await ended(rig, again)).state is RunState.SUCCEEDED
    assert (await output(rig, again)).decode() == f"from {whole} step 5 with --resume {whole}\n"
    for caller, path, code in (
        (BOB, "step-6.pt", "checkpoint.invalid"),  # torn
        (BOB, "step-7.pt", "checkpoint.invalid"),  # not there
        (ANN, None, "run.unknown"),
    ):
        with pytest.raises(MooringsError) as refused:
            await rig.controller.runs.create_run(caller, wanted, resume=first.id, resume_from=path)
        assert refused.value.code == code
    with pytest.raises(MooringsError) as refused:
        await rig.controller.runs.create_run(BOB, replace(wanted, project="default"), resume=first.id)
    assert refused.value.code == "checkpoint.invalid"
