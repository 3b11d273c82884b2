"""The cgroup of one job: its limits, and the end of everything in it.

On cgroup v2, v1 and both at once (cgroups(7)): limits are set where their controllers are, and processes are ended by
``cgroup.kill`` of v2 (Linux 5.14), else by freezing, killing and looking again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moorings.privileged.devices import ALL_DEVICES, DeviceAccess, attach_program, load_program, program_fault, v1_lines
from moorings.privileged.refusals import Refused

log = logging.getLogger("moorings.privileged")

MOUNTS = Path("/proc/self/mounts")
BASE = "moorings"  # the cgroup around those of jobs
PERIOD_US = 100_000  # of the CPU bandwidth, the kernel's default
TASKS_MAX = 10_000  # of a job that names no number: a fork bomb ends there
FREEZE_S, LOOK_S = 0.5, 0.002
LIMITING = frozenset({"memory", "pids", "cpu"})  # controllers
SYSTEMD = "name=systemd"  # no controller: by this hierarchy of v1 systemd knows of which unit a process is
_V1 = LIMITING | {"freezer", "devices", SYSTEMD}


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What a job may use; None: no limit of its own.

    Attributes:
        cpus: processors.
        memory_bytes: of all its processes together, swap with it.
        tasks: processes and threads.
        devices: the device files that it was given.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    tasks: int = TASKS_MAX
    devices: tuple[str, ...] = ()


def parse_limits(given: object, limited: frozenset[str]) -> JobLimits:
    """The limits that a start asks for.

    Raises:
        Refused: ``limit.unavailable``: one of them can be set by none of the controllers ``limited``.
        ValueError, TypeError: they are none.
    """
    if not isinstance(given, dict):
        raise TypeError("the limits are no object")
    cpus, memory, tasks = (given.get(name) for name in ("cpus", "memoryBytes", "tasks"))
    asked = {name for name, value in (("cpu", cpus), ("memory", memory), ("pids", tasks)) if value is not None}
    limits = JobLimits(
        cpus=None if cpus is None else float(cpus),
        memory_bytes=None if memory is None else int(memory),
        tasks=TASKS_MAX if tasks is None else min(int(tasks), TASKS_MAX),
        devices=tuple(map(str, given.get("devices", ()))),
    )
    if limits.tasks < 1 or not (limits.cpus is None or 0 < limits.cpus < 1 << 20) or (limits.memory_bytes or 1) < 1:
        raise ValueError("limits")
    if asked - limited:
        detail = f"this machine cannot limit a job's use of {', '.join(sorted(asked - limited))}"
        raise Refused("limit.unavailable", detail, "its admin enables these cgroup controllers for jobs")
    return limits


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where cgroups are: the folder of v2, if it is mounted, and those of v1 by controller."""

    unified: Path | None = None
    controllers: Mapping[str, Path] = field(default_factory=dict)


def parse_mounts(text: str) -> Hierarchies:
    """The hierarchies in the text of ``/proc/self/mounts`` (proc(5))."""
    unified: Path | None = None
    controllers: dict[str, Path] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        path = Path(words[1])
        if words[2] == "cgroup2":
            unified = unified or path
        elif words[2] == "cgroup":
            controllers |= {name: path for name in words[3].split(",") if name in _V1 and name not in controllers}
    return Hierarchies(unified, controllers)


class CgroupTree:
    """The cgroups of all jobs: children of one cgroup in each hierarchy.

    Args:
        hierarchies: where they are.
        base: of that cgroup, as a path below each of them.
        sleeping: the list of the processes that keep systemd's scope around it; None: there is none.
    """

    def __init__(self, hierarchies: Hierarchies, base: str = BASE, sleeping: Path | None = None) -> None:
        self._sleeping = sleeping
        self._unified = hierarchies.unified / base if hierarchies.unified is not None else None
        self._v1 = {name: path / base for name, path in hierarchies.controllers.items()}
        self._kills = False
        self.limited = LIMITING & set(self._v1)  # the controllers that limit jobs here
        self.closes_devices = "devices" in self._v1

    def prepare(self) -> None:
        """Make what all jobs share; log which limits cannot be set.

        Raises:
            OSError: that failed, or there are no cgroups to hold a job.
        """
        for name, folder in self._v1.items():
            folder.mkdir(parents=name != SYSTEMD, exist_ok=True)  # systemd makes no freezer, and its own by itself
        if self._unified is not None:
            self._unified.mkdir(exist_ok=True)
            self._kills = (self._unified / "cgroup.kill").exists()
            given = set((self._unified / "cgroup.controllers").read_text().split())  # by the cgroup above
            for name in sorted(given & LIMITING - self.limited):
                with contextlib.suppress(OSError):  # a process is in it, say: what is not enabled is logged
                    (self._unified / "cgroup.subtree_control").write_text(f"+{name}")
                    self.limited |= {name}
        if not self.closes_devices:
            fault = program_fault() if self._kills else "jobs have no cgroup of v2"
            self.closes_devices = not fault
            if fault:
                log.warning("devices.open: every job can open every device: %s", fault)
        if LIMITING - self.limited:
            log.warning("limits.unavailable: %s", ", ".join(sorted(LIMITING - self.limited)))
        if not self._kills and "freezer" not in self._v1:
            raise OSError(
                "neither cgroup.kill (Linux 5.14) nor the freezer of cgroup v1 is there: no job could be ended"
            )

    def job(self, name: str) -> JobCgroup:
        """The cgroup of a job; it need not exist."""
        unified = self._unified / name if self._unified is not None and self._kills else None
        return JobCgroup(unified, {controller: path / name for controller, path in self._v1.items()})

    def _folders(self) -> list[Path]:
        return [*self._v1.values(), *([self._unified] if self._unified is not None else [])]

    def is_there(self) -> bool:
        """Whether what all jobs share is there: systemd removes it once its scope is stopped."""
        return all(folder.exists() for folder in self._folders())

    def is_stopping(self) -> bool:
        """Whether systemd's scope is being stopped, with all jobs in it, or has been."""
        try:
            return self._sleeping is not None and not self._sleeping.read_text().strip()
        except FileNotFoundError:
            return True

    def names(self) -> set[str]:
        """The cgroups that are there."""
        return {each.name for folder in self._folders() for each in os.scandir(folder) if each.is_dir()}


class JobCgroup:
    """One job's cgroup in all hierarchies."""

    def __init__(self, unified: Path | None, v1: Mapping[str, Path]) -> None:
        self._unified, self._v1 = unified, v1

    def _folders(self) -> Iterator[Path]:
        yield from self._v1.values()
        if self._unified is not None:
            yield self._unified

    def is_there(self) -> bool:
        """Whether it is whole: systemd removes what it knows of it once its scope is stopped."""
        return all(folder.exists() for folder in self._folders())

    def create(self, limits: JobLimits, access: DeviceAccess = ALL_DEVICES) -> None:
        """Make it, with these limits and devices.

        Raises:
            OSError: that failed.
        """
        for folder in self._folders():
            folder.mkdir(exist_ok=True)
        tasks, memory = str(limits.tasks), limits.memory_bytes
        quota_us = None if limits.cpus is None else max(1000, round(limits.cpus * PERIOD_US))
        self._limit("pids", "pids.max", tasks, "pids.max")
        if memory is not None:
            self._limit("memory", "memory.limit_in_bytes", str(memory), "memory.max")
            with contextlib.suppress(FileNotFoundError):  # without accounting of swap
                self._limit("memory", "memory.memsw.limit_in_bytes", str(memory), "memory.swap.max", "0")
        if quota_us is not None:
            self._limit("cpu", "cpu.cfs_quota_us", str(quota_us), "cpu.max", f"{quota_us} {PERIOD_US}")
        if access.closed:
            self._close_devices(access)

    def _close_devices(self, access: DeviceAccess) -> None:
        if "devices" in self._v1:
            folder = self._v1["devices"]
            (folder / "devices.deny").write_text("a")
            for line in v1_lines(access):
                (folder / "devices.allow").write_text(line)
        elif self._unified is not None:
            program = load_program(access)
            try:
                attach_program(self._unified, program)
            finally:
                os.close(program)

    def _limit(self, controller: str, file: str, value: str, unified_file: str, unified_value: str = "") -> None:
        if controller in self._v1:
            (self._v1[controller] / file).write_text(value)
        elif self._unified is not None and (self._unified / unified_file).exists():
            (self._unified / unified_file).write_text(unified_value or value)

    def enter(self) -> None:
        """Put the calling process into it.

        Raises:
            OSError: that failed.
        """
        for folder in self._folders():
            (folder / "cgroup.procs").write_text("0")

    def pids(self) -> set[int]:
        """Its processes, also those in cgroups that a job has made below it."""
        found: set[int] = set()
        for folder in self._folders():
            with contextlib.suppress(FileNotFoundError):
                for path in (folder, *(Path(top) for top, _, _ in os.walk(folder) if top != str(folder))):
                    with contextlib.suppress(FileNotFoundError):
                        found |= {int(pid) for pid in (path / "cgroup.procs").read_text().split()}
        return found - {0}  # of another namespace: killed all the same

    def kill(self) -> bool:
        """Kill everything in it; returns whether nothing is left. Call it again until it does."""
        if self._unified is not None:
            with contextlib.suppress(FileNotFoundError):
                (self._unified / "cgroup.kill").write_text("1")
        elif "freezer" in self._v1:
            self._kill_frozen(self._v1["freezer"])
        return not self.pids()

    def _kill_frozen(self, folder: Path) -> None:
        """Nothing that is frozen can fork while it is killed."""
        state = folder / "freezer.state"
        if not state.exists():
            return
        state.write_text("FROZEN")
        give_up_s = time.monotonic() + FREEZE_S
        while state.read_text().strip() != "FROZEN" and time.monotonic() < give_up_s:
            time.sleep(LOOK_S)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        state.write_text("THAWED")

    def oom_kills(self) -> int:
        """How many of its processes were killed because the job had used up its memory."""
        with contextlib.suppress(FileNotFoundError):
            if "memory" in self._v1:
                return _number((self._v1["memory"] / "memory.oom_control").read_text(), "oom_kill")
            if self._unified is not None:
                return _number((self._unified / "memory.events").read_text(), "oom_kill")
        return 0

    def remove(self) -> bool:
        """Remove it, once it is empty; returns whether it is gone."""
        for folder in self._folders():
            for top, _, _ in list(os.walk(folder, topdown=False)):
                with contextlib.suppress(OSError):  # a process of it is not reaped yet
                    os.rmdir(top)  # noqa: PTH106 - beside os.walk
        return not any(folder.exists() for folder in self._folders())


def _number(text: str, name: str) -> int:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return 0
