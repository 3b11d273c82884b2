"""When a claim would start: the live queue played on, with everybody running to their time limits.

An estimate is the latest start, as things stand: jobs that end early bring it forward, and only claims that come first
later (a higher priority, a guarantee) can push it back. Where somebody in the way has no time limit there is no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

from moorings.core.claims import Claim, ClaimState
from moorings.core.fleet import Fleet, expected_release
from moorings.core.instants import SECOND, Timestamp
from moorings.core.placement import NO_RELEASE
from moorings.core.plans import holder_from_claim
from moorings.core.policy import Policy
from moorings.core.simulate import Simulation
from moorings.core.topology import Block

HORIZON_S: Final = 30 * 86_400
SIMULATED_TURNS_MAX: Final = 4_000  # bounds the time that one answer may take
_STEP: Final = 16  # turns between two looks whether to go on


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """When a claim would start.

    Attributes:
        starts_at: the turn's time: now; None: nobody can say.
        why: why nobody can say, in a sentence; empty if somebody can.
    """

    starts_at: Timestamp | None
    why: str = ""


def estimate_start(
    fleet: Fleet, policy: Policy, now: Timestamp, wanted: Claim, go_on: Callable[[], bool] = lambda: True
) -> StartEstimate:
    """When ``wanted`` would start; it need not be in the fleet, and then comes last among its equals.

    Args:
        fleet: as it is now; it is left as it is.
        policy: the one in force.
        now: from when on it is played.
        wanted: a claim that waits.
        go_on: asked between turns; once it says no, nobody can say.
    """
    played = simulate_fleet(fleet, policy, now)
    if wanted.id not in fleet.claims:
        played.wait_for(wanted)
    horizon = Timestamp(now + HORIZON_S * SECOND)
    while True:
        bound = min(played.turns + _STEP, SIMULATED_TURNS_MAX)
        if not go_on():
            return StartEstimate(None, "the queue is too long to tell in the time that an answer may take")
        starts = played.until_started(wanted.id, horizon, bound)
        if starts is not None:
            return StartEstimate(starts)
        if played.turns <= bound or bound == SIMULATED_TURNS_MAX:
            break
    held = sum(claim.spec.time_limit_s is None for claim in fleet.claims.values() if claim.partition is not None)
    if held:
        told = "1 claim that holds devices has" if held == 1 else f"{held} claims that hold devices have"
        return StartEstimate(None, f"{told} no time limit")
    first = sum(course.started_s is not None and course.job.limit_s is None for course in played.courses.values())
    if first:
        told = (
            "1 claim that waits and comes first has" if first == 1 else f"{first} claims that wait and come first have"
        )
        return StartEstimate(None, f"{told} no time limit")
    return StartEstimate(None, f"not within {HORIZON_S // 86_400} days, or too much comes first")


def copy_fleet(fleet: Fleet) -> Fleet:
    """The fleet as it is now, to be read here while the other one goes on: what an estimate looks at is copied."""
    still = copy(fleet)
    still.claims, still.partitions = dict(fleet.claims), dict(fleet.partitions)
    still.queue, still.usage = list(fleet.queue), dict(fleet.usage)
    still.pools = {
        name: replace(state, out=dict(state.out), foreign=dict(state.foreign), used=dict(state.used))
        for name, state in fleet.pools.items()
    }
    return still


def simulate_fleet(fleet: Fleet, policy: Policy, now: Timestamp) -> Simulation:
    """The live fleet as a simulation that begins now."""
    played = Simulation((state.pool for state in fleet.pools.values()), policy, fleet.projects, now)
    for name, state in fleet.pools.items():
        mine = played.pools[name]
        mine.problem, mine.out, mine.foreign = state.problem, state.out, state.foreign
        mine.used = dict(state.used)
        taken = {*state.out, *(index for block in state.foreign.values() for index in block)}
        for index in sorted(taken):
            alone = Block(range(index, index + 1))
            if mine.free.is_free(alone):
                mine.free.take(alone)
            mine.ends.put(alone, state.ends.until(index))
    for partition in fleet.partitions.values():
        claim = fleet.claims.get(partition.claim)
        if claim is None or claim.partition != partition.id:
            continue
        until = expected_release(partition, claim)
        if until <= now:  # it should have ended, or its devices are being freed
            until = Timestamp(now + SECOND) if claim.state is ClaimState.RELEASING else NO_RELEASE
        played.take_in(claim, holder_from_claim(claim, partition.pool, partition.block), until)
    for claim in fleet.waiting():
        played.wait_for(claim)
    played.use(fleet.usage)
    return played
