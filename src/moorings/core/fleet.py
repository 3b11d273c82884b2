"""The fleet: everything that has not ended, as one value that a turn decides on.

``Fleet`` is owned by the scheduling loop. A turn reads it and leaves it as it was; ``apply`` changes it, only after the
database has taken the turn's changes. Rebuilt from the database it is the same fleet, because the free maps are
canonical. ``check`` lists every way in which a fleet could break a law.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from moorings.core.announced import Announced, Offer
from moorings.core.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId, QueueMode
from moorings.core.devices import Device, DeviceState, PoolName
from moorings.core.instants import Instant, after
from moorings.core.partitions import Partition, PartitionState
from moorings.core.placement import NEVER, OUT_OF_SERVICE, FreeMap, Hold, Trial, free_map_of
from moorings.core.topology import Block, Pool

Order = tuple[int, Instant, ClaimId]
Devices = tuple[str, PoolName | None, int, int, QueueMode]
Line = tuple[Devices, tuple[tuple[str, int], ...]]


def line_of(spec: ClaimSpec) -> Line:
    """The line of the queue a claim stands in: where the first gets nothing, those behind it get nothing either.

    That is so of claims that ask for the same devices and the same amounts of secondary resources.
    """
    return (spec.kind, spec.pool, spec.size, spec.gcds, spec.queue), tuple(sorted(spec.resources.items()))


@dataclass(frozen=True, slots=True)
class Reservation:
    """The block kept free for the first claim that must wait in a pool; ``until`` is when it should be empty."""

    claim: ClaimId
    pool: PoolName
    block: Block
    until: Instant


@dataclass(frozen=True, slots=True)
class Soonest:
    """The block of a size that can be emptied soonest, when, and how many of its devices are held (None: no block).

    It is the answer at every instant from ``since`` until before ``before``: then the next time limit passes.
    """

    found: tuple[Block, Instant, int] | None
    since: Instant
    before: Instant


@dataclass(slots=True)
class PoolState:
    """A pool and what is not free in it.

    Attributes:
        out: devices out of service, by index.
        foreign: blocks of partitions made outside Moorings, by name.
        used: secondary resources held by claims.
        problem: why its driver cannot be reached; empty if it can.
        holds: its partitions, and when the time limit of each ends, passed or not.
        soonest: answers by size, remembered until something else is held; finding one takes a walk over all holds.
    """

    pool: Pool
    free: FreeMap
    out: dict[int, Device] = field(default_factory=dict)
    foreign: dict[str, Block] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    holds: dict[PartitionId, Hold] = field(default_factory=dict)
    soonest: dict[int, Soonest] = field(default_factory=dict)

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
    announced: dict[str, Announced | None] = field(default_factory=dict)
    offers: tuple[Offer, ...] | None = None


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
        self.lines: dict[Line, list[Order]] = {}  # the queue once more, so that a turn need not walk all of it
        self.leases: list[tuple[Instant, ClaimId]] = []  # by when they run out
        self.last_arrival = Instant(0)
        self.reservations: tuple[Reservation, ...] = ()
        self.announced: dict[str, Announced] = {}
        self.offers: tuple[Offer, ...] = ()

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
        self._holds(changes)
        if changes.reservations is not None:
            self.reservations = changes.reservations
        for queue, told in changes.announced.items():
            if told is not None:
                self.announced[queue] = told
            else:
                self.announced.pop(queue, None)
        if changes.offers is not None:
            self.offers = changes.offers

    def beside_the_records(self) -> FleetChanges:
        """What is known here and in no database: what drivers say, and the last turn's reservations."""
        return FleetChanges(
            foreign={name: dict(state.foreign) for name, state in self.pools.items()},
            problems={name: state.problem for name, state in self.pools.items()},
            reservations=self.reservations,
            announced=dict(self.announced),
            offers=self.offers,
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

    def _holds(self, changes: FleetChanges) -> None:
        """Bring what is held, and until when, up to date with changed partitions and claims."""
        for ident in touched(changes):
            partition = self.partitions.get(ident)
            state = self.pools.get(partition.pool) if partition is not None else None
            if partition is not None and state is not None:
                hold = Hold(partition.block, end_of(partition, self.claims.get(partition.claim)))
                if state.holds.get(ident) != hold:
                    state.holds[ident] = hold
                    state.soonest.clear()

    def _drop(self, partition: Partition) -> None:
        self.partition_names.pop(partition.name, None)
        state = self.pools.get(partition.pool)
        if state is not None:
            give_back(state, partition.block, state.free)
            state.holds.pop(partition.id, None)
            state.soonest.clear()

    def _device(self, device: Device) -> None:
        state = self.pools[device.pool]
        state.soonest.clear()
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
        state.soonest.clear()
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
        if before is not None:
            self._leave(before)
        if claim.spec.resources:
            for state in self.pools.values():
                add_resources(state.used, state, before, -1)
                add_resources(state.used, state, None if claim.ended else claim, 1)
        if claim.ended:
            self.claims.pop(claim.id, None)
            self.names.pop(claim.name, None)
            return
        self.claims[claim.id] = claim
        self.names[claim.name] = claim.id
        self.last_arrival = max(self.last_arrival, claim.arrival)
        if claim.state is ClaimState.PENDING:
            insort(self.queue, claim.order)
            insort(self.lines.setdefault(line_of(claim.spec), []), claim.order)
        if claim.lease_until is not None:
            insort(self.leases, (claim.lease_until, claim.id))

    def _leave(self, claim: Claim) -> None:
        """Take a claim, as it was, out of everything that is kept in order."""
        if claim.state is ClaimState.PENDING:
            del self.queue[bisect_left(self.queue, claim.order)]
            line = self.lines[line_of(claim.spec)]
            del line[bisect_left(line, claim.order)]
            if not line:
                del self.lines[line_of(claim.spec)]
        if claim.lease_until is not None:
            del self.leases[bisect_left(self.leases, (claim.lease_until, claim.id))]


def enough(pool: Pool, used: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether a pool of which ``used`` is held has the secondary resources ``wanted`` left."""
    if not wanted:
        return True
    offered = dict(pool.resources)
    return all(offered.get(name, 0) - used.get(name, 0) >= amount for name, amount in wanted.items())


def add_resources(used: dict[str, int], state: PoolState, claim: Claim | None, sign: int) -> None:
    """Add (or take off, with -1) what a claim holds of a pool's secondary resources."""
    if claim is not None and claim.pool == state.pool.name:
        for name, amount in claim.spec.resources.items():
            used[name] = used.get(name, 0) + sign * amount


def touched(changes: FleetChanges) -> set[PartitionId]:
    """The partitions of which it may have changed until when they are held; some may be gone."""
    return {*changes.partitions} | {claim.partition for claim, _ in changes.claims.values() if claim.partition}


def holds(state: PoolState, now: Instant) -> Iterator[Hold]:
    """Everything in a pool that is not free, and until when: ``NEVER`` if no limit is known, or it passed in vain."""
    for hold in state.holds.values():
        yield hold if hold.until > now or not hold.until else Hold(hold.block, NEVER)
    for index in state.out:
        yield Hold(Block(range(index, index + 1)), OUT_OF_SERVICE)
    for block in state.foreign.values():
        yield Hold(block, NEVER)


def end_of(partition: Partition, claim: Claim | None) -> Instant:
    """When a partition's devices should be free: 0 if they are being freed, ``NEVER`` if no limit is known."""
    if partition.state is PartitionState.REMOVING:
        return Instant(0)
    if claim is None or claim.partition != partition.id:  # it broke, and its claim holds another one by now
        return NEVER
    if claim.spec.time_limit_s is None or claim.granted_at is None:
        return NEVER
    return after(claim.ready_at or claim.granted_at, claim.spec.time_limit_s)


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
