"""Controllers as processes of their own, to be killed and started again."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes import killed_on_failure, launch
from tests.released.code import environment_of
from tests.waiting import patient, until

POOLS = """
[[pool]]
name = "pod16"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 1, domain_size = 16, max_block = 16 }
[pool.simulated]
provision_s = 0.05
provision_per_device_s = 0.0
remove_s = 0.05
remove_per_device_s = 0.0
"""


LEADS = "controller.leads"


@dataclass
class ControllerProcess:
    """A controller on a data folder; ``start`` and ``kill`` as often as wanted."""

    folder: Path
    pools: str = POOLS
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    flags: tuple[str, ...] = field(default=())
    user: str = ""  # whom it runs as; empty: as the tests
    keeps: str = "+dac_read_search"  # of root's powers; Python may stand where only root reads
    code: Path | None = None  # of another release, as ``released_code``; None: today's

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def credentials(self) -> Path:
        return self.folder / "credentials.toml"

    @property
    def key(self) -> str:
        return str(tomllib.loads(self.credentials.read_text())["contexts"]["default"]["access_key"])

    def command(self) -> list[str]:
        powers = (f"--inh-caps={self.keeps}", f"--ambient-caps={self.keeps}")
        as_user = (
            "setpriv",
            "--pdeathsig=KILL",
            f"--reuid={self.user}",
            f"--regid={self.user}",
            "--init-groups",
            *powers,
            "--",
        )
        return [
            *(as_user if self.user else ()),
            *(sys.executable, "-m", "moorings.app.controller", "--data", str(self.data), "--port", str(self.port)),
            *("--pools", str(self.folder / "pools.toml"), "--credentials", str(self.credentials), *self.flags),
        ]

    def environment(self) -> dict[str, str]:
        return environment_of(self.code) | {
            "MOORINGS_JOBS_AS_ROOT": "true"
        }  # people here have keys, and we may be root

    def start(self) -> None:
        """Start it and wait until it answers."""
        (self.folder / "pools.toml").write_text(self.pools)
        told = self.data / "controller.json"
        with (self.folder / "controller.log").open("ab") as log:
            self.process = process = launch(self.command(), stderr=log, stdout=log, env=self.environment())

        def said() -> str:
            return (self.folder / "controller.log").read_text()[-2000:]

        def announced() -> bool:
            assert process.poll() is None, f"the controller has ended:\n{said()}"
            return told.exists() and json.loads(told.read_text())["pid"] == process.pid

        with killed_on_failure(process):
            until(announced, what=lambda: f"the controller does not say where it is:\n{said()}")
        self.port = int(json.loads(told.read_text())["url"].rsplit(":", 1)[1])

    def kill(self) -> None:
        """As a power cut would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """As an admin would; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(patient(20))

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """One request: status and parsed answer.

        Raises:
            OSError, http.client.HTTPException: no answer came.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(30))
        try:
            sent = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def holders(self) -> dict[str, bool]:
        """Of each partition that is there, by its name: whether a claim of ours has it."""
        found = self.ask("GET", "/v1/devices?limit=100")[1]["items"]
        return {device["partition"]: "claim" in device for device in found if "partition" in device}


@dataclass
class Twin(ControllerProcess):
    """One of two controllers of an installation on one machine."""

    database: str = ""
    shared: Path = Path()

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "MOORINGS_DATABASE": self.database}

    def command(self) -> list[str]:
        return [*super().command(), "--shared", str(self.shared)]

    def log(self) -> str:
        file = self.folder / "controller.log"
        return file.read_text() if file.exists() else ""

    @property
    def leads(self) -> bool:
        """Whether the last it said of its standing is that it leads."""
        said = [line for line in self.log().splitlines() if LEADS in line or "leadership.lost" in line]
        return bool(said) and LEADS in said[-1]


def start_leading(twin: Twin) -> None:
    """Start it and wait until it leads this time."""
    led = twin.log().count(LEADS)
    twin.start()
    until(lambda: twin.log().count(LEADS) > led)


def hand(controller: ControllerProcess, what: str, *flags: str) -> None:
    """Run a part of ``moor backup`` or ``moor restore`` on its data folder."""
    argv = [sys.executable, "-m", "moorings.app.backup", what, "--data", str(controller.data), *flags]
    done = subprocess.run(
        argv, env=controller.environment(), capture_output=True, text=True, check=False, timeout=patient(60)
    )
    assert done.returncode == 0, done.stderr
