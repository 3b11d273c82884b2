"""Where cgroups are, on machines of each kind; the daemon's tests use those of this one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from moorings.privileged.cgroups import CgroupTree, Hierarchies, JobLimits, parse_limits, parse_mounts
from moorings.privileged.refusals import Refused
from tests.cases import cases

V1 = """cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"


def test_the_hierarchies_of_each_kind_of_machine() -> None:
    root = Path("/sys/fs/cgroup")
    v1 = {"cpu": root / "cpu,cpuacct", "memory": root / "memory", "pids": root / "pids", "freezer": root / "freezer"}
    v1 |= {"name=systemd": root / "systemd"}
    assert parse_mounts(V1) == Hierarchies(None, v1)
    assert parse_mounts(V2) == Hierarchies(root, {})
    assert parse_mounts(V1 + V2.replace("cgroup cgroup2", "cgroup/unified cgroup2")).unified == root / "unified"
    assert parse_mounts("proc /proc proc rw 0 0\n\nbad\n") == Hierarchies(None, {})


def unified(folder: Path, controllers: str = "cpu memory pids") -> CgroupTree:
    """A tree as the kernel shows it, of plain files."""
    base = folder / "moorings"
    base.mkdir()
    for name, text in (("cgroup.controllers", controllers), ("cgroup.subtree_control", ""), ("cgroup.kill", "")):
        (base / name).write_text(text)
    return CgroupTree(Hierarchies(folder))


def test_limits_are_set_where_their_controllers_are(tmp_path: Path) -> None:
    tree = unified(tmp_path)
    tree.prepare()
    folder = tmp_path / "moorings" / "job"
    folder.mkdir()
    for name in ("pids.max", "memory.max", "memory.swap.max", "cpu.max"):
        (folder / name).touch()
    tree.job("job").create(JobLimits(cpus=1.5, memory_bytes=1 << 30, tasks=100))
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == {"pids.max": "100", "memory.max": "1073741824", "memory.swap.max": "0", "cpu.max": "150000 100000"}
    (folder / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert tree.job("job").oom_kills() == 1


def test_what_all_jobs_share_may_go(tmp_path: Path) -> None:
    tree = unified(tmp_path)
    tree.prepare()
    assert tree.is_there()
    (tmp_path / "moorings").rename(tmp_path / "gone")
    assert not tree.is_there()


def test_a_scope_is_being_stopped_once_nothing_keeps_it(tmp_path: Path) -> None:
    sleeping = tmp_path / "cgroup.procs"
    tree = CgroupTree(Hierarchies(tmp_path), sleeping=sleeping)
    sleeping.write_text("123\n")
    assert not tree.is_stopping()
    sleeping.write_text("")
    assert tree.is_stopping()
    sleeping.unlink()
    assert tree.is_stopping()
    assert not CgroupTree(Hierarchies(tmp_path)).is_stopping(), "without systemd there is none"


def test_systemd_makes_its_own_cgroups_on_v1(tmp_path: Path) -> None:
    tree = CgroupTree(Hierarchies(None, {"name=systemd": tmp_path / "systemd", "freezer": tmp_path / "freezer"}), "a/b")
    with pytest.raises(FileNotFoundError):
        tree.prepare()
    (tmp_path / "systemd" / "a").mkdir(parents=True)
    tree.prepare()
    assert tree.is_there()


def test_limits_that_cannot_be_set_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree = unified(tmp_path, "cpu io")
    tree.prepare()
    assert tree.limited == {"cpu"}
    assert [each.getMessage() for each in caplog.records] == ["limits.unavailable: memory, pids"]


def test_a_controller_that_cannot_be_enabled_limits_nothing(tmp_path: Path) -> None:
    tree = unified(tmp_path)
    control = tmp_path / "moorings" / "cgroup.subtree_control"
    control.unlink()
    control.mkdir()  # as a file that takes no controller
    tree.prepare()
    assert tree.limited == frozenset()


@cases(
    ("given", "refused"),
    [
        ({}, ""),
        ({"cpus": None, "memoryBytes": None}, ""),
        ({"cpus": 1}, "cpu"),
        ({"memoryBytes": 1, "tasks": 1}, "memory, pids"),
    ],
    ids=str,
)
def test_only_a_limit_that_was_asked_for_is_missed(given: dict[str, object], refused: str) -> None:
    with pytest.raises(Refused, match=f"use of {refused}$") if refused else contextlib.nullcontext():
        parse_limits(given, frozenset())


def test_where_devices_cannot_be_closed_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs have no cgroup of v2 without cgroup.kill, and v1 may have no list of devices."""
    (tmp_path / "freezer").mkdir()
    (tmp_path / "unified" / "moorings").mkdir(parents=True)
    (tmp_path / "unified" / "moorings" / "cgroup.controllers").write_text("")
    tree = CgroupTree(Hierarchies(tmp_path / "unified", {"freezer": tmp_path / "freezer"}))
    tree.prepare()
    assert not tree.closes_devices
    assert "devices.open" in caplog.text


def test_a_machine_where_no_job_could_be_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no job could be ended"):
        CgroupTree(Hierarchies(None, {"memory": tmp_path})).prepare()
