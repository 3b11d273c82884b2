"""Metrics of a controller: counted from memory on demand, never kept beside it.

Gauges updated by every turn were refused: they drift when a turn is given up half way, and memory can be counted. Ten
thousand claims take some milliseconds, once a scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from moorings.controller.guarantees import GuaranteeMetrics, collect_guarantee_metrics
from moorings.controller.meters import Counters
from moorings.core.claims import ENDED, ClaimState
from moorings.core.devices import DeviceState
from moorings.core.fleet import Fleet, PoolState
from moorings.core.instants import Timestamp
from moorings.core.partitions import PartitionState
from moorings.core.policy import Policy
from moorings.core.topology import AnySubset
from moorings.workloads.runs import ENDED as ENDED_RUNS
from moorings.workloads.runs import RunState
from moorings.workloads.turn import RunRegistry

ANY_POOL = "any"  # of claims that name no pool, until they are placed
_USUAL = Policy()
SIZES_MAX = 64  # of one pool: labels must stay few


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
        possible={(state.pool.name, size): state.free.count(size) for state in pools for size in _sizes(state)},
        largest={state.pool.name: state.free.largest() for state in pools},
        waiting=waiting,
        oldest_wait_s=oldest,
        reachable={state.pool.name: not state.problem for state in pools},
        runs=_runs(runs),
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
    out = Counter(device.state for device in state.out.values())
    foreign = {index for block in state.foreign.values() for index in block} - state.out.keys()
    held = state.pool.topology.n_devices - state.free.free - len(state.out) - len(foreign)
    return {
        "free": state.free.free,
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
    for claim in fleet.waiting():
        name = claim.spec.pool or ANY_POOL
        waiting[name] = waiting.get(name, 0) + 1  # a claim may name a pool that has left the pools file
        first[name] = min(first.get(name, claim.arrival), claim.arrival)
    return waiting, {name: max(now - first[name], 0) / 1e6 if name in first else 0.0 for name in waiting}


def _runs(runs: RunRegistry) -> dict[str, int]:
    found = Counter(run.state for run in runs.by_id.values())
    return {state.lower(): found[state] for state in RunState if state not in ENDED_RUNS}
