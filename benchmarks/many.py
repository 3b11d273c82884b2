"""One machine, many people: what it costs that a job runs as its person.

A machine with accounts of its own, in a mount namespace, with the root daemon and a controller without privileges;
beside it a controller of one user's own, on the same pool. One job after the other on each: the time from the request
until its command runs. Then short jobs of three people at once, with limits of CPUs and tasks. Bound of the rate: the
same jobs by the controller of one's own, where nobody becomes anybody and no cgroup is made.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.claims_http import POOLS, start_controller
from benchmarks.report import Report
from tests.e2e.shared_machine import PEOPLE, SharedMachineRig, cannot_be_here

STARTS = 40
JOBS = 120  # of each person

# Submits jobs one after the other, or as many at once as there are threads, and prints the seconds of each start.
_SUBMIT = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from moorings.client import spool
from moorings.client.client import Client
from moorings.client.jobs import job_shape
from moorings.client.transport import Endpoint, Transport
from moorings.core.model.serialization import to_plain
from moorings.wire.shapes import RunRequest
from moorings.workloads.jobs import Accelerators, JobSpec, check_job

server, key, home, n, at_once = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
job = check_job(JobSpec(
    name="short", command=("/bin/sh", "-c", "date +%s.%N"), workdir=home, environment={"PATH": "/usr/bin:/bin"},
    accelerators=Accelerators(kind="ipu", size=1),
))

def run_one(_number):
    with Client(Transport(Endpoint(server, key))) as client:
        begun = time.time()
        entry = spool.hand_in(Path("/run/moorings/submit"), to_plain(job)) if server.startswith("unix:") else None
        run = client.create_run(RunRequest(job=job_shape(job), spool_entry=entry))
        while not run.ended_at:
            run = client.get_run(run.id, wait_s=30)
        assert run.state == "SUCCEEDED", run
        return float(b"".join(client.logs(run.id))) - begun

run_one(0)
begun = time.time()
with ThreadPoolExecutor(at_once) as pool:
    starts = list(pool.map(run_one, range(n)))
print(json.dumps({"starts": starts, "seconds": time.time() - begun}))
"""


def run() -> Report:
    """Measure."""
    if why := cannot_be_here():
        raise SystemExit(f"many: {why}")
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        folder = Path(name)
        own_starts, own_rate = _measure_own(folder)
        rig = SharedMachineRig(folder)
        try:
            (rig.root / "opt/pools.toml").write_text(POOLS)
            rig.up("--pools", "/opt/pools.toml")
            starts = _finish([_start_shared(rig, "ann", STARTS, 1)])[0]
            begun = time.time()
            _finish([_start_shared(rig, person, JOBS, 8) for person in PEOPLE])
            rate = len(PEOPLE) * JOBS / (time.time() - begun)
            rss_mb = _rss_mb(rig.daemon_pid())
            rig.down()
        finally:
            rig.close()
    return Report(
        name="many",
        figures={
            "start_added_ms_p50": (statistics.median(starts) - statistics.median(own_starts)) * 1e3,
            "daemon_rss_mb": rss_mb,
            "jobs_per_s": rate,
        },
        bounds={"jobs_per_s": own_rate},
        anchors={"start_added_ms_p50": 30, "daemon_rss_mb": 25, "jobs_per_s": 50},
        notes=(
            f"from request to first line, p50 of {STARTS}: {_ms(starts)} ms, one's own {_ms(own_starts)}",
            f"{len(PEOPLE)} people with {JOBS} jobs each, 8 at once, each with a limit of CPUs and tasks",
            "bound of the rate: as many jobs by a controller of one's own",
        ),
    )


def _ms(starts: Sequence[float]) -> str:
    return f"{statistics.median(starts) * 1e3:.0f}"


def _measure_own(folder: Path) -> tuple[list[float], float]:
    (folder / "pools.toml").write_text(POOLS)
    process, url, key = start_controller(folder)
    try:
        (starts,) = _finish([_start_own(url, key, STARTS, 1)])
        begun = time.time()
        _finish([_start_own(url, key, JOBS, 8) for _ in PEOPLE])
        return starts, len(PEOPLE) * JOBS / (time.time() - begun)
    finally:
        process.terminate()
        process.wait(20)


def _start_own(url: str, key: str, n: int, at_once: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _SUBMIT, url, key, "/", str(n), str(at_once)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _start_shared(rig: SharedMachineRig, person: str, n: int, at_once: int) -> subprocess.Popen[str]:
    words = ["-c", _SUBMIT, "unix:///run/moorings/controller/api", "", f"/home/{person}", str(n), str(at_once)]
    return rig.start_program(person, *words)


def _finish(started: Sequence[subprocess.Popen[str]]) -> list[list[float]]:
    found = []
    for process in started:
        output, said = process.communicate(timeout=600)
        if process.returncode:
            raise SystemExit(f"many: {said[-2000:]}")
        found.append(list(json.loads(output)["starts"]))
    return found


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
