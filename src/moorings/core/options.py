"""What would let a pending claim start now: the same plan as serves it, with one thing changed (law 8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from moorings.core.ageing import ageing_cutoff
from moorings.core.claims import Claim, ClaimId
from moorings.core.errors import MooringsError
from moorings.core.explain import find_limit_reason, is_guaranteed_to_others, list_holders
from moorings.core.fleet import Fleet, PoolState
from moorings.core.instants import Timestamp
from moorings.core.placement import savepoint
from moorings.core.policy import Policy
from moorings.core.room import find_relocation
from moorings.core.serving import eligible_pools
from moorings.core.topology import AnySubset

MOVES_SHOWN_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class StartOption:
    """One way to start now: a stable code, and a sentence."""

    code: str
    message: str
    claims: tuple[ClaimId, ...] = ()


def list_start_options(fleet: Fleet, policy: Policy, now: Timestamp, claim: Claim) -> tuple[StartOption, ...]:
    """The options, the least trouble first; empty: it can only wait."""
    try:
        able = [state for state in eligible_pools(claim.spec, fleet.pools) if not state.problem]
    except MooringsError:
        return ()
    return (
        *_smaller(fleet, claim, able, ageing_cutoff(policy, now)),
        *_relocation_options(fleet, policy, now, claim, able),
    )


def _smaller(fleet: Fleet, claim: Claim, able: list[PoolState], by: Timestamp | None) -> Iterator[StartOption]:
    """With fewer devices, outside the blocks reserved for earlier claims."""
    best = 0
    for state in able:
        with savepoint(state.free) as only:
            for kept in fleet.reservations:
                if kept.pool == state.pool.name and kept.claim != claim.id and len(kept.block):
                    for part in state.free.free_within(kept.block):
                        only.take(part)
            sizes = sorted((size for size in state.pool.topology.sizes if best < size < claim.spec.size), reverse=True)
            found = (size for size in sizes if state.free.find(size) and _is_allowed(fleet, claim, state, size, by))
            best = max(best, next(found, 0))
    if best:
        yield StartOption("smaller", f"it would start now with {best} device{'s' if best != 1 else ''}")


def _is_allowed(fleet: Fleet, claim: Claim, state: PoolState, size: int, by: Timestamp | None) -> bool:
    """Whether neither limits nor guarantees of others bar it from so many devices."""
    smaller = replace(claim, spec=replace(claim.spec, size=size))
    return find_limit_reason(fleet, smaller, by) is None and not is_guaranteed_to_others(fleet, smaller, state)


def _relocation_options(
    fleet: Fleet, policy: Policy, now: Timestamp, claim: Claim, able: list[PoolState]
) -> Iterator[StartOption]:
    """With other claims moved, which ones: suggested whether or not the policy moves claims."""
    size = claim.spec.size
    for state in able:
        if not size or isinstance(state.pool.topology, AnySubset) or state.free.find(size) is not None:
            continue
        guaranteed = bool(fleet.projects.cells(state.pool.name))
        tenants = [
            replace(one, movable=False) if guaranteed and one.is_firm else one
            for one in list_holders(fleet)
            if one.pool == state.pool.name
        ]
        room = find_relocation(state, size, tenants, now, policy.move_s, MOVES_SHOWN_MAX)
        if room is not None:
            moved = tuple(tenant.claim for tenant, _ in room.moves)
            names = ", ".join(fleet.claims[ident].name for ident in moved)
            goes = "went on elsewhere" if len(moved) == 1 else "all went on elsewhere"
            text = f"it would start now if {names} {goes}, which would lose {room.cost / 60:.0f} device-minutes"
            yield StartOption("moved", text, moved)
            return
