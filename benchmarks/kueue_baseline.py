"""``kueue_baseline``: the workload of Kueue's own performance test, in real time, through the real controller.

15,000 workloads of three classes in 30 queues in 5 cohorts, created at the intervals of the file. A cohort is a project
that is guaranteed its queues' devices and limited to them; a queue is its child with a guarantee of its own, so it
borrows from its cohort as far as Kueue's borrowing limit goes. A claim runs from when its partition is ready; one that
is asked to yield does so at once and begins anew, as evicted work does in Kueue. Loop, hardware loop and store (SQLite)
are the real ones; the hardware answers at once. Bound of ``wall_s``: all work of a cohort on its devices without a gap.
``MOORINGS_BENCH_DATA`` names the folder with ``kueue-baseline-generator.yaml`` (Kueue, Apache-2.0).
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from benchmarks.report import Report
from moorings.app.clock import SystemClock
from moorings.controller.driver_manager import DriverManager
from moorings.controller.loop import CommittedChange, TurnLoop
from moorings.core.model.bindings import Binding
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import (
    Capability,
    DriverResult,
    ListedPartition,
    ObservedState,
    PartitionSpec,
    ResultCode,
)
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CreateClaim, ReleaseClaim, SetProject, YieldClaim
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.topology import AnySubset, Pool
from moorings.store.sqlite import open_sqlite

POOL: Final = PoolName("cluster")
POLICY: Final = Policy(making_s=0.0, min_run_s=0.25, yield_s=1.0, move_s=0.0, fair_share=False)
KUEUE_WALL_S, PROMISE_WALL_S = 351.1, 90
KUEUE_ADMISSION_S: Final = {"small": 215.5, "medium": 76.8, "large": 16.5}
LIMIT_S: Final = 400.0  # it has failed by then


@dataclass(frozen=True)
class _Class:
    """Workloads of one class, as each queue gets them."""

    name: str
    count: int
    every_s: float
    runs_s: float
    priority: int
    size: int


@dataclass(frozen=True)
class _Load:
    cohorts: int
    queues: int  # of each cohort
    quota: int  # of each queue
    classes: tuple[_Class, ...]

    @property
    def cohort_devices(self) -> int:
        return self.queues * self.quota

    @property
    def bound_s(self) -> float:
        """The least it can take: all work of a queue on its share."""
        return sum(one.count * one.size * one.runs_s for one in self.classes) / self.quota

    @property
    def count(self) -> int:
        return self.cohorts * self.queues * sum(one.count for one in self.classes)


def run() -> Report:
    """Measure."""
    load = _read()
    with tempfile.TemporaryDirectory(prefix="moorings-bench-") as name:
        measured = asyncio.run(_measure(load, Path(name)))
    waits = {one.name: measured.waits_s[one.name] for one in load.classes}
    figures = {"wall_s": measured.wall_s}
    figures |= {f"admission_s_mean_{name}": statistics.fmean(each) for name, each in waits.items()}
    return Report(
        name="kueue_baseline",
        figures=figures,
        bounds={"wall_s": load.bound_s},
        anchors={"wall_s": KUEUE_WALL_S}
        | {f"admission_s_mean_{name}": KUEUE_ADMISSION_S[name] for name in waits if name in KUEUE_ADMISSION_S},
        notes=tuple(_notes(load, measured)),
    )


def _notes(load: _Load, measured: _Measured) -> Iterator[str]:
    names = [one.name for one in load.classes]
    evicted = ", ".join(f"{measured.evicted[name]} {name}" for name in names)
    longest = ", ".join(f"{max(measured.waits_s[name]):.1f} s {name}" for name in names)
    queues = load.cohorts * load.queues
    yield f"{load.count:,} workloads, {queues} queues, {load.cohorts} cohorts of {load.cohort_devices} devices"
    yield f"anchors: what Kueue publishes; promised: {PROMISE_WALL_S} s wall"
    yield f"evictions: {measured.evicted.total()} ({evicted}); used: {measured.used:.1%}"
    yield f"{measured.turns} turns of {measured.turn_ms:.1f} ms, {measured.commit_ms:.1f} ms a commit"
    yield f"CPU: {measured.cpu_s:.0f} s, generator and stand-in included"
    yield f"admission: from when a workload was due until its grant was durable; the longest: {longest}"


def _read() -> _Load:
    path = Path(os.environ.get("MOORINGS_BENCH_DATA", "")) / "kueue-baseline-generator.yaml"
    if not path.is_file():
        raise SystemExit(f"kueue_baseline: MOORINGS_BENCH_DATA must name a folder that has {path.name}")
    (cohort,) = yaml.safe_load(path.read_text(encoding="utf-8"))["cohorts"]
    (queues,) = cohort["queuesSets"]
    classes = []
    for each in queues["workloadsSets"]:
        (workload,) = each["workloads"]
        classes.append(
            _Class(
                name=workload["className"],
                count=each["count"],
                every_s=each["creationIntervalMs"] / 1000,
                runs_s=workload["runtimeMs"] / 1000,
                priority=workload["priority"],
                size=workload["request"],
            )
        )
    load = _Load(cohort["count"], queues["count"], queues["nominalQuota"], tuple(classes))
    if queues["nominalQuota"] + queues["borrowingLimit"] < load.cohort_devices:
        raise SystemExit("kueue_baseline: a borrowing limit below the cohort's devices is not supported")
    return load


@dataclass(frozen=True)
class _Measured:
    wall_s: float
    waits_s: dict[str, list[float]]
    evicted: Counter[str]
    used: float
    turns: int
    turn_ms: float
    commit_ms: float
    cpu_s: float


async def _measure(load: _Load, folder: Path) -> _Measured:
    store, clock = open_sqlite(folder / "moorings.db"), SystemClock()
    n_devices = load.cohorts * load.cohort_devices
    pool = Pool(POOL, "ipu", "simulated", AnySubset(n_devices, max(one.size for one in load.classes)))
    loop = TurnLoop(store, [pool], POLICY, clock, store.begin_epoch("benchmark", clock.now()))
    hardware = DriverManager(loop, {POOL: _AtOnce()}, clock, store.installation())
    await loop.load()
    tasks = [asyncio.create_task(each.serve()) for each in (loop, hardware)]
    try:
        for number in range(load.cohorts):
            name = f"cohort-{number}"
            await loop.submit(SetProject(_project(name, load.cohort_devices, limited=True), None))
            for queue in range(load.queues):
                await loop.submit(SetProject(_project(f"{name}/queue-{queue}", load.quota), None))
        gc.collect()
        gc.freeze()  # as the controller does
        users = _Users(loop, load)
        async with asyncio.timeout(LIMIT_S):
            return await users.measure()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.close()
        store.close()
        gc.unfreeze()


def _project(name: str, devices: int, *, limited: bool = False) -> Project:
    return Project(name=name, shares=(ProjectShare(POOL, ((1, devices),)),), devices_max=devices if limited else None)


class _Users:
    """Those who create the workloads, run them while they hold their devices, and start again when evicted."""

    def __init__(self, loop: TurnLoop, load: _Load) -> None:
        self._loop = loop
        self._load = load
        self._class: dict[ClaimId, _Class] = {}
        self._due: dict[ClaimId, float] = {}  # those that were not granted yet
        self._running: dict[ClaimId, asyncio.TimerHandle] = {}
        self._waits_s: dict[str, list[float]] = {one.name: [] for one in load.classes}
        self._evicted: Counter[str] = Counter()
        self._left = load.count
        self._over = asyncio.Event()
        self._begun = 0.0

    async def measure(self) -> _Measured:
        """Create all, wait until the last has ended."""
        load, meters, cpu_s = self._load, self._loop.meters, time.process_time()
        turns, commits = (meters.turns.count, meters.turns.total_s), (meters.commits.count, meters.commits.total_s)
        self._loop.subscribe(self._hear)
        self._begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._create_all())
            group.create_task(self._over.wait())
        wall_s = time.monotonic() - self._begun
        n_turns, n_commits = meters.turns.count - turns[0], meters.commits.count - commits[0]
        return _Measured(
            wall_s=wall_s,
            waits_s=self._waits_s,
            evicted=self._evicted,
            used=load.bound_s / wall_s,
            turns=n_turns,
            turn_ms=(meters.turns.total_s - turns[1]) / n_turns * 1000,
            commit_ms=(meters.commits.total_s - commits[1]) / n_commits * 1000,
            cpu_s=time.process_time() - cpu_s,
        )

    async def _create_all(self) -> None:
        queues = [(cohort, queue) for cohort in range(self._load.cohorts) for queue in range(self._load.queues)]
        due = sorted(
            ((number + 1) * one.every_s, number, cohort, queue, place)
            for place, one in enumerate(self._load.classes)
            for number in range(one.count)
            for cohort, queue in queues
        )
        for at_s, number, cohort, queue, place in due:
            early_s = self._begun + at_s - time.monotonic()
            if early_s > 0:
                await asyncio.sleep(early_s)
            self._create(self._load.classes[place], at_s, f"cohort-{cohort}/queue-{queue}", number)

    def _create(self, one: _Class, at_s: float, project: str, number: int) -> None:
        ident = ClaimId(f"claim-{one.name[0]}-{project.replace('/', '-')}-{number}")
        self._class[ident], self._due[ident] = one, self._begun + at_s
        spec = ClaimSpec(kind="ipu", size=one.size, gcds=1, project=project, priority=one.priority, preemptible=True)
        name = f"{one.name[0]}{len(self._class)}"
        self._loop.submit_nowait(CreateClaim(id=ident, name=name, owner=f"user/{name}", subject="kueue", spec=spec))

    def _hear(self, change: CommittedChange) -> None:
        for claim in change.claims:
            if claim.id in self._class:
                self._follow(claim)

    def _follow(self, claim: Claim) -> None:
        ident, one = claim.id, self._class[claim.id]
        if claim.state not in (ClaimState.PENDING, ClaimState.CANCELLED) and ident in self._due:
            self._waits_s[one.name].append(time.monotonic() - self._due.pop(ident))
        if claim.state is ClaimState.READY and ident not in self._running:
            timer = asyncio.get_running_loop().call_later(one.runs_s, self._end, ident)
            self._running[ident] = timer
        elif claim.state is ClaimState.RECLAIMING and ident in self._running:
            self._running.pop(ident).cancel()
            self._evicted[one.name] += 1
            self._loop.submit_nowait(YieldClaim(ident, "evicted"))
        elif claim.is_ended:
            self._left -= 1
            if not self._left:
                self._over.set()

    def _end(self, ident: ClaimId) -> None:
        del self._running[ident]
        self._loop.submit_nowait(ReleaseClaim(ident, "done"))


class _AtOnce:
    """Hardware that does what it is told, at once."""

    def __init__(self) -> None:
        self._there: dict[str, ListedPartition] = {}

    @property
    def capability(self) -> Capability:
        """All that is asked for."""
        return Capability()

    def register_partitions(self, held: Sequence[PartitionSpec]) -> None:
        """Whatever has our mark is ours."""

    async def create(self, order: PartitionSpec) -> DriverResult:
        """It is there."""
        self._there[order.name] = ListedPartition(order.name, ObservedState.ACTIVE, order.block, order.mark, "ACTIVE")
        return DriverResult(ResultCode.OK, ObservedState.ACTIVE)

    async def reset(self, name: str, mark: str) -> DriverResult:
        """It is clean."""
        return DriverResult(ResultCode.OK, ObservedState.ACTIVE)

    async def remove(self, name: str, mark: str) -> DriverResult:
        """It is gone."""
        self._there.pop(name, None)
        return DriverResult(ResultCode.OK, ObservedState.ABSENT)

    async def list_partitions(self) -> Sequence[ListedPartition]:
        """What was made."""
        return list(self._there.values())

    async def binding(self, order: PartitionSpec) -> Binding:
        """Nobody asks for one here."""
        raise MooringsError("driver.unavailable", "there are no processes here")

    async def close(self) -> None:
        """There is nothing to let go of."""
