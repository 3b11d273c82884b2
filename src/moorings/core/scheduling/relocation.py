"""Relocation: which claims would have to move so that a block becomes free, and what that would lose.

It applies if enough devices are free, but no block of them. Candidates are the blocks of that size whose holders are
all smaller than it and can all be moved; the cheapest dozen are tried, with best-fit places outside for their holders.
If none of them works, all movable holders are packed again, largest first: power-of-two sizes pack without waste, so
without immovable holders this always succeeds (Coffman, Garey and Johnson 1987).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from moorings.core.model.claims import Claim, ClaimId
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.free_map import NO_RELEASE, OUT_OF_SERVICE, FreeMap, free_map_for, savepoint
from moorings.core.placement.plans import Holder
from moorings.core.placement.release_times import ReleaseTimes

CANDIDATES_MAX = 12


@dataclass(frozen=True, slots=True)
class Relocation:
    """A block that could be freed: which holders move where, and the device-seconds lost."""

    block: Block
    moves: tuple[tuple[Holder, Block], ...]
    cost: float


def find_relocation(
    state: PoolState, size: int, tenants: Iterable[Holder], now: Timestamp, move_s: float, moves_max: int
) -> Relocation | None:
    """The cheapest way found to free a block of ``size`` in a pool; None: none was found.

    Args:
        state: the pool; unusable devices are taken in its free map, which is unchanged on return.
        size: devices.
        tenants: the holders in this pool.
        now: lost work is counted up to then.
        move_s: the cost of a move beside the work since the last checkpoint, in seconds.
        moves_max: move at most so many claims.
    """
    topology = state.pool.topology
    if not isinstance(topology, PowerOfTwo | Catalogue) or state.free.n_free < size or moves_max < 1:
        return None
    costs = [(tenant, _cost(tenant, now, move_s)) for tenant in tenants]
    best: Relocation | None = None
    for cost, block, inside in _candidates(state, size, costs)[:CANDIDATES_MAX]:
        if best is not None and cost >= best.cost:
            break
        if len(inside) <= moves_max:
            found = _relocate_holders(state, block, inside)
            if found is not None:
                best = Relocation(block, found, cost)
    if best is None and isinstance(topology, PowerOfTwo):
        best = _repack(state, topology, size, costs, moves_max)
    return best


def movable_holders(
    holders: Iterable[Holder], pool: PoolName, *, guaranteed: bool, asked: Collection[ClaimId] = ()
) -> list[Holder]:
    """The holders of a pool as ``find_relocation`` needs them: those that have to stay are not movable.

    Args:
        holders: in any pool.
        pool: the pool.
        guaranteed: it has guarantees: a holder in a guaranteed block, or not preemptible, must stay where it counts.
        asked: holders that already yield for another claim.
    """
    return [
        replace(one, is_movable=False) if one.claim in asked or (guaranteed and one.is_firm) else one
        for one in holders
        if one.pool == pool
    ]


def _cost(tenant: Holder, now: Timestamp, move_s: float) -> float:
    return len(tenant.block) * move_s + tenant.lost_device_s(now)


def _candidates(
    state: PoolState, size: int, costs: Sequence[tuple[Holder, float]]
) -> list[tuple[float, Block, list[Holder]]]:
    """Blocks whose holders can all be moved, the cheapest first."""
    topology = state.pool.topology
    at: dict[int, list[int]] = {}  # numbers of blocks in a catalogue, by device
    if isinstance(topology, Catalogue):
        blocks = [block for block in topology.blocks if len(block) == size]
        for number, block in enumerate(blocks):
            for index in block:
                at.setdefault(index, []).append(number)
    else:
        blocks = [Block(range(start, start + size)) for start in range(0, topology.n_devices // size * size, size)]
    n_blocks = len(blocks)
    total = [0.0] * n_blocks
    held = [0] * n_blocks
    inside: list[list[Holder]] = [[] for _ in blocks]
    for tenant, cost in costs:
        block = tenant.block
        start, n_devices = block.start, len(block)
        touched: Iterable[int]
        if isinstance(topology, Catalogue):
            touched = sorted({number for index in block for number in at.get(index, ())})
        else:
            touched = range(start // size, min((start + n_devices - 1) // size + 1, n_blocks))
        loss = cost if tenant.is_movable and n_devices < size else float("inf")
        for number in touched:
            total[number] += loss
            inside[number].append(tenant)
            # In a catalogue a block may partly overlap another.
            held[number] += sum(index in blocks[number] for index in block) if at else n_devices
    able = [number for number, cost in enumerate(total) if cost < float("inf") and inside[number]]
    able.sort(key=lambda number: (total[number], blocks[number].start))
    found: list[tuple[float, Block, list[Holder]]] = []
    for number in able:
        free = sum(len(part) for part in state.free.free_within(blocks[number]))
        if free + held[number] == size:  # nothing in it is out of service, reserved or in foreign partitions
            found.append((total[number], blocks[number], inside[number]))
            if len(found) == CANDIDATES_MAX:
                break
    return found


def _relocate_holders(
    state: PoolState, block: Block, inside: Sequence[Holder]
) -> tuple[tuple[Holder, Block], ...] | None:
    """The places where the holders of a block would go; None: some find no place outside."""
    moves: list[tuple[Holder, Block]] = []
    with savepoint(state.free) as only:
        for part in state.free.free_within(block):
            only.allocate(part)
        for tenant in sorted(inside, key=_largest_first):
            place = state.free.find_block(len(tenant.block))
            if place is None:
                return None
            only.allocate(place)
            moves.append((tenant, place))
    return tuple(moves)


def _repack(
    state: PoolState, topology: PowerOfTwo, size: int, costs: Sequence[tuple[Holder, float]], moves_max: int
) -> Relocation | None:
    """All movable holders packed again, largest first; holders stay in place if the rest still fits."""
    movable = sorted((tenant for tenant, _ in costs if tenant.is_movable), key=_largest_first)
    fresh = _map_without(state, topology, movable)
    larger = [tenant for tenant in movable if len(tenant.block) > size]
    smaller = [tenant for tenant in movable if len(tenant.block) <= size]
    for tenant in larger:
        fresh.allocate(tenant.block)
    wanted = fresh.find_block(size)
    if wanted is None:
        return None
    fresh.allocate(wanted)
    staying = [tenant for tenant in smaller if fresh.is_free(tenant.block)]
    for tenant in staying:
        fresh.allocate(tenant.block)
    stay = {tenant.claim for tenant in staying}
    placed = _place_all(fresh, [tenant for tenant in smaller if tenant.claim not in stay])
    if placed is None:  # the staying holders are in the way: none may stay
        for tenant in staying:
            fresh.release(tenant.block)
        placed = _place_all(fresh, smaller)
    moves = tuple((tenant, block) for tenant, block in placed or () if tenant.block != block)
    if placed is None or len(moves) > moves_max:
        return None
    known = {tenant.claim: cost for tenant, cost in costs}
    return Relocation(wanted, moves, sum(known[tenant.claim] for tenant, _ in moves))


def _largest_first(tenant: Holder) -> tuple[int, int]:
    return (-len(tenant.block), tenant.block.start)


def _map_without(state: PoolState, topology: PowerOfTwo, movable: Sequence[Holder]) -> FreeMap:
    """The pool's map as if these holders were gone."""
    fresh = free_map_for(topology)
    usable = {index for tenant in movable for index in tenant.block}
    for start in range(0, topology.n_devices, topology.max_block):
        around = Block(range(start, min(start + topology.max_block, topology.n_devices)))
        usable.update(index for part in state.free.free_within(around) for index in part)
    for index in range(topology.n_devices):
        if index not in usable:
            fresh.allocate(Block.single(index))
    return fresh


def _place_all(free: FreeMap, tenants: Sequence[Holder]) -> list[tuple[Holder, Block]] | None:
    """A best-fit place for each, in order; None: some find none, and nothing is taken."""
    placed: list[tuple[Holder, Block]] = []
    for tenant in tenants:
        block = free.find_block(len(tenant.block))
        if block is None:
            for _, taken in placed:
                free.release(taken)
            return None
        free.allocate(block)
        placed.append((tenant, block))
    return placed


def is_bypassable(claim: Claim, state: PoolState, ends: ReleaseTimes, policy: Policy, now: Timestamp) -> bool:
    """Whether a claim for which others could be moved lets later claims use what is free, for now."""
    if not policy.patience_s or policy.defragment is not DefragmentMode.ON:
        return False
    if isinstance(state.pool.topology, AnySubset) or now >= add_seconds(claim.arrival, policy.patience_s):
        return False
    soonest = ends.earliest_block(claim.spec.size)
    return soonest is not None and NO_RELEASE <= soonest[1] < OUT_OF_SERVICE
