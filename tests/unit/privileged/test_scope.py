"""Where the jobs' cgroups are, by what systemd's programs answer (the real one: ``tests/e2e``)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from moorings.privileged import scope
from moorings.privileged.cgroups import Hierarchies
from moorings.privileged.scope import PLACE, SCOPE, JobsPlace, find_jobs_place


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with systemd: what its programs were asked. The scope is active once it was made."""
    log = tmp_path / "calls"
    for name, does in (("systemctl", "[ -e active ]"), ("systemd-run", "[ ! -e refuses ] && touch active")):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\ncd {tmp_path}\necho "{name} $*" >> {log}\n{does}\n')
        program.chmod(0o755)
    monkeypatch.setattr(scope, "BOOTED", tmp_path)
    monkeypatch.setattr(scope, "PATH", f"{tmp_path}:/usr/bin:/bin")
    return log


def test_without_systemd_the_jobs_are_in_a_folder_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "BOOTED", tmp_path / "none")
    assert find_jobs_place(Hierarchies(tmp_path)) == JobsPlace("moorings", None)


def test_under_systemd_the_scope_is_made_once(calls: Path, tmp_path: Path) -> None:
    v1 = Hierarchies(None, {"name=systemd": tmp_path})
    expected = JobsPlace(
        "system.slice/moorings-jobs.scope/jobs", tmp_path / "system.slice/moorings-jobs.scope/cgroup.procs"
    )
    assert [find_jobs_place(v1) for _ in range(2)] == [expected] * 2
    asked, made, again = calls.read_text().splitlines()
    assert asked == again == f"systemctl is-active --quiet {SCOPE}"
    assert {"--scope", f"--unit={SCOPE}", "--property=Delegate=yes", "--property=TasksMax=infinity"} <= {*made.split()}
    assert {"--property=MemoryAccounting=no", "--property=After=moorings-jobs.service"} <= {*made.split()}


def test_a_scope_that_systemd_refuses_is_an_error(calls: Path, tmp_path: Path) -> None:
    (calls.parent / "refuses").touch()
    with pytest.raises(subprocess.CalledProcessError):
        find_jobs_place(Hierarchies(tmp_path))


def test_on_v2_the_scope_has_no_process_of_its_own_and_gives_its_controllers_on(calls: Path, tmp_path: Path) -> None:
    made = tmp_path / PLACE
    made.mkdir(parents=True)
    for name, text in (("cgroup.procs", "123\n"), ("cgroup.controllers", "io pids"), ("cgroup.subtree_control", "")):
        (made / name).write_text(text)
    place = find_jobs_place(Hierarchies(tmp_path))
    assert place.sleeping == made / "asleep" / "cgroup.procs"
    assert place.sleeping.read_text() == "123"
    assert (made / "cgroup.subtree_control").read_text() == "+pids"
