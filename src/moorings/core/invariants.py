"""The laws, as a check of a fleet: what must be true after every turn.

It runs after every step of the property tests and at the end of every test of the whole controller. A violation names
the law (design section 5) and the objects, so that a human can act on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moorings.core.model.backlog import Backlog
from moorings.core.model.claims import Claim, ClaimState
from moorings.core.model.partitions import PartitionState
from moorings.core.model.topology import Block
from moorings.core.placement.fleet import ONE_CLAIM, Fleet, PoolState, held_amounts
from moorings.core.placement.free_map import free_map_for
from moorings.core.placement.pending_classes import ClassKey, QueueKey

_PARTITION_STATES_BY_CLAIM_STATE = {
    ClaimState.GRANTED: (PartitionState.PROVISIONING,),
    ClaimState.READY: (PartitionState.ACTIVE, PartitionState.RESETTING),
    ClaimState.RECLAIMING: (PartitionState.ACTIVE, PartitionState.RESETTING),
    ClaimState.LOST: (PartitionState.ERROR,),
    ClaimState.RELEASING: (PartitionState.REMOVING,),
    ClaimState.YIELDING: (PartitionState.REMOVING,),
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken law: its number, and a sentence with the objects."""

    law: int
    message: str


def find_violations(fleet: Fleet) -> list[Violation]:
    """Every way in which ``fleet`` breaks a law; empty if it breaks none."""
    return [
        *_one_holder_a_device(fleet),
        *_partitions_have_claims(fleet),
        *_claims_have_partitions(fleet),
        *_names(fleet),
        *_queue(fleet),
        *(finding for state in fleet.pools.values() for finding in _free_map(fleet, state)),
        *(finding for state in fleet.pools.values() for finding in _resources(fleet, state)),
    ]


def _one_holder_a_device(fleet: Fleet) -> Iterator[Violation]:
    holders: dict[tuple[str, int], str] = {}
    for partition in fleet.partitions.values():
        state = fleet.pools.get(partition.pool)
        if state is None or not state.pool.topology.is_block(partition.block):
            yield Violation(1, f"partition {partition.id}: {partition.block} is no block of pool {partition.pool}")
        for index in partition.block:
            other = holders.setdefault((partition.pool, index), partition.id)
            if other != partition.id:
                yield Violation(1, f"device {partition.pool}:{index} is in partitions {other} and {partition.id}")


def _partitions_have_claims(fleet: Fleet) -> Iterator[Violation]:
    for partition in fleet.partitions.values():
        claim = fleet.claims.get(partition.claim)
        held = claim is not None and claim.partition == partition.id
        if not held and partition.state not in (PartitionState.REMOVING, PartitionState.ERROR):
            yield Violation(2, f"partition {partition.id} is {partition.state} and no unended claim holds it")


def _claims_have_partitions(fleet: Fleet) -> Iterator[Violation]:
    for claim in fleet.claims.values():
        partition = fleet.partitions.get(claim.partition) if claim.partition is not None else None
        if claim.state in (ClaimState.PENDING, ClaimState.ANNOUNCED):
            if claim.partition is not None:
                yield Violation(2, f"claim {claim.id} waits and holds partition {claim.partition}")
        elif claim.spec.size and partition is None:
            yield Violation(2, f"claim {claim.id} is {claim.state} and its partition {claim.partition} does not exist")
        elif partition is not None and partition.state not in _PARTITION_STATES_BY_CLAIM_STATE.get(
            claim.state, tuple(PartitionState)
        ):
            yield Violation(4, f"claim {claim.id} is {claim.state} but its partition is {partition.state}")
        if claim.is_ended:
            yield Violation(2, f"claim {claim.id} has ended ({claim.state}) and is still in the fleet")


def _names(fleet: Fleet) -> Iterator[Violation]:
    seen: dict[str, str] = {}
    for partition in fleet.partitions.values():
        if len(partition.name) > 36:
            yield Violation(5, f"partition name {partition.name!r} is longer than 36 characters")
        other = seen.setdefault(partition.name, partition.id)
        if other != partition.id:
            yield Violation(5, f"partitions {other} and {partition.id} are both called {partition.name!r}")


def _queue(fleet: Fleet) -> Iterator[Violation]:
    pending: list[Claim] = sorted(
        (claim for claim in fleet.claims.values() if claim.state is ClaimState.PENDING),
        key=lambda claim: claim.queue_key,
    )
    if [claim.queue_key for claim in pending] != fleet.queue:
        yield Violation(7, "the queue is not the pending claims in order")
    lines: dict[ClassKey, list[QueueKey]] = {}
    for claim in pending:
        lines.setdefault(fleet.class_key_of(claim), []).append(claim.queue_key)
    if lines != {key: list(line) for key, line in fleet.pending_classes.items()}:
        yield Violation(7, "the lines are not the queue, line by line")
    backlog = Backlog()
    for claim in pending:
        backlog.add(claim.subject, claim.spec.project, ONE_CLAIM)
    if backlog != fleet.backlog:
        yield Violation(7, f"the pending claims are {backlog}, and {fleet.backlog} was counted")
    for key, line in fleet.pending_classes.items():
        if list(line.by_arrival or ()) != sorted((0, arrival, ident) for _, arrival, ident in lines.get(key, ())):
            yield Violation(7, "a line is not by arrival what it is by priority")


def _free_map(fleet: Fleet, state: PoolState) -> Iterator[Violation]:
    """The free map agrees with the records."""
    fresh = free_map_for(state.pool.topology)
    taken = {i for p in fleet.partitions.values() if p.pool == state.pool.name for i in p.block}
    taken |= set(state.out_of_service) | {index for block in state.foreign_blocks.values() for index in block}
    for index in sorted(taken):
        fresh.allocate(Block.single(index))
    for size in state.pool.topology.sizes:
        if state.free.count_blocks(size) != fresh.count_blocks(size) or state.free.find_block(size) != fresh.find_block(
            size
        ):
            yield Violation(1, f"pool {state.pool.name}: the free map is not what its partitions and devices say")
            return
    if state.free.n_free != fresh.n_free:
        yield Violation(1, f"pool {state.pool.name}: {state.free.n_free} devices are called free, {fresh.n_free} are")


def _resources(fleet: Fleet, state: PoolState) -> Iterator[Violation]:
    """Secondary resources are held only by claims."""
    held: dict[str, int] = {}
    for claim in fleet.claims.values():
        for name, amount in held_amounts(claim, state.pool).items():
            held[name] = held.get(name, 0) + amount
    used = {name: amount for name, amount in state.used_resources.items() if amount}
    if used != {name: amount for name, amount in held.items() if amount}:
        yield Violation(
            2, f"pool {state.pool.name}: {used} of its resources are called used, {held} are held by claims"
        )
