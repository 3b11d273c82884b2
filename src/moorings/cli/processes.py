"""The controller's process on this machine: started apart from the terminal, identified by its start time, stopped.

The controller writes ``controller.json`` into its data folder while it runs. A process id alone would not do: after a
crash another program may get it, so the start ticks of ``/proc/<pid>/stat`` must match.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import pwd
import re
import signal
import stat
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.terminal.configuration import DEFAULT_CONTEXT, RECORD_NAME
from moorings.wire.errors import ERRORS

LOG_NAME = "controller.log"
LOCK_NAME = "controller.lock"
CONTROLLER_MODULE = "moorings.app.controller"
LOG_LINES_SHOWN = 12
RECORD_CHARS_MAX = 65536
LOOK_AGAIN_S = 0.05  # the start and end of another session's process cannot be awaited

_CODE = re.compile(r"\(([a-z_]+\.[a-z_]+)\)$")


@dataclass(frozen=True, slots=True)
class ControllerProcess:
    """A controller that runs on this machine."""

    pid: int
    start_ticks: int
    url: str
    version: str


@dataclass(frozen=True, slots=True)
class StartedController:
    """A controller started by this command; its part of the log begins at byte ``log_at``."""

    process: subprocess.Popen[bytes]
    log_at: int


@dataclass(frozen=True, slots=True)
class ControllerLaunch:
    """The options to start a controller with.

    Attributes:
        data: its data folder.
        host: address to listen on.
        port: port to listen on.
        pools: its pools file, or None for its own default.
        credentials: the file for its first access key; None: none is made.
        context: the name for that key.
        pki: the folder of certificates, to serve over TLS; None: without TLS.
        secure: whether clients must present certificates.
        plain_http: whether it may serve other machines without TLS.
        sockets: the folder of the root daemon's sockets, on a machine that people share; None: it is this user's alone.
    """

    data: Path
    host: str
    port: int
    pools: Path | None
    credentials: Path | None
    context: str = DEFAULT_CONTEXT
    pki: Path | None = None
    secure: bool = False
    plain_http: bool = False
    sockets: Path | None = None

    @property
    def scheme(self) -> str:
        """The scheme of its URL."""
        return "http" if self.pki is None else "https"


def build_argv(launch: ControllerLaunch) -> list[str]:
    """The controller's command line; it contains no secret."""
    argv = [sys.executable, "-m", CONTROLLER_MODULE, "--data", str(launch.data)]
    argv += ["--host", launch.host, "--port", str(launch.port)]
    argv += ["--credentials", str(launch.credentials)] if launch.credentials is not None else []
    argv += ["--sockets", str(launch.sockets)] if launch.sockets is not None else []
    argv += ["--log-file", str(launch.data / LOG_NAME)]  # the controller rotates it
    argv += ["--context", launch.context] if launch.context != DEFAULT_CONTEXT else []
    argv += ["--plain-http"] if launch.plain_http else []
    if launch.pki is not None:
        argv += ["--tls-cert", str(launch.pki / "server.pem"), "--tls-key", str(launch.pki / "server.key")]
        argv += ["--tls-client-ca", str(launch.pki / "ca.pem")] if launch.secure else []
    return argv + (["--pools", str(launch.pools)] if launch.pools is not None else [])


def parse_record(text: str) -> ControllerProcess | None:
    """The controller in a ``controller.json``; None if it cannot be read."""
    try:
        record = json.loads(text)
        return ControllerProcess(
            int(record["pid"]), int(record["startTicks"]), str(record["url"]), str(record["version"])
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def parse_start_ticks(line: str) -> int:
    """Field 22 of ``/proc/<pid>/stat`` (proc(5)): when it started, in clock ticks since boot.

    The second field is the program's name and may hold spaces and brackets, so fields are counted after it.
    """
    return int(line.rpartition(")")[2].split()[19])


def find_running(data: Path) -> ControllerProcess | None:
    """The controller that uses a data folder now.

    Raises:
        MooringsError: ``config.invalid``: the folder belongs to another user, so its contents cannot be trusted.
    """
    running = _read_record(data)
    return running if running is not None and is_alive(running) else None


def last_port(data: Path) -> int | None:
    """The port of a controller that ended without cleaning up (``kill -9``, a power cut): clients still use it.

    Raises:
        MooringsError: ``config.invalid``, as of ``find_running``.
    """
    stale = _read_record(data)
    try:
        return urlsplit(stale.url).port if stale is not None else None
    except ValueError:
        return None


def check_own_folder(data: Path) -> None:
    """Check that a folder that exists (or the target of a link) belongs to this user.

    Raises:
        MooringsError: ``config.invalid``.
    """
    try:
        owner = data.stat().st_uid
    except OSError:
        return  # there is none: nothing in it can mislead
    if owner != os.geteuid():
        raise MooringsError(
            "config.invalid",
            f"the data folder {data} belongs to user {owner}, not to you",
            hint=owner_hint(owner) or "name one of your own with --data or MOORINGS_DATA",
        )


def owner_hint(owner: int) -> str:
    """A hint for root about the files of the user ``owner``; empty for other users, who cannot become that user."""
    if os.geteuid() != 0:
        return ""
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"'#{owner}'"
    return f"work as that user: sudo -u {name} moor ..."


def user_subject() -> str:
    """This user as a subject: a login name may hold characters (a backslash, say) that a subject may not."""
    try:
        name = re.sub(r"[^A-Za-z0-9._@+-]", "-", getpass.getuser())[:64]
    except (KeyError, OSError):  # a user id without a name, as in containers
        name = ""
    return name if name.strip(".") else f"uid{os.getuid()}"


def find_lock_holders(lock: Path) -> list[int]:
    """The processes that hold the lock of a file, from /proc/locks.

    Trying to lock would disturb a controller that is starting.
    """
    try:
        inode = str(lock.stat().st_ino)
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    held = (line.split() for line in lines)
    found = [int(words[4]) for words in held if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode]
    return [pid for pid in found if _has_open(pid, lock)]  # another file system may have a file with that number


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open; assumed if its files cannot be listed."""
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return True
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            if path.samefile(descriptor):
                return True
    return False


def controller_of_pid(pid: int) -> ControllerProcess | None:
    """The controller that a lock holder's process is; None if it is something else, or has ended.

    Its address and release are not known, as there is no record of it.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return ControllerProcess(pid, parse_start_ticks(line), "", "") if CONTROLLER_MODULE.encode() in words else None
    except (OSError, ValueError, IndexError):
        return None


def _read_record(data: Path) -> ControllerProcess | None:
    check_own_folder(data)
    try:
        descriptor = os.open(data / RECORD_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            return parse_record(file.read(RECORD_CHARS_MAX)) if _is_own_file(descriptor) else None
    except OSError:
        return None


def _is_own_file(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def is_alive(running: ControllerProcess) -> bool:
    """Whether this very process is alive (a zombie is not)."""
    try:
        line = Path(f"/proc/{running.pid}/stat").read_text(encoding="utf-8", errors="replace")
        return parse_start_ticks(line) == running.start_ticks and line.rpartition(")")[2].split()[0] != "Z"
    except (OSError, ValueError, IndexError):
        return False


def start_controller(launch: ControllerLaunch) -> StartedController:
    """Start a controller in its own session, with its output in ``controller.log``.

    Raises:
        MooringsError: ``config.invalid``: the data folder is unusable.
    """
    try:
        launch.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own_folder(launch.data)
        if launch.credentials is not None:
            launch.credentials.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = open_log(launch.data / LOG_NAME)
    except OSError as error:
        raise MooringsError(
            "config.invalid",
            f"the data folder {launch.data} cannot be used: {format_cause(error)}",
            hint="name another with --data or MOORINGS_DATA",
        ) from error
    try:
        log_at = os.fstat(log).st_size
        process = subprocess.Popen(
            build_argv(launch),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
        return StartedController(process, log_at)
    finally:
        os.close(log)


def open_log(path: Path) -> int:
    """Open the log to append: never through a link, and only a regular file of this user."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    log = os.open(path, flags, 0o600)
    if not _is_own_file(log):
        os.close(log)
        raise OSError(errno.EINVAL, f"{path.name} is no file of yours")
    return log


def wait_for_address(started: StartedController, data: Path, limit_s: float) -> ControllerProcess | None:
    """The started controller once it has published its address; None if the time is up.

    Raises:
        MooringsError: its own error, with the last lines of its log: it died. ``controller.running``: another was
            quicker.
    """
    process, until = started.process, time.monotonic() + limit_s
    while time.monotonic() < until:
        running = find_running(data)
        if running is not None and running.pid == process.pid:
            return running
        code = process.poll()
        if code is not None:
            if running is not None:
                raise MooringsError(
                    "controller.running", f"another controller uses {data}: process {running.pid}, {running.url}"
                )
            raise exit_error(data, code, started.log_at)
        time.sleep(LOOK_AGAIN_S)
    return None


def exit_error(data: Path, code: int, log_at: int = 0) -> MooringsError:
    """The error for a controller that ended while starting: its own error, else its last log lines.

    Args:
        data: its data folder.
        code: its exit code, or minus the signal's number.
        log_at: where its part of the log begins, in bytes; the part before is from earlier ones.
    """
    lines = last_lines(data / LOG_NAME, LOG_LINES_SHOWN, log_at)
    message = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
    hint = next((line.removeprefix("hint: ") for line in reversed(lines) if line.startswith("hint: ")), "")
    how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
    log = f"all of its log: {data / LOG_NAME}"
    named = _CODE.search(message)
    known = named[1] if named is not None and named[1] in ERRORS else ""
    message = message.removesuffix(f" ({known})")  # it is given once, after our own sentence
    detail = message or f"its last words: {' | '.join(lines) or 'none'}"
    return MooringsError(
        known or "internal.error",
        f"the controller ended {how}: {detail}",
        hint=f"{hint}; {log}" if hint else log,
    )


def last_lines(path: Path, count: int, after: int = 0) -> list[str]:
    """The last lines of a log after its first ``after`` bytes; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(after if after <= os.fstat(file.fileno()).st_size else 0)  # it may have been rotated meanwhile
            return [line.decode("utf-8", errors="replace").rstrip("\n") for line in deque(file, maxlen=count)]
    except OSError:
        return []


def stop_controller(running: ControllerProcess, limit_s: float) -> bool:
    """Ask a controller to end; return whether it ended within the limit.

    Raises:
        MooringsError: ``auth.denied``: it belongs to another user.
    """
    try:
        os.kill(running.pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        raise MooringsError("auth.denied", f"process {running.pid} belongs to another user") from error
    until = time.monotonic() + limit_s
    while is_alive(running):
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_AGAIN_S)
    return True
