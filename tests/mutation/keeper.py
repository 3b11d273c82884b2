"""Ends everything that a run of tests has left behind.

A test that fails half-way, as those over a changed package should, may leave what it started behind; and a supervisor
is made to outlive whoever started it: it has a session of its own and no parent. So the process that runs tests asks
the kernel to be the parent of every orphan below it (a *subreaper*), and ends what is left when a run is over. What it
ended is written into the run's output, a line each.

Refused: a process group (supervisors leave it), a cgroup (needs root, and systemd's leave), and a variable in the
environment by which they would be known (supervisors are given none of ours).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

TOO_LONG = 124
ENDING_S = 20.0  # more than the kernel needs, unless a process hangs in a disk
ENDED = "keeper: ended "

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel end this process with its parent."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_descendants(output: int) -> None:
    """End our descendants, until there are none: one that is killed may have made another meanwhile."""
    killed: set[int] = set()
    deadline_s = time.monotonic() + ENDING_S
    while True:
        _reap()
        living = descendants()
        if not living:
            return
        if time.monotonic() > deadline_s:
            os.write(output, f"keeper: could not end {sorted(living)}\n".encode())
            return
        for pid in living:
            _kill(pid, killed, output)
        time.sleep(0.01)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _kill(pid: int, killed: set[int], output: int) -> None:
    """Kill one; what has ended meanwhile, and whoever has its number now, is left alone."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        if pid in descendants():  # the handle is of this very process
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if pid not in killed:
                os.write(output, f"{ENDED}{pid} {' '.join(words.split())[:300]}\n".encode())
            killed.add(pid)
    except OSError:
        pass
    finally:
        os.close(handle)


def descendants() -> set[int]:
    """The processes below us that have not ended."""
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (process / "stat").read_bytes().rpartition(b") ")[2].split()[:2]
            if state not in (b"Z", b"X"):
                parents[int(process.name)] = int(parent)
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found - {os.getpid()}
        found |= more
