"""``kill -9`` of ``moor`` before and after each thing it sends and reads.

A killed client owns nothing: a run it started goes on and ends, a claim it made waits and holds until somebody deletes
it (one with a lease: until that runs out). There is at most one of either, whatever the client was doing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checking import left, settle
from tests.faults.victims import Forge, Victim, python_path, victim
from tests.waiting import patient

AT_ONCE = 3
KILLED = -signal.SIGKILL


def moor(v: Victim, orders: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
    """The command, with orders to obey."""
    file = v.folder / f"{orders['name']}.json"
    file.write_text(json.dumps(orders))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(v.folder),
        "PYTHONPATH": python_path(),
        "FAULT_ORDERS": str(file),
        "MOORINGS_SERVER": f"http://127.0.0.1:{v.port}",
        "MOORINGS_ACCESS_KEY": v.key,
    }
    return subprocess.run(
        [sys.executable, "-m", "moorings.cli.main", *words],
        env=environment,
        cwd=v.folder,
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )


def acts(v: Victim, name: str, *words: str) -> int:
    """How much the command does."""
    trace = v.folder / f"{name}.trace"
    done = moor(v, {"name": name, "trace": str(trace)}, *words)
    assert done.returncode == 0, done.stderr
    names = [line.split()[1] for line in trace.read_text().splitlines()]
    assert {"connect", "request", "getresponse", "read"} <= set(names)
    return len(names)


@pytest.mark.slow
def test_moor_run(forge: Forge, template: Path, tmp_path: Path) -> None:
    with victim(tmp_path / "v", forge, template) as v:
        v.start()

        def words(name: str) -> tuple[str, ...]:
            script = "echo up; echo up >> $0; sleep 0.3"
            return ("run", "--ipus", "1", "--pool", "slow", "--name", name, "--", "sh", "-c", script, name)

        n_acts = acts(v, "dry", *words("dry"))
        assert _kill_everywhere(v, words, n_acts) > n_acts
        runs = [v.insist("GET", f"/v1/runs/{run['id']}?wait=20s") for run in v.everything("runs?all=1")]
        assert {run["state"] for run in runs} == {"SUCCEEDED"}, "nobody cancelled them"
        names = [run["name"] for run in runs]
        assert len(names) == len(set(names)), "each was made at most once"
        assert len(names) > n_acts, "and most were"
        assert all((v.folder / name).read_text() == "up\n" for name in names)
        settle(v, left)


@pytest.mark.slow
def test_moor_create(forge: Forge, template: Path, tmp_path: Path) -> None:
    with victim(tmp_path / "v", forge, template) as v:
        v.start()

        def words(name: str) -> tuple[str, ...]:
            return ("create", "claim", name, "--size", "1", "--pool", "slow", "--lease", "5s", "--wait")

        n_acts = acts(v, "dry", *words("dry"))
        assert _kill_everywhere(v, words, n_acts) > n_acts
        claims = v.everything("claims?all=1")
        names = [claim["name"] for claim in claims]
        assert len(names) == len(set(names))
        for claim in claims:
            ended = v.insist("GET", f"/v1/claims/{claim['id']}?wait=60s&for=ENDED")
            assert "its lease ran out" in ended["reason"]["message"], "nobody renews it, so it goes by itself"
        settle(v, left)


def _kill_everywhere(v: Victim, words: Callable[[str], tuple[str, ...]], n_acts: int) -> int:
    """Kill one command at each point, some at the same time; how many died."""

    def kill(at: int, when: str) -> int:
        name = f"{when}-{at}"
        done = moor(v, {"name": name, "at": at, "when": when}, *words(name))
        assert done.returncode in (0, KILLED), done.stderr
        return int(done.returncode == KILLED)

    points = [(at, when) for at in range(1, n_acts + 1) for when in ("before", "after")]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return sum(threads.map(lambda point: kill(*point), points))
