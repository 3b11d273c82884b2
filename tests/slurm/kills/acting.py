"""A story played on a real cluster, with what an init system and an admin do beside it; and what is seen at the end."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from moorings.drivers.simulated.partition import SimulatedPartition
from tests.lives import Life, made_by, orders, parse_diary
from tests.slurm.cluster import SlurmCluster, new_folder, parse_record
from tests.slurm.ipus import N_IPUS, IpuSite, ipu_site
from tests.slurm.kills.judge import Seen
from tests.slurm.kills.story import BEAT_S, TASKS, Job, Kill, Kind, Story, Victim
from tests.waiting import patient, until

NODES = 4
PROVISION_S, REMOVE_S = 0.1, 0.1  # of the pool in ipus.py
SETTLE_S = 150.0  # sixteen IPUs take a while for a queue that grew while none were to be had
NUDGE_S = 3.0
RUNS_S = 30  # longer than any job's programs, and than what slurmctld waits for one to begin
# The records of all jobs are kept to the end. Two minutes: of 26.05, an srun may hang while slurmctld is away.
CONF = "MinJobAge=86400\nBatchStartTimeout=5\nSlurmdTimeout=20"
LIMIT = "--time=2"
LIVE = f"""#!/bin/bash
tell() {{
    printf '%s %s %s %s %s %s %s\\n' "$SLURM_JOB_ID" "${{SLURM_RESTART_COUNT:-0}}" \\
        "${{SLURM_STEP_ID:-batch}}.$SLURM_PROCID" "$1" "$EPOCHREALTIME" \\
        "${{MOORINGS_PARTITION_ID:--}}" "${{MOORINGS_DEVICES:--}}" >> "$DIARY"
}}
[ -z "$STUBBORN" ] || trap '' TERM
tell begin
for ((beat = 0; beat < $1; beat++)); do sleep {BEAT_S}; tell alive; done
tell end
"""
_SCRIPTS = {
    Kind.BATCH: "exec ./live.sh {beats}",
    Kind.ARRAY: "exec ./live.sh {beats}",
    Kind.STEPS: "srun ./live.sh {beats} && srun -n1 --exact ./live.sh {beats}",
    Kind.TWO_AT_ONCE: "srun -n1 --exact ./live.sh {beats} & srun -n1 --exact ./live.sh {beats} & wait -n && wait -n",
}


class Stage:
    """A cluster on which a story is played; without a site its jobs are plain ones, with Slurm's own licenses."""

    def __init__(self, cluster: SlurmCluster, site: IpuSite | None = None) -> None:
        self.cluster = cluster
        self.site = site
        self._cancelled: set[str] = set()
        self._submitted: dict[str, threading.Event] = {}
        self._drained: set[str] = set()
        self._orders: dict[tuple[int, float], SimulatedPartition] = {}
        self._freed = 0
        live = cluster.work / "live.sh"
        live.write_text(LIVE)
        live.chmod(0o755)
        self._diaries = cluster.work / "diaries"
        self._diaries.mkdir()
        self._diaries.chmod(0o1777)

    def play(self, story: Story) -> Seen:
        """All of it, until nothing happens any more."""
        self._submitted = {job.name: threading.Event() for job in story.jobs}
        begun = time.monotonic()

        def at(moment_s: float) -> None:
            time.sleep(max(0.0, begun + moment_s - time.monotonic()))

        def submit() -> None:
            for job in story.jobs:
                at(job.at_s)
                self._submit(job)

        def kill(*victims: Victim) -> None:
            for one in story.kills:
                if one.victim in victims:
                    at(one.at_s)
                    self._kill(one)

        tellers: list[Callable[[], None]] = [submit, lambda: self._cancel(story)]
        tellers += [lambda: kill(Victim.SLURMCTLD), lambda: kill(Victim.SLURMD, Victim.NODE)]
        if self.site is not None:
            tellers += [lambda: kill(Victim.AGENT), lambda: kill(Victim.CONTROLLER)]
        with ThreadPoolExecutor(len(tellers)) as threads:
            for done in [threads.submit(teller) for teller in tellers]:
                done.result()
        left = self._settle()
        return self._look(left)

    # -- what happens ------------------------------------------------------------------------------------------------

    def _submit(self, job: Job) -> None:
        """As a user does who tries again until it is taken."""
        diary = f"diaries/{job.name}" + ("_$SLURM_ARRAY_TASK_ID" if job.kind is Kind.ARRAY else "")
        exports = f"export DIARY={diary} STUBBORN={'yes' if job.stubborn else ''}"
        script = f"#!/bin/bash\n{exports}\n{_SCRIPTS[job.kind].format(beats=job.beats)}\n"
        flags = [f"--job-name={job.name}", LIMIT, "--requeue" if job.requeue else "--no-requeue"]
        flags.append(f"--ipus={job.size}" if self.site is not None else f"--licenses=ipu:{job.size}")
        flags += ["-n2"] if job.kind in (Kind.STEPS, Kind.TWO_AT_ONCE) else []
        flags += [f"--array=1-{TASKS}"] if job.kind is Kind.ARRAY else []
        self._until_done("sbatch", *flags, script=script, user=job.user)
        self._submitted[job.name].set()

    def _cancel(self, story: Story) -> None:
        """By name: an id may be another job's by now."""
        doomed = [job for job in story.jobs if job.cancel_after_s is not None]
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(self._cancel_one, job) for job in doomed]:
                done.result()

    def _cancel_one(self, job: Job) -> None:
        assert job.cancel_after_s is not None
        self._submitted[job.name].wait()
        time.sleep(job.cancel_after_s)
        self._until_done("scancel", f"--name={job.name}", user=job.user)
        self._cancelled.add(job.name)

    def _until_done(self, *argv: str, script: str = "", user: str) -> None:
        until(lambda: self.cluster.run(*argv, input=script, user=user).returncode == 0, 120, what=str(argv))

    def _kill(self, kill: Kill) -> None:
        match kill.victim:
            case Victim.AGENT:
                assert self.site is not None
                self.site.end_agent(signal.SIGKILL)
                time.sleep(kill.away_s)
                until(self._start_agent, what=self.site.log)
            case Victim.CONTROLLER:
                assert self.site is not None
                self.site.controller.kill()
                self._orders |= orders(self.site.controller.data)  # the next one compacts the journal
                time.sleep(kill.away_s)
                self.site.controller.start()
            case Victim.SLURMCTLD:
                self.cluster.kill_controller()
                time.sleep(kill.away_s)
                self.cluster.start_controller()
            case Victim.SLURMD:
                self.cluster.kill_slurmd(kill.node)
            case Victim.NODE:
                self.cluster.kill_node(kill.node)
                time.sleep(kill.away_s)
                self.cluster.launch_node(kill.node)

    def _start_agent(self) -> bool:
        """As systemd does: one that ends at its start is started again."""
        assert self.site is not None
        try:
            self.site.start_agent()
        except AssertionError:
            return False
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    def _settle(self) -> list[str]:
        """Wait until nothing is left, with an admin's help; what is left all the same."""
        gives_up = time.monotonic() + patient(SETTLE_S)
        while (left := self._left()) and time.monotonic() < gives_up:
            self._help()
            time.sleep(NUDGE_S)
        return left

    def _left(self) -> list[str]:
        if self.site is not None:
            return self.site.left()
        return [
            *(f"job {job.id} is {job.state} {job.reason}" for job in self.cluster.squeue()),
            *(f"{name}: {one.used} in use" for name, one in self.cluster.licenses().items() if one.used),
        ]

    def _help(self) -> None:
        """What Slurm leaves to its admin: jobs that it holds or believes to run, nodes that it has drained."""
        for job in self.cluster.squeue():
            if job.state == "PENDING" and "held" in job.reason.lower():
                self._freed += 1
                self.cluster.run("scontrol", "release", job.id)
            elif job.state == "PENDING" and job.reason == "BeginTime":  # two minutes, after a requeue
                self.cluster.run("scontrol", "update", f"jobid={job.id}", "starttime=now+2")
            elif job.state == "RUNNING" and self._seconds(job.id) > RUNS_S:
                self.cluster.kill_slurmd(int(job.nodes.removeprefix("n")))  # it tells what it runs when it starts
        for node in map(parse_record, self.cluster.check("scontrol", "-o", "show", "node").splitlines()):
            if node and ("DRAIN" in node["State"] or "DOWN" in node["State"]):
                self._drained.add(f"{node['NodeName']} is {node['State']}: {node.get('Reason', '')}")
                self.cluster.run("scontrol", "update", f"nodename={node['NodeName']}", "state=resume")

    def _seconds(self, job: str) -> int:
        """For how long it has run."""
        shown = self.cluster.run("squeue", "-h", "-j", job, "-o", "%M").stdout.strip() or "0:00"
        minutes, seconds = shown.split(":")[-2:]
        return int(minutes) * 60 + int(seconds)

    def _look(self, left: list[str]) -> Seen:
        lines = self.cluster.check("scontrol", "-o", "show", "job").splitlines()
        jobs = [record for line in lines if (record := parse_record(line))]
        lives: list[Life] = []
        for diary in sorted(self._diaries.iterdir()):
            lives += parse_diary(diary.name, diary.read_text())
        names = {job["JobId"]: job.get("StdOut", "") for job in jobs}
        outputs = {id: path.read_text(errors="replace") for id, file in names.items() if (path := Path(file)).is_file()}
        made, held, stopped = None, [], []
        if self.site is not None:
            made = made_by(self._orders | orders(self.site.controller.data), PROVISION_S, REMOVE_S)
            stopped = re.findall(r"msg=(?:job\.cancelled|job\.yielded|job\.unlocked) .*", self.site.log())
            claims = [claim for claim in self.site.claims(every=True) if "readyAt" in claim]
            held = [(claim["owner"], claim["readyAt"], claim.get("endedAt", "")) for claim in claims]
        return Seen(
            jobs, outputs, lives, made, left, self._cancelled, held, stopped, sorted(self._drained), self._freed
        )


@contextmanager
def with_ipus(release: str, cgroups: str = "") -> Iterator[Stage]:
    """A stage whose jobs have IPUs."""
    with ipu_site(release, nodes=NODES, extra_conf=CONF, cgroups=cgroups) as site:
        yield Stage(site.cluster, site)


@contextmanager
def plain(release: str, cgroups: str = "") -> Iterator[Stage]:
    """A stage without anything of ours."""
    licenses = f"ipu:{N_IPUS}"
    with SlurmCluster(
        new_folder(), NODES, licenses=licenses, release=release, extra_conf=CONF, cgroups=cgroups
    ) as cluster:
        yield Stage(cluster)
