"""``moor up --system``: the root daemon of a machine that people share, started and stopped without systemd.

The controller beside it is started as its own user: this process becomes that user first, and for good.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from moorings.cli.processes import LOOK_AGAIN_S, find_lock_holders, last_lines, open_log
from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.privileged import places

MODULE = "moorings.privileged"
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class SharedMachine:
    """Where the parts of a shared machine are, and whose the controller is."""

    jobs: Path = places.JOBS
    sockets: Path = places.SOCKETS
    data: Path = places.DATA
    user: str = places.CONTROLLER_USER


def check_root() -> None:
    """Check that this is root.

    Raises:
        MooringsError: ``auth.denied``.
    """
    if os.geteuid() != 0:
        detail = "a machine that people share is root's to start and stop"
        raise MooringsError("auth.denied", detail, hint="sudo moor up --system; or 'moor up', for yourself alone")


def find_daemon(machine: SharedMachine) -> int | None:
    """The process of the root daemon; None: it does not run."""
    return next(iter(find_lock_holders(machine.jobs / places.LOCK)), None)


def find_controller_user(machine: SharedMachine) -> pwd.struct_passwd:
    """The account of the controller.

    Raises:
        MooringsError: ``config.invalid``: there is none, or it is root's.
    """
    try:
        account = pwd.getpwnam(machine.user)
    except KeyError:
        command = f"useradd --system --home-dir {machine.data} --shell /usr/sbin/nologin {machine.user}"
        detail = f"the controller needs a user of its own, {machine.user}"
        raise MooringsError("config.invalid", detail, hint=f"make it: {command}") from None
    if account.pw_uid == 0:
        raise MooringsError("config.invalid", f"the controller would be root: {machine.user} has uid 0")
    return account


def start_daemon(machine: SharedMachine, limit_s: float) -> int:
    """Start the root daemon, unless it runs; returns its process once it answers.

    Raises:
        MooringsError: ``config.invalid``: it ended, with its own words; ``wait.timeout``.
    """
    running = find_daemon(machine)
    if running is not None:
        return running
    words = ["--folder", str(machine.jobs), "--sockets", str(machine.sockets), "--controller", machine.user]
    log = machine.jobs / places.LOG
    try:
        machine.jobs.mkdir(mode=0o711, exist_ok=True)
        with os.fdopen(open_log(log), "ab") as file:
            at = os.fstat(file.fileno()).st_size
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", MODULE, *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd="/",
                env={"PATH": PATH},
                start_new_session=True,
            )
    except OSError as error:
        raise MooringsError("config.invalid", f"{machine.jobs} cannot be used: {format_cause(error)}") from error
    until = time.monotonic() + limit_s
    while not _answers(machine):
        if process.poll() is not None:
            said = " | ".join(last_lines(log, 3, at)) or f"exit code {process.returncode}"
            raise MooringsError("config.invalid", f"the root daemon has ended: {said}", hint=f"all of its log: {log}")
        if time.monotonic() > until:
            raise MooringsError("wait.timeout", f"the root daemon does not answer in {limit_s:g} s", hint=f"see {log}")
        time.sleep(LOOK_AGAIN_S)
    return process.pid


def stop_daemon(machine: SharedMachine, limit_s: float) -> int | None:
    """Stop the root daemon; its jobs go on. Returns the process that has ended; None: none ran.

    Raises:
        MooringsError: ``wait.timeout``.
    """
    running = find_daemon(machine)
    if running is None:
        return None
    os.kill(running, signal.SIGTERM)
    until = time.monotonic() + limit_s
    while find_daemon(machine) == running:
        if time.monotonic() > until:
            raise MooringsError("wait.timeout", f"the root daemon (process {running}) has not ended in {limit_s:g} s")
        time.sleep(LOOK_AGAIN_S)
    return running


def become_controller(machine: SharedMachine) -> None:
    """Become the controller's user, for good, with its data folder and nothing of root's environment.

    Raises:
        MooringsError: ``config.invalid``.
    """
    account = find_controller_user(machine)
    if not machine.data.exists():
        machine.data.mkdir(mode=0o700)
        os.chown(machine.data, account.pw_uid, account.pw_gid)
    os.initgroups(account.pw_name, account.pw_gid)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    os.environ.clear()
    os.environ |= {"PATH": PATH, "HOME": str(machine.data), "LANG": "C.UTF-8", "USER": machine.user}


def _answers(machine: SharedMachine) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.connect(str(machine.sockets / places.CONTROL))
    except OSError:
        return False
    return find_daemon(machine) is not None
