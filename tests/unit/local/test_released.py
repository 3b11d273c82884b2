"""Folders of runs that earlier releases left: each record is read, and written again as the same JSON."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.engines.fence import FileFence, read_epoch
from moorings.engines.run_folder import to_json
from moorings.local.records import AttemptEnd, CancelRecord, SupervisorStatus, YieldRecord, from_json
from moorings.local.run_folder import LocalRunFolder
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.workloads.runs import EndReason
from tests.released.site import NAMES, ReleasedSite

RECORDS = {
    "order": RunSubmission,
    "status": SupervisorStatus,
    "end": AttemptEnd,
    "cancel": CancelRecord,
    "yield": YieldRecord,
}


@pytest.fixture(params=NAMES, scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReleasedSite:
    return ReleasedSite(request.param, tmp_path_factory.mktemp("site"))


def test_each_record_is_written_again_as_it_was(site: ReleasedSite) -> None:
    found = set()
    for name, kind in RECORDS.items():
        for folder in (site.folder / "forms", *(site.folder / "data" / "runs").iterdir()):
            path = folder / f"{name}.json"
            if path.exists():
                text = path.read_text()
                again = json.loads(to_json(from_json(kind, text)))
                assert again == json.loads(text), path
                found.add(name)
    assert found == set(RECORDS)


def test_a_folder_of_the_release_before_high_water_marks_is_read(tmp_path: Path) -> None:
    """Its order says nothing of a partition, and its records have none of the fields that came later."""
    with tarfile.open(Path(__file__).parents[2] / "e2e" / "release_before.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = (tmp_path / "data" / "runs").glob("run-*")
    assert "partition" not in json.loads((folder / "order.json").read_text())
    order, survey = LocalRunFolder(folder).read_order(), LocalRunFolder(folder).read_records()
    assert order is not None
    assert (order.job.name, order.partition) == ("done", None)
    assert survey is not None
    assert survey.end is not None
    assert (survey.end.record.exit_code, survey.damage) == (0, ())


def test_a_folder_with_every_record_is_read(site: ReleasedSite) -> None:
    folder = LocalRunFolder(site.folder / "forms")
    survey = folder.read_records()
    assert survey is not None
    assert (survey.extent.attempt, survey.damage) == (2, ())
    assert survey.status is not None
    assert [task.pid for task in survey.status.tasks] == [12, 13]
    assert survey.end is not None
    assert survey.end.record.ending is EndReason.YIELDED
    cancel, room = folder.read(CancelRecord, 2), folder.read(YieldRecord, 2)
    assert cancel is not None
    assert cancel.reason == "enough"
    assert room is not None
    assert room.by_s == 12.5
    order = folder.read_order()
    assert order is not None
    assert (order.resume_from, order.job.resources.cpus) == ("/srv/saved/7", 2)


def test_ends_of_a_release_are_those_its_controller_told(site: ReleasedSite) -> None:
    codes = {one["name"]: one.get("exitCode") for one in site.told["runs"]}
    assert (codes["succeeded"], codes["failed"], codes["unknown"], codes["timed-out"]) == (0, 3, 127, 143)
    for job in ("succeeded", "failed", "unknown", "timed-out", "cancelled"):
        survey = LocalRunFolder(site.run(job)).read_records()
        assert survey is not None
        assert survey.end is not None, job
        assert survey.end.record.exit_code == codes[job], job
    running = LocalRunFolder(site.run("running")).read_records()
    assert running is not None
    assert running.end is None
    assert running.status is not None
    assert len(running.status.tasks) == 2


def test_an_epoch_of_a_release_fences_earlier_ones_off(site: ReleasedSite, tmp_path: Path) -> None:
    shutil.copy(site.folder / "forms" / ".epoch", tmp_path)
    assert read_epoch(tmp_path) == 7
    fence = FileFence(tmp_path)
    with pytest.raises(MooringsError), fence.hold_epoch(Epoch(6), 0.1):
        pass
    with fence.hold_epoch(Epoch(7), 0.1):
        pass
