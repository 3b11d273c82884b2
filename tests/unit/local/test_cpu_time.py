"""What a job has used, from real cgroups where they can be made, and from texts of each kind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.local.cpu_time import find_hierarchies, parse_cpu_s, read_cpu_s
from moorings.privileged.cgroups import BASE, Hierarchies
from tests.cases import cases
from tests.waiting import until

WORK = "x = 0\nwhile True: x += 1"


@cases(
    ("text", "used_s"),
    [
        ("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n", 1.5),
        ("nr_periods 0\nusage_usec 0\n", 0.0),
        ("1500000000\n", 1.5),
        ("", None),
        ("nr_periods 0\nnr_throttled 0\n", None),
        ("usage_usec many\n", None),
        ("-1\n", None),
        ("usage_usec", None),
    ],
    ids=str,
)
def test_both_kinds_of_counters_are_read(text, used_s):
    assert parse_cpu_s(text) == used_s


def counter(folder: Path, name: str, text: str) -> None:
    job = folder / BASE / "61001-ab.3"
    job.mkdir(parents=True, exist_ok=True)
    (job / name).write_text(text)


def test_v2_is_asked_first_and_v1_where_it_does_not_count(tmp_path):
    v1, v2 = tmp_path / "cpu,cpuacct", tmp_path / "unified"
    found = Hierarchies(v2, {"cpu": v1})
    assert read_cpu_s(found, "61001-ab", 3) is None, "it has ended"
    counter(v1, "cpuacct.usage", "2000000000\n")
    assert read_cpu_s(found, "61001-ab", 3) == 2.0
    counter(v2, "cpu.stat", "usage_usec 7000000\n")
    assert read_cpu_s(found, "61001-ab", 3) == 7.0
    assert read_cpu_s(Hierarchies(None, {"cpu": v1}), "61001-ab", 3) == 2.0
    assert read_cpu_s(Hierarchies(), "61001-ab", 3) is None
    assert read_cpu_s(found, "61001-ab", 2) is None, "another attempt"


def real_hierarchies() -> Iterator[tuple[str, Hierarchies, str]]:
    """Those of this machine, one by one; v1 may count at another place than where jobs are."""
    found = find_hierarchies()
    if found.unified is not None:
        yield "v2", Hierarchies(found.unified), "cpu.stat"
    for path in (Path("/sys/fs/cgroup/cpuacct"), *found.controllers.values()):
        if (path / "cpuacct.usage").exists():
            yield "v1", Hierarchies(None, {"cpu": path}), "cpuacct.usage"
            return


def test_real_cgroups_count_what_works_and_not_what_sleeps():
    if os.geteuid() != 0:
        pytest.skip("cgroups need root")
    counted = [kind for kind, found, name in real_hierarchies() if counts(found, name)]
    if not counted:
        pytest.skip("no cgroup of this machine counts CPU time")


def counts(found: Hierarchies, name: str) -> bool:
    """Check one of them; whether it counts at all."""
    entry = f"61001-test{os.getpid()}"
    base = (found.unified or found.controllers["cpu"]) / BASE
    was_there, job = base.exists(), base / f"{entry}.0"
    try:
        job.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if not (job / name).exists():
            return False
        with process_in(job, sys.executable, "-c", WORK):
            until(lambda: (read_cpu_s(found, entry, 0) or 0.0) > 0.05, what=name)
        used_s = read_cpu_s(found, entry, 0)
        assert used_s is not None
        with process_in(job, "sleep", "300"):
            assert 0.0 <= (read_cpu_s(found, entry, 0) or 0.0) - used_s < 0.05
        return True
    finally:
        until(lambda: removed(job))
        if not was_there:
            base.rmdir()


@contextlib.contextmanager
def process_in(job: Path, *command: str) -> Iterator[None]:
    with subprocess.Popen(command) as process:
        try:
            (job / "cgroup.procs").write_text(str(process.pid))
            yield
        finally:
            process.kill()


def removed(job: Path) -> bool:
    with contextlib.suppress(OSError):
        job.rmdir()
    return not job.exists()
