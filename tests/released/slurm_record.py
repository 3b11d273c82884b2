"""Records what the agent and the engine ``slurm`` of a release leave behind, on a real Slurm::

    python -m tests.released.slurm_record

The agent is killed in each state that a cluster may rest in; then everything that the next agent will see is written
down: Slurm's answers and the controller's as they are, and the files in StateSaveLocation. What nodes and agent say to
each other is written down as the munge credentials hold it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from moorings.core.model.claims import CheckpointContract
from moorings.ports.engine import RunSubmission
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.engine.engine import SlurmEngine
from moorings.slurm.engine.settings import SlurmEngineSettings
from moorings.slurm.formats import build_jobs, build_licenses, build_reservations
from moorings.slurm.node_records import build_show_nodes
from moorings.testing.engine_suite import SuitePrograms, make_order, wait_for_end
from moorings.workloads.runs import RunPhase
from tests.released.slurm_states import SLURM, decide, put_files, read_run
from tests.slurm import ipus
from tests.slurm.admin import told
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.slurm.ipus import IpuSite, ipu_site
from tests.slurm.test_reclaim import DEAF
from tests.unit.local.local_rig import WallClock
from tests.waiting import until

_TAPPED = """
import json
from moorings.app.slurm_agent import main
from moorings.slurm.munge import Munge
decode, encode = Munge.decode, Munge.encode
def tell(**what):
    with open("{file}", "a") as file:
        file.write(json.dumps(what) + chr(10))
def heard(self, text):
    credential = decode(self, text)
    tell(by="node", uid=credential.uid, payload=credential.payload.decode())
    return credential
def said(self, payload, *, for_uid=None):
    tell(by="agent", for_uid=for_uid, payload=payload.decode())
    return encode(self, payload, for_uid=for_uid)
Munge.decode, Munge.encode = heard, said
raise SystemExit(main())
"""
_ASKS = """
import asyncio, os, sys
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.host.asking import get_wait_reason
print(asyncio.run(get_wait_reason(SlurmCommands(os.environ), int(sys.argv[1]))))
"""
STEPS = """
srun -n1 --exact sh -c 'echo $MOORINGS_DEVICES >> seen.$SLURM_JOB_ID; sleep 3600' &
srun -n1 --exact sh -c 'echo $MOORINGS_DEVICES >> seen.$SLURM_JOB_ID; sleep 3600' &
wait
"""
TREE_BYTES_MAX = 4096
_THEIRS = ("moorings_submit.lua", "slurm.conf")


def _now() -> int:
    return time.time_ns() // 1000


def capture(site: IpuSite, name: str, *missing: int) -> None:
    """Write down a state; ``missing`` are jobs of claims that the list of live ones has not."""
    cluster, state = site.cluster, site.cluster.folder / "state"
    words = [build_jobs(license_name="ipu", ended=False)] + ([build_jobs(jobs=missing)] if missing else [])
    files = [state / "moorings_instance", state / "moorings_nodes", *sorted((state / "moorings_steps").glob("*"))]
    recording: dict[str, Any] = {
        "now": _now(),
        "jobs": [cluster.check(*argv) for argv in words],
        "nodes": cluster.check(*build_show_nodes()),
        "licenses": cluster.check(*build_licenses()),
        "reservations": cluster.check(*build_reservations()),
        "claims": site.claims(),
        "queue": site.controller.ask("GET", f"/v1/queues/slurm/{site.name}")[1],
        "files": {str(file.relative_to(state)): file.read_text() for file in files if file.exists()},
    }
    with tempfile.TemporaryDirectory() as folder:
        put_files(recording, Path(folder))
        recording["did"] = decide(recording, Path(folder))
    write(SLURM / f"{name}.json", recording)
    print(name, json.dumps(recording["did"]["acts"])[:400], flush=True)


def write(path: Path, value: dict[str, Any] | list[Any]) -> None:
    """A recording; its first fields are on lines of their own, and nothing else, for it is small so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, dict):
        lines = [f"{json.dumps(name)}: {_compact(one)}" for name, one in value.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    else:
        path.write_text("[\n" + ",\n".join(map(_compact, value)) + "\n]\n")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def tap(site: IpuSite) -> Path:
    """Have the agent write down what is said to it and by it; where."""
    file = site.cluster.folder / "said.jsonl"
    program, ipus._HURRIED = ipus._HURRIED, _TAPPED.replace("{file}", str(file))
    site.end_agent()
    site.silent_s = 1.0
    site.start_agent()
    site.silent_s, ipus._HURRIED = None, program
    return file


def clear(site: IpuSite) -> None:
    """Nothing is left of any job, and the agent runs."""
    if not site.agent_lives:
        site.start_agent()
    for job in site.cluster.squeue():
        site.cluster.run("scancel", job.id)
    until(lambda: not site.claims() and not site.cluster.squeue(), 60, what=site.log)


def record_agent(site: IpuSite) -> None:
    """The states of an agent's cluster."""
    cluster = site.cluster
    # Nothing to do; a node without the plugin was drained.
    until(lambda: "n3" in cluster.check("sinfo", "-h", "-t", "drain", "-o", "%N"), 120, what=site.log)
    site.end_agent()
    capture(site, "idle")
    begun = cluster.sbatch("srun sleep 3600", "--ipus=4", user="games")
    cluster.wait_job(begun, "RUNNING")
    capture(site, "started-without-an-agent")
    clear(site)

    # Two steps that share a job's GCDs, an array, one that may be asked to yield, and jobs that wait.
    held = cluster.sbatch(STEPS, "--ipus=2", "-n2", user="games")
    until(lambda: (cluster.work / f"seen.{held}").exists(), what=lambda: cluster.output(held))
    until(lambda: len((cluster.work / f"seen.{held}").read_text().splitlines()) == 2)
    lent = cluster.sbatch("sleep 3600", "--ipus=4", "--ipu-preemptible=B:USR1", "--requeue", user="games")
    array = cluster.sbatch("sleep 3600", "--ipus=4", "--array=1-3%1", user="games")
    cluster.wait_job(lent, "RUNNING")
    until(lambda: len([one for one in cluster.squeue() if one.state == "RUNNING"]) == 3)
    large = cluster.sbatch("sleep 3600", "--ipus=16", "--time=10", user="games")
    small = cluster.sbatch("sleep 3600", "--ipus=8", "--num-replicas=2", user="man")
    until(lambda: " -- " in site.comment(large), 60, what=site.log)
    until(lambda: " -- " in site.comment(small), 60, what=site.log)
    until(lambda: len(site.claims()) == 3, what=site.log)
    settled = lambda: all(one["state"] == "READY" for one in site.claims())  # noqa: E731
    until(settled, what=site.log)
    site.end_agent()
    capture(site, "busy")
    del array

    # While no agent was there: one ended, one was put back.
    cluster.check("scancel", str(held))
    cluster.wait_job(held, "CANCELLED")
    capture(site, "ended-without-an-agent", held)
    cluster.check("scontrol", "requeue", str(lent))
    cluster.wait_job(lent, "PENDING")
    capture(site, "requeued-without-an-agent", held)


def record_yield(site: IpuSite) -> None:
    """A job that was asked to yield, and the one it yields to."""
    cluster = site.cluster
    job = cluster.sbatch(DEAF, "--account=guest", "--ipus=16", "--ipu-preemptible=B:USR1", "--requeue", user="games")
    until(lambda: "ready" in cluster.output(job), what=site.log)
    cluster.sbatch("sleep 3600", "--account=lab", "--ipus=16", user="man")
    until(lambda: re.search(r" asked=.*", site.comment(job)), what=site.log)
    until(lambda: "warned" in cluster.output(job), what=site.log)
    site.end_agent()
    capture(site, "asked-to-yield")


def record_said(site: IpuSite) -> list[dict[str, Any]]:
    """What nodes, users and the agent say to each other while jobs run."""
    cluster, said = site.cluster, tap(site)
    until(site.is_open, what=site.log)
    cluster.kill_slurmd(1)  # its init starts it again, and it reports
    until(lambda: said.exists() and "moorings 1 hello" in said.read_text(), what=site.log)
    cluster.wait_nodes("n1")
    program = "echo $MOORINGS_DEVICES >> seen.$SLURM_JOB_ID; sleep 3600"
    job = cluster.sbatch(f"srun -n2 sh -c '{program}'", "--ipus=16", "-n2", user="games")
    until(lambda: (cluster.work / f"seen.{job}").exists(), what=lambda: cluster.output(job))
    waits = cluster.sbatch("true", "--ipus=16")
    until(lambda: cluster.job(waits)["Reason"] == "Licenses")
    until(lambda: " -- " in site.comment(waits), 60, what=site.log)
    environment = {**os.environ, **cluster.env, "PATH": f"{cluster.env['PATH']}:{os.environ['PATH']}"}
    subprocess.run([sys.executable, "-c", _ASKS, str(waits)], env=environment, cwd=cluster.work, check=True)
    cluster.check("scancel", str(waits), str(job))
    until(lambda: not site.claims() and site.is_open(), 60, what=site.log)
    site.controller.kill()
    late = cluster.sbatch("true", "--ipus=1")
    until(lambda: "status=retry" in said.read_text().replace("\\n", "\n"), 60, what=site.log)
    site.controller.start()
    cluster.wait_job(late, "COMPLETED")
    return exchanges(said)


def exchanges(file: Path) -> list[dict[str, Any]]:
    """Questions with their answers: one of each kind and of each answer's kind."""
    said = [json.loads(line) for line in file.read_text().splitlines()]
    nonce, line = re.compile(r"nonce=([0-9a-f]{16})"), re.compile(r"^(?:moorings.*|status=.*|[a-z_]+=)", re.MULTILINE)
    answers = {match[1]: one for one in said if one["by"] == "agent" and (match := nonce.search(one["payload"]))}
    kinds: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in said:
        match = nonce.search(one["payload"])
        if one["by"] == "node" and match is not None and match[1] in answers:
            answer = answers[match[1]]
            kind = tuple(line.findall(one["payload"] + answer["payload"]))
            kinds.setdefault(kind, {"question": one, "answer": answer})
    return list(kinds.values())


# -- runs on Slurm -----------------------------------------------------------------------------------------------------


class _Runs:
    """A folder for runs, and an engine for it."""

    def __init__(self, site: IpuSite) -> None:
        self.site = site
        self.folder = site.cluster.work / "runs"
        self.folder.mkdir()

    def open(self) -> SlurmEngine:
        settings = SlurmEngineSettings(self.folder)
        return SlurmEngine(settings, self.folder, SlurmCommands(self.site.cluster.env), WallClock())

    def capture(self, name: str, run: str, job: str | None) -> None:
        """Write down the folder of a run, and how Slurm lists its job."""
        cluster = self.site.cluster
        tree = {}
        for path in sorted((self.folder / run).rglob("*")):
            if path.is_file() and (path.suffix != ".sh" or name == "running"):  # scripts are the same for all
                kept = path.read_text(errors="surrogateescape")[-TREE_BYTES_MAX:]
                tree[str(path.relative_to(self.folder / run))] = {"text": kept, "at_ns": path.stat().st_mtime_ns}
        recording: dict[str, Any] = {
            "now": _now(),
            "run": run,
            "jobs": cluster.check(*build_jobs(jobs=[int(job)])) if job else "",
            "files": tree,
        }
        with tempfile.TemporaryDirectory() as folder:
            recording["did"] = read_run(recording, Path(folder))
        write(SLURM.with_name("slurm_runs") / f"{name}.json", recording)
        print(name, json.dumps(recording["did"])[:300], flush=True)


def _may_resume(order: RunSubmission) -> RunSubmission:
    return replace(order, job=replace(order.job, checkpoint=CheckpointContract(resumable=True, grace_s=600.0)))


async def record_runs(site: IpuSite) -> None:
    """The states of a run's folder."""
    runs, programs, cluster = _Runs(site), SuitePrograms(), site.cluster
    work = str(cluster.work)
    engine = runs.open()

    async def until_phase(order: RunSubmission, phase: RunPhase) -> None:
        for _ in range(600):
            (seen,) = await engine.observe([order.run])
            if seen.phase is phase:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{order.run} is not {phase}")

    try:
        order = make_order(programs.runs_until_stopped(), work, tasks=2, time_limit_s=3000.0)
        job = await engine.submit(order)
        await until_phase(order, RunPhase.RUNNING)
        runs.capture("running", order.run, job)
        await engine.cancel(order.run, "seen enough")
        runs.capture("cancelled", order.run, job)
        await wait_for_end(engine, order.run)
        runs.capture("cancelled-ended", order.run, job)

        order = make_order(programs.exits(3), work)
        job = await engine.submit(order)
        await asyncio.to_thread(cluster.wait_job, job, ("FAILED", "COMPLETED"))
        runs.capture("failed-not-noted", order.run, job)
        await wait_for_end(engine, order.run)
        runs.capture("failed", order.run, job)

        order = make_order(("/nonexistent/program",), work)
        job = await engine.submit(order)
        await wait_for_end(engine, order.run)
        runs.capture("cannot-start", order.run, job)

        holder = cluster.sbatch("sleep 3600", "--ipus=16")
        cluster.wait_job(holder, "RUNNING")
        order = make_order(programs.runs_until_stopped(), work)
        job = await engine.submit(order)
        runs.capture("waiting", order.run, job)
        (runs.folder / order.run / "0" / "job").unlink()
        runs.capture("waiting-id-lost", order.run, job)
        await engine.submit(order)
        await engine.cancel(order.run, "seen enough")
        cluster.check("scancel", str(holder))
        await wait_for_end(engine, order.run)

        script = 'echo "start $SLURM_RESTART_COUNT"; [ -n "$SLURM_RESTART_COUNT" ] || exec sleep 3600'
        order = _may_resume(make_order(programs.shell(script), work))
        job = await engine.submit(order)
        await until_phase(order, RunPhase.RUNNING)
        cluster.check("scontrol", "requeue", job)
        cluster.wait_job(job, "PENDING")
        runs.capture("requeued", order.run, job)
        cluster.check("scancel", job)
        await wait_for_end(engine, order.run)
        runs.capture("requeued-cancelled-in-slurm", order.run, job)
    finally:
        await engine.close()


def record_install(release: str) -> None:
    """What ``moor slurm install`` writes on a machine, but for the plugin."""
    with SlurmCluster(new_folder(), 1, release=release) as cluster:
        library = cluster.folder / "lib" / "slurm"
        words = ["--library", str(library), "--ipus", "16", "--agent", "127.0.0.1:8091"]
        told(cluster, "slurm", "install", "--apply", *words)
        files = [path for folder in (cluster.etc, library) for path in sorted(folder.rglob("*")) if path.is_file()]
        # The plugin is not kept, and the script as it is in ``released_code``.
        texts = {str(path): path.read_text() for path in files if path.suffix != ".so" and path.name not in _THEIRS}
        write(SLURM.with_name("slurm_installed.json"), {"library": str(library), "files": texts})


def record_all_said(release: str) -> None:
    """With files and without."""
    with ipu_site(release, nodes=1) as site:
        said = record_said(site)
    with ipu_site(release, nodes=1, IpuofDir="") as site:
        said += [one for one in record_said(site) if one["question"]["payload"].startswith("moorings 1 bind")]
    write(SLURM.with_name("slurm_said.json"), said)


def main() -> None:
    """Write all of them."""
    release = "22.05"
    with ipu_site(release, nodes=3, features="moorings", bare=(3,)) as site:
        record_agent(site)
    with ipu_site(release, nodes=1, accounting=True) as site:
        site.cluster.check("sacctmgr", "-i", "add", "account", "guest")
        site.cluster.check("sacctmgr", "-i", "add", "user", "games", "account=guest")
        (site.controller.data / "policy.toml").write_text('min_run = 0\nyield = "60s"\n')
        site.controller.stop()
        site.controller.start()
        shares = [{"pool": "pod16", "blocks": {"16": 1}}]
        assert site.controller.ask("PUT", "/v1/projects/lab", {"shares": shares})[0] in (200, 201)
        assert site.controller.ask("PUT", "/v1/projects/guest", {})[0] in (200, 201)
        record_yield(site)
    with ipu_site(release, nodes=2) as site:
        asyncio.run(record_runs(site))
    record_all_said(release)
    record_install(release)


if __name__ == "__main__":
    main()
