"""A workflow's output for the user: dated lines about jobs on stderr, and the jobs' own output on stdout."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from moorings.terminal import console
from moorings.terminal.progress import Progress


class DatedConsole(console.Console):
    """The stream for lines: each with its date, as in logs that are read a day later."""

    def info(self, text: str) -> None:
        super().info(f"{_now()}  {text}")

    def write_live(self, text: str) -> None:
        super().write_live(f"{_now()}  {text}" if text else "")


def make_progress(to: DatedConsole) -> Progress:
    """Reports waits: one live line on a terminal, elsewhere a line at each change.

    An unchanged reason is repeated every five minutes: jobs wait for hours in an appliance's queue.
    """
    return Progress(to, repeat_s=300.0)


class JobOutput:
    """A job's output on its way to the user, and into a file beside the job's order.

    With several tasks, their lines have a prefix ``[rank] ``; those of the first task, which reports the progress, are
    shown without it.

    Args:
        show: writes to the user.
        file: gets a copy; a full disk must not end a job, so output that cannot be written is dropped.
    """

    def __init__(self, show: Callable[[bytes], None], file: Path) -> None:
        self._show = show
        self._copy: BinaryIO | None = None
        try:
            self._copy = file.open("wb")
        except OSError:
            self._copy = None

    def write(self, chunk: bytes) -> None:
        """Take the next bytes: whole lines if several tasks write."""
        lines = chunk.splitlines(keepends=True)
        shown = b"".join(line.removeprefix(b"[0] ") for line in lines)
        if self._copy is not None:
            try:
                self._copy.write(shown)
                self._copy.flush()
            except OSError:
                self.close()
        self._show(shown)

    def close(self) -> None:
        """Close the file."""
        copy, self._copy = self._copy, None
        if copy is not None:
            try:
                copy.close()
            except OSError:
                return


def format_seconds(seconds: float) -> str:
    """A duration in a sentence: ``4.2 s``, ``12 min 5 s``, ``3 h 20 min``."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_count(number: int, one: str, more: str = "") -> str:
    """``1 system``, ``2 systems``."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
