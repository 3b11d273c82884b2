"""A place for the local engine on this very machine, which ends a test with nothing left of it."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from moorings.core.model.timestamps import Timestamp
from moorings.engines.processes import list_processes
from moorings.local.engine import LocalEngine
from moorings.local.records import SupervisorStatus
from moorings.local.run_folder import LocalRunFolder
from moorings.testing.engine_suite import PATIENCE_S, SuitePrograms
from moorings.workloads.runs import RunId
from tests.waiting import until_async


class WallClock:
    """The machine's time."""

    def now(self) -> Timestamp:
        return Timestamp(time.time_ns() // 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class EndlessClock(WallClock):
    """Sleeps never end: only a notification wakes."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


async def eventually(met: Callable[[], object]) -> None:
    """Returns once it is met: for what other processes do and tell nobody."""
    await until_async(met, PATIENCE_S)


def alive(pid: int) -> bool:
    return pid in list_processes()


class LocalRig:
    programs = SuitePrograms()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.work = folder / "work"
        self.work.mkdir(parents=True)

    @property
    def workdir(self) -> str:
        return str(self.work)

    async def open(self) -> LocalEngine:
        return LocalEngine(self.runs, WallClock())

    def of(self, run: RunId) -> LocalRunFolder:
        return LocalRunFolder(self.runs / run)

    def status(self, run: RunId, attempt: int = 0) -> SupervisorStatus:
        status = self.of(run).read(SupervisorStatus, attempt)
        assert status is not None
        return status

    def script(self, name: str, text: str, mode: int = 0o755) -> str:
        path = self.work / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def left(self) -> dict[int, str]:
        """Processes that have anything to do with this place, and their command lines."""
        found = {pid: self._command(pid) for pid in list_processes() if pid != os.getpid()}
        return {pid: command for pid, command in found.items() if command is not None}

    def _command(self, pid: int) -> str | None:
        """The command line of a process of this place; None: it is none, or has just gone."""
        place = str(self.folder)
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            told = command + Path(f"/proc/{pid}/environ").read_bytes()
            if place.encode() not in told and not Path(f"/proc/{pid}/cwd").readlink().is_relative_to(place):
                return None
        except OSError:
            return None
        return command.replace(b"\0", b" ").decode(errors="replace")

    def end(self) -> None:
        """Fails if anything was left; nothing is, afterwards."""
        left = self.left()
        while rest := self.left():
            for pid in rest:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)
        # A supervisor that has recorded the end is just about to leave.
        leaving = {pid for pid, command in left.items() if "moorings.local.supervisor" in command}
        assert {pid: command for pid, command in left.items() if pid not in leaving} == {}
