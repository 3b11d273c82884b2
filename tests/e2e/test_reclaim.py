"""Reclaim on the embedded engine: who borrowed is stopped, keeps its place, and resumes from its checkpoint."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo import processes_of
from moorings.core.model.claims import CheckpointContract, Claim, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.inputs import DefragmentPool, SetProject
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.timestamps import add_seconds, seconds_between
from moorings.local.records import SupervisorStatus
from moorings.local.run_folder import LocalRunFolder
from moorings.ports.store import Seq
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import Run, RunState
from tests.e2e.processes import POOLS, ControllerProcess
from tests.e2e.rig import ADMIN, ANN, BOB, QuickClock, Rig, job, running
from tests.waiting import patient, until

YIELD_S = 2.0
POLICY = Policy(min_run_s=0.0, yield_s=YIELD_S)
HARDWARE_S = 3.0  # a removal and a provision, and turns, on a machine that is busy
LAB = Project(name="lab", shares=(ProjectShare(PoolName("pod16"), ((16, 1),)),))
GUEST = Project(name="guest")

# Counts on from its checkpoint; warned, it saves and says with 85 that it is to be run again.
COUNTS = """
n=$(cat saved 2>/dev/null || echo 0)
trap 'echo $((n + 20)) > saved.draft; mv saved.draft saved; exit 85' USR1
echo "from $n"
if [ "$n" -ge 40 ]; then echo $((n + 2)) > result; exit 0; fi
touch ready-$n
while :; do sleep 3600 & wait; done
"""
# The first time it does as if it heard nothing, the second time it is done.
DEAF = """
trap '' USR1 TERM
echo start >> starts
[ $(wc -l < starts) -gt 1 ] && exit 0
touch ready
while :; do sleep 3600; done
"""


class RealTime(QuickClock):
    """As fast as the machine's: supervisors count real seconds."""

    SPEED = 1.0


@asynccontextmanager
async def lending(folder: Path, policy: Policy) -> AsyncIterator[Rig]:
    """A controller in real time that lends the lab's devices to a guest; at the end nothing is left."""
    async with running(folder / "data", POOLS, RealTime(), policy=policy) as rig:
        for project in (LAB, GUEST):
            await rig.assembly.loop.submit(SetProject(project, None))
        yield rig
        await rig.nothing_left()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with lending(tmp_path, POLICY) as rig:
        yield rig


def borrower(script: str, folder: Path, *, resumable: bool = True, **more: object) -> JobSpec:
    """A job that may be stopped, on half of the pool; its grace period is longer than the time it would have."""
    contract = CheckpointContract(resumable=resumable, grace_s=600.0)
    wanted = job("/bin/sh", "-c", script, size=8, workdir=str(folder), project="guest", preemptible=True)
    return replace(wanted, checkpoint=contract, **more)  # type: ignore[arg-type]


async def start(rig: Rig, wanted: JobSpec, ready: Path) -> Run:
    """The run, once its job has said that it runs."""
    run = (await rig.controller.runs.create_run(BOB, wanted)).run
    await rig.until(ready.exists)
    return await in_state(rig, run, RunState.RUNNING)


def now_of(rig: Rig, run: Run) -> Run:
    return rig.assembly.loop.runs.by_id[run.id]


async def in_state(rig: Rig, run: Run, *states: RunState) -> Run:
    await rig.until(lambda: now_of(rig, run).state in states)
    return now_of(rig, run)


async def ended(rig: Rig, run: Run) -> Run:
    return (await rig.controller.runs.get_run(ADMIN, run.id, wait_s=patient(20))).run


def story(rig: Rig, run: Run) -> list[str]:
    rows = rig.assembly.loop.store.list_events(Seq(0), 1000, run=run.id)
    return [row.event.name for row in rows]


async def output(rig: Rig, run: Run, *, follow: bool = False) -> bytes:
    chunks = await rig.controller.runs.logs(BOB, run.id, task=None, follow=follow)
    return b"".join([chunk async for chunk in chunks])


async def reclaimed(rig: Rig) -> Claim:
    """What the lab was guaranteed, all of the pool; it has it within the bound (law 6)."""
    claim = await rig.claim(16, project="lab")
    assert claim.state is ClaimState.READY
    assert claim.ready_at is not None
    assert seconds_between(claim.arrival, claim.ready_at) <= POLICY.guarantee_bound_s + HARDWARE_S
    return claim


async def test_a_borrower_saves_makes_room_and_goes_on_to_the_right_result(rig: Rig, tmp_path: Path) -> None:
    script = COUNTS.replace("-ge 40 ]; then", "-ge 40 ]; then until test -e end; do sleep 0.02; done;")
    run = await start(rig, borrower(script, tmp_path), tmp_path / "ready-0")
    place = rig.fleet.claims[run.claim].arrival
    for done in (20, 40):
        claim = await reclaimed(rig)
        waiting = now_of(rig, run)
        assert (waiting.state, waiting.attempt) == (RunState.WAITING, done // 20)
        assert processes_of(run.id) == []
        assert rig.fleet.claims[run.claim].arrival == place, "it keeps its place"
        assert (tmp_path / "saved").read_text() == f"{done}\n"
        await rig.release(claim)
        if done == 20:
            await rig.until((tmp_path / "ready-20").exists)
        await in_state(rig, run, RunState.RUNNING)  # its program may be quicker than the news of it
    (tmp_path / "end").touch()
    end = await ended(rig, run)
    assert (end.state, end.exit_code, end.attempt) == (RunState.SUCCEEDED, 0, 2)
    assert (tmp_path / "result").read_text() == "42\n"
    assert await output(rig, run) == b"from 0\nfrom 20\nfrom 40\n", "of all attempts"
    once = ["run.starting", "run.started", "run.yielding", "run.requeued"]
    assert story(rig, run) == ["run.created", *once, *once, "run.starting", "run.started", "run.ended"]


# Says with 85 that it is to be run again, and saves whenever it is told to.
SAVES = """
trap 'exit 85' USR1
touch ready
while :; do sleep 0.05; if [ -e save ]; then rm save; echo 1 > state/checkpoint; fi; done
"""


async def test_who_has_just_saved_makes_room_before_one_that_began_later(rig: Rig, tmp_path: Path) -> None:
    runs = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        job = borrower(SAVES, folder, checkpoint_directory=str(folder / "state"))
        runs.append(await start(rig, job, folder / "ready"))
    first, second = runs
    await rig.clock.sleep(1.0)
    (tmp_path / "first" / "save").touch()
    await rig.until(lambda: rig.fleet.claims[first.claim].checkpoint_at is not None)
    assert rig.fleet.claims[second.claim].checkpoint_at is None
    claim = await rig.claim(8, project="lab")
    assert claim.state is ClaimState.READY
    assert (now_of(rig, first).attempt, now_of(rig, second).attempt) == (1, 0)
    for run in runs:
        await rig.controller.runs.cancel_run(BOB, run.id)
    await rig.release(claim)


async def test_who_ignores_every_signal_is_killed_in_time_and_starts_anew(rig: Rig, tmp_path: Path) -> None:
    run = await start(rig, borrower(DEAF, tmp_path, resumable=False), tmp_path / "ready")
    claim = await reclaimed(rig)
    assert processes_of(run.id) == []
    await rig.release(claim)
    end = await ended(rig, run)
    assert (end.state, end.attempt) == (RunState.SUCCEEDED, 1)
    assert (tmp_path / "starts").read_text() == "start\n" * 2


async def test_nothing_is_given_away_while_a_process_of_the_borrower_lives(rig: Rig, tmp_path: Path) -> None:
    run = await start(rig, borrower(DEAF, tmp_path), tmp_path / "ready")
    claim = await rig.claim(16, project="lab", wait_s=0)
    yielding = await in_state(rig, run, RunState.YIELDING)
    held = rig.fleet.claims[yielding.claim]
    assert held.state is ClaimState.RECLAIMING
    assert held.partition in rig.fleet.partitions
    shown = (await rig.controller.runs.get_run(ADMIN, run.id)).reason
    assert shown is not None
    assert "lab" in shown.message, "it is told for whom"
    while rig.fleet.claims[claim.id].state is ClaimState.PENDING and processes_of(run.id):
        assert rig.fleet.claims[yielding.claim].state is ClaimState.RECLAIMING
        await rig.assembly.loop.wait_for_change(rig.assembly.loop.seq, 0.02)
    await rig.until(lambda: rig.fleet.claims[claim.id].state is ClaimState.READY)
    assert processes_of(run.id) == []
    await rig.release(claim)
    await ended(rig, run)


async def test_a_borrower_that_is_done_when_it_is_asked_has_succeeded(rig: Rig, tmp_path: Path) -> None:
    script = "trap 'exit 0' USR1; touch ready; while :; do sleep 3600 & wait; done"
    run = await start(rig, borrower(script, tmp_path), tmp_path / "ready")
    claim = await reclaimed(rig)
    end = await ended(rig, run)
    assert (end.state, end.attempt) == (RunState.SUCCEEDED, 0)
    await rig.release(claim)


async def test_a_cancel_while_it_yields(rig: Rig, tmp_path: Path) -> None:
    run = await start(
        rig, borrower("trap : USR1; touch ready; while :; do sleep 3600 & wait; done", tmp_path), tmp_path / "ready"
    )
    asked = await rig.claim(16, project="lab", wait_s=0)
    await in_state(rig, run, RunState.YIELDING)
    end = (await rig.controller.runs.cancel_run(BOB, run.id, wait_s=patient(15))).run
    assert (end.state, end.detail) == (RunState.CANCELLED, "cancelled by bob")
    await rig.until(lambda: rig.fleet.claims[asked.id].state is ClaimState.READY)
    await rig.release(asked)


async def test_a_cancel_while_it_waits_to_go_on(rig: Rig, tmp_path: Path) -> None:
    run = await start(rig, borrower(COUNTS, tmp_path), tmp_path / "ready-0")
    claim = await reclaimed(rig)
    end = (await rig.controller.runs.cancel_run(BOB, run.id, wait_s=patient(15))).run
    assert (end.state, end.attempt) == (RunState.CANCELLED, 1)
    assert await output(rig, run) == b"from 0\n"
    await rig.release(claim)


async def test_a_supervisor_that_dies_while_its_run_yields(rig: Rig, tmp_path: Path) -> None:
    """What it left is killed, as always; then the run makes room, and resumes from the checkpoint before."""
    (tmp_path / "saved").write_text("20\n")
    script = COUNTS.replace("exit 85' USR1", "exit 85' HUP; trap 'touch warned' USR1")
    run = await start(rig, borrower(script, tmp_path), tmp_path / "ready-20")
    asked = await rig.claim(16, project="lab", wait_s=0)
    await rig.until((tmp_path / "warned").exists)
    status = LocalRunFolder(tmp_path / "data" / "runs" / run.id).read(SupervisorStatus, 0)
    assert status is not None
    os.kill(status.supervisor.pid, signal.SIGKILL)
    await rig.until(lambda: rig.fleet.claims[asked.id].state is ClaimState.READY)
    waiting = now_of(rig, run)
    assert (waiting.state, waiting.attempt) == (RunState.WAITING, 1)
    assert processes_of(run.id) == []
    (tmp_path / "saved").write_text("40\n")
    await rig.release(asked)
    assert (await ended(rig, run)).state is RunState.SUCCEEDED
    assert (tmp_path / "result").read_text() == "42\n"


async def test_output_is_followed_over_attempts(rig: Rig, tmp_path: Path) -> None:
    run = await start(rig, borrower(COUNTS.replace("-ge 40", "-ge 20"), tmp_path), tmp_path / "ready-0")
    claim = await reclaimed(rig)
    chunks = await rig.controller.runs.logs(BOB, run.id, task=None, follow=True)
    assert await anext(chunks) == b"from 0\n", "what there is comes at once"
    await rig.release(claim)
    assert [chunk async for chunk in chunks] == [], "it ends when there is more: who follows asks again"
    await ended(rig, run)
    assert await output(rig, run, follow=True) == b"from 0\nfrom 20\n"


async def test_a_claim_that_its_owner_keeps_goes_when_the_run_within_it_has(rig: Rig, tmp_path: Path) -> None:
    """Its owner agreed to lose it when the time is over, but not under a living job (law 3)."""
    kept = await rig.claim(8, project="guest", preemptible=True)
    wanted = replace(borrower(DEAF, tmp_path), preemptible=False)
    run = (await rig.controller.runs.create_run(ANN, wanted, within=kept.id)).run
    await rig.until((tmp_path / "ready").exists)
    status = LocalRunFolder(tmp_path / "data" / "runs" / run.id).read(SupervisorStatus, 0)
    assert status is not None
    os.kill(status.supervisor.pid, signal.SIGSTOP)  # it will not stop the job in time
    try:
        asked = await rig.claim(16, project="lab", wait_s=0)
        await in_state(rig, run, RunState.YIELDING)
        until = rig.fleet.claims[kept.id].asked_until
        assert until is not None
        await rig.until(lambda: rig.clock.now() > add_seconds(until, 1.5))  # some turns later
        assert rig.fleet.claims[kept.id].state is ClaimState.RECLAIMING
    finally:
        os.kill(status.supervisor.pid, signal.SIGCONT)
    await rig.until(lambda: rig.fleet.claims[asked.id].state is ClaimState.READY)
    assert processes_of(run.id) == []
    await rig.release(asked)
    assert (await ended(rig, run)).state is RunState.SUCCEEDED
    await rig.release(kept)


@pytest.mark.parametrize("mode", [DefragmentMode.ON, DefragmentMode.OFF])
async def test_a_run_is_moved_to_make_one_block_of_two(tmp_path: Path, mode: DefragmentMode) -> None:
    """The same on the way to another block, as the policy or an admin wants: it waits only for the time it takes."""
    policy = replace(POLICY, defragment=mode, move_s=1.0)
    async with running(tmp_path / "data", POOLS, RealTime(), policy=policy) as rig:
        fillers = [await rig.claim(4) for _ in range(2)]
        run = await start(
            rig,
            replace(
                borrower(COUNTS, tmp_path), project="default", preemptible=False, accelerators=job(size=4).accelerators
            ),
            tmp_path / "ready-0",
        )
        await rig.release(fillers[0])
        before = rig.fleet.partitions[rig.fleet.claims[run.claim].partition].block
        if mode is DefragmentMode.OFF:
            ordered = await rig.controller.projects.defragment(ADMIN, DefragmentPool(size=8), dry_run=False)
            assert [claim and claim.id for claim, *_ in ordered.moves] == [run.claim]
            await rig.until(lambda: now_of(rig, run).attempt == 1)
        large = await rig.claim(8)
        assert large.state is ClaimState.READY
        await rig.until((tmp_path / "ready-20").exists)
        moved = now_of(rig, run)
        assert moved.attempt == 1
        assert rig.fleet.partitions[rig.fleet.claims[run.claim].partition].block != before
        await rig.controller.runs.cancel_run(BOB, run.id, wait_s=patient(15))
        for claim in (fillers[1], large):
            await rig.release(claim)
        await rig.nothing_left()


# -- kill -9 ---------------------------------------------------------------------------------------------------------

WAITS = COUNTS.replace("trap 'echo", "trap 'touch warned; until test -e gate; do sleep 0.02; done; echo")


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    data = tmp_path / "data"
    async with running(data, POOLS, RealTime()) as rig:
        for project in (LAB, GUEST):
            await rig.assembly.loop.submit(SetProject(project, None))
    (data / "policy.toml").write_text('min_run = 0\nyield = "60s"\n')
    made = ControllerProcess(tmp_path)
    made.start()
    yield made
    if made.process is not None and made.process.poll() is None:
        assert made.stop() == 0


@pytest.mark.parametrize("leaves", ["while nobody leads", "when another leads"])
async def test_kill_minus_nine_of_the_controller_while_a_run_yields(
    controller: ControllerProcess, tmp_path: Path, leaves: str
) -> None:
    wanted = {
        "name": "borrower",
        "command": ["/bin/sh", "-c", WAITS.replace("-ge 40", "-ge 20")],
        "workdir": str(tmp_path),
        "environment": {"PATH": "/usr/bin:/bin"},
        "accelerators": {"size": 8},
        "project": "guest",
        "preemptible": True,
        "checkpoint": {"resumable": True, "graceS": 1.0},
    }
    status, run = controller.ask("POST", "/v1/runs", {"job": wanted})
    assert status == 201, run
    until((tmp_path / "ready-0").exists)
    status, claim = controller.ask("POST", "/v1/claims", {"size": 16, "project": "lab"})
    assert status == 201, claim
    until((tmp_path / "warned").exists)
    controller.kill()
    left = processes_of(run["id"])
    assert left, "it outlives the controller"
    if leaves == "while nobody leads":
        (tmp_path / "gate").touch()
        until(lambda: not processes_of(run["id"]))
    controller.start()
    if leaves == "when another leads":
        told = controller.ask("GET", f"/v1/runs/{run['id']}")[1]
        assert (told["state"], told["attempt"]) == ("YIELDING", 0)
        assert set(left[:2]) <= set(processes_of(run["id"])), "its supervisor and its task"
        assert controller.ask("GET", f"/v1/claims/{claim['id']}")[1]["state"] == "PENDING"
        (tmp_path / "gate").touch()
    held = controller.ask("GET", f"/v1/claims/{claim['id']}?wait=20s&for=READY")[1]
    assert held["state"] == "READY"
    assert controller.ask("DELETE", f"/v1/claims/{claim['id']}")[0] == 200
    end = controller.ask("GET", f"/v1/runs/{run['id']}?wait=20s")[1]
    assert (end["state"], end["exitCode"], end["attempt"]) == ("SUCCEEDED", 0, 1)
    assert (tmp_path / "result").read_text() == "22\n"
    events = controller.ask("GET", f"/v1/events?run={run['id']}")[1]["items"]
    (requeued,) = (event for event in events if event["name"] == "run.requeued")
    assert requeued["data"]["attempt"] == 1
