"""``moor up --system`` beside systemd's units, by what systemctl answers (the real one: ``tests/e2e``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from moorings.cli import machine
from moorings.core.model.errors import MooringsError

UNITS = "moorings-jobs.service moorings-controller.service"


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
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\necho MainPID={main_pid}\necho LoadState={loaded}\n")
    program.chmod(0o755)
    monkeypatch.setattr(machine, "PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(machine, "BOOTED", tmp_path)
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
