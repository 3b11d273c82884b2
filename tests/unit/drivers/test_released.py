"""Simulated machines that earlier releases left: their journals are read, and gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from moorings.core.model.timestamps import Timestamp
from moorings.drivers.simulated.hardware import SimulatedHardware
from tests.released.site import NAMES, ReleasedSite


@pytest.fixture(params=NAMES, scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReleasedSite:
    return ReleasedSite(request.param, tmp_path_factory.mktemp("site"))


def test_a_journal_with_every_record_is_read(site: ReleasedSite, tmp_path: Path) -> None:
    told = json.loads((site.folder / "forms" / "machine.json").read_text())
    folder = Path(shutil.copytree(site.folder / "forms" / "machine", tmp_path / "machine"))
    kinds = {json.loads(line)["is"] for line in (folder / "journal.jsonl").read_text().splitlines()}
    assert kinds == {"machine", "partition", "gone", "lost", "down", "strike", "strikes"}
    for _ in range(2):  # as it was, and as it is compacted today
        machine = SimulatedHardware(folder)
        with machine.transaction():
            assert [one.record() for one in machine.partitions(Timestamp(0))] == told["records"]
        assert (machine.struck, machine.down_until) == (told["struck"], told["down_until"])
        assert machine.next_serial() == 5
        machine.close()


def test_machines_of_a_site_have_the_partitions_that_its_controller_told(site: ReleasedSite, tmp_path: Path) -> None:
    found = set()
    at = max(Timestamp(int((site.folder / "told.json").stat().st_mtime * 1e6)), Timestamp(0))
    for folder in sorted((site.folder / "data" / "simulated").iterdir()):
        machine = SimulatedHardware(Path(shutil.copytree(folder, tmp_path / folder.name)))
        with machine.transaction():
            found |= {(folder.name, one.name) for one in machine.partitions(at) if one.mark}
        machine.close()
    told = {(one["pool"], one["name"]) for one in site.told["partitions"]}
    assert told - found <= {("pod16", "lost")}, "it vanished"
    assert found <= told
