"""The root daemon as a program: ``python3 -I -m moorings.privileged``."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import logging
import os
import pwd
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from moorings.privileged import places
from moorings.privileged.cgroups import MOUNTS, CgroupTree, parse_mounts
from moorings.privileged.connections import open_socket
from moorings.privileged.daemon import RootDaemon
from moorings.privileged.devices import PATTERNS_FILE, read_patterns
from moorings.privileged.scope import find_jobs_place
from moorings.privileged.trust import daemon_fault

OOM_SCORE = "-900"  # people's processes are killed first when they have used up the memory (proc(5))
LOCK_S, LOCK_LOOK_S = 1.0, 0.02
SUPERVISOR = ("-I", "-m", "moorings.local.shared_supervisor")


def main() -> None:
    """Serve until TERM; the jobs go on."""
    parser = argparse.ArgumentParser(prog="moorings.privileged", description="Start jobs as the people who asked.")
    parser.add_argument("--folder", type=Path, default=places.JOBS, help="(default: %(default)s)")
    parser.add_argument("--sockets", type=Path, default=places.SOCKETS, help="(default: %(default)s)")
    parser.add_argument(
        "--controller", default=places.CONTROLLER_USER, help="the controller's user (default: %(default)s)"
    )
    given = parser.parse_args()
    os.umask(0o022)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one for each job
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if fault := daemon_fault(given.folder, given.sockets, PATTERNS_FILE):
        sys.exit(f"moorings.privileged: {fault}: a user who can change that would be root")
    given.folder.mkdir(mode=0o711, exist_ok=True)
    given.sockets.mkdir(mode=0o755, exist_ok=True)
    lock = os.open(given.folder / places.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _takes(lock):
        sys.exit(f"moorings.privileged: another daemon uses {given.folder}")
    with contextlib.suppress(OSError):  # in a container
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    owner = pwd.getpwnam(given.controller)
    own = given.sockets / places.OWN
    own.mkdir(mode=0o755, exist_ok=True)
    os.chown(own, owner.pw_uid, owner.pw_gid)  # for the socket of its API
    submit = open_socket(given.sockets / places.SUBMIT, 0o666)
    control = open_socket(given.sockets / places.CONTROL, 0o600, owner.pw_uid)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    _notify_systemd()  # before the scope is made: it is ordered after this service
    hierarchies = parse_mounts(MOUNTS.read_text())
    try:
        place = find_jobs_place(hierarchies)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"moorings.privileged: systemd did not make the jobs' scope: {error}")
    cgroups = CgroupTree(hierarchies, place.base, place.sleeping)
    cgroups.prepare()
    command, controller = (sys.executable, *SUPERVISOR), (owner.pw_uid, owner.pw_gid)
    daemon = RootDaemon(given.folder, cgroups, command, controller, patterns=read_patterns())
    daemon.serve(submit, control, lambda: bool(stopped))
    if not stopped:
        sys.exit("moorings.privileged: all jobs were stopped; the next start takes new ones")


def _takes(lock: int) -> bool:
    """Whether the lock is this daemon's; what a daemon that was killed has forked holds it for a moment longer."""
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                return False
            time.sleep(LOCK_LOOK_S)
        else:
            return True


def _notify_systemd() -> None:
    """Say that both sockets are there, for what is started after this (sd_notify(3))."""
    if path := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
            notifying.sendto(b"READY=1", path.replace("@", "\0", 1))


if __name__ == "__main__":
    main()
