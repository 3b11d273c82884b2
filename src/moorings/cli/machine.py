"""``moor up --system``: the root daemon of a machine that people share, started and stopped without systemd.

The controller beside it is started as its own user: this process becomes that user first, and for good.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moorings.cli.processes import LOOK_AGAIN_S, find_lock_holders, last_lines, open_log
from moorings.client.error_text import format_cause
from moorings.client.spool import ANSWER_BYTES_MAX, exchange
from moorings.core.model.errors import MooringsError
from moorings.privileged import places
from moorings.privileged.scope import BOOTED
from moorings.terminal.configuration import data_folder

MODULE = "moorings.privileged"
PATH = "/usr/local/bin:/usr/bin:/bin"
OOM_SCORE = "-500"  # of the controller: people's processes are killed first when they have used up the memory
ANSWER_S = 1.0  # of the daemon, to one look at it
SERVICES = ("moorings-jobs.service", "moorings-controller.service")  # deploy/systemd

PORT_TAKEN_REMEDY = "see who has it with 'ss -ltnp', end that program, and start the controller again"

LOCK, LOG = places.JOBS / places.LOCK, places.JOBS / places.LOG


def check_root() -> None:
    """Check that this is root.

    Raises:
        MooringsError: ``auth.denied``.
    """
    if os.geteuid() != 0:
        detail = "a machine that people share is root's to start and stop"
        raise MooringsError("auth.denied", detail, hint="sudo moor up --system; or 'moor up', for yourself alone")


def check_no_services(verb: str, services: Sequence[str] = SERVICES) -> None:
    """Check that the root daemon is not systemd's to start and stop: two would start again what the other stops.

    Args:
        verb: what systemctl does instead. A daemon that was started before the units were installed can be stopped.
        services: with which units.

    Raises:
        MooringsError: ``config.invalid``.
    """
    unit, running = _show_unit(SERVICES[0]), find_daemon()
    is_own = verb == "stop" and running is not None and unit.get("MainPID") != str(running)
    if unit.get("LoadState") == "loaded" and not is_own:
        detail = f"systemd starts and stops the root daemon of this machine ({SERVICES[0]})"
        words = {"start": "enable --now"}.get(verb, verb)
        raise MooringsError("config.invalid", detail, hint=f"systemctl {words} {' '.join(services)}")


def _show_unit(name: str) -> dict[str, str]:
    """What systemd knows of a unit; empty: it does not run this machine."""
    if not BOOTED.is_dir():
        return {}
    argv = ["systemctl", "show", "--property=LoadState,MainPID", name]
    try:
        done = subprocess.run(argv, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {}
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


def controller_folder(environment: Mapping[str, str], data: str | None, *, system: bool) -> Path:
    """The data folder of a controller: the given one, else the machine's or this user's."""
    if data:
        return Path(data).absolute()
    return places.DATA if system else data_folder(environment)


def find_daemon() -> int | None:
    """The process of the root daemon; None: it does not run."""
    return next(iter(find_lock_holders(LOCK)), None)


def find_controller_user() -> pwd.struct_passwd:
    """The account of the controller.

    Raises:
        MooringsError: ``config.invalid``: there is none, or it is root's.
    """
    try:
        account = pwd.getpwnam(places.CONTROLLER_USER)
    except KeyError:
        command = f"useradd --system --home-dir {places.DATA} --shell /usr/sbin/nologin {places.CONTROLLER_USER}"
        detail = f"the controller needs a user of its own, {places.CONTROLLER_USER}"
        raise MooringsError("config.invalid", detail, hint=f"make it: {command}") from None
    if account.pw_uid == 0:
        raise MooringsError("config.invalid", f"the controller would be root: {places.CONTROLLER_USER} has uid 0")
    return account


def start_daemon(limit_s: float) -> int:
    """Start the root daemon, unless it runs; returns its process once it answers.

    Raises:
        MooringsError: ``config.invalid``: it ended, with its own words; ``wait.timeout``.
    """
    running = find_daemon()
    if running is not None:
        return running
    try:
        places.JOBS.mkdir(mode=0o711, exist_ok=True)
        with os.fdopen(open_log(LOG), "ab") as file:
            at = os.fstat(file.fileno()).st_size
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", MODULE],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd="/",
                env={"PATH": PATH},
                start_new_session=True,
            )
    except OSError as error:
        raise MooringsError("config.invalid", f"{places.JOBS} cannot be used: {format_cause(error)}") from error
    until = time.monotonic() + limit_s
    while not _answers():
        if process.poll() is not None:
            said = " | ".join(last_lines(LOG, 3, at)) or f"exit code {process.returncode}"
            raise MooringsError("config.invalid", f"the root daemon has ended: {said}", hint=f"all of its log: {LOG}")
        if time.monotonic() > until:
            raise MooringsError("wait.timeout", f"the root daemon does not answer in {limit_s:g} s", hint=f"see {LOG}")
        time.sleep(LOOK_AGAIN_S)
    return process.pid


def stop_daemon(limit_s: float) -> int | None:
    """Stop the root daemon; its jobs go on. Returns the process that has ended; None: none ran.

    Raises:
        MooringsError: ``wait.timeout``.
    """
    running = find_daemon()
    if running is None:
        return None
    os.kill(running, signal.SIGTERM)
    until = time.monotonic() + limit_s
    while find_daemon() == running:
        if time.monotonic() > until:
            raise MooringsError("wait.timeout", f"the root daemon (process {running}) has not ended in {limit_s:g} s")
        time.sleep(LOOK_AGAIN_S)
    return running


def become_controller(data: Path) -> None:
    """Become the controller's user, for good, with its data folder and nothing of root's environment.

    Raises:
        MooringsError: ``config.invalid``.
    """
    account = find_controller_user()
    if not data.exists():
        data.mkdir(mode=0o700)
        os.chown(data, account.pw_uid, account.pw_gid)
    with contextlib.suppress(OSError):  # as for the root daemon
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    os.initgroups(account.pw_name, account.pw_gid)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    os.environ.clear()
    os.environ |= {"PATH": PATH, "HOME": str(data), "LANG": "C.UTF-8", "USER": account.pw_name}


def as_owner_of(folder: Path) -> dict[str, Any]:
    """How to start a process (``subprocess.Popen``) as the owner of a folder: nothing to add unless this is root.

    Raises:
        MooringsError: ``config.invalid``: the owner has no account.
    """
    if os.geteuid() != 0 or not folder.is_dir() or (owner := folder.stat().st_uid) == 0:
        return {}
    try:
        account = pwd.getpwuid(owner)
    except KeyError:
        raise MooringsError("config.invalid", f"{folder} belongs to user {owner}, who has no account") from None
    environment = {"PATH": PATH, "HOME": account.pw_dir, "LANG": "C.UTF-8", "USER": account.pw_name}
    return {"user": owner, "group": account.pw_gid, "extra_groups": (), "env": environment, "cwd": "/"}


def _answers() -> bool:
    """Whether it serves: its sockets are there before it has cgroups for jobs."""
    try:
        answer = exchange(places.SOCKETS / places.CONTROL, {"op": "status", "entries": []}, ANSWER_S, ANSWER_BYTES_MAX)
    except OSError:
        return False
    return answer != b"" and find_daemon() is not None
