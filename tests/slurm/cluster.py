"""A real Slurm cluster on this machine: munged, slurmctld, nodes, and with accounting MariaDB and slurmdbd.

Everything is a child that dies with the process that runs the tests; a guard ends what the kernel does not, such as the
command of a killed salloc, and removes the folder. A node lives in a PID namespace of its own, so
``kill_node`` is what a power cut is: slurmd, its steps and the jobs' processes are gone at once. Systemd is not needed,
nor are cgroups, which a node may have; root is, to run jobs as several users.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from tests import debian
from tests.processes import descendants
from tests.slurm import database, programs
from tests.slurm.cgroups import CONF as CGROUP_CONF
from tests.slurm.cgroups import cgroup_conf, enter_corner
from tests.slurm.conf import build_slurm_conf, build_slurmdbd_conf
from tests.waiting import patient, until

USERS = ("games", "man", "backup")  # every Debian has them, with the same numbers
ACCOUNT = "lab"
START_S = 60.0

_PORTS = range(20000, 30000, 250)  # below those the kernel gives to clients: a daemon finds its port free again
# Until its input ends, as whoever holds the other end removes the cluster or is dead. What belongs to the cluster is
# told by its variables, down to the last process that nobody waits for.
_GUARD = """
cat > /dev/null
while found=$(grep -slzxF "SLURM_CONF=$1/etc/slurm.conf" /proc/[0-9]*/environ); [ -n "$found" ]; do
    for file in $found; do
        pid=${file#/proc/}
        kill -KILL "${pid%/environ}" 2> /dev/null
    done
done
find /sys/fs/cgroup -depth -type d -path "*/${1##*/}*" -exec rmdir {} + 2> /dev/null
rm -rf "$1" 2> /dev/null || { sleep 1; rm -rf "$1"; }  # a daemon that was dying wrote a last line
"""
# Of a node: reaps the steps that slurmd lets go, and starts a slurmd again that was killed. Its end is the node's.
_INIT = 'while "$@" & wait $!; [ $? = 137 ]; do sleep 1; done; wait'
_INIT_OF_FORKED = '"$@"; while :; do sleep 60; done'
_FIELD = re.compile(r"(?:^| )([A-Za-z][A-Za-z0-9_/:]*)=")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class License:
    """What slurmctld says of a license."""

    total: int
    used: int
    free: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Queued:
    """A job in the queue; each task of an array for itself."""

    id: str
    user: str
    state: str
    reason: str
    nodes: str


class SlurmCluster:
    """A cluster in a folder of its own below /tmp, with nodes n1, n2 and on; ``start`` it, or enter it as a context.

    ``extra_conf`` are lines for slurm.conf, and replace ours under the same key. The nodes of ``configless`` have no
    files of their own: slurmctld hands them out, if slurm.conf says ``SlurmctldParameters=enable_configless``.
    ``cgroups`` is the version of those that nodes keep their jobs in ("": none). The nodes of ``bare`` are first
    started without a plugstack.conf. Files beside slurm.conf are written before the start with ``write_conf``; later a
    changed slurm.conf is told with ``configure``.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 4,
        *,
        accounting: bool = False,
        extra_conf: str = "",
        licenses: str = "",
        features: str = "",
        release: str = programs.RELEASE,
        configless: Collection[int] = (),
        cgroups: str = "",
        bare: Collection[int] = (),
    ) -> None:
        assert os.geteuid() == 0, "a Slurm cluster for the tests needs root: it runs jobs as several users"
        assert folder.is_relative_to("/tmp"), "ordinary users and chroots share /tmp with the tests"
        assert 0 < nodes < _PORTS.step - 2
        self.folder = folder
        self.nodes = nodes
        self.accounting = accounting
        self.release = release
        self._configless = frozenset(configless)
        self._cgroups = cgroups
        self._bare = frozenset(bare)
        self.etc = folder / "etc"
        self.work = folder / "work"  # where jobs start and write; everybody may
        self.munge_socket = folder / "run" / "munge.socket"
        folder.mkdir(parents=True, exist_ok=True)
        assert not any(folder.iterdir()), f"{folder} is not empty, and would be removed with the cluster"
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # it has to outlive a Ctrl-C
            cwd="/",
            env={"PATH": os.environ["PATH"]},
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.launched: dict[str, float] = {}  # nodes, and when, in epoch seconds
        self._spawned: list[subprocess.Popen[str]] = []
        # The kernel ends a child when the *thread* that started it ends, so this one stays.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="slurm")
        for part in ("etc", "run", "log", "state", "spool", "munge"):
            (folder / part).mkdir()
        folder.chmod(0o755)
        self.work.mkdir()
        self.work.chmod(0o1777)
        self._port_lock, self.ports = _take_ports(2 + nodes)
        self.programs = programs.find(release, folder)
        self._enter = self.programs.write_entrance(folder)
        libraries = self.programs.libraries or str(programs.munge_library().parent)
        self.env = {
            "PATH": f"{folder}/bin:{self.programs.path}",
            "SLURM_CONF": str(self.etc / "slurm.conf"),
            "LD_LIBRARY_PATH": libraries,
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }
        if cgroups:
            self.write_conf("cgroup.conf", cgroup_conf(cgroups))
            extra_conf = f"{CGROUP_CONF}{extra_conf}"
        elif release != "22.05":  # which does not know the key
            self.write_conf("cgroup.conf", "CgroupPlugin=disabled\n")
        self._licenses = licenses
        self._features = features
        self._write_slurm_conf(extra_conf)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    # -- its life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every daemon; return when all nodes take jobs."""
        self._start_munged()
        if self.accounting:
            self._start_accounting()
        self.start_controller()
        for number in range(1, self.nodes + 1):
            self.launch_node(number, plugins=number not in self._bare)
        self.wait_nodes()
        if self.accounting and self.release == "26.05":  # killed before its first save, it would never start again
            self.stop_controller()
            self.start_controller()

    def remove(self) -> None:
        """End everything and leave nothing: no process, no file."""
        for name in list(self.processes):
            self._kill(name)
        self._end_spawned()
        self._starter.shutdown()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(patient(START_S))
        self._port_lock.close()

    def settle(self) -> None:
        """As it was after the start: daemons up, no job, no reservation; for a cluster that many tests use."""
        if "slurmctld" not in self.processes:
            self.start_controller()
        for number in range(1, self.nodes + 1):
            if f"n{number}" not in self.processes:
                self.launch_node(number)
        self._end_spawned()
        ids = {re.split(r"[_+]", job.id)[0] for job in self.squeue()}
        if ids:
            self.run("scancel", *ids)  # some may end by themselves in between
        until(lambda: self.squeue() == [], START_S, what=lambda: f"jobs that do not end: {self.squeue()}")
        for line in self.check("scontrol", "-o", "show", "reservation").splitlines():
            if name := parse_record(line).get("ReservationName"):
                self.check("scontrol", "delete", f"reservation={name}")
        self.run("scontrol", "update", f"nodename=n[1-{self.nodes}]", "state=resume")  # refused if none is drained
        self.wait_nodes()

    def stop_controller(self) -> None:
        """End slurmctld in good order: it saves its state."""
        process = self.processes.pop("slurmctld")
        process.send_signal(signal.SIGTERM)
        process.wait(patient(START_S))

    def kill_controller(self) -> None:
        """SIGKILL slurmctld."""
        self._kill("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld; return when it answers."""
        self._launch("slurmctld", [*self._enter, "slurmctld", "-D"])
        self._await("slurmctld", lambda: _listens(self.ports[0]))
        self._await("slurmctld", lambda: "is UP" in self.run("scontrol", "ping").stdout)

    def kill_node(self, number: int) -> None:
        """A power cut: slurmd, its steps and their processes are gone at once. slurmctld has not noticed yet.

        It does after SlurmdTimeout, 300 s if not set otherwise, or when the node is back; but a batch job that has run
        for less than about 20 s by then stays RUNNING for a minute or more.
        """
        self._kill(f"n{number}")

    def kill_slurmd(self, number: int) -> None:
        """SIGKILL a node's slurmd alone: the steps continue. The node's init starts it again a second later."""
        for pid in descendants(self.processes[f"n{number}"].pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/comm").read_text() == "slurmd\n":
                    os.kill(pid, signal.SIGKILL)

    def fail_node(self, number: int) -> None:
        """A power cut that slurmctld has noticed: the node is DOWN, its jobs are requeued or NODE_FAIL."""
        self.kill_node(number)
        self.check("scontrol", "update", f"nodename=n{number}", "state=down", "reason=power cut")
        self.until_told()

    def until_told(self) -> None:
        """Wait until slurmctld has no message on its way to a node.

        It tries again to tell a node that is away to end a job, and a node that is back by then would end the job's
        next run.
        """

        def idle() -> bool:
            counts = re.findall(r"^Agent (?:queue size|count):\s*(\d+)", self.check("sdiag"), re.MULTILINE)
            return counts == ["0", "0"]

        until(idle, START_S, what=lambda: self.run("sdiag").stdout)

    def start_node(self, number: int, *, plugins: bool = True) -> None:
        """Start a node, or one that has no plugstack.conf; return when slurmctld has it back."""
        self.launch_node(number, plugins=plugins)
        self.wait_nodes(f"n{number}")

    def launch_node(self, number: int, *, plugins: bool = True, background: bool = False) -> None:
        """Start a node, and do not wait for it: slurmctld may be away. In the ``background`` slurmd has no -D."""
        name = f"n{number}"
        (self.folder / "spool" / name).mkdir(exist_ok=True)
        slurmd = ["slurmd", *([] if background else ["-D"]), "-N", name]
        place: list[str] = []
        if number in self._configless:
            slurmd += ["--conf-server", f"127.0.0.1:{self.ports[0]}"]
            place = self._build_place()
        if self.programs.libraries:
            slurmd += ["-d", f"{self.folder}/bin/slurmstepd"]
        namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        hide = "" if plugins else f"mount --bind /dev/null {self.etc}/plugstack.conf && "  # in its own namespace
        init = ["sh", "-c", f"{hide}{_INIT_OF_FORKED if background else _INIT}", "sh"]
        corner = enter_corner(self._cgroups, self.folder, name) if self._cgroups else ()
        self.launched[name] = time.time()
        self._launch(name, [*place, *namespace, *corner, *self._enter, *init, *slurmd])

    def wait_nodes(self, names: str = "") -> None:
        """Wait until nodes (a host list; without one, all) take jobs.

        slurmctld may not have noticed that a node was away: it counts once its new slurmd has registered.
        """

        def away() -> list[str]:
            here = self.run("sinfo", "-h", "-N", "-o", "%N %T", *(["-n", names] if names else [])).stdout.splitlines()
            states = dict(line.split() for line in here if line)
            shown = self.run("scontrol", "-o", "show", "node", *([names] if names else [])).stdout.splitlines()
            started = {node["NodeName"]: node.get("SlurmdStartTime", "") for node in map(parse_record, shown) if node}
            late = [name for name in states if started.get(name, "") < _stamp(self.launched.get(name, 0.0))]
            busy = [name for name, state in states.items() if state not in ("idle", "mixed", "allocated")]
            return [*late, *busy] if states else ["all"]

        def told() -> str:
            logs = "\n".join(f"{name}: {self.log(name)}" for name in ("slurmctld", *sorted({*away()} - {"all"})))
            return f"{self.run('sinfo', '-N', '-l').stdout}\n{logs}"

        until(lambda: not away(), START_S, what=told)

    def configure(self, extra_conf: str) -> None:
        """Write slurm.conf again with these lines; ``reconfigure`` or a restart makes the daemons read it."""
        self._write_slurm_conf(extra_conf)

    def reconfigure(self) -> None:
        """``scontrol reconfigure``."""
        self.check("scontrol", "reconfigure")

    def write_conf(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file beside slurm.conf."""
        file = self.etc / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def path_for(self, user: str) -> str:
        """A PATH with its commands for a process that runs as a user, and may become root where a chroot needs that."""
        if not self.programs.chrooted:
            return self.env["PATH"]
        commands = self.folder / f"bin-{user}"
        commands.mkdir(exist_ok=True)
        root = "setpriv --reuid=root --regid=root --clear-groups --inh-caps=-all --ambient-caps=-all --"
        words = shlex.join(self._build_words((), user))
        for command in (self.folder / "bin").iterdir():
            script = commands / command.name
            script.write_text(f'#!/bin/sh\ncd {self.work} && exec {root} {words} {command.name} "$@"\n')
            script.chmod(0o755)
        return f"{commands}:{self.env['PATH']}"

    def log(self, daemon: str, characters: int = 4000) -> str:
        """The end of what a daemon logged: munged, slurmctld, slurmdbd, mariadbd or a node's name."""
        files = [self.folder / "log" / f"{daemon}.{end}" for end in ("log", "out")]  # one that fails early has no log
        texts = [file.read_text(errors="replace") for file in files if file.exists()]
        return next((text[-characters:] for text in texts if text), "")

    # -- its commands ------------------------------------------------------------------------------------------------

    def run(
        self,
        *argv: str,
        user: str | None = None,
        timeout: float = 60,
        input: str = "",  # noqa: A002  subprocess's own word
        env: Mapping[str, str] | None = None,
        before: Collection[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in ``work``, as root or as a user; ``env`` is added to the cluster's.

        ``before`` are words before it, as of ``words_at``.
        """
        return subprocess.run(
            [*before, *self._build_words(argv, user)],
            input=input,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(timeout),
            cwd=self.work,
            env={**self.env, **(env or {})},
        )

    def check(
        self,
        *argv: str,
        user: str | None = None,
        timeout: float = 60,
        input: str = "",  # noqa: A002  subprocess's own word
    ) -> str:
        """What a command prints; it must succeed."""
        done = self.run(*argv, user=user, timeout=timeout, input=input)
        assert done.returncode == 0, f"{' '.join(argv)}: exit {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def spawn(self, *argv: str, user: str | None = None, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command that continues, srun or salloc; whoever started it ends it, else ``settle`` or ``remove``."""
        started = self._starter.submit(
            subprocess.Popen,
            self._build_words(argv, user, "--pdeathsig=KILL"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
            env={**self.env, **(env or {})},
        ).result()
        self._spawned.append(started)
        return started

    def sbatch(self, script: str, *flags: str, user: str | None = None) -> int:
        """Submit a script; the job's id. Its output is ``output(id)``."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        return int(self.check("sbatch", "--parsable", *flags, input=text, user=user).strip().partition(";")[0])

    def output(self, id: int | str) -> str:
        """What a batch job has printed where sbatch puts it."""
        file = self.work / f"slurm-{id}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def job(self, id: int | str) -> dict[str, str]:
        """The fields of ``scontrol show job``; of an array or heterogeneous job, those of the first record."""
        return parse_record(self.check("scontrol", "-o", "show", "job", str(id)).splitlines()[0])

    def wait_job(self, id: int | str, states: str | Collection[str], timeout: float = 60) -> dict[str, str]:
        """The job's fields as soon as it is in one of the states.

        Raises:
            AssertionError: it is not, in time.
        """
        wanted = (states,) if isinstance(states, str) else states

        def reached() -> dict[str, str] | None:
            fields = self.job(id)
            return fields if fields["JobState"] in wanted else None

        return until(reached, timeout, what=lambda: f"job {id} is not {wanted}: {self.job(id)}\n{self.output(id)}")

    def squeue(self) -> list[Queued]:
        """Every job that has not ended."""
        lines = self.check("squeue", "-h", "-a", "-r", "-o", "%i|%u|%T|%r|%N").splitlines()
        return [Queued(*line.split("|")) for line in lines]

    def sacct(self, id: int | str) -> list[dict[str, str]]:
        """What accounting has of a job, a row for it and one for each step; it comes a moment late: ``until``."""
        names = ("JobID", "JobName", "State", "ExitCode", "User", "Account", "AllocTRES", "NodeList", "Start", "End")
        text = self.check("sacct", "-n", "-P", "-D", "-j", str(id), "-o", ",".join(names))
        return [dict(zip(names, line.split("|"), strict=True)) for line in text.splitlines()]

    def licenses(self) -> dict[str, License]:
        """Every license, by name."""
        lines = self.check("scontrol", "-o", "show", "licenses").splitlines()
        records = [parse_record(line) for line in lines if line.startswith("LicenseName=")]
        return {
            each["LicenseName"]: License(*(int(each[name]) for name in ("Total", "Used", "Free", "Reserved")))
            for each in records
        }

    # -- how it is done ----------------------------------------------------------------------------------------------

    def _build_words(self, argv: Collection[str], user: str | None, *privileges: str) -> list[str]:
        other = [f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        switch = ["setpriv", *other, *privileges, "--"] if other or privileges else []  # one: another's would undo ours
        return [*self._enter, *switch, *argv]

    def _write_slurm_conf(self, extra_conf: str) -> None:
        text = build_slurm_conf(
            folder=self.folder,
            host=socket.gethostname().partition(".")[0],
            ports=self.ports,
            nodes=self.nodes,
            plugins=self.programs.plugins,
            accounting=self.accounting,
            licenses=self._licenses,
            features=self._features,
            extra=extra_conf,
        )
        self.write_conf("slurm.conf", text)

    def _start_munged(self) -> None:
        munged = programs.munged()
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        (self.folder / "munge").chmod(0o700)
        names = {"socket": "run/munge.socket", "key-file": "munge/key", "pid-file": "run/munged.pid"}
        names |= {"log-file": "log/munged.log", "seed-file": "munge/seed"}
        words = [f"--{name}={self.folder / place}" for name, place in names.items()]
        self._launch("munged", [str(munged), "--foreground", *words], debian.surroundings(munged))
        self._await("munged", self.munge_socket.exists)

    def _start_accounting(self) -> None:
        folder = self.folder / "mariadb"
        mariadbd = database.make(folder)
        self._launch("mariadbd", database.build_command(mariadbd, folder), debian.surroundings(mariadbd))
        self._await("mariadbd", (folder / "socket").exists)
        self.write_conf("slurmdbd.conf", build_slurmdbd_conf(self.folder, self.ports[1], self.programs.plugins), 0o600)
        slurmdbd = [*self._enter, "slurmdbd", "-D"]
        self._launch("slurmdbd", slurmdbd, {**self.env, "MYSQL_UNIX_PORT": f"{folder}/socket"})
        self._await("slurmdbd", lambda: _listens(self.ports[1]))
        self.check("sacctmgr", "-i", "add", "cluster", "moorings")
        self.check("sacctmgr", "-i", "add", "account", ACCOUNT)
        self.check("sacctmgr", "-i", "add", "user", ",".join(USERS), f"account={ACCOUNT}")

    def words_at(self, number: int) -> list[str]:
        """The words before a command that is run as on a configless node: only what it was handed out is there."""
        return self._build_place(self.folder / "spool" / f"n{number}" / "conf-cache")

    def _build_place(self, handed_out: Path | None = None) -> list[str]:
        """What takes this cluster's files away from a command, and shows it the folder ``handed_out`` in their place.

        Without slurm.conf Slurm looks for munge and for its plugins where it was built for.
        """
        steps = ["mount -t tmpfs none /run", "mkdir /run/slurm /run/munge", "unset SLURM_CONF"]
        steps += [f"ln -s {self.munge_socket} /run/munge/munge.socket.2", f"mount -t tmpfs none {self.etc}"]
        if handed_out:
            steps.append(f"ln -s {handed_out} /run/slurm/conf")
        if self.programs.plugins:
            built_for = Path("/") / self.programs.plugins.parent.relative_to(self.programs.root)
            steps.append(f"mount -t overlay none -o lowerdir={built_for}:{self.programs.plugins.parent} {built_for}")
        if Path("/etc/slurm").exists():
            steps.append("mount -t tmpfs none /etc/slurm")
        script = " && ".join([*steps, 'exec "$@"'])
        return ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", script, "sh"]

    def _launch(self, name: str, words: list[str], env: Mapping[str, str] | None = None) -> None:
        def launch() -> subprocess.Popen[bytes]:
            with (self.folder / "log" / f"{name}.out").open("ab") as log:
                return subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", "--", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.work,
                    env=env or self.env,
                )

        assert name not in self.processes, f"{name} is up"
        self.processes[name] = self._starter.submit(launch).result()

    def _await(self, name: str, true: Callable[[], object]) -> None:
        """Wait until a daemon is of use."""

        def useful() -> object:
            assert self.processes[name].poll() is None, f"{name} does not start:\n{self.log(name)}"
            return true()

        until(useful, START_S, what=lambda: f"{name} is not up:\n{self.log(name)}")

    def _end_spawned(self) -> None:
        for spawned in self._spawned:
            left = descendants(spawned.pid) if spawned.poll() is None else []
            spawned.kill()
            spawned.wait()
            for pid in left:  # salloc's command, the process that srun has watch over itself
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for stream in (spawned.stdin, spawned.stdout, spawned.stderr):
                if stream:
                    stream.close()
        self._spawned.clear()

    def _kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()


def parse_record(line: str) -> dict[str, str]:
    """The fields of a line of ``scontrol -o``; a value may have spaces, and then must not look like a field."""
    marks = [*_FIELD.finditer(line)]
    ends = [*(mark.start() for mark in marks), len(line)][1:]
    return {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}


def new_folder() -> Path:
    """An empty folder for a cluster, which removes it."""
    return Path(tempfile.mkdtemp(prefix=f"moorings-slurm-{os.getpid()}-", dir="/tmp"))  # a socket's path is short


def _stamp(at: float) -> str:
    """A time in epoch seconds as Slurm writes it, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


def _take_ports(n: int) -> tuple[socket.socket, range]:
    """Ports of our own, and what keeps other clusters off them until it is closed."""
    for first in _PORTS:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0moorings-slurm-{first}")  # an abstract name: the kernel frees it with us
            ports = range(first, first + n)
            for port in ports:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("", port))
            return lock, ports
        except OSError:
            lock.close()
    raise AssertionError(f"no {n} free ports in a row between {_PORTS.start} and {_PORTS.stop}")


def _listens(port: int) -> bool:
    """Whether somebody listens; asked of the kernel, since the daemons log an error for whoever connects in vain."""
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    wanted = (f":{port:04X}", "0A")  # LISTEN
    return any((line.split()[1][-5:], line.split()[3]) == wanted for table in tables for line in table.splitlines())
