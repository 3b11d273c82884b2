"""A person at a shell: an interactive one on a terminal of its own, keys that are typed, and the line they lead to."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Mapping, Sequence

from tests.waiting import patient

WAIT_S = patient(30)
BEGINNING_OF_LINE = "\x01"  # Ctrl-A


class Keyboard:
    """An interactive shell."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.execve(argv[0], list(argv), dict(environment))  # in the child
        self._count = 0

    def close(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._terminal)

    def run(self, command: str) -> str:
        """Run a command; what the terminal showed of it."""
        self._count += 1
        self._type(f"{command}\necho 'en''d' {self._count}\n")
        return self._read_until(f"end {self._count}\r\n")

    def complete(self, begun: str) -> str:
        """The line after TAB, as the shell has it: it is echoed instead of being run."""
        self._count += 1
        self._type(f"{begun}\t{BEGINNING_OF_LINE}echo 'li''ne' {self._count}: \n")
        shown = self._read_until(f"line {self._count}: ", "\r\n")
        return shown.partition(f"line {self._count}: ")[2].partition("\r\n")[0].strip()

    def _type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def _read_until(self, *marks: str) -> str:
        """What comes until each mark has come behind the one before."""
        shown, deadline = "", time.monotonic() + WAIT_S
        while True:
            at = 0
            for mark in marks:
                at = shown.find(mark, at)
                if at < 0:
                    break
                at += len(mark)
            else:
                return shown
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the shell did not show {marks}: {shown[-1000:]!r}"
            shown += os.read(self._terminal, 4096).decode(errors="replace")
