"""A Slurm cluster with IPUs: cluster, controller on a simulated pod, plugin, submit script and agent, all real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.processes import ControllerProcess
from tests.processes import killed_on_failure, launch
from tests.released.code import environment_of
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.waiting import patient, until

SOURCES = Path(__file__).resolve().parents[2] / "deploy" / "slurm"
POOLS = """
[[pool]]
name = "pod16"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 16, max_block = 16 }
[pool.simulated]
provision_s = 0.1
provision_per_device_s = 0.0
remove_s = 0.1
remove_per_device_s = 0.0
"""
SIZES = (1, 2, 4, 8, 16)
N_IPUS = 16
WAIT_S = 60
LICENSES = ",".join([f"ipu:{N_IPUS}", *(f"ipu_{size}:{N_IPUS}" for size in SIZES), "moorings_gate:1"])
_HURRIED = """
from moorings.app.slurm_agent import main
from moorings.slurm.host import node_monitor, unbound_tasks
unbound_tasks.SILENT_S = node_monitor.AGAIN_S = {seconds}
raise SystemExit(main())
"""


class IpuSite:
    """A cluster whose jobs may have IPUs; its parts can be stopped, killed and started one by one."""

    def __init__(self, cluster: SlurmCluster, controller: ControllerProcess, conf: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.controller = controller
        self.name = "moorings"  # of the cluster
        self._conf = dict(conf)
        self._agent: subprocess.Popen[bytes] | None = None
        self.port = agent_port(cluster)
        self.ipuof = cluster.folder / "ipuof"
        self.silent_s: float | None = None  # for so long a node may not ask; None: as the agent has it
        self.agent_code: Path | None = None  # of another release; None: today's

    # -- the agent ---------------------------------------------------------------------------------------------------

    def write_conf(self) -> None:
        """vipu.conf beside slurm.conf, and the plugin's line."""
        key = {"subject": "slurmagent", "role": "agent", "ownerPrefix": f"slurm/{self.name}"}
        secret = self.controller.ask("POST", "/v1/keys", key)[1]["secret"]
        values = {
            "ApiHost": "127.0.0.1",
            "ApiPort": str(self.controller.port),
            "ApiUser": "slurmagent",
            "ApiAccessKey": secret,
            "AgentPort": str(self.port),
            "IpuofDir": str(self.ipuof),
            "MaxIpusPerJob": str(N_IPUS),
            **self._conf,
        }
        self.cluster.write_conf("vipu.conf", "".join(f"{k}={v}\n" for k, v in values.items() if v), 0o600)

    def start_agent(self, user: str | None = None, *, log_level: str = "debug") -> None:
        """Start it, as root or as a user, and wait until it listens."""
        begun = self.log().count("agent.started")
        self._agent = self.launch_agent(user, log_level=log_level)
        with killed_on_failure(self._agent):
            until(lambda: self.log().count("agent.started") > begun or self._over(), what=self.log)

    def launch_agent(self, user: str | None = None, *, log_level: str = "debug") -> subprocess.Popen[bytes]:
        """An agent that has just been started."""
        switch = (
            ["setpriv", "--pdeathsig=KILL", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"] if user else []
        )
        program = ["-m", "moorings.app.slurm_agent"]
        if self.silent_s is not None:
            program = ["-c", _HURRIED.format(seconds=self.silent_s)]
        words = [*switch, sys.executable, *program]
        words += ["--listen", "127.0.0.1", "--log-level", log_level]
        path = f"{self.cluster.env['PATH']}:{os.environ['PATH']}"
        with (self.cluster.folder / "log" / "agent.log").open("ab") as log:
            return launch(
                words,
                stdout=log,
                stderr=log,
                env={**environment_of(self.agent_code), **self.cluster.env, "PATH": path},
                cwd=self.cluster.work,  # a release in a chroot has this folder, too
            )

    def _over(self) -> bool:
        assert self._agent is not None
        assert self._agent.poll() is None, self.log()
        return False

    def end_agent(self, how: signal.Signals = signal.SIGKILL) -> int:
        """End it; the exit code."""
        assert self._agent is not None
        self._agent.send_signal(how)
        return self._agent.wait(patient(20))

    def replace_agent(self, other: subprocess.Popen[bytes]) -> None:
        """Kill the agent; another one is the site's from now on."""
        self.end_agent()
        self._agent = other

    @property
    def agent_lives(self) -> bool:
        return self._agent is not None and self._agent.poll() is None

    def log(self) -> str:
        """All that the agent wrote."""
        path = self.cluster.folder / "log" / "agent.log"
        return path.read_text() if path.exists() else ""

    # -- what is to be seen ------------------------------------------------------------------------------------------

    def claims(self, *, every: bool = False) -> list[dict[str, Any]]:
        """The cluster's claims, by arrival."""
        found: list[dict[str, Any]] = []
        more = ""
        while True:
            path = f"/v1/claims?limit=1000&ownerPrefix=slurm/{self.name}/" + ("&all=1" if every else "") + more
            answer = self.controller.ask("GET", path)[1]
            found += answer["items"]
            if "continue" not in answer:
                return found
            more = f"&continue={answer['continue']}"

    def comment(self, job: int) -> str:
        """A job's AdminComment, also of one that has just ended."""
        return self.cluster.check("squeue", "-h", "--states=all", "-j", str(job), "-O", "admin_comment:400").strip()

    def partitions(self) -> list[dict[str, Any]]:
        """All partitions."""
        items: list[dict[str, Any]] = self.controller.ask("GET", "/v1/partitions")[1]["items"]
        return items

    def room(self) -> dict[int, int]:
        """How many IPUs jobs of each size could take, as Slurm sees it."""
        licenses = self.cluster.licenses()
        twins = {size: licenses[f"ipu_{size}"] for size in SIZES}
        return {size: one.total - one.used - one.reserved for size, one in twins.items()}  # its Free is another

    def is_open(self) -> bool:
        """Whether all may be started; before the agent has made its reservation that is no word of the agent's."""
        return self.cluster.licenses()["moorings_gate"].reserved == 1 and self.room()[N_IPUS] == N_IPUS

    def left(self) -> list[str]:
        """What is left of all jobs: nothing, once they are over."""
        licenses = self.cluster.licenses()
        return [
            *(f"job {job.id} is {job.state}" for job in self.cluster.squeue()),
            *(f"claim {claim['name']} is {claim['state']}" for claim in self.claims()),
            *(f"partition {one['name']} is {one['state']}" for one in self.partitions()),
            *(f"{name}: {one.used} in use" for name, one in licenses.items() if one.used),
            *(
                f"{name}: {one.reserved} kept"
                for name, one in licenses.items()
                if name.startswith("ipu") and one.reserved
            ),
            *(f"{path} is there" for path in self.ipuof.glob("*/*")),
        ]

    def clear(self) -> None:
        """Cancel all jobs, and wait until nothing is left of them."""
        for job in self.cluster.squeue():
            self.cluster.run("scancel", job.id)
        self.settle()

    def settle(self, timeout: float = 60) -> None:
        """Wait until nothing is left of any job."""
        until(lambda: not self.left(), timeout, what=lambda: "\n".join([*self.left(), self.log()[-4000:]]))


@contextmanager
def ipu_site(
    release: str,
    *,
    nodes: int = 4,
    accounting: bool = False,
    extra_conf: str = "",
    features: str = "",
    pools: str = POOLS,
    wait_s: int = WAIT_S,
    cgroups: str = "",
    bare: Collection[int] = (),
    controller_code: Path | None = None,
    agent_code: Path | None = None,
    plugin_code: Path | None = None,
    **conf: str,
) -> Iterator[IpuSite]:
    """A site that runs; ``conf`` are further keys of vipu.conf, ``wait_s`` is how long the plugin waits.

    The nodes of ``bare`` are without plugins. What has a ``code`` is of that release (``tests.released.code``).
    """
    cluster = SlurmCluster(
        new_folder(),
        nodes,
        accounting=accounting,
        licenses=LICENSES,
        features=features,
        release=release,
        cgroups=cgroups,
        bare=bare,
        extra_conf=f"JobSubmitPlugins=lua\nRequeueExit=122\n{extra_conf}",
    )
    with site_of(cluster, conf, pools) as site:
        site.controller.code, site.agent_code = controller_code, agent_code
        install(cluster, wait_s, code=plugin_code)
        site.controller.start()
        site.write_conf()
        cluster.start()
        site.start_agent()
        until(site.is_open, what=site.log)
        yield site


@contextmanager
def site_of(cluster: SlurmCluster, conf: Mapping[str, str], pools: str = POOLS) -> Iterator[IpuSite]:
    """That cluster and a controller, neither of them started; all of it is removed at the end."""
    controller = ControllerProcess(cluster.folder / "controller", pools)
    controller.folder.mkdir()
    site = IpuSite(cluster, controller, conf)
    try:
        yield site
    finally:
        if site.agent_lives:
            site.end_agent()
        if controller.process is not None and controller.process.poll() is None:
            controller.kill()
        cluster.remove()


def agent_port(cluster: SlurmCluster) -> int:
    """A port of the cluster's own stretch that none of its daemons has."""
    return cluster.ports[0] + 240


def install(cluster: SlurmCluster, wait_s: int = WAIT_S, code: Path | None = None) -> None:
    """Plugin and submit script, by hand; ``moor slurm install`` has tests of its own.

    They are today's, or of the release in ``code``.
    """
    sources = code / "deploy" / "slurm" if code is not None else SOURCES
    plugin = cluster.folder / ("moorings_spank.so" if code is None else "moorings_spank_released.so")
    done = subprocess.run(
        [
            *("gcc", "-std=c99", "-shared", "-fPIC", "-O2", f"-I{cluster.programs.headers}"),
            *("-o", str(plugin), str(sources / "moorings_spank.c"), "-ldl"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    options = f"agent=127.0.0.1:{agent_port(cluster)} max={N_IPUS} wait={wait_s} munge_socket={cluster.munge_socket}"
    folder = f"run_dir={cluster.folder}/run/moorings"  # each cluster of a machine needs its own
    cluster.write_conf("plugstack.conf", f"optional {plugin} {options} {folder}\n")
    for name in ("moorings_submit.lua", "job_submit.lua"):
        shutil.copy(sources / name, cluster.etc / name)
    sizes = ", ".join(map(str, SIZES))
    cluster.write_conf("moorings_limits.lua", f"return {{ max = {N_IPUS}, sizes = {{ {sizes} }} }}\n")
