"""What the doctor says of the controller's machine: each check seen to pass, to warn and to fail."""

import sqlite3
from dataclasses import replace

import pytest

from moorings.app import doctor, host_checks
from moorings.app.folders import PROTECT_FILE, RESTORE_PENDING_FILE, DataFolder, SharedFolder
from moorings.cli.processes import ControllerProcess
from moorings.doctor.checks import CHECKS, check_family, docs_link
from moorings.doctor.findings import FAIL, PASS, SKIP, WARN
from tests.databases import open_new
from tests.waiting import patient

RUNNING = ControllerProcess(7, 1, "http://h:1", "0")


def fine(finding):
    assert finding.id in CHECKS
    assert finding.fix or finding.verdict is PASS
    return finding.verdict


@pytest.mark.parametrize(
    ("mode", "owner", "verdict"), [(0o40700, 7, PASS), (0o40750, 7, FAIL), (0o40700, 8, FAIL), (0o100604, 7, FAIL)]
)
def test_private(mode, owner, verdict):
    assert fine(host_checks.check_private("host.folder", "/d", mode, owner, 7)) is verdict


@pytest.mark.parametrize(
    ("running", "stale", "lockers", "verdict"),
    [
        (RUNNING, True, [7], PASS),
        (replace(RUNNING, url="unix:///run/moorings/controller/api"), False, [7], WARN),
        (RUNNING, True, [], FAIL),
        (None, False, [9], WARN),
        (None, True, [], FAIL),
        (None, False, [], SKIP),
    ],
)
def test_controller(running, stale, lockers, verdict):
    assert fine(host_checks.check_controller(running, stale, lockers)) is verdict


def test_pepper():
    assert host_checks.check_pepper(64, 64) is None
    for wrong in (None, 3):
        found = host_checks.check_pepper(wrong, 64)
        assert found is not None
        assert fine(found) is FAIL


@pytest.mark.parametrize(("answer", "verdict"), [("ok", PASS), (None, PASS), ("row 3 missing from index", FAIL)])
def test_database(answer, verdict):
    assert fine(host_checks.check_database(answer, 3)) is verdict


@pytest.mark.parametrize(("found", "verdict"), [("0002", PASS), ("0001", WARN), ("0009", FAIL)])
def test_revision(found, verdict):
    assert fine(host_checks.check_revision(found, "0002", ("0001", "0002"))) is verdict


@pytest.mark.parametrize(
    ("free", "inodes_free", "inodes", "verdict"),
    [
        (10 << 30, 10**6, 10**7, PASS),
        (10 << 30, 0, 0, PASS),  # a file system that makes them as it goes
        (500 << 20, 10**6, 10**7, WARN),
        (10 << 30, 5000, 10**7, WARN),
        (50 << 20, 10**6, 10**7, FAIL),
        (10 << 30, 10, 10**7, FAIL),
    ],
)
def test_space(free, inodes_free, inodes, verdict):
    assert fine(host_checks.check_space(free, inodes_free, inodes)) is verdict


@pytest.mark.parametrize(("used", "verdict"), [(10, PASS), (85, WARN), (99, FAIL)])
def test_files(used, verdict):
    assert fine(host_checks.check_files(used, 100)) is verdict


@pytest.mark.parametrize(
    ("used", "recorded", "restored", "verdict"),
    [((), (), False, PASS), (("a",), ("a", "b"), False, PASS), (("x",), ("a",), False, FAIL), (("x",), (), True, WARN)],
)
def test_runs(used, recorded, restored, verdict):
    assert fine(host_checks.check_runs(used, recorded, restored)) is verdict


@pytest.mark.parametrize(
    ("restoring", "spared", "verdict"), [(False, None, PASS), (False, "why", WARN), (True, "why", FAIL)]
)
def test_restore(restoring, spared, verdict):
    assert fine(host_checks.check_restore(restoring, spared)) is verdict


# -- gathered from a real folder


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The folder of a controller that has run once and is down."""
    folder = tmp_path / "data"
    DataFolder(folder).close()
    shared = SharedFolder(folder)
    shared.pepper()
    shared.pools_file(None)
    open_new(folder / "moorings.db").close()
    monkeypatch.setattr("moorings.app.settings.DEFAULT_CONFIG", tmp_path / "none.toml")
    return folder


def look(data):
    return {finding.id: finding for finding in doctor.run_checks(data)}


def test_a_folder_in_order(data):
    found = look(data)
    assert {finding.verdict for finding in found.values()} == {PASS, SKIP}, found
    assert found["host.controller"].verdict is SKIP, "none runs"
    assert found.keys() == {name for name in CHECKS if name.startswith("host.")} - {"host.files"}


def test_everything_at_fault_is_found(data):
    data.chmod(0o755)
    (data / "pepper").write_text("00ff")
    (data / "pools.toml").write_text("[[pool]]\nname = 3\n")
    (data / "controller.json").write_text('{"pid": 4194304, "startTicks": 1, "url": "http://x:1", "version": "0"}')
    (data / RESTORE_PENDING_FILE).touch()
    (data / PROTECT_FILE).touch()
    with sqlite3.connect(data / "moorings.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    found = look(data)
    failed = {name for name, finding in found.items() if finding.verdict is FAIL}
    assert failed == {
        *("host.folder", "host.pepper", "host.pools", "host.controller", "host.restore", "host.revision"),
    }
    assert "pools.toml:2" in found["host.pools"].evidence
    (data / "pepper").unlink()
    assert look(data)["host.pepper"].verdict is FAIL


def test_a_damaged_database_is_found(data):
    path = data / "moorings.db"
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 8)
    assert look(data)["host.database"].verdict is FAIL
    path.chmod(0o644)
    assert "mode 0644" in look(data)["host.database"].evidence


def test_settings_that_cannot_be_used_are_told(data, tmp_path, monkeypatch):
    config = tmp_path / "controller.toml"
    config.write_text("prot = 1\n")
    monkeypatch.setattr("moorings.app.settings.DEFAULT_CONFIG", config)
    found = look(data)
    assert list(found) == ["host.settings"]
    assert found["host.settings"].verdict is FAIL


def test_a_check_that_hangs_does_not_hold_the_others_up(data, monkeypatch):
    import threading

    hold = threading.Event()
    monkeypatch.setattr(doctor, "CHECK_S", 0.5)
    monkeypatch.setattr(doctor, "_space", lambda *_: hold.wait(patient(30)))
    found = look(data)
    hold.set()
    assert (found["host.space"].verdict, "no answer in" in found["host.space"].evidence) == (FAIL, True)
    assert found["host.pools"].verdict is PASS


def test_the_manual_tells_of_every_check():
    from tests.debian import ROOT

    page = (ROOT / docs_link("laws").partition("#")[0]).read_text()
    assert [check for check in CHECKS if f"### {check}\n" not in page] == []
    assert docs_link("drivers.pod64") == docs_link("drivers")
    assert check_family("partitions.moving") == "partitions.moving"
