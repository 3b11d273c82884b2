"""``moor wafer`` and ``csctl`` on a real controller over HTTP: what is shown, what is changed, what is refused."""

from __future__ import annotations

import json
import stat
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorings.cli.main import main
from tests.e2e.processes import ControllerProcess
from tests.waiting import patient, until

GIB = 1 << 30
POOLS = """
[[pool]]
name = "cs"
kind = "csx"
driver = "simulated"
topology = { type = "any-subset", domain_size = 4 }
resources = { memory = "128G" }
[pool.simulated]
provision_s = 0.05
provision_per_device_s = 0.0
remove_s = 0.05
remove_per_device_s = 0.0
"""
COLUMNS = "SESSION NAME TYPE PRIORITY AGE DURATION PHASE SYSTEMS USER LABELS WORKFLOW DASHBOARD"
SECRET = "hunter2-of-ann"

Moor = Callable[..., tuple[int, str, str]]


class Site:
    """A controller, and the keys of those who use it."""

    def __init__(self, folder: Path) -> None:
        self.controller = ControllerProcess(folder, POOLS)
        self.controller.start()
        self.keys = {"root": self.controller.key}
        for name in ("ann", "bob"):
            self.keys[name] = str(self.ask("POST", "/v1/keys", {"subject": name}, "root")["secret"])
        self._workflows = 0

    def ask(self, method: str, path: str, body: object = None, who: str = "ann") -> dict[str, Any]:
        status, answer = self.controller.ask(method, path, body, key=self.keys[who])
        assert status in (200, 201), answer
        return dict(answer)

    def workflow(self) -> str:
        self._workflows += 1
        return f"wflow-{self._workflows:022d}"

    def start(self, *command: str, systems: int = 1, who: str = "ann", **more: Any) -> str:
        """A job; its name."""
        part = {"kind": "execute" if systems else "compile", "workflow": more.pop("workflow", None) or self.workflow()}
        asked = {"kind": "csx", "size": systems, "resources": {"memory": (32 if systems else 67) * GIB}}
        usual = {"name": "x", "workdir": "/", "environment": {"PATH": "/usr/bin:/bin"}, "priority": -299}
        body = {**usual, "command": list(command), "accelerators": asked, "appliance": part, **more}
        return str(self.ask("POST", "/v1/runs", {"job": body}, who)["id"])

    def run(self, name: str) -> dict[str, Any]:
        return self.ask("GET", f"/v1/runs/{name}", who="root")

    def until(self, name: str, *states: str) -> None:
        until(lambda: self.run(name)["state"] in states)

    def end_all(self) -> None:
        for job in self.ask("GET", "/v1/appliance/jobs?limit=1000", who="root")["items"]:
            self.ask("POST", f"/v1/runs/{job['id']}/cancel?wait=30s", who="root")
        until(lambda: not self.ask("GET", "/v1/partitions", who="root")["items"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("wafer"))
    yield site
    assert site.controller.stop() == 0


@pytest.fixture
def site(whole: Site) -> Iterator[Site]:
    yield whole
    whole.end_all()


@pytest.fixture
def moor(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Moor:
    """Runs ``moor wafer`` as somebody; (exit code, stdout, stderr)."""
    monkeypatch.setenv("MOORINGS_SERVER", f"http://127.0.0.1:{site.controller.port}")

    def call(*words: str, who: str = "ann") -> tuple[int, str, str]:
        monkeypatch.setenv("MOORINGS_ACCESS_KEY", site.keys[who])
        code = main(["wafer", *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def names(table: str) -> list[str]:
    return [line.split()[1] for line in table.splitlines()[1:]]


def test_the_queue_is_seen_with_places_and_reasons(site: Site, moor: Moor) -> None:
    running = site.start("sleep", "1000", systems=4, labels={"team": "nlp"})
    site.until(running, "RUNNING")
    ended = site.start("true", systems=0, who="bob")
    site.until(ended, "SUCCEEDED")
    later = site.start("true", systems=2, labels={"team": "vision"})
    first = site.start("true", systems=1, priority=-199, project="p7")
    code, out, err = moor("get", "jobs")
    assert (code, err) == (0, "")
    header, *rows = (line.split() for line in out.splitlines())
    assert header == COLUMNS.split()
    assert [(row[0], row[1], row[3], row[6], row[7]) for row in rows] == [
        ("default", running, "P2", "RUNNING", "cs:0-3"),
        ("p7", first, "P1", "QUEUED", "-"),
        ("default", later, "P2", "QUEUED", "-"),
    ]
    assert names(moor("get", "jobs", "-a", who="root")[1]) == [running, first, later, ended]
    assert names(moor("get", "jobs", "-a")[1]) == [running, first, later], "bob's is not hers to see"
    assert names(moor("job", "list", "--all-states", "--kind", "compile", who="root")[1]) == [ended]
    assert names(moor("get", "jobs", "-l", "team=nlp")[1]) == [running]
    assert names(moor("get", "jobs", "--session", "p7")[1]) == [first]
    assert names(moor("get", "jobs", "-a", "--user", "bob", who="bob")[1]) == [ended]
    workflow = site.run(later)["job"]["appliance"]["workflow"]
    assert names(moor("get", "jobs", "--workflow", str(workflow))[1]) == [later]
    wide = moor("get", "jobs", "-o", "wide")[1].splitlines()
    assert wide[2].endswith("(position 1)")
    assert wide[3].endswith("(position 2)")
    assert "cs" in wide[3]
    told = json.loads(moor("get", "job", f"job/{later}", "-o", "json")[1])
    assert (told["meta"]["name"], told["spec"]["type"]) == (later, "execute")
    assert (told["status"]["phase"], told["status"]["position"]) == ("QUEUED", 2)
    assert told["status"]["reason"]
    listed = json.loads(moor("get", "jobs", "-o", "json")[1])["items"]
    assert [item["status"]["systems"] for item in listed] == [["cs:0", "cs:1", "cs:2", "cs:3"], [], []]
    code, out, err = moor("get", "jobs", running, "wsjob-none", "-o", "name")
    assert (code, out) == (3, f"job/{running}\n")
    assert "there is no job 'wsjob-none' (run.unknown)" in err
    assert moor("get", "jobs", "-l", "team=none") == (0, "", "No jobs found.\n")


def test_many_reasons_are_read_at_once(site: Site, moor: Moor) -> None:
    running = site.start("sleep", "1000", systems=4)
    site.until(running, "RUNNING")
    for _ in range(12):
        site.start("true", systems=4)
    rows = moor("get", "jobs", "-o", "wide", "--no-headers")[1].splitlines()
    assert [row.rpartition("(position ")[2] for row in rows[1:]] == [f"{place})" for place in range(1, 13)]


def test_a_job_that_failed_tells_how(site: Site, moor: Moor) -> None:
    failed = site.start("sh", "-c", "exit 7", systems=1)
    site.until(failed, "FAILED")
    over = site.start("sleep", "1000", systems=1, timeLimitS=1.0)
    site.until(over, "TIMED_OUT")
    told = json.loads(moor("get", "job", failed, "-o", "json")[1])["status"]
    assert (told["phase"], told["exitCode"], told["systems"]) == ("FAILED", 7, [])
    assert json.loads(moor("get", "job", over, "-o", "json")[1])["status"]["phase"] == "FAILED"


def test_jobs_are_cancelled_labelled_and_served_earlier(site: Site, moor: Moor) -> None:
    running = site.start("sleep", "1000", systems=4)
    site.until(running, "RUNNING")
    workflow = site.workflow()
    queued, kin = (site.start("true", systems=4, workflow=workflow) for _ in range(2))
    assert moor("label", "job", queued, "team=nlp", "stage=2") == (0, f"job/{queued} was patched\n", "")
    assert moor("label", "job", queued, "stage-")[0] == 0
    assert site.run(queued)["labels"] == {"team": "nlp"}
    told = f"job/{queued} was patched: priority P1 (150)\n"
    assert moor("job", "set-priority", queued, "150") == (0, told, "")
    assert [site.run(name)["priority"] for name in (queued, kin)] == [-150, -150]
    assert moor("job", "set-priority", queued, "p0", who="root")[:2] == (
        0,
        f"job/{queued} was patched: priority P0 (99)\n",
    )
    assert moor("cancel", "job", f"{queued}-csx4", kin) == (0, "Job canceled successfully\n" * 2, "")
    assert moor("cancel", "job", running, "--wait") == (0, "Job canceled successfully\n", "")
    assert site.run(running)["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("words", "code", "exit_code", "hint"),
    [
        ("get job wsjob-none", "run.unknown", 3, "moor wafer get jobs -a"),
        ("cancel job ä", "run.unknown", 3, "moor wafer get jobs -a"),
        ("cancel job wsjob-none", "run.unknown", 3, "moor wafer get jobs -a"),
        ("label job wsjob-none a=b", "run.unknown", 3, "moor wafer get jobs -a"),
        ("job set-priority wsjob-none p1", "run.unknown", 3, "moor wafer get jobs -a"),
        ("log-export wsjob-none", "run.unknown", 3, "moor wafer get jobs -a"),
        ("cancel job {bobs}", "run.unknown", 3, "moor wafer get jobs -a"),
        ("label job {bobs} a=b", "run.unknown", 3, "moor wafer get jobs -a"),
        ("job set-priority {bobs} p1", "run.unknown", 3, "moor wafer get jobs -a"),
        ("log-export {bobs} -p {folder}", "run.unknown", 3, "moor wafer get jobs -a"),
        ("cancel job {ended}", "run.ended", 5, "moor wafer get job wsjob-"),
        ("label job {ended} a=b", "run.ended", 5, "moor wafer get job wsjob-"),
        ("job set-priority {ended} p1", "run.ended", 5, "moor wafer get job wsjob-"),
        ("cancel job {anns} --session other", "run.unknown", 3, "moor wafer get jobs -a"),
        ("job set-priority {anns} p4", "priority.invalid", 2, "p1, p2 or p3"),
        ("job set-priority {anns} 400", "priority.invalid", 2, "to 399"),
        ("job set-priority {anns} p0", "priority.denied", 4, "ask an admin"),
        ("job set-priority {anns} 42", "priority.denied", 4, "ask an admin"),
        ("label job {anns} team", "label.invalid", 2, "KEY=VALUE"),
        ("label job {anns} a=b a-", "label.invalid", 2, "once"),
        ("label job {anns} a=b=c", "label.invalid", 2, "letters"),
        ("get jobs -l team", "label.invalid", 2, "team=nlp"),
        ("get jobs -o xml", "name.invalid", 2, "json"),
        ("get jobs --sort-by age", "name.invalid", 2, "fields: meta, spec, status"),
        ("get system cs:9", "device.unknown", 3, "moor wafer get systems"),
        ("get job {plain}", "run.unknown", 3, "moor get runs"),
    ],
)
def test_what_is_refused(
    site: Site, moor: Moor, tmp_path: Path, words: str, code: str, exit_code: int, hint: str
) -> None:
    made = {"folder": str(tmp_path / "out")}
    if "{anns}" in words:
        made["anns"] = site.start("sleep", "1000")
    if "{bobs}" in words:
        made["bobs"] = site.start("sleep", "1000", who="bob")
    if "{ended}" in words:
        made["ended"] = site.start("true")
        site.until(made["ended"], "SUCCEEDED")
    if "{plain}" in words:
        made["plain"] = site.start("true", appliance=None, accelerators={"kind": "csx", "size": 1})
    got, out, err = moor(*words.format(**made).split())
    assert (got, out) == (exit_code, ""), err
    assert f"({code})\n" in err
    assert hint in err
    assert not list(tmp_path.glob("out/*")), "half an archive"


@pytest.mark.parametrize(
    "words", ["get frobs", "get jobs --kind train", "job frob", "cancel job", "log-export x --num-lines 0"]
)
def test_wrong_usage(moor: Moor, words: str) -> None:
    code, out, err = moor(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "hint: " in err


def test_the_cluster_shows_who_holds_what(site: Site, moor: Moor) -> None:
    running = site.start("sleep", "1000", systems=2)
    site.until(running, "RUNNING")
    compiling = site.start("sleep", "1000", systems=0)
    site.until(compiling, "RUNNING")
    waiting = site.start("true", systems=3)
    site.ask("POST", "/v1/devices/cs:3/drain", {"reason": "fan"}, "root")
    try:
        code, out, err = moor("get", "cluster")
        assert (code, err) == (0, "")
        lines = [line.split() for line in out.splitlines()]
        assert lines[1][:6] == ["cs:0", "system", "ok", "IN_SERVICE", running, "ann"]
        assert lines[3][:6] == ["cs:2", "system", "ok", "IN_SERVICE", "-", "-"]
        assert lines[4][:4] + lines[4][-2:] == ["cs:3", "system", "error", "DRAINED", "fan", "(root)"]
        assert "29 of 128 GiB" in out
        assert ["execute", "1", "1"] in lines
        assert ["compile", "0", "1"] in lines
        told = json.loads(moor("get", "cluster", "--error-only", "-o", "json")[1])
        assert [item["meta"]["name"] for item in told["items"]] == ["cs:3"]
        assert told["queue"] == {"queued": {"compile": 0, "execute": 1}, "running": {"compile": 1, "execute": 1}}
        (pool,) = told["pools"]
        assert (pool["memoryBytes"], pool["memoryFreeBytes"], pool["free"]) == (128 * GIB, 29 * GIB, 1)
        assert moor("get", "systems", "--error-only", "-o", "name") == (0, "system/cs:3\n", "")
        one = json.loads(moor("get", "system", "cs:1", "-o", "json")[1])
        assert (one["status"]["job"], one["status"]["user"]) == (running, "ann")
        assert "POOL" not in moor("get", "cluster", "--system-only")[1]
    finally:
        site.ask("POST", "/v1/devices/cs:3/resume", who="root")
    assert waiting in moor("get", "jobs")[1]


def test_logs_are_exported_without_secrets(
    site: Site, moor: Moor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    script = "for i in 1 2 3; do echo line $i of $RANK; done; echo it is $HF_TOKEN; echo password=$HF_TOKEN-2"
    environment = {"PATH": "/usr/bin:/bin", "HF_TOKEN": SECRET}
    ended = site.start("sh", "-c", script, systems=2, tasks=2, environment=environment)
    site.until(ended, "SUCCEEDED")
    folder = tmp_path / "new" / "folder"
    code, out, err = moor("log-export", ended, "--path", str(folder))
    assert (code, err) == (0, "")
    (file,) = folder.iterdir()
    assert out.startswith(f"{file}: ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with zipfile.ZipFile(file) as archive:
        found = {name.partition("/")[2]: archive.read(name).decode() for name in archive.namelist()}
        assert all(name.startswith(f"{ended}/") for name in archive.namelist())
    assert set(found) == {
        *("README.txt", "job.json", "run.json", "claim.json", "events.json", "logs/task-0.log", "logs/task-1.log"),
    }
    assert SECRET not in "".join(found.values())
    assert found["logs/task-1.log"].splitlines()[:3] == [f"line {i} of 1" for i in (1, 2, 3)]
    assert found["logs/task-0.log"].splitlines()[3] == "it is [left out]"
    assert json.loads(found["job.json"])["status"]["phase"] == "SUCCEEDED"
    assert {"claim.granted", "run.ended"} <= {event["name"] for event in json.loads(found["events.json"])}
    assert json.loads(found["claim.json"])["state"] in ("RELEASING", "RELEASED")
    assert json.loads(found["run.json"])["job"]["environment"]["HF_TOKEN"] == "[left out]"
    assert moor("log-export", ended, "-p", str(tmp_path / "few"), "--num-lines", "2")[0] == 0
    (few,) = (tmp_path / "few").iterdir()
    with zipfile.ZipFile(few) as archive:
        assert archive.read(f"{ended}/logs/task-0.log").decode().splitlines()[0] == "it is [left out]"
    (tmp_path / "file").write_text("")
    code, out, err = moor("log-export", ended, "-p", str(tmp_path / "file"))
    assert (code, out) == (2, "")
    assert "(config.invalid)" in err


def test_a_queued_job_is_exported_with_why_it_waits(site: Site, moor: Moor, tmp_path: Path) -> None:
    site.until(site.start("sleep", "1000", systems=4), "RUNNING")
    queued = site.start("true", systems=4)
    code, _, err = moor("log-export", queued, "-p", str(tmp_path))
    assert (code, err) == (0, "")
    (file,) = tmp_path.iterdir()
    with zipfile.ZipFile(file) as archive:
        assert json.loads(archive.read(f"{queued}/why.json"))["reasons"]


def test_csctl_is_the_same_in_the_vendors_words(site: Site, moor: Moor, tmp_path: Path) -> None:
    running = site.start("sleep", "1000", project="p9")
    site.until(running, "RUNNING")
    assert moor("install-csctl", str(tmp_path)) == (0, f"{tmp_path}/csctl installed\n", "")

    def csctl(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([tmp_path / "csctl", *words], capture_output=True, text=True, timeout=patient(60))

    done = csctl("-n", "p9", "-d1", "get", "job", running, "-ojson")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"]["phase"] == "RUNNING"
    assert csctl("get", "jobs", "--namespace=job-operator", "-o=name").stdout == ""
    done = csctl("cancel", "job", running, "-n", "p9")
    assert (done.returncode, done.stdout) == (0, "Job canceled successfully\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "csctl").write_text("#!/bin/sh\n")
    code, _, err = moor("install-csctl", str(tmp_path / "other"))
    assert code == 2
    assert "not ours (config.invalid)" in err
