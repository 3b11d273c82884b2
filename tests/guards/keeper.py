"""Runs one command, and ends everything that it started: ``python keeper.py LIMIT_S COMMAND...``.

A test that fails half-way, as those over a changed package should, may leave what it started behind; and a supervisor
is made to outlive whoever started it: it has a session of its own and no parent. So this process asks the kernel to be
the parent of every orphan below it (a *subreaper*), and ends what is left when the command is over, took too long, or
nobody waits for it any more. What it ended is told, in one line each, on standard error.

Refused: a process group (supervisors leave it), a cgroup (needs root, and systemd's leave), and a variable in the
environment by which they would be known (supervisors are given none of ours).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TOO_LONG = 124
STOPPED = 143
ENDING_S = 20.0  # more than the kernel needs, unless a process hangs in a disk
ENDED = "keeper: ended "

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class _StoppedError(Exception):
    """Nobody waits for us any more."""


def main(arguments: list[str]) -> int:
    """The command's exit status; ``TOO_LONG`` if it was ended."""
    limit_s, command = float(arguments[0]), arguments[1:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, _stop)
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        if os.getppid() != parent:
            return STOPPED
        return subprocess.Popen(command).wait(limit_s)
    except subprocess.TimeoutExpired:
        return TOO_LONG
    except _StoppedError:
        return STOPPED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_all()


def _stop(_number: int, _frame: object) -> None:
    raise _StoppedError


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _end_all() -> None:
    """End our descendants, until there are none: one that is killed may have made another meanwhile."""
    told: set[int] = set()
    deadline_s = time.monotonic() + ENDING_S
    while True:
        _reap()
        living = _descendants()
        if not living:
            return
        if time.monotonic() > deadline_s:
            sys.stderr.write(f"keeper: could not end {sorted(living)}\n")
            return
        for pid in living:
            _kill(pid, told)
        time.sleep(0.01)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _kill(pid: int, told: set[int]) -> None:
    """Kill one; what has ended meanwhile, and whoever has its number now, is left alone."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        if pid in _descendants():  # the handle is of this very process
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if pid not in told:
                sys.stderr.write(f"{ENDED}{pid} {' '.join(words.split())[:300]}\n")
            told.add(pid)
    except OSError:
        pass
    finally:
        os.close(handle)


def _descendants() -> set[int]:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
