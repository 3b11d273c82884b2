"""When a claim would start, what would let it start now, and what another policy would change."""

from __future__ import annotations

from itertools import count

from moorings.core.forecast.estimate import HORIZON_S, estimate_start
from moorings.core.forecast.whatif import compare_policies
from moorings.core.model.claims import CheckpointContract, Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.scheduling.explain import list_start_options
from tests.unit.core.worlds import POD, World

HOUR_S = 3600.0


def asked(size: int, **more: object) -> Claim:
    """A claim that nobody has made yet."""
    spec = ClaimSpec(kind="ipu", size=size, gcds=2 if size > 8 else 1, **more)  # type: ignore[arg-type]
    ident = ClaimId("wanted")
    return Claim(
        id=ident, name="wanted", owner="user/bob", subject="bob", spec=spec, state=ClaimState.PENDING,
        arrival=Timestamp(1 << 60),
    )  # fmt: skip


def test_what_fits_starts_now():
    world = World(POD)
    assert estimate_start(world.fleet, Policy(), world.now, asked(8)).starts_at == world.now


def test_a_claim_starts_when_those_before_it_have_run_to_their_limits():
    world = World(POD)
    holders = [world.ready(8, time_limit_s=HOUR_S), world.ready(8, time_limit_s=2 * HOUR_S)]
    ends = [
        add_seconds(world.claim(holder.id).ready_at or world.now, (1 + n) * HOUR_S) for n, holder in enumerate(holders)
    ]
    assert estimate_start(world.fleet, Policy(), world.now, asked(8)).starts_at == ends[0]
    assert estimate_start(world.fleet, Policy(), world.now, asked(16)).starts_at == ends[1]
    waiting = world.create(16, gcds=2, time_limit_s=HOUR_S)
    assert estimate_start(world.fleet, Policy(), world.now, world.claim(waiting.id)).starts_at == ends[1]
    assert estimate_start(world.fleet, Policy(), world.now, asked(8)).starts_at == add_seconds(ends[1], HOUR_S)


def test_nobody_can_say_behind_a_holder_without_a_limit():
    world = World(POD)
    world.ready(16, gcds=2)
    found = estimate_start(world.fleet, Policy(), world.now, asked(8))
    assert found.starts_at is None
    assert found.unknown_reason == "1 claim that holds devices has no time limit"


def test_nobody_can_say_behind_one_that_waits_without_a_limit():
    world = World(POD)
    world.ready(16, gcds=2, time_limit_s=HOUR_S)
    world.create(8)
    found = estimate_start(world.fleet, Policy(), world.now, asked(16))
    assert found.starts_at is None
    assert found.unknown_reason == "1 claim that waits and comes first has no time limit"
    assert estimate_start(world.fleet, Policy(), world.now, asked(8)).starts_at is not None


def test_an_answer_beyond_the_horizon_is_none():
    world = World(POD)
    world.ready(16, gcds=2, time_limit_s=HORIZON_S + HOUR_S)
    assert estimate_start(world.fleet, Policy(), world.now, asked(8)).starts_at is None


def test_once_it_shall_not_go_on_nobody_can_say():
    world = World(POD)
    for _ in range(4):
        world.create(16, gcds=2, time_limit_s=HOUR_S)
    found = estimate_start(world.fleet, Policy(), world.now, asked(8), lambda: False)
    assert (found.starts_at, "too long to tell" in found.unknown_reason) == (None, True)


def test_it_is_asked_whether_to_go_on_again_and_again():
    world = World(POD)
    for _ in range(100):
        world.create(16, gcds=2, time_limit_s=HOUR_S)
    looks = count()
    first = estimate_start(world.fleet, Policy(), world.now, asked(16), lambda: next(looks) >= 0)
    assert next(looks) > 5
    assert first == estimate_start(world.fleet, Policy(), world.now, asked(16))
    assert first.starts_at is not None
    left = iter([True, True])
    assert estimate_start(world.fleet, Policy(), world.now, asked(16), lambda: next(left, False)).starts_at is None


def test_asking_changes_nothing():
    world = World(POD)
    world.ready(8, time_limit_s=HOUR_S)
    world.create(16, gcds=2)
    free = [world.fleet.pools[POD.name].free.find_block(size) for size in (1, 2, 4, 8, 16)]
    before = (dict(world.fleet.claims), list(world.fleet.queue), world.fleet.reserved_blocks)
    estimate_start(world.fleet, Policy(), world.now, asked(8))
    compare_policies(world.fleet, world.now, Policy(), Policy(backfill=False))
    list_start_options(world.fleet, Policy(), world.now, asked(16))
    assert (dict(world.fleet.claims), list(world.fleet.queue), world.fleet.reserved_blocks) == before
    assert [world.fleet.pools[POD.name].free.find_block(size) for size in (1, 2, 4, 8, 16)] == free
    world.step()  # World decides every turn twice, once on a fleet made again from the records


def test_a_smaller_claim_would_start_now():
    world = World(POD)
    world.ready(8)
    world.ready(4)
    [found] = list_start_options(world.fleet, Policy(), world.now, asked(8))
    assert found.message == "it would start now with 4 devices"
    world.ready(4)
    assert list_start_options(world.fleet, Policy(), world.now, asked(8)) == ()


def test_who_would_have_to_move_is_named():
    world = World(POD)
    keeps = CheckpointContract(resumable=True)
    claims = [world.ready(4, owner=f"local/run-{n}", checkpoint=keeps, name=f"job-{n}") for n in range(4)]
    for claim in (claims[0], claims[2]):
        world.end(claim)
    found = {one.code: one for one in list_start_options(world.fleet, Policy(), world.now, asked(8))}
    assert set(found) == {"smaller", "moved"}
    assert found["moved"].claims == (claims[3].id,)  # it lost less: it began later
    assert found["moved"].message.startswith("it would start now if job-3 went on elsewhere")


def test_another_policy_is_compared_claim_by_claim():
    world = World(POD)
    world.ready(8, time_limit_s=HOUR_S)
    first = world.create(16, gcds=2, time_limit_s=HOUR_S)  # the other half is kept for it
    short = world.create(8, owner="local/run-1", time_limit_s=2 * HOUR_S)
    found = {one.claim: one for one in compare_policies(world.fleet, world.now, Policy(), Policy(reserve=False)).claims}
    assert found[short.id].then_at == world.now
    here, there = found[first.id].now_at, found[first.id].then_at
    assert here is not None
    assert there is not None
    assert there > here
    means = compare_policies(world.fleet, world.now, Policy(), Policy(reserve=False)).mean_wait_s(world.now)
    assert means[16][0] < means[16][1]
    assert means[8][2] == 1
