"""A root daemon on a folder and cgroups of its own, with people who have no accounts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from moorings.privileged.accounts import PersonAccount
from moorings.privileged.cgroups import MOUNTS, CgroupTree, JobLimits, parse_mounts
from moorings.privileged.connections import open_socket
from moorings.privileged.daemon import RootDaemon
from moorings.privileged.refusals import Refused
from tests.waiting import patient, until

PYTHON = Path("/usr/bin/python3")  # the tests' own may stand where only root reads


def makes_no_cgroup() -> bool:
    """Whether no cgroup of a job can be made here, as in most containers."""
    if os.geteuid() != 0:
        return True
    base = f"moorings-probe-{os.getpid()}"
    tree = CgroupTree(parse_mounts(MOUNTS.read_text()), base)
    try:
        tree.prepare()
        job = tree.job("probe")
        job.create(JobLimits())
    except OSError:
        return True
    removed = job.remove()
    remove_base(base)
    return not removed


def remove_base(base: str) -> None:
    """Remove the cgroups around those of jobs, which a daemon keeps."""
    found = parse_mounts(MOUNTS.read_text())
    for folder in {*found.controllers.values(), *([found.unified] if found.unified is not None else [])}:
        with contextlib.suppress(FileNotFoundError):
            (folder / base).rmdir()


NEEDS_ROOT = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a root daemon needs root"),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"other users have no {PYTHON}"),
    pytest.mark.skipif(makes_no_cgroup(), reason="no cgroup can be made here"),
]

ANN, BOB, CONTROLLER = 61_001, 61_002, 61_099  # without accounts here


class RootRig:
    """A daemon on a folder and cgroups of its own, which can be killed."""

    def __init__(self, folder: Path, base: str, supervisor: Sequence[str]) -> None:
        self.folder, self.base = folder / "jobs", base
        self.sockets = folder / "sockets"
        self.pid = 0
        self.closed = folder / "closed"  # a file there: no account may be used
        self.slow = folder / "slow"  # likewise: an account is found once it is gone
        self.asked = folder / "asked"  # likewise: the daemon is asked to stop
        self.sleeping = folder / "sleeping"  # empty: systemd's scope is being stopped
        self.sleeping.write_text("1\n")
        self.folder.mkdir(mode=0o711)
        self.sockets.mkdir(mode=0o755)
        for above in (folder, *folder.parents):
            above.chmod(above.stat().st_mode | 0o011)
        self.supervisor = supervisor

    def tree(self) -> CgroupTree:
        found = CgroupTree(parse_mounts(MOUNTS.read_text()), self.base, self.sleeping)
        found.prepare()
        return found

    def start(self) -> None:
        for name in ("submit", "control"):
            (self.sockets / name).unlink(missing_ok=True)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                submit, control = (open_socket(self.sockets / name, 0o666) for name in ("submit", "control"))
                daemon = RootDaemon(
                    self.folder,
                    self.tree(),
                    self.supervisor,
                    (CONTROLLER, CONTROLLER),
                    self.account,
                    lambda _name: None,  # PAM knows no account either
                )
                daemon.serve(submit, control, lambda: self.asked.exists())
            finally:
                os._exit(1)
        until(self._listens, 30)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connected:
            return connected.connect_ex(str(self.sockets / "control")) == 0

    def account(self, uid: int) -> PersonAccount:
        name = {ANN: "ann-x", BOB: "bob-x"}[uid]
        while self.slow.exists():
            time.sleep(0.01)
        if self.closed.exists():
            raise Refused("account.refused", f"{name} is locked")
        return PersonAccount(name, uid, uid, "/nonexistent", "/bin/sh")

    def connect(self, name: str) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(str(self.sockets / name))
        return connected

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def wait(self) -> None:
        """Wait for its end."""
        until(lambda: os.waitpid(self.pid, os.WNOHANG)[0], 30)
        self.pid = 0

    def end(self) -> None:
        """Kill it, and everything that it has started."""
        self.kill()
        tree = self.tree()
        for name in tree.names():
            cgroup = tree.job(name)
            until(cgroup.kill, 30)
            until(cgroup.remove, 30)
        remove_base(self.base)

    def ask(self, uid: int, name: str, request: object) -> dict[str, Any]:
        """A request as that user, and its answer."""
        code = (
            "import os, socket, sys\n"
            "os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[2])\n"
            "s.sendall(sys.stdin.buffer.read()); s.shutdown(socket.SHUT_WR)\n"
            "while part := s.recv(1 << 16): sys.stdout.buffer.write(part)\n"
        )
        sent = request if isinstance(request, bytes) else json.dumps(request).encode()
        words = [sys.executable, "-I", "-S", "-c", code, str(uid), str(self.sockets / name)]
        done = subprocess.run(words, input=sent, capture_output=True, timeout=patient(30), check=False)
        return dict(json.loads(done.stdout)) if done.stdout else {"error": done.stderr.decode()[-300:]}

    def spool(self, uid: int, does: str) -> str:
        answer = self.ask(uid, "submit", {"op": "spool", "job": {"does": does}})
        assert "entry" in answer, answer
        return str(answer["entry"])

    def control(self, op: str, entry: str, attempt: int = 0, **more: Any) -> dict[str, Any]:
        return self.ask(CONTROLLER, "control", {"op": op, "entry": entry, "attempt": attempt, **more})

    def begin(self, entry: str, attempt: int = 0, **limits: Any) -> dict[str, Any]:
        return self.control("start", entry, attempt, limits=limits, order={"run": "run-1"})

    def state(self, entry: str) -> dict[str, Any]:
        (state,) = self.control("status", entry, entries=[entry])["states"]
        return dict(state)

    def ended(self, entry: str) -> dict[str, Any]:
        until(lambda: self.state(entry)["state"] == "ENDED", 30, what=lambda: str(self.state(entry)))
        return dict(self.state(entry)["end"])

    def run_file(self, entry: str, name: str, attempt: int = 0) -> str:
        path = self.folder / "jobs" / entry / str(attempt) / "run" / name
        until(path.exists, 30, what=lambda: (path.parent / "supervisor.log").read_text())
        return path.read_text()
