"""The next claim of a pool, reported to schedulers that preempt for their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.claims import Claim, ClaimId, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.inputs import DrainDevice, DriverResultReceived, PoolReachability, QueueReported, ReleaseClaim
from moorings.core.model.policy import Policy
from moorings.core.model.topology import Pool, PowerOfTwo
from moorings.core.placement.free_map import OUT_OF_SERVICE
from moorings.core.scheduling.offers import contended_pools, held_counts, next_claim_by_pool
from tests.unit.core.test_announced import HERE, THERE, told
from tests.unit.core.worlds import CROSS, POD, World

WIDE = Pool(PoolName("wide"), "ipu", "simulated", PowerOfTwo(3, 8, 8))


def first(world: World) -> dict[PoolName, str]:
    """The owners of those who are first."""
    return {name: claim.owner for name, claim in next_claim_by_pool(world.fleet, world.policy, world.now).items()}


def full(*pools: Pool, policy: Policy = Policy()) -> World:  # noqa: B008
    """All of the first pool is held, in fours."""
    world = World(*(pools or (POD,)), policy=policy)
    for _ in range(4):
        world.ready(4, pool=POD.name)
    return world


def test_a_job_that_waits_elsewhere_is_first_if_nobody_waits_before_it() -> None:
    world = full()
    assert first(world) == {}
    world.step(told(world, 4, 4))
    assert first(world) == {POD.name: f"{HERE}/1/nonce"}
    world.create(16, gcds=2)
    assert first(world) == {POD.name: f"{HERE}/1/nonce"}, "who came later does not stand before it"


def test_a_claim_or_another_queue_s_job_before_it_is_first() -> None:
    for policy in (Policy(), Policy(reserve=False)):
        world = full(policy=policy)
        claim = world.create(16, gcds=2)
        world.step(told(world, 4))
        assert first(world) == {POD.name: claim.owner}
        world.end(claim)
        assert first(world) == {POD.name: f"{HERE}/1/nonce"}
        world.step(told(world, 4, queue=THERE, ago_s=100))
        assert first(world) == {POD.name: f"{THERE}/1/nonce"}
        urgent = world.create(4, priority=1)
        assert first(world) == {POD.name: urgent.owner}


def test_who_has_only_to_be_started_is_first_until_then() -> None:
    """His block is free for the controller's eyes, and somebody else would count on it."""
    world = full()
    world.step(told(world, 4, 8))
    world.end(next(iter(world.fleet.claims.values())))
    assert first(world) == {POD.name: f"{HERE}/1/nonce"}
    world.create(4, owner=f"{HERE}/1/nonce")
    assert first(world) == {POD.name: f"{HERE}/2/nonce"}


def others(world: World, queue: str = HERE) -> set[PoolName]:
    """The pools in which somebody waits who is not of that queue."""
    return set(contended_pools(world.fleet, world.fleet.queue_reports[queue]))


def test_others_wait_where_somebody_of_no_job_of_the_queue_does() -> None:
    world = full(POD, WIDE, CROSS)
    world.step(told(world, 4, 4), told(world, queue=THERE))
    world.create(16, gcds=2, owner=f"{HERE}/7/nonce")
    world.create(0, "gpu", resources={"memory": 100})
    assert others(world) == set(), "its own jobs, and one that asks for no devices"
    assert others(world, THERE) == {POD.name, WIDE.name}
    world.step(told(world, 4, queue=THERE))
    assert others(world) == {POD.name, WIDE.name}, "another scheduler's jobs count"
    world.step(told(world, queue=THERE))
    claim = world.create(16, gcds=2, pool=POD.name)
    assert others(world) == {POD.name}, "behind its own jobs, too"
    world.end(claim)
    assert others(world) == set()


def test_of_another_instance_s_claims_none_is_the_queue_s() -> None:
    ours, theirs = "0123456789abcdef", "fedcba9876543210"
    world = World(POD)
    list_told = told(world, 4).told
    world.step(QueueReported(replace(list_told, instance=ours)))
    world.ready(4, owner=f"{HERE}/5/nonce/0/{ours}")
    world.ready(2, owner=f"{HERE}/5/nonce/0/{theirs}")
    world.ready(1, owner="user/ann")
    announced = world.fleet.queue_reports[HERE]
    assert held_counts(world.fleet, announced) == {POD.name: {4: 1}}
    assert held_counts(world.fleet, replace(announced, instance="")) == {POD.name: {2: 1, 4: 1}}
    world.create(16, gcds=2, owner=f"{HERE}/6/nonce/0/{ours}")
    assert others(world) == set()
    world.create(16, gcds=2, owner=f"{HERE}/7/nonce/0/{theirs}")
    assert others(world) == {POD.name}


def test_what_cannot_be_had_again_at_once_is_not_held() -> None:
    world = World(POD)
    world.step(told(world))
    announced = world.fleet.queue_reports[HERE]
    first, second = (world.ready(4, owner=f"{HERE}/{number}/nonce") for number in (1, 2))
    world.create(8, owner=f"{HERE}/3/nonce")
    assert held_counts(world.fleet, announced) == {POD.name: {4: 2, 8: 1}}, "what is being made is held"
    world.step(ReleaseClaim(first.id, "over"))
    assert held_counts(world.fleet, announced) == {POD.name: {4: 1, 8: 1}}
    world.step(DrainDevice(POD.name, next(iter(world.partition(second).block)), "a fan"))
    assert held_counts(world.fleet, announced) == {POD.name: {8: 1}}
    world.step(PoolReachability(POD.name, "it does not answer"))
    assert held_counts(world.fleet, announced) == {}


def test_who_could_not_use_it_keeps_nobody_waiting() -> None:
    world = full(POD, WIDE, CROSS)
    for _ in range(6):
        world.ready(4, pool=WIDE.name)
    world.create(16, gcds=2)  # too large for the one pool; in the other a device is out of service
    world.create(0, "gpu", resources={"memory": 100})
    world.create(0, "gpu", resources={"memory": 1})
    world.create(2, pool=WIDE.name)
    world.step(DrainDevice(POD.name, 0, "broken"))
    world.step(told(world, 4, queue=THERE))
    assert first(world) == {POD.name: f"{THERE}/1/nonce", WIDE.name: "user/ann"}
    world.step(PoolReachability(POD.name, "no answer"))
    assert first(world) == {WIDE.name: "user/ann"}, "nobody gets anything there"


def test_of_those_who_ask_for_resources_the_first_that_the_pool_could_serve_is_first() -> None:
    poor = replace(CROSS, name=PoolName("poor"), resources=(("memory", 10),))
    world = World(CROSS, poor)
    for pool in (CROSS, poor):
        world.ready(6, kind="gpu", pool=pool.name)
    world.create(6, "gpu", owner="user/rich", resources={"memory": 50})
    world.create(6, "gpu", resources={"memory": 1})
    assert first(world) == {CROSS.name: "user/rich", poor.name: "user/ann"}


SIZES = st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=6)


@given(
    held=SIZES,
    waiting=SIZES,
    here=SIZES,
    there=SIZES,
    drained=st.lists(st.integers(0, 15), max_size=2),
    swapped=st.booleans(),
    reserve=st.booleans(),
)
def test_what_is_freed_for_who_is_first_is_his(
    held: list[int],
    waiting: list[int],
    here: list[int],
    there: list[int],
    drained: list[int],
    swapped: bool,
    reserve: bool,
) -> None:
    """A scheduler that preempts for the first job does so for that job, whatever block it is."""
    world = World(POD, WIDE, policy=Policy(reserve=reserve))
    for size in held:
        world.create(size, gcds=2 if size > 8 else 1)
    queues = [told(world, *here), told(world, *there, queue=THERE)]
    if swapped:
        world.step(*queues)
    for size in waiting:
        world.create(size, gcds=2 if size > 8 else 1)
    if not swapped:
        world.step(*queues)
    for index in drained:
        world.step(DrainDevice(POD.name, index, "broken"))
    world.step()
    for name, claim in next_claim_by_pool(world.fleet, world.policy, world.now).items():
        if is_offered(world, claim):
            continue  # what more could it want?
        state = world.fleet.pools[name]
        # Any block will do: here the one that is emptied soonest, as if all of its holders were to end now.
        found = state.release_times.earliest_block(claim.spec.size)
        assert found is not None
        assert found[1] < OUT_OF_SERVICE
        holders = [p.claim for p in world.fleet.partitions.values() if p.pool == name and p.block.overlaps(found[0])]
        assert holders, "else it would have it already"
        if reserve:
            for holder in holders:
                world.end(world.fleet.claims[holder])
        else:  # nothing is kept, and smaller ones would take what is free before the rest is
            end_at_once(world, holders)
        assert is_offered(world, claim) or world.claim(claim.id).state is ClaimState.GRANTED
        return  # that changed the queue


def end_at_once(world: World, claims: Sequence[ClaimId]) -> None:
    """Their partitions are gone in the same turn."""
    world.step(*(ReleaseClaim(claim, "done") for claim in claims))
    parts = [world.partition(world.claim(claim)) for claim in claims]
    gone = DriverResult(ResultCode.OK, ObservedState.ABSENT, "so it says")
    world.step(*(DriverResultReceived(part.id, part.version, "remove", gone) for part in parts))


def is_offered(world: World, claim: Claim) -> bool:
    """Whether its scheduler may start it."""
    return claim.id in {kept.claim for kept in world.fleet.reserved_blocks if not kept.until}
