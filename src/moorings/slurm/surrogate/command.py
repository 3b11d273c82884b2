"""A command of this machine, shown as a step while it runs: for programs that start work elsewhere and wait for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from moorings.ports.mirror import Mirror

_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT)


def run_command(argv: Sequence[str], *, mirror: Mirror, name: str, grace_s: float, note: Callable[[str], None]) -> int:
    """Run a command to its end, in the main thread; return its exit code, 128 + N after signal N.

    It has a process group of its own, and every signal goes to that group. In the foreground of a terminal it must stay
    in the terminal's group, where Ctrl-C reaches it anyway.

    Args:
        argv: the command.
        mirror: where it is shown.
        name: the name of its step.
        grace_s: between TERM and KILL, if the step is cancelled.
        note: called with a sentence on a cancel.

    Raises:
        OSError: it cannot be started.
    """
    child = _Child(grouped=not _in_foreground())
    before = {number: signal.getsignal(number) for number in _PASSED_ON}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, child.pass_on)
    try:
        process = child.start(argv)

        def stop(why: str) -> None:
            note(f"{why}: stopping {argv[0]}")
            child.stop(grace_s)

        shown = mirror.begin(name, stop)
        code = process.wait()
        shown.end(code == 0)
    finally:
        for number in heard:
            signal.signal(number, before[number])
    return code if code >= 0 else 128 - code


class _Child:
    def __init__(self, *, grouped: bool) -> None:
        self._grouped = grouped
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(argv, process_group=0 if self._grouped else None)
        for number in self._early:
            self._send(number)
        return self._process

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        """A signal handler."""
        if self._process is None:
            self._early.append(number)
        elif self._grouped or number not in _OF_TERMINALS:
            self._send(number)

    def stop(self, grace_s: float) -> None:
        """TERM, and KILL if it has not ended by then; in any thread."""
        assert self._process is not None
        self._send(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._grouped:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)


def _in_foreground() -> bool:
    """Whether a terminal's Ctrl-C is for us."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
