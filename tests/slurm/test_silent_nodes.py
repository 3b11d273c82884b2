"""A node without our plugin runs tasks before their partition is there: it is seen by its silence, on real Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from moorings.slurm.host.node_state_file import FILE, load_node_state
from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import until

SILENT_S = 12.0
LONG_S = 1800  # longer than the test: its jobs are cancelled
BARE, SLOW = "n2", "n4"  # one has no plugin, the other a long prolog, before which Slurm says that the job runs


@pytest.fixture(scope="module")
def site(slurm_release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IpuSite]:
    prolog = tmp_path_factory.mktemp("prolog") / "prolog.sh"
    prolog.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != {SLOW} ] || sleep {SILENT_S * 2:g}\n')
    prolog.chmod(0o755)
    with ipu_site(slurm_release, bare=[2], extra_conf=f"Prolog={prolog}\n") as made:
        written = made.cluster.folder / "state" / FILE
        until(lambda: len(load_node_state(written).hellos) == 3, what=made.log)  # the next agent has it from there
        made.end_agent()
        made.silent_s = SILENT_S
        made.start_agent()
        yield made


def state(site: IpuSite, node: str) -> str:
    return site.cluster.check("sinfo", "-h", "-N", "-n", node, "-o", "%T %E").strip()


@pytest.mark.smoke
def test_it_is_drained_its_jobs_stopped_and_nobody_else_is_touched(site: IpuSite) -> None:
    cluster = site.cluster
    started = time.monotonic()
    asked = cluster.sbatch(f"srun sleep {LONG_S}", "--ipus=1", "-w", "n1")
    bare = cluster.sbatch(f"echo ran $MOORINGS_PARTITION_ID; sleep {LONG_S}", "--ipus=4", "-w", BARE)
    once = cluster.sbatch(f"sleep {LONG_S}", "--ipus=1", "--no-requeue", "-w", BARE)
    slow = cluster.sbatch("echo ran", "--ipus=1", "-w", SLOW)
    idle = cluster.spawn("salloc", "--ipus=2", "-w", "n3", "sleep", str(LONG_S))
    for job in (asked, bare, once, slow):
        cluster.wait_job(job, "RUNNING")
    until(lambda: len([claim for claim in site.claims() if claim["state"] == "READY"]) == 5, what=site.log)
    until(lambda: "start.served" in site.log(), what=site.log)
    site.end_agent()  # who has asked is known to the next one
    site.start_agent()
    until(lambda: state(site, BARE).startswith("drain"), what=site.log)
    assert time.monotonic() - started >= SILENT_S
    assert f"run on {BARE}, which did not ask for its partition" in state(site, BARE)
    until(lambda: cluster.job(bare)["JobState"] == "PENDING", what=site.log)
    assert cluster.job(bare)["Restarts"] == "1"
    assert f"put back: tasks of job {bare} run on {BARE}" in site.comment(bare)
    cluster.wait_job(once, "CANCELLED")
    assert f"cancelled: tasks of job {once} run on {BARE}" in site.comment(once)
    # The job with the long prolog may be over by now.
    assert {state(site, node).split()[0] for node in ("n1", "n3", SLOW)} <= {"mixed", "allocated", "idle"}
    assert cluster.job(asked)["JobState"] == "RUNNING"
    assert idle.poll() is None
    cluster.wait_job(slow, "COMPLETED")
    assert cluster.output(slow) == "ran\n"
    until(lambda: len(site.claims()) == 2, what=site.log)
    site.clear()
    cluster.check("scontrol", "update", f"nodename={BARE}", "state=resume")
