"""Room on demand: who is moved by an admin's order, at what cost, and when not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.core.model.claims import CheckpointContract, Claim, ClaimState, PoolBlock
from moorings.core.model.driver_results import ObservedState
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import CheckpointSaved, DefragmentPool, SetProject, YieldClaim
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.topology import Block
from moorings.core.placement.plans import MovePlan
from moorings.core.scheduling.turn import Turn
from tests.unit.core.worlds import POD, RACK, World

KEEPS = CheckpointContract(resumable=True)


def scattered(world: World) -> tuple[Claim, Claim]:
    """Eight of sixteen devices are free, but no block of them; who holds the others, 4-7 and 12-15."""
    jobs = [
        world.ready(4, owner=f"local/run-{n}", checkpoint=KEEPS, name=f"job-{n}", preemptible=True) for n in range(4)
    ]
    for claim in (jobs[0], jobs[2]):
        world.end(claim)
    return jobs[1], jobs[3]


def goes_on(world: World, claim: Claim) -> Claim:
    """The claim once its job has stopped, and its new partition is there."""
    before = world.partition(claim)
    world.step(YieldClaim(claim.id, "stopped"))
    world.says(world.fleet.partitions[before.id], ObservedState.ABSENT, order="remove")
    world.says(world.partition(claim), ObservedState.ACTIVE)
    return world.claim(claim.id)


def refused(world: World, given: DefragmentPool) -> str:
    return refusal(world, given).code


def refusal(world: World, given: DefragmentPool) -> MooringsError:
    [reply] = world.step(given)
    assert isinstance(reply, MooringsError), reply
    return reply


def test_what_is_lacking_is_told():
    world = World(POD, policy=Policy(moves_per_hour=1))
    held = [world.ready(4, name=f"job-{n}") for n in range(4)]  # none of them can be moved
    error = refusal(world, DefragmentPool(size=8))
    assert error.detail == "no room for 8 devices can be made in pod: 0 of 16 are free, 8 are needed"
    assert error.hint == "wait until more claims end, or ask for a smaller block"
    for claim in (held[0], held[2]):
        world.end(claim)
    error = refusal(world, DefragmentPool(size=8))
    assert error.detail.endswith("pod: 8 of 16 are free, but those in the way cannot all go on elsewhere")
    assert error.hint == "only claims that go on from a checkpoint are moved, and 1 more claim in this hour"


def test_devices_that_are_kept_for_others_are_told():
    world = World(POD)
    scattered(world)
    assert isinstance(world.step(DefragmentPool(size=8))[0], MovePlan)
    error = refusal(world, DefragmentPool(size=8))
    assert "8 of 16 are free (4 of them are kept for others), 8 are needed" in error.detail


def test_a_reserved_number_of_devices_bars_no_order():
    world = World(POD, policy=Policy(defragment=DefragmentMode.ON))
    for n, limit_s in enumerate((60.0, 90.0, 60.0, 90.0)):
        world.ready(4, owner=f"local/{n}", checkpoint=KEEPS, time_limit_s=limit_s)
    world.create(8)
    assert [len(one.block) for one in world.fleet.reserved_blocks] == [0]
    assert refused(world, DefragmentPool(size=2)) == "room.not_found"


def test_an_hour_that_is_used_up_is_told():
    world = World(POD, policy=Policy(moves_per_hour=0))
    scattered(world)
    error = refusal(world, DefragmentPool(size=8))
    assert error.detail.endswith("pod: as many claims as may be moved in an hour were moved (0)")
    assert "moves_per_hour" in error.hint


def test_each_pool_says_for_itself_what_it_lacks():
    other = replace(POD, name=POD.name.__class__("other"))
    world = World(POD, other)
    jobs = [world.ready(8, pool=one.name) for one in (POD, POD, other, other)]
    error = refusal(world, DefragmentPool(size=8))
    assert error.detail.endswith("pod: 0 of 16 are free, 8 are needed; other: 0 of 16 are free, 8 are needed")
    assert error.hint == "wait until more claims end, or ask for a smaller block"
    assert all(job.state is ClaimState.READY for job in jobs)


@pytest.mark.parametrize(
    ("size", "hint"),
    [(3, "ask for 2 or 4"), (32, "ask for 16 or fewer"), (-3, "ask for 1 or 2"), (0, "ask for 1 or 2")],
)
def test_the_sizes_that_there_are_are_told(size, hint):
    error = refusal(World(POD), DefragmentPool(size=size, pool=POD.name))
    assert (error.code, error.detail) == ("claim.size_not_allowed", f"pool 'pod' has no blocks of {size} devices")
    assert error.hint == hint


def test_each_pool_tells_its_own_sizes():
    error = refusal(World(POD, RACK), DefragmentPool(size=12))
    assert error.hint == "in pod ask for 8 or 16; in rack ask for 6 or fewer"


def test_a_claim_that_waits_gets_the_room_that_is_made_for_it():
    world = World(POD)  # the policy moves nobody by itself
    first, last = scattered(world)
    wanted = world.create(8)
    world.step(CheckpointSaved(last.id, world.now))
    [moved] = world.step(DefragmentPool(claim=wanted.id))
    assert isinstance(moved, MovePlan)
    [move] = moved.moves
    assert (move.claim, move.for_claim, move.move_target) == (
        last.id,
        wanted.id,
        PoolBlock(POD.name, Block.parse("0-3")),
    )
    assert moved.spot == PoolBlock(POD.name, Block.parse("8-15"))
    assert moved.cost == pytest.approx(4 * 120 + 4, rel=0.01)
    asked = world.claim(last.id)
    assert (asked.state, asked.kept) == (ClaimState.RECLAIMING, move.move_target)
    assert asked.reason is not None
    assert asked.reason.message == "it makes room for c5 of project default and goes on at once, on devices 0-3"
    assert goes_on(world, last).state is ClaimState.READY
    assert world.partition(last).block == Block.parse("0-3")
    assert world.partition(wanted).block == moved.spot.block
    assert world.claim(first.id).state is ClaimState.READY


def test_room_of_a_size_is_made_for_nobody_in_particular():
    world = World(POD)
    scattered(world)
    [moved] = world.step(DefragmentPool(size=8, pool=POD.name))
    assert isinstance(moved, MovePlan)
    asked = world.claim(moved.moves[0].claim)
    assert asked.reason is not None
    assert asked.reason.message.startswith("it makes room for larger partitions and goes on at once")
    assert asked.reason.blockers == ()
    goes_on(world, asked)
    assert world.fleet.pools[POD.name].free.find_block(8) == moved.spot.block


def test_a_turn_that_is_thrown_away_is_a_dry_run():
    world = World(POD)
    scattered(world)
    before = (dict(world.fleet.claims), world.fleet.move_times, world.fleet.pools[POD.name].free.find_block(4))
    with Turn(world.fleet, world.policy, world.now) as turn:
        assert isinstance(turn.handle_input(DefragmentPool(size=8)), MovePlan)
    assert (dict(world.fleet.claims), world.fleet.move_times, world.fleet.pools[POD.name].free.find_block(4)) == before
    world.step()


def test_no_more_is_moved_in_an_hour_than_the_policy_allows():
    world = World(POD, policy=Policy(moves_per_hour=1))
    scattered(world)
    [moved] = world.step(DefragmentPool(size=8))
    assert isinstance(moved, MovePlan)
    goes_on(world, world.claim(moved.moves[0].claim))
    world.ready(8)
    for claim in list(world.fleet.claims.values()):
        world.end(claim)
    scattered(world)
    assert refused(world, DefragmentPool(size=8)) == "room.not_found"


def test_two_orders_of_one_turn_share_the_hour():
    world = World(POD, policy=Policy(moves_per_hour=1))
    scattered(world)
    moved, second = world.step(DefragmentPool(size=8), DefragmentPool(size=8))
    assert isinstance(moved, MovePlan)
    assert isinstance(second, MooringsError)
    assert len(world.fleet.move_times) == 1


def test_no_more_is_lost_than_was_allowed():
    world = World(POD)
    scattered(world)
    assert refused(world, DefragmentPool(size=8, cost_max=100.0)) == "room.too_costly"
    assert world.fleet.move_times == ()
    assert isinstance(world.step(DefragmentPool(size=8, cost_max=2_000.0))[0], MovePlan)


def test_what_needs_no_room_or_gets_none_is_refused():
    world = World(POD)
    assert refused(world, DefragmentPool(size=8)) == "room.is_free"
    assert refused(world, DefragmentPool(size=3)) == "claim.size_not_allowed"
    assert refused(world, DefragmentPool(size=8, pool=POD.name.__class__("other"))) == "pool.unknown"
    held = world.ready(4)
    assert refused(world, DefragmentPool(claim=held.id)) == "claim.held"
    assert refused(world, DefragmentPool(claim=held.id.__class__("nobody"))) == "claim.unknown"
    world.ready(4)
    world.ready(4)
    world.end(held)  # 0-3 and 12-15 are free; who is between them resumes from no checkpoint
    assert refused(world, DefragmentPool(size=8)) == "room.not_found"


def test_nobody_is_moved_to_where_another_moves_already():
    world = World(POD)
    scattered(world)
    [moved] = world.step(DefragmentPool(size=8))
    assert isinstance(moved, MovePlan)
    [again] = world.step(DefragmentPool(size=8))
    assert isinstance(again, MooringsError)


def test_who_cannot_be_asked_back_gets_no_room_of_what_is_promised():
    world = World(POD)
    world.step(SetProject(Project(name="lab", shares=(ProjectShare(POD.name, ((4, 1),)),)), None))
    world.step(SetProject(Project(name="guests"), None))
    jobs = [
        world.ready(4, owner=f"local/run-{n}", checkpoint=KEEPS, preemptible=True, project="guests") for n in range(4)
    ]
    for claim in (jobs[0], jobs[2]):
        world.end(claim)
    firm = world.create(8, project="guests")
    error = refusal(world, DefragmentPool(claim=firm.id))
    assert error.code == "room.not_found"
    assert error.detail.endswith("is not preemptible, and blocks there are promised to projects")
    world.end(firm)
    lent = world.create(8, project="guests", preemptible=True)
    assert isinstance(world.step(DefragmentPool(claim=lent.id))[0], MovePlan)
