"""Moves, a stage of a plan: for which claim others are moved, and where to.

A claim is moved for only if enough devices are free but no block of them, and if that costs less than its wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from moorings.core.model.claims import Claim, ClaimId
from moorings.core.model.policy import DefragmentMode
from moorings.core.model.timestamps import DAY_S, SECOND
from moorings.core.model.topology import AnySubset
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.free_map import NO_RELEASE
from moorings.core.scheduling.draft import PlanDraft
from moorings.core.scheduling.relocation import Relocation, find_relocation, is_bypassable, movable_holders


def find_moves(
    draft: PlanDraft, claim: Claim, pools: Iterable[PoolState], asked: Collection[ClaimId], moves_left: int
) -> tuple[Relocation, PoolState] | None:
    """The cheapest way to free a block for a claim, and the pool; None: there is none, or the policy moves no claims.

    Args:
        draft: the plan so far.
        claim: the claim that finds no block.
        pools: the pools to look in.
        asked: holders that already yield or move.
        moves_left: so many claims may still be asked to move.
    """
    mode = draft.policy.defragment
    if mode is DefragmentMode.OFF or (mode is DefragmentMode.ON and moves_left < 1):
        return None
    best: tuple[Relocation, PoolState] | None = None
    for state in pools:
        found = _find_moves_in(draft, claim, state, asked, moves_left)
        if found is not None and (best is None or found.cost < best[0].cost):
            best = (found, state)
    return best


def _find_moves_in(
    draft: PlanDraft, claim: Claim, state: PoolState, asked: Collection[ClaimId], moves_left: int
) -> Relocation | None:
    spec, name, policy = claim.spec, state.pool.name, draft.policy
    if not draft.is_usable(state, spec) or state.free.n_free < spec.size or isinstance(state.pool.topology, AnySubset):
        return None
    suggests = policy.defragment is DefragmentMode.SUGGEST
    if suggests and (name, True) in draft.reserved:
        return None  # suggested for the first pending claim only
    survey = draft.guarantees.survey
    guaranteed = name in survey.maps
    if not draft.windows.fits_counts(claim, name, take=False) or (guaranteed and not spec.preemptible):
        return None
    soonest = draft.release_times(name).earliest_block(spec.size)
    wait_s = DAY_S if soonest is None or soonest[1] >= NO_RELEASE else max(0, soonest[1] - draft.now) / SECOND
    everywhere = survey.everywhere if survey.projects else draft.snapshot.holders()
    holders = movable_holders(everywhere, name, guaranteed=guaranteed, asked=asked)
    most = policy.moves_per_hour if suggests else moves_left
    found = find_relocation(state, spec.size, holders, draft.now, policy.move_s, most)
    return found if found is not None and found.cost < spec.size * wait_s else None


def may_be_passed(draft: PlanDraft, claim: Claim, state: PoolState) -> bool:
    """Whether a claim for which others could be moved lets later claims use what is free in a pool, for now."""
    name = state.pool.name
    passable = name in draft.snapshot.resumable_pools
    return passable and is_bypassable(claim, state, draft.release_times(name), draft.policy, draft.now)
