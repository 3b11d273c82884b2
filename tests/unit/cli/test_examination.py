"""``moor doctor`` ends in time, whatever hangs, and tells what there is."""

import contextlib
import socket
import threading

import pytest

from moorings.cli import examination
from moorings.cli.checks import check_clock
from moorings.core.model.timestamps import Timestamp
from moorings.doctor.findings import CheckStatus, parse_finding
from moorings.terminal.context import CommandContext
from moorings.wire.shapes import FindingBody
from tests.waiting import patient, within

PROMISE_S = 10.0


@pytest.fixture
def silent():
    """The address of somebody who takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def dripping():
    """The address of somebody who answers a byte every tenth of a second, for ever."""
    halt = threading.Event()

    def serve(listening):
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not halt.wait(0.1):
                    connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        halt.set()
    thread.join(patient(5))


def session_of(server, monkeypatch):
    monkeypatch.setenv("MOORINGS_SERVER", server)
    import os

    return CommandContext(os.environ)


def test_a_controller_that_says_nothing_costs_seconds(silent, monkeypatch, tmp_path):
    with within(PROMISE_S):
        done = examination.examine(session_of(silent, monkeypatch), tmp_path / "none")
    found = {finding.id: finding for finding in done}
    assert (found["controller"].verdict, "did not answer" in found["controller"].evidence) == (CheckStatus.FAIL, True)
    assert found["version"].verdict is CheckStatus.SKIP
    assert found["host"].verdict is CheckStatus.SKIP


def test_what_it_may_take_is_less_than_what_is_promised():
    assert examination.ANSWER_S < examination.ALL_S < PROMISE_S


def test_one_that_drips_is_given_up_and_the_rest_is_told(dripping, monkeypatch, tmp_path):
    with within(PROMISE_S):
        done = examination.examine(session_of(dripping, monkeypatch), tmp_path / "none", limit_s=patient(0.5))
    found = {finding.id: finding for finding in done}
    assert "not everything could be looked at" in found["controller"].evidence
    assert found["configuration"].verdict is CheckStatus.PASS


def test_a_machine_that_hangs_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(examination, "build_host_doctor", lambda _data: ["sleep", "30"])
    found = examination.examine(session_of("http://127.0.0.1:1", monkeypatch), tmp_path, limit_s=0.5)
    [host] = [finding for finding in found if finding.id == "host"]
    assert host.verdict is CheckStatus.FAIL


def test_what_the_machine_s_doctor_complains_of_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(examination, "build_host_doctor", lambda _data: ["sh", "-c", "echo broken >&2; exit 3"])
    found = examination.examine(session_of("http://127.0.0.1:1", monkeypatch), tmp_path)
    [host] = [finding for finding in found if finding.id == "host"]
    assert (host.verdict, host.evidence) == (CheckStatus.FAIL, "this machine could not be looked at: broken")


def test_a_fault_of_one_side_does_not_take_the_others_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(examination, "check_transport", lambda *_: 1 / 0)
    found = {
        finding.id: finding
        for finding in examination.examine(session_of("http://127.0.0.1:1", monkeypatch), tmp_path / "none")
    }
    assert "ZeroDivisionError" in found["configuration"].evidence
    assert found["controller"].verdict is CheckStatus.FAIL
    assert found["host"].verdict is CheckStatus.SKIP


@pytest.mark.parametrize(
    ("theirs_s", "verdict"),
    [
        (100, CheckStatus.PASS),
        (104, CheckStatus.PASS),
        (90, CheckStatus.WARN),
        (999, CheckStatus.FAIL),
        (0, CheckStatus.FAIL),
    ],
)
def test_clocks(theirs_s, verdict):
    at = [Timestamp(seconds * 1_000_000) for seconds in (theirs_s, 100, 103)]
    assert check_clock(*at).verdict is verdict


def test_a_verdict_of_a_newer_release_is_a_warning():
    assert parse_finding(FindingBody(id="x", verdict="MAYBE", evidence="e")).verdict is CheckStatus.WARN
