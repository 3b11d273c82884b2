"""The engine ``slurm`` keeps the contract of every engine, with real jobs that have IPUs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.core.model.claims import CheckpointContract
from moorings.core.model.timestamps import add_seconds
from moorings.ports.engine import RunSubmission
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.engine.engine import SlurmEngine
from moorings.slurm.engine.settings import DEFAULT_PYTHON, SlurmEngineSettings, SubmitTarget
from moorings.slurm.engine.submission import build_submit
from moorings.testing.engine_suite import (
    PATIENCE_S,
    READY,
    EngineSuite,
    SuitePrograms,
    error_of,
    make_order,
    observe_run,
    open_engine,
    read_output,
    wait_for_end,
    wait_for_output,
    wait_for_phase,
)
from moorings.workloads.checkpoints import newest_whole
from moorings.workloads.jobs import Accelerators
from moorings.workloads.runs import EndReason, RunId, RunPhase
from tests.e2e.test_resume import digits
from tests.slurm.cluster import SlurmCluster
from tests.slurm.ipus import IpuSite, ipu_site
from tests.unit.local.local_rig import WallClock
from tests.waiting import patient


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release) as made:
        yield made


class SlurmRig:
    """A folder for runs that the nodes see, and engines for it."""

    programs = SuitePrograms()

    def __init__(self, site: IpuSite, folder: Path) -> None:
        self.site = site
        self.runs = folder / "runs"
        self.work = folder / "work"
        self.python = DEFAULT_PYTHON
        for made in (self.runs, self.work):
            made.mkdir()

    @property
    def workdir(self) -> str:
        return str(self.work)

    async def open(self) -> SlurmEngine:
        settings = SlurmEngineSettings(self.runs, python=self.python)
        return SlurmEngine(settings, self.runs, SlurmCommands(self.site.cluster.env), WallClock())


@pytest.fixture
def rig(site: IpuSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    folder = site.cluster.work / tmp_path_factory.mktemp("runs").name
    folder.mkdir()
    yield SlurmRig(site, folder)
    for job in site.cluster.squeue():
        site.cluster.run("scancel", job.id)
    site.settle()


class TestSlurmEngine(EngineSuite):
    pass


pytestmark = pytest.mark.anyio


def resumable(order: RunSubmission) -> RunSubmission:
    return replace(order, job=replace(order.job, checkpoint=CheckpointContract(resumable=True, grace_s=600.0)))


async def test_a_job_whose_id_was_lost_on_the_way_is_found_again(rig: SlurmRig) -> None:
    """The controller died between Slurm's answer and its own note of it."""
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        job = await engine.submit(order)
        (rig.runs / order.run / "0" / "job").unlink()
        assert await engine.submit(order) == job
        assert [queued.id for queued in rig.site.cluster.squeue()] == [job]
        await wait_for_phase(engine, order.run, RunPhase.RUNNING)
        await engine.cancel(order.run, "seen enough")
        await wait_for_end(engine, order.run)


async def test_of_two_jobs_for_one_run_one_runs_it(rig: SlurmRig) -> None:
    """An answer was lost, and the job not in the list yet when it was looked for."""
    order = make_order(rig.programs.prints("once"), rig.workdir)
    async with open_engine(rig) as engine:
        job = await engine.submit(order)
        attempt = rig.runs / order.run / "0"
        words = build_submit(order, SubmitTarget(), attempt)
        twin = int(rig.site.cluster.check(*words).strip())
        rig.site.cluster.wait_job(twin, "COMPLETED")
        rig.site.cluster.wait_job(job, "COMPLETED")
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
        assert await read_output(engine, order.run) == b"once\n"
        claimed = (attempt / "claimed").read_text().strip()
        assert claimed in (job, str(twin))


async def test_a_resumable_run_that_slurm_requeues_runs_again(rig: SlurmRig) -> None:
    script = 'echo "start $SLURM_RESTART_COUNT"; [ -n "$SLURM_RESTART_COUNT" ] || exec sleep 3600'
    order = resumable(make_order(rig.programs.shell(script), rig.workdir))
    async with open_engine(rig) as engine:
        job = await engine.submit(order)
        await wait_for_output(engine, order.run, b"start \n")
        rig.site.cluster.check("scontrol", "requeue", job)
        rig.site.cluster.wait_job(job, "PENDING")
        # Not in two minutes, and not at once: 24.11 may take the end of the first start's script for the second's.
        rig.site.cluster.check("scontrol", "update", f"jobid={job}", "starttime=now+3")
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
        assert await read_output(engine, order.run) == b"start \nstart 1\n"
        assert await engine.submit(order) == job


# Saves step 20 whole and step 30 cut, and waits to be requeued; then prints what it was given.
SAVES = """
if [ -n "$MOORINGS_RESUME_FROM" ]; then echo "$MOORINGS_RESUME_FROM $MOORINGS_RESUME_STEP $*"; exit 0; fi
python3 - "$MOORINGS_CHECKPOINT_DIR" << 'END'
import os, sys, zipfile
for step in (20, 30):
    path = f"{sys.argv[1]}/step-{step}.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("state", str(step))
    if step == 30:
        os.truncate(path, 50)
END
echo saved
exec sleep 3600
"""


@pytest.fixture
def nodes_have_python(site: IpuSite, slurm_release: str) -> None:
    if site.cluster.programs.chrooted:
        pytest.skip(f"the nodes of Slurm {slurm_release} are in a root of Debian's packages, which has no Python")


def saving(rig: SlurmRig, script: str, **contract: Any) -> RunSubmission:
    """A job that names its folder of checkpoints, and gets its resume argument after the script's name."""
    order = make_order(rig.programs.shell(script), rig.workdir)
    saves = rig.work / "saves"
    saves.mkdir(exist_ok=True)
    job = replace(
        order.job,
        command=(*order.job.command, "train"),
        environment={**order.job.environment, "PATH": os.environ["PATH"]},
        checkpoint=CheckpointContract(resumable=True, grace_s=600.0, **contract),
        checkpoint_directory=str(saves),
        resume_args=("--from={}",),
    )
    return replace(order, job=job)


async def requeue(rig: SlurmRig, job: str) -> None:
    rig.site.cluster.check("scontrol", "requeue", job)
    rig.site.cluster.wait_job(job, "PENDING")
    # Not in two minutes, and not at once: 24.11 may take the end of the first start's script for the second's.
    rig.site.cluster.check("scontrol", "update", f"jobid={job}", "starttime=now+3")


@pytest.mark.usefixtures("nodes_have_python")
async def test_a_requeued_run_is_given_its_newest_whole_checkpoint_by_its_node(rig: SlurmRig) -> None:
    """Nobody else is there to choose: the controller may be down."""
    order = saving(rig, SAVES)
    whole, torn = (f"{order.job.checkpoint_directory}/step-{step}.pt" for step in (20, 30))
    async with open_engine(rig) as engine:
        job = await engine.submit(order)
        await wait_for_output(engine, order.run, b"saved\n")
        async with asyncio.timeout(patient(30)):
            while True:
                (seen,) = await engine.observe([order.run])
                if seen.checkpoints:
                    break
                await asyncio.sleep(0.1)
        assert seen.checkpoints is not None
        assert {(each.path, each.step, each.is_whole) for each in seen.checkpoints} == {
            (whole, 20, True),
            (torn, 30, False),
        }
    await requeue(rig, job)
    async with open_engine(rig) as engine:
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
        wanted = f"saved\n{whole} 20 --from={whole}\n"
        assert (await read_output(engine, order.run)).decode() == wanted
        (seen,) = await engine.observe([order.run])
        assert seen.resumed_from is not None
        assert (seen.resumed_from.path, seen.checkpoint_fault) == (whole, "")


@pytest.mark.usefixtures("nodes_have_python")
async def test_a_chosen_checkpoint_that_is_torn_by_now_starts_nothing(rig: SlurmRig) -> None:
    order = saving(rig, "echo began")
    torn = rig.work / "saves" / "step-3.pt"
    torn.write_bytes(b"PK\x03\x04 cut off")
    async with open_engine(rig) as engine:
        await engine.submit(replace(order, resume_from=str(torn), resume_step=3, resume_since=WallClock().now()))
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.NOT_STARTED, 126)
        assert end.detail.startswith(f"checkpoint {torn} is not whole: ")
        assert await read_output(engine, order.run) == b""


async def saved(rig: SlurmRig, run: RunId, after: int) -> int:
    """The step of the newest whole checkpoint, once it is later than that; each look is a new controller's."""
    async with asyncio.timeout(patient(60)):
        while True:
            async with open_engine(rig) as engine:
                (seen,) = await engine.observe([run])
            steps = [each.step or 0 for each in seen.checkpoints or () if each.is_whole]
            if seen.phase is RunPhase.RUNNING and max(steps, default=0) > after:
                return max(steps)
            assert seen.phase is not RunPhase.ENDED, seen
            await asyncio.sleep(0.1)


async def paused(rig: SlurmRig, order: RunSubmission) -> RunSubmission:
    """Pause a run, each request by a new controller; returns what resumes it."""
    async with asyncio.timeout(patient(60)):
        while True:
            async with open_engine(rig) as engine:
                deadline = add_seconds(WallClock().now(), 60)
                await engine.ask_to_yield(order.run, order.attempt, "paused by ann", deadline, until_saved=True)
                (seen,) = await engine.observe([order.run])
            if seen.end is not None:
                assert (seen.end.ending, seen.attempt) == (EndReason.YIELDED, order.attempt), seen
                newest = newest_whole(seen.checkpoints or ())
                assert newest is not None
                again = order.attempt + 1
                return replace(order, attempt=again, resume_from=newest.path, resume_step=newest.step)
            await asyncio.sleep(0.2)


@pytest.mark.usefixtures("nodes_have_python")
async def test_a_training_that_slurm_stops_again_and_again_ends_with_the_same_weights(rig: SlurmRig) -> None:
    """Thrice it is paused, requeued by an admin, and its node loses power; its controller is another at each look."""
    cluster = rig.site.cluster

    def prepared(name: str) -> RunSubmission:
        (rig.work / name / "checkpoints").mkdir(parents=True)
        wanted = digits(rig.work / name, epochs=60)
        job = replace(wanted, accelerators=Accelerators(size=2), project="default", preemptible=False)
        return replace(make_order(rig.programs.prints(""), rig.workdir), job=job)

    async def submitted(order: RunSubmission) -> str:
        async with open_engine(rig) as engine:
            return await engine.submit(order)

    async def last_line(order: RunSubmission) -> str:
        async with open_engine(rig) as engine:
            end = await wait_for_end(engine, order.run)
            assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
            return (await read_output(engine, order.run)).decode().splitlines()[-1]

    disturbed, undisturbed = prepared("disturbed"), prepared("undisturbed")
    job, step = await submitted(disturbed), 0
    for stop in ("pause", "requeue", "power cut") * 3:
        step = await saved(rig, disturbed.run, step)
        if stop == "pause":
            disturbed = await paused(rig, disturbed)
            job = await submitted(disturbed)
            continue
        if stop == "requeue":
            cluster.check("scontrol", "requeue", job)
        else:
            number = int(cluster.job(job)["NodeList"].removeprefix("n"))
            cluster.fail_node(number)
            cluster.start_node(number)
        cluster.wait_job(job, "PENDING")
        cluster.check("scontrol", "update", f"jobid={job}", "starttime=now+3")
    step = await saved(rig, disturbed.run, step)
    (rig.work / "disturbed" / "hurry").touch()
    last = await last_line(disturbed)
    assert cluster.job(job)["Restarts"] == "2"
    (rig.work / "undisturbed" / "hurry").touch()
    await submitted(undisturbed)
    assert last == await last_line(undisturbed)


@pytest.mark.usefixtures("nodes_have_python")
async def test_a_program_that_requeues_its_job_itself_is_requeued_once(rig: SlurmRig) -> None:
    """As Lightning does at USR1: it saves, and asks Slurm to requeue its job."""
    script = """
    if [ -n "$SLURM_RESTART_COUNT" ]; then echo again; exit 0; fi
    trap 'scontrol requeue "$SLURM_JOB_ID" && exit 85' USR1
    echo ready
    while :; do sleep 0.2 & wait "$!"; done
    """
    order = saving(rig, script)
    job = replace(order.job, environment={**order.job.environment, **rig.site.cluster.env})
    async with open_engine(rig) as engine:
        number = await engine.submit(replace(order, job=job))
        await wait_for_output(engine, order.run, b"ready\n")
        rig.site.cluster.check("scancel", "--batch", "--signal=USR1", number)
        rig.site.cluster.wait_job(number, "PENDING", timeout=20)
        rig.site.cluster.check("scontrol", "update", f"jobid={number}", "starttime=now+3")
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
        assert rig.site.cluster.job(number)["Restarts"] == "1"


@pytest.mark.usefixtures("nodes_have_python")
async def test_a_program_that_handles_no_signal_survives_its_warning(rig: SlurmRig) -> None:
    order = saving(rig, "echo ready; sleep 4; echo done")
    async with open_engine(rig) as engine:
        number = await engine.submit(order)
        await wait_for_output(engine, order.run, b"ready\n")
        rig.site.cluster.check("scancel", "--batch", "--signal=USR1", number)
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
    assert "warned 1 task: nothing" in (rig.runs / order.run / "0" / "looks.log").read_text()


async def test_without_a_python_on_the_node_the_run_says_that_nobody_looks(rig: SlurmRig) -> None:
    order = saving(rig, "trap 'echo warned; exit 0' USR1; echo ready; while :; do sleep 0.2 & wait $!; done")
    rig.python = "/no/such/python"
    async with open_engine(rig) as engine:
        number = await engine.submit(order)
        await wait_for_output(engine, order.run, b"ready\n")
        (seen,) = await engine.observe([order.run])
        assert "has no Python 3.11 called /no/such/python ([slurm] python names one)" in seen.checkpoint_fault
        rig.site.cluster.check("scancel", "--batch", "--signal=USR1", number)
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.EXITED, 0)
        assert (await read_output(engine, order.run)).endswith(b"warned\n")


async def test_what_is_cancelled_in_slurm_is_cancelled(rig: SlurmRig) -> None:
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        job = await engine.submit(order)
        await wait_for_phase(engine, order.run, RunPhase.RUNNING)
        rig.site.cluster.check("scancel", job)
        end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code) == (EndReason.CANCELLED, 143)
    assert end.detail == f"job {job} is CANCELLED in Slurm"


async def test_what_ignores_a_cancellation_in_slurm_is_killed_by_it(rig: SlurmRig) -> None:
    order = make_order(rig.programs.ignores_term(), rig.workdir)
    async with open_engine(rig) as engine:
        job = await engine.submit(order)
        await wait_for_output(engine, order.run, READY)
        rig.site.cluster.check("scancel", job)
        end = await wait_for_end(engine, order.run)
    assert (end.ending, end.exit_code, end.task_codes) == (EndReason.CANCELLED, 137, (137,))


async def test_a_run_whose_node_goes_down_is_lost(rig: SlurmRig) -> None:
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        job = await engine.submit(order)
        await wait_for_phase(engine, order.run, RunPhase.RUNNING)
        node = rig.site.cluster.job(job)["NodeList"]
        rig.site.cluster.check("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        end = await wait_for_end(engine, order.run)
        assert end.ending is EndReason.LOST
        assert end.detail == f"job {job} is NODE_FAIL in Slurm"
        rig.site.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")  # refused if it is back already
        rig.site.cluster.wait_nodes()


@pytest.mark.parametrize("end_it", [SlurmCluster.stop_controller, SlurmCluster.kill_controller])
async def test_while_slurm_is_away_nothing_is_concluded_and_nothing_is_lost(
    rig: SlurmRig, end_it: Callable[[SlurmCluster], None]
) -> None:
    running = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    later = make_order(rig.programs.prints("once"), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(running)
        await wait_for_phase(engine, running.run, RunPhase.RUNNING)
        begun = time.time()
        rig.site.cluster.sbatch("true")  # so that there is something to save
        saved = rig.site.cluster.folder / "state" / "job_state"
        async with asyncio.timeout(PATIENCE_S):
            while not saved.exists() or saved.stat().st_mtime < begun:  # what Slurm has not saved it forgets
                await engine.wait_for_change()
        end_it(rig.site.cluster)
        try:
            assert (await observe_run(engine, running.run)).phase is RunPhase.UNKNOWN
            for demand in (engine.submit(later), engine.cancel(running.run, "enough")):
                error = await error_of(demand)
                assert (error.code, error.retryable) == ("engine.unavailable", True)
        finally:
            rig.site.cluster.start_controller()
        await engine.submit(later)
        await engine.cancel(running.run, "asked again")
        assert (await wait_for_end(engine, later.run)).exit_code == 0
        assert await read_output(engine, later.run) == b"once\n"
        end = await wait_for_end(engine, running.run)
        assert (end.ending, end.detail) == (EndReason.CANCELLED, "enough")


async def test_a_task_has_the_jobs_variables_and_its_bindings_and_slurms_and_no_others(rig: SlurmRig) -> None:
    order = make_order(("/usr/bin/env", "-0"), rig.workdir)
    given = {"PATH": "/usr/bin:/bin", "WITH SPACE".replace(" ", "_"): "a 'quoted' $word\nand a line", "EMPTY": ""}
    order = replace(order, job=replace(order.job, environment=given, checkpoint_directory="/work/checkpoints"))
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_end(engine, order.run)
        told = dict(
            entry.split("=", 1) for entry in (await read_output(engine, order.run)).decode().split("\0") if entry
        )
    assert {name: told[name] for name in given} == given
    assert told["MOORINGS_RUN_ID"] == order.run
    assert told["MOORINGS_CHECKPOINT_DIR"] == "/work/checkpoints"
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "IPUOF_CONFIG_PATH"} <= set(told)
    slurms = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "MOORINGS_", "IPUOF_")
    known = {*given, "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PWD", "OLDPWD", "TMPDIR"}
    assert {name for name in told if not name.startswith(slurms)} - known == set()


async def test_what_slurm_refuses_is_rejected_in_its_words_and_leaves_no_job(rig: SlurmRig) -> None:
    order = make_order(rig.programs.exits(0), rig.workdir)
    order = replace(order, job=replace(order.job, accelerators=Accelerators(size=3)))
    async with open_engine(rig) as engine:
        error = await error_of(engine.submit(order))
        assert error.code == "engine.rejected"
        assert "--ipus=3" in error.detail
        assert (await observe_run(engine, order.run)).phase is RunPhase.ABSENT


async def test_one_that_waits_says_why_and_is_cancelled_without_having_run(rig: SlurmRig) -> None:
    blocker = rig.site.cluster.sbatch("sleep 300", "--ipus=16")
    rig.site.cluster.wait_job(blocker, "RUNNING")
    order = make_order(rig.programs.prints("ran"), rig.workdir)
    async with open_engine(rig) as engine:
        job = await engine.submit(order)
        async with asyncio.timeout(PATIENCE_S):
            while "Licenses" not in (seen := await observe_run(engine, order.run)).reason:
                await engine.wait_for_change()
        assert (seen.phase, seen.reference) == (RunPhase.STARTING, job)
        await engine.cancel(order.run, "enough")
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code, end.detail) == (EndReason.CANCELLED, 143, "enough")
        assert await read_output(engine, order.run) == b""
