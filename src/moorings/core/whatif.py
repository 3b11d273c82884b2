"""What another policy would change: the live queue played on under both, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from moorings.core.claims import ClaimId
from moorings.core.fleet import Fleet
from moorings.core.forecast import HORIZON_S, TURNS_MAX, playing
from moorings.core.instants import SECOND, Instant
from moorings.core.policy import Policy

CLAIMS_MAX: Final = 1_000  # the first of the queue: those behind them wait for these


@dataclass(frozen=True, slots=True)
class Changed:
    """When a waiting claim would start under the policy in force, and under the other one; None: nobody can say."""

    claim: ClaimId
    size: int
    now_at: Instant | None
    then_at: Instant | None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What another policy would change.

    Attributes:
        claims: the first that wait, in their order.
        yields: claims that would be asked to yield, under the policy in force and under the other.
        moves: claims that would be asked to move, likewise.
    """

    claims: tuple[Changed, ...]
    yields: tuple[int, int]
    moves: tuple[int, int]

    def mean_wait_s(self, now: Instant) -> dict[int, tuple[float, float, int]]:
        """By size: the mean wait from now under both, in seconds, of those that start under both, and how many."""
        found: dict[int, list[tuple[int, int]]] = {}
        for one in self.claims:
            if one.now_at is not None and one.then_at is not None:
                found.setdefault(one.size, []).append((one.now_at - now, one.then_at - now))
        return {
            size: (_mean(here for here, _ in waits), _mean(there for _, there in waits), len(waits))
            for size, waits in sorted(found.items())
        }


def _mean(waits: Iterable[int]) -> float:
    known = list(waits)
    return sum(known) / len(known) / SECOND


def what_if(fleet: Fleet, now: Instant, policy: Policy, other: Policy) -> WhatIf:
    """When those who wait would start, under the policy in force and under another."""
    waiting = [claim for _, claim in zip(range(CLAIMS_MAX), fleet.waiting(), strict=False)]
    outcomes = []
    for one in (policy, other):
        played = playing(fleet, one, now)
        played.play_on(Instant(now + HORIZON_S * SECOND), TURNS_MAX)
        outcomes.append(played)
    here, there = outcomes
    changed = (
        Changed(claim.id, claim.spec.size, here.started_at(claim.id), there.started_at(claim.id)) for claim in waiting
    )
    return WhatIf(tuple(changed), (here.yields, there.yields), (here.moves, there.moves))
