"""slurmctld, the agent and the controller are stopped, killed and started late, at each stage of a job's life.

The pool takes its time to make a partition, so that jobs can be seen to wait for one.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.ipus import N_IPUS, POOLS, SIZES, IpuSite, ipu_site
from tests.waiting import patient, until

MAKING_S = 3.0
AWAY_S = 2.0
PATIENCE_S, SHORT_S = 240, 5  # of a job that waits for its partition: none is given up because a machine is busy
TELL, UNTIL_GO = "echo $MOORINGS_PARTITION_ID", "; until [ -e go ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    pools = POOLS.replace("provision_s = 0.1", f"provision_s = {MAKING_S}")
    with ipu_site(slurm_release, pools=pools, wait_s=600, ApiTimeout=str(PATIENCE_S)) as made:
        yield made


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    (site.cluster.work / "go").unlink(missing_ok=True)
    if not site.agent_lives:
        site.start_agent()
    for job in site.cluster.squeue():
        site.cluster.run("scancel", job.id)
    site.settle()


def states(site: IpuSite) -> dict[str, str]:
    return {claim["name"]: claim["state"] for claim in site.claims()}


def ready(site: IpuSite, *jobs: int) -> dict[str, Any]:
    """The partitions of the jobs, once they have them."""
    names = {f"slurm_{job}" for job in jobs}
    until(lambda: {n for n, state in states(site).items() if state == "READY"} >= names, what=site.log)
    return {claim["name"]: claim["partitionId"] for claim in site.claims() if claim["name"] in names}


def test_a_job_that_is_cancelled_while_it_waits_for_its_partition(site: IpuSite) -> None:
    batch = site.cluster.sbatch("srun true", "--ipus=8")
    step = site.cluster.spawn("srun", "--ipus=4", "-n2", "true")
    until(lambda: list(states(site).values()) == ["GRANTED"] * 2, what=site.log)
    site.cluster.check("scancel", "--full", str(batch))
    step.terminate()
    assert step.wait(patient(10)) != 0
    site.cluster.wait_job(batch, "CANCELLED", 10)
    site.settle()
    assert "given_up" not in site.log()


def told_last(site: IpuSite, job: int) -> str:
    """The last line that a job printed; a long wait is told before."""
    return site.cluster.output(job).rstrip("\n").rpartition("\n")[2]


@dataclass
class Stages:
    """Jobs at each stage of their life: with a partition, ending, waiting for one, and in the queue."""

    running: int
    ending: int
    waiting: int
    pending: int
    held: dict[str, Any]


def reach_all_stages(site: IpuSite) -> Stages:
    running = site.cluster.sbatch(f"srun sh -c '{TELL}'" + UNTIL_GO, "--ipus=4", "--requeue")
    ending = site.cluster.sbatch("trap '' TERM; echo here; while :; do sleep 0.1; done", "--ipus=2")
    held = ready(site, running, ending)
    until(lambda: site.cluster.output(running) and site.cluster.output(ending))
    # Without srun: of 26.05, one that asks for a step while slurmctld is away hangs for ever, in a plain job too.
    waiting = site.cluster.sbatch(TELL + UNTIL_GO, "--ipus=4")
    until(lambda: f"slurm_{waiting}" in states(site), what=site.log)
    pending = site.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=8")  # one of 2 may pass it
    until(lambda: site.cluster.job(pending)["Reason"] == "Licenses" and site.room()[2] > 0)
    site.cluster.check("scancel", str(ending))  # KillWait is two seconds
    site.cluster.wait_job(ending, "COMPLETING")
    return Stages(running, ending, waiting, pending, {f"slurm_{running}": held[f"slurm_{running}"]})


def finish_all_stages(site: IpuSite, stages: Stages) -> None:
    """All continues as if nothing had been: law 3 for who runs, law 2 for who has ended."""
    until(lambda: told_last(site, stages.waiting) == f"slurm_{stages.waiting}", 60, what=site.log)
    assert site.cluster.job(stages.waiting)["Restarts"] == "0", "it was not given up meanwhile"
    assert ready(site, stages.running) == stages.held
    until(lambda: f"slurm_{stages.ending}" not in states(site), what=site.log)
    assert site.cluster.job(stages.pending)["JobState"] == "PENDING"
    (site.cluster.work / "go").touch()
    site.cluster.wait_job(stages.pending, "COMPLETED")
    for job in (stages.running, stages.waiting):
        site.cluster.wait_job(job, "COMPLETED")
    for job in (stages.running, stages.waiting, stages.pending):
        assert told_last(site, job) == f"slurm_{job}"
    site.settle()


def kill_slurmctld(site: IpuSite) -> None:
    """When it has saved what it knows now, which it does some seconds after a change."""
    begun = time.time()
    held = site.cluster.sbatch("true", "--hold")
    file = site.cluster.folder / "state" / "job_state"
    until(lambda: file.exists() and file.stat().st_mtime > begun, what=lambda: "no state was saved")
    site.cluster.kill_controller()
    time.sleep(AWAY_S)
    site.cluster.start_controller()
    site.cluster.check("scancel", str(held))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_slurmctld_is_away_at_each_stage(site: IpuSite, how: str) -> None:
    stages = reach_all_stages(site)
    if how == "stopped":
        site.cluster.stop_controller()
        time.sleep(AWAY_S)
        site.cluster.start_controller()
    else:
        kill_slurmctld(site)
    finish_all_stages(site, stages)


@pytest.mark.smoke
@pytest.mark.slow
def test_the_agent_is_stopped_killed_and_started_late(site: IpuSite) -> None:
    stages = reach_all_stages(site)
    assert site.end_agent(signal.SIGTERM) == 0
    assert max(site.room().values()) <= 0
    site.cluster.wait_job(stages.ending, "CANCELLED")  # and what it gives back is not to be had
    late = site.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=2")
    until(lambda: site.cluster.job(late)["Reason"] in ("Licenses", "Priority"))
    site.start_agent()
    until(lambda: site.room()[2] > 0 or site.cluster.job(late)["JobState"] != "PENDING", what=site.log)
    site.cluster.wait_job(late, "COMPLETED")

    site.end_agent(signal.SIGKILL)
    late = site.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=2")  # the gate stands as it was left
    site.cluster.wait_job(late, "RUNNING")
    time.sleep(AWAY_S)
    assert "slurm" not in site.cluster.output(late), "nothing of a job runs before it has its partition"
    site.start_agent()
    site.cluster.wait_job(late, "COMPLETED")
    assert told_last(site, late) == f"slurm_{late}"
    finish_all_stages(site, stages)


@pytest.mark.smoke
@pytest.mark.slow
def test_the_controller_is_away_while_jobs_start_and_end(site: IpuSite) -> None:
    stages = reach_all_stages(site)
    site.controller.kill()
    late = site.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=2")  # it is not noticed at once
    site.cluster.wait_job(late, "RUNNING")
    until(lambda: max(site.room().values()) <= 0, what=site.log)
    never = site.cluster.sbatch("true", "--ipus=1")
    until(lambda: site.cluster.job(never)["Reason"] == "Licenses")
    site.cluster.wait_job(stages.ending, "CANCELLED")
    site.cluster.check("scancel", str(never))
    site.controller.start()
    site.cluster.wait_job(late, "COMPLETED")
    finish_all_stages(site, stages)


@pytest.mark.slow
def test_a_job_that_waits_in_vain_goes_back_into_the_queue(site: IpuSite) -> None:
    """The agent is dead, so the gate knows nothing of a block that another user takes."""
    site.end_agent()
    change_patience(site, PATIENCE_S, SHORT_S)
    _, claim = site.controller.ask("POST", "/v1/claims?wait=20s", {"size": N_IPUS})
    assert claim["state"] == "READY"
    batch = site.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=8")
    step = site.cluster.spawn("srun", "--ipus=8", "true")
    site.cluster.wait_job(batch, "RUNNING")
    site.start_agent()
    site.cluster.wait_job(batch, "PENDING")
    assert step.wait(patient(30)) == 121
    assert step.stderr is not None
    assert f"no partition within {SHORT_S} s" in step.stderr.read()
    until(lambda: states(site) == {}, what=site.log)
    until(lambda: site.room() == dict.fromkeys(SIZES, 0), what=site.log)
    site.controller.ask("DELETE", f"/v1/claims/{claim['id']}?wait=20s")
    # Not after two minutes, but not at once either: Slurm fails a job that comes back to its node within a second.
    site.cluster.check("scontrol", "update", f"jobid={batch}", "starttime=now+3")
    site.cluster.wait_job(batch, "COMPLETED")
    assert told_last(site, batch) == f"slurm_{batch}_r1"
    site.end_agent(signal.SIGTERM)
    change_patience(site, SHORT_S, PATIENCE_S)
    site.start_agent()


@pytest.mark.slow
def test_a_new_agent_requeues_no_job_that_has_long_had_its_partition(site: IpuSite) -> None:
    """Law 3: it has handed out no binding yet, and cannot get one for the job's next step."""
    site.end_agent(signal.SIGTERM)
    change_patience(site, PATIENCE_S, SHORT_S)
    site.start_agent()
    running = site.cluster.sbatch(f"srun sh -c '{TELL}'{UNTIL_GO}; srun sh -c '{TELL}'", "--ipus=4", "--requeue")
    held = ready(site, running)
    until(lambda: site.cluster.output(running))
    site.end_agent()
    site.start_agent()
    site.cluster.wait_job(site.cluster.sbatch("true", "--ipus=2"), "COMPLETED")  # it has all the lists it needs
    site.controller.kill()
    begun = site.log().count("binding.awaited")
    (site.cluster.work / "go").touch()
    until(lambda: site.log().count("binding.awaited") > begun, what=site.log)
    assert site.cluster.job(running)["Restarts"] == "0"
    site.controller.start()
    site.cluster.wait_job(running, "COMPLETED")
    assert site.cluster.job(running)["Restarts"] == "0"
    assert set(held) == {f"slurm_{running}"}
    assert site.cluster.output(running).splitlines().count(f"slurm_{running}") == 2
    site.end_agent(signal.SIGTERM)
    change_patience(site, SHORT_S, PATIENCE_S)
    site.start_agent()


def change_patience(site: IpuSite, before_s: int, after_s: int) -> None:
    conf = (site.cluster.etc / "vipu.conf").read_text()
    assert f"ApiTimeout={before_s}\n" in conf
    site.cluster.write_conf("vipu.conf", conf.replace(f"ApiTimeout={before_s}\n", f"ApiTimeout={after_s}\n"), 0o600)


def _is_copied(folder: Path, to: Path) -> bool:
    """slurmctld replaces its files while they are copied; then they are copied once more."""
    try:
        shutil.copytree(folder, to, dirs_exist_ok=True)
    except shutil.Error:
        return False
    return True


@pytest.mark.slow
def test_a_job_that_slurm_forgets_to_have_run_runs_again_with_a_partition(site: IpuSite) -> None:
    """slurmctld is killed before it has saved the job's start and end: it starts it as if for the first time."""
    begun = time.time()
    job = site.cluster.sbatch("echo $MOORINGS_PARTITION_ID >> ran", "--ipus=4", "--hold")
    state = site.cluster.folder / "state"
    until(lambda: (state / "job_state").exists() and (state / "job_state").stat().st_mtime > begun)
    saved = site.cluster.folder / "saved"
    until(lambda: _is_copied(state, saved))
    site.cluster.check("scontrol", "release", str(job))
    site.cluster.wait_job(job, "COMPLETED")
    until(lambda: states(site) == {}, what=site.log)
    site.cluster.kill_controller()
    shutil.copytree(saved, state, dirs_exist_ok=True)
    shutil.rmtree(saved)
    site.cluster.start_controller()
    site.cluster.check("scontrol", "release", str(job))
    site.cluster.wait_job(job, "COMPLETED")
    told = (site.cluster.work / "ran").read_text().split()
    assert told == [f"slurm_{job}"] * 2, site.cluster.output(job)
    assert site.cluster.job(job)["Restarts"] == "0"


@pytest.mark.slow
def test_an_id_that_comes_again_gets_a_partition_of_its_own(site: IpuSite) -> None:
    """slurmctld loses all it knew, the gate's reservation too, and counts its jobs from the beginning."""
    first = site.cluster.sbatch("sleep 100", "--ipus=8")
    held = ready(site, first)
    other = "n1" if site.cluster.job(first)["NodeList"] != "n1" else "n2"
    site.cluster.kill_controller()
    site.cluster.configure(f"JobSubmitPlugins=lua\nFirstJobId={first}")
    for file in (site.cluster.folder / "state").iterdir():
        if file.is_file():
            file.unlink()
    site.cluster.start_controller()
    site.cluster.wait_nodes()
    until(lambda: site.room()[1] == 8 and site.room()[16] == 0, what=site.log)
    # On another node: of 24.11, slurmd kills the job that nobody knows, and then refuses any other of its id.
    again = site.cluster.sbatch("echo $MOORINGS_PARTITION_ID $MOORINGS_DEVICES", "--ipus=4", f"--nodelist={other}")
    site.cluster.wait_job(again, "COMPLETED")
    assert again == first
    assert site.cluster.output(again).startswith(f"slurm_{first}_")
    assert ready(site, first) == held, "law 3: of a job that is merely missing nothing is taken at once"
    until(lambda: states(site) == {}, 60, what=site.log)
