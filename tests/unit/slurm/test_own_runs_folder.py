"""The folder in which a person's `moor` remembers the runs that it has submitted to Slurm."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.slurm.commands import SlurmCommands
from moorings.slurm.personal.own_runs import OwnRuns, own_run
from moorings.workloads.jobs import JobSpec

HERE, THERE = "http://127.0.0.1:1", "http://127.0.0.1:2"
JOB = JobSpec(name="one", command=("true",), workdir="/tmp")


@pytest.fixture
def own(tmp_path: Path) -> OwnRuns:
    return OwnRuns(tmp_path / "slurm", SlurmCommands({"PATH": "/nowhere"}, timeout_s=1))


def age(folder: Path, run: str, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(folder / "slurm" / "open" / run, (at, at))


def save(own: OwnRuns, run: str, server: str = HERE) -> None:
    own.save(run, own_run(JOB, server, "secret", "", "", ""))


def test_a_home_without_room_is_said_with_its_way_out(tmp_path: Path, own: OwnRuns) -> None:
    (tmp_path / "slurm").write_text("")
    with pytest.raises(MooringsError, match="run run-1 cannot be kept in") as caught:
        save(own, "run-1")
    assert caught.value.code == "engine.unavailable"
    assert "MOORINGS_SLURM_RUNS" in caught.value.hint


def test_the_token_is_read_by_its_person_alone(tmp_path: Path, own: OwnRuns) -> None:
    before = os.umask(0)
    try:
        save(own, "run-1")
    finally:
        os.umask(before)
    kept = tmp_path / "slurm" / "run-1"
    assert stat.S_IMODE((kept / "run.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert "secret" not in repr(own_run(JOB, HERE, "secret", "", "", ""))


def test_of_many_open_runs_each_is_reported_in_its_turn(tmp_path: Path, own: OwnRuns) -> None:
    for number in range(5):
        save(own, f"run-{number}")
        age(tmp_path, f"run-{number}", 100 - number)
    rounds = [own.unreported(HERE, 2) for _ in range(4)]
    assert rounds == [["run-0", "run-1"], ["run-2", "run-3"], ["run-4"], []]


def test_runs_of_another_controller_are_left_to_it(tmp_path: Path, own: OwnRuns) -> None:
    """Their tokens are for it, and it knows nothing of the others."""
    for run, server in (("run-1", HERE), ("run-2", THERE)):
        save(own, run, server)
        age(tmp_path, run, 100)
    assert own.unreported(HERE) == ["run-1"]
    assert own.unreported(THERE) == ["run-2"]


def test_a_damaged_record_stops_no_other(tmp_path: Path, own: OwnRuns) -> None:
    for run in ("run-1", "run-2"):
        save(own, run)
        age(tmp_path, run, 100)
    (tmp_path / "slurm" / "run-1" / "run.json").write_text("{")
    assert own.unreported(HERE) == ["run-2"]


@pytest.mark.parametrize("ident", ["../precious", "{here}/precious", "", "."])
def test_an_id_that_leaves_the_folder_is_refused(tmp_path: Path, own: OwnRuns, ident: str) -> None:
    """The controller says it, and files are made and removed by it."""
    (tmp_path / "precious").mkdir()
    ident = ident.format(here=tmp_path)
    for act in (lambda: save(own, ident), lambda: own.close(ident), lambda: own.cancel([ident], "why")):
        with pytest.raises(MooringsError) as caught:
            act()
        assert caught.value.code == "engine.rejected"
    assert not own.has(ident)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
