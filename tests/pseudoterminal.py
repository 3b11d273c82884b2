"""A real terminal around a process: typed into, read, resized and closed by a test."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.waiting import patient


class Pseudoterminal:
    """A process in a new session with a terminal.

    Args:
        command: of the process.
        environment: its variables.
        stderr: where its errors go; None: to the terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        rows: int = 24,
        columns: int = 80,
        stderr: int | None = None,
    ) -> None:
        self.master, slave = os.openpty()
        self.output = b""
        self._read_to = 0
        self.resize(rows, columns)
        self.slave_name = os.ttyname(slave)
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave if stderr is None else stderr,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def __enter__(self) -> Pseudoterminal:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
        self.process.kill()
        self.process.wait()

    def type(self, text: str) -> None:
        """Type keys."""
        os.write(self.master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def settings(self) -> list[object]:
        """The terminal's settings: a program may have changed them."""
        found: list[object] = termios.tcgetattr(self.master)
        return found

    def wait_for(self, text: str, within_s: float = 20.0) -> str:
        """Read until a text has come, behind what was waited for before; returns what came up to it."""
        wanted, until_s = text.encode(), time.monotonic() + patient(within_s)
        while (at := self.output.find(wanted, self._read_to)) < 0:
            if time.monotonic() > until_s:
                raise AssertionError(f"{text!r} has not come: {self.output[self._read_to :].decode(errors='replace')}")
            self.read(0.1)
        found = self.output[self._read_to : at + len(wanted)]
        self._read_to = at + len(wanted)
        return found.decode(errors="replace")

    def read(self, within_s: float) -> None:
        """Read what has come."""
        if self.master >= 0 and select.select([self.master], [], [], within_s)[0]:
            try:
                self.output += os.read(self.master, 1 << 16)
            except OSError:  # no process has the terminal open
                time.sleep(0.01)

    def wait(self, within_s: float = 30.0) -> int:
        """The exit code of the process; its output is read meanwhile."""
        until_s = time.monotonic() + patient(within_s)
        while self.process.poll() is None:
            if time.monotonic() > until_s:
                raise AssertionError(f"it does not end: {self.output[-2000:].decode(errors='replace')}")
            self.read(0.05)
        self.read(0)
        return self.process.returncode

    def close(self) -> None:
        """Close the terminal, as when its window is closed: the process gets HUP."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1
