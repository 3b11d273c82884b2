"""What the records of a database that went back learn of the world, with real processes; and it is replayed."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.demo import processes_of
from tests.e2e.processes import POOLS, ControllerProcess
from tests.e2e.test_backup import claim, in_hardware, start_run, tool
from tests.waiting import patient, until

pytestmark = pytest.mark.slow

WAYS = ("a backup is restored", "a copy is put in its place")


def remember(controller: ControllerProcess, way: str) -> Callable[[], str]:
    """What turns the database of a stopped controller back to this moment, and gives what is said of it."""
    file = controller.folder / "then"
    if way == WAYS[0]:
        assert tool("save", controller.data, file)[0] == 0

        def restore() -> str:
            code, told, err = tool("restore", controller.data, file)
            assert code == 0, err
            return told

        return restore
    database = controller.data / "moorings.db"
    with closing(sqlite3.connect(database)) as one, closing(sqlite3.connect(file)) as other:
        one.backup(other)

    def put_back() -> str:
        for left in controller.data.glob("moorings.db-*"):
            left.unlink()
        shutil.copy(file, database)
        return ""

    return put_back


def turn_back(controller: ControllerProcess, back: Callable[[], str]) -> str:
    assert controller.stop() == 0
    told = back()
    controller.start()
    return told


def events(controller: ControllerProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["seq"] if found else 0
        page = controller.ask("GET", f"/v1/events?limit=1000&after={after}")[1]["items"]
        if not page:
            return found
        found += page


def replay(controller: ControllerProcess) -> subprocess.CompletedProcess[str]:
    log = controller.folder / "log.json"
    log.write_text(json.dumps({"items": events(controller)}))
    words = ["replay", str(log), "--pools", str(controller.folder / "pools.toml")]
    command = [sys.executable, "-m", "moorings.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(60))


def begin(
    controller: ControllerProcess, gate: Path, size: int, within: str | None = None
) -> tuple[int, dict[str, Any]]:
    """A run whose job continues until there is a file ``gate``."""
    job = {
        "name": gate.name,
        "command": ["sh", "-c", f"until test -e {gate}; do sleep 0.05; done"],
        "workdir": "/tmp",
        "environment": {"PATH": "/usr/bin:/bin", "SECRET": "not-for-the-log"},
        "tasks": 1,
        "accelerators": {"size": size},
        "timeLimitS": 110,  # should the test fail, nothing of it is left for long
    }
    return controller.ask("POST", "/v1/runs", {"job": job} | ({"claim": within} if within else {}))


def state_of(controller: ControllerProcess, run: str) -> str:
    return str(controller.ask("GET", f"/v1/runs/{run}")[1].get("state", ""))


@pytest.mark.parametrize("way", WAYS)
def test_a_log_with_a_database_that_went_back_is_decided_again_the_same(
    controller: ControllerProcess, tmp_path: Path, way: str
) -> None:
    """Law 9: what the records learned is no input of a turn."""
    held = claim(controller, "held", 4)
    released = claim(controller, "released-since", 4)
    before = start_run(controller, tmp_path / "before", 4)
    waited = begin(controller, tmp_path / "waited", 8)[1]["id"]
    assert controller.ask("PUT", "/v1/projects/lab", {})[0] == 200
    back = remember(controller, way)
    assert controller.ask("DELETE", f"/v1/claims/{released}?wait=20s")[0] == 200
    (tmp_path / "before").touch()
    until(lambda: state_of(controller, waited) == "RUNNING")
    assert controller.ask("DELETE", f"/v1/claims/{held}?wait=20s")[0] == 200
    since = start_run(controller, tmp_path / "since", 4)
    for _ in range(2):  # and once more, from the same copy
        turn_back(controller, back)
        until(lambda: state_of(controller, waited) == "RUNNING")
        until(lambda: state_of(controller, before) == "SUCCEEDED")
        assert processes_of(since) != []
        for _ in range(3):
            status, made = controller.ask("POST", "/v1/claims?wait=0s", {"size": 4})
            assert status == 201, made
    assert tool("finish", controller.data)[0] == 0
    for gate in ("waited", "since"):
        (tmp_path / gate).touch()
    until(lambda: state_of(controller, waited) == "SUCCEEDED")
    until(lambda: since not in in_hardware(controller))
    done = replay(controller)
    assert (done.returncode, "all the same, byte for byte" in done.stdout) == (0, True), done.stdout + done.stderr
    if way == WAYS[0]:
        assert tool("save", controller.data, tmp_path / "after.tar.gz")[0] == 0
        command = [sys.executable, "-m", "moorings.cli.main", "replay", str(tmp_path / "after.tar.gz")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(60))
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_made_since_within_a_claim_is_in_the_records_again(
    controller: ControllerProcess, tmp_path: Path, way: str
) -> None:
    """Laws 1, 3: its claim would be free for the next run, or for a release, with its processes on the partition."""
    kept = claim(controller, "kept", 4)
    back = remember(controller, way)
    run = begin(controller, tmp_path / "gate", 4, kept)[1]["id"]
    until(lambda: state_of(controller, run) == "RUNNING")
    told = turn_back(controller, back)
    assert (run in told) == (way == WAYS[0]), "an admin is told"
    found = controller.ask("GET", f"/v1/runs/{run}")[1]
    assert (found.get("state"), found.get("claim"), found.get("name")) == ("RUNNING", kept, "gate"), found
    assert begin(controller, tmp_path / "second", 4, kept)[1].get("code") == "claim.held_by_run"
    assert controller.ask("DELETE", f"/v1/claims/{kept}")[1].get("code") == "claim.held_by_run"
    assert processes_of(run) != []
    told_of = [event for event in events(controller) if event["name"] == "database.turned_back"]
    assert run in json.dumps(told_of)
    assert "not-for-the-log" not in json.dumps(told_of), "law 10"
    (tmp_path / "gate").touch()
    until(lambda: state_of(controller, run) == "SUCCEEDED")
    assert begin(controller, tmp_path / "gate", 4, kept)[0] == 201
    until(lambda: not processes_of(run))
    assert replay(controller).returncode == 0


def test_a_partition_that_was_being_made_is_not_made_again_under_its_run(tmp_path: Path) -> None:
    """Law 3: the driver might reject it by now, and what is rejected is removed."""
    slow = ControllerProcess(tmp_path, POOLS.replace("provision_s = 0.05", "provision_s = 2.0"))
    slow.start()
    try:
        run = begin(slow, tmp_path / "gate", 4)[1]["id"]
        until(lambda: [one["state"] for one in slow.ask("GET", "/v1/claims")[1]["items"]] == ["GRANTED"])
        back = remember(slow, WAYS[1])
        until(lambda: state_of(slow, run) == "RUNNING")
        (slow.data / "simulated" / "pod16" / "faults.toml").write_text(
            '[[fault]]\nkind = "reject"\ncalls = ["create"]\n'
        )
        turn_back(slow, back)
        until(lambda: slow.ask("GET", "/v1/claims")[1]["items"] != [])
        assert [one["state"] for one in slow.ask("GET", "/v1/claims")[1]["items"]] == ["READY"]
        assert state_of(slow, run) == "RUNNING"
        assert (in_hardware(slow), processes_of(run) != []) == ({run: True}, True)
        (tmp_path / "gate").touch()
        until(lambda: state_of(slow, run) == "SUCCEEDED")
        until(lambda: in_hardware(slow) == {})
        assert replay(slow).returncode == 0
    finally:
        if slow.process is not None and slow.process.poll() is None:
            assert slow.stop() == 0
