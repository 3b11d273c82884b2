"""Two controllers that share a database and a V-IPU controller, and no folder: as on two machines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.testing.fake_vipu import partitions_of, write_command
from tests.e2e.processes import Twin
from tests.e2e.test_vipu import POOL
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def machines(tmp_path: Path, database_url: str) -> Iterator[tuple[Twin, Twin]]:
    """Two controllers; the first leads."""
    command = write_command(tmp_path / "vendor", ipus=16, domain_size=16)
    pools = POOL.format(command=command, arguments='["--index", "{index}"]')
    settings = tmp_path / "controller.toml"
    settings.write_text("local_runs = false\n")
    made: list[Twin] = []
    for name in ("one", "two"):
        (tmp_path / name / "shared").mkdir(parents=True, mode=0o700)
        (tmp_path / name).chmod(0o700)
        flags = ("--config", str(settings))
        twin = Twin(tmp_path / name, pools, database=database_url, shared=tmp_path / name / "shared", flags=flags)
        if made:
            until(lambda: made[0].leads)
            shutil.copy(made[0].shared / "pepper", twin.shared / "pepper")
        made.append(twin)
        twin.start()
    yield made[0], made[1]
    for twin in made:
        if twin.process is not None and twin.process.poll() is None:
            assert twin.stop() == 0


def claim(controller: Twin, name: str) -> None:
    status, made = controller.ask("POST", "/v1/claims?wait=30s", {"name": name, "size": 4})
    assert (status, made["state"]) == (201, "READY"), made


def test_the_other_machine_knows_the_partitions_of_the_first(machines: tuple[Twin, Twin], tmp_path: Path) -> None:
    one, two = machines
    claim(one, "train")
    assert one.stop() == 0
    until(lambda: two.leads)
    claim(two, "more")  # so it has looked at what is there
    assert two.holders() == {"train": True, "more": True}
    assert two.ask("GET", "/v1/claims/train")[1]["state"] == "READY"
    status, binding = two.ask("GET", "/v1/claims/train/binding")
    assert status == 200, binding
    assert two.ask("DELETE", "/v1/claims/train?wait=30s")[1]["state"] == "RELEASED"
    assert list(partitions_of(tmp_path / "vendor")) == ["more"], "nothing is left of it"


@pytest.mark.smoke
def test_a_name_that_is_used_again_while_the_first_machine_was_away(
    machines: tuple[Twin, Twin], tmp_path: Path
) -> None:
    """The first machine's list of orders still has the claim that had the name."""
    one, two = machines
    claim(one, "train")
    one.kill()
    until(lambda: two.leads)
    assert two.ask("DELETE", "/v1/claims/train?wait=30s")[1]["state"] == "RELEASED"
    claim(two, "train")
    one.start()
    two.kill()
    until(lambda: one.leads)
    claim(one, "more")
    assert one.holders() == {"train": True, "more": True}
    assert "partition.stray_found" not in one.log()
    status, binding = one.ask("GET", "/v1/claims/train/binding")
    assert status == 200, binding
    assert set(partitions_of(tmp_path / "vendor")) == {"train", "more"}
