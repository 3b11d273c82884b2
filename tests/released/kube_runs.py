"""Records the run folders of the engine ``kubernetes`` of a release, on a real API server::

    python -m tests.released.kube_runs

What a kubelet would tell of the Pods is told by hand.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from moorings.kubernetes.engine.engine import KubernetesEngine
from moorings.kubernetes.engine.settings import KubernetesEngineSettings, Volume
from moorings.kubernetes.kube.client import connect
from moorings.kubernetes.kube.kubeconfig import load_credentials
from moorings.kubernetes.kube.pod_streams import PodStreams
from moorings.testing.engine_suite import SuitePrograms, make_order
from moorings.workloads.runs import RunPhase
from tests.kubernetes.cluster import KubernetesCluster, new_folder
from tests.kubernetes.site import JOBS, Site, ipu_site
from tests.kubernetes.test_engine import RUNNER, give_rights
from tests.released.kube_states import KUBE, read_run
from tests.released.slurm_record import write
from tests.unit.local.local_rig import WallClock

LOOKS, LOOK_S = 300, 0.1


def capture(site: Site, runs: Path, run: str, namespace: str, name: str) -> None:
    """Write a run's folder down, and its IPUJob."""
    folder = runs / run
    files = {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}
    found = site.cluster.api("GET", f"{JOBS}/namespaces/{namespace}/ipujobs")["items"]
    for one in found:
        one["metadata"].pop("managedFields", None)
    jobs = [one for one in found if run in str(one["metadata"].get("labels"))]
    recording: dict[str, Any] = {"now": time.time_ns() // 1000, "run": run, "files": files, "jobs": jobs}
    recording["did"] = read_run(recording, runs.parent / f"again-{name}")
    write(KUBE.with_name("kubernetes_runs") / f"{name}.json", recording)
    print(name, recording["did"])


async def record(site: Site, namespace: str, config: str) -> None:
    """The states of a run's folder."""
    runs, work, clock = site.folder / "runs", site.folder / "work", WallClock()
    for made in (runs, work):
        made.mkdir()

    volumes = (Volume(str(work), host_path=str(work)),)
    settings = KubernetesEngineSettings(namespace=namespace, volumes=volumes, request_cpus=False)
    calls = PodStreams(load_credentials({}, path=config))
    engine = KubernetesEngine(settings, runs, uuid4().hex[:12], connect({}, path=config), calls, clock)

    async def until_phase(run: Any, *phases: RunPhase) -> None:
        seen = None
        for _ in range(LOOKS):
            (seen,) = await engine.observe([run])
            if seen.phase in phases:
                return
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"{run} is {seen}")

    async def pods_of(number: int) -> list[str]:
        names: list[str] = []
        for _ in range(LOOKS):
            await engine.observe([order.run])
            found = await asyncio.to_thread(site.cluster.list, "pods", namespace)
            names = [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]
            if len(names) == number:
                return names
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"there are {names}")

    try:
        for name in ("succeeded", "failed"):
            plain = make_order(SuitePrograms().runs_until_stopped(), str(work), tasks=2, time_limit_s=3000.0)
            order = replace(plain, job=replace(plain.job, image="busybox:latest"))
            await engine.submit(order)
            if name == "succeeded":
                capture(site, runs, order.run, namespace, "ordered")
            pods = await pods_of(2)
            for pod in pods:
                site.run_pod(namespace, pod)
            await until_phase(order.run, RunPhase.RUNNING)
            if name == "succeeded":
                capture(site, runs, order.run, namespace, "running")
            else:
                await engine.cancel(order.run, "seen enough")
                capture(site, runs, order.run, namespace, "cancelled")
            for pod in await pods_of(2) if name == "succeeded" else []:
                site.end_pod(namespace, pod, 0)
            await until_phase(order.run, RunPhase.ENDED)
            capture(site, runs, order.run, namespace, "succeeded" if name == "succeeded" else "cancelled-ended")
            if name == "succeeded":
                site.cluster.kubectl("delete", "ipujobs", "--all", "-n", namespace)
                await pods_of(0)
    finally:
        await engine.close()


def main() -> None:
    """Write all of them."""
    with KubernetesCluster(new_folder()) as cluster, ipu_site(cluster, flags=["--privileged"]) as site:
        namespace = cluster.make_namespace("runs")
        give_rights(cluster, namespace)
        asyncio.run(record(site, namespace, str(cluster.make_kubeconfig(RUNNER))))


if __name__ == "__main__":
    main()
