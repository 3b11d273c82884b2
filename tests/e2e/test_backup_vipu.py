"""A controller of a V-IPU pool that is restored on a new disk knows its partitions, and removes them in the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moorings.testing.fake_vipu import partitions_of, write_command
from tests.e2e.processes import ControllerProcess
from tests.e2e.test_vipu import POOL
from tests.waiting import patient, until

pytestmark = pytest.mark.slow


def tool(what: str, data: Path, file: Path) -> str:
    argv = [sys.executable, "-m", "moorings.app.backup", what, "--data", str(data), "--file", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=patient(60))
    assert done.returncode == 0, done.stderr
    return done.stdout


def claim(controller: ControllerProcess, name: str) -> None:
    status, made = controller.ask("POST", "/v1/claims?wait=30s", {"name": name, "size": 4})
    assert (status, made["state"]) == (201, "READY"), made


def test_a_live_job_keeps_its_partition_though_the_disk_is_new(tmp_path: Path) -> None:
    machine, file = tmp_path / "machine", tmp_path / "backup.tar.gz"
    command = write_command(machine, ipus=16, domain_size=16)
    controller = ControllerProcess(tmp_path, POOL.format(command=command, arguments='["--index", "{index}"]'))
    controller.start()
    try:
        claim(controller, "known")
        tool("save", controller.data, file)
        claim(controller, "since")
        assert controller.stop() == 0

        shutil.rmtree(controller.data)
        told = tool("restore", controller.data, file)
        assert "what was ordered of pod16 is that of the backup" in told
        controller.start()

        def seen() -> dict[str, bool]:
            devices = controller.ask("GET", "/v1/devices?limit=100")[1]["items"]
            return {device["partition"]: "claim" in device for device in devices if "partition" in device}

        until(lambda: seen() == {"known": True, "since": False})
        assert controller.ask("GET", "/v1/claims/known")[1]["state"] == "READY"
        binding = controller.ask("GET", "/v1/claims/known/binding")
        assert binding[0] == 200, binding
        assert controller.ask("DELETE", "/v1/claims/known?wait=30s")[0] == 200
        until(lambda: list(partitions_of(machine)) == ["since"])
    finally:
        if controller.process is not None and controller.process.poll() is None:
            assert controller.stop() == 0
