"""What is looked at on the controller's machine, and where: ``shared`` may be another folder than ``data``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moorings.app import settings
from moorings.app.doctor import run_checks
from moorings.app.folders import PROTECT_FILE, SharedFolder
from moorings.core.model.bindings import Binding, GcdBinding
from moorings.doctor.findings import CheckStatus, Finding
from moorings.local.run_folder import LocalRunFolder
from moorings.ports.engine import RunSubmission
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.runs import RunId
from tests.databases import open_new


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder beside a shared one, both as a controller leaves them that has ended."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (tmp_path / "shared" / "runs").mkdir(mode=0o700, parents=True)
    open_new(folder / "moorings.db").close()
    shared = SharedFolder(tmp_path / "shared")
    shared.pepper()
    shared.pools_file(None)
    config = tmp_path / "controller.toml"
    config.write_text(f'shared = "{shared.path}"\n')
    monkeypatch.setattr(settings, "DEFAULT_CONFIG", config)
    return folder


def found(data: Path) -> dict[str, Finding]:
    return {finding.id: finding for finding in run_checks(data)}


def test_folders_that_a_controller_left_in_order_are_in_order(data: Path) -> None:
    wrong = {name: finding.evidence for name, finding in found(data).items() if finding.verdict is not CheckStatus.PASS}
    assert wrong == {"host.controller": "no controller runs on this folder"}


def test_a_restore_is_looked_for_in_the_shared_folder(data: Path) -> None:
    (data.parent / "shared" / PROTECT_FILE).write_text("{}")
    assert found(data)["host.restore"].verdict is CheckStatus.WARN


def test_runs_are_looked_for_in_the_shared_folder(data: Path) -> None:
    folder = LocalRunFolder(data.parent / "shared" / "runs" / "run-a")
    folder.create()
    job = JobSpec(name="j", command=("true",), workdir="/", environment={}, tasks=1, accelerators=Accelerators(size=1))
    folder.save(RunSubmission(RunId("run-a"), 0, job, Binding("of-nobody", {}, (GcdBinding(0, (), "", "", {}),))))
    with folder.hold_submit_lock(wait_s=0):
        life = folder.acquire_liveness_lock()
    assert life is not None
    finding = found(data)["host.runs"]
    os.close(life)
    assert (finding.verdict, "of-nobody" in finding.evidence) == (CheckStatus.FAIL, True)
