"""Where the jobs' cgroups are: under systemd in one scope that it delegates, beside the daemon's service.

The service's own cgroup would end with it, and a cgroup beside those of systemd is one that systemd may remove
(https://systemd.io/CGROUP_DELEGATION). A scope lives while a process is in it, so one sleeps there, as slurmstepd's.
It ends first when the scope is stopped, and so shows that this is why jobs end.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moorings.privileged.cgroups import BASE, LIMITING, SYSTEMD, Hierarchies

BOOTED = Path("/run/systemd/system")  # there if systemd runs the machine (sd_booted(3))
SCOPE, SERVICE = "moorings-jobs.scope", "moorings-jobs.service"
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
    # A shutdown stops the jobs first, and the daemon records their ends. As Before in the service it would keep a scope
    # that has ended from being collected.
    f"--property=After={SERVICE}",
)
_SLEEP = ("sh", "-c", "sleep infinity < /dev/null > /dev/null 2>&1 &")  # it returns once the scope is there


@dataclass(frozen=True, slots=True)
class JobsPlace:
    """Where all jobs are.

    Attributes:
        base: their cgroup, as a path below each hierarchy.
        sleeping: the list of the processes that keep the scope; None: there is no scope.
    """

    base: str = BASE
    sleeping: Path | None = None


def jobs_base() -> str:
    """The cgroup of all jobs, as a path below each hierarchy, if the daemon has made it."""
    return f"{PLACE}/jobs" if BOOTED.is_dir() else BASE


def find_jobs_place(hierarchies: Hierarchies) -> JobsPlace:
    """Where all jobs are; under systemd the scope is made, if it is not there.

    Raises:
        OSError, subprocess.SubprocessError: systemd cannot be asked, or refuses.
    """
    if not BOOTED.is_dir():
        return JobsPlace()
    run = partial(subprocess.run, env={"PATH": PATH}, stdin=subprocess.DEVNULL, timeout=ANSWER_S)
    if run(("systemctl", "is-active", "--quiet", SCOPE), check=False).returncode != 0:
        run((*_MAKE, *_PROPERTIES, *_SLEEP), check=True)
    if hierarchies.unified is None:
        return JobsPlace(jobs_base(), hierarchies.controllers[SYSTEMD] / PLACE / "cgroup.procs")
    return JobsPlace(jobs_base(), _pass_controllers_on(hierarchies.unified / PLACE))


def _pass_controllers_on(scope: Path) -> Path:
    """Give the scope's controllers to the cgroups in it; on v2 it may then have no process of its own."""
    sleeping = scope / "asleep" / "cgroup.procs"
    sleeping.parent.mkdir(exist_ok=True)
    for pid in (scope / "cgroup.procs").read_text().split():
        sleeping.write_text(pid)
    for name in LIMITING.intersection((scope / "cgroup.controllers").read_text().split()):
        (scope / "cgroup.subtree_control").write_text(f"+{name}")
    return sleeping
