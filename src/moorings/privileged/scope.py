"""Where the jobs' cgroups are: under systemd in one scope that it delegates, beside the daemon's service.

The service's own cgroup would end with it, and a cgroup beside those of systemd is one that systemd may remove
(https://systemd.io/CGROUP_DELEGATION). A scope lives while a process is in it, so one sleeps there, as slurmstepd's.
"""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

from moorings.privileged.cgroups import LIMITING, Hierarchies

BOOTED = Path("/run/systemd/system")  # there if systemd runs the machine (sd_booted(3))
SCOPE = "moorings-jobs.scope"
PLACE = f"system.slice/{SCOPE}"
PATH = "/usr/bin:/bin"
ANSWER_S = 60.0  # of systemd
# --collect: a scope that has failed does not stand in the way.
_MAKE = ("systemd-run", "--scope", "--quiet", "--collect", f"--unit={SCOPE}", "--slice=system.slice")
_PROPERTIES = (
    "--description=Jobs of people (Moorings)",
    "--property=Delegate=yes",
    "--property=TasksMax=infinity",  # else all jobs share a service's 15 %
    # Else systemd 252 stops the scope, and all jobs, when one is killed for its memory (its issue 25376): it has no
    # OOMPolicy of scopes yet. The controller is delegated all the same.
    "--property=MemoryAccounting=no",
)
_SLEEP = ("sh", "-c", "sleep infinity < /dev/null > /dev/null 2>&1 &")  # it returns once the scope is there


def find_jobs_place(hierarchies: Hierarchies) -> str:
    """The cgroup of all jobs, as a path below each hierarchy; under systemd the scope is made, if it is not there.

    Raises:
        OSError, subprocess.SubprocessError: systemd cannot be asked, or refuses.
    """
    if not BOOTED.is_dir():
        return "moorings"
    run = partial(subprocess.run, env={"PATH": PATH}, stdin=subprocess.DEVNULL, timeout=ANSWER_S)
    if run(("systemctl", "is-active", "--quiet", SCOPE), check=False).returncode != 0:
        run((*_MAKE, *_PROPERTIES, *_SLEEP), check=True)
    if hierarchies.unified is not None:
        _pass_controllers_on(hierarchies.unified / PLACE)
    return f"{PLACE}/jobs"


def _pass_controllers_on(scope: Path) -> None:
    """Give the scope's controllers to the cgroups in it; on v2 it may then have no process of its own."""
    asleep = scope / "asleep"
    asleep.mkdir(exist_ok=True)
    for pid in (scope / "cgroup.procs").read_text().split():
        (asleep / "cgroup.procs").write_text(pid)
    for name in LIMITING.intersection((scope / "cgroup.controllers").read_text().split()):
        (scope / "cgroup.subtree_control").write_text(f"+{name}")
