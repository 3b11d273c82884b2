"""What other schedulers need to know: what they may start, which claim is next, what they hold, and who else waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from moorings.core.model.claims import SERVED, Claim, ClaimSpec
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import Policy
from moorings.core.model.queue_reports import Offer, QueueReport
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.core.placement.eligibility import ineligible_reason
from moorings.core.placement.fleet import Fleet, PoolState, ReservedBlock
from moorings.core.placement.free_map import OUT_OF_SERVICE, savepoint
from moorings.core.placement.pending_classes import QueueKey
from moorings.core.scheduling.ageing import ageing_cutoff, highest_priorities


def build_offers(
    announced: Iterable[QueueReport],
    pools: Mapping[PoolName, PoolState],
    offered_blocks: Sequence[ReservedBlock],
    guaranteed_pools: Collection[PoolName],
) -> Iterator[Offer]:
    """What each queue's scheduler may start: what is reserved for its jobs, and for the first queue what is left.

    No device is offered twice. The order among one queue's own jobs does not matter here: its scheduler chooses. In
    pools with guarantees nothing is left for any queue: a job that was not announced could not be preempted.

    Args:
        announced: the queues.
        pools: as the plan leaves them.
        offered_blocks: free blocks of announced jobs.
        guaranteed_pools: the pools with guarantees.
    """
    for number, report in enumerate(announced):
        for name, state in pools.items():
            if state.pool.kind != report.accelerator:
                continue
            own = [r.block for r in offered_blocks if r.pool == name and r.claim.startswith(f"{report.queue}/")]
            with savepoint(state.free) as only:
                if number or name in guaranteed_pools:
                    for block in free_blocks(state):
                        only.allocate(block)
                for block in own:
                    only.release(block)
                sizes = () if state.unreachable_reason else state.pool.topology.sizes
                counts = tuple((size, count) for size in sizes if (count := state.free.count_blocks(size)))
            yield Offer(report.queue, name, counts)


def free_blocks(state: PoolState) -> list[Block]:
    """All free devices of a pool, as blocks that can be taken."""
    n_devices, step = state.pool.topology.n_devices, state.pool.topology.max_block
    starts = range(0, n_devices, step)
    return [block for at in starts for block in state.free.free_within(Block(range(at, min(at + step, n_devices))))]


def next_claim_by_pool(fleet: Fleet, policy: Policy, now: Timestamp) -> dict[PoolName, Claim]:
    """The claim that gets the next large enough free block in each pool: no claim that could use it waits before it.

    Announced jobs count like claims, even if they only have to be started: until then their block looks free, and is
    not. A claim is left out if every block for it has devices out of service: it could use nothing.

    Args:
        fleet: as the last turn left it.
        policy: the one in force: aged claims come before higher priorities.
        now: the time.
    """
    waiting = [
        fleet.claims[next(iter(line))[2]] for line in fleet.pending_classes.values()
    ]  # later ones request the same
    waiting += [claim for report in fleet.queue_reports.values() for claim in report.to_claims()]
    by, counts_as = ageing_cutoff(policy, now), dict[str, int]()
    if by is not None:
        pools = fleet.pools.values()
        oldest = (line.by_arrival.first_key() for line in fleet.pending_classes.values() if line.by_arrival is not None)
        waiting += [fleet.claims[order[2]] for order in oldest if order is not None and order[1] <= by]
        counts_as = highest_priorities(waiting, lambda one: any(_could_use(one.spec, state) for state in pools))
    first: dict[PoolName, Claim] = {}

    def place(claim: Claim) -> QueueKey:
        priority, arrival, ident = claim.queue_key
        is_aged = by is not None and arrival <= by
        return min(priority, -counts_as.get(claim.spec.kind, -priority)) if is_aged else priority, arrival, ident

    for claim in sorted(waiting, key=place):
        for name, state in fleet.pools.items():
            if name not in first and _could_use(claim.spec, state):
                first[name] = claim
    return first


def held_counts(fleet: Fleet, report: QueueReport) -> dict[PoolName, dict[int, int]]:
    """How many partitions of each size a queue's claims hold, counting those that could be used again at once.

    It leaves out partitions being removed or lost, those with a device going out of service, and those of a pool whose
    driver is away.
    """
    held: dict[PoolName, dict[int, int]] = {}
    for partition in fleet.partitions.values():
        claim, state = fleet.claims.get(partition.claim), fleet.pools.get(partition.pool)
        if (
            claim is None
            or claim.state not in SERVED
            or claim.partition != partition.id
            or not report.is_owner_of(claim.owner)
        ):
            continue
        if state is None or state.unreachable_reason or any(index in state.out_of_service for index in partition.block):
            continue
        sizes = held.setdefault(partition.pool, {})
        sizes[partition.size] = sizes.get(partition.size, 0) + 1
    return {pool: dict(sorted(sizes.items())) for pool, sizes in sorted(held.items())}


def contended_pools(fleet: Fleet, report: QueueReport) -> tuple[PoolName, ...]:
    """The pools for which a claim outside that queue waits, whether or not it comes first."""
    waiting = [
        next((claim for order in line if not report.is_owner_of((claim := fleet.claims[order[2]]).owner)), None)
        for line in fleet.pending_classes.values()
    ]
    waiting += [
        claim for other in fleet.queue_reports.values() if other.queue != report.queue for claim in other.to_claims()
    ]
    specs = [claim.spec for claim in waiting if claim is not None and claim.spec.size]
    return tuple(name for name, state in fleet.pools.items() if any(_is_for(spec, state) for spec in specs))


def _is_for(spec: ClaimSpec, state: PoolState) -> bool:
    """Whether an empty pool could serve it."""
    if spec.kind != state.pool.kind or spec.pool not in (None, state.pool.name):
        return False
    return ineligible_reason(spec, state) is None


def _could_use(spec: ClaimSpec, state: PoolState) -> bool:
    """Whether a claim waits for devices of a pool, and a block there can be emptied for it."""
    if not spec.size or state.unreachable_reason or not _is_for(spec, state):
        return False
    found = state.release_times.earliest_block(spec.size)
    return found is not None and found[1] < OUT_OF_SERVICE
