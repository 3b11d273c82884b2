"""What another policy would change: starts, who is asked, how full the pools are, and an end to the work."""

from __future__ import annotations

import pytest

from moorings.core.forecast.whatif import YieldCount, compare_policies
from moorings.core.model.claims import CheckpointContract, ClaimId
from moorings.core.model.policy import DefragmentMode, Policy
from tests.unit.core.worlds import POD, World

HOUR_S = 3600.0


def scattered(world: World) -> list[ClaimId]:
    """Eight devices are free, but no block of them, and somebody waits for one; who is in the way."""
    keeps = CheckpointContract(resumable=True)
    jobs = [
        world.ready(4, owner=f"local/run-{n}", checkpoint=keeps, name=f"job-{n}", time_limit_s=HOUR_S) for n in range(4)
    ]
    for claim in (jobs[0], jobs[2]):
        world.end(claim)
    return [jobs[1].id, jobs[3].id]


def test_who_would_move_is_named_and_who_waits_starts_at_once():
    world = World(POD)
    there = scattered(world)
    wanted = world.create(8, time_limit_s=HOUR_S)
    found = compare_policies(world.fleet, world.now, Policy(), Policy(defragment=DefragmentMode.ON))
    [changed] = found.claims
    assert (changed.claim, changed.then_at) == (wanted.id, world.now)
    assert changed.now_at is not None
    assert changed.now_at > world.now
    assert (found.moves, found.yields) == ((0, 1), (0, 0))
    assert found.yield_counts[0] == ()
    [moved] = found.yield_counts[1]
    assert moved in [YieldCount(ident, 0, 1) for ident in there]


def test_utilisation_is_of_the_time_until_the_last_has_started():
    world = World(POD)
    world.ready(8, time_limit_s=HOUR_S)
    world.create(16, gcds=2, time_limit_s=HOUR_S)  # half of the pool is kept for it for an hour
    world.create(8, time_limit_s=2 * HOUR_S)
    found = compare_policies(world.fleet, world.now, Policy(), Policy(reserve=False))
    assert found.window_s == pytest.approx(2 * HOUR_S, rel=0.01)
    assert found.utilisation[0] == pytest.approx(0.75, rel=0.01)
    assert found.utilisation[1] == pytest.approx(0.75, rel=0.01)
    assert found.is_complete


def test_where_nobody_waits_it_is_the_utilisation_of_now():
    world = World(POD)
    world.ready(4, time_limit_s=HOUR_S)
    found = compare_policies(world.fleet, world.now, Policy(), Policy())
    assert (found.claims, found.utilisation, found.window_s, found.is_complete) == ((), (0.25, 0.25), 0.0, True)


def test_who_has_no_more_time_gets_what_is_known_by_then():
    world = World(POD)
    world.ready(16, gcds=2, time_limit_s=HOUR_S)
    world.create(8, time_limit_s=HOUR_S)
    found = compare_policies(world.fleet, world.now, Policy(), Policy(), lambda: False)
    assert (found.claims[0].now_at, found.claims[0].then_at, found.is_complete) == (None, None, False)
