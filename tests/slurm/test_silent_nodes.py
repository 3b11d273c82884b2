"""A node without our plugin runs tasks before their partition is there: it is seen by its silence, on real Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until

SILENT_S = 12.0
BARE = "n2"


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    with ipu_site(slurm_release) as made:
        made.end_agent()
        made.silent_s = SILENT_S
        made.start_agent()
        made.cluster.kill_node(2)
        made.cluster.start_node(2, plugins=False)
        yield made


def state(site: IpuSite, node: str) -> str:
    return site.cluster.check("sinfo", "-h", "-N", "-n", node, "-o", "%T %E").strip()


@pytest.mark.smoke
def test_it_is_drained_its_jobs_stopped_and_nobody_else_is_touched(site: IpuSite) -> None:
    cluster = site.cluster
    started = time.monotonic()
    asked = cluster.sbatch("srun sleep 60", "--ipus=1", "-w", "n1")
    bare = cluster.sbatch("echo ran $MOORINGS_PARTITION_ID; sleep 60", "--ipus=4", "-w", BARE)
    once = cluster.sbatch("sleep 60", "--ipus=1", "--no-requeue", "-w", BARE)
    idle = cluster.spawn("salloc", "--ipus=2", "-w", "n3", "sleep", "60")
    for job in (asked, bare, once):
        cluster.wait_job(job, "RUNNING")
    until(lambda: len([claim for claim in site.claims() if claim["state"] == "READY"]) == 4, what=site.log)
    until(lambda: "start.served" in site.log(), what=site.log)
    site.end_agent()  # who has asked is known to the next one
    site.start_agent()
    until(lambda: state(site, BARE).startswith("drain"), what=site.log)
    assert time.monotonic() - started >= SILENT_S
    assert f"run on {BARE}, which did not ask for its partition" in state(site, BARE)
    put_back = cluster.wait_job(bare, "PENDING")
    assert put_back["Restarts"] == "1"
    assert f"put back: tasks of job {bare} run on {BARE}" in site.comment(bare)
    cluster.wait_job(once, "CANCELLED")
    assert f"cancelled: tasks of job {once} run on {BARE}" in site.comment(once)
    assert {state(site, node).split()[0] for node in ("n1", "n3")} <= {"mixed", "allocated"}
    assert cluster.job(asked)["JobState"] == "RUNNING"
    assert idle.poll() is None
    until(lambda: len(site.claims()) == 2, what=site.log)
    site.clear()
    cluster.check("scontrol", "update", f"nodename={BARE}", "state=resume")
