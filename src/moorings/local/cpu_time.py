"""The CPU time of a job on a shared machine, from its cgroup, which everybody may read.

A question to the root daemon was refused: it would do more as root, and the kernel shows the same file to all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from moorings.privileged.attempts import AttemptRecords
from moorings.privileged.cgroups import MOUNTS, Hierarchies, parse_mounts
from moorings.privileged.scope import jobs_base


def find_hierarchies() -> Hierarchies:
    """Where the cgroups of this machine are.

    Raises:
        OSError: that is unknown.
    """
    return parse_mounts(MOUNTS.read_text(encoding="utf-8"))


def read_cpu_s(found: Hierarchies, entry: str, attempt: int) -> float | None:
    """The CPU time of an attempt so far, of all its processes together; None: it cannot be read."""
    name = AttemptRecords(Path(entry, str(attempt))).cgroup
    for path in _counters(found, name):
        try:
            text = path.read_text(encoding="ascii")
        except OSError:  # it has ended, or this hierarchy does not count
            continue
        used_s = parse_cpu_s(text)
        if used_s is not None:
            return used_s
    return None


def _counters(found: Hierarchies, name: str) -> Iterator[Path]:
    if found.unified is not None:
        yield found.unified / jobs_base() / name / "cpu.stat"
    if "cpu" in found.controllers:  # systemd mounts cpuacct with it
        yield found.controllers["cpu"] / jobs_base() / name / "cpuacct.usage"


def parse_cpu_s(text: str) -> float | None:
    """The CPU time in ``cpu.stat`` of v2, or ``cpuacct.usage`` of v1; None: there is none.

    ``usage_usec`` counts microseconds (cgroup-v2.rst), ``cpuacct.usage`` is a number of nanoseconds (cpuacct.rst).
    """
    words = text.split()
    if len(words) == 1 and words[0].isdecimal():
        return int(words[0]) / 1e9
    used = dict(zip(words[::2], words[1::2], strict=False)).get("usage_usec", "")
    return int(used) / 1e6 if used.isdecimal() else None
