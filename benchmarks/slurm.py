"""What IPU jobs cost on stock Slurm, beside plain jobs on the same cluster in the same run.

One slurmctld, four nodes, a pod of 64 simulated IPUs whose partitions take no time, everything on one machine. Plain
``srun`` is measured before anything of ours is installed, afterwards, and while 500 IPU jobs wait.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.report import Report
from tests.e2e.processes import ControllerProcess
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.slurm.ipus import IpuSite, install
from tests.slurm.programs import RELEASE
from tests.waiting import until

N_IPUS = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)
LICENSES = ",".join([f"ipu:{N_IPUS}", *(f"ipu_{size}:{N_IPUS}" for size in SIZES), "moorings_gate:1"])
POOLS = """
[[pool]]
name = "pod64"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 64, max_block = 64 }
[pool.simulated]
provision_s = 0.0
provision_per_device_s = 0.0
remove_s = 0.0
remove_per_device_s = 0.0
"""
SRUNS = 200
JOBS = 300
ROUNDS = 5  # a rate of four seconds on two busy cores is a tenth off now and then
STARTS = 40
WAITING = 500
SUBMITTERS = 4  # at once
LOOK_S = 0.1  # between two looks at the queue: each costs both cores some 10 ms


def run() -> Report:
    """Measure."""
    cluster = SlurmCluster(new_folder(), 4, licenses=LICENSES, release=RELEASE)
    controller = ControllerProcess(cluster.folder / "controller", POOLS)
    controller.folder.mkdir()
    site = IpuSite(cluster, controller, {"MaxIpusPerJob": str(N_IPUS)})
    try:
        cluster.start()
        before = _srun_ms(cluster)
        install(cluster)
        plugstack = (cluster.etc / "plugstack.conf").read_text()
        cluster.write_conf("plugstack.conf", plugstack.replace("max=16", f"max={N_IPUS}"))
        limits = f"return {{ max = {N_IPUS}, sizes = {{ {', '.join(map(str, SIZES))} }} }}\n"
        cluster.write_conf("moorings_limits.lua", limits)
        cluster.configure("JobSubmitPlugins=lua")
        cluster.stop_controller()
        cluster.start_controller()
        controller.start()
        site.write_conf()
        site.start_agent(log_level="info")
        until(lambda: cluster.licenses()["ipu_64"].reserved == 0, what=site.log)
        after = _srun_ms(cluster)
        plain_s, ipu_s = _latency_s(cluster, ()), _latency_s(cluster, ("--ipus=1",))
        rounds = [(_rate(cluster, ()), _rate(cluster, ("--ipus=1",))) for _ in range(ROUNDS)]
        plain_rate, ipu_rate = sorted(rounds, key=lambda one: one[1] / one[0])[ROUNDS // 2]
        ratios = " ".join(f"{ipu / plain:.2f}" for plain, ipu in rounds)
        holder = cluster.sbatch("sleep 1000", f"--ipus={N_IPUS}")
        cluster.wait_job(holder, "RUNNING")
        _submit(cluster, WAITING, ("--ipus=1",))
        while_waiting = _srun_ms(cluster)
        cluster.run("scancel", "--user=root")
    finally:
        if site.agent_lives:
            site.end_agent()
        if controller.process is not None:
            controller.kill()
        cluster.remove()
    return Report(
        name="slurm",
        figures={
            "throughput_ratio": ipu_rate / plain_rate,
            "start_latency_added_s_p50": ipu_s - plain_s,
            "plain_srun_added_ms_p50": after - before,
            "plain_srun_added_while_500_wait_ms_p50": while_waiting - before,
        },
        bounds={"throughput_ratio": 1.0, "start_latency_added_s_p50": 0.0, "plain_srun_added_ms_p50": 0.0},
        anchors={
            "throughput_ratio": 0.6,
            "start_latency_added_s_p50": 0.4,
            "plain_srun_added_ms_p50": 20,
            "plain_srun_added_while_500_wait_ms_p50": 20,
        },
        notes=(
            f"{JOBS} jobs: plain {plain_rate:.1f}/s, with --ipus=1 {ipu_rate:.1f}/s, submitted by {SUBMITTERS} at once",
            f"that is the median of {ROUNDS} rounds, of which each has one after the other: {ratios}",
            f"submit to first act, median of {STARTS} one by one: plain {plain_s:.3f} s, IPU {ipu_s:.3f} s",
            f"plain srun, median of {SRUNS}: before {before:.1f} ms, installed {after:.1f} ms",
            f"the same while {WAITING} IPU jobs wait: {while_waiting:.1f} ms",
            f"Slurm {RELEASE}, 4 nodes, everything on this machine; bound: the plain job itself",
        ),
    )


def _srun_ms(cluster: SlurmCluster) -> float:
    """Median of plain sruns, one after the other."""
    times = []
    for _ in range(SRUNS):
        begun = time.perf_counter()
        cluster.check("srun", "-n1", "true")
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times)


def _latency_s(cluster: SlurmCluster, flags: tuple[str, ...]) -> float:
    """Median of submit to first act, on an idle cluster."""
    times = []
    for number in range(STARTS):
        mark = cluster.work / f"mark{number}"
        begun = time.time()
        job = cluster.sbatch(f"date +%s%N > {mark}", *flags)
        cluster.wait_job(job, "COMPLETED")
        times.append(int(mark.read_text()) / 1e9 - begun)
        mark.unlink()
    return statistics.median(times)


def _submit(cluster: SlurmCluster, count: int, flags: tuple[str, ...]) -> None:
    with ThreadPoolExecutor(SUBMITTERS) as threads:
        list(threads.map(lambda _: cluster.sbatch("true", *flags), range(count)))


def _rate(cluster: SlurmCluster, flags: tuple[str, ...]) -> float:
    """Jobs a second, from the first submit until none is left."""
    begun = time.perf_counter()
    _submit(cluster, JOBS, flags)

    def all_gone() -> bool:
        time.sleep(LOOK_S)  # looking costs slurmctld, too
        return not cluster.squeue()

    until(all_gone, 300)
    return JOBS / (time.perf_counter() - begun)
