"""A port that another program has: it keeps a person's own controller from starting, and a shared machine's never."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.client.client import Client
from moorings.client.transport import Endpoint, RetryPolicy, Transport
from moorings.wire.errors import ERRORS
from tests.e2e.processes import ControllerProcess
from tests.processes import killed_on_failure, launch
from tests.waiting import patient, until


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_shared_machine_starts_without_its_port(tmp_path: Path, taken: int) -> None:
    made = ControllerProcess(tmp_path, port=taken, flags=("--sockets", str(tmp_path / "sockets")))
    (tmp_path / "pools.toml").write_text(made.pools)
    (tmp_path / "sockets/controller").mkdir(parents=True)
    server = f"unix://{tmp_path}/sockets/controller/api"
    with launch(made.command(), stderr=subprocess.PIPE) as process, killed_on_failure(process):
        record = made.data / "controller.json"
        until(lambda: record.exists() or process.poll() is not None)
        assert json.loads(record.read_text())["url"] == server
        with Client(Transport(Endpoint(server), RetryPolicy(retry_for_s=patient(10)))) as client:
            client.ready()
            assert client.version().version
        doctor = [sys.executable, "-m", "moorings.app.doctor", "--data", str(made.data)]
        found = [json.loads(line) for line in subprocess.check_output(doctor).splitlines()]
        (finding,) = [one for one in found if one["id"] == "host.controller"]
        assert (finding["verdict"], "takes no access keys" in finding["evidence"]) == ("WARN", True), finding
        process.terminate()
        _, said = process.communicate(timeout=patient(20))
    assert process.returncode == 0, said
    assert f"another program has 127.0.0.1:{taken}" in said.decode()


def test_a_controller_of_ones_own_needs_its_port(tmp_path: Path, taken: int) -> None:
    made = ControllerProcess(tmp_path, port=taken)
    (tmp_path / "pools.toml").write_text(made.pools)
    done = subprocess.run(made.command(), stderr=subprocess.PIPE, text=True, timeout=patient(30), check=False)
    assert done.returncode == ERRORS["config.invalid"].exit
    assert "choose another with --port" in done.stderr
