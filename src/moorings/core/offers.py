"""What other schedulers are told: what they may start, who is next, what their claims hold, and who else waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from moorings.core.ageing import ageing_cutoff
from moorings.core.announced import Offer, QueueReport
from moorings.core.claims import SERVED, Claim, ClaimSpec
from moorings.core.devices import PoolName
from moorings.core.fleet import Fleet, PoolState, ReservedBlock
from moorings.core.instants import Timestamp
from moorings.core.lines import QueueKey
from moorings.core.placement import OUT_OF_SERVICE, savepoint
from moorings.core.policy import Policy
from moorings.core.serving import ineligible_reason
from moorings.core.topology import Block


def build_offers(
    announced: Iterable[QueueReport],
    pools: Mapping[PoolName, PoolState],
    lent: Sequence[ReservedBlock],
    guarded: Collection[PoolName],
) -> Iterator[Offer]:
    """What each queue's scheduler may start: what is kept for its jobs, and for the first queue what is left.

    No device is offered twice. Of one queue's own jobs the order does not matter here: its scheduler chooses. Where
    shares are guaranteed nothing is left to anybody: who starts what nobody announced could not be asked to yield.

    Args:
        announced: the queues.
        pools: as the plan leaves them.
        lent: free blocks of announced jobs.
        guarded: the pools in which shares are guaranteed.
    """
    for number, told in enumerate(announced):
        for name, state in pools.items():
            if state.pool.kind != told.accelerator:
                continue
            own = [r.block for r in lent if r.pool == name and r.claim.startswith(f"{told.queue}/")]
            with savepoint(state.free) as only:
                if number or name in guarded:
                    for block in free_blocks(state):
                        only.take(block)
                for block in own:
                    only.release(block)
                sizes = () if state.problem else state.pool.topology.sizes
                counts = tuple((size, count) for size in sizes if (count := state.free.count(size)))
            yield Offer(told.queue, name, counts)


def free_blocks(state: PoolState) -> list[Block]:
    """All that is free in a pool, as blocks that can be taken."""
    n_devices, step = state.pool.topology.n_devices, state.pool.topology.max_block
    starts = range(0, n_devices, step)
    return [block for at in starts for block in state.free.free_within(Block(range(at, min(at + step, n_devices))))]


def next_claim_by_pool(fleet: Fleet, policy: Policy, now: Timestamp) -> dict[PoolName, Claim]:
    """Who gets what becomes free next in each pool, if it is large enough: nobody who could use it waits before them.

    Announced jobs count like claims, also those that have only to be started: until then their block looks free, and
    is not. Who waits for devices of which some are out of service, whatever the block, could use nothing.

    Args:
        fleet: as the last turn left it.
        policy: the one in force: who has waited for long comes before higher priorities.
        now: the time.
    """
    waiting = [fleet.claims[next(iter(line))[2]] for line in fleet.lines.values()]  # those behind ask for the same
    waiting += [claim for told in fleet.announced.values() for claim in told.claims()]
    by, counts_as = ageing_cutoff(policy, now), dict[str, int]()
    if by is not None:
        oldest = (line.arrivals.first() for line in fleet.lines.values() if line.arrivals is not None)
        waiting += [fleet.claims[order[2]] for order in oldest if order is not None and order[1] <= by]
    first: dict[PoolName, Claim] = {}
    for claim in sorted(waiting, key=lambda one: one.order) if by is not None else ():
        if claim.spec.kind not in counts_as and any(_could_use(claim.spec, state) for state in fleet.pools.values()):
            counts_as[claim.spec.kind] = claim.spec.priority

    def place(claim: Claim) -> QueueKey:
        priority, arrival, ident = claim.order
        is_aged = by is not None and arrival <= by
        return min(priority, -counts_as.get(claim.spec.kind, -priority)) if is_aged else priority, arrival, ident

    for claim in sorted(waiting, key=place):
        for name, state in fleet.pools.items():
            if name not in first and _could_use(claim.spec, state):
                first[name] = claim
    return first


def held_counts(fleet: Fleet, told: QueueReport) -> dict[PoolName, dict[int, int]]:
    """How many partitions of each size a queue's claims hold, of those that can be had again at once.

    So none that is being removed or lost, none with a device that goes out of service, none while its driver is away.
    """
    held: dict[PoolName, dict[int, int]] = {}
    for partition in fleet.partitions.values():
        claim, state = fleet.claims.get(partition.claim), fleet.pools.get(partition.pool)
        if claim is None or claim.state not in SERVED or claim.partition != partition.id or not told.owns(claim.owner):
            continue
        if state is None or state.problem or any(index in state.out for index in partition.block):
            continue
        sizes = held.setdefault(partition.pool, {})
        sizes[partition.size] = sizes.get(partition.size, 0) + 1
    return {pool: dict(sorted(sizes.items())) for pool, sizes in sorted(held.items())}


def contended_pools(fleet: Fleet, told: QueueReport) -> tuple[PoolName, ...]:
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
    return ineligible_reason(spec, state) is None


def _could_use(spec: ClaimSpec, state: PoolState) -> bool:
    """Whether a claim waits for devices of a pool, and a block there could be emptied for it."""
    if not spec.size or state.problem or not _is_for(spec, state):
        return False
    found = state.ends.soonest(spec.size)
    return found is not None and found[1] < OUT_OF_SERVICE
