"""The launcher's init container as a process, and its lines as they come."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Mapping

from tests.processes import DYING_WITH_US
from tests.waiting import patient, until


class LauncherProcess:
    def __init__(self, environment: Mapping[str, str], *arguments: str, stderr: int = subprocess.PIPE) -> None:
        # -S: no library at all
        words = [*DYING_WITH_US, sys.executable, "-S", "-m", "moorings.app.kubernetes_launcher", *arguments]
        self.process = subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, bufsize=1
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def wait_for(self, words: str) -> None:
        """Wait for a line with these words, a regular expression."""
        until(lambda: any(re.search(words, line) for line in self.lines), 60, what=lambda: f"{words!r} in {self.lines}")

    def end(self) -> int:
        """Wait for its end; its exit code."""
        code = self.process.wait(patient(60))
        self._reader.join()
        return code

    @property
    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()
