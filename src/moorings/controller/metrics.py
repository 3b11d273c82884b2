"""Metrics of a controller: counters of its own work, and what is counted from memory on demand.

Counters are plain counts and not a metrics library's objects: they cost a bisection and three additions, depend on no
monitoring system, and a test reads them like any value. ``api.metrics`` renders them for Prometheus on request.

Gauges updated by every turn were refused: they drift when a turn is given up half way, and memory can be counted. Ten
thousand claims take some milliseconds, once a scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moorings.core.guarantees.guarantee_map import build_pool_guarantees
from moorings.core.guarantees.project_limits import ProjectLimits
from moorings.core.model.claims import ENDED, Claim, ClaimState
from moorings.core.model.devices import DeviceState, PoolName
from moorings.core.model.partitions import PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import AnySubset
from moorings.core.placement.fleet import Fleet, PoolState
from moorings.core.scheduling.explain import list_holders
from moorings.core.scheduling.quotas import quota_rows
from moorings.workloads.run_turn import RunRegistry
from moorings.workloads.runs import ENDED as ENDED_RUNS
from moorings.workloads.runs import RunState

ANY_POOL = "any"  # of claims that name no pool, until they are placed
_USUAL = Policy()
SIZES_MAX = 64  # of one pool: labels must stay few
PROJECTS_MEASURED_MAX: Final = 128  # labels must stay few: the projects highest in the tree
# Seconds: from a turn in memory to a commit on a slow disk.
TURN_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# Seconds: hardware takes long, and ``hardware.ORDER_TIMEOUT_S`` is the limit.
ORDER_BOUNDS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class DurationHistogram:
    """A histogram: how often something was done, and how long it took.

    Args:
        bounds: upper bounds of its buckets in seconds, ascending; one more bucket takes the rest.
    """

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)


@dataclass(slots=True)
class Counters:
    """The counters of one controller since it began to lead.

    Attributes:
        turns: deciding, without saving.
        commits: saving, from the request to the writer until its answer.
        failures: turns that were not saved, by error code.
        orders: answers of drivers by (pool, order, result); ``list`` is a listing.
    """

    turns: DurationHistogram = field(default_factory=lambda: DurationHistogram(TURN_BOUNDS))
    commits: DurationHistogram = field(default_factory=lambda: DurationHistogram(TURN_BOUNDS))
    failures: Counter[str] = field(default_factory=Counter)
    orders: dict[tuple[str, str, str], DurationHistogram] = field(default_factory=dict)

    def add_order(self, pool: str, order: str, result: str, seconds: float) -> None:
        """Count a driver's answer."""
        self.orders.setdefault((pool, order, result), DurationHistogram(ORDER_BOUNDS)).observe(seconds)


@dataclass(frozen=True, slots=True)
class GuaranteeMetrics:
    """The metrics; every pool is there.

    Attributes:
        devices: by (project, pool, ``guaranteed|held|borrowed``); of defined projects, with their subprojects.
        overdue: claims that were asked to yield or move and missed the deadline, by pool.
        due_claims: pending claims within their projects' guarantees, each counted by itself, by pool.
        oldest_s: how long the first of them has waited, by pool; 0 if there is none.
        bound_s: the time within which such a claim gets its devices, plus the time the hardware takes.
    """

    devices: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    overdue: Mapping[str, int] = field(default_factory=dict)
    due_claims: Mapping[str, int] = field(default_factory=dict)
    oldest_s: Mapping[str, float] = field(default_factory=dict)
    bound_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ControllerMetrics:
    """The metrics; keys are pools and states in lower case, every state of every pool is there.

    Attributes:
        claims: unended ones by (pool, state).
        devices: by (pool, ``free|held|foreign|quarantined|drained``).
        partitions: by (pool, state).
        possible: partitions that could be formed now, by (pool, size).
        largest: devices of the largest free block, by pool.
        waiting: pending claims, by pool.
        oldest_wait_s: how long the claim that came first has waited, by pool; 0 if none waits.
        reachable: whether the driver answers, by pool.
        runs: unended ones by state.
        idle: devices of runs that are idle, by pool.
        strays: partitions with our mark that no claim holds.
        ready: whether changes can be saved.
        seq: the last sequence number of the event log.
        meters: counters since this controller leads.
        guarantees: the metrics of guarantees.
    """

    claims: Mapping[tuple[str, str], int]
    devices: Mapping[tuple[str, str], int]
    partitions: Mapping[tuple[str, str], int]
    possible: Mapping[tuple[str, int], int]
    largest: Mapping[str, int]
    waiting: Mapping[str, int]
    oldest_wait_s: Mapping[str, float]
    reachable: Mapping[str, bool]
    runs: Mapping[str, int]
    idle: Mapping[str, int]
    strays: int
    ready: bool
    seq: int
    meters: Counters
    guarantees: GuaranteeMetrics = GuaranteeMetrics()


def collect_metrics(
    fleet: Fleet,
    runs: RunRegistry,
    meters: Counters,
    now: Timestamp,
    *,
    strays: int,
    ready: bool,
    seq: int,
    policy: Policy = _USUAL,
) -> ControllerMetrics:
    """The metrics of this moment."""
    pools = list(fleet.pools.values())
    names = [*fleet.pools, ANY_POOL]
    waiting, oldest = _queue(fleet, names, now)
    return ControllerMetrics(
        claims=_claims(fleet, names),
        devices={(state.pool.name, kind): count for state in pools for kind, count in _devices(state).items()},
        partitions=_partitions(fleet),
        possible={(state.pool.name, size): state.free.count_blocks(size) for state in pools for size in _sizes(state)},
        largest={state.pool.name: state.free.largest_size() for state in pools},
        waiting=waiting,
        oldest_wait_s=oldest,
        reachable={state.pool.name: not state.unreachable_reason for state in pools},
        runs=_runs(runs),
        idle=_idle_devices(fleet, runs),
        strays=strays,
        ready=ready,
        seq=seq,
        meters=meters,
        guarantees=collect_guarantee_metrics(fleet, policy, now),
    )


def _claims(fleet: Fleet, names: list[str]) -> dict[tuple[str, str], int]:
    found = Counter((claim.pool or claim.spec.pool or ANY_POOL, claim.state) for claim in fleet.claims.values())
    known = [(name, state) for name in names for state in ClaimState if state not in ENDED]
    return {(name, state.lower()): found[name, state] for name, state in known}


def _partitions(fleet: Fleet) -> dict[tuple[str, str], int]:
    found = Counter((partition.pool, partition.state) for partition in fleet.partitions.values())
    states = [state for state in PartitionState if state is not PartitionState.REMOVED]
    return {(name, state.lower()): found[name, state] for name in fleet.pools for state in states}


def _devices(state: PoolState) -> dict[str, int]:
    out = Counter(device.state for device in state.out_of_service.values())
    foreign = {index for block in state.foreign_blocks.values() for index in block} - state.out_of_service.keys()
    held = state.pool.topology.n_devices - state.free.n_free - len(state.out_of_service) - len(foreign)
    return {
        "free": state.free.n_free,
        "held": held,
        "foreign": len(foreign),
        "quarantined": out[DeviceState.QUARANTINED],
        "drained": out[DeviceState.DRAINED],
    }


def _sizes(state: PoolState) -> list[int]:
    topology = state.pool.topology
    if isinstance(topology, AnySubset):  # every number is a size; the powers of two are enough
        return [1 << power for power in range(topology.max_block.bit_length())]
    return list(topology.sizes)[:SIZES_MAX]


def _queue(fleet: Fleet, names: list[str], now: Timestamp) -> tuple[dict[str, int], dict[str, float]]:
    waiting = dict.fromkeys(names, 0)
    first: dict[str, Timestamp] = {}
    for claim in fleet.pending_claims():
        name = claim.spec.pool or ANY_POOL
        waiting[name] = waiting.get(name, 0) + 1  # a claim may name a pool that has left the pools file
        first[name] = min(first.get(name, claim.arrival), claim.arrival)
    return waiting, {name: max(now - first[name], 0) / 1e6 if name in first else 0.0 for name in waiting}


def _runs(runs: RunRegistry) -> dict[str, int]:
    found = Counter(run.state for run in runs.by_id.values())
    return {state.lower(): found[state] for state in RunState if state not in ENDED_RUNS}


def _idle_devices(fleet: Fleet, runs: RunRegistry) -> dict[str, int]:
    found = dict.fromkeys(map(str, fleet.pools), 0)
    for run in runs.by_id.values():
        claim = fleet.claims.get(run.claim) if run.claim is not None and runs.idleness(run) is not None else None
        if claim is not None and claim.pool in found:
            found[claim.pool] += claim.spec.size
    return found


# -- guarantees --------------------------------------------------------------------------------------------------------


def collect_guarantee_metrics(fleet: Fleet, policy: Policy, now: Timestamp) -> GuaranteeMetrics:
    """The metrics of this moment."""
    overdue = dict.fromkeys(map(str, fleet.pools), 0)
    for claim in map(fleet.claims.get, fleet.claims_asked_to_yield):
        if claim is not None and claim.pool in overdue and _is_overdue(claim, now):
            overdue[claim.pool] += 1
    owed, oldest_s = _due_claims(fleet, policy, now)
    return GuaranteeMetrics(_project_devices(fleet, policy, now), overdue, owed, oldest_s, policy.guarantee_bound_s)


def _is_overdue(claim: Claim, now: Timestamp) -> bool:
    return claim.state is ClaimState.RECLAIMING and claim.asked_until is not None and claim.asked_until < now


def _project_devices(fleet: Fleet, policy: Policy, now: Timestamp) -> dict[tuple[str, str, str], int]:
    names = sorted(fleet.projects.by_name, key=lambda name: (name.count("/"), name))[:PROJECTS_MEASURED_MAX]
    measured = set(names)
    found: dict[tuple[str, str, str], int] = {}
    for row in quota_rows(fleet, now, policy) if measured else ():
        if row.project in measured and row.pool in fleet.pools:
            for use, count in (("guaranteed", row.guaranteed), ("held", row.held), ("borrowed", row.borrowed)):
                found[row.project, row.pool, use] = count
    return found


def _due_claims(fleet: Fleet, policy: Policy, now: Timestamp) -> tuple[dict[str, int], dict[str, float]]:
    owed = dict.fromkeys(map(str, fleet.pools), 0)
    oldest_s = dict.fromkeys(owed, 0.0)
    tenants = list_holders(fleet) if fleet.projects else []
    here = {name: [tenant for tenant in tenants if tenant.pool == name] for name in fleet.pools}
    built = ((name, build_pool_guarantees(fleet.projects, state, here[name])) for name, state in fleet.pools.items())
    estates = {name: estate for name, estate in built if estate is not None}
    if not estates:
        return owed, oldest_s
    limits = ProjectLimits(fleet.projects)
    for tenant in tenants:
        limits.add_held(tenant.project, tenant.subject, len(tenant.block))
    known: dict[tuple[PoolName, str, int, int], bool] = {}
    barred: dict[tuple[str, str, int], bool] = {}
    for claim in fleet.pending_claims():
        spec = claim.spec
        who = (spec.project, claim.user, spec.size)
        if who not in barred:
            barred[who] = not spec.size or limits.bars_user(claim)
        if barred[who]:
            continue
        for name, estate in estates.items():
            if fleet.pools[name].pool.kind != spec.kind or spec.pool not in (None, name):
                continue
            request = (name, spec.project, spec.size, spec.priority)
            if request not in known:
                cells = fleet.projects.usable_guarantees(spec.project, name)
                known[request] = estate.is_within(cells, spec.size, spec.priority if policy.preempt else None)
            if known[request]:
                owed[name] += 1
                oldest_s[name] = max(oldest_s[name], (now - claim.arrival) / SECOND)
    return owed, oldest_s
