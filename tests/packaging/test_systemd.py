"""What a site copies for systemd, read by systemd's own tools; and the notify protocol over a real socket."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.app.systemd import SystemdNotifier, feed_watchdog
from tests.debian import ROOT, program, surroundings
from tests.e2e.processes import ControllerProcess
from tests.waiting import patient

DEPLOY = ROOT / "deploy" / "systemd"
UNIT = DEPLOY / "moorings-controller.service"
RECEIVE_BYTES = 4096


def analyze(*words: object) -> subprocess.CompletedProcess[str]:
    return run(program("systemd-analyze", "systemd"), *words)


def run(tool: Path, *words: object) -> subprocess.CompletedProcess[str]:
    argv = [str(tool), *map(str, words)]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=patient(60), env=surroundings(tool)
    )


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    return runnable(UNIT, tmp_path)


def runnable(unit: Path, folder: Path) -> Path:
    """A unit with a Python that is here, for systemd looks whether the command can be run."""
    text = unit.read_text()
    assert "ExecStart=/opt/moorings/bin/python " in text
    made = folder / unit.name
    made.write_text(text.replace("/opt/moorings/bin/python", sys.executable))
    return made


def closed(unit: Path) -> Path:
    """The unit as it is with the drop-in for controllers without jobs of their own."""
    unit.write_text(unit.read_text().replace("[Install]", (DEPLOY / "no-local-jobs.conf").read_text() + "\n[Install]"))
    return unit


def test_systemd_can_read_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")
    done = analyze("verify", "--man=no", closed(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_can_read_the_unit_of_slurm_s_agent(tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", runnable(DEPLOY / "moorings-slurm-agent.service", tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_can_read_the_units_of_a_shared_machine(unit: Path, tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", runnable(DEPLOY / "moorings-jobs.service", tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    beside = (DEPLOY / "shared-machine.conf").read_text().replace("/opt/moorings/bin/python", sys.executable)
    closed(unit).write_text(unit.read_text().replace("[Install]", beside + "\n[Install]"))
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")
    assert exposure(unit) <= 2.0


def test_systemd_can_read_the_drop_in_that_closes_devices(tmp_path: Path) -> None:
    text = (DEPLOY / "closed-devices.conf").read_text()
    service = "\n[Service]\nType=oneshot\nExecStart=/bin/true\n"
    for name, made in (("x.slice", text), ("x.service", text.replace("[Slice]", "[Service]") + service)):
        (tmp_path / name).write_text(made)
        done = analyze("verify", "--man=no", tmp_path / name)
        assert (done.returncode, done.stderr) == (0, "")


def test_jobs_inherit_nothing_of_the_unit_that_starts_them() -> None:
    lines = (DEPLOY / "moorings-jobs.service").read_text().splitlines()
    words = ("Protect", "Private", "Restrict", "NoNew", "Lock", "SystemCall", "Capability", "OOMScore", "Limit")
    assert [line for line in lines if line.startswith(words)] == []
    assert {"KillMode=process", "Type=notify"} <= set(lines)


def test_a_unit_that_is_wrong_is_noticed(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("WatchdogSec=60", "WatchdogSecs=60"))
    assert "WatchdogSecs" in analyze("verify", "--man=no", unit).stderr


def exposure(unit: Path) -> float:
    done = analyze("security", "--offline=true", "--no-pager", unit)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    return float(found[1])


def test_the_unit_is_closed_as_far_as_jobs_allow_and_entirely_without_them(unit: Path) -> None:
    assert exposure(unit) <= 5.0, "what systemd itself calls medium"
    assert exposure(closed(unit)) <= 2.0


def test_stopping_the_unit_leaves_the_jobs() -> None:
    lines = UNIT.read_text().splitlines()
    assert "KillMode=process" in lines, "any other mode ends every job at a restart (law 3)"
    assert "OOMPolicy=continue" in lines, "one job's memory must not stop the others"
    assert not [
        line for line in lines if line.startswith(("PrivateTmp=yes", "ProtectHome=yes", "ProtectSystem=strict"))
    ]


def test_user_and_folders_are_made(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("systemd-tmpfiles gives folders to the user it names: that needs root")
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group"):
        (tmp_path / "etc" / name).touch()
    for tool, file in (("systemd-sysusers", "moorings.sysusers.conf"), ("systemd-tmpfiles", "moorings.tmpfiles.conf")):
        create = ["--create"] if tool == "systemd-tmpfiles" else []
        done = run(program(tool, "systemd"), f"--root={tmp_path}", *create, DEPLOY / file)
        assert done.returncode == 0, done.stderr
    assert "moorings:x:6817:6817:" in (tmp_path / "etc" / "passwd").read_text()
    state = (tmp_path / "var/lib/moorings").stat()
    assert (state.st_mode & 0o777, state.st_uid) == (0o700, 6817)
    pki = (tmp_path / "etc/moorings/pki").stat()
    assert (pki.st_mode & 0o777, pki.st_uid, pki.st_gid) == (0o750, 0, 6817)


# -- the notify protocol -----------------------------------------------------------------------------------------------


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(patient(30))
        yield made


def heard(listener: socket.socket) -> dict[str, str]:
    lines = listener.recv(RECEIVE_BYTES).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_nobody_is_told_where_nobody_listens(tmp_path: Path) -> None:
    SystemdNotifier({}).send(READY=1)
    assert SystemdNotifier({"WATCHDOG_USEC": "1000000"}).watchdog_s == 0


def test_a_listener_that_has_gone_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "none")}).send(READY=1)
    assert [record.getMessage() for record in caplog.records] == ["notify.failed"]


def test_what_is_told_arrives_as_lines(listener: socket.socket, tmp_path: Path) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    notifier.send(READY=1, STATUS="all\nwell")
    assert heard(listener) == {"READY": "1", "STATUS": "all well"}
    notifier.reloading()
    assert heard(listener).keys() == {"RELOADING", "MONOTONIC_USEC"}


def test_an_abstract_socket_too() -> None:
    name = f"moorings-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind("\0" + name)
        SystemdNotifier({"NOTIFY_SOCKET": "@" + name}).send(STOPPING=1)
        assert heard(made) == {"STOPPING": "1"}


@pytest.mark.parametrize(
    ("pid", "usec", "seconds"),
    [("", "2000000", 2.0), ("ours", "500000", 0.5), ("1", "2000000", 0), ("", "soon", 0), ("", "", 0)],
)
def test_only_the_process_that_is_watched_feeds_the_watchdog(
    tmp_path: Path, pid: str, usec: str, seconds: float
) -> None:
    watched = str(os.getpid()) if pid == "ours" else pid
    told = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_PID": watched, "WATCHDOG_USEC": usec}
    assert SystemdNotifier(told).watchdog_s == seconds


async def test_the_watchdog_is_fed_only_while_there_is_progress(listener: socket.socket, tmp_path: Path) -> None:
    listener.setblocking(False)
    rounds = 0
    asked = 0
    stalled = asyncio.Event()

    def progress() -> int:
        nonlocal asked
        asked += 1
        if asked > 20:
            stalled.set()
        return rounds

    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "40000"})
    feeding = asyncio.create_task(feed_watchdog(notifier, progress))
    loop = asyncio.get_running_loop()
    assert await loop.sock_recv(listener, RECEIVE_BYTES) == b"WATCHDOG=1"
    await stalled.wait()
    with pytest.raises(BlockingIOError):
        listener.recv(RECEIVE_BYTES)  # twenty looks later: a loop that stands still is told nobody
    rounds = 1
    assert await loop.sock_recv(listener, RECEIVE_BYTES) == b"WATCHDOG=1"
    feeding.cancel()
    await asyncio.gather(feeding, return_exceptions=True)


# -- the whole process -------------------------------------------------------------------------------------------------


def test_a_controller_tells_systemd_how_it_is(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "4000000")
    controller = ControllerProcess(tmp_path)
    controller.start()
    assert controller.process is not None

    def next_but_watchdog() -> dict[str, str]:
        while (told := heard(listener)) == {"WATCHDOG": "1"}:
            pass
        return told

    assert next_but_watchdog()["READY"] == "1"
    assert heard(listener) == {"WATCHDOG": "1"}, "and again, while its loop goes round"
    controller.process.send_signal(1)  # HUP
    assert "RELOADING" in next_but_watchdog()
    assert next_but_watchdog()["READY"] == "1"
    assert controller.stop() == 0
    assert next_but_watchdog() == {"STOPPING": "1"}
