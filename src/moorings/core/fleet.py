"""The fleet: everything that has not ended, as one value that a turn decides on.

``Fleet`` is owned by the scheduling loop. A turn reads it and leaves it as it was; ``apply`` changes it, only after the
database has taken the turn's changes. Rebuilt from the database it is the same fleet, because the free maps are
canonical. ``check`` lists every way in which a fleet could break a law.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from moorings.core.claims import Claim, ClaimId, ClaimState, PartitionId
from moorings.core.devices import Device, DeviceState, PoolName
from moorings.core.instants import Instant, after
from moorings.core.partitions import Partition, PartitionState
from moorings.core.placement import NEVER, OUT_OF_SERVICE, FreeMap, Hold, Trial, free_map_of
from moorings.core.topology import Block, Pool

Order = tuple[int, Instant, ClaimId]


@dataclass(frozen=True, slots=True)
class Reservation:
    """The block kept free for the first claim that must wait in a pool; ``until`` is when it should be empty."""

    claim: ClaimId
    pool: PoolName
    block: Block
    until: Instant


@dataclass(slots=True)
class PoolState:
    """A pool and what is not free in it.

    Attributes:
        out: devices out of service, by index.
        foreign: blocks of partitions made outside Moorings, by name.
        used: secondary resources held by claims.
        problem: why its driver cannot be reached; empty if it can.
    """

    pool: Pool
    free: FreeMap
    out: dict[int, Device] = field(default_factory=dict)
    foreign: dict[str, Block] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    problem: str = ""

    def room(self, wanted: Mapping[str, int]) -> bool:
        """Whether the pool has these secondary resources left."""
        return enough(self.pool, self.used, wanted)


@dataclass(slots=True)
class FleetChanges:
    """What a turn changed, as values: records with the version they replace (None: new)."""

    claims: dict[ClaimId, tuple[Claim, int | None]] = field(default_factory=dict)
    partitions: dict[PartitionId, tuple[Partition, int | None]] = field(default_factory=dict)
    removed: dict[PartitionId, int] = field(default_factory=dict)
    devices: dict[tuple[PoolName, int], Device] = field(default_factory=dict)
    foreign: dict[PoolName, dict[str, Block]] = field(default_factory=dict)
    problems: dict[PoolName, str] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] | None = None


class Fleet:
    """Pools, and every claim and partition that has not ended."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self.pools: dict[PoolName, PoolState] = {
            pool.name: PoolState(pool, free_map_of(pool.topology)) for pool in pools
        }
        self.claims: dict[ClaimId, Claim] = {}
        self.partitions: dict[PartitionId, Partition] = {}
        self.names: dict[str, ClaimId] = {}
        self.partition_names: dict[str, PartitionId] = {}
        self.queue: list[Order] = []
        self.leased: set[ClaimId] = set()
        self.last_arrival = Instant(0)
        self.reservations: tuple[Reservation, ...] = ()

    @classmethod
    def load(
        cls, pools: Iterable[Pool], claims: Iterable[Claim], partitions: Iterable[Partition], devices: Iterable[Device]
    ) -> Fleet:
        """The fleet that a database's unended records make."""
        fleet = cls(pools)
        changes = FleetChanges()
        for device in devices:
            state = fleet.pools.get(device.pool)
            if state is not None and device.index < state.pool.topology.n_devices:
                changes.devices[device.pool, device.index] = device
        for partition in partitions:
            changes.partitions[partition.id] = (partition, None)
        for claim in claims:
            changes.claims[claim.id] = (claim, None)
        fleet.apply(changes)
        return fleet

    def apply(self, changes: FleetChanges) -> None:
        """Take over what a turn changed. Called only when the database holds it."""
        for ident in changes.removed:
            self._drop(self.partitions.pop(ident))
        for partition, expected in changes.partitions.values():
            if expected is None:
                self._hold(partition)
            self.partitions[partition.id] = partition
        for device in changes.devices.values():
            self._device(device)
        for name, blocks in changes.foreign.items():
            self._foreign(self.pools[name], blocks)
        for name, problem in changes.problems.items():
            self.pools[name].problem = problem
        for claim, _ in changes.claims.values():
            self._claim(claim)
        if changes.reservations is not None:
            self.reservations = changes.reservations

    def beside_the_records(self) -> FleetChanges:
        """What is known here and in no database: what drivers say, and the last turn's reservations."""
        return FleetChanges(
            foreign={name: dict(state.foreign) for name, state in self.pools.items()},
            problems={name: state.problem for name, state in self.pools.items()},
            reservations=self.reservations,
        )

    def waiting(self) -> Iterator[Claim]:
        """The claims in the queue, first to last."""
        for order in self.queue:
            yield self.claims[order[2]]

    def _hold(self, partition: Partition) -> None:
        self.partition_names[partition.name] = partition.id
        state = self.pools.get(partition.pool)
        if state is not None:
            for block in state.free.free_within(partition.block):
                state.free.take(block)

    def _drop(self, partition: Partition) -> None:
        self.partition_names.pop(partition.name, None)
        state = self.pools.get(partition.pool)
        if state is not None:
            give_back(state, partition.block, state.free)

    def _device(self, device: Device) -> None:
        state = self.pools[device.pool]
        alone = Block(range(device.index, device.index + 1))
        if device.state is DeviceState.IN_SERVICE:
            if state.out.pop(device.index, None) is not None and not self.holder(device.pool, device.index):
                give_back(state, alone, state.free)
        else:
            state.out[device.index] = device
            if state.free.is_free(alone):
                state.free.take(alone)

    def _foreign(self, state: PoolState, blocks: dict[str, Block]) -> None:
        gone = [block for name, block in state.foreign.items() if blocks.get(name) != block]
        state.foreign = dict(blocks)
        for block in gone:
            for index in block:
                if not self.holder(state.pool.name, index):
                    give_back(state, Block(range(index, index + 1)), state.free)
        for block in blocks.values():
            for index in block:  # a foreign partition need not be a block of ours
                alone = Block(range(index, index + 1))
                if state.free.is_free(alone):
                    state.free.take(alone)

    def holder(self, pool: PoolName, index: int) -> Partition | None:
        """The partition that holds a device, if one does."""
        return next((p for p in self.partitions.values() if p.pool == pool and index in p.block), None)

    def _claim(self, claim: Claim) -> None:
        before = self.claims.get(claim.id)
        if before is not None and before.state is ClaimState.PENDING:
            del self.queue[bisect_left(self.queue, before.order)]
        if claim.spec.resources:
            for state in self.pools.values():
                add_resources(state.used, state, before, -1)
                add_resources(state.used, state, None if claim.ended else claim, 1)
        if claim.ended:
            self.claims.pop(claim.id, None)
            self.names.pop(claim.name, None)
            self.leased.discard(claim.id)
            return
        self.claims[claim.id] = claim
        self.names[claim.name] = claim.id
        self.last_arrival = max(self.last_arrival, claim.arrival)
        if claim.state is ClaimState.PENDING:
            insort(self.queue, claim.order)
        if claim.lease_until is not None:
            self.leased.add(claim.id)


def enough(pool: Pool, used: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether a pool of which ``used`` is held has the secondary resources ``wanted`` left."""
    offered = dict(pool.resources)
    return all(offered.get(name, 0) - used.get(name, 0) >= amount for name, amount in wanted.items())


def add_resources(used: dict[str, int], state: PoolState, claim: Claim | None, sign: int) -> None:
    """Add (or take off, with -1) what a claim holds of a pool's secondary resources."""
    if claim is not None and claim.pool == state.pool.name:
        for name, amount in claim.spec.resources.items():
            used[name] = used.get(name, 0) + sign * amount


def holds(
    state: PoolState, partitions: Iterable[Partition], claim_of: Callable[[ClaimId], Claim | None], now: Instant
) -> Iterator[Hold]:
    """Everything in a pool that is not free, and until when."""
    for partition in partitions:
        if partition.pool == state.pool.name:
            yield Hold(partition.block, held_until(partition, claim_of(partition.claim), now))
    for index in state.out:
        yield Hold(Block(range(index, index + 1)), OUT_OF_SERVICE)
    for block in state.foreign.values():
        yield Hold(block, NEVER)


def held_until(partition: Partition, claim: Claim | None, now: Instant) -> Instant:
    """When a partition's devices are expected to be free: ``NEVER`` if no limit is known, or it has passed in vain."""
    if partition.state is PartitionState.REMOVING:
        return Instant(0)
    if claim is None or claim.spec.time_limit_s is None or claim.granted_at is None:
        return NEVER
    end = after(claim.ready_at or claim.granted_at, claim.spec.time_limit_s)
    return end if end > now else NEVER


def give_back(state: PoolState, block: Block, target: FreeMap | Trial) -> None:
    """Release a block, except its devices that are out of service or used by others."""
    if not state.out and not state.foreign:
        target.release(block)
        return
    kept = {index for index in block if index in state.out or any(index in other for other in state.foreign.values())}
    if not kept:
        target.release(block)
        return
    for index in block:
        if index not in kept:
            target.release(Block(range(index, index + 1)))
