"""Room on demand: which claims an admin's order has go on elsewhere, whatever the policy does by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from moorings.core.claims import Claim, ClaimId, ClaimSpec, ClaimState, Spot
from moorings.core.errors import MooringsError
from moorings.core.fleet import PoolState, Reservation
from moorings.core.inputs import MakeRoom
from moorings.core.instants import Instant
from moorings.core.placement import trial
from moorings.core.plans import Moves, Reclaim, Scene
from moorings.core.policy import Policy
from moorings.core.room import Room, room_for
from moorings.core.serving import pools_for

NOBODY = ClaimId("")  # room that is made for no claim


def moves_for(
    given: MakeRoom,
    claim: Claim | None,
    scene: Scene,
    reservations: Iterable[Reservation],
    policy: Policy,
    now: Instant,
    moves_max: int,
) -> Moves:
    """Who would go where so that the room that was ordered becomes free, at the lowest cost that was found.

    Args:
        given: the order.
        claim: the one that it names, if it names one and there is one.
        scene: pools, tenants, projects and those that move already.
        reservations: what is kept for others; nobody is moved there, and no room made of it.
        policy: tells what a move costs.
        now: what is lost is reckoned to it.
        moves_max: at most so many claims are moved.

    Raises:
        MooringsError: ``claim.unknown``, ``claim.held``, ``claim.*``, ``pool.unknown``, ``kind.unknown``,
            ``room.is_free``, ``room.not_found``, ``room.too_costly``.
    """
    states, size = _where(given, claim, scene)
    kept = [(one.pool, one.block) for one in reservations if given.claim is None or one.claim != given.claim]
    kept += [(one.kept.pool, one.kept.block) for one in scene.kept if one.kept is not None]
    found: list[tuple[Room, PoolState]] = []
    for state in states:
        if state.problem or _would_break_a_promise(claim, state, scene):
            continue
        with trial(state.free) as only:
            for block in (block for pool, block in kept if pool == state.pool.name):
                for part in state.free.free_within(block):
                    only.take(part)
            if state.free.find(size) is not None:
                detail = f"a block of {size} devices in {state.pool.name} is free already"
                raise MooringsError("room.is_free", detail, hint="nobody has to move for it")
            room = _room(state, size, scene, policy, now, moves_max)
        if room is not None:
            found.append((room, state))
    if not found:
        where = " and ".join(state.pool.name for state in states) or "any pool"
        raise MooringsError(
            "room.not_found",
            f"no room for {size} devices can be made in {where}",
            hint=f"enough devices must be free; {moves_max} more claims may be moved in this hour, and only those that "
            "go on from a checkpoint",
        )
    room, state = min(found, key=lambda pair: pair[0].cost)
    if given.cost_max is not None and room.cost > given.cost_max:
        raise MooringsError(
            "room.too_costly",
            f"it would lose {room.cost:.0f} device-seconds, and at most {given.cost_max:.0f} were allowed",
            hint="look at it again with --dry-run",
        )
    by, name = given.claim or NOBODY, state.pool.name
    moves = tuple(Reclaim(tenant.claim, by, Spot(name, block)) for tenant, block in room.moves)
    return Moves(by, Spot(name, room.block), moves, room.cost)


def _where(given: MakeRoom, claim: Claim | None, scene: Scene) -> tuple[Sequence[PoolState], int]:
    """The pools in which the room may be, and its size."""
    if given.claim is None:
        if given.pool is not None and given.pool not in scene.pools:
            raise MooringsError("pool.unknown", f"there is no pool {given.pool!r}", hint="moor get pools")
        states = [state for name, state in scene.pools.items() if given.pool in (None, name)]
        able = [state for state in states if given.size in state.pool.topology.sizes]
        if not able:
            raise MooringsError("claim.size_not_allowed", f"no pool has blocks of {given.size} devices")
        return able, given.size
    if claim is None or claim.ended:
        raise MooringsError("claim.unknown", f"no claim {given.claim!r} waits", hint="moor get claims")
    if claim.state is not ClaimState.PENDING:
        detail = f"claim {claim.id} is {claim.state}: it does not wait any more"
        raise MooringsError("claim.held", detail, hint="room is made for claims that wait")
    spec: ClaimSpec = claim.spec
    if not spec.size:
        raise MooringsError("room.not_found", f"claim {claim.id} asks for no devices", hint="moor explain claim")
    return [state for state in pools_for(spec, scene.pools) if given.pool in (None, state.pool.name)], spec.size


def _would_break_a_promise(claim: Claim | None, state: PoolState, scene: Scene) -> bool:
    """Whether the claim could not enter the room: it cannot be asked back, and the pool's blocks are promised."""
    return claim is not None and not claim.spec.preemptible and bool(scene.projects.cells(state.pool.name))


def _room(state: PoolState, size: int, scene: Scene, policy: Policy, now: Instant, moves_max: int) -> Room | None:
    name = state.pool.name
    guaranteed = bool(scene.projects.cells(name))  # who is in a cell, or cannot be asked, stays where he was counted
    tenants = [
        replace(one, movable=False) if guaranteed and one.is_firm else one
        for one in scene.tenants()
        if one.pool == name
    ]
    return room_for(state, size, tenants, now, policy.move_s, moves_max)
