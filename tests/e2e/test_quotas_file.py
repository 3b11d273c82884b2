"""The quotas file of a shared machine, applied by a real controller: what it sets, and what changes nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from moorings.app.people import ROOT
from moorings.app.quotas import MARKER, MachineQuotas, list_group_members, load_quotas
from moorings.core.model.claims import ClaimSpec
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import Project, UserLimit
from moorings.core.model.quotas import QUOTAS_BYTES_MAX
from tests.cases import cases
from tests.e2e.rig import ANN, Rig, running


class Machine:
    """A controller and its quotas file; ``fault``: why that file is not root's alone."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.folder = folder
        self.file = folder / "quotas.toml"
        self.fault = ""
        self.quotas = self.new_quotas()

    def new_quotas(self) -> MachineQuotas:
        return MachineQuotas(self.file, self.folder, lambda _path: self.fault)

    async def apply(self, text: str | None = None) -> None:
        """A turn of maintenance, after the file was written."""
        if text is not None:
            self.file.write_text(text)
        await self.quotas.apply(self.rig.assembly)

    @property
    def default(self) -> Project | None:
        return self.rig.assembly.loop.fleet.projects.get("default")

    @property
    def limits(self) -> tuple[int | None, dict[str, int]]:
        project = self.default or Project(name="default")
        return project.user_devices_max, {limit.subject: limit.devices_max for limit in project.user_limits}

    def problem(self) -> str:
        found = self.rig.assembly.loop.quotas_problem
        return found.detail if found is not None else ""


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with running(tmp_path) as rig:
        yield Machine(rig, tmp_path)


async def test_the_file_sets_the_limits_of_people_and_changes_nothing_else(machine: Machine) -> None:
    await machine.apply()
    assert machine.default is None, "without a file nothing is set"
    await machine.apply("[devices]\neveryone = 4\nroot = 8\nnobody = 0\n")
    assert machine.limits == (4, {"nobody": 0, "root": 8})
    assert machine.default is not None
    version = machine.default.version
    await machine.apply()
    assert machine.default.version == version, "what is set already is not set again"
    by_hand = replace(machine.default, weight=2.0, devices_max=12, user_devices_max=1, user_limits=())
    await machine.rig.controller.projects.set_project(ROOT, by_hand, version)
    await machine.apply()
    assert machine.limits == (4, {"nobody": 0, "root": 8}), "the file wins"
    assert (machine.default.weight, machine.default.devices_max) == (2.0, 12)


async def test_a_limit_of_the_file_bars_a_claim(machine: Machine) -> None:
    await machine.apply("[devices]\neveryone = 2\n")
    with pytest.raises(MooringsError) as caught:
        await machine.rig.controller.create_claim(ANN, ClaimSpec(kind="ipu", size=4), name="a", owner=None, key=None)
    assert caught.value.code == "project.limit"


@cases(
    "text",
    [
        "[devices]\neveryone = many\n",
        "[devices]\nno-such-person = 1\n",
        '[devices]\n"@no-such-group" = 1\n',
        "[device]\n",
        "[devices]\nroot = 1\nroot = 2\n",
        "#" * (QUOTAS_BYTES_MAX + 1),
    ],
)
def test_a_broken_file_is_refused(text: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "quotas.toml")
        path.write_text(text)
        with pytest.raises(MooringsError) as caught:
            load_quotas(path, lambda _path: "")
    assert caught.value.code == "quotas.invalid"
    assert caught.value.detail.startswith(str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads a file of mode 000")
def test_only_a_regular_file_of_root_is_read(tmp_path: Path) -> None:
    path = tmp_path / "quotas.toml"
    assert load_quotas(path) is None
    path.write_text("[devices]\n")
    with pytest.raises(MooringsError, match="can be written by others") as caught:
        load_quotas(path)
    assert "chmod 644" in caught.value.hint
    path.write_bytes(b"\xff")
    with pytest.raises(MooringsError, match="not UTF-8"):
        load_quotas(path, lambda _path: "")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(MooringsError, match="not a regular file"):
        load_quotas(path, lambda _path: "")
    path.unlink()
    path.mkdir()
    with pytest.raises(MooringsError, match="Is a directory"):
        load_quotas(path, lambda _path: "")


async def test_a_broken_file_changes_nothing_and_is_logged_once_for_each_change(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> int:
        return sum(record.message == "quotas.refused" for record in caplog.records)

    caplog.set_level(logging.INFO, "moorings.controller")
    await machine.apply("[devices]\neveryone = 4\n")
    for _ in range(3):
        await machine.apply("[devices]\n\neveryone = -1\n" if not logged() else None)
    assert (machine.limits, logged()) == ((4, {}), 1)
    assert f"{machine.file}:3: everyone = -1 is not between" in machine.problem()
    findings = {finding.id: finding for finding in (await machine.rig.controller.run_doctor(ROOT)).items}
    assert (findings["quotas"].verdict, ":3: everyone" in findings["quotas"].evidence) == ("FAIL", True)
    await machine.apply("[devices]\neveryone = -1\n")
    assert logged() == 2
    await machine.apply("[devices]\neveryone = 5\n")
    assert (machine.limits, machine.problem(), logged()) == ((5, {}), "", 2)
    machine.fault = "it is user 61001's"
    await machine.apply("[devices]\neveryone = 9\n")
    assert (machine.limits, "user 61001's" in machine.problem()) == ((5, {}), True)


async def test_a_removed_file_takes_its_limits_along_also_across_a_restart(machine: Machine) -> None:
    await machine.apply("[devices]\neveryone = 4\nroot = 8\n")
    machine.file.unlink()
    machine.quotas = machine.new_quotas()
    await machine.apply()
    assert machine.limits == (None, {})
    assert not (machine.folder / MARKER).exists()
    assert machine.default is not None
    by_hand = replace(machine.default, user_limits=(UserLimit("ann", 3),))
    await machine.rig.controller.projects.set_project(ROOT, by_hand, by_hand.version)
    await machine.apply()
    assert machine.limits == (None, {"ann": 3}), "what an admin set stays"


async def test_a_marker_that_cannot_be_written_is_a_problem(machine: Machine) -> None:
    machine.quotas = MachineQuotas(machine.file, machine.folder / "none", lambda _path: "")
    await machine.apply("[devices]\neveryone = 4\n")
    assert machine.limits == (None, {})
    assert "cannot be set" in machine.problem()


def test_members_of_a_group_are_those_it_lists_and_those_whose_own_it_is(
    tmp_path: Path,
) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text("ann:x:1:0:::\nbob:x:2:7:::\n\n+nis\neve:x:3:0\n")
    found = list_group_members("root", passwd)
    assert found is not None
    assert {"ann", "eve"} <= set(found)
    assert "bob" not in found
    assert list_group_members("no-such-group", passwd) is list_group_members("a\0b", passwd) is None
