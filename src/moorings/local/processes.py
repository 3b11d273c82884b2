"""Processes of this machine, as ``/proc`` shows them (proc(5)), and signals that cannot hit a stranger.

A process id alone names nobody for long: identity here is the id *and* the start time, and a signal goes through a
pidfd that was checked after it was opened. psutil does much of this, but not the last part, and it would be an import
of every supervisor.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_DEAD = frozenset("ZXx")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        pid: its id, for as long as it lives.
        ticks: when it started, in clock ticks since the boot.
        parent: its parent's id.
        group: its process group.
        session: its session.
        state: one letter; ``Z`` is a zombie, which runs no more.
    """

    pid: int
    ticks: int
    parent: int
    group: int
    session: int
    state: str

    @property
    def dead(self) -> bool:
        """Whether it has ended, though its entry is still there."""
        return self.state in _DEAD


ProcessTable = Mapping[int, Process]


@cache
def boot_id() -> str:
    """What names this boot of the machine."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def parse_stat(text: bytes) -> Process:
    """The process of a ``/proc/<pid>/stat``; its second field, the name, may hold spaces and parentheses."""
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    return Process(
        pid=int(head.split(b" ", 1)[0]),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        ticks=int(fields[19]),
    )


def read_process(pid: int) -> Process | None:
    """The process with that id now, or None."""
    text = _read_proc_file(pid, "stat")
    return parse_stat(text) if text else None


def list_processes() -> dict[int, Process]:
    """Every process of the machine that has not ended, by id."""
    found = (read_process(int(name)) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208 - names are all we need
    return {process.pid: process for process in found if process is not None and not process.dead}


def descendants(ancestors: Iterable[int], table: ProcessTable) -> list[Process]:
    """Those of ``table`` that descend from any of ``ancestors`` (who are not in the list), parents first."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    seen = set(ancestors)
    queue, found = list(seen), []
    for pid in queue:
        for child in children.get(pid, ()):
            if child.pid not in seen:
                seen.add(child.pid)
                queue.append(child.pid)
                found.append(child)
    return found


def find_signal_receivers(task: int, signum: int, table: ProcessTable) -> list[Process]:
    """Who of a task is to be told something by a signal: on each branch the first process that listens for it.

    A shell script that starts the training program does not listen, so the program is told. Its data loaders inherited
    its handler, but stand behind it, so they are not told.
    """
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    queue = [table[task]] if task in table else []
    found = []
    for process in queue:
        if handles_signal(process.pid, signum):
            found.append(process)
        else:
            queue.extend(children.get(process.pid, ()))
    return found


def handles_signal(pid: int, signum: int) -> bool:
    """Whether the process has a handler for a signal, or its main thread holds it back, so that another can fetch it.

    One whose main thread is itself inside ``sigwait`` is not seen: the kernel shows nothing held back meanwhile.
    """
    bit = 1 << (signum - 1)
    for line in _read_proc_file(pid, "status").splitlines():
        name, _, mask = line.partition(b":")
        if name in (b"SigCgt", b"SigBlk") and int(mask, 16) & bit:
            return True
    return False


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether the process was started with that variable; False also if we may not know (another user's process)."""
    return f"{name}={value}".encode() in _read_proc_file(pid, "environ").split(b"\0")


def read_command_line(pid: int) -> list[bytes]:
    """The command line of a process; empty if it has ended."""
    return _read_proc_file(pid, "cmdline").split(b"\0")[:-1]


def has_file_open_below(pid: int, folder: Path) -> bool:
    """Whether the process has a file below ``folder`` open for writing (readers, a ``tail -f``, do not count)."""
    inside = f"{folder}{os.sep}"
    try:
        for name in os.listdir(_PROC / str(pid) / "fd"):  # noqa: PTH208
            if not os.readlink(_PROC / str(pid) / "fd" / name).startswith(inside):  # noqa: PTH115
                continue
            flags = next(
                line for line in _read_proc_file(pid, f"fdinfo/{name}").splitlines() if line.startswith(b"flags:")
            )
            if int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                return True
    except (OSError, StopIteration):
        return False
    return False


def open_pidfd(pid: int, ticks: int) -> int | None:
    """A pidfd of that very process, or None if it has ended; readable once it ends.

    Raises:
        OSError: no descriptors are left.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    process = read_process(pid)  # the id cannot change hands any more without our seeing it: checked after opening
    if process is not None and process.ticks == ticks and not process.dead:
        return fd
    os.close(fd)
    return None


def send_signal(process: Process, signum: int) -> bool:
    """Send a signal to that very process; whether it was there and we may signal it.

    Raises:
        OSError: no descriptors are left.
    """
    fd = open_pidfd(process.pid, process.ticks)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, also of those that made themselves daemons.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel KILL this process when its parent dies; ends it at once if ``parent`` is dead already.

    To be called between fork and exec. It is not passed on to children, and lost by an exec of a set-uid program.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _read_proc_file(pid: int, name: str) -> bytes:
    """A file of a process; empty if it has ended or is not ours to read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - the whole machine is read this way
            return file.readall()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
