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

from moorings.core.forecast.simulation import Simulation
from moorings.core.model.claims import Claim, ClaimState
from moorings.core.model.machine import MACHINE_KIND
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import Block
from moorings.core.placement.fleet import Fleet, expected_release
from moorings.core.placement.free_map import NO_RELEASE
from moorings.core.placement.plans import holder_from_claim

HORIZON_S: Final = 30 * 86_400
SIMULATED_TURNS_MAX: Final = 4_000  # bounds the time of one estimate
_STEP: Final = 16  # turns between two checks of the time left


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """The estimated start of a claim.

    Attributes:
        starts_at: the start; the turn's time if it can start now; None: unknown.
        unknown_reason: why it is unknown, in a sentence; else empty.
    """

    starts_at: Timestamp | None
    unknown_reason: str = ""


def estimate_start(
    fleet: Fleet, policy: Policy, now: Timestamp, wanted: Claim, should_continue: Callable[[], bool] = lambda: True
) -> StartEstimate:
    """Estimate when ``wanted`` would start; if it is not in the fleet, it comes last among its equals.

    Args:
        fleet: the live fleet; not changed.
        policy: the one in force.
        now: start of the simulation.
        wanted: a pending claim.
        should_continue: called between turns; the estimate is unknown once it returns False.
    """
    played = simulate_fleet(fleet, policy, now)
    if wanted.id not in fleet.claims:
        played.add_pending(wanted)
    horizon = Timestamp(now + HORIZON_S * SECOND)
    while True:
        bound = min(played.turns + _STEP, SIMULATED_TURNS_MAX)
        if not should_continue():
            return StartEstimate(None, "the queue is too long to tell in the time that an answer may take")
        starts = played.run_until_started(wanted.id, horizon, bound)
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
        name: replace(
            state,
            out_of_service=dict(state.out_of_service),
            foreign_blocks=dict(state.foreign_blocks),
            used_resources=dict(state.used_resources),
        )
        for name, state in fleet.pools.items()
    }
    return still


def simulate_fleet(fleet: Fleet, policy: Policy, now: Timestamp) -> Simulation:
    """A simulation that begins now, from the live fleet."""
    played = Simulation((state.pool for state in fleet.pools.values()), policy, fleet.projects, now)
    for name, state in fleet.pools.items():
        mine = played.pools[name]
        mine.unreachable_reason, mine.out_of_service, mine.foreign_blocks = (
            state.unreachable_reason,
            state.out_of_service,
            state.foreign_blocks,
        )
        mine.used_resources = dict(state.used_resources)
        for index in sorted(state.unusable):
            alone = Block.single(index)
            if mine.free.is_free(alone):
                mine.free.allocate(alone)
            mine.release_times.set_release(alone, state.release_times.release_time(index))
    for partition in fleet.partitions.values():
        claim = fleet.claims.get(partition.claim)
        if claim is None or claim.partition != partition.id:
            continue
        until = expected_release(partition, claim)
        if until <= now:  # it should have ended, or its devices are being freed
            until = Timestamp(now + SECOND) if claim.state is ClaimState.RELEASING else NO_RELEASE
        played.add_running(claim, holder_from_claim(claim, partition.pool, partition.block), until)
    for claim in fleet.claims.values():
        if claim.pool is not None and claim.spec.kind == MACHINE_KIND and claim.pool in fleet.pools:
            limit_s, begun = claim.spec.time_limit_s, claim.ready_at
            until = NO_RELEASE if limit_s is None or begun is None else add_seconds(begun, limit_s)
            until = until if until > now else NO_RELEASE
            played.add_running(claim, holder_from_claim(claim, claim.pool, Block(())), until)
    for claim in fleet.pending_claims():
        played.add_pending(claim)
    played.set_usage(fleet.usage)
    return played
