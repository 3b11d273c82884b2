"""A machine that three people share, in a mount namespace: real accounts, the real daemon, controller and ``moor``.

Accounts, ``/etc``, homes, ``/run``, ``/var/lib``, ``/opt`` and the cgroups are of this namespace: the tests' machine
keeps its own. The programs are those of the tests, laid where other users can read them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moorings.app.folders import DEFAULT_POOLS
from moorings.cli.processes import find_lock_holders
from moorings.privileged.cgroups import MOUNTS, parse_mounts
from tests.procfs import every_process
from tests.waiting import patient, until

SOURCES = Path(__file__).resolve().parents[2] / "src"
PEOPLE = {"ann": 61_001, "bob": 61_002, "eve": 61_003}
CONTROLLER = ("moorings", 961)
PYTHON = "/opt/moorings/bin/python"
FILES = ("passwd", "shadow", "group", "gshadow")
_PATH = "/usr/local/bin:/usr/bin:/bin"

_LAY_OUT = """
files=$1 python=$2 site=$3 sources=$4 cgroups=$5
mount -t tmpfs -o mode=755 tmpfs /mnt
cp -a /etc /mnt/etc; mkdir -p /mnt/etc/moorings; mount --bind /mnt/etc /etc
for name in passwd shadow group gshadow; do mount --bind "$files/$name" "/etc/$name"; done
mkdir /mnt/python /mnt/site /mnt/src
mount --bind "$python" /mnt/python; mount --bind "$site" /mnt/site; mount --bind "$sources" /mnt/src
top=/$(echo "$python" | cut -d/ -f2) # a Python below /root, say, is found there by its own libraries
for place in /home /run /var/lib /opt $([ "$top" = /usr ] || echo "$top"); do
    mount -t tmpfs -o mode=755 tmpfs "$place"
done
for name in site src; do mkdir "/opt/$name"; mount --bind "/mnt/$name" "/opt/$name"; done
[ "$top" = /usr ] || { mkdir -p "$python"; mount --bind /mnt/python "$python"; }
lib=/opt/moorings/lib/$(basename "$6")
mkdir -p /opt/moorings/bin "$lib/site-packages"
ln -s "$6" /opt/moorings/bin/python
printf 'home = %s\\n' "$python/bin" > /opt/moorings/pyvenv.cfg
printf '/opt/src\\n/opt/site\\n' > "$lib/site-packages/moorings.pth"
mkdir /mnt/dev; mount -t tmpfs -o mode=755 tmpfs /mnt/dev # device files of accelerators, without a driver
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /mnt/dev
for name in fd stdin stdout stderr; do cp -a "/dev/$name" /mnt/dev; done
mkdir /mnt/dev/pts /mnt/dev/shm; mount --bind /dev/pts /mnt/dev/pts; mount --bind /dev/shm /mnt/dev/shm
cp -a /dev/ptmx /mnt/dev
for number in $(seq 0 63); do mknod -m 666 "/mnt/dev/nvidia$number" c 195 "$number"; done
mknod -m 666 /mnt/dev/nvidiactl c 195 255
mount --rbind /mnt/dev /dev # with /dev/pts
for place in $cgroups; do mount --bind "$place" "${place%/*}"; done
echo laid out
exec sleep infinity
"""


def cannot_be_here() -> str:
    """Why there can be no such machine here; empty: it can."""
    if os.geteuid() != 0:
        return "accounts and a root daemon need root"
    for path in SOURCES.rglob("*"):
        found = path.lstat()
        if found.st_uid != 0 or (found.st_mode & 0o022 and not path.is_symlink()):
            return f"{path} is not root's alone: the root daemon would not run it"
    mounts = parse_mounts(MOUNTS.read_text())
    for folder in (*mounts.controllers.values(), *([mounts.unified] if mounts.unified is not None else [])):
        probe = folder / f"moorings-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError:
            return f"no cgroup can be made in {folder}"
    if not mounts.controllers and mounts.unified is None:
        return "there are no cgroups"
    return ""


class SharedMachineRig:
    """The machine; ``up`` and ``down`` are root's commands.

    Args:
        folder: for what it needs outside.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        found = parse_mounts(MOUNTS.read_text())
        mounts = dict.fromkeys([*found.controllers.values(), *([found.unified] if found.unified is not None else [])])
        self._cgroups = [mount / f"moorings-machine-{os.getpid()}" for mount in mounts]
        for cgroup in self._cgroups:
            cgroup.mkdir(exist_ok=True)
        self._unify(found.unified)
        self._write_accounts()
        python = Path(sys.executable).resolve()
        words = [str(folder), str(python.parent.parent), site.getsitepackages()[0], str(SOURCES)]
        words += [" ".join(map(str, self._cgroups)), str(python)]
        self._init = subprocess.Popen(
            ["unshare", "--mount", "--propagation=private", "--", "sh", "-euc", _LAY_OUT, "sh", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._init.stdout is not None
        said = self._init.stdout.readline()
        assert said == "laid out\n", said + self._init.stdout.read()
        self.root = Path(f"/proc/{self._init.pid}/root")
        data = self.root / "var/lib/moorings"
        data.mkdir(mode=0o700)
        (data / "pools.toml").write_text(f'{DEFAULT_POOLS}[pool.simulated]\ndevice_files = "/dev/nvidia{{}}"\n')
        for path in (data, data / "pools.toml"):
            os.chown(path, CONTROLLER[1], CONTROLLER[1])
        for name, uid in PEOPLE.items():
            home = self.root / "home" / name
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)

    def _unify(self, unified: Path | None) -> None:
        """Give on to our cgroup of v2 what its parent has."""
        if unified is not None:
            for name in (unified / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):
                    (unified / "cgroup.subtree_control").write_text(f"+{name}")

    def _write_accounts(self) -> None:
        people = [(name, uid, f"/home/{name}", "/bin/bash") for name, uid in PEOPLE.items()]
        accounts = [*people, (*CONTROLLER, "/var/lib/moorings", "/usr/sbin/nologin")]
        more = {
            "passwd": "".join(f"{name}:x:{uid}:{uid}::{home}:{shell}\n" for name, uid, home, shell in accounts),
            "shadow": "".join(f"{name}:*:19000:0:99999:7:::\n" for name, *_ in accounts),
            "group": "".join(f"{name}:x:{uid}:\n" for name, uid, *_ in accounts),
            "gshadow": "",
        }
        for name in FILES:
            known, path = Path("/etc") / name, self._folder / name
            path.write_text((known.read_text() if known.exists() else "") + more[name])
            path.chmod(0o600 if "shadow" in name else 0o644)

    # -- commands ------------------------------------------------------------------------------------------------------

    def argv(self, person: str, words: Sequence[str]) -> list[str]:
        """A command as a person, or ``root``, in the machine."""
        uid = PEOPLE.get(person, 0)
        home = f"/home/{person}" if uid else "/root"
        enter = ["nsenter", f"--target={self._init.pid}", "--mount", f"--wdns={home}", "--"]
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"] if uid else []
        return [*enter, *become, "env", "-i", f"PATH={_PATH}", f"HOME={home}", f"USER={person}", *words]

    def command(self, person: str, *words: str) -> subprocess.CompletedProcess[str]:
        """What a command does, at its end."""
        return subprocess.run(
            self.argv(person, words), capture_output=True, text=True, timeout=patient(60), check=False
        )

    def moor(self, person: str, *words: str) -> subprocess.CompletedProcess[str]:
        """``moor`` as a person."""
        return self.command(person, PYTHON, "-m", "moorings.cli.main", *words)

    def start(self, person: str, *words: str) -> subprocess.Popen[str]:
        """``moor`` as a person, which goes on."""
        return self.start_program(person, "-m", "moorings.cli.main", *words)

    def start_program(self, person: str, *words: str) -> subprocess.Popen[str]:
        """Python as a person, which goes on."""
        argv = self.argv(person, [PYTHON, *words])
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask(self, person: str, *words: str) -> Any:
        """The data that ``moor get`` prints as JSON."""
        done = self.moor(person, *words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def up(self, *words: str) -> str:
        done = self.moor("root", "up", "--system", "--port", "0", "--timeout", f"{patient(30):g}s", *words)
        assert done.returncode == 0, done.stderr + self.logs()
        return done.stdout

    def down(self) -> str:
        done = self.moor("root", "down", "--system", "--timeout", f"{patient(15):g}s")
        assert done.returncode == 0, done.stderr + self.logs()
        return done.stdout

    # -- what is there -------------------------------------------------------------------------------------------------

    def daemon_pid(self) -> int:
        (found,) = find_lock_holders(self.root / "var/lib/moorings-jobs/lock")
        return found

    def controller_pid(self) -> int:
        return int(json.loads((self.root / "var/lib/moorings/controller.json").read_text())["pid"])

    def kill(self, pid: int) -> None:
        """Kill it, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())

    def processes_of(self, person: str) -> list[bytes]:
        """What runs as a person; nothing else on the machine of the tests has these numbers."""
        uid, found = f"Uid:\t{PEOPLE[person]}\t".encode(), []
        for _, content in every_process("status"):
            if uid in content and b"State:\tZ" not in content:  # what nobody has reaped yet has ended
                found.append(content.splitlines()[0])
        return found

    def cgroups(self) -> list[str]:
        """The cgroups of jobs."""
        return sorted({each.name for base in self._cgroups for each in base.glob("moorings/*/") if each.is_dir()})

    def logs(self) -> str:
        found = []
        for name in ("moorings-jobs/daemon.log", "moorings/controller.log"):
            with contextlib.suppress(OSError):
                found.append(f"\n{name}:\n{(self.root / 'var/lib' / name).read_text()[-3000:]}")
        return "".join(found)

    def story(self) -> str:
        """The records of all attempts."""
        jobs = self.root / "var/lib/moorings-jobs/jobs"
        paths = [path for path in sorted(jobs.rglob("*")) if path.is_file()]
        return "".join(f"\n{path.relative_to(jobs)}: {path.read_text(errors='replace')[:1000]}" for path in paths)

    def _ours(self, name: str) -> list[tuple[int, bytes]]:
        """The processes that live in this machine."""
        ours = Path(f"/proc/{self._init.pid}/ns/mnt").readlink()
        found = []
        for pid, content in every_process(name):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/ns/mnt").readlink() == ours:
                    found.append((pid, content))
        return found

    def close(self) -> None:
        """End everything in it; nothing stays."""
        for base in self._cgroups:
            for procs in base.rglob("cgroup.procs"):
                for word in procs.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(word), signal.SIGKILL)
        for pid, _ in self._ours("stat"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with self._init:
            self._init.kill()
        until(lambda: all(self._removed(base) for base in self._cgroups), what=lambda: f"{self.cgroups()}")

    @staticmethod
    def _removed(base: Path) -> bool:
        for top, _, _ in list(os.walk(base, topdown=False)):
            with contextlib.suppress(OSError):
                os.rmdir(top)  # noqa: PTH106 - beside os.walk
        return not base.exists()
