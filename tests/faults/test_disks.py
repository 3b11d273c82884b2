"""Disks that are full, dying or read-only: what is asked is refused with the reason, what runs goes on, and everything
recovers when the disk does, without a restart.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checking import events_of, left, processes_of_runs, settle
from tests.faults.story import job, until_said
from tests.faults.victims import DiedError, Forge, Victim, victim
from tests.waiting import until

DISK = "4m"
REFUSALS = 4  # in a row
GATED = "echo up >> said; until test -e gate; do sleep 0.02; done; echo bye >> said; exit 7"


@pytest.fixture
def v(forge: Forge, template: Path, tmp_path: Path) -> Iterator[Victim]:
    """A victim whose data folder is a small disk of its own."""
    with victim(tmp_path / "v", forge, template) as made:
        fresh = made.data.rename(tmp_path / "fresh")
        made.data.mkdir()
        made.reserve = True
        _mount(made.data)
        try:
            shutil.copytree(fresh, made.data, dirs_exist_ok=True)
            yield made
            if made.alive:
                made.kill()
        finally:
            subprocess.run(["umount", "--lazy", made.data], check=True)


def _mount(folder: Path) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", folder], capture_output=True, text=True
    )
    if done.returncode != 0:
        missing = f"a small disk cannot be mounted here (root is needed): {done.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)


def fill(v: Victim) -> Path:
    """Fill the disk to the last byte; the file to remove again."""
    filler = v.data / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1):
            while _written(file, b"x" * size):
                pass
    return filler


def _written(file: FileIO, content: bytes) -> bool:
    try:
        file.write(content)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def refused(v: Victim) -> tuple[str, dict[str, Any]]:
    """Ask for claims until they are refused again and again: a key that was, and the problem."""
    return _refused(lambda key: v.ask("POST", "/v1/claims", CLAIM, headers={"Idempotency-Key": key}))


def use_up(v: Victim, claim: str) -> dict[str, Any]:
    """Save what is no new work until there is no reserve either: the problem.

    The first one refused may not be the last that finds room: SQLite drops its log when its connections break.
    """

    def save(_: str) -> tuple[int, Any]:
        fill(v)
        return v.ask("POST", f"/v1/claims/{claim}/renew")

    return _refused(save)[1]


def _refused(ask: Callable[[str], tuple[int, Any]]) -> tuple[str, dict[str, Any]]:
    refusals: list[tuple[str, dict[str, Any]]] = []
    for number in range(3000):
        key = f"asked-{number}"
        status, answer = ask(key)
        if status == 503:
            refusals.append((key, answer))
            if len(refusals) == REFUSALS:
                return refusals[-1]
        else:
            assert status in (200, 201), answer
            refusals.clear()
    raise AssertionError("there is room for ever")


CLAIM = {"size": 1, "pool": "quick"}


def ready(v: Victim) -> tuple[int, str]:
    """What ``/readyz`` says."""
    status, answer = v.ask("GET", "/readyz")
    return status, answer.get("detail", "")


def wait_ready(v: Victim) -> None:
    """Wait until the controller has found out by itself that the disk works again."""
    until(lambda: ready(v)[0] == 200)


def drain(v: Victim) -> None:
    """Release everything, and see that nothing is left."""
    for claim in v.everything("claims"):
        if not claim["owner"].startswith("local/"):
            v.insist("DELETE", f"/v1/claims/{claim['id']}")
    settle(v, left)


@pytest.mark.slow
def test_a_full_disk(v: Victim, tmp_path: Path) -> None:
    v.start()
    run = v.insist("POST", "/v1/runs", job("run", GATED, tmp_path, tasks=2, size=2), key="run")
    until_said(v, tmp_path / "said", 2)
    held = v.insist("POST", "/v1/claims?wait=20s", CLAIM, key="held")
    waits = v.insist("POST", "/v1/claims", {**CLAIM, "leaseS": 3600}, key="waits")
    filler = fill(v)
    key, problem = refused(v)
    assert (problem["code"], problem["retryable"]) == ("store.nearly_full", True)
    assert "space" in problem["hint"]
    assert v.ask("DELETE", f"/v1/claims/{held['id']}")[0] == 200, "what ends work has a reserve"
    until(lambda: v.ask("GET", f"/v1/claims/{held['id']}")[1]["state"] in ("RELEASING", "RELEASED"))
    problem = use_up(v, waits["id"])
    assert (problem["code"], problem["retryable"]) == ("store.unavailable", True)
    assert "disk is full" in problem["detail"]
    assert "space" in problem["hint"]
    status, why = ready(v)
    assert (status, "disk is full" in why) == (503, True)
    assert v.ask("GET", "/healthz")[0] == 200
    assert v.ask("GET", "/v1/claims")[0] == 200, "who only looks is served"
    assert "endedAt" not in v.ask("GET", f"/v1/runs/{run['id']}")[1]
    (tmp_path / "gate").touch()
    _wait_until_gone(run["id"])
    assert "endedAt" not in v.ask("GET", f"/v1/runs/{run['id']}")[1], "its end cannot be recorded yet"
    held = [p for p in v.everything("partitions") if p["owner"] == f"local/{run['id']}"]
    assert len(held) == 1, "and its partition stays its own"
    filler.unlink()
    wait_ready(v)
    ended = v.insist("GET", f"/v1/runs/{run['id']}?wait=20s")
    assert (ended["state"], ended["exitCode"]) == ("FAILED", 7)
    assert v.insist("POST", "/v1/claims?wait=20s", CLAIM, key=key)["state"] == "READY"
    drain(v)
    assert v.starts == 1


@pytest.mark.slow
def test_a_full_disk_and_a_kill(v: Victim, tmp_path: Path) -> None:
    """A controller that starts on a full disk says so; once there is room it continues where the last one was."""
    v.start()
    run = v.insist("POST", "/v1/runs", job("run", GATED, tmp_path), key="run")
    until_said(v, tmp_path / "said", 1)
    filler = fill(v)
    v.kill()
    before = len(v.log())
    try:
        v.start()
        v.kill()  # there was room enough in a file that was there
    except DiedError:
        told = v.log()[before:]
        assert "full" in told or "No space left" in told, told
        assert "Traceback" not in told, told
    (tmp_path / "gate").touch()
    _wait_until_gone(run["id"])
    filler.unlink()
    v.start()
    ended = v.insist("GET", f"/v1/runs/{run['id']}?wait=20s")
    assert (ended["state"], ended["exitCode"]) == ("FAILED", 7)
    drain(v)


@pytest.mark.slow
def test_a_job_whose_output_fills_the_disk(v: Victim, tmp_path: Path) -> None:
    script = f"while echo 0123456789abcdef0123456789abcdef; do :; done 2>/dev/null; {GATED}"
    v.start()
    run = v.insist("POST", "/v1/runs", job("flood", script, tmp_path), key="run")
    until_said(v, tmp_path / "said", 1)  # it met the end of the disk, and went on
    assert refused(v)[1]["code"] == "store.nearly_full"
    assert v.ask("POST", f"/v1/runs/{run['id']}/cancel")[0] == 200, "a full disk stops nobody from stopping it"
    _wait_until_gone(run["id"])
    log = v.data / "runs" / run["id"] / "logs" / "0" / "0.log"
    os.truncate(log, 0)
    wait_ready(v)
    assert v.insist("GET", f"/v1/runs/{run['id']}?wait=20s")["state"] == "CANCELLED"
    drain(v)


@pytest.mark.slow
def test_a_read_only_disk(v: Victim) -> None:
    """A start on it is refused in one clear sentence; what was there is there when it can be written again."""
    v.start()
    claim = v.insist("POST", "/v1/claims?wait=20s", CLAIM, key="kept")
    assert v.stop() == 0
    subprocess.run(["mount", "-o", "remount,ro", v.data], check=True)
    before = len(v.log())
    with pytest.raises(DiedError):
        v.start()
    told = v.log()[before:]
    assert "Traceback" not in told, told
    assert told.startswith("error: "), told
    assert "Read-only file system" in told, told
    subprocess.run(["mount", "-o", "remount,rw", v.data], check=True)
    v.start()
    assert v.insist("POST", "/v1/claims?wait=20s", CLAIM, key="kept")["id"] == claim["id"]
    drain(v)


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_dying_disk(number: int, forge: Forge, template: Path, tmp_path: Path) -> None:
    """Writes of the database and fsyncs fail for a while, in the controller and in a run's supervisor."""
    broken = tmp_path / "broken"
    with victim(tmp_path / "v", forge, template) as v:
        v.start({"broken": str(broken)})
        orders = {"FAULT_ORDERS": json.dumps({"broken": str(broken)})}
        run = v.insist("POST", "/v1/runs", job("run", GATED, tmp_path, environment=orders), key="run")
        until_said(v, tmp_path / "said", 1)
        broken.write_text(str(number))
        key, problem = refused(v)
        assert problem["code"] == "store.unavailable"
        assert problem["hint"]
        assert ready(v)[0] == 503
        (tmp_path / "gate").touch()
        until_said(v, tmp_path / "said", 2)
        _wait_until_gone(run["id"])
        folder = v.data / "runs" / run["id"]
        until(lambda: "cannot be recorded" in (folder / "supervisor.log").read_text())
        assert not (folder / "end.json").exists(), "an end that may be lost is not recorded"
        broken.unlink()
        wait_ready(v)
        ended = v.insist("GET", f"/v1/runs/{run['id']}?wait=20s")
        assert (ended["state"], ended["exitCode"]) == ("FAILED", 7)
        assert v.insist("POST", "/v1/claims?wait=20s", CLAIM, key=key)["state"] == "READY"
        drain(v)
        assert v.starts == 1
        assert [name for _, name in events_of(v.data)].count("run.ended") == 1


def _wait_until_gone(run: str) -> None:
    until(lambda: not processes_of_runs().get(run))
