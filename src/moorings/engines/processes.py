"""Processes of this machine, from ``/proc`` (proc(5)), and signals that cannot hit another process.

A process id is reused: an identity here is the id *and* the start time, and a signal goes through a pidfd that was
checked after it was opened. psutil does much of this, but not the last part, and every supervisor would have to import
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_DEAD = frozenset("ZXx")
FDS_MAX = 4096  # of a process, that are looked at
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        pid: its id, for as long as it lives.
        ticks: its start time, in clock ticks since the boot.
        parent: its parent's id.
        group: its process group.
        session: its session.
        state: one letter; ``Z`` is a zombie.
        name: of its program, the first 15 bytes, or what it calls itself.
    """

    pid: int
    ticks: int
    parent: int
    group: int
    session: int
    state: str
    name: str = ""

    @property
    def has_exited(self) -> bool:
        """Whether it has ended, though its entry still exists."""
        return self.state in _DEAD


ProcessTable = Mapping[int, Process]


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def parse_stat(text: bytes) -> Process:
    """Parse ``/proc/<pid>/stat``; its second field, the name, may hold spaces and parentheses."""
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    pid, _, name = head.partition(b" (")
    return Process(
        pid=int(pid),
        name=name.decode("utf-8", "replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        ticks=int(fields[19]),
    )


def read_process(pid: int) -> Process | None:
    """Return the process that has that id now, or None."""
    text = _read_proc_file(pid, "stat")
    return parse_stat(text) if text else None


def list_processes() -> dict[int, Process]:
    """Return every process of the machine that has not ended, by id."""
    found = (read_process(int(name)) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208 - names are all we need
    return {process.pid: process for process in found if process is not None and not process.has_exited}


def descendants(ancestors: Iterable[int], table: ProcessTable) -> list[Process]:
    """Return the descendants of ``ancestors`` in ``table``, without the ancestors, parents first."""
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


def find_signal_receivers(
    task: int, signum: int, table: ProcessTable, passed_over: Callable[[Process], bool] = lambda _: False
) -> list[Process]:
    """Return the processes of a task that should get a signal: on each branch the first with a handler.

    A shell script that starts the training program has no handler, so the program gets the signal. Its data loaders
    inherited the handler, but stand behind it, so they do not. Those ``passed_over`` do not count.
    """
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    queue = [table[task]] if task in table else []
    found = []
    for process in queue:
        if handles_signal(process.pid, signum) and not passed_over(process):
            found.append(process)
        else:
            queue.extend(children.get(process.pid, ()))
    return found


def find_warning_receivers(task: int, signum: int, table: ProcessTable) -> list[Process]:
    """Return the processes of a task that should get a warning: those that would get the signal, but for torchrun.

    torchrun's agent handles TERM by ending its workers at once; the workers themselves may take it as a warning.
    """
    if signum != signal.SIGTERM:
        return find_signal_receivers(task, signum, table)
    return find_signal_receivers(task, signum, table, passed_over=_is_launcher)


def warn_task(programs: Iterable[int], signals: Iterable[signal.Signals], table: ProcessTable) -> signal.Signals | None:
    """Warn the programs below a task, with the first signal that one of them handles.

    Args:
        programs: the uppermost processes of the task.
        signals: the first choice first.
        table: of all processes.

    Returns:
        That signal; None: no program handles any of them, and nothing was sent.
    """
    tops = list(programs)
    for signum in signals:
        receivers = [each for pid in tops for each in find_warning_receivers(pid, signum, table)]
        for process in receivers:
            send_signal(process, signum)
        if receivers:
            return signum
    return None


_LAUNCHERS = frozenset({b"torchrun", b"accelerate", b"accelerate-launch", b"deepspeed", b"mpirun", b"mpiexec"})
_LAUNCHER_MODULES = (b"torch.distributed.", b"accelerate.commands.", b"deepspeed.launcher.")


def _is_launcher(process: Process) -> bool:
    """Whether the process starts workers as torchrun does, or runs torchrun's agent in itself."""
    words = read_command_line(process.pid)
    begin = next((at for at, word in enumerate(words[1:], 1) if not word.startswith(b"-")), 1)  # a script
    names = {word.rsplit(b"/", 1)[-1] for word in (*words[:1], *words[begin : begin + 1])}
    return bool(names & _LAUNCHERS) or any(
        option == b"-m" and module.startswith(_LAUNCHER_MODULES) for option, module in itertools.pairwise(words[:9])
    )


def open_for_writing(pids: Iterable[int], folder: str) -> frozenset[str]:
    """Return the paths in a folder that processes have open for writing, as far as we may see them."""
    found = set()
    inside = folder.rstrip("/") + "/"
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd")[:FDS_MAX]:  # noqa: PTH208 - a folder of the kernel's
                with contextlib.suppress(OSError, ValueError):
                    path = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115
                    if path.startswith(inside) and _is_writable(pid, fd):
                        found.add(path)
    return frozenset(found)


def hides_files(pids: Iterable[int]) -> bool:
    """Return whether one of the processes does not let us see what it has open: it is another user's, or has rights."""
    for pid in pids:
        try:
            os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - a folder of the kernel's
        except PermissionError:
            return True
        except OSError:  # it has ended
            continue
    return False


def _is_writable(pid: int, fd: str) -> bool:
    for line in _read_proc_file(pid, f"fdinfo/{fd}").splitlines():
        name, _, value = line.partition(b":")
        if name == b"flags":
            return int(value, 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def handles_signal(pid: int, signum: int) -> bool:
    """Whether the process has a handler for a signal, or its main thread blocks it, so that another can fetch it.

    A process whose main thread itself waits in ``sigwait`` is missed: meanwhile the kernel shows no blocked signal.
    """
    bit = 1 << (signum - 1)
    for line in _read_proc_file(pid, "status").splitlines():
        name, _, mask = line.partition(b":")
        if name in (b"SigCgt", b"SigBlk") and int(mask, 16) & bit:
            return True
    return False


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether the process was started with that variable; False also if that is unreadable (another user's process)."""
    return f"{name}={value}".encode() in _read_proc_file(pid, "environ").split(b"\0")


def is_in_container(pid: int) -> bool:
    """Whether the process has another root folder than this one, as those inside a container have."""
    try:
        theirs, ours = os.stat(f"/proc/{pid}/root"), os.stat("/")  # noqa: PTH116 - the link itself is "/" for each
    except FileNotFoundError:
        return False  # it has ended
    except PermissionError:
        return True  # no program of the container's runtime hides it
    return (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino)


def read_command_line(pid: int) -> list[bytes]:
    """Return the command line of a process; empty if it has ended."""
    return _read_proc_file(pid, "cmdline").split(b"\0")[:-1]


def has_file_open_below(pid: int, folder: Path) -> bool:
    """Whether the process has a file below ``folder`` open for writing (readers, as ``tail -f``, do not count)."""
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
    """Return a pidfd of exactly that process, or None if it has ended; it is readable once the process ends.

    Raises:
        OSError: out of descriptors.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    process = read_process(pid)  # checked after opening: from now on a reuse of the id cannot go unnoticed
    if process is not None and process.ticks == ticks and not process.has_exited:
        return fd
    os.close(fd)
    return None


def send_signal(process: Process, signum: int) -> bool:
    """Send a signal to exactly that process; return whether it was running and we were allowed to.

    Raises:
        OSError: out of descriptors.
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
    """Become the parent of every descendant whose own parent dies, also of daemons.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel KILL this process when its parent dies; end it at once if ``parent`` is already dead.

    Another signal than KILL lets it end what it has begun elsewhere.

    Call it between fork and exec. Children do not inherit it, and an exec of a set-uid program clears it.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _read_proc_file(pid: int, name: str) -> bytes:
    """Return a file of a process; empty if it has ended or is not readable for us."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - the whole machine is read this way
            return file.readall()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
