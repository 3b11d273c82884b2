"""Which list of a V-IPU pool's orders stands after a restore: the newer one, unless that is of no use."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from moorings.app.backup import restore
from moorings.app.backup_create import create_backup
from moorings.app.backup_vipu import is_member, restore_vipu_files
from moorings.app.folders import DataFolder, SharedFolder
from moorings.core.model.driver_results import PartitionSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.topology import Block
from moorings.drivers.vipu.intents import IntentLog, PartitionIntent
from tests.databases import open_new

POOL = "pod64.a-1"


def data_folder(path: Path) -> Path:
    """The folder of a controller that has run once and is down."""
    DataFolder(path).close()
    SharedFolder(path).pepper()
    SharedFolder(path).pools_file(None)
    open_new(path / "moorings.db").close()
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return data_folder(tmp_path / "data")


def place(data: Path) -> Path:
    return data / "vipu" / POOL / "orders.json"


def order(data: Path, *names: str) -> None:
    orders = IntentLog(place(data).parent)
    for name in names:
        orders.write(PartitionIntent(PartitionSpec(name, Block.parse("0-3"), 1, 1, f"moorings/x/{name}")))
    orders.close()


def ordered(data: Path) -> set[str]:
    orders = IntentLog(place(data).parent)
    try:
        return set(orders.read_all())
    finally:
        orders.close()


def test_a_new_disk_gets_what_was_ordered(data: Path, tmp_path: Path) -> None:
    order(data, "a", "b")
    create_backup(data, tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert f"vipu-orders.{POOL}.json" in tar.getnames()
    told = restore(tmp_path / "new", tmp_path / "b.tar.gz")
    assert ordered(tmp_path / "new") == {"a", "b"}
    assert place(tmp_path / "new").stat().st_mode & 0o777 == 0o600
    assert any(f"what was ordered of {POOL} is that of the backup" in line for line in told)
    assert [path.name for path in (tmp_path / "new").glob("vipu-orders*")] == []


def test_a_list_that_is_there_is_newer_and_stays(data: Path, tmp_path: Path) -> None:
    order(data, "a")
    create_backup(data, tmp_path / "b.tar.gz")
    order(data, "since")
    told = restore(data, tmp_path / "b.tar.gz")
    assert ordered(data) == {"a", "since"}
    assert not any("what was ordered" in line for line in told)


def test_a_damaged_list_is_replaced_and_kept(data: Path, tmp_path: Path) -> None:
    order(data, "a")
    create_backup(data, tmp_path / "b.tar.gz")
    place(data).write_text("{")
    with pytest.raises(MooringsError, match="is damaged: the backup would not be whole"):
        create_backup(data, tmp_path / "c.tar.gz")
    assert not (tmp_path / "c.tar.gz").exists()
    restore(data, tmp_path / "b.tar.gz")
    assert ordered(data) == {"a"}
    (aside,) = data.glob("before-restore-*")
    assert (aside / f"vipu-orders.{POOL}.json").read_text() == "{"


def test_another_installations_list_gives_way(data: Path, tmp_path: Path) -> None:
    order(data, "a")
    create_backup(data, tmp_path / "b.tar.gz")
    other = data_folder(tmp_path / "other")
    order(other, "its")
    with pytest.raises(MooringsError, match="the backup is of installation"):
        restore(other, tmp_path / "b.tar.gz")
    assert ordered(other) == {"its"}
    restore(other, tmp_path / "b.tar.gz", other_installation=True)
    assert ordered(other) == {"a"}


def test_it_may_be_done_again_wherever_it_was_cut_off(data: Path, tmp_path: Path) -> None:
    order(data, "old")
    work, aside = tmp_path / "work", tmp_path / "aside"
    for _ in range(2):  # the second time with the old list aside, and the backup's in its place
        work.mkdir(exist_ok=True)
        order(tmp_path / "from", "new")
        (work / f"vipu-orders.{POOL}.json").write_bytes(place(tmp_path / "from").read_bytes())
        assert restore_vipu_files(data, work, aside, from_other_installation=True) == [POOL]
        assert list(work.iterdir()) == []
        assert ordered(data) == {"new"}
        assert '"old"' in (aside / f"vipu-orders.{POOL}.json").read_text()


def test_a_backup_without_such_pools_is_as_ever(data: Path, tmp_path: Path) -> None:
    create_backup(data, tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert sorted(tar.getnames()) == ["manifest.json", "moorings.db", "pepper", "pools.toml"]


@pytest.mark.parametrize("name", ["vipu-orders...json", "vipu-orders.../x.json", "vipu-orders.a/b.json", "orders.json"])
def test_no_member_leads_elsewhere(name: str) -> None:
    assert not is_member(name)
