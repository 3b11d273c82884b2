"""``moor run --engine slurm`` where people submit themselves: each job is its person's, and no answer is lost."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import moorings
from tests.procfs import HEARING
from tests.sampling import whole
from tests.slurm.ipus import IpuSite, ipu_site
from tests.waiting import patient, until

ANN, BOB = "games", "news"  # accounts that every Debian has, and that no daemon here uses
STUBBORN = ("sh", "-c", "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 300 & wait; done")
Run = dict[str, Any]


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    """A site with accounting, whose controller follows what people submit."""
    with ipu_site(slurm_release, accounting=True) as made:
        follow_people(made)
        yield made


def follow_people(made: IpuSite) -> None:
    """Give people accounts, and the controller a Slurm to which they submit themselves."""
    for user in (ANN, BOB):
        made.cluster.check("sacctmgr", "-i", "add", "account", f"of-{user}")
        made.cluster.check("sacctmgr", "-i", "add", "user", user, f"account=of-{user}")
        made.cluster.check("sacctmgr", "-i", "modify", "user", user, "set", f"defaultaccount=of-{user}")
    settings = made.cluster.folder / "controller.toml"
    settings.write_text('[slurm]\n[slurm.projects.closed]\npartition = "nowhere"\n')
    made.controller.stop()
    made.controller.flags = ("--config", str(settings))
    made.controller.start()
    made.end_agent()  # it asks the new controller at once
    made.start_agent()
    made.cluster.work.chmod(0o1777)


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite) -> Iterator[None]:
    yield
    site.clear()
    until(lambda: not open_runs(site), 60, what=lambda: f"{open_runs(site)}")


class Person:
    """A user of the cluster with a home that the nodes see, and an access key."""

    def __init__(self, site: IpuSite, name: str) -> None:
        self.site = site
        self.name = name
        self.uid = pwd.getpwnam(name).pw_uid
        self.home = site.cluster.work / f"home-{name}"
        if not self.home.exists():
            self.home.mkdir(mode=0o700)
            shutil.chown(self.home, name, name)
        self.key = str(site.controller.ask("POST", "/v1/keys", {"subject": name, "role": "user"})[1]["secret"])
        self.runs = self.home / ".local" / "state" / "moorings" / "slurm"
        self.started: list[subprocess.Popen[str]] = []

    def moor(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Their ``moor``, started."""
        return self.call(sys.executable, "-m", "moorings.cli.main", *words, **more)

    def call(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """A command of theirs, started."""
        pipe = subprocess.PIPE
        argv, environment = self.prepare(*words, **more)
        process = subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=self.home)
        self.started.append(process)
        return process

    def prepare(self, *words: str, **more: str) -> tuple[list[str], dict[str, str]]:
        """A command of theirs as it is started, and its variables."""
        environment = {
            **self.site.cluster.env,
            "PATH": f"{self.site.cluster.path_for(self.name)}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "MOORINGS_SERVER": f"http://127.0.0.1:{self.site.controller.port}",
            "MOORINGS_ACCESS_KEY": self.key,
            **more,
        }
        switch = ["setpriv", f"--reuid={self.name}", f"--regid={self.name}", "--init-groups"]
        if self.site.cluster.programs.chrooted:  # only root gets into it
            switch += ["--inh-caps=+setuid,+setgid", "--ambient-caps=+setuid,+setgid"]
        return [*HEARING, *switch, "--", *words], environment

    def run(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Their ``moor run --engine slurm``."""
        return self.moor("run", "--engine", "slurm", *words, **more)

    def ask(self, *words: str) -> str:
        """The output of a command that must succeed."""
        code, output, said = finish(self.moor(*words))
        assert code == 0, said
        return output


@pytest.fixture
def ann(site: IpuSite) -> Iterator[Person]:
    yield from _person(site, ANN)


@pytest.fixture
def bob(site: IpuSite) -> Iterator[Person]:
    yield from _person(site, BOB)


def _person(site: IpuSite, name: str) -> Iterator[Person]:
    person = Person(site, name)
    yield person
    for process in person.started:
        process.kill()
        with process:  # closes its pipes
            pass


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and what was said meanwhile."""
    output, said = process.communicate(timeout=patient(90))
    return process.returncode, output, said


def open_runs(site: IpuSite) -> list[Run]:
    items: list[Run] = site.controller.ask("GET", "/v1/runs?limit=100")[1]["items"]
    return items


def run_of(site: IpuSite, ident: str) -> Run:
    found: Run = site.controller.ask("GET", f"/v1/runs/{ident}")[1]
    return found


def output_of(site: IpuSite, ident: str) -> str:
    """A run's output, as the controller has it."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{site.controller.port}/v1/runs/{ident}/logs",
        headers={"Authorization": f"Bearer {site.controller.key}"},
    )
    with urllib.request.urlopen(request, timeout=patient(30)) as answer:
        return str(answer.read().decode())


def wait_for_output(person: Person, ident: str, text: str) -> None:
    """Wait until the controller has that output; nodes in a chroot have no Python: their person brings it."""

    def look() -> bool:
        if person.site.cluster.programs.chrooted:
            person.ask("get", "run", ident)
        return text in output_of(person.site, ident)

    until(look, 60)


def reaches(site: IpuSite, ident: str, true: Callable[[Run], object]) -> Run:
    """The run, as soon as it is as it shall be."""

    def look() -> Run | None:
        run = run_of(site, ident)
        return run if true(run) else None

    return until(look, 60, what=lambda: f"{run_of(site, ident)}")


@pytest.mark.smoke
def test_a_job_is_its_persons(site: IpuSite, ann: Person) -> None:
    script = 'id -un; echo "$RANK: $MOORINGS_DEVICES"; exit 7'
    code, output, said = finish(ann.run("--ipus", "2", "--", "sh", "-c", script))
    assert output == f"{ANN}\n0: pod16:0,pod16:1\n", said
    assert code == 7, said
    run = site.controller.ask("GET", "/v1/runs?all=1&limit=1000")[1]["items"][-1]
    assert (run["state"], run["exitCode"], run["taskCodes"]) == ("FAILED", 7, [7])
    (job,) = site.cluster.sacct(run["reference"])[:1]
    assert (job["User"], job["Account"]) == (ANN, f"of-{ANN}")
    assert not list((ann.runs / "open").iterdir())
    assert {path.stat().st_uid for path in (ann.runs / run["id"]).rglob("*")} == {ann.uid}
    # Others of the project read its output from the controller.
    assert output_of(site, run["id"]) == output


SUBMITS = """
import getpass, os, moorings
def describe(word):
    print("on", word, flush=True)
    return word, getpass.getuser(), os.environ["MOORINGS_DEVICES"], os.environ["SLURM_JOB_ID"]
def fail():
    raise ValueError("in a job")
run = moorings.submit(describe, "a node", engine="slurm", ipus=2, name="described")
print(run.result(), repr(run.logs()), run.info().reference)
print(repr(moorings.submit(fail, engine="slurm", size=0).exception()))
print([run.result() for run in moorings.map_array(lambda x: x + 1, range(3), engine="slurm", size=0)])
stopped = moorings.submit(["sleep", "300"], engine="slurm", size=0)
stopped.cancel()
print(stopped.wait().state)
"""


def test_a_function_of_a_program_runs_in_its_persons_job(site: IpuSite, ann: Person) -> None:
    if site.cluster.programs.chrooted:
        pytest.skip("the nodes of this release have no Python")
    (ann.home / "submits.py").write_text(SUBMITS)
    packages = [Path(str(package.__file__)).parents[1] for package in (moorings, cloudpickle)]
    path = ":".join(map(str, packages))  # the Python of the tests may be one that only root can start
    code, output, said = finish(ann.call("/usr/bin/python3", "submits.py", PYTHONPATH=path))
    assert code == 0, said
    value, failure, array, stopped = output.splitlines()
    job = value.rsplit(" ", 1)[1]
    assert value == f"('a node', '{ANN}', 'pod16:0,pod16:1', '{job}') 'on a node\\n' {job}"
    assert (failure, array, stopped) == ("ValueError('in a job')", "[1, 2, 3]", "CANCELLED")
    assert site.cluster.sacct(job)[0]["User"] == ANN
    assert {path.lstat().st_uid for path in (ann.runs / "functions").rglob("*")} == {ann.uid}


def test_it_says_why_it_waits_and_ctrl_c_cancels_it(site: IpuSite, ann: Person) -> None:
    blocker = site.cluster.sbatch("sleep 300", "--ipus=16")
    site.cluster.wait_job(blocker, "RUNNING")
    waiting = ann.run("--ipus", "8", "--", "true")
    run = until(lambda: [run for run in open_runs(site) if run.get("reference")], 60)[0]
    reaches(site, run["id"], lambda run: "Licenses" in str(run.get("reason")))
    waiting.send_signal(signal.SIGINT)
    code, _, said = finish(waiting)
    assert code == 130, said
    assert run_of(site, run["id"])["state"] == "CANCELLED"
    assert site.cluster.job(run["reference"])["JobState"] == "CANCELLED"


def test_a_running_one_that_is_cancelled_has_its_grace_period(site: IpuSite, ann: Person) -> None:
    ident = ann.ask("run", "--engine", "slurm", "--detach", "--ipus", "2", "--", *STUBBORN).strip()
    reaches(site, ident, lambda run: run["state"] == "RUNNING")
    wait_for_output(ann, ident, "ready")
    assert "cancelled" in ann.ask("cancel", ident)
    run = run_of(site, ident)
    assert (run["state"], run["taskCodes"]) == ("CANCELLED", [0])
    assert "saved" in output_of(site, ident)


def test_an_admin_cancels_by_the_agent(site: IpuSite, ann: Person) -> None:
    ident = ann.ask("run", "--engine", "slurm", "--detach", "--ipus", "2", "--", *STUBBORN).strip()
    wait_for_output(ann, ident, "ready")
    assert site.controller.ask("POST", f"/v1/runs/{ident}/cancel")[0] == 200
    run = reaches(site, ident, lambda run: run["state"] == "CANCELLED")
    if not site.cluster.programs.chrooted:  # there is no Python, and Slurm's word is all there is
        assert run["taskCodes"] == [0]
        assert "saved" in output_of(site, ident)


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_lost_answer_of_sbatch_submits_nothing_twice(site: IpuSite, ann: Person, point: str) -> None:
    """The next ``moor`` of the person finds the job by its comment, or submits the run."""
    marks = ann.home / f"marks-{point}"
    marks.mkdir()
    shutil.chown(marks, ann.name, ann.name)
    commands = broken_sbatch(site, ann, submits=point == "after")
    started = ann.moor(
        *("run", "--engine", "slurm", "--detach", "--", "sh", "-c", f"mktemp {marks}/XXXXXX"),
        PATH=f"{commands}:{site.cluster.path_for(ann.name)}:{os.environ['PATH']}",
    )
    code, output, said = finish(started)
    assert code == 0, said
    assert "your next 'moor' command here submits it" in said
    ident = output.strip()
    until(lambda: ann.ask("get", "run", ident, "-o", "json") and run_of(site, ident)["state"] == "SUCCEEDED", 60)
    assert len(list(marks.iterdir())) == 1
    listed = [
        job for job in site.cluster.check("squeue", "-h", "--states=all", "-O", "Comment:60").split() if ident in job
    ]
    assert listed == [f"moorings:{ident}/0"]


def test_a_job_that_slurm_refuses_leaves_no_run(site: IpuSite, ann: Person) -> None:
    code, _, said = finish(ann.run("--project", "closed", "--", "true"))
    assert code != 0
    assert "Slurm refuses it" in said
    until(lambda: not open_runs(site), 60, what=lambda: f"{open_runs(site)}")


def test_a_kill_of_controller_and_agent_loses_nothing(site: IpuSite, ann: Person) -> None:
    """Reports that could not be sent wait in the person's folder."""
    script = "echo first; sleep 4; echo last; exit 3"
    ident = ann.ask("run", "--engine", "slurm", "--detach", "--", "sh", "-c", script).strip()
    no_python = site.cluster.programs.chrooted
    reaches(site, ident, lambda run: run["state"] == "RUNNING" or (no_python and run.get("reference")))
    site.end_agent()
    site.controller.kill()
    until(lambda: (ann.runs / ident / "0" / "done").exists(), 60)
    site.controller.start()
    site.start_agent()
    run = reaches(site, ident, lambda run: run["state"] == "FAILED" or (ann.ask("get", "run", ident) and None))
    assert run["exitCode"] == 3
    assert output_of(site, ident) == "first\nlast\n"


def test_without_an_agent_its_persons_moor_settles_it(site: IpuSite, ann: Person) -> None:
    site.end_agent()
    try:
        code, output, said = finish(ann.run("--size", "0", "--", "sh", "-c", "echo ran; exit 4"))
        assert (code, output) == (4, "ran\n"), said
        ident = ann.ask("run", "--engine", "slurm", "--detach", "--size", "0", "--", "sleep", "300").strip()
        reaches(site, ident, lambda run: run["state"] == "RUNNING" or (ann.ask("get", "run", ident) and None))
        assert "cancelled" in ann.ask("cancel", ident)
    finally:
        site.start_agent()


def test_a_forged_report_reaches_no_strangers_job(site: IpuSite, ann: Person, bob: Person) -> None:
    """bob's run claims ann's job and her uid, and is cancelled; ann's job runs on, and her run knows nothing of it."""
    ann_run = ann.ask("run", "--engine", "slurm", "--detach", "--ipus", "2", "--", "sleep", "300").strip()
    job = reaches(site, ann_run, lambda run: run.get("reference") and run["state"] == "RUNNING")["reference"]
    of_bob = {"uid": ann.uid, "tokenDigest": "0" * 64}
    spec = {"name": "forged", "command": ["true"], "workdir": "/"}
    made = site.controller.ask("POST", "/v1/runs", {"job": spec, "engine": "slurm", "submitter": of_bob}, key=bob.key)
    assert made[0] == 201, made
    forged = made[1]["id"]
    listed = {"run": forged, "attempt": 0, "job": int(job), "uid": ann.uid, "state": "RUNNING"}
    report = {"attempt": 0, "files": [{"name": "claimed", "text": job, "modifiedAt": "2026-01-01T00:00:00Z"}]}
    path = f"/v1/runs/{forged}/report"
    assert site.controller.ask("POST", path, {**report, "job": listed}, key=bob.key)[0] == 200
    assert site.controller.ask("POST", f"/v1/runs/{forged}/cancel", key=bob.key)[0] == 200
    begun = site.log().count("run.ordered")
    ended = {"attempt": 0, "job": {**listed, "state": "COMPLETED", "endedAt": "2026-01-01T00:00:00Z"}}
    assert site.controller.ask("POST", path, ended, key=bob.key)[0] == 200
    reaches(site, forged, lambda run: run["state"] in ("CANCELLED", "FAILED", "LOST", "SUCCEEDED"))
    assert site.log().count("run.ordered") == begun
    assert (run_of(site, ann_run)["state"], site.cluster.job(job)["JobState"]) == ("RUNNING", "RUNNING")
    assert "reference" not in run_of(site, forged)
    ann.ask("cancel", ann_run)


def test_a_token_reports_on_its_own_run_alone_and_dies_with_it(site: IpuSite, ann: Person, bob: Person) -> None:
    idents = [each.ask("run", "--engine", "slurm", "--detach", "--", "sleep", "300").strip() for each in (ann, bob)]
    token = json.loads((ann.runs / idents[0] / "0" / "report.json").read_text())["token"]
    own, other = (f"/v1/runs/{ident}/report" for ident in idents)
    ask = site.controller.ask
    assert ask("POST", own, {"attempt": 0}, key=token)[0] == 200
    refused = [
        ask("POST", other, {"attempt": 0}, key=token),
        ask("GET", f"/v1/runs/{idents[0]}", key=token),
        ask("POST", f"/v1/runs/{idents[0]}/cancel", key=token),
        ask("GET", "/v1/keys", key=token),
        ask("POST", own, {"attempt": 0}, key=f"{token[:-1]}{'0' if token[-1] != '0' else '1'}"),
    ]
    assert [(status, body["code"]) for status, body in refused] == [*[(403, "auth.denied")] * 4, (401, "auth.invalid")]
    assert ask("POST", own, {"attempt": 0}, key=bob.key)[1]["code"] == "run.unknown"
    ended = {"run": idents[0], "attempt": 0, "job": 1, "uid": ann.uid, "state": "FAILED"}
    ended["endedAt"] = "2026-01-01T00:00:00Z"
    assert ask("POST", own, {"attempt": 0, "job": ended, "abandoned": True}, key=token)[0] == 200
    assert run_of(site, idents[0])["state"] in ("WAITING", "STARTING", "RUNNING")
    bad = {"attempt": 0, "files": [{"name": "../../x", "text": "", "modifiedAt": "2026-01-01T00:00:00Z"}]}
    assert ask("POST", own, bad, key=token)[1]["code"] == "report.invalid"
    assert b"moorrun_" not in (site.controller.data / "moorings.db").read_bytes()
    for person, ident in ((ann, idents[0]), (bob, idents[1])):
        person.ask("cancel", ident)
    assert ask("POST", own, {"attempt": 0}, key=token)[1]["code"] == "run.ended"


def broken_sbatch(site: IpuSite, person: Person, *, submits: bool) -> Path:
    """A folder with an sbatch of which the answer is lost, once the job is submitted or before."""
    folder = person.home / f"bin-{submits}"
    folder.mkdir()
    real = shutil.which("sbatch", path=f"{site.cluster.path_for(person.name)}:{os.environ['PATH']}")
    call = f'{real} "$@" > /dev/null' if submits else ":"
    script = folder / "sbatch"
    script.write_text(
        f"#!/bin/sh\n{call}\necho 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    return folder


def test_a_crowd_survives_kills_and_nothing_runs_twice(site: IpuSite, ann: Person, bob: Person) -> None:
    """Two people's jobs, a third of them cancelled, while controller and agent are killed and slurmctld restarts."""
    count = 50 if whole() else 9
    people = (ann, bob)
    marks = {person.name: person.home / "marks-crowd" for person in people}
    for person in people:
        marks[person.name].mkdir()
        shutil.chown(marks[person.name], person.name, person.name)
    started = []
    for number in range(count):
        for person in people:
            script = f"mktemp {marks[person.name]}/{number}.XXXXXX; sleep 0.5"
            words = ("run", "--engine", "slurm", "--detach", "--size", "0", "--name", f"crowd-{number}")
            started.append((person, number, person.moor(*words, "--", "sh", "-c", script)))
        if number % 3 == 1:
            site.controller.kill()
            site.controller.start()
        elif number % 3 == 2:
            site.end_agent()
            site.cluster.stop_controller()  # killed, it forgets jobs that it has taken
            site.cluster.start_controller()
            site.start_agent()
    idents: dict[str, tuple[Person, int]] = {}
    for person, number, process in started:
        code, output, said = finish(process)
        if code == 0:
            idents[output.strip()] = (person, number)
        else:  # the controller was away: there is no run
            assert "controller.unreachable" in said or "nothing listens" in said or "was lost" in said, said
    cancelled = {ident for place, ident in enumerate(idents) if place % 3 == 0}
    for ident in cancelled:
        finish(idents[ident][0].moor("cancel", ident, "--no-wait"))

    def left() -> list[str]:
        for person in people:
            finish(person.moor("get", "runs"))
        return [f"{run['id']} {run['state']} {run.get('reason')}" for run in open_runs(site)]

    until(lambda: not left(), 120, what=lambda: "\n".join(left()))
    for person in people:
        assert {path.stat().st_uid for path in marks[person.name].iterdir()} <= {person.uid}
        ran = [int(path.name.partition(".")[0]) for path in marks[person.name].iterdir()]
        assert len(ran) == len(set(ran)), "one ran twice"
        must = {number for ident, (whose, number) in idents.items() if whose is person and ident not in cancelled}
        assert must <= set(ran)
    assert {run_of(site, ident)["state"] for ident in idents if ident not in cancelled} == {"SUCCEEDED"}


# -- order and arrays --------------------------------------------------------------------------------------------------


def detached(person: Person, *words: str) -> str:
    """The id of a run or an array of theirs that was submitted and is not waited for."""
    return person.ask("run", "--engine", "slurm", "--detach", "--size", "0", *words).strip()


def ended(person: Person, ident: str) -> Run:
    """The run once it has ended; its person looks, too, as they would."""

    def look() -> Run | None:
        finish(person.moor("get", "runs"))
        run = run_of(person.site, ident)
        return run if run.get("endedAt") else None

    return until(look, 90, what=lambda: f"{run_of(person.site, ident)}")


def test_an_array_keeps_to_its_limit_and_each_element_is_a_job(site: IpuSite, ann: Person) -> None:
    marks = ann.home / "marks-array"
    marks.mkdir()
    shutil.chown(marks, ann.name, ann.name)
    script = (
        f"touch {marks}/on-$MOORINGS_ARRAY_INDEX; ls {marks} | grep -c on- > {marks}/seen-$SLURM_ARRAY_TASK_ID;"
        f" sleep 1; rm {marks}/on-$MOORINGS_ARRAY_INDEX; echo $MOORINGS_ARRAY_ID $MOORINGS_ARRAY_SIZE"
    )
    code, _, said = finish(ann.run("--size", "0", "--name", "sweep", "--array", "0-5%2", "--", "sh", "-c", script))
    assert code == 0, said
    assert "6 runs submitted as Slurm jobs" in said
    assert "6 SUCCEEDED" in said
    seen = [int((marks / f"seen-{index}").read_text()) for index in range(6)]
    assert 0 < max(seen) <= 2, seen
    runs = [run for run in site.controller.ask("GET", "/v1/runs?all=1&limit=1000")[1]["items"] if "array" in run][-6:]
    assert len({run["reference"] for run in runs}) == 6
    assert output_of(site, runs[3]["id"]) == f"{runs[3]['array']['id']} 6\n"
    tokens = {json.loads((ann.runs / run["id"] / "0" / "report.json").read_text())["token"] for run in runs}
    assert len(tokens) == 6
    assert not list((ann.runs / "open").iterdir())


def test_slurm_waits_for_other_runs_while_the_controller_is_away(site: IpuSite, ann: Person) -> None:
    waits = f"while [ ! -e {ann.home}/go-on ]; do sleep 0.2; done"
    good = detached(ann, "--", "sh", "-c", waits)
    bad = detached(ann, "--", "sh", "-c", f"{waits}; exit 3")
    both = detached(ann, "--after", good, "--after", f"{bad}:failed", "--", "true")
    last = detached(ann, "--after", f"{both}:any", "--after", f"{bad}:any", "--", "true")
    never = detached(ann, "--after", bad, "--", "true")
    site.controller.kill()
    (ann.home / "go-on").touch()
    until(lambda: (ann.runs / last / "0" / "done").exists(), 90)
    site.controller.start()
    assert [ended(ann, ident)["state"] for ident in (good, bad, both, last)] == [
        *("SUCCEEDED", "FAILED", "SUCCEEDED", "SUCCEEDED")
    ]
    run = ended(ann, never)
    assert run["state"] == "CANCELLED"
    assert "a run that it waited for has ended otherwise" in run["detail"]
    done = [(ann.runs / ident / "0" / "done").stat().st_mtime for ident in (good, bad, both, last)]
    assert max(done[:2]) <= done[2] <= done[3]


def test_a_run_waits_for_all_of_an_array_or_is_refused_at_once(site: IpuSite, ann: Person, bob: Person) -> None:
    waits = f"while [ ! -e {ann.home}/all-on ]; do sleep 0.2; done"
    array = detached(ann, "--array", "0-2", "--name", "parts", "--", "sh", "-c", waits)
    merged = detached(ann, "--after", "parts", "--", "true")
    assert run_of(site, merged)["job"]["after"] == [f"{array}:ok"]
    for words, said in (
        (["--after", f"{array}:failed"], "Slurm cannot wait until a run of array"),
        (["--after", f"{array}-9"], "there is no run"),
    ):
        code, _, error = finish(ann.run("--size", "0", *words, "--", "true"))
        assert code != 0
        assert said in error
    stranger = detached(bob, "--", "sleep", "30")
    code, _, error = finish(ann.run("--size", "0", "--after", stranger, "--", "true"))
    assert code != 0, error
    bob.ask("cancel", stranger)
    assert run_of(site, merged)["state"] == "WAITING"
    (ann.home / "all-on").touch()
    assert ended(ann, merged)["state"] == "SUCCEEDED"
    assert all(ended(ann, f"{array}-{index}")["state"] == "SUCCEEDED" for index in range(3))
    code, _, error = finish(ann.run("--size", "0", "--after", f"{array}-1:failed", "--", "true"))
    assert "run.never_starts" in error
    late = detached(ann, "--after", f"{array}:ok", "--", "true")  # Slurm need not know it any more
    assert ended(ann, late)["state"] == "SUCCEEDED"


def test_an_array_of_which_an_answer_was_lost_is_submitted_once(site: IpuSite, ann: Person) -> None:
    """sbatch submits the third element and says nothing; the next ``moor`` finds it and submits those that wait."""
    marks = ann.home / "marks-lost"
    marks.mkdir()
    shutil.chown(marks, ann.name, ann.name)
    folder = ann.home / "bin-third"
    folder.mkdir()
    real = shutil.which("sbatch", path=f"{site.cluster.path_for(ann.name)}:{os.environ['PATH']}")
    script = folder / "sbatch"
    script.write_text(
        f'#!/bin/sh\necho "$*" | grep -q -- "-2/0" || exec {real} "$@"\n{real} "$@" > /dev/null\n'
        "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    started = ann.moor(
        *("run", "--engine", "slurm", "--detach", "--size", "0", "--array", "0-4%2", "--"),
        *("sh", "-c", f"mktemp {marks}/$MOORINGS_ARRAY_INDEX.XXXXXX"),
        PATH=f"{folder}:{site.cluster.path_for(ann.name)}:{os.environ['PATH']}",
    )
    code, output, said = finish(started)
    assert code == 0, said
    assert "2 of 5 runs submitted, then: " in said
    assert "your next 'moor' command here submits the others" in said
    assert all(ended(ann, f"{output.strip()}-{index}")["state"] == "SUCCEEDED" for index in range(5))
    assert sorted(path.name.partition(".")[0] for path in marks.iterdir()) == list("01234")


def test_an_array_is_cancelled_as_one(site: IpuSite, ann: Person) -> None:
    array = detached(ann, "--array", "0-4%2", "--name", "stubborn", "--", "sleep", "300")
    until(lambda: ann.ask("get", "run", f"{array}-0") and run_of(site, f"{array}-0")["state"] == "RUNNING", 60)
    assert f"array/{array} 5 runs cancelled" in ann.ask("cancel", "stubborn")
    assert {run_of(site, f"{array}-{index}")["state"] for index in range(5)} == {"CANCELLED"}
    assert not site.cluster.check("squeue", "-h", "-u", ann.name).strip()
