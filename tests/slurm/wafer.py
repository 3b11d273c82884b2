"""Programs for a wafer-scale appliance that are started in Slurm jobs, as the vendor's page on Slurm has it.

The appliance is a controller on this machine, and executes jobs as whoever runs the tests: root, who is whom Slurm's
jobs are of, too, for Python and the checkout may be root's alone.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.debian import ROOT
from tests.e2e.appliance import Site
from tests.slurm.admin import MOOR
from tests.slurm.cluster import SlurmCluster
from tests.waiting import patient, until

SEEDS_FORMAT = "JobID,JobName%34,Account,State,CPUTime,AllocCPUS,AllocNodes,ExitCode"
CPUS = 40  # of each node, and of each job, as on that page
BUSY_S = 90.0  # for Python and JAX to start several times on a machine that does other things, too

HEAD = """#!/bin/bash

#SBATCH --job-name=gpt2-small-test
#SBATCH --nodes=1
#SBATCH --tasks=1
#SBATCH --cpus-per-task 40
#SBATCH --output {folder}/run-%j.out
"""
START = """
source $HOME/venv_cerebras_pt/bin/activate
cd {folder}
"""
COMMAND = """python \\
  run.py CSX \\
    --params configs/params_gpt2_small.yaml \\
    --num_csx 1 \\
    --model_dir model_dir/ \\
    --num_wgt_servers 2 \\
    --mode train
"""
SMALL = """
model: {max_position_embeddings: 16, hidden_size: 8, num_hidden_layers: 1, num_heads: 1}
train_input: {batch_size: 4, max_sequence_length: 16}
eval_input: {batch_size: 4, max_sequence_length: 16, split: eval}
optimizer: {learning_rate: 0.01}
runconfig: {max_steps: 10, log_steps: 1}
"""
GATE = """

class Text(Text):
    def batch(self, step, **where):
        import time
        while step > 5 and not os.path.exists("go"):
            time.sleep(0.05)
        return super().batch(step, **where)
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of sacct, as the page's command gives it."""

    id: str
    name: str
    state: str
    cpu_time: str
    cpus: str
    nodes: str
    exit_code: str


class Appliance:
    """A cluster and an appliance, and folders with programs.

    Args:
        slurm: with accounting.
        site: the appliance.
    """

    def __init__(self, slurm: SlurmCluster, site: Site) -> None:
        self.slurm = slurm
        self.site = site
        self.home = site.controller.folder / "home"
        activate = self.home / "venv_cerebras_pt" / "bin" / "activate"
        activate.parent.mkdir(parents=True)
        activate.write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
        self.environment = {
            "HOME": str(self.home),
            "SHELL": "/bin/bash",
            "XDG_CACHE_HOME": str(site.cache),
            "MOORINGS_CREDENTIALS": str(site.controller.credentials),
        }

    def make_gpt2(self, folder: Path, *, gate: bool) -> Path:
        """The example, made small; with a gate, training stops after five steps until there is a file ``go``."""
        shutil.copytree(ROOT / "examples" / "gpt2", folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "configs" / "params_gpt2_small.yaml").write_text(SMALL)
        if gate:
            data = folder / "data.py"
            data.write_text(data.read_text() + GATE)
        return folder

    def make_endless(self, folder: Path, lease_s: float = 60.0) -> Path:
        """A program that trains for an hour, 20 steps a second."""
        program = self.site.program(folder, pause_s=0.05, lease_s=lease_s)
        program.change("max_steps: 30", "max_steps: 72000")
        return folder

    def sbatch(self, folder: Path, command: str, *flags: str) -> Job:
        """Submit the page's script with another command."""
        text = (HEAD + START + command).format(folder=folder)
        done = self.slurm.run("sbatch", "--parsable", *flags, input=text, env=self.environment)
        assert done.returncode == 0, done.stderr
        return Job(self, int(done.stdout), folder)

    def salloc(self, folder: Path, command: str, *flags: str) -> tuple[Job, subprocess.Popen[str]]:
        """A shell of salloc that gets these lines on its input, and salloc itself."""
        started = self.slurm.spawn("salloc", *flags, env=self.environment)
        assert started.stdin is not None
        started.stdin.write(
            f"exec > {folder}/out 2>&1\necho $SLURM_JOB_ID > job\n" + START.format(folder=folder) + command
        )
        started.stdin.close()
        told = self.slurm.work / "job"
        until(lambda: told.exists() and told.read_text().endswith("\n"), what=lambda: str(self.slurm.squeue()))
        ident = int(told.read_text())
        told.unlink()
        return Job(self, ident, folder), started

    def allocate(self, folder: Path) -> Job:
        """A job without a shell; who has its number may make steps."""
        words = ("--no-shell", "--job-name=no-shell", "--cpus-per-task=40", "--tasks=1")
        done = self.slurm.run("salloc", *words, env=self.environment)
        assert done.returncode == 0, done.stderr
        return Job(self, int(done.stderr.partition("Granted job allocation ")[2].split()[0]), folder)

    @contextmanager
    def held(self, systems: int) -> Iterator[None]:
        """Meanwhile so many systems are somebody else's."""
        job = {
            "name": "other",
            "command": ["sleep", "3600"],
            "workdir": "/",
            "environment": {"PATH": os.environ["PATH"]},
            "accelerators": {"kind": "csx", "size": systems},
            "tasks": systems,
            "appliance": {"kind": "execute", "workflow": f"wflow-{'a' * 22}"},
        }
        status, made = self.site.controller.ask("POST", "/v1/runs", {"job": job})
        assert status == 201, made
        try:
            until(lambda: self.site.job(made["id"])["state"] == "RUNNING", what=lambda: str(self.site.job(made["id"])))
            yield
        finally:
            self.site.controller.ask("POST", f"/v1/runs/{made['id']}/cancel?wait=30s")

    def moor(self, *words: str) -> str:
        """What a command of the appliance's admin prints."""
        env = {**os.environ, "MOORINGS_CREDENTIALS": str(self.site.controller.credentials), "COLUMNS": "300"}
        done = subprocess.run([MOOR, *words], env=env, capture_output=True, text=True, check=False, timeout=patient(60))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def assert_nothing_left(self) -> None:
        """No job of the appliance has not ended, and nothing is held."""
        assert self.site.jobs(ended=False) == []
        until(lambda: self.site.claims() == [], what=lambda: str(self.site.claims()))


class Job:
    """A Slurm job in which a program runs."""

    def __init__(self, appliance: Appliance, ident: int, folder: Path) -> None:
        self.id = ident
        self.folder = folder
        self._appliance = appliance
        self._slurm = appliance.slurm
        self._program: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> str:
        files = [self.folder / f"run-{self.id}.out", self.folder / "out"]
        return next((file.read_text(errors="replace") for file in files if file.exists()), "")

    @property
    def rows(self) -> list[Row]:
        """What is in ``table``."""
        text = self._slurm.check("sacct", "-n", "-P", "-j", str(self.id), f"--format={SEEDS_FORMAT}")
        found = [line.split("|") for line in text.splitlines()]
        return [Row(id, name, state.split(" ")[0], *more) for id, name, _account, state, *more in found]

    @property
    def table(self) -> str:
        """What the page's sacct prints of it."""
        return self._slurm.check("sacct", "-j", str(self.id), f"--format={SEEDS_FORMAT}")

    @property
    def steps(self) -> dict[str, str]:
        """Steps that run now; the id of each by its name."""
        lines = self._slurm.check("squeue", "-h", "-s", "-j", str(self.id), "-o", "%i|%j").splitlines()
        found = [line.split("|") for line in lines]
        return {name: step for step, name in found if name not in ("batch", "interactive", "extern")}

    def made(self, kind: str) -> list[dict[str, Any]]:
        """The appliance's jobs of a kind (``compile``, ``execute``) that came of it, oldest first."""
        jobs = [job for job in self._appliance.site.jobs() if job["labels"].get("SLURM_JOB_ID") == str(self.id)]
        found = [self._appliance.site.job(job["id"]) for job in jobs]
        return sorted(
            (job for job in found if job["job"]["appliance"]["kind"] == kind), key=lambda job: str(job["createdAt"])
        )

    def until_said(self, text: str) -> None:
        """Wait for something in its output."""

        def said() -> bool:
            over = self.is_over  # asked first: what it said last is there then
            there = text in self.output
            assert there or not over, f"ended without {text!r}:\n{self.output}"
            return there

        until(said, BUSY_S, what=lambda: self.output)

    def until_it_trains(self) -> str:
        """The id of the step of the training, as soon as that has made some steps."""
        self.until_said("Step=5,")
        (train,) = [name for name in self.steps if re.search(r"-csx\d+$", name)]
        return self.steps[train]

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, or the program that makes its steps from outside."""
        if self._program is not None and self._program.poll() is not None:
            return True
        return self._slurm.job(self.id)["JobState"] not in ("PENDING", "RUNNING")

    def wait(self, *states: str) -> dict[str, str]:
        """Its fields when it has ended."""
        fields = self._slurm.wait_job(
            self.id, ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"), timeout=BUSY_S
        )
        assert fields["JobState"] in states, f"{fields}\n{self.output}"
        return fields

    def ended_rows(self) -> list[Row]:
        """Its rows when accounting has the end of all."""

        def found() -> list[Row] | None:
            rows = self.rows
            return rows if rows and all(row.state not in ("PENDING", "RUNNING") for row in rows) else None

        return until(found, BUSY_S, what=lambda: f"{self.table}\n{self.output}")

    def span(self, step: str) -> tuple[datetime, datetime]:
        """When a step began and ended, in whole seconds."""
        (row,) = [row for row in self._slurm.sacct(self.id) if row["JobID"] == step]
        begun, ended = (datetime.fromisoformat(row[name] + "+00:00") for name in ("Start", "End"))
        return begun, ended

    @contextmanager
    def program(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A shell on this machine that is told of the job by a variable, as on a login node."""
        env = {**self._slurm.env, **self._appliance.environment, "SLURM_JOB_ID": str(self.id)}
        with (self.folder / "out").open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", START.format(folder=self.folder) + command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
            )
        self._program = process
        try:
            yield process
        finally:
            if process.poll() is None:
                kill([*descendants(process.pid), process.pid])
            process.wait()

    @property
    def ran_s(self) -> float:
        """How long all of it took; seconds."""
        begun, ended = self.span(str(self.id))
        return (ended - begun).total_seconds()

    # -- killing ----------------------------------------------------------------------------------------------------

    def kill_client(self) -> None:
        """SIGKILL ``run.py``."""
        killed = [pid for pid in self._pids() if b"run.py" in words(pid)]
        assert killed
        kill(killed)

    def kill_script(self) -> None:
        """SIGKILL the script and everything it has started."""
        (parent,) = [
            pid for pid in pids() if b" ".join(words(pid)).startswith(f"slurmstepd: [{self.id}.batch]".encode())
        ]
        below = descendants(parent)
        assert below
        kill(below)

    @property
    def processes(self) -> list[str]:
        """What is there of it on this machine."""
        return [b" ".join(words(pid)).decode() for pid in self._pids()]

    def _pids(self) -> list[int]:
        return [pid for pid in pids() if f"SLURM_JOB_ID={self.id}".encode() in variables(pid)]


def start_slurmdbd(slurm: SlurmCluster) -> None:
    """Start it again, after ``slurm._kill("slurmdbd")``."""
    env = {**slurm.env, "MYSQL_UNIX_PORT": f"{slurm.folder}/mariadb/socket"}
    slurm._launch("slurmdbd", [*slurm._enter, "slurmdbd", "-D"], env)
    until(lambda: slurm.run("sacct").returncode == 0, what=lambda: slurm.log("slurmdbd"))


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def words(pid: int) -> list[bytes]:
    return _read(pid, "cmdline")


def variables(pid: int) -> list[bytes]:
    return _read(pid, "environ")


def _read(pid: int, name: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return []


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and on."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def kill(these: Iterable[int]) -> None:
    for pid in these:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
