"""Programs of the release before beside today's: controllers that take over from each other, and people's commands."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import ControllerProcess, hand
from tests.released.code import environment_of, released_code
from tests.waiting import patient, until

__all__ = ("released_code",)

pytestmark = pytest.mark.slow

RELEASED, TODAY = "released", "today"
BOTH_WAYS = [(RELEASED, TODAY), (TODAY, RELEASED)]


@dataclass
class Controller(ControllerProcess):
    """A controller whose code may be that of the release."""

    code: Path | None = None

    def environment(self) -> dict[str, str]:
        return environment_of(self.code) if self.code is not None else super().environment()


@pytest.fixture
def of(released_code: Path, tmp_path: Path) -> Iterator[Mapping[str, Controller]]:
    """A controller of each code, on one folder; both are ended."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "policy.toml").write_text('min_run = "0s"\nyield = "20s"\n')
    flags = ("--policy", str(folder / "policy.toml"))
    made = {RELEASED: Controller(folder, flags=flags, code=released_code), TODAY: Controller(folder, flags=flags)}
    yield made
    for one in made.values():
        if one.process is not None and one.process.poll() is None:
            for run in one.ask("GET", "/v1/runs")[1]["items"]:
                one.ask("POST", f"/v1/runs/{run['id']}/cancel?wait=20s")
            assert one.stop() == 0


def start_run(controller: Controller, name: str, script: str, size: int = 2, **job: object) -> dict[str, Any]:
    """A run that first writes its name into ``starts``."""
    body = {
        "name": name,
        "command": ["/bin/sh", "-c", f"echo {name} >> starts; {script}"],
        "workdir": str(controller.folder),
        "environment": {"PATH": "/usr/bin:/bin"},
        "accelerators": {"size": size},
        **job,
    }
    status, made = controller.ask("POST", "/v1/runs", {"job": body})
    assert status == 201, made
    return dict(made)


def state(controller: Controller, run: Mapping[str, Any]) -> str:
    return str(controller.ask("GET", f"/v1/runs/{run['id']}")[1]["state"])


def output(controller: Controller, run: Mapping[str, Any], *, follow: bool = False) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", controller.port, timeout=patient(30))
    flag = "?follow=true" if follow else ""
    headers = {"Authorization": f"Bearer {controller.key}"}
    connection.request("GET", f"/v1/runs/{run['id']}/logs{flag}", None, headers)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def await_file(name: str, then: str) -> str:
    return f"echo begun; while [ ! -e {name} ]; do sleep 0.05; done; {then}"


def test_the_code_of_the_release_is_what_runs(released_code: Path) -> None:
    argv = [sys.executable, "-c", "import moorings.cli.main; print(moorings.cli.main.__file__)"]
    told = subprocess.run(argv, env=environment_of(released_code), capture_output=True, text=True, check=True)
    assert Path(told.stdout).is_relative_to(released_code)


def test_living_supervisors_are_taken_over(of: Mapping[str, Controller], released_code: Path) -> None:
    """Their runs were started by the code before; one ends while there is no controller."""
    before, after = of[RELEASED], of[TODAY]
    before.start()
    runs = {
        "long": start_run(before, "long", await_file("go", "echo done"), tasks=2),
        "ends": start_run(before, "ends", await_file("end", "exit 3")),
        "stops": start_run(before, "stops", "trap 'echo told; exit 0' TERM; " + await_file("never", "")),
    }
    for run in runs.values():
        # A stream that has nothing to show yet is cut off.
        until(lambda run=run: "begun" in output(before, run), not_yet=http.client.HTTPException)  # type: ignore[misc]
    supervisor = json.loads((before.data / "runs" / runs["long"]["id"] / "status.json").read_text())["supervisor"]
    given = Path(f"/proc/{supervisor['pid']}/environ").read_bytes()
    assert str(released_code).encode() in given, "the supervisor is of the code that started it"
    runs["queued"] = start_run(before, "queued", "echo ran", size=16)
    held = before.holders()
    before.kill()
    (before.folder / "end").touch()
    until((before.data / "runs" / runs["ends"]["id"] / "end.json").exists)

    after.start()
    until(lambda: state(after, runs["ends"]) == "FAILED")
    assert after.ask("GET", f"/v1/runs/{runs['ends']['id']}")[1]["exitCode"] == 3
    assert [state(after, runs[name]) for name in ("long", "stops", "queued")] == ["RUNNING", "RUNNING", "WAITING"]
    until(lambda: len(after.holders()) == len(held) - 1)
    assert after.ask("POST", f"/v1/runs/{runs['stops']['id']}/cancel?wait=30s")[1]["state"] == "CANCELLED"
    assert "told" in output(after, runs["stops"])
    (after.folder / "go").touch()
    assert Counter(output(after, runs["long"], follow=True).split()) == {"[0]": 2, "[1]": 2, "begun": 2, "done": 2}
    until(lambda: state(after, runs["queued"]) == "SUCCEEDED")
    assert output(after, runs["queued"]) == "ran\n"
    until(lambda: not after.holders())
    claims = after.ask("GET", "/v1/claims?all=true")[1]["items"]
    assert Counter(one["state"] for one in claims) == {"RELEASED": 4}
    starts = Counter((after.folder / "starts").read_text().split())
    assert starts == {"long": 2, "ends": 1, "stops": 1, "queued": 1}, "nothing is started twice; long has two tasks"


def test_a_living_supervisor_yields_when_the_controller_of_today_asks(of: Mapping[str, Controller]) -> None:
    before, after = of[RELEASED], of[TODAY]
    before.start()
    traps = "trap 'echo warned; exit 1' USR1; "
    resumes = {"preemptible": True, "checkpoint": {"resumable": True, "warnSignal": "USR1"}}
    run = start_run(before, "lent", traps + await_file("never", ""), size=16, **resumes)
    until(lambda: "begun" in output(before, run), not_yet=http.client.HTTPException)
    before.kill()
    after.start()
    assert after.ask("PUT", "/v1/projects/lab", {"shares": [{"pool": "pod16", "blocks": {"16": 1}}]})[0] == 200
    owed = after.ask("POST", "/v1/claims?wait=60s", {"name": "owed", "size": 16, "project": "lab"})[1]
    assert owed["state"] == "READY"
    assert state(after, run) == "WAITING"
    assert after.ask("DELETE", "/v1/claims/owed?wait=30s")[1]["state"] == "RELEASED"
    until(lambda: state(after, run) == "RUNNING")
    again = after.ask("GET", f"/v1/runs/{run['id']}")[1]
    assert again["attempt"] == 1
    assert (after.data / "runs" / run["id"] / "logs" / "0" / "0.log").read_text().split() == ["begun", "warned"]


def test_a_release_that_is_put_back_needs_its_backup(of: Mapping[str, Controller], tmp_path: Path) -> None:
    """The way back of the how-to: until the restore nothing is changed, and after it what runs keeps running."""
    before, after = of[RELEASED], of[TODAY]
    before.start()
    kept = before.ask("POST", "/v1/claims?wait=30s", {"name": "kept", "size": 2})[1]
    backup = str(tmp_path / "backup.tar.gz")
    hand(before, "save", "--file", backup)
    assert before.stop() == 0
    after.start()
    run = start_run(after, "since", await_file("go", "echo done > since"))
    until(lambda: "begun" in output(after, run), not_yet=http.client.HTTPException)
    assert after.stop() == 0
    with pytest.raises(AssertionError, match=r"store\.too_new"):
        before.start()
    after.start()
    assert state(after, run) == "RUNNING"
    assert after.stop() == 0
    hand(before, "restore", "--file", backup)
    before.start()
    assert before.ask("GET", "/v1/claims/kept")[1]["devices"] == kept["devices"]
    assert before.ask("GET", f"/v1/runs/{run['id']}")[0] == 404
    until(lambda: "partition.stray_spared" in (before.folder / "controller.log").read_text())
    (before.folder / "go").touch()
    until((before.folder / "since").exists)


@pytest.mark.parametrize(("moors", "serves"), BOTH_WAYS, ids=["old moor", "old controller"])
def test_moor_of_one_release_uses_the_controller_of_the_other(
    of: Mapping[str, Controller], released_code: Path, tmp_path: Path, moors: str, serves: str
) -> None:
    controller = of[serves]
    controller.start()
    given = environment_of(released_code) if moors == RELEASED else dict(os.environ)
    given |= {"HOME": str(tmp_path), "MOORINGS_CREDENTIALS": str(controller.credentials)}

    def moor(*words: str, code: int = 0) -> str:
        argv = [sys.executable, "-m", "moorings.cli.main", *words]
        done = subprocess.run(argv, env=given, capture_output=True, text=True, check=False, timeout=patient(60))
        assert done.returncode == code, (words, done.returncode, done.stderr)
        return done.stdout

    def shown(*words: str) -> Any:
        return json.loads(moor(*words, "-o", "json"))

    assert "hello" in moor("run", "--ipus", "2", "--", "/bin/sh", "-c", "echo hello")
    moor("run", "--ipus", "2", "--", "/bin/sh", "-c", "exit 5", code=5)
    moor("run", "--ipus", "16", "--name", "long", "--detach", "--", "/bin/sleep", "600")
    until(lambda: shown("get", "runs", "long")["state"] == "RUNNING")
    moor("run", "--ipus", "4", "--name", "queued", "--detach", "--", "/bin/sh", "-c", "echo ran")
    assert "queue.reserved" in moor("explain", "run", "queued")
    assert {one["name"] for one in shown("get", "runs")["items"]} == {"long", "queued"}
    moor("wait", "queued", "--timeout", "0.2s", code=124)
    moor("cancel", "long")
    moor("wait", "queued")
    assert moor("logs", "queued") == "ran\n"
    moor("create", "claim", "mine", "--size", "4", "--wait")
    assert shown("get", "claims", "mine")["state"] == "READY"
    moor("delete", "claim", "mine", "--yes")
    moor("create", "project", "lab", "--guarantee", "pod16=4x1")
    assert shown("get", "projects", "lab")["shares"] == [{"pool": "pod16", "blocks": {"4": 1}}]
    moor("drain", "device", "pod16:3", "--reason", "a fan", "--yes")
    assert shown("get", "devices", "pod16:3")["state"] == "DRAINED"
    assert "run.ended" in moor("events", "--after", "0")
    moor("get", "claims", "nobody", code=3)
    data = ("--data", str(controller.data))
    backup = str(tmp_path / "backup.tar.gz")
    moor("backup", backup, *data)
    moor("down", *data)
    assert controller.process is not None
    assert controller.process.wait(patient(20)) == 0, "it knows the other's process by its record and its command"
