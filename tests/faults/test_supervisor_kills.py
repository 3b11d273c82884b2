"""``kill -9`` of the supervisor before and after each of its acts, one run a point, all under one controller.

A supervisor takes its tasks with it, so the exit code is known if, and only if, it had recorded the end; what must hold
at every point is that each task was started at most once, that the end is recorded once and after everything of the run
has gone, and that the partition is given back.
"""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checking import left, settle
from tests.faults.story import job, until_said
from tests.faults.victims import Forge, Victim, victim

AT_ONCE = 4
# The first to end takes the other with it, which shall have said by then that it was started.
SCRIPT = "echo up >> started; until [ $(wc -l < started) -ge 2 ]; do sleep 0.02; done; sleep 0.1; exit 7"


def order(victim: Victim, name: str, faults: dict[str, Any], script: str = SCRIPT) -> dict[str, Any]:
    """A run whose supervisor has those orders."""
    folder = victim.folder / name
    folder.mkdir()
    body = job(name, script, folder, tasks=2, size=2, environment={"FAULT_ORDERS": json.dumps(faults)})
    made: dict[str, Any] = victim.insist("POST", "/v1/runs", body, key=name)
    return made


def ended(victim: Victim, run: dict[str, Any]) -> dict[str, Any]:
    """The run once it has ended."""
    while True:
        found: dict[str, Any] = victim.insist("GET", f"/v1/runs/{run['id']}?wait=20s")
        if found.get("endedAt"):
            return found


@pytest.fixture(scope="session")
def acts(forge: Forge, template: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The acts of a supervisor, by number (from 1, at place 0): each what it does, and to what."""
    with victim(tmp_path_factory.mktemp("acts") / "dry", forge, template) as dry:
        dry.start()
        trace = dry.folder / "trace"
        assert ended(dry, order(dry, "dry", {"trace": str(trace)}))["exitCode"] == 7
        settle(dry, left)
        return [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_at_every_point(when: str, acts: list[str], forge: Forge, template: Path, tmp_path: Path) -> None:
    names = [act.split()[0] for act in acts]
    assert {"fork", "fsync", "replace", "_fork_exec", "reaped"} <= set(names)
    always = [act for act in acts if not act.endswith(".log")]  # logs are opened as often as the tasks write
    with victim(tmp_path / when, forge, template) as v:
        v.start()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            deaths = sum(threads.map(lambda at: kill_at(v, at, when), range(1, len(acts) + 1)))
        assert deaths > len(always) * 0.9
        settle(v, left)


def kill_at(v: Victim, at: int, when: str) -> int:
    """Kill one run's supervisor there; 1 if it died."""
    name = f"{when}-{at}"
    once = v.folder / f"{name}.died"
    found = ended(v, order(v, name, {"at": at, "when": when, "once": str(once)}))
    said = v.folder / name / "started"
    starts = said.read_text().split() if said.exists() else []
    told = (name, once.read_text() if once.exists() else "it lived", found, starts)
    assert len(starts) <= 2, told
    assert found["state"] in ("FAILED", "LOST"), told
    if found["state"] == "FAILED":
        assert (found["exitCode"], len(starts)) == (7, 2), told
    else:
        assert (found["exitCode"], once.exists()) == (137, True), told
    return int(once.exists())


@pytest.mark.smoke
@pytest.mark.slow
def test_with_its_controller(forge: Forge, template: Path, tmp_path: Path) -> None:
    """Both are killed at once, as by a machine that kills for memory; what the tasks had started is found and ended."""
    script = "(trap '' TERM HUP; echo deep >> started; while :; do sleep 0.05; done) & echo up >> started; wait"
    with victim(tmp_path / "v", forge, template) as v:
        v.start()
        runs = [order(v, f"run-{n}", {}, script) for n in range(4)]
        for n in range(4):
            until_said(v, v.folder / f"run-{n}" / "started", 4)
        v.kill()
        for run in runs:
            status = json.loads((v.data / "runs" / run["id"] / "status.json").read_text())
            os.kill(status["supervisor"]["pid"], signal.SIGKILL)
        v.start()
        assert {ended(v, run)["state"] for run in runs} == {"LOST"}
        settle(v, left)
