"""Controllers that are made to die at chosen points, or are lied to by disk and clock."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.processes import ControllerProcess
from tests.faults.forge import INSIDE
from tests.procfs import every_process, lives
from tests.waiting import patient, until

POOLS = """
[[pool]]
name = "quick"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 16, max_block = 16 }
[pool.simulated]
provision_s = 0.0
provision_per_device_s = 0.0
reset_s = 0.0
reset_per_device_s = 0.0
remove_s = 0.0
remove_per_device_s = 0.0

[[pool]]
name = "slow"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 16, max_block = 16 }
[pool.simulated]
provision_s = 0.02
provision_per_device_s = 0.0
reset_s = 0.02
reset_per_device_s = 0.0
remove_s = 0.02
remove_per_device_s = 0.0
"""

PATIENCE_S = patient(60)
POLL_S = 0.002
UNKNOWN_YET = (OSError, http.client.HTTPException, ValueError)  # no answer, or half of one


def python_path() -> str:
    """PYTHONPATH for whoever is to obey orders, and for what it starts."""
    return os.pathsep.join(filter(None, (str(INSIDE), os.environ.get("PYTHONPATH"))))


class Forge:
    """The process that forks controllers; one a process of pytest. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forge.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": python_path()},
            cwd=Path(__file__).parents[2],
        )

    def start(self, order: dict[str, Any]) -> int:
        """Start a controller; its process id."""
        return int(self._say(order)["pid"])

    def wait(self, pid: int) -> int:
        """Wait until it has ended; its exit code, negative for a signal."""
        pidfd = os.pidfd_open(pid)  # not in the forge: others want to start something meanwhile
        try:
            if not select.select([pidfd], [], [], PATIENCE_S)[0]:
                raise AssertionError(f"controller {pid} does not end")
        finally:
            os.close(pidfd)
        return int(self._say({"wait": pid})["code"])

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=PATIENCE_S)

    def _say(self, order: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
            return answer


class DiedError(Exception):
    """The controller ended before it served."""


@dataclass
class Victim(ControllerProcess):
    """A controller from the forge, on a data folder; ``start`` and ``kill`` as often as wanted."""

    forge: Forge = field(kw_only=True)
    pools: str = POOLS
    pid: int = 0
    starts: int = 0
    reserve: bool = False  # whether its database keeps room on a full disk
    key_known: str = field(default="", repr=False)

    @property
    def key(self) -> str:
        self.key_known = self.key_known or super().key
        return self.key_known

    @property
    def alive(self) -> bool:
        """Whether it has not been seen to end."""
        return self.pid != 0

    def start(self, faults: dict[str, Any] | None = None, limits: dict[str, int] | None = None) -> None:
        """Start it and wait until it serves.

        Raises:
            DiedError: it ended before that.
        """
        self.launch(faults, limits)
        told = self.data / "controller.json"
        give_up = time.monotonic() + PATIENCE_S
        while self._announced(told) != self.pid:
            if self.gone() or time.monotonic() > give_up:
                self.buried()
                raise DiedError(self.log()[-2000:])
            time.sleep(POLL_S)
        self.port = int(json.loads(told.read_text())["url"].rsplit(":", 1)[1])

    def launch(self, faults: dict[str, Any] | None = None, limits: dict[str, int] | None = None) -> None:
        """Start it."""
        assert not self.alive
        (self.folder / "pools.toml").write_text(self.pools)
        arguments = self.command()[3:]
        log = str(self.folder / "controller.log")
        told = {"arguments": arguments, "log": log, "faults": faults, "limits": limits or {}, "reserve": self.reserve}
        self.pid = self.forge.start(told)
        self.starts += 1

    @staticmethod
    def _announced(told: Path) -> int:
        try:
            return int(json.loads(told.read_text())["pid"])
        except FileNotFoundError:
            return 0

    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "controller.log").read_text()

    def gone(self) -> bool:
        """Whether it has ended."""
        return not lives(self.pid)

    def buried(self) -> int:
        """Wait until it has ended; its exit code."""
        code = self.forge.wait(self.pid)
        self.pid = 0
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.buried() == -signal.SIGKILL

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.buried()

    def mend(self) -> bool:
        """Start it again if it has ended; whether it had."""
        if self.alive and not self.gone():
            return False
        if self.alive:
            self.buried()
        self.start()
        return True

    def insist(
        self, method: str, path: str, body: object = None, *, key: str | None = None, ok: tuple[int, ...] = (200, 201)
    ) -> Any:
        """The answer to a request that is repeated, with the same idempotency key, until one comes."""
        headers = {"Idempotency-Key": key} if key is not None else {}
        said: object = None

        def answered() -> tuple[Any] | None:
            nonlocal said
            try:
                status, answer = self.ask(method, path, body, headers=headers)
                if status in ok:
                    return (answer,)
                said = (status, answer)
                assert status == 503, (method, path, status, answer, self.log()[-3000:])
            except UNKNOWN_YET as error:
                said = repr(error)
            self.mend()
            return None

        return until(answered, 60, what=lambda: (method, path, said, self.log()[-3000:]))[0]

    def everything(self, what: str) -> list[dict[str, Any]]:
        """A list, all pages of it."""
        found: list[dict[str, Any]] = []
        mark = "&" if "?" in what else "?"
        after = ""
        while True:
            page = self.insist("GET", f"/v1/{what}{mark}limit=1000{after}")
            found += page["items"]
            if "continue" not in page:
                return found
            after = f"&continue={page['continue']}"


@contextlib.contextmanager
def victim(
    folder: Path, forge: Forge, template: Path | None = None, *, make: type[Victim] | None = None, **more: Any
) -> Iterator[Victim]:
    """A controller that is not started yet; ended with the block, and its runs with it.

    Args:
        folder: where its files are; made.
        forge: what starts it.
        template: a folder whose data it begins with.
        make: what kind of victim.
        more: its settings.
    """
    if template is not None:
        shutil.copytree(template, folder)
    else:
        folder.mkdir(parents=True)
    made = (make or Victim)(folder, forge=forge, **more)
    try:
        yield made
    finally:
        if made.alive:
            os.kill(made.pid, signal.SIGKILL)
            made.buried()
        _stop_supervisors(made.data / "runs")


def _stop_supervisors(runs: Path) -> None:
    """Leave no process behind, also after a failed test."""
    for pid in supervisors_below(runs):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def supervisors_below(runs: Path) -> list[int]:
    """Supervisors of runs whose folders are in that one."""
    found = []
    for pid, line in every_process("cmdline"):
        words = line.split(b"\0")
        if b"moorings.local.supervisor" in words and any(word.startswith(os.fsencode(runs)) for word in words):
            found.append(pid)
    return found


def make_template(folder: Path, forge: Forge) -> Path:
    """A folder with a database, an access key and a stopped controller: what most tests begin with."""
    with victim(folder, forge) as first:
        first.start()
        assert first.stop() == 0
    return folder
