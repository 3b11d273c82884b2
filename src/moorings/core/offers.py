"""What other schedulers are told beside their offers: who is next, what their claims hold, and who else waits."""

from __future__ import annotations

from moorings.core.announced import Announced
from moorings.core.claims import Claim, ClaimSpec, ClaimState
from moorings.core.devices import PoolName
from moorings.core.fleet import Fleet, PoolState
from moorings.core.placement import OUT_OF_SERVICE
from moorings.core.serving import why_never

_HOLDS = frozenset({ClaimState.GRANTED, ClaimState.READY, ClaimState.RECLAIMING})


def next_up(fleet: Fleet) -> dict[PoolName, Claim]:
    """Who gets what becomes free next in each pool, if it is large enough: nobody who could use it waits before them.

    Announced jobs count like claims, also those that have only to be started: until then their block looks free, and
    is not. Who waits for devices of which some are out of service, whatever the block, could use nothing.
    """
    waiting = [fleet.claims[next(iter(line))[2]] for line in fleet.lines.values()]  # those behind ask for the same
    waiting += [claim for told in fleet.announced.values() for claim in told.claims()]
    first: dict[PoolName, Claim] = {}
    for claim in sorted(waiting, key=lambda one: one.order):
        for name, state in fleet.pools.items():
            if name not in first and _could_use(claim.spec, state):
                first[name] = claim
    return first


def held_by(fleet: Fleet, told: Announced) -> dict[PoolName, dict[int, int]]:
    """How many partitions of each size a queue's claims hold, of those that can be had again at once.

    So none that is being removed or lost, none with a device that goes out of service, none while its driver is away.
    """
    held: dict[PoolName, dict[int, int]] = {}
    for partition in fleet.partitions.values():
        claim, state = fleet.claims.get(partition.claim), fleet.pools.get(partition.pool)
        if claim is None or claim.state not in _HOLDS or claim.partition != partition.id or not told.owns(claim.owner):
            continue
        if state is None or state.problem or any(index in state.out for index in partition.block):
            continue
        sizes = held.setdefault(partition.pool, {})
        sizes[partition.size] = sizes.get(partition.size, 0) + 1
    return {pool: dict(sorted(sizes.items())) for pool, sizes in sorted(held.items())}


def others_wait(fleet: Fleet, told: Announced) -> tuple[PoolName, ...]:
    """The pools for whose devices somebody waits who is not of that queue, whether or not he comes first."""
    waiting = [
        next((claim for order in line if not told.owns((claim := fleet.claims[order[2]]).owner)), None)
        for line in fleet.lines.values()
    ]
    waiting += [claim for other in fleet.announced.values() if other.queue != told.queue for claim in other.claims()]
    specs = [claim.spec for claim in waiting if claim is not None and claim.spec.size]
    return tuple(name for name, state in fleet.pools.items() if any(_is_for(spec, state) for spec in specs))


def _is_for(spec: ClaimSpec, state: PoolState) -> bool:
    """Whether a pool could serve it if it were empty."""
    if spec.kind != state.pool.kind or spec.pool not in (None, state.pool.name):
        return False
    return why_never(spec, state) is None


def _could_use(spec: ClaimSpec, state: PoolState) -> bool:
    """Whether a claim waits for devices of a pool, and a block there could be emptied for it."""
    if not spec.size or state.problem or not _is_for(spec, state):
        return False
    found = state.ends.soonest(spec.size)
    return found is not None and found[1] < OUT_OF_SERVICE
