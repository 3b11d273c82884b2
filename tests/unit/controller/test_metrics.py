"""Numbers of a controller: counted from the fleet, every state of every pool there, nothing counted twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.controller.metrics import ANY_POOL, Counters, DurationHistogram, collect_metrics
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId
from moorings.core.model.devices import Device, DeviceState, PoolName
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import AnySubset, Block, Pool, PowerOfTwo
from moorings.core.placement.fleet import Fleet, FleetChanges
from moorings.testing.builders import a_run
from moorings.workloads.idleness import Idleness
from moorings.workloads.run_turn import RunRegistry
from moorings.workloads.runs import RunState

POD = Pool(PoolName("pod16"), "ipu", "simulated", PowerOfTwo(1, 16, 16), ())
GPUS = Pool(PoolName("gpus"), "gpu", "simulated", AnySubset(8, 8), ())
NOW = Timestamp(100_000_000)


def claim(number: int, state: ClaimState, arrival_s: int, pool: str | None = None) -> Claim:
    spec = ClaimSpec(kind="ipu", size=4, pool=PoolName(pool) if pool else None)
    return Claim(
        id=ClaimId(f"claim-{number}"),
        name=f"c{number}",
        owner="user/ann",
        subject="ann",
        spec=spec,
        state=state,
        arrival=Timestamp(arrival_s * 1_000_000),
    )


@pytest.fixture
def fleet() -> Fleet:
    held = replace(claim(1, ClaimState.READY, 1), pool=PoolName("pod16"), partition=PartitionId("p1"))
    partition = Partition(
        id=PartitionId("p1"),
        name="p1",
        claim=held.id,
        pool=PoolName("pod16"),
        block=Block(range(4)),
        gcds=1,
        replicas_per_gcd=1,
        state=PartitionState.ACTIVE,
        since=NOW,
    )
    waiting = [
        claim(2, ClaimState.PENDING, 40),
        claim(3, ClaimState.PENDING, 30),
        claim(4, ClaimState.PENDING, 90, "pod16"),
    ]
    out = [
        Device(PoolName("pod16"), 4, DeviceState.QUARANTINED, "broke", NOW),
        Device(PoolName("pod16"), 5, DeviceState.DRAINED, "mine", NOW),
    ]
    made = Fleet.load([POD, GPUS], [held, *waiting], [partition], out)
    made.apply(FleetChanges(foreign={PoolName("pod16"): {"theirs": Block(range(5, 7))}}, problems={GPUS.name: "away"}))
    return made


def measured(fleet: Fleet):
    return collect_metrics(fleet, RunRegistry(), Counters(), NOW, strays=2, ready=True, seq=5)


def test_every_device_is_counted_once(fleet):
    seen = measured(fleet).devices
    pod = {state: count for (pool, state), count in seen.items() if pool == "pod16"}
    assert pod == {"free": 9, "held": 4, "foreign": 1, "quarantined": 1, "drained": 1}
    assert sum(pod.values()) == 16
    assert seen["gpus", "free"] == 8


def test_claims_stand_at_their_pool_or_at_any(fleet):
    seen = measured(fleet).claims
    assert {key: count for key, count in seen.items() if count} == {
        ("pod16", "ready"): 1,
        ("pod16", "pending"): 1,
        (ANY_POOL, "pending"): 2,
    }
    assert seen["gpus", "granted"] == 0, "a state that is empty is told as 0, so that an alert can rest on it"


def test_the_oldest_wait_is_that_of_who_came_first(fleet):
    seen = measured(fleet)
    assert seen.waiting == {"pod16": 1, "gpus": 0, ANY_POOL: 2}
    assert seen.oldest_wait_s == {"pod16": 10.0, "gpus": 0.0, ANY_POOL: 70.0}


def test_room_and_reach(fleet):
    seen = measured(fleet)
    assert seen.possible["pod16", 8] == 1
    assert seen.possible["pod16", 16] == 0
    assert [size for pool, size in seen.possible if pool == "gpus"] == [1, 2, 4, 8]
    assert seen.largest == {"pod16": 8, "gpus": 8}
    assert seen.reachable == {"pod16": True, "gpus": False}


def test_devices_of_idle_runs_are_counted_in_their_pool(fleet):
    runs = RunRegistry(
        [a_run(number, claim=ClaimId(f"claim-{number}"), state=RunState.RUNNING) for number in (1, 3)]
        + [a_run(9, claim=None, state=RunState.RUNNING)]
    )
    seen = collect_metrics(fleet, runs, Counters(), NOW, strays=0, ready=True, seq=0)
    assert seen.idle == {"pod16": 0, "gpus": 0}
    runs.set_idle({run: Idleness(NOW) for run in runs.by_id})
    seen = collect_metrics(fleet, runs, Counters(), NOW, strays=0, ready=True, seq=0)
    assert seen.idle == {"pod16": 4, "gpus": 0}, "one has no pool yet, and one no claim of ours"


def test_a_wait_is_never_negative_when_the_clock_has_jumped(fleet):
    seen = collect_metrics(fleet, RunRegistry(), Counters(), Timestamp(0), strays=0, ready=True, seq=0)
    assert min(seen.oldest_wait_s.values()) == 0


def test_durations_fall_into_their_buckets():
    times = DurationHistogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        times.observe(seconds)
    assert times.counts == [2, 1, 1]
    assert times.count == 4
    assert times.total_s == pytest.approx(7.65)
