"""Processes that tests start: none outlives the tests' own process, and none is left when it does not come up.

The kernel is asked to kill a child when its parent ends, since a test that is killed runs no finally. What the child
started itself is killed by descent. A process group was refused: what moorings starts goes into sessions of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

DYING_WITH_US = ("setpriv", "--pdeathsig=KILL", "--")
# The kernel ends a child when the *thread* that started it ends, so this one stays.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="processes")


def launch(
    words: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | IO[bytes] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command that dies with this process."""

    def start() -> subprocess.Popen[bytes]:
        argv = [*DYING_WITH_US, *map(str, words)]
        return subprocess.Popen(argv, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)

    return _STARTER.submit(start).result()


@contextlib.contextmanager
def killed_on_failure(process: subprocess.Popen) -> Iterator[None]:
    """A block that waits for a process to come up: if it fails, the process is killed with its descendants."""
    try:
        yield
    except BaseException:
        kill_tree(process)
        raise


def kill_tree(process: subprocess.Popen) -> None:
    """Kill a process with its descendants, and wait for it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)  # it starts no more
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> list[int]:
    """Its children and theirs; none if it has ended."""
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return [each for child in children for each in (child, *descendants(child))]
