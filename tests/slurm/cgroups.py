"""Nodes that keep their jobs in the kernel's cgroups, v1 or v2, without systemd: each node in a corner of its own.

A node sees the hierarchies from a cgroup namespace on, so its jobs' cgroups lie in its corner, which the cluster's
guard removes. This machine may have both versions (a hybrid): Slurm's cgroup/v2 refuses to start on such a
one, so ``only_v2.c`` hides v1 from it; then v2 has no controllers, and cores and memory are not confined.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

VERSIONS = ("v1", "v2")
ROOT = Path("/sys/fs/cgroup")
CONF = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\n"
_V1 = ("cpuset", "devices", "freezer")  # not memory: others' limits on this machine are kept there
_HIDER = Path(__file__).with_name("only_v2.c")
_ENTER_V1 = """
for one in {controllers}; do
    mkdir -p {root}/$one/{corner}
    for value in cpuset.cpus cpuset.mems; do
        [ ! -e {root}/$one/$value ] || cat {root}/$one/$value > {root}/$one/{corner}/$value
    done
    echo $$ > {root}/$one/{corner}/cgroup.procs
done
exec unshare --cgroup --mount --propagation private -- sh -euc '
    mount -t tmpfs -o mode=755 cgroup {root}
    for one in {controllers}; do mkdir {root}/$one; mount -t cgroup -o $one cgroup {root}/$one; done
    exec "$@"' sh "$@"
"""
_ENTER_V2 = """
mkdir -p {root}/{corner}
echo $$ > {root}/{corner}/cgroup.procs
exec unshare --cgroup --mount --propagation private -- sh -euc '
    umount -R /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir -p /sys/fs/cgroup/system.slice  # where systemd would have slurmd
    exec env LD_PRELOAD={hider} "$@"' sh "$@"
"""


def why_not(version: str) -> str:
    """Why nodes cannot have cgroups of that version here; empty: they can."""
    if version == "v2":
        return "" if _root_v2() else "no cgroup v2 is mounted here"
    missing = [name for name in _V1 if not (ROOT / name / "cgroup.procs").exists()]
    return f"no cgroup v1 hierarchy is mounted here for {', '.join(missing)}" if missing else ""


def cgroup_conf(version: str) -> str:
    """cgroup.conf."""
    cores = "ConstrainCores=yes\n" if version == "v1" else "IgnoreSystemd=yes\n"
    return f"CgroupPlugin=cgroup/{version}\nConstrainDevices=yes\n{cores}"


def enter_corner(version: str, folder: Path, node: str) -> Sequence[str]:
    """The words before those that start a node of the cluster of that folder.

    Raises:
        AssertionError: what hides v1 cannot be compiled.
    """
    corner = shlex.quote(f"{folder.name}-{node}")  # 26.05 wants no process there that it does not see
    if version == "v1":
        script = _ENTER_V1.format(root=ROOT, corner=corner, controllers=" ".join(_V1))
    else:
        hider = folder / "only_v2.so"
        if not hider.exists():  # a node that starts may be loading it
            words = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-o", str(hider), str(_HIDER), "-ldl"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        script = _ENTER_V2.format(root=_root_v2(), corner=corner, hider=hider)
    return ("unshare", "--mount", "--propagation", "private", "--", "sh", "-euc", script, "sh")


def _root_v2() -> Path | None:
    return next((root for root in (ROOT / "unified", ROOT) if (root / "cgroup.controllers").exists()), None)
