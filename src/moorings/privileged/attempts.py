"""The records of each attempt of a job, in root's folder, and the start of its supervisor as the person.

One attempt's folder::

    attempt.json   what was ordered; it is there before anything is started
    started.json   the supervisor's process; it is there before the supervisor may begin
    begun          it was let begin, and has; without it nothing of the job ever ran
    cancel.json    a request to the supervisor, and
    yield.json     another one; they are the person's to read: a reason may name others
    refused.json   why its person gets no process
    end.json       how it ended; it is there once nothing is left in the cgroup
    run/           the person's: the supervisor's own records and the output, for the controller's group to read
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from moorings.privileged.accounts import PersonAccount, groups_of
from moorings.privileged.cgroups import JobCgroup
from moorings.privileged.records import fsync_folder, read_record, reserve_record, write_record
from moorings.privileged.spool import entry_uid

PATH = "/usr/local/bin:/usr/bin:/bin"
FILES = 1024  # that a job may have open, as a login
NOT_BEGUN = 125  # the exit code of a child that was not let begin
CANNOT_BEGIN = 126
GO = b"g"


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A process that can be told from a later one with its id."""

    pid: int
    start_ticks: int
    boot: str

    def open(self) -> int | None:
        """A descriptor of it (pidfd_open(2)); None: it is gone."""
        if self.boot != boot_id():
            return None
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if start_ticks(self.pid) != self.start_ticks:
            os.close(descriptor)
            return None
        return descriptor

    def age_s(self) -> float:
        """How long ago it began, whatever the clock of the machine was set to."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / os.sysconf("SC_CLK_TCK")


def take_exit_code(descriptor: int) -> int | None:
    """The exit code of a child that has ended, 128 + N of signal N; None: not now, as while another process traces it.

    Raises:
        ChildProcessError: it is no child of this process, or its code was taken.
    """
    found = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
    return None if found is None else found.si_status + (0 if found.si_code == os.CLD_EXITED else 128)


class AttemptRecords:
    """The records of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path / "run"

    @property
    def entry(self) -> str:
        """Of its job."""
        return self.path.parent.name

    @property
    def begun(self) -> Path:
        """The file that the supervisor's process makes once it may begin."""
        return self.path / "begun"

    @property
    def number(self) -> int:
        """Of the attempt."""
        return int(self.path.name)

    @property
    def cgroup(self) -> str:
        """The name of its cgroup."""
        return f"{self.entry}.{self.number}"

    def create(self, uid: int, readers: int, order: Mapping[str, Any]) -> None:
        """Make the folder and what was ordered; the folder ``run`` is the person's, and that group may read it.

        Raises:
            OSError: that failed.
        """
        for each in (self.path.parent, self.path):
            each.mkdir(mode=0o700, exist_ok=each != self.path)
            each.chmod(0o711)
        self.run.mkdir(mode=0o700)
        os.chown(self.run, uid, readers)
        self.run.chmod(0o2750)
        fsync_folder(self.path.parent)
        fsync_folder(self.path.parent.parent)
        reserve_record(self.path / "end.json")
        write_record(self.path / "attempt.json", {"uid": uid, **order})

    def record(self, name: str) -> dict[str, Any] | None:
        """A record; None: there is none, or none that can be read."""
        try:
            return read_record(self.path / f"{name}.json")
        except ValueError:
            return None

    def process(self) -> StartedProcess | None:
        """The supervisor's process; None: there never was one."""
        found = self.record("started")
        return None if found is None else StartedProcess(int(found["pid"]), int(found["ticks"]), str(found["boot"]))

    def save_process(self, process: StartedProcess) -> None:
        """Record the supervisor's process."""
        write_record(
            self.path / "started.json", {"pid": process.pid, "ticks": process.start_ticks, "boot": process.boot}
        )

    def save_request(self, name: str, request: Mapping[str, Any]) -> None:
        """Record what the supervisor is asked to do, for the person to read."""
        write_record(self.path / f"{name}.json", dict(request), owner=entry_uid(self.entry))

    def save_end(self, code: int | None, why: str, oom_kills: int, *, is_stopped: bool = False) -> None:
        """Record the end.

        Args:
            code: the supervisor's exit code, 128 + N of signal N; None: not known.
            why: it ended, if the code does not say so.
            oom_kills: how many of its processes the kernel killed for their memory.
            is_stopped: all jobs were stopped, with the machine perhaps; what its supervisor says comes of that.
        """
        end = {"code": code, "why": why, "oomKills": oom_kills, "stopped": is_stopped, "at": time.time()}
        write_record(self.path / "end.json", end)


def start_supervisor(begin: Callable[[int, int], NoReturn], given: Mapping[str, Any]) -> tuple[int, int]:
    """Start a supervisor that waits; returns its process id, and a pipe: it begins once it can read ``GO`` there.

    If the pipe is closed without that, as it is if this process dies, the supervisor ends without having begun.

    Args:
        begin: goes on in the new process, with what is its standard input, and the pipe: ``begin_supervisor``.
        given: its standard input.

    Raises:
        OSError: it could not be started.
    """
    stdin = os.memfd_create("job")
    os.write(stdin, json.dumps(given).encode())
    os.lseek(stdin, 0, os.SEEK_SET)
    waits, goes = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(goes)
        raise
    else:
        if pid == 0:
            os.close(goes)
            try:
                begin(stdin, waits)
            finally:
                os._exit(CANNOT_BEGIN)  # nothing of ours may run on in this process
    finally:
        os.close(stdin)
        os.close(waits)
    return pid, goes


def begin_supervisor(
    command: Sequence[str],
    find_person: Callable[[], PersonAccount],
    open_session: Callable[[str], None],
    folder: AttemptRecords,
    cgroup: JobCgroup,
    stdin: int,
    waits: int,
) -> NoReturn:
    """Become the person, in the job's cgroup, and execute the supervisor; in a process that was forked for it.

    The person is found here, because a directory service may take its time.
    """
    try:
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        # A request may come before the supervisor listens: the signal waits for it, and does not kill it.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        close_others(stdin, waits)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))  # not the daemon's own; PAM may give more
        cgroup.enter()
        if os.read(waits, 1) != GO:
            os._exit(NOT_BEGUN)
        folder.begun.touch(0o600)
        account = find_person()
        groups = groups_of(account)
        leave_login(account.uid)
        open_session(account.name)
    except Exception as error:
        write_record(folder.path / "refused.json", {"why": str(error)})
        os._exit(CANNOT_BEGIN)
    try:
        os.dup2(stdin, 0)
        become(account, groups)
        output = os.open(folder.run / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 1 << 20)
        os.execve(command[0], [*command, str(folder.path)], supervisor_environment(account))  # noqa: S606 - no shell
    except BaseException as error:  # nothing of ours may run on in this process
        sys.stderr.write(f"{account.name}: {error!r}\n")
    os._exit(CANNOT_BEGIN)


def close_others(*kept: int) -> None:
    """Close all descriptors but the first three and these, in a process that was forked: the daemon's lock is one."""
    begin = 3
    for each in sorted(kept):
        os.closerange(begin, each)
        begin = each + 1
    os.closerange(begin, 1 << 20)


def become(account: PersonAccount, groups: Sequence[int]) -> None:
    """Become a person for good.

    Raises:
        OSError: that failed, or could be undone.
    """
    os.umask(0o077)
    os.chdir("/")
    os.setgroups(groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    leave_keyring()
    try:
        os.setuid(0)
    except PermissionError:
        return
    raise OSError("the powers of root could not be dropped")


def leave_login(uid: int) -> None:
    """Give up what this process has from the daemon, and the daemon from the login that started it."""
    for name, value in (("loginuid", uid), ("oom_score_adj", 0)):
        with contextlib.suppress(OSError):  # there is no audit here, or its login is for good
            Path(f"/proc/self/{name}").write_text(str(value))


def end_with(parent: int) -> None:
    """Have the kernel kill this process, which was forked, when its parent dies (PR_SET_PDEATHSIG, prctl(2)).

    Raises:
        OSError: that failed, or the parent is dead.
    """
    if ctypes.CDLL(None).prctl(1, signal.SIGKILL) or os.getppid() != parent:
        raise OSError("the process that this one works for has ended")


def leave_keyring() -> None:
    """Join a new session keyring (keyctl(2)): that of the daemon would be shared by all jobs.

    Raises:
        OSError: that failed.
    """
    number = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}.get(os.uname().machine)
    if number is None:
        raise OSError(f"the number of keyctl(2) on {os.uname().machine} is not known")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 1, None) == -1 and ctypes.get_errno() != errno.ENOSYS:
        raise OSError(ctypes.get_errno(), "a new session keyring could not be joined")


def supervisor_environment(account: PersonAccount) -> dict[str, str]:
    """The whole environment of a supervisor: nothing of it is anybody's choice."""
    named = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    return {"PATH": PATH, "LANG": "C.UTF-8", **named}


def boot_id() -> str:
    """The id of this start of the machine (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int:
    """When a process began, in clock ticks since the machine did (proc(5)); -1: it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return int(text.rpartition(")")[2].split()[19])
