"""Terminals, commands and ports of runs on Slurm: steps of the job, by the person's own ``srun``."""

from __future__ import annotations

import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pseudoterminal import Pseudoterminal
from tests.slurm.ipus import IpuSite, ipu_site
from tests.slurm.test_own_runs import ANN, BOB, Person, finish, follow_people, open_runs, reaches, run_of
from tests.waiting import patient, until

PROMPT = "ready> "
DETACH = "\x10\x11"


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    """A site to whose Slurm people submit their runs themselves."""
    with ipu_site(slurm_release, accounting=True) as made:
        follow_people(made)
        yield made


@pytest.fixture(scope="module")
def ann(site: IpuSite) -> Person:
    return Person(site, ANN)


@pytest.fixture(scope="module")
def bob(site: IpuSite) -> Person:
    return Person(site, BOB)


@pytest.fixture(autouse=True)
def _quiet(site: IpuSite, ann: Person, bob: Person) -> Iterator[None]:
    yield
    for person in (ann, bob):
        for process in person.started:
            process.kill()
            with process:  # closes its pipes
                pass
    site.clear()
    until(lambda: not open_runs(site), 60, what=lambda: f"{open_runs(site)}")


@pytest.fixture
def python(site: IpuSite) -> None:
    if site.cluster.programs.chrooted:
        pytest.skip("the nodes have no Python")


def at_terminal(person: Person, *words: str, key: str = "", **size: int) -> Pseudoterminal:
    """Their ``moor`` in a terminal, with their access key or another one."""
    more = {"TERM": "xterm", "PS1": PROMPT, "MOORINGS_ACCESS_KEY": key or person.key}
    argv, environment = person.prepare(sys.executable, "-m", "moorings.cli.main", *words, **more)
    return Pseudoterminal(argv, environment, folder=person.home, **size)


def open_shell(person: Person, *flags: str) -> Pseudoterminal:
    words = ("run", "-i", "--engine", "slurm", "--ipus", "2", *flags, "--", "bash", "--norc")
    return at_terminal(person, *words)


def run_in(shell: Pseudoterminal) -> str:
    """The id of the run that a shell has just said it is in; its prompt is read, too."""
    shell.wait_for("; Ctrl-P Ctrl-Q detaches")
    shell.wait_for(PROMPT)
    found: list[bytes] = re.findall(rb"run-[a-z0-9]{12}", shell.output)
    return found[-1].decode()


@pytest.mark.usefixtures("python")
def test_shell_has_a_terminal_devices_and_its_own_exit_code(site: IpuSite, ann: Person) -> None:
    with open_shell(ann) as shell:
        ident = run_in(shell)
        shell.type("tty; id -un; echo $MOORINGS_DEVICES; stty size\r")
        assert "/dev/pts/" in shell.wait_for("24 80")
        assert f"{ANN}\r\npod16:0,pod16:1".encode() in shell.output
        shell.resize(31, 97)
        shell.type("until stty size | grep -q '31 97'; do sleep 0.1; done; echo re''sized\r")
        shell.wait_for("resized")
        shell.type("sh -c 'echo be\"\"gun; exec sleep 60'\r")
        shell.wait_for("begun")
        shell.type("\x03")
        shell.wait_for(PROMPT)
        shell.type("exit 7\r")
        assert shell.wait() == 7, shell.output
        shell.wait_for("FAILED")
    run = run_of(site, ident)
    assert (run["state"], run["exitCode"], run["taskCodes"]) == ("FAILED", 7, [7])
    assert site.cluster.job(run["reference"])["ExitCode"] == "7:0"


@pytest.mark.usefixtures("python")
def test_left_shell_is_found_again_with_its_output_by_its_person_alone(site: IpuSite, ann: Person, bob: Person) -> None:
    with open_shell(ann) as shell:
        ident = run_in(shell)
        shell.type("mark=of-this-shell; echo be''fore\r")
        shell.wait_for("before")
        shell.type(DETACH)
        assert shell.wait() == 0
        shell.wait_for(f"'moor attach {ident}' comes back; it gets HUP in 10:00 if you do not")
    for key, said in ((bob.key, "run.unknown"), (site.controller.key, f"belongs to {ANN}")):
        with at_terminal(bob, "attach", ident, key=key) as other:
            assert other.wait() != 0
            other.wait_for(said)
    with at_terminal(ann, "attach", ident, rows=40, columns=100) as again:
        again.wait_for("before")
        again.type("stty size; echo $mark\r")
        again.wait_for("40 100\r\nof-this-shell")
        again.process.send_signal(signal.SIGKILL)  # its srun ends with it
        again.process.wait()
    with at_terminal(ann, "attach", ident) as again:
        again.wait_for("of-this-shell")
        again.type("exit 0\r")
        assert again.wait() == 0, again.output
    assert "of-this-shell" in ann.ask("logs", ident)


@pytest.mark.usefixtures("python")
def test_closed_terminal_ends_its_shell_after_the_time_to_keep_it(site: IpuSite, ann: Person) -> None:
    with open_shell(ann, "--keep", "2s") as shell:
        ident = run_in(shell)
        shell.type("sleep 300 & sleep 301\r")
        shell.close()
        assert shell.process.wait(patient(30)) == 129
    run = reaches(site, ident, lambda run: run["state"] not in ("RUNNING", "STOPPING"))
    assert run["state"] == "CANCELLED"
    assert "unattended for 0:02" in run["detail"]
    until(lambda: site.cluster.job(run["reference"])["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"), 20)
    until(lambda: not site.controller.ask("GET", "/v1/claims")[1]["items"], 20)
    assert not [path for path in Path("/tmp").glob("moorings-terminal-*") if path.owner() == ANN]


@pytest.mark.usefixtures("python")
def test_cancelled_shell_ends_for_those_who_see_it(site: IpuSite, ann: Person) -> None:
    with open_shell(ann) as shell:
        ident = run_in(shell)
        ann.ask("cancel", ident, "--no-wait")
        assert shell.wait() != 0
        shell.wait_for("CANCELLED")
    assert run_of(site, ident)["state"] == "CANCELLED"


def test_ports_of_a_jobs_node_are_reached_from_here(site: IpuSite, ann: Person, bob: Person) -> None:
    (ann.home / "page.txt").write_bytes(bytes(range(256)) * 4096)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ident = ann.ask("run", "--engine", "slurm", "--detach", "--", "sleep", "300").strip()
    reaches(site, ident, lambda run: run["state"] == "RUNNING" or (ann.ask("get", "run", ident) and None))
    server = ann.call(sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1")
    until(lambda: _is_listening(port), 20)
    code, _, said = finish(bob.moor("port-forward", ident, str(port)))
    assert code != 0, said
    forwarding = ann.moor("port-forward", ident, f"0:{port}")
    assert forwarding.stdout is not None
    line = forwarding.stdout.readline()
    local = int(re.findall(r"127.0.0.1:(\d+) ->", line)[0])
    # Root may connect, too.
    for _ in range(3):
        with urllib.request.urlopen(f"http://127.0.0.1:{local}/page.txt", timeout=30) as answer:
            assert answer.read() == bytes(range(256)) * 4096
    idle = socket.create_connection(("127.0.0.1", local))
    job = run_of(site, ident)["reference"]
    until(lambda: _steps_of(site, job), 30)
    idle.close()  # it has sent nothing, and its step ends
    until(lambda: not _steps_of(site, job), 30)
    forwarding.send_signal(signal.SIGINT)
    code, _, said = finish(forwarding)
    assert code == 130, said
    server.kill()
    ann.ask("cancel", ident)


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _steps_of(site: IpuSite, job: str) -> list[str]:
    listed = site.cluster.check("squeue", "--steps", "-h", f"--jobs={job}", "-o", "%i").split()
    return [step for step in listed if not step.endswith((".0", ".batch", ".extern"))]


def test_node_without_python_gives_no_terminal_and_says_so(site: IpuSite, ann: Person) -> None:
    if not site.cluster.programs.chrooted:
        pytest.skip("the nodes have a Python")
    with open_shell(ann) as shell:
        assert shell.wait(60) == 126, shell.output
        shell.wait_for("a terminal needs Python 3.11")
