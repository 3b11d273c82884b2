"""Terminals and ports of runs on Slurm: what ``moor`` makes of the words of squeue and srun."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from moorings.cli.slurm_terminals import SlurmTerminal, StepForwarder, check_is_ours, check_own_job
from moorings.core.model.errors import MooringsError
from moorings.slurm import formats
from moorings.slurm.engine.node_terminal import UNREACHABLE
from moorings.terminal.attaching import RelayEnd
from moorings.terminal.context import CommandContext
from moorings.terminal.port_forwarding import PortForwarder
from moorings.terminal.progress import Progress
from moorings.wire.shapes import RunBody, RunRequest
from tests.cases import cases
from tests.unit.cli import samples

LISTING = (Path(__file__).parents[1] / "slurm" / "recordings" / "24.11" / "jobs.txt").read_bytes()
JOBS = {job.state: job for job in formats.parse_jobs(LISTING)}
RUNNING = JOBS["RUNNING"]
SRUN = 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"'


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a command of Slurm, as a script; squeue shows jobs of root."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)

    (tmp_path / "jobs").write_bytes(LISTING)
    write("squeue", f"cat {tmp_path}/jobs")
    write("srun", SRUN)
    return write


def run(job: int | None = RUNNING.job_id, state: str = "RUNNING") -> RunBody:
    reference = None if job is None else str(job)
    found: RunBody = samples.run(engine="slurm", claim=None, reference=reference, state=state)
    return found


def terminal_here() -> SlurmTerminal:
    session = CommandContext(os.environ)
    return SlurmTerminal(session, Progress(session.console))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(MooringsError) as refused:
        call()
    return refused.value.code


@pytest.mark.usefixtures("slurm")
def test_job_that_runs_is_found() -> None:
    assert check_own_job(CommandContext(os.environ), run()).job_id == RUNNING.job_id


@pytest.mark.usefixtures("slurm")
@cases(
    "body",
    [
        run(None, "WAITING"),
        run(RUNNING.job_id, "SUCCEEDED"),
        run(JOBS["FAILED"].job_id),
        run(JOBS["PENDING"].job_id),
        run(999_999),
    ],
)
def test_run_without_processes_is_not_reached(body: RunBody) -> None:
    assert refusal(lambda: check_own_job(CommandContext(os.environ), body)) == "run.not_running"


@pytest.mark.usefixtures("slurm")
def test_job_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: RUNNING.uid + 1)
    with pytest.raises(MooringsError, match=f"belongs to {RUNNING.user}") as refused:
        check_own_job(CommandContext(os.environ), run())
    assert refused.value.code == "terminal.refused"


def test_slurm_that_is_away_or_missing_says_so(slurm: Callable[[str, str], None]) -> None:
    slurm("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    assert refusal(lambda: check_own_job(CommandContext(os.environ), run())) == "slurm.unavailable"
    nowhere = CommandContext({**os.environ, "PATH": "/nowhere"})
    assert refusal(lambda: check_own_job(nowhere, run())) == "slurm.missing"


@pytest.mark.usefixtures("slurm")
@cases(
    "code, complaints, expected",
    [
        (143, [], RelayEnd.CLOSED),
        (137, ["task 0: Killed"], RelayEnd.CLOSED),
        (1, ["Unable to create step for job 7: Access/permission denied"], "terminal.unreachable"),
        (UNREACHABLE, [], "terminal.unreachable"),
    ],
)
def test_other_end_of_a_step_is_a_lost_connection_or_none(
    code: int, complaints: list[str], expected: RelayEnd | str
) -> None:
    terminal = terminal_here()
    try:
        found: RelayEnd | str = terminal._explain_end(run(), code, complaints).end
    except MooringsError as error:
        found = error.code
    assert found == expected


@pytest.mark.usefixtures("slurm")
def test_step_that_ended_with_its_job_leaves_the_word_to_the_controller() -> None:
    terminal = terminal_here()
    assert terminal._explain_end(run(JOBS["FAILED"].job_id), 137, []).end is RelayEnd.LOST


def test_terminal_of_a_job_that_the_controller_submits_is_for_its_user_alone(tmp_path: Path) -> None:
    session = CommandContext({"HOME": str(tmp_path), "MOORINGS_SERVER": "http://127.0.0.1:9"})
    plain = RunRequest(job=run().job, engine="slurm")
    check_is_ours(session, plain)
    assert refusal(lambda: check_is_ours(session, replace(plain, job=replace(plain.job, terminal_keep_s=600.0)))) == (
        "engine.rejected"
    )


@pytest.mark.usefixtures("slurm")
def test_connections_are_passed_on_each_by_a_step() -> None:
    said: list[str] = []
    forwarder = StepForwarder("7", said.append)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo_backwards, args=(server, 2), daemon=True).start()
        with PortForwarder(forwarder, [(0, server.getsockname()[1])], said.append) as forwarding:
            for _ in range(2):
                with socket.create_connection(("127.0.0.1", forwarding.ports[0][0])) as client:
                    client.sendall(b"\x00\x04hello")
                    client.shutdown(socket.SHUT_WR)  # it still reads
                    assert client.recv(100) == b"olleh\x04\x00"
                    assert client.recv(100) == b""
    assert said == []


@pytest.mark.usefixtures("slurm")
def test_port_where_nothing_listens_is_reported() -> None:
    told = threading.Event()
    said: list[str] = []

    def report(text: str) -> None:
        said.append(text)
        told.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with PortForwarder(StepForwarder("7", report), [(0, port)], report) as forwarding:
        with socket.create_connection(("127.0.0.1", forwarding.ports[0][0])) as client:
            assert client.recv(1) == b""
        assert told.wait(20)
    assert "nothing listens" in said[0]


def _echo_backwards(server: socket.socket, count: int) -> None:
    for _ in range(count):
        connection, _ = server.accept()
        with connection:
            connection.sendall(connection.recv(100)[::-1])
