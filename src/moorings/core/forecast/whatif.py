"""What another policy would change: the live queue simulated under both, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from moorings.core.forecast.estimate import HORIZON_S, SIMULATED_TURNS_MAX, simulate_fleet
from moorings.core.forecast.simulation import JobOutcome, Simulation
from moorings.core.model.claims import Claim, ClaimId
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.placement.fleet import Fleet

CLAIMS_MAX: Final = 1_000  # the first of the queue: later claims wait for these
_STEP: Final = 16  # turns between two checks of the time left


@dataclass(frozen=True, slots=True)
class StartComparison:
    """When a pending claim would start under the policy in force, and under the other one; None: unknown."""

    claim: ClaimId
    size: int
    now_at: Timestamp | None
    then_at: Timestamp | None


@dataclass(frozen=True, slots=True)
class YieldCount:
    """How often a claim would be asked to yield and to move under one policy."""

    claim: ClaimId
    yields: int
    moves: int


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """What another policy would change.

    Attributes:
        claims: the first pending claims, in their order.
        yields: how often claims would be asked to yield, under the policy in force and under the other.
        moves: how often claims would be asked to move, likewise.
        yield_counts: which claims would be asked, likewise.
        utilisation: the share of all devices' time in use within ``window_s``, likewise.
        window_s: seconds from now until the last of ``claims`` has started under both, as far as they do.
        is_complete: whether both simulations reached their end; else claims without a start may still start.
    """

    claims: tuple[StartComparison, ...]
    yields: tuple[int, int]
    moves: tuple[int, int]
    yield_counts: tuple[tuple[YieldCount, ...], tuple[YieldCount, ...]] = ((), ())
    utilisation: tuple[float, float] = (0.0, 0.0)
    window_s: float = 0.0
    is_complete: bool = True

    def mean_wait_s(self, now: Timestamp) -> dict[int, tuple[float, float, int]]:
        """By size: the mean wait from now under both, in seconds, of claims that start under both, and their number."""
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


def compare_policies(
    fleet: Fleet, now: Timestamp, policy: Policy, other: Policy, go_on: Callable[[], bool] = lambda: True
) -> PolicyComparison:
    """When pending claims would start, under the policy in force and under another.

    Args:
        fleet: the live fleet; not changed.
        now: start of the simulation.
        policy: the one in force.
        other: the one to try.
        go_on: called between turns; once it returns False, the answer is what is known by then.
    """
    waiting = [claim for _, claim in zip(range(CLAIMS_MAX), fleet.pending_claims(), strict=False)]
    here, there = simulate_fleet(fleet, policy, now), simulate_fleet(fleet, other, now)
    ended = _run_both((here, there), waiting, now, go_on)
    changed = tuple(
        StartComparison(claim.id, claim.spec.size, here.started_at(claim.id), there.started_at(claim.id))
        for claim in waiting
    )
    starts = [at for one in changed for at in (one.now_at, one.then_at) if at is not None]
    window_s = max((at - now for at in starts), default=0) / SECOND
    return PolicyComparison(
        changed,
        (here.yields, there.yields),
        (here.moves, there.moves),
        (_asked(here), _asked(there)),
        (_in_use(here, window_s), _in_use(there, window_s)),
        window_s,
        ended,
    )


def _run_both(both: Sequence[Simulation], waiting: Sequence[Claim], now: Timestamp, go_on: Callable[[], bool]) -> bool:
    """Simulate both queues in alternation until all of these have started or no job ends; whether that was reached.

    They alternate so that about the same is known of both when the time is up.
    """
    horizon, ended = Timestamp(now + HORIZON_S * SECOND), True
    playing_on = [(played, list(waiting)) for played in both if waiting]
    while playing_on:
        if not go_on():
            return False
        still = []
        for played, left in playing_on:
            bound = played.turns + _STEP
            played.run_until(horizon, bound)
            unstarted = [claim for claim in left if played.courses[claim.id].started_s is None]
            if not unstarted or played.turns <= bound:
                continue
            if played.turns > SIMULATED_TURNS_MAX:
                ended = False
            else:
                still.append((played, unstarted))
        playing_on = still
    return ended


def _asked(played: Simulation) -> tuple[YieldCount, ...]:
    courses = sorted(played.courses.items())
    return tuple(YieldCount(ident, it.yields, it.moves) for ident, it in courses if it.yields or it.moves)


def _in_use(played: Simulation, window_s: float) -> float:
    """The share of device time in use within the window; at this moment, if the window is empty."""
    n_devices = sum(state.pool.topology.n_devices for state in played.pools.values())
    used = sum(_used(course, window_s, played.policy.move_s) for course in played.courses.values())
    return used / (n_devices * (window_s or 1.0)) if n_devices else 0.0


def _used(course: JobOutcome, window_s: float, move_s: float) -> float:
    """Device-seconds of a claim within the window; a claim that yielded did not run all of its time."""
    job, started_s = course.job, course.started_s
    if started_s is None or started_s > window_s:
        return 0.0
    if not window_s:
        return float(job.size)
    until_s = window_s if course.ended_s is None else min(course.ended_s, window_s)
    most_s = job.runs_s + move_s * (course.yields + course.moves) if course.yields and job.limit_s else window_s
    return job.size * min(until_s - started_s, most_s)
