"""A job opens the device files that it was given; those of others are closed, on cgroup v1 and v2."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.privileged import devices
from moorings.privileged.cgroups import MOUNTS, CgroupTree, Hierarchies, JobLimits, parse_mounts
from moorings.privileged.devices import DeviceAccess, device_access, program_fault, read_patterns, v1_lines
from moorings.privileged.refusals import Refused
from tests.unit.privileged.rig import remove_base
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
DEPTH = 1500  # of folders: more than Python has frames
MAJOR = 195  # no driver of a test machine has it: open says ENXIO


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of device files: four accelerators, what they share, and a capability of one."""
    folder = tmp_path / "dev"
    (folder / "caps").mkdir(parents=True)
    files = {"accel0": 0, "accel1": 1, "accel2": 2, "accel3": 3, "accelctl": 255, "caps/cap1": 1}
    for name, minor in files.items():
        os.mknod(folder / name, stat.S_IFCHR, os.makedev(MAJOR + name.startswith("caps"), minor))
        (folder / name).chmod(0o666)
    (folder / "accel7").touch()
    (folder / "accel8").symlink_to("accel0")
    monkeypatch.setattr(devices, "DEV", folder)
    return folder


def patterns(dev: Path) -> tuple[str, ...]:
    return (f"{dev}/accel[0-9]*", f"{dev}/caps/*")


def test_what_is_shared_stays_open_and_what_may_come_is_closed(dev: Path) -> None:
    access = device_access(patterns(dev), [f"{dev}/accel1"])
    assert access == DeviceAccess(frozenset({MAJOR, MAJOR + 1}), frozenset({(MAJOR, 1), (MAJOR, 255)}))
    assert f"c {MAJOR}:* rwm" not in v1_lines(access)
    assert {"b *:* rwm", "c 1:* rwm", f"c {MAJOR}:255 rwm", f"c {MAJOR}:1 rwm"} <= set(v1_lines(access))
    assert device_access((), []) == device_access(["/dev/none*"], []) == DeviceAccess()


@pytest.mark.parametrize("name", ["accelctl", "accel7", "accel8", "accel9", "../dev/accel1", "", "accel1\0"])
def test_only_a_device_file_of_jobs_is_given(dev: Path, name: str) -> None:
    with pytest.raises(Refused) as refused:
        device_access(patterns(dev), [f"{dev}/accel1", f"{dev}/{name}"])
    assert refused.value.code == "device.unknown"


def test_a_tree_that_a_person_made_in_dev_is_in_nobodys_way(dev: Path) -> None:
    shared = dev / "shm"
    shared.mkdir()
    shared.chmod(0o1777)
    os.mknod(shared / "accel4", stat.S_IFCHR, os.makedev(MAJOR, 4))
    with contextlib.chdir(shared):
        for _ in range(DEPTH):
            Path("a").mkdir()
            os.chdir("a")
        try:
            found = device_access(patterns(dev), [f"{dev}/accel1"])
        finally:
            for _ in range(DEPTH):  # pytest's own removal is too shallow
                os.chdir("..")
                Path("a").rmdir()
    assert found.allowed == frozenset({(MAJOR, 1), (MAJOR, 255)})


def test_an_admin_names_the_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "devices"
    monkeypatch.setattr(devices, "PATTERNS_FILE", file)
    assert read_patterns() == devices.PATTERNS
    file.write_text("# of the lab\n/dev/accel[0-9]*   # all\n\n")
    assert read_patterns() == ("/dev/accel[0-9]*",)
    file.write_text("")
    assert read_patterns() == ()


# -- real cgroups ------------------------------------------------------------------------------------------------------


def hierarchies(version: str) -> Hierarchies:
    found = parse_mounts(MOUNTS.read_text())
    if version == "v1":
        if "devices" not in found.controllers:
            pytest.skip("cgroup v1 has no devices controller here")
        return found
    if found.unified is None:
        pytest.skip("cgroup v2 is not mounted here")
    if fault := program_fault():
        pytest.skip(f"no program for a cgroup can be loaded here: {fault}")
    return Hierarchies(found.unified)


@pytest.fixture(params=["v1", "v2"])
def tree(request: pytest.FixtureRequest) -> Iterator[CgroupTree]:
    base = f"moorings-devices-{os.getpid()}"
    made = CgroupTree(hierarchies(request.param), base)
    made.prepare()
    yield made
    remove_base(base)


def open_errors(tree: CgroupTree, access: DeviceAccess, paths: list[Path]) -> list[int]:
    """The error numbers of opening these in a job; 0: it is open."""
    cgroup = tree.job("1-a.0")
    cgroup.create(JobLimits(), access)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            cgroup.enter()
            os.setuid(61_001)
            for path in paths:
                try:
                    os.open(path, os.O_RDWR)
                    os.write(writing, b"\0")
                except OSError as error:
                    os.write(writing, bytes([error.errno or 0]))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        found = list(answers.read())
    os.waitpid(pid, 0)
    until(cgroup.remove, 30)
    return found


def test_a_job_opens_its_own_devices_only(tree: CgroupTree, dev: Path) -> None:
    for above in (dev, *dev.parents):
        above.chmod(above.stat().st_mode | 0o011)
    files = [*(dev / f"accel{number}" for number in range(4)), dev / "accelctl", dev / "caps/cap1"]
    usual = [Path("/dev/null"), Path("/dev/zero"), Path("/dev/urandom"), Path("/dev/ptmx")]
    closed, there = errno.EPERM, errno.ENXIO  # there: the kernel has asked for the driver, and it has none
    access = device_access(patterns(dev), [f"{dev}/accel1", f"{dev}/accel3"])
    assert open_errors(tree, access, [*files, *usual]) == [closed, there, closed, there, there, closed, 0, 0, 0, 0]
    nothing = device_access(patterns(dev), [])
    assert open_errors(tree, nothing, [*files, *usual]) == [closed] * 4 + [there, closed, 0, 0, 0, 0]
    assert open_errors(tree, DeviceAccess(), [*files, *usual]) == [there] * 6 + [0] * 4
