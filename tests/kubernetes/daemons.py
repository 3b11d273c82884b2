"""Processes that belong to a cluster in a folder: none outlives the process that runs the tests."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.waiting import patient, until

START_S = 60.0
MARK = "MOORINGS_TEST_CLUSTER"

# Until its input ends, as whoever holds the other end removes the cluster or is dead. What belongs to the cluster is
# told by a variable, down to the last process that nobody waits for. Containers are gone with their node's namespace.
_GUARD = """
cat > /dev/null
while found=$(grep -slzxF "$2=$1" /proc/[0-9]*/environ); [ -n "$found" ]; do
    for file in $found; do
        pid=${file#/proc/}
        kill -KILL "${pid%/environ}" 2> /dev/null
    done
    sleep 0.05
done
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    left=$(find /sys/fs/cgroup -depth -type d -path "*/${1##*/}*" 2> /dev/null)
    [ -n "$left" ] || break
    rmdir $left 2> /dev/null || sleep 0.2
done
rm -rf "$1" 2> /dev/null || { sleep 1; rm -rf "$1"; }  # what was dying wrote a last line
"""

T = TypeVar("T")


class Daemons:
    """The daemons of a cluster, each with a log in ``folder/log``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "log").mkdir()
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(folder), MARK],
            stdin=subprocess.PIPE,
            start_new_session=True,  # it has to outlive a Ctrl-C
            cwd="/",
            env={"PATH": os.environ["PATH"]},
        )
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # The kernel ends a child when the *thread* that started it ends, so this one stays.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="kubernetes")

    def launch(self, name: str, words: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Start a daemon; ``env`` is added to a plain environment."""

        def start() -> subprocess.Popen[bytes]:
            with (self.folder / "log" / f"{name}.log").open("ab") as log:
                return subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", "--", *map(str, words)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **(env or {}), MARK: str(self.folder)},
                    start_new_session=True,
                )

        assert not self.runs(name), f"{name} is up"
        self._running[name] = self._starter.submit(start).result()

    def runs(self, name: str) -> bool:
        """Whether a daemon was started, and neither stopped nor ended."""
        return name in self._running and self._running[name].poll() is None

    def pid(self, name: str) -> int:
        """A daemon's process."""
        return self._running[name].pid

    def wait(self, name: str, useful: Callable[[], T | None], timeout: float = START_S) -> T:
        """Wait until a daemon is of use; the first true value."""

        def look() -> T | None:
            assert self.runs(name), f"{name} has ended:\n{self.log(name)}"
            return useful()

        return until(look, timeout, what=lambda: f"{name} is not up:\n{self.log(name)}")

    def stop(self, name: str, seconds: float = START_S) -> None:
        """End a daemon in good order, and wait for it; by force after so many seconds."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patient(seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self, name: str) -> None:
        """SIGKILL; nothing happens to one that does not run."""
        if process := self._running.pop(name, None):
            process.kill()
            process.wait()

    def log(self, name: str, characters: int = 4000) -> str:
        """The end of what a daemon said."""
        file = self.folder / "log" / f"{name}.log"
        return file.read_text(errors="replace")[-characters:] if file.exists() else ""

    def remove(self) -> None:
        """End everything, the youngest first, and remove the folder."""
        for name in reversed(list(self._running)):
            self.kill(name)
        self._starter.shutdown()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(patient(START_S))
