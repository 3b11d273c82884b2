"""Estimate when a claim would start: simulate the live queue, with every job running to its time limit.

An estimate is the latest start in the present situation. Jobs that end early bring it forward; only claims that are
served first and come later (a higher priority, a guarantee) can delay it. There is no estimate if a claim ahead has no
time limit.
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
SIMULATED_TURNS_MAX: Final = 4_000  # bounds the time of one estimate
_STEP: Final = 16  # turns between two checks of the time left


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """The estimated start of a claim.

    Attributes:
        starts_at: the start; the turn's time if it can start now; None: unknown.
        why: why it is unknown, in a sentence; else empty.
    """

    starts_at: Timestamp | None
    why: str = ""


def estimate_start(
    fleet: Fleet, policy: Policy, now: Timestamp, wanted: Claim, go_on: Callable[[], bool] = lambda: True
) -> StartEstimate:
    """Estimate when ``wanted`` would start; if it is not in the fleet, it comes last among its equals.

    Args:
        fleet: the live fleet; not changed.
        policy: the one in force.
        now: start of the simulation.
        wanted: a pending claim.
        go_on: called between turns; the estimate is unknown once it returns False.
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
        text = "1 claim that holds devices has" if held == 1 else f"{held} claims that hold devices have"
        return StartEstimate(None, f"{text} no time limit")
    first = sum(course.started_s is not None and course.job.limit_s is None for course in played.courses.values())
    if first:
        text = (
            "1 claim that waits and comes first has" if first == 1 else f"{first} claims that wait and come first have"
        )
        return StartEstimate(None, f"{text} no time limit")
    return StartEstimate(None, f"not within {HORIZON_S // 86_400} days, or too much comes first")


def copy_fleet(fleet: Fleet) -> Fleet:
    """A copy of the fleet for reading while the original changes: it copies what an estimate reads."""
    still = copy(fleet)
    still.claims, still.partitions = dict(fleet.claims), dict(fleet.partitions)
    still.queue, still.usage = list(fleet.queue), dict(fleet.usage)
    still.pools = {
        name: replace(state, out=dict(state.out), foreign=dict(state.foreign), used=dict(state.used))
        for name, state in fleet.pools.items()
    }
    return still


def simulate_fleet(fleet: Fleet, policy: Policy, now: Timestamp) -> Simulation:
    """A simulation that begins now, from the live fleet."""
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
