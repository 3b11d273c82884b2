"""Simulation: jobs served by the queue in virtual time; how long each waited, and how full the pools were.

It decides by the same ``plan_schedule`` as for live claims, but hardware and engines take no time: a partition is there
at once, and a claim asked to yield or move does so at once and pays with ``Policy.move_s``. A month of jobs takes
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final

from moorings.core.model.claims import CheckpointContract, Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.projects import Projects, ProjectUsage, add_usage, usage_now
from moorings.core.model.timestamps import HOUR_S, SECOND, Timestamp, add_seconds
from moorings.core.model.topology import AnySubset, Block, Pool
from moorings.core.placement.fleet import PoolState, add_resources
from moorings.core.placement.free_map import NO_RELEASE, free_map_for
from moorings.core.placement.pending_classes import (
    NO_LIMIT_S,
    ClassKey,
    PendingClass,
    PendingClassReader,
    PendingClassView,
    QueueKey,
    backfill_limit_s,
    class_key,
)
from moorings.core.placement.plans import Holder, Reclaim, SchedulingSnapshot, waited_s
from moorings.core.placement.release_times import FREE, release_times_for
from moorings.core.scheduling.schedule import plan_schedule

BEGAN: Final = Timestamp(SECOND)
ROUNDS_MAX: Final = 64  # at one timestamp: each follows a claim that had to leave
_NOTHING: Final = Block(())
_RESUMABLE: Final = CheckpointContract(resumable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A job of a trace.

    Attributes:
        name: unique.
        arrives_s: when it is submitted, in seconds since the trace began.
        runs_s: how long it runs without interruption.
        size: devices.
        kind: of accelerator.
        project: the project it is charged to.
        subject: who submits it.
        priority: higher is first.
        limit_s: its time limit; None: it has none.
        preemptible: may be asked to yield.
        resumable: resumes where it stopped.
    """

    name: str
    arrives_s: float
    runs_s: float
    size: int
    kind: str = "ipu"
    project: str = "default"
    subject: str = "user"
    priority: int = 0
    limit_s: float | None = None
    preemptible: bool = True
    resumable: bool = True


@dataclass(slots=True)
class JobOutcome:
    """The outcome of a job: times are seconds since the trace began."""

    job: SimulatedJob
    started_s: float | None = None
    ended_s: float | None = None
    pool: str = ""
    moves: int = 0
    yields: int = 0
    rejection_reason: str = ""
    is_unknown_kind: bool = False  # it was refused because no pool has such devices
    is_guaranteed: bool = False  # it first started within a guarantee

    @property
    def wait_s(self) -> float | None:
        """Seconds until it first started; None: it never did."""
        return None if self.started_s is None else self.started_s - self.job.arrives_s


@dataclass(frozen=True, slots=True)
class UsageLevel:
    """The load from a time on: devices in use, and devices requested by pending claims."""

    at_s: float
    busy: int
    waiting: int


@dataclass(slots=True)
class SimulationResult:
    """The result of a simulation."""

    courses: list[JobOutcome]
    levels: list[UsageLevel]
    n_devices: int
    turns: int = 0
    moves: int = 0
    yields: int = 0
    suggested: int = 0

    def utilisation(self, until_s: float | None = None) -> float:
        """The share of device time in use, from the first job's arrival to ``until_s`` (None: the last job's end)."""
        if len(self.levels) < 2 or not self.n_devices:
            return 0.0
        last = self.levels[-1].at_s if until_s is None else until_s
        used = 0.0
        for here, there in zip(self.levels, self.levels[1:], strict=False):
            used += here.busy * max(0.0, min(there.at_s, last) - min(here.at_s, last))
        span = last - self.levels[0].at_s
        return used / (span * self.n_devices) if span > 0 else 0.0


@dataclass(slots=True)
class _Running:
    tenant: Holder
    ends: Timestamp
    began: Timestamp


@dataclass(slots=True)
class _SimulatedClass:
    """A pending class with its claims, as a plan reads it."""

    line: PendingClass
    claims: Mapping[ClaimId, Claim]

    def first(self) -> Claim | None:
        """The first claim."""
        order = self.line.first_key()
        return self.claims[order[2]] if order is not None else None

    def next(self, after: QueueKey, limit_s: float = NO_LIMIT_S) -> Claim | None:
        """The first after ``after`` whose time limit is at most ``limit_s``."""
        order = self.line.next_within(after, limit_s)
        return self.claims[order[2]] if order is not None else None

    def aged(self, by: Timestamp, below: int) -> PendingClassReader | None:
        """The claims that arrived by then, if any here has a priority below that."""
        return PendingClassView(self.line, self.claims, {}).aged(by, below)


class Simulation:
    """Jobs, pools and a policy, stepped from one event to the next."""

    def __init__(
        self, pools: Iterable[Pool], policy: Policy, projects: Projects | None = None, began: Timestamp = BEGAN
    ) -> None:
        self.policy = policy
        self.projects = projects if projects is not None else Projects()
        self.pools = {
            pool.name: PoolState(pool, free_map_for(pool.topology), release_times_for(pool.topology)) for pool in pools
        }
        self.now = self.began = began
        self.courses: dict[ClaimId, JobOutcome] = {}
        self.turns = self.moves = self.yields = self.suggested = 0
        self._claims: dict[ClaimId, Claim] = {}
        self._lines: dict[ClassKey, _SimulatedClass] = {}
        self._running: dict[ClaimId, _Running] = {}
        self._left: dict[ClaimId, int] = {}  # microseconds left to run
        self._ends: list[tuple[Timestamp, ClaimId]] = []
        self._moved: list[Timestamp] = []
        self._usage: dict[str, ProjectUsage] = {}
        self._able: dict[tuple[object, ...], list[PoolState]] = {}
        self._busy = self._waiting = 0
        self._arrival = Timestamp(0)  # of the last arrival
        self._levels: list[UsageLevel] = []
        self._all = frozenset(
            name for name, state in self.pools.items() if not isinstance(state.pool.topology, AnySubset)
        )
        self._fixed = self._staying = 0  # running jobs that cannot be moved: now, and ever

    def add_running(self, claim: Claim, tenant: Holder, until: Timestamp) -> None:
        """Add a claim that holds its block already, until then (``NO_RELEASE``: unknown)."""
        state = self.pools[tenant.pool]
        for part in state.free.free_within(tenant.block):
            state.free.allocate(part)
        if len(tenant.block):
            state.release_times.set_release(tenant.block, until)
        job = _job_of(claim)
        self.courses[claim.id] = JobOutcome(job, started_s=0.0, pool=tenant.pool)
        self._claims[claim.id] = claim
        self._left[claim.id] = until - self.now
        self._hold(tenant, until, tenant.ready_at or self.now)

    def add_pending(self, claim: Claim) -> None:
        """Add a pending claim; without a time limit it never ends once it runs."""
        self.courses[claim.id] = JobOutcome(_job_of(claim))
        limit_s = claim.spec.time_limit_s
        self._left[claim.id] = round(limit_s * SECOND) if limit_s is not None else NO_RELEASE
        self._queue(claim)

    def run_until_started(self, claim: ClaimId, horizon: Timestamp, turns_max: int) -> Timestamp | None:
        """When a pending claim starts, if all others run to their limits; None: not by the horizon."""
        course = self.courses[claim]
        while True:
            self._turn()
            if course.started_s is not None:
                return self.now
            if not self._end_next(horizon, turns_max):
                return None

    def run_until(self, horizon: Timestamp, turns_max: int) -> None:
        """Serve the queue until no job ends any more, or the horizon or ``turns_max`` is reached."""
        self._turn()
        while self._lines and self._end_next(horizon, turns_max):
            self._turn()

    def _end_next(self, horizon: Timestamp, turns_max: int) -> bool:
        """Let time pass until the next job ends; False: none does by the horizon, or there were enough turns."""
        if not self._ends or self._ends[0][0] > horizon or self.turns > turns_max:
            return False
        self.now = self._ends[0][0]
        self._end_due()
        return True

    def _end_due(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            self._end(heappop(self._ends))

    def run(self, jobs: Sequence[SimulatedJob]) -> SimulationResult:
        """Serve all jobs, in the order of their arrival, to the end of the last."""
        ordered = sorted(enumerate(jobs), key=lambda pair: (pair[1].arrives_s, pair[0]))
        at = 0
        while at < len(ordered) or self._ends:
            arrives = self._instant(ordered[at][1].arrives_s) if at < len(ordered) else NO_RELEASE
            ends = self._ends[0][0] if self._ends else NO_RELEASE
            self.now = now = min(ends, arrives, self._next_reclaim_time())
            self._end_due()
            while at < len(ordered) and self._instant(ordered[at][1].arrives_s) <= now:
                self._arrive(ordered[at][1])
                at += 1
            self._turn()
            self._record_level()
        n_devices = sum(state.pool.topology.n_devices for state in self.pools.values())
        courses = list(self.courses.values())
        return SimulationResult(courses, self._levels, n_devices, self.turns, self.moves, self.yields, self.suggested)

    def _next_reclaim_time(self) -> Timestamp:
        """When the next borrower reaches its minimum run time, if any claim could reclaim from it."""
        if not self._lines or not self.projects:
            return NO_RELEASE
        min_run = round(self.policy.min_run_s * SECOND)
        sinces = (one.began + min_run for one in self._running.values() if one.tenant.is_preemptible)
        return Timestamp(min((at for at in sinces if at > self.now), default=NO_RELEASE))

    def _arrive(self, job: SimulatedJob) -> None:
        ident = ClaimId(job.name)
        course = self.courses[ident] = JobOutcome(job)
        sizes = [state.pool.topology.sizes for state in self.pools.values() if state.pool.kind == job.kind]
        if not sizes:
            course.rejection_reason, course.is_unknown_kind = f"no pool has devices of kind {job.kind}", True
            return
        if not any(job.size in able for able in sizes):
            course.rejection_reason = f"no pool has partitions of {job.size}"
            return
        spec = ClaimSpec(
            kind=job.kind,
            size=job.size,
            gcds=job.size,
            project=job.project,
            priority=job.priority,
            time_limit_s=job.limit_s,
            preemptible=job.preemptible,
            checkpoint=_RESUMABLE if job.resumable else CheckpointContract(),
        )
        # Jobs that arrive at one time stay in the order of the trace.
        arrival = self._arrival = Timestamp(max(self._instant(job.arrives_s), self._arrival + 1))
        self._left[ident] = round(job.runs_s * SECOND)
        self._queue(
            Claim(
                id=ident,
                name=job.name,
                owner=f"local/{job.name}",
                subject=job.subject,
                spec=spec,
                state=ClaimState.PENDING,
                arrival=arrival,
            )
        )

    def _queue(self, claim: Claim) -> None:
        self._claims[claim.id] = claim
        key = class_key(claim, self.projects)
        queued = self._lines.get(key)
        if queued is None:
            queued = self._lines[key] = _SimulatedClass(PendingClass(), self._claims)
        queued.line.add(claim.queue_key, backfill_limit_s(claim))
        self._waiting += claim.spec.size

    def _unqueue(self, claim: Claim) -> None:
        key = class_key(claim, self.projects)
        line = self._lines[key].line
        line.remove(claim.queue_key)
        if not line:
            del self._lines[key]
        self._waiting -= claim.spec.size

    def _turn(self) -> None:
        for _ in range(ROUNDS_MAX):
            if not self._lines:
                return
            self.turns += 1
            if not self._may_serve():
                return
            decided = plan_schedule(self._scene(), self.policy, self.now)
            for ident, cell in decided.adopted:
                running = self._running[ident]
                running.tenant = replace(running.tenant, guaranteed_block=cell)
            for grant in decided.grants:
                self._start(self._claims[grant.claim], grant.pool, grant.block or _NOTHING, grant.cell)
            self.suggested += len(decided.suggested_moves)
            if not decided.reclaims:
                return
            self._preempt(decided.reclaims)

    def _may_serve(self) -> bool:
        """Whether a plan could do anything: without guarantees, some pool needs enough free devices."""
        least = min(size for (_, _, size, _, _), _, _ in self._lines)
        return bool(self.projects) or any(state.free.n_free >= least for state in self.pools.values())

    def _scene(self) -> SchedulingSnapshot:
        moving = self.policy.defragment is DefragmentMode.ON
        moves_left = 0
        if moving:
            self._moved = [at for at in self._moved if self.now - at < HOUR_S * SECOND]
            moves_left = max(0, self.policy.moves_per_hour - len(self._moved))
        return SchedulingSnapshot(
            self.pools,
            self._lines.items(),
            projects=self.projects,
            shares=self._shares() if self.projects else {},
            holders=self._tenants,
            moves_left=moves_left,
            movable_pools=self._all if moving and not self._fixed else frozenset(),
            resumable_pools=self._all if moving and not self._staying else frozenset(),
            pools_by_request=self._able,
        )

    def _tenants(self) -> list[Holder]:
        return [running.tenant for running in self._running.values()]

    def _shares(self) -> dict[str, float]:
        held = ((one.tenant.project, len(one.tenant.block), one.began) for one in self._running.values())
        return self.projects.by_weight(usage_now(self._usage.values(), held, self.now, self.policy.half_life_s))

    def _start(self, claim: Claim, pool: PoolName, block: Block, cell: Block | None) -> None:
        self._unqueue(claim)
        ident, now, left = claim.id, self.now, self._left[claim.id]
        course = self.courses[ident]
        if course.started_s is None:
            course.started_s, course.pool, course.is_guaranteed = self._seconds(now), pool, cell is not None
        state = self.pools[pool]
        ends = Timestamp(now + left)
        if len(block):
            state.free.allocate(block)
            state.release_times.set_release(
                block, add_seconds(now, claim.spec.time_limit_s) if claim.spec.time_limit_s is not None else NO_RELEASE
            )
        self._count_resources(claim, pool, 1)
        job = course.job
        tenant = Holder(
            ident, pool, block, job.project, job.subject, job.priority, cell, job.preemptible, job.resumable,
            job.resumable, ready_at=now, checkpoint_at=NO_RELEASE, waited_s=waited_s(claim, now),
        )  # fmt: skip
        self._hold(tenant, ends, now)

    def _count_resources(self, claim: Claim, pool: PoolName, sign: int) -> None:
        if claim.spec.resources or claim.spec.machine:
            held = replace(claim, pool=pool)
            for state in self.pools.values():
                add_resources(state.used_resources, state, held, sign)

    def _hold(self, tenant: Holder, ends: Timestamp, began: Timestamp) -> None:
        self._running[tenant.claim] = _Running(tenant, ends, began)
        self._fixed += not tenant.is_movable
        self._staying += not tenant.is_resumable
        self._busy += len(tenant.block)
        if ends < NO_RELEASE:
            heappush(self._ends, (ends, tenant.claim))

    def _end(self, ended: tuple[Timestamp, ClaimId]) -> None:
        at, ident = ended
        running = self._running.get(ident)
        if running is None or running.ends != at:
            return  # it was moved, or yielded
        self._leave(running)
        course = self.courses[ident]
        course.ended_s = self._seconds(at)
        del self._claims[ident], self._left[ident]

    def _leave(self, running: _Running) -> None:
        tenant = running.tenant
        state = self.pools[tenant.pool]
        if len(tenant.block):
            state.free.release(tenant.block)
            state.release_times.set_release(tenant.block, FREE)
        self._count_resources(self._claims[tenant.claim], tenant.pool, -1)
        del self._running[tenant.claim]
        self._fixed -= not tenant.is_movable
        self._staying -= not tenant.is_resumable
        self._busy -= len(tenant.block)
        if self.projects:
            used = self._usage.get(tenant.project) or ProjectUsage(tenant.project, 0, running.began)
            half_life_s = self.policy.half_life_s
            self._usage[tenant.project] = add_usage(used, len(tenant.block), running.began, self.now, half_life_s)

    def _preempt(self, reclaims: Sequence[Reclaim]) -> None:
        """Claims that were asked to yield or move do so at once, and pay."""
        going = [(reclaim, self._running[reclaim.claim]) for reclaim in reclaims]
        for reclaim, running in going:
            if reclaim.move_target is not None:
                state = self.pools[running.tenant.pool]
                state.free.release(running.tenant.block)
                state.release_times.set_release(running.tenant.block, FREE)
        pays = round(self.policy.move_s * SECOND)
        for reclaim, running in going:
            course = self.courses[reclaim.claim]
            if reclaim.move_target is None:
                self._leave(running)
                self._left[reclaim.claim] = running.ends - self.now + pays
                course.yields += 1
                self.yields += 1
                claim = self._claims[reclaim.claim]
                self._queue(replace(claim, attempt=claim.attempt + 1))
                continue
            state = self.pools[reclaim.move_target.pool]
            state.free.allocate(reclaim.move_target.block)
            running.ends = Timestamp(running.ends + pays)
            running.tenant = replace(
                running.tenant, pool=reclaim.move_target.pool, block=reclaim.move_target.block, guaranteed_block=None
            )
            limit_s = self._claims[reclaim.claim].spec.time_limit_s
            state.release_times.set_release(
                reclaim.move_target.block, running.ends if limit_s is not None else NO_RELEASE
            )
            heappush(self._ends, (running.ends, reclaim.claim))
            course.moves += 1
            self.moves += 1
            self._moved.append(self.now)

    def set_usage(self, usage: Mapping[str, ProjectUsage]) -> None:
        """Set the earlier usage of projects."""
        self._usage = dict(usage)

    def started_at(self, claim: ClaimId) -> Timestamp | None:
        """When a claim started; None: it has not."""
        started_s = self.courses[claim].started_s
        return Timestamp(self.began + round(started_s * SECOND)) if started_s is not None else None

    def _instant(self, seconds: float) -> Timestamp:
        return Timestamp(self.began + round(seconds * SECOND))

    def _seconds(self, at: Timestamp) -> float:
        return (at - self.began) / SECOND

    def _record_level(self) -> None:
        at_s = self._seconds(self.now)
        level = UsageLevel(at_s, self._busy, self._waiting)
        if self._levels and self._levels[-1].at_s == at_s:
            self._levels[-1] = level
        elif not self._levels or (self._levels[-1].busy, self._levels[-1].waiting) != (level.busy, level.waiting):
            self._levels.append(level)


def simulate(
    pools: Iterable[Pool], jobs: Sequence[SimulatedJob], policy: Policy, projects: Projects | None = None
) -> SimulationResult:
    """Serve all jobs, and return the outcome of each."""
    return Simulation(pools, policy, projects).run(jobs)


def _job_of(claim: Claim) -> SimulatedJob:
    spec = claim.spec
    return SimulatedJob(
        name=claim.id,
        arrives_s=0.0,
        runs_s=spec.time_limit_s or 0.0,
        size=spec.size,
        kind=spec.kind,
        project=spec.project,
        subject=claim.subject,
        priority=spec.priority,
        limit_s=spec.time_limit_s,
        preemptible=spec.preemptible,
        resumable=spec.checkpoint.resumable,
    )
