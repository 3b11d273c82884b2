"""IPU jobs on real Slurm: the manual's own scripts, the wait for room, and what is left when they are over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until

# The two job scripts of the V-IPU user guide, section 5.3.1.
SINGLE_GCD = """#!/bin/bash
#SBATCH --job-name single-gcd-job
#SBATCH --ipus 2
#SBATCH -n 1
#SBATCH --time=00:30:00
srun ./ipu_program.sh
wait
"""
MULTI_GCD = """#!/bin/bash
#SBATCH --job-name multi-gcd-job
#SBATCH --ipus 2
#SBATCH -n 2
#SBATCH --time=00:30:00
srun ./ipu_program.sh
wait
"""
PROGRAM = """#!/bin/sh
echo "rank $RANK of $WORLD_SIZE has $MOORINGS_DEVICES in $MOORINGS_PARTITION_ID"
cat "$IPUOF_CONFIG_PATH" > "seen.$SLURM_JOB_ID.$RANK"
"""


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release) as made:
        program = made.cluster.work / "ipu_program.sh"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        yield made


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    site.clear()


@pytest.mark.smoke
@pytest.mark.parametrize(("script", "tasks"), [(SINGLE_GCD, 1), (MULTI_GCD, 2)])
def test_the_manuals_job_scripts_run_unchanged(site: IpuSite, script: str, tasks: int) -> None:
    job = site.cluster.sbatch(script, user="games")
    site.cluster.wait_job(job, "COMPLETED")
    devices = {1: ["pod16:0,pod16:1"], 2: ["pod16:0", "pod16:1"]}[tasks]
    told = [f"rank {rank} of {tasks} has {devices[rank]} in slurm_{job}" for rank in range(tasks)]
    assert sorted(site.cluster.output(job).splitlines()) == told
    for rank in range(tasks):
        conf = json.loads((site.cluster.work / f"seen.{job}.{rank}").read_text())
        assert conf["attributes"]["GCD Id"] == str(rank)
        assert len(conf["devices"]) == 2 // tasks
    site.settle()
    made = [claim for claim in site.claims(every=True) if claim["name"] == f"slurm_{job}"]
    shown = [(claim["state"], claim["size"], claim["gcds"], claim["person"]) for claim in made]
    assert shown == [("RELEASED", 2, tasks, "games")]


@pytest.mark.smoke
def test_a_job_waits_for_room_and_starts_when_there_is_some(site: IpuSite) -> None:
    first = site.cluster.sbatch("sleep 3600", "--ipus=16")
    site.cluster.wait_job(first, "RUNNING")
    second = site.cluster.sbatch("echo $MOORINGS_PARTITION_ID", "--ipus=8")
    until(lambda: site.cluster.job(second)["Reason"] == "Licenses")
    site.cluster.check("scancel", str(first))
    site.cluster.wait_job(second, "COMPLETED")
    assert site.cluster.output(second).strip() == f"slurm_{second}"


def test_what_others_use_is_not_to_be_had_in_slurm(site: IpuSite) -> None:
    """Another user of the pool, beside Slurm."""
    status, claim = site.controller.ask("POST", "/v1/claims?wait=20s", {"size": 4})
    assert (status, claim["state"]) == (201, "READY")
    until(lambda: site.room() == {1: 12, 2: 12, 4: 12, 8: 8, 16: 0}, 5, what=lambda: f"{site.room()}")
    job = site.cluster.sbatch("true", "--ipus=16")
    until(lambda: site.cluster.job(job)["Reason"] == "Licenses")
    site.controller.ask("DELETE", f"/v1/claims/{claim['id']}?wait=20s")
    site.cluster.wait_job(job, "COMPLETED")


@pytest.mark.smoke
def test_the_partition_is_active_before_the_first_process_starts(site: IpuSite) -> None:
    """Law 4, as the controller's log tells it: ready before the job's own first act."""
    mark = site.cluster.work / "first"
    job = site.cluster.sbatch(f"date +%s%N > {mark}", "--ipus=4")
    site.cluster.wait_job(job, "COMPLETED")
    made = next(claim for claim in site.claims(every=True) if claim["name"] == f"slurm_{job}")
    ready = datetime.fromisoformat(made["readyAt"]).timestamp()
    assert int(mark.read_text()) / 1e9 > ready


def test_beside_a_stranger_s_partition_one_job_follows_the_other_and_none_starts_in_vain(site: IpuSite) -> None:
    """What a job gives back is the next one's, and only the next one's."""
    status, claim = site.controller.ask("POST", "/v1/claims?wait=20s", {"size": 8})
    assert (status, claim["state"]) == (201, "READY")
    until(lambda: site.room()[8] == 8 and site.room()[16] == 0, what=lambda: f"{site.room()}")
    jobs = [site.cluster.sbatch("sleep 0.3", "--ipus=8") for _ in range(8)]
    most = 0

    def over() -> bool:
        nonlocal most
        queued = site.cluster.squeue()
        most = max(most, sum(job.state == "RUNNING" for job in queued))
        return not queued

    until(over, 60, what=lambda: f"{site.cluster.squeue()}\n{site.log()}")
    assert most == 1, site.log()
    assert {site.cluster.job(job)["Restarts"] for job in jobs} == {"0"}
    site.controller.ask("DELETE", f"/v1/claims/{claim['id']}?wait=20s")
