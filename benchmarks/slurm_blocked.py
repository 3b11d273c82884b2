"""What a large Slurm job that cannot start costs the small ones: how many run, beside the same without it.

One slurmctld, four nodes, a pod of 16 simulated IPUs. 150 jobs of 2 IPUs and 4 s wait, and 8 may run at once; after
some seconds a job of 16 IPUs comes before all of them, and lacks something that a plain job holds: a license, the CPUs
of a node that it names, or those of a node that it does not name. The bound is the same queue without it. A large one
that lacks nothing shows that it is not starved instead.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from benchmarks.report import Report
from tests.slurm.ipus import LICENSES, IpuSite, ipu_site
from tests.slurm.programs import RELEASE
from tests.waiting import until

SMALL, SMALL_IPUS, SMALL_S = 150, 2, 4
LARGE_IPUS = 16
ALONE_S, OBSERVED_S = 6.0, 64.0  # before the large one comes, and after
LOOK_S = 0.5

NODE = ("-w", "n4", "-c16")
# Of each case what a plain job takes, and what the large one asks for.
CASES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "license": (("-L", "matlab:1"), ("-L", "matlab:1")),
    "named_node": (NODE, NODE),
    "any_node": (NODE, ("-N4", "-n4", "-c16")),
}


def run() -> Report:
    """Measure."""
    with ipu_site(RELEASE, extra_conf=f"Licenses={LICENSES},matlab:1") as site:
        control, _ = _running(site, (), None)
        blocked = {name: _running(site, *case)[0] for name, case in CASES.items()}
        beside_startable, waited_s = _running(site, (), ())
    return Report(
        name="slurm_blocked",
        figures={f"running_beside_{name}": running for name, running in blocked.items()}
        | {"startable_waited_s": waited_s},
        bounds={f"running_beside_{name}": control for name in blocked} | {"startable_waited_s": SMALL_S},
        anchors={f"running_beside_{name}": 0.9 * control for name in blocked},
        notes=(
            f"{SMALL} jobs of {SMALL_IPUS} IPUs and {SMALL_S} s, mean of those running in {OBSERVED_S:.0f} s",
            f"beside a large job that can start: {beside_startable:.2f}",
            f"Slurm {RELEASE}, 4 nodes, everything on this machine; bounds: without the large job; one small job",
        ),
    )


def _running(site: IpuSite, held: tuple[str, ...], asked: tuple[str, ...] | None) -> tuple[float, float]:
    """How many small jobs run on average, and how long the large one waited; all the time if it did not start."""
    cluster = site.cluster
    if held:
        cluster.wait_job(cluster.sbatch("sleep 1000", *held), "RUNNING")
    for _ in range(SMALL):
        cluster.sbatch(f"sleep {SMALL_S}", f"--ipus={SMALL_IPUS}", "--job-name=small")
    time.sleep(ALONE_S)
    large, waited_s = 0, OBSERVED_S
    if asked is not None:
        large = cluster.sbatch("true", f"--ipus={LARGE_IPUS}", *asked)
        cluster.check("scontrol", "update", f"jobid={large}", "priority=900000")
    begun = time.monotonic()
    counts = []
    while time.monotonic() - begun < OBSERVED_S:
        counts.append(len(cluster.check("squeue", "-h", "--name=small", "--states=RUNNING").splitlines()))
        if large and waited_s == OBSERVED_S and cluster.job(large)["JobState"] != "PENDING":
            waited_s = time.monotonic() - begun
        time.sleep(LOOK_S)
    assert cluster.squeue(), "small jobs wait until the end"
    cluster.check("scancel", "--user=root")
    until(lambda: not site.left(), 60, what=site.log)
    return statistics.mean(counts), waited_s
