"""Defragmentation on demand: which claims an admin's order moves to free a block, whatever the policy does itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PoolBlock
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import DefragmentPool
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import Timestamp
from moorings.core.placement.eligibility import eligible_pools
from moorings.core.placement.fleet import PoolState, ReservedBlock
from moorings.core.placement.free_map import savepoint
from moorings.core.placement.plans import MovePlan, Reclaim, SchedulingSnapshot
from moorings.core.scheduling.relocation import Relocation, find_relocation, movable_holders

NO_CLAIM = ClaimId("")  # a block freed for no claim
POOLS_SHOWN_MAX: Final = 3


def plan_defragmentation(
    given: DefragmentPool,
    claim: Claim | None,
    scene: SchedulingSnapshot,
    reservations: Iterable[ReservedBlock],
    policy: Policy,
    now: Timestamp,
    moves_max: int,
) -> MovePlan:
    """Which claims to move, and where, so that the ordered block becomes free; the cheapest plan found.

    Args:
        given: the order.
        claim: the claim that it names, if it names one and that exists.
        scene: pools, holders, projects and claims that move already.
        reservations: blocks reserved for others; no claim is moved there, and they are not part of the freed block.
        policy: gives the cost of a move.
        now: lost work is counted up to then.
        moves_max: move at most so many claims.

    Raises:
        MooringsError: ``claim.unknown``, ``claim.held``, ``claim.*``, ``pool.unknown``, ``kind.unknown``,
            ``room.is_free``, ``room.not_found``, ``room.too_costly``.
    """
    states, size = _candidate_pools(given, claim, scene)
    kept = [(one.pool, one.block) for one in reservations if given.claim is None or one.claim != given.claim]
    kept += [(one.kept.pool, one.kept.block) for one in scene.moving_claims if one.kept is not None]
    found: list[tuple[Relocation, PoolState]] = []
    lacks: list[tuple[str, str]] = []
    for state in states:
        lack = _pool_obstacle(claim, state, scene)
        if lack is not None:
            lacks.append(lack)
            continue
        free = state.free.n_free
        with savepoint(state.free) as only:
            for block in (block for pool, block in kept if pool == state.pool.name and len(block)):
                for part in state.free.free_within(block):
                    only.allocate(part)
            if state.free.find_block(size) is not None:
                detail = f"a block of {size} devices in {state.pool.name} is free already"
                raise MooringsError("room.is_free", detail, hint="nobody has to move for it")
            left = state.free.n_free
            name = state.pool.name
            holders = movable_holders(scene.holders(), name, guaranteed=bool(scene.projects.guaranteed_blocks(name)))
            room = find_relocation(state, size, holders, now, policy.move_s, moves_max)
        if room is not None:
            found.append((room, state))
        else:
            lacks.append(_explain_shortage(state, size, free, left, policy, moves_max))
    if not found:
        raise _not_found(size, states, lacks)
    room, state = min(found, key=lambda pair: pair[0].cost)
    if given.cost_max is not None and room.cost > given.cost_max:
        raise MooringsError(
            "room.too_costly",
            f"it would lose {room.cost:.0f} device-seconds, and at most {given.cost_max:.0f} were allowed",
            hint="look at it again with --dry-run",
        )
    by, name = given.claim or NO_CLAIM, state.pool.name
    moves = tuple(Reclaim(tenant.claim, by, PoolBlock(name, block)) for tenant, block in room.moves)
    return MovePlan(by, PoolBlock(name, room.block), moves, room.cost)


def _candidate_pools(
    given: DefragmentPool, claim: Claim | None, scene: SchedulingSnapshot
) -> tuple[Sequence[PoolState], int]:
    """The pools that may provide the block, and its size."""
    if given.claim is None:
        if given.pool is not None and given.pool not in scene.pools:
            raise MooringsError("pool.unknown", f"there is no pool {given.pool!r}", hint="moor get pools")
        states = [state for name, state in scene.pools.items() if given.pool in (None, name)]
        able = [state for state in states if given.size in state.pool.topology.sizes]
        if not able:
            where = f"pool {given.pool!r} has no" if given.pool is not None else "no pool has"
            raise MooringsError(
                "claim.size_not_allowed",
                f"{where} blocks of {given.size} devices",
                hint=_sizes_hint(given.size, states),
            )
        return able, given.size
    if claim is None or claim.is_ended:
        raise MooringsError("claim.unknown", f"no claim {given.claim!r} waits", hint="moor get claims")
    if claim.state is not ClaimState.PENDING:
        detail = f"claim {claim.id} is {claim.state}: it does not wait any more"
        raise MooringsError("claim.held", detail, hint="room is made for claims that wait")
    spec: ClaimSpec = claim.spec
    if not spec.size:
        raise MooringsError("room.not_found", f"claim {claim.id} asks for no devices", hint="moor explain claim")
    return [state for state in eligible_pools(spec, scene.pools) if given.pool in (None, state.pool.name)], spec.size


def _sizes_hint(size: int, states: Sequence[PoolState]) -> str:
    known: dict[str, list[str]] = {}
    for state in states:
        reason = state.pool.topology.ineligible_reason(max(size, 0), size)
        if reason is not None:
            known.setdefault(reason.hint, []).append(state.pool.name)
    hints = [hint if len(known) == 1 else f"in {names[0]} {hint}" for hint, names in known.items()]
    return "; ".join(hints[:POOLS_SHOWN_MAX]) or "moor get pools"


def _pool_obstacle(claim: Claim | None, state: PoolState, scene: SchedulingSnapshot) -> tuple[str, str] | None:
    """Why a pool cannot provide the block, and what to do; None: it can."""
    if state.unreachable_reason:
        return "its driver does not answer", f"see 'moor describe pool {state.pool.name}'"
    if claim is not None and not claim.spec.preemptible and scene.projects.guaranteed_blocks(state.pool.name):
        why = f"{claim.name} is not preemptible, and blocks there are promised to projects"
        return why, "only who can be asked to yield may borrow what others are promised"
    return None


def _explain_shortage(
    state: PoolState, size: int, free: int, left: int, policy: Policy, moves_max: int
) -> tuple[str, str]:
    """Why no block could be freed in a pool, and what to do.

    Args:
        state: the pool.
        size: devices needed.
        free: free devices there.
        left: those of them that are not reserved.
        policy: gives the number of moves in an hour.
        moves_max: moves left in this hour.
    """
    if left < size:
        kept = f" ({free - left} of them are kept for others)" if left < free else ""
        detail = f"{free} of {state.pool.topology.n_devices} are free{kept}, {size} are needed"
        return detail, "wait until more claims end, or ask for a smaller block"
    if moves_max < 1:
        detail = f"as many claims as may be moved in an hour were moved ({policy.moves_per_hour})"
        return detail, "try again later, or raise moves_per_hour of the policy"
    more = "1 more claim" if moves_max == 1 else f"{moves_max} more claims"
    return (
        f"{left} of {state.pool.topology.n_devices} are free, but those in the way cannot all go on elsewhere",
        f"only claims that go on from a checkpoint are moved, and {more} in this hour",
    )


def _not_found(size: int, states: Sequence[PoolState], lacks: Sequence[tuple[str, str]]) -> MooringsError:
    reasons = [f"{state.pool.name}: {why}" for state, (why, _) in zip(states, lacks, strict=True)]
    if len(reasons) > POOLS_SHOWN_MAX:
        reasons = [*reasons[:POOLS_SHOWN_MAX], f"and so on in {len(reasons) - POOLS_SHOWN_MAX} more"]
    return MooringsError(
        "room.not_found",
        f"no room for {size} devices can be made in {'; '.join(reasons) or 'any pool'}",
        hint="; ".join(list(dict.fromkeys(hint for _, hint in lacks))[:POOLS_SHOWN_MAX]) or "moor get pools",
    )
