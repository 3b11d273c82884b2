"""Jobs of a wafer-scale appliance in real Slurm jobs: what sacct shows of them, and whatever can end either."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from moorings.appliance.jobs import GRACE_S
from tests.e2e.appliance import Site
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.slurm.wafer import BUSY_S, COMMAND, CPUS, Appliance, Job, start_slurmdbd
from tests.waiting import patient, until

pytest.importorskip("jax", reason="the extra `wafer` is not installed")

NAME = re.compile(r"wsjob-[a-z0-9]{22}(-csx[1-9]\d*)?")
ENDLESS = "python run.py CSX --params params.yaml --num_csx {systems} --mode train {more}\necho ended with $?\n"
LEASE_S = 6.0


@pytest.fixture(scope="module")
def cluster(slurm_release: str) -> Iterator[SlurmCluster]:
    conf = "KillWait=8\nOverTimeLimit=0"
    made = SlurmCluster(new_folder(), 1, accounting=True, extra_conf=conf, release=slurm_release)
    (node,) = [line for line in (made.etc / "slurm.conf").read_text().splitlines() if line.startswith("NodeName=")]
    made.configure(f"{conf}\n{node.replace('CPUs=16', f'CPUs={CPUS * 4}')}")
    with made:
        yield made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    assert made.controller.stop() == 0


@pytest.fixture(scope="module")
def whole(cluster: SlurmCluster, site: Site) -> Appliance:
    return Appliance(cluster, site)


@pytest.fixture
def outside(whole: Appliance) -> Iterator[Appliance]:
    """For a program outside of Slurm's nodes."""
    yield whole
    whole.slurm.settle()
    whole.assert_nothing_left()


@pytest.fixture
def appliance(outside: Appliance) -> Appliance:
    """For programs in jobs."""
    if outside.slurm.programs.chrooted:
        pytest.skip(f"Slurm {outside.slurm.release} runs jobs in a chroot here, where there is no Python of ours")
    return outside


# -- what people see ---------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_the_sbatch_script_and_its_rows(appliance: Appliance, tmp_path: Path) -> None:
    folder = appliance.make_gpt2(tmp_path / "gpt2", gate=True)
    job = appliance.sbatch(folder, COMMAND)
    job.until_it_trains()
    (compiled,), (trained,) = job.made("compile"), job.made("execute")
    steps = [(f"{job.id}.0", compiled["id"]), (f"{job.id}.1", f"{trained['id']}-csx1")]
    wanted = [
        (f"{job.id}", "gpt2-small-test", "RUNNING"),
        (f"{job.id}.batch", "batch", "RUNNING"),
        (*steps[0], "COMPLETED"),
        (*steps[1], "RUNNING"),
    ]
    until(lambda: [(row.id, row.name, row.state) for row in job.rows] == wanted, what=lambda: job.table)
    print(job.table)
    assert [(row.cpus, row.nodes, row.exit_code) for row in job.rows] == [("40", "1", "0:0")] * 4
    assert all(f" {name} " in job.table for _, name, _ in wanted)  # none is cut
    (folder / "go").touch()
    job.wait("COMPLETED")
    assert [row.state for row in job.ended_rows()] == ["COMPLETED"] * 4
    print(job.table)
    for (step, name), ident in zip(steps, (compiled["id"], trained["id"]), strict=True):
        assert NAME.fullmatch(name)
        times_are_equal(appliance, job, step, ident)


def times_are_equal(appliance: Appliance, job: Job, step: str, ident: str) -> None:
    """A step began and ended when the appliance's job did."""
    run = appliance.site.job(ident)
    for shown, told in zip(job.span(step), (run["startedAt"], run["endedAt"]), strict=True):
        off_s = (shown - datetime.fromisoformat(told)).total_seconds()
        print(f"{step}: {off_s:+.2f} s")
        assert -2 <= off_s <= patient(3), "Slurm shows it no sooner, and soon after"


def test_the_shell_of_salloc_and_its_rows(appliance: Appliance, tmp_path: Path) -> None:
    folder = appliance.make_gpt2(tmp_path / "gpt2", gate=True)
    job, salloc = appliance.salloc(folder, COMMAND, "--cpus-per-task", "40", "--tasks", "1")
    job.until_it_trains()
    (compiled,), (trained,) = job.made("compile"), job.made("execute")
    wanted = [
        (f"{job.id}", "interactive", "RUNNING"),
        (f"{job.id}.0", compiled["id"], "COMPLETED"),
        (f"{job.id}.1", f"{trained['id']}-csx1", "RUNNING"),
    ]
    until(lambda: [(row.id, row.name, row.state) for row in job.rows] == wanted, what=lambda: job.table)
    print(job.table)
    (folder / "go").touch()
    assert salloc.wait(patient(BUSY_S)) == 0
    assert [(row.state, row.exit_code) for row in job.ended_rows()] == [("COMPLETED", "0:0")] * 3


def test_a_program_on_a_login_node_that_was_told_of_an_allocation(outside: Appliance, tmp_path: Path) -> None:
    folder = outside.make_gpt2(tmp_path / "gpt2", gate=True)
    job = outside.allocate(folder)
    with job.program(COMMAND) as program:
        job.until_it_trains()
        (compiled,), (trained,) = job.made("compile"), job.made("execute")
        wanted = [
            (f"{job.id}", "no-shell", "RUNNING"),
            (f"{job.id}.0", compiled["id"], "COMPLETED"),
            (f"{job.id}.1", f"{trained['id']}-csx1", "RUNNING"),
        ]
        until(lambda: [(row.id, row.name, row.state) for row in job.rows] == wanted, what=lambda: job.table)
        (folder / "go").touch()
        assert program.wait(patient(BUSY_S)) == 0, job.output
    until(lambda: [row.state for row in job.rows[1:]] == ["COMPLETED"] * 2, what=lambda: job.table)
    for step, made in ((f"{job.id}.0", compiled), (f"{job.id}.1", trained)):
        times_are_equal(outside, job, step, made["id"])

    job = outside.allocate(outside.make_endless(tmp_path / "endless"))
    with job.program(ENDLESS.format(systems=1, more="")) as program:
        outside.slurm.check("scancel", job.until_it_trains())
        assert program.wait(patient(BUSY_S)) == 0, job.output
    assert "ended with 143" in job.output
    was_ended_in_order(job)
    until(lambda: job.rows[-1].state == "CANCELLED", what=lambda: job.table)


def test_under_srun_it_trains_without_steps(appliance: Appliance, tmp_path: Path) -> None:
    folder = appliance.make_gpt2(tmp_path / "gpt2", gate=False)
    job = appliance.sbatch(folder, f"srun {COMMAND}")
    job.wait("COMPLETED")
    assert (folder / "model_dir" / "checkpoint_10.npz").exists()
    assert [row.id for row in job.ended_rows()] == [f"{job.id}", f"{job.id}.batch", f"{job.id}.0"]
    assert not re.search("warning|error|slurm", job.output, re.IGNORECASE), job.output


# -- ended from Slurm --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "job_state", "step_states", "told"),
    [
        ("job", "CANCELLED", {"FAILED", "CANCELLED"}, "cancelling"),
        ("step", "COMPLETED", {"CANCELLED"}, "its Slurm step was ended from outside: cancelling"),
        ("signal", "COMPLETED", {"FAILED"}, "Slurm sent its step SIGTERM: cancelling"),
        ("appliance", "COMPLETED", {"FAILED"}, "CANCELLED after"),
    ],
)
def test_cancel(
    appliance: Appliance, tmp_path: Path, how: str, job_state: str, step_states: set[str], told: str
) -> None:
    job = appliance.sbatch(appliance.make_endless(tmp_path / "endless"), ENDLESS.format(systems=1, more=""))
    step = job.until_it_trains()
    if how == "appliance":
        appliance.moor("wafer", "cancel", "job", job.made("execute")[0]["id"])
    else:
        words = {"job": [str(job.id)], "step": [step], "signal": ["--signal=TERM", step]}[how]
        appliance.slurm.check("scancel", *words)
    job.wait(job_state)
    assert told in job.output
    if how != "job":  # which takes the script, too
        assert f"ended with {1 if how == 'appliance' else 143}" in job.output
    was_ended_in_order(job)
    assert job.ended_rows()[-1].state in step_states
    until(lambda: job.processes == [], what=lambda: str(job.processes))


def was_ended_in_order(job: Job) -> None:
    """Its training was cancelled, and has written a checkpoint; no step runs."""
    (trained,) = job.made("execute")
    assert (trained["state"], trained["exitCode"]) == ("CANCELLED", 143), trained
    saved = max(int(path.stem.split("_")[1]) for path in job.folder.glob("model_dir/checkpoint_*.npz"))
    assert f"Asked to end (TERM) at step {saved}" in job.output
    assert f"run the same command again to resume from checkpoint_{saved}.npz" in job.output
    assert job.steps == {}


def test_the_time_limit_ends_what_trains_and_what_waits(appliance: Appliance, tmp_path: Path) -> None:
    def submit(name: str, systems: int, *limit: str) -> Job:
        command = ENDLESS.format(systems=systems, more="")
        return appliance.sbatch(appliance.make_endless(tmp_path / name), command, *limit)

    with appliance.held(systems=1):
        unwarned = submit("unwarned", 1, "--time=0:60")
        warned = submit("warned", 2, "--time=10", "--signal=TERM@30")
        unwarned.until_it_trains()
        warned.until_it_trains()
        # Slurm may warn 30 s early, which is the start of a job of a minute: it gets its limit when it trains. The one
        # that is to wait is warned late enough, for a warning would end its compile job; later it has no step.
        appliance.slurm.check("scontrol", "update", f"jobid={warned.id}", "timelimit=1")
        waits = submit("waits", 4, "--time=0:60", "--signal=TERM@10")
        waits.until_said("train          queued: ")

        warned.wait("COMPLETED")
        assert "Slurm sent its step SIGTERM: cancelling" in warned.output
        assert "ended with 143" in warned.output
        was_ended_in_order(warned)
        assert [row.state for row in warned.ended_rows()] == ["COMPLETED", "COMPLETED", "COMPLETED", "FAILED"]

        waits.wait("COMPLETED")
        assert "the time limit of the Slurm job is near: cancelling" in waits.output
        assert "ended with 143" in waits.output
        (waited,) = waits.made("execute")
        assert (waited["state"], waited.get("startedAt")) == ("CANCELLED", None)
        assert [row.state for row in waits.ended_rows()] == ["COMPLETED"] * 3  # the compile job is the last
        assert waits.ran_s > 20

        unwarned.wait("TIMEOUT")
        was_ended_in_order(unwarned)
        assert unwarned.ended_rows()[0].state == "TIMEOUT"


def test_scancel_of_a_job_that_waits_in_the_appliances_queue(appliance: Appliance, tmp_path: Path) -> None:
    with appliance.held(systems=4):
        job = appliance.sbatch(appliance.make_endless(tmp_path / "waits"), ENDLESS.format(systems=1, more=""))
        job.until_said("train          queued: ")
        appliance.slurm.check("scancel", str(job.id))
        job.wait("CANCELLED")
        until(lambda: [run["state"] for run in job.made("execute")] == ["CANCELLED"], what=lambda: job.output)
        assert [row.state for row in job.ended_rows()] == ["CANCELLED", "CANCELLED", "COMPLETED"]


# -- ended by the appliance --------------------------------------------------------------------------------------------


def test_job_time_sec_fails_the_step_and_says_why(appliance: Appliance, tmp_path: Path) -> None:
    folder = appliance.make_endless(tmp_path / "endless")
    job = appliance.sbatch(folder, ENDLESS.format(systems=2, more="--job_time_sec 20"))
    job.until_it_trains()
    (trained,) = job.made("execute")
    name = trained["id"]
    (line,) = [line for line in appliance.moor("wafer", "get", "jobs").splitlines() if name in line]
    assert {"RUNNING", "cs:0-1", f"SLURM_JOB_ID={job.id}"} <= set(line.split())
    (line,) = [line for line in appliance.moor("get", "jobs", "--no-headers").splitlines() if name in line]
    assert line.split()[:4] == [name, name, "RUNNING", "2"]  # devices
    job.wait("COMPLETED")
    assert re.search(rf"{name}  train +FAILED after [\d.]+ s: job_time_sec 20 s is over", job.output)
    assert "ended with 124" in job.output
    assert len(list(folder.glob("model_dir/checkpoint_*.npz"))) == 1
    (row,) = [row for row in job.ended_rows() if row.name == f"{name}-csx2"]
    assert (row.state, row.exit_code) == ("FAILED", "1:0")
    for listing in (("get", "runs", "--all", "-o", "wide"), ("wafer", "get", "jobs", "-a", "-o", "wide")):
        (line,) = [line for line in appliance.moor(*listing).splitlines() if name in line]
        assert re.search("stopped at its time limit of 0:(0[1-9]|1[0-9])", line), line


@pytest.mark.parametrize(
    ("before", "after", "step", "told"),
    [
        ('w["w"]))', 'w["no"]))', r"wsjob-[a-z0-9]{22}", "error: layer first cannot be traced: KeyError: 'no'"),
        ("step > 2", "step > 5", r"wsjob-[a-z0-9]{22}-csx1", "the data has a hole"),
    ],
    ids=["model", "data"],
)
def test_a_program_that_fails(
    appliance: Appliance, tmp_path: Path, before: str, after: str, step: str, told: str
) -> None:
    program = appliance.site.program(tmp_path / "broken")
    program.change("  batch_size: 32\n  pause_s", "  broken: true\n  batch_size: 32\n  pause_s")
    run_py = program.folder / "run.py"
    assert run_py.read_text().count(before) == 1
    run_py.write_text(run_py.read_text().replace(before, after))
    job = appliance.sbatch(program.folder, "python run.py CSX --params params.yaml --mode train\n")
    job.wait("FAILED")
    rows = job.ended_rows()
    assert (rows[0].state, rows[0].exit_code) == ("FAILED", "1:0")
    assert (rows[-1].state, rows[-1].exit_code) == ("FAILED", "1:0")
    assert re.fullmatch(step, rows[-1].name)
    assert told in job.output
    assert "exit code 1" in job.output


# -- somebody is killed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whom", "job_state", "step_states"),
    [
        ("client", "COMPLETED", {"FAILED"}),
        ("script", "FAILED", {"FAILED", "CANCELLED"}),
        ("node", "NODE_FAIL", {"FAILED", "CANCELLED"}),
    ],
)
def test_what_is_killed_holds_nothing_after_the_lease(
    appliance: Appliance, tmp_path: Path, whom: str, job_state: str, step_states: set[str]
) -> None:
    folder = appliance.make_endless(tmp_path / "endless", LEASE_S)
    job = appliance.sbatch(folder, ENDLESS.format(systems=4, more=""), "--no-requeue")
    job.until_it_trains()
    (trained,) = job.made("execute")
    at = time.monotonic()
    match whom:
        case "client":
            job.kill_client()
        case "script":
            job.kill_script()
        case _:
            appliance.slurm.fail_node(1)
    until(lambda: job.steps == {}, what=lambda: str(job.steps))
    until(lambda: appliance.site.job(trained["id"])["state"] == "CANCELLED", LEASE_S + GRACE_S)
    print(f"{whom}: cancelled after {time.monotonic() - at:.1f} s")
    assert appliance.site.job(trained["id"])["detail"] == f"nobody renewed its lease of {LEASE_S:g} s"
    assert list(folder.glob("model_dir/checkpoint_*.npz")) != []
    appliance.assert_nothing_left()
    until(lambda: job.processes == [], what=lambda: str(job.processes))
    job.wait(job_state)
    assert job.ended_rows()[-1].state in step_states


# -- Slurm is no help --------------------------------------------------------------------------------------------------


def test_while_slurmdbd_is_down_all_goes_on_and_accounting_has_it_later(appliance: Appliance, tmp_path: Path) -> None:
    folder = appliance.make_gpt2(tmp_path / "gpt2", gate=True)
    appliance.slurm._kill("slurmdbd")
    try:
        job = appliance.sbatch(folder, COMMAND)
        job.until_it_trains()
        (folder / "go").touch()
        job.wait("COMPLETED")
        assert (folder / "model_dir" / "checkpoint_10.npz").exists()
        assert "warning" not in job.output
        assert job.steps == {}
    finally:
        start_slurmdbd(appliance.slurm)
    rows = until(lambda: job.rows if len(job.rows) == 4 else None, BUSY_S)
    (compiled,), (trained,) = job.made("compile"), job.made("execute")
    assert [(row.name, row.state) for row in rows[2:]] == [
        (compiled["id"], "COMPLETED"),
        (f"{trained['id']}-csx1", "COMPLETED"),
    ]
    times_are_equal(appliance, job, f"{job.id}.1", trained["id"])
