"""Patience: for whom claims are moved, and a block is kept empty, and from when on it lets nobody pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moorings.core.model.claims import CheckpointContract, Claim, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import ObservedState
from moorings.core.model.inputs import SetProject, YieldClaim
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.projects import Project
from moorings.core.model.timestamps import add_seconds
from moorings.core.model.topology import AnySubset, Pool, PowerOfTwo
from moorings.core.scheduling.explain import explain_wait
from tests.unit.core.worlds import POD, World

KEEPS = CheckpointContract(resumable=True)
PATIENCE_S = 3_600.0
PATIENT = Policy(defragment=DefragmentMode.ON, patience_s=PATIENCE_S)
AT_ONCE = replace(PATIENT, patience_s=0)
WIDE = Pool(PoolName("wide"), "ipu", "simulated", PowerOfTwo(1, 32, 32), (("memory", 100),))


def job(world: World, size: int = 4, **more: Any) -> Claim:
    """A job that runs and can be moved."""
    return world.ready(size, owner=f"local/run-{world.n_created}", checkpoint=KEEPS, **more)


def scattered(world: World, **more: Any) -> list[Claim]:
    """Jobs of four on every second place of four; the others are free."""
    n_devices = world.pools[0].topology.n_devices
    jobs = [job(world, **more) for _ in range(n_devices // 4)]
    for claim in jobs[::2]:
        world.end(claim)
    return jobs[1::2]


def wait_s(world: World, seconds: float) -> None:
    world.now = add_seconds(world.now, seconds)
    world.step()


def state(world: World, claim: Claim) -> ClaimState:
    return world.claim(claim.id).state


def moving(world: World) -> int:
    return sum(claim.kept is not None for claim in world.fleet.claims.values())


def both(world: World) -> tuple[Claim, Claim]:
    """A claim for eight, and behind it in the same turn one for four."""
    large, small = world.step(world.asks(8), world.asks(4))
    assert isinstance(large, Claim)
    assert isinstance(small, Claim)
    return large, small


def test_what_is_free_goes_to_those_behind_first() -> None:
    world = World(POD, policy=PATIENT)
    scattered(world)
    large, small = both(world)
    assert state(world, small) is ClaimState.GRANTED
    assert state(world, large) is ClaimState.PENDING
    assert moving(world) == 0


def test_without_patience_it_does_not() -> None:
    world = World(POD, policy=AT_ONCE)
    scattered(world)
    large, small = both(world)
    assert state(world, small) is ClaimState.PENDING
    assert moving(world) == 1
    assert [kept.claim for kept in world.fleet.reserved_blocks if len(kept.block) == 8] == [large.id]


def test_what_those_behind_leave_is_made_one_block_at_once() -> None:
    world = World(WIDE, policy=PATIENT)
    scattered(world)  # 16 of 32 are free
    large, small = both(world)
    assert state(world, small) is ClaimState.GRANTED
    assert moving(world) == 1
    [kept] = [one for one in world.fleet.reserved_blocks if one.claim == large.id]
    assert len(kept.block) == 8


def test_nothing_is_kept_empty_before_its_patience_ends_and_then_a_block_is() -> None:
    world = World(POD, policy=PATIENT)
    jobs = [job(world) for _ in range(4)]
    large = world.create(8)
    assert [(kept.claim, len(kept.block)) for kept in world.fleet.reserved_blocks] == [(large.id, 0)]
    world.end(jobs.pop())
    jobs.append(job(world))
    assert state(world, jobs[-1]) is ClaimState.READY
    wait_s(world, PATIENCE_S)
    world.end(jobs.pop())
    small = world.create(4, checkpoint=KEEPS)
    assert state(world, small) is ClaimState.PENDING
    [kept] = world.fleet.reserved_blocks
    assert (kept.claim, len(kept.block)) == (large.id, 8)
    world.end(jobs.pop(0))
    assert moving(world) == 1


def test_its_patience_ends_to_the_second() -> None:
    world = World(POD, policy=PATIENT)
    for _ in range(4):
        job(world)
    large = world.create(8)
    wait_s(world, PATIENCE_S - 2)
    assert world.now < add_seconds(large.arrival, PATIENCE_S)
    assert len(world.fleet.reserved_blocks[0].block) == 0
    world.step()
    assert world.now == add_seconds(large.arrival, PATIENCE_S)
    assert len(world.fleet.reserved_blocks[0].block) == 8


def test_a_claim_that_is_being_made_ready_does_not_end_it() -> None:
    """It cannot be moved yet, but will be: else every start would be the end of somebody's patience."""
    world = World(WIDE, policy=PATIENT)
    scattered(world)
    made = world.create(4, owner="local/run-made", checkpoint=KEEPS)
    assert state(world, made) is ClaimState.GRANTED
    first = world.create(16)
    second = world.create(4)
    assert state(world, second) is ClaimState.GRANTED
    assert [len(kept.block) for kept in world.fleet.reserved_blocks if kept.claim == first.id] == [0]


def test_where_somebody_cannot_be_moved_a_block_is_kept_from_the_beginning() -> None:
    world = World(POD, policy=PATIENT)
    for _ in range(3):
        job(world)
    world.ready(4)
    world.create(8)
    assert len(world.fleet.reserved_blocks[0].block) == 8


def test_where_ends_are_known_it_comes_in_its_turn() -> None:
    world = World(POD, policy=PATIENT)
    scattered(world, time_limit_s=1_000_000.0)
    large, small = both(world)
    assert state(world, small) is ClaimState.PENDING
    assert moving(world) == 1
    assert state(world, large) is ClaimState.PENDING


def test_where_any_devices_do_something_is_kept_from_the_beginning() -> None:
    world = World(Pool(PoolName("any"), "ipu", "simulated", AnySubset(8, 8)), policy=PATIENT)
    for _ in range(2):
        job(world)
    world.create(8)
    assert len(world.fleet.reserved_blocks[0].block) == 8


def test_who_only_suggests_keeps_a_block_from_the_beginning() -> None:
    world = World(POD, policy=replace(PATIENT, defragment=DefragmentMode.SUGGEST))
    for _ in range(4):
        job(world)
    world.create(8)
    assert len(world.fleet.reserved_blocks[0].block) == 8


def test_nobody_enters_the_room_while_it_is_made() -> None:
    """Also when the job that moves out takes longer than it was given."""
    world = World(POD, policy=PATIENT)
    scattered(world)
    large = world.create(8)
    [mover] = [claim for claim in world.fleet.claims.values() if claim.kept is not None]
    small = world.create(4)
    wait_s(world, 2 * PATIENT.yield_s)
    assert state(world, small) is ClaimState.PENDING
    assert moving(world) == 1
    before = world.partition(mover)
    world.step(YieldClaim(mover.id, "stopped"))
    world.says(world.fleet.partitions[before.id], ObservedState.ABSENT, order="remove")
    assert state(world, large) is ClaimState.GRANTED
    assert state(world, small) is ClaimState.PENDING


def test_no_second_room_is_made_for_it_while_the_first_is() -> None:
    world = World(WIDE, policy=PATIENT)
    scattered(world)
    world.create(8)
    assert moving(world) == 1
    wait_s(world, 2 * PATIENT.yield_s)
    assert moving(world) == 1


def test_what_it_asks_for_beside_devices_is_counted_once() -> None:
    world = World(WIDE, policy=PATIENT)
    scattered(world)
    world.create(8, resources={"memory": 60})
    assert moving(world) == 1


def test_what_is_kept_for_it_beside_devices_is_not_the_next_one_s() -> None:
    world = World(WIDE, policy=PATIENT)
    scattered(world)
    memory = {"memory": 60}
    world.step(world.asks(16, resources=memory), world.asks(8, resources=memory), world.asks(4))
    assert moving(world) == 0


def test_what_it_asks_for_beside_devices_stays_kept_for_it() -> None:
    world = World(replace(WIDE, topology=PowerOfTwo(1, 16, 16)), policy=PATIENT)
    for _ in range(4):
        job(world)
    world.create(8, resources={"memory": 60})
    other = world.create(0, resources={"memory": 60})
    assert state(world, other) is ClaimState.PENDING


def test_no_room_is_made_beyond_a_limit_that_those_behind_have_used_up() -> None:
    world = World(WIDE, policy=PATIENT)
    for project in (Project(name="lab", devices_max=24), Project(name="guests")):
        world.step(SetProject(project, None))
    jobs = [job(world, project=("guests", "lab")[number % 2]) for number in range(8)]
    for claim in jobs[::2]:
        world.end(claim)
    large, small = world.step(world.asks(8, project="lab"), world.asks(4, project="lab"))
    assert isinstance(large, Claim)
    assert isinstance(small, Claim)
    assert state(world, small) is ClaimState.GRANTED
    assert moving(world) == 0


def test_it_is_told_that_claims_are_moved_for_it() -> None:
    world = World(POD, policy=PATIENT)
    for _ in range(4):
        job(world)
    large = world.create(8)
    [first, *_] = explain_wait(world.fleet, large, world.now).reasons
    assert first.message == "it is next: others are moved for it as soon as enough devices are left over"
    assert first.code == "queue.reserved"
