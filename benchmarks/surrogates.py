"""What showing a job of an appliance as a Slurm step adds to it, on real Slurm; a part of ``benchmarks.appliance``.

Inside one batch job, a client runs jobs that do nothing, one after the other and in turn with and without a step: from
the request that queues a job until its end was heard and, with a step, until the step has ended, too.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from moorings.client.client import Client
from moorings.client.jobs import job_shape
from moorings.client.requests import EventFilter
from moorings.ports.mirror import Mirror, NoMirror
from moorings.slurm.surrogate.mirror import find_mirror
from moorings.terminal.context import CommandContext
from moorings.wire.shapes import RunRequest
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import Accelerators, JobSpec

ROUNDS = 40
POOLS = """
[[pool]]
name = "cs"
kind = "csx"
driver = "simulated"
topology = { type = "any-subset", domain_size = 4 }
[pool.simulated]
provision_s = 0
provision_per_device_s = 0
remove_s = 0
remove_per_device_s = 0
"""


@dataclass(frozen=True)
class Surrogates:
    """What was measured: seconds that a step adds, medians and how."""

    added_s: float
    notes: tuple[str, ...]


def added_s() -> Surrogates:
    """Measure."""
    from tests.e2e.processes import ControllerProcess
    from tests.slurm.cluster import SlurmCluster, new_folder
    from tests.slurm.programs import RELEASE

    cluster = SlurmCluster(new_folder(), 1, release=RELEASE)
    controller = ControllerProcess(cluster.folder / "controller", POOLS)
    controller.folder.mkdir()
    try:
        cluster.start()
        controller.start()
        root = Path(__file__).parent.parent
        way = f"MOORINGS_CREDENTIALS={controller.credentials} PYTHONPATH={root}:{root / 'src'}"
        job = cluster.sbatch(f"cd {root} && {way} {sys.executable} -m benchmarks.surrogates")
        cluster.wait_job(job, "COMPLETED", timeout=300)
        told = json.loads(cluster.output(job).splitlines()[-1])
    finally:
        if controller.process is not None:
            controller.kill()
        cluster.remove()
    shown, plain = statistics.median(told["shown"]), statistics.median(told["plain"])
    return Surrogates(
        added_s=shown - plain,
        notes=(
            f"a job that does nothing, median of {ROUNDS}: {plain:.3f} s, with a step in Slurm {shown:.3f} s",
            f"worst {max(told['plain']):.2f} and {max(told['shown']):.2f} s; Slurm {RELEASE}",
        ),
    )


# -- in the batch job -----------------------------------------------------------------------------------------------


def _job(number: int) -> JobSpec:
    return JobSpec(
        name="nothing",
        command=("true",),
        workdir="/",
        environment={"PATH": "/usr/bin:/bin"},
        accelerators=Accelerators("csx", 1),
        lease_s=60.0,
        appliance=WorkflowPart(ApplianceJobType.EXECUTE, f"wflow-{number:022d}"),
    )


def _run_s(client: Client, mirror: Mirror, number: int) -> float:
    """Seconds from the request to the end of everything."""
    begun = time.perf_counter()
    run = client.create_run(RunRequest(job=job_shape(_job(number))))
    for batch in client.watch_events(EventFilter(run=run.id, names=("run.started", "run.ended")), after=0):
        if batch:
            break
    step = mirror.begin(f"{run.id}-csx1", lambda why: sys.exit(why))
    ended = client.get_run(run.id, wait_s=60.0)
    step.end(ended.state == "SUCCEEDED")
    if ended.state != "SUCCEEDED":
        raise SystemExit(f"{run.id} is {ended.state}: {ended.detail}")
    return time.perf_counter() - begun


def _main() -> None:
    mirror = find_mirror(os.environ, lambda text: sys.exit(text))
    if isinstance(mirror, NoMirror):
        sys.exit("this is no batch job")
    plain, shown = [], []
    session = CommandContext(os.environ)
    client = session.client
    for number in range(ROUNDS):
        plain.append(_run_s(client, NoMirror(), 2 * number))
        shown.append(_run_s(client, mirror, 2 * number + 1))
    print(json.dumps({"plain": plain, "shown": shown}))


if __name__ == "__main__":
    _main()
