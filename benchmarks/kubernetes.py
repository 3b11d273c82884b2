"""IPUJobs on a real API server: how many a second come to Running, what that costs, and how long one takes.

etcd, API server, a controller on 2,048 simulated IPUs, proxy and operator, all on this machine; the operator with the
workers and the limit of CPU that the chart gives it. No kubelet: a process of the benchmark writes that each Pod runs
as soon as it is there. Scheduler and controller-manager stand still meanwhile, for they would work on Pods that no node
takes. Bound: the same objects, made by a client that does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import Report
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import CONFIG_MAP, EVENT, POD, ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from moorings.kubernetes.kube.client import build_path, connect
from tests.kubernetes.api import KubernetesError
from tests.kubernetes.bare_writes import AT_ONCE, Written, write_file
from tests.kubernetes.cluster import KubernetesCluster, new_folder
from tests.kubernetes.site import JOBS, Site, ipu_site, template
from tests.waiting import until, until_async

POOLS = """
[[pool]]
name = "pod2048"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 32, domain_size = 64, max_block = 64 }
[pool.simulated]
provision_s = 0.0
provision_per_device_s = 0.0
remove_s = 0.0
remove_per_device_s = 0.0
"""
FEW, MANY = 100, 1000
SUBMITTERS = 4  # at once
SINGLES = 40
SETTLED_S = 20.0  # each job is looked at once more when its Pods must have been seen
IDLE_S = 30.0
GATEWAY_TIMEOUT = 504
LOOK_S = 0.5
LAUNCHER = {"command": ["mpirun", "true"]}
VALUES = yaml.safe_load((Path(__file__).parents[1] / "deploy/helm/ipu-operator/values.yaml").read_text())
LIMIT_CPUS = int(VALUES["controller"]["resources"]["limits"]["cpu"].removesuffix("m")) / 1000
CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000  # kubelet's
WRITE = re.compile(r'apiserver_request_total\{(.*verb="(?:POST|PUT|PATCH|DELETE)".*)\} (\S+)')


def run() -> Report:
    """Measure."""
    with (
        KubernetesCluster(new_folder()) as cluster,
        ipu_site(cluster, pools=[POOLS], log=False) as site,
        _limited(site.operators["operator"].pid, LIMIT_CPUS) as limited,
    ):
        namespace = cluster.make_namespace("bench")
        cluster.kill_controllers()
        with _hollow(cluster):
            singles = [_single_ms(site, namespace, f"single{number}") for number in range(SINGLES)]
            _clear(site, namespace)
            few_s = _to_running_s(site, namespace, "few", FEW)
            _clear(site, namespace)
            many_s = _to_running_s(site, namespace, "many", MANY)
            inference = _objects(site, namespace, "many0")
            time.sleep(SETTLED_S)
            operator = site.operators["operator"].pid
            before = _cpu_s(operator)
            time.sleep(IDLE_S)
            idle = (_cpu_s(operator) - before) / IDLE_S
            _clear(site, namespace)
            counted = _writes(cluster)
            cpu = {name: _cpu_s(pid) for name, pid in _pids(site).items()}
            training_s = _to_running_s(site, namespace, "train", MANY, launcher=LAUNCHER)
            cpu = {name: (_cpu_s(pid) - cpu[name]) / MANY * 1e3 for name, pid in _pids(site).items()}
            time.sleep(2)  # what is written a little later
            writes = {what: count - counted.get(what, 0) for what, count in _writes(cluster).items()}
            rss_mb = _rss_mb(operator)
            training = _objects(site, namespace, "train0")
            _clear(site, namespace)
            site.stop_operator()
            bounds = {
                "inference_jobs_per_s": MANY / _bare_s(cluster, "many0", inference),
                "training_jobs_per_s": MANY / _bare_s(cluster, "train0", training),
            }
    ours = {what: count / MANY for what, count in writes.items() if what not in _OURS and count >= MANY / 100}
    return Report(
        name="kubernetes",
        figures={
            "inference_jobs_per_s": MANY / many_s,
            "training_jobs_per_s": MANY / training_s,
            "api_writes_per_training_job": sum(ours.values()),
            "operator_cpu_ms_per_training_job": cpu["operator"],
            "create_to_pods_ms_p50": statistics.median(singles),
            "rss_mb": rss_mb,
            "cost_growth_ratio": (many_s / MANY) / (few_s / FEW),
            "idle_cpu_percent": idle * 100,
        },
        bounds=bounds,
        anchors={
            "inference_jobs_per_s": 30,
            "training_jobs_per_s": 40,
            "operator_cpu_ms_per_training_job": 10,
            "create_to_pods_ms_p50": 150,
            "rss_mb": 300,
            "cost_growth_ratio": 1.5,
            "idle_cpu_percent": 1.0,
        },
        notes=(
            f"{MANY} jobs of one IPU, made by {SUBMITTERS} at once, until all are Running",
            "writes per training job: " + ", ".join(f"{count:.2f} {what}" for what, count in sorted(ours.items())),
            "CPU per training job: " + ", ".join(f"{name} {used:.1f} ms" for name, used in cpu.items()),
            f"the operator: {VALUES['controller']['workers']} workers, as in the chart, {limited}",
            f"bounds: the same writes by a client that makes {AT_ONCE} jobs at a time, nobody else working",
            f"rss and idle CPU: the operator's; idle with {MANY} inference jobs that run",
            "anchors: promises; a tuned MPI Operator 0.8.2 makes launcher and worker of 8 jobs/s on such a machine",
        ),
    )


# What the benchmark itself writes.
_OURS = ("POST ipujobs", "PATCH pods/status", "DELETE ipujobs")


@contextmanager
def _hollow(cluster: KubernetesCluster) -> Iterator[None]:
    """Every Pod runs as soon as it is there."""
    words = [sys.executable, "-m", "tests.kubernetes.hollow", str(cluster.kubeconfig)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=dict(os.environ)) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


@contextmanager
def _limited(pid: int, cpus: float) -> Iterator[str]:
    """A process with so many CPUs, as a kubelet limits it; how it is limited."""
    old = (CGROUPS / "cpu" / "cpu.shares").exists()
    group = (CGROUPS / "cpu" if old else CGROUPS) / "moorings-benchmark"
    quota = round(cpus * PERIOD_US)
    try:
        group.mkdir()
        if old:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (CGROUPS / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        yield f"but without its limit of {cpus:g} CPUs: {error}"
        return
    try:
        yield f"with a limit of {cpus:g} CPUs"
    finally:
        with suppress(OSError):
            (group.parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def _objects(site: Site, namespace: str, job: str) -> Written:
    """A job and all that was made for it, in the order in which it is made."""
    kinds = (IPU_JOB, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, CONFIG_MAP, POD, EVENT)
    found = []
    for kind in kinds:
        listed = site.cluster.api("GET", build_path(kind, namespace))["items"]
        found += [(kind, one) for one in listed if _is_of(job, one)]
    return found


def _is_of(job: str, found: dict[str, Any]) -> bool:
    owners = [one["name"] for one in found["metadata"].get("ownerReferences") or ()]
    about = (found.get("involvedObject") or {}).get("name")
    return job in (found["metadata"]["name"], about, *owners)


def _bare_s(cluster: KubernetesCluster, job: str, objects: Written) -> float:
    """How long the API server needs for the objects of as many jobs."""
    file = cluster.folder / "objects.json"
    write_file(file, job, objects)
    words = [sys.executable, "-m", "tests.kubernetes.bare_writes", str(cluster.kubeconfig), str(file), f"bare-{job}-"]
    return float(subprocess.run([*words, str(MANY)], check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout)


def _body(namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "graphcore.ai/v1alpha1",
        "kind": "IPUJob",
        "metadata": {"name": name, "namespace": namespace, "finalizers": ["ipu.finalizers.graphcore.ai"]},
        "spec": {"ipusPerJobInstance": "1", "workers": {"template": template()}, **spec},
    }


def _single_ms(site: Site, namespace: str, name: str) -> float:
    """From one job's making until its Pod is there."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}-worker-0"
    seen = threading.Event()

    def look() -> None:
        while True:
            try:
                site.cluster.api("GET", path)
            except Exception:
                time.sleep(0.002)
            else:
                seen.set()
                return

    looking = threading.Thread(target=look)
    begun = time.perf_counter()
    site.cluster.api("POST", f"{JOBS}/namespaces/{namespace}/ipujobs", _body(namespace, name, {}))
    looking.start()
    seen.wait(30)
    took = (time.perf_counter() - begun) * 1e3
    looking.join()
    time.sleep(0.3)
    return took


def _to_running_s(site: Site, namespace: str, name: str, count: int, **spec: Any) -> float:
    """From the first of so many jobs until all of them run."""
    return asyncio.run(_make_and_await(site, namespace, name, count, spec))


async def _make_and_await(site: Site, namespace: str, name: str, count: int, spec: dict[str, Any]) -> float:
    kube = connect(os.environ, path=str(site.cluster.kubeconfig))
    numbers = iter(range(count))

    async def submit() -> None:
        for number in numbers:
            await kube.create(IPU_JOB, _body(namespace, f"{name}{number}", spec))

    async def runs(number: int) -> bool:
        found = await kube.get(IPU_JOB, f"{name}{number}", namespace)
        return (found.get("status") or {}).get("status") == "Running"

    begun = time.perf_counter()
    await asyncio.gather(*(submit() for _ in range(SUBMITTERS)))
    for number in range(count):  # one after the other: lists of all of them would keep the server busy
        await until_async(partial(runs, number), 600, what=f"{name}{number}")
    took_s = time.perf_counter() - begun
    await kube.close()
    return took_s


def _clear(site: Site, namespace: str) -> None:
    path = f"{JOBS}/namespaces/{namespace}/ipujobs"
    try:
        site.cluster.api("DELETE", path)
    except KubernetesError as error:  # of thousands; the server gives up after 34 s, and has deleted some
        if error.status != GATEWAY_TIMEOUT:
            raise
        site.cluster.api("DELETE", path)

    def gone() -> bool:
        time.sleep(LOOK_S)
        return not site.cluster.api("GET", path)["items"]

    until(gone, 600, what=lambda: site.log("operator")[-2000:])
    site.await_empty()


def _writes(cluster: KubernetesCluster) -> dict[str, float]:
    """Writes that the API server has taken, by verb and resource."""
    text = cluster.kubectl("get", "--raw", "/metrics", timeout=60)
    found: dict[str, float] = {}
    for labels, count in WRITE.findall(text):
        values = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if values.get("code", "").startswith("2") and values.get("resource") not in (
            "leases",
            "endpoints",
            "endpointslices",
        ):
            sub = f"/{values['subresource']}" if values.get("subresource") else ""
            what = f"{values['verb']} {values['resource']}{sub}"
            found[what] = found.get(what, 0) + float(count)
    return found


def _pids(site: Site) -> dict[str, int]:
    assert site.proxy is not None
    assert site.pod.process is not None
    return {"operator": site.operators["operator"].pid, "proxy": site.proxy.pid, "controller": site.pod.process.pid}


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123 - no path of ours
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:  # noqa: PTH123 - no path of ours
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024
