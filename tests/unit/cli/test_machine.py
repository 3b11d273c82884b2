"""``moor up --system`` beside systemd's units, by what systemctl answers (the real one: ``tests/e2e``)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from moorings.cli import machine
from moorings.core.model.errors import MooringsError
from moorings.privileged import places
from moorings.wire.errors import ExitCode

UNITS = "moorings-jobs.service moorings-controller.service"


def boot(folder: Path, monkeypatch: pytest.MonkeyPatch, loaded: str, main_pid: int = 0) -> None:
    """A machine that systemd runs, and what it says of the root daemon's unit."""
    program = folder / "systemctl"
    program.write_text(f"#!/bin/sh\necho MainPID={main_pid}\necho LoadState={loaded}\n")
    program.chmod(0o755)
    monkeypatch.setattr(machine, "PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(machine, "BOOTED", folder)


@pytest.mark.parametrize(
    ("loaded", "main_pid", "running", "verb", "hint"),
    [
        ("loaded", 0, None, "start", f"systemctl enable --now {UNITS}"),
        ("loaded", 7, 7, "start", f"systemctl enable --now {UNITS}"),
        ("loaded", 7, 7, "stop", f"systemctl stop {UNITS}"),
        ("loaded", 0, None, "stop", f"systemctl stop {UNITS}"),
        ("loaded", 0, 8, "stop", None),  # it was started before the units were there
        ("not-found", 0, None, "start", None),
        ("not-found", 0, 8, "stop", None),
        ("masked", 0, None, "start", None),
    ],
)
def test_a_daemon_of_systemd_is_started_and_stopped_by_it_alone(
    loaded: str,
    main_pid: int,
    running: int | None,
    verb: str,
    hint: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boot(tmp_path, monkeypatch, loaded, main_pid)
    monkeypatch.setattr(machine, "find_daemon", lambda: running)
    if hint is None:
        machine.check_no_services(verb)
        return
    with pytest.raises(MooringsError) as refused:
        machine.check_no_services(verb)
    assert (refused.value.code, refused.value.hint) == ("config.invalid", hint)


def test_without_systemd_there_are_no_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BOOTED", tmp_path / "none")
    machine.check_no_services("start")


@pytest.mark.skipif(os.geteuid() != 0, reason="a machine that people share is root's")
@pytest.mark.parametrize("words", [("backup.tar.gz",), ("--finish",), ("--new",)])
def test_a_restore_beside_systemds_units_starts_no_daemon(
    words: tuple[str, ...],
    moor: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its daemon is down, and only systemd may start it: two would be in each other's way."""
    boot(tmp_path, monkeypatch, "loaded")
    monkeypatch.setattr(places, "JOBS", tmp_path / "jobs")
    monkeypatch.setattr(machine, "LOCK", tmp_path / "jobs/lock")
    monkeypatch.setattr(machine, "LOG", tmp_path / "jobs/daemon.log")
    monkeypatch.setattr(machine, "MODULE", "moorings.privileged.places")  # what would be started ends at once
    code, shown, said = moor("restore", "--system", "-y", "--data", str(tmp_path / "data"), *words)
    assert (code, shown) == (ExitCode.USAGE, ""), said
    assert "systemctl enable --now moorings-jobs.service\n" in said, "and not the controller: it must be down"
    assert not (tmp_path / "jobs").exists()
