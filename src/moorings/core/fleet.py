"""The fleet: everything that has not ended, as one value that a turn decides on.

``Fleet`` is owned by the scheduling loop. A turn reads it and does not change it; ``apply`` changes it, only after the
database has taken the turn's changes. A fleet rebuilt from the database is equal, because the free maps are canonical.
``core.laws`` finds every law that a fleet breaks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from moorings.core.announced import Offer, QueueReport
from moorings.core.backlog import Amount, Backlog
from moorings.core.claims import Claim, ClaimId, ClaimState, PartitionId
from moorings.core.devices import Device, DeviceState, PoolName
from moorings.core.ends import FREE, ReleaseTimes, release_times_for
from moorings.core.instants import Timestamp, add_seconds
from moorings.core.lines import ClassKey, PendingClass, QueueKey, backfill_limit_s, class_key
from moorings.core.partitions import Partition, PartitionState
from moorings.core.placement import NO_RELEASE, OUT_OF_SERVICE, FreeMap, HeldBlock, Savepoint, free_map_for
from moorings.core.projects import Project, Projects, ProjectUsage
from moorings.core.topology import Block, Pool

ONE_CLAIM: Final = Amount(1)  # of the backlog


@dataclass(frozen=True, slots=True)
class ReservedBlock:
    """The block reserved for the first claim that must wait in a pool; ``until`` is when it should be empty.

    The block is empty if the claim asked for no devices, or if a number of devices is reserved: claims are moved then.
    """

    claim: ClaimId
    pool: PoolName
    block: Block
    until: Timestamp


@dataclass(slots=True)
class PoolState:
    """A pool and what is not free in it.

    Attributes:
        out: devices out of service, by index.
        foreign: blocks of foreign partitions (made outside Moorings), by name.
        used: secondary resources held by claims.
        problem: why its driver cannot be reached; empty if it can.
        holds: its partitions and the expected end of each, passed or not.
        ends: release times of devices that are not free.
        due: expected ends that have not passed yet, as a heap.
        overdue: partitions in ``holds`` whose expected end has passed.
        passed: the time up to which ``due`` was processed.
    """

    pool: Pool
    free: FreeMap
    ends: ReleaseTimes
    out: dict[int, Device] = field(default_factory=dict)
    foreign: dict[str, Block] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    holds: dict[PartitionId, HeldBlock] = field(default_factory=dict)
    due: list[tuple[Timestamp, PartitionId]] = field(default_factory=list)
    overdue: set[PartitionId] = field(default_factory=set)
    passed: Timestamp = Timestamp(0)

    def room(self, wanted: Mapping[str, int]) -> bool:
        """Whether the pool has these secondary resources left."""
        return has_resources_left(self.pool, self.used, wanted)

    def hold(self, ident: PartitionId, hold: HeldBlock) -> None:
        """Record that a partition is held, and until when."""
        self.holds[ident] = hold
        self.overdue.discard(ident)
        if 0 < hold.until < NO_RELEASE:
            heappush(self.due, (hold.until, ident))
        self.mark(hold.block, hold.until)

    def mark(self, block: Block, until: Timestamp) -> None:
        """Set when devices should be free, except devices out of service or in foreign partitions."""
        self.ends.put(block, until)
        for index in block if self.out else ():
            if index in self.out:
                self.ends.put(Block(range(index, index + 1)), OUT_OF_SERVICE)
        for other in self.foreign.values():
            if other.overlaps(block):
                for index in other:
                    if index in block and self.ends.until(index) < NO_RELEASE:
                        self.ends.put(Block(range(index, index + 1)), NO_RELEASE)

    def pass_time(self, now: Timestamp) -> None:
        """Give up expected ends that have passed; restore them if the clock was set back."""
        if now < self.passed:
            for ident in [one for one in self.overdue if self.holds[one].until > now]:
                self.hold(ident, self.holds[ident])
        self.passed = now
        while self.due and self.due[0][0] <= now:
            until, ident = heappop(self.due)
            hold = self.holds.get(ident)
            if hold is not None and hold.until == until and ident not in self.overdue:
                self.overdue.add(ident)
                self.mark(hold.block, NO_RELEASE)


@dataclass(slots=True)
class FleetChanges:
    """What a turn changed, as values: records with the version they replace (None: new)."""

    claims: dict[ClaimId, tuple[Claim, int | None]] = field(default_factory=dict)
    partitions: dict[PartitionId, tuple[Partition, int | None]] = field(default_factory=dict)
    removed: dict[PartitionId, int] = field(default_factory=dict)
    devices: dict[tuple[PoolName, int], Device] = field(default_factory=dict)
    foreign: dict[PoolName, dict[str, Block]] = field(default_factory=dict)
    problems: dict[PoolName, str] = field(default_factory=dict)
    reservations: tuple[ReservedBlock, ...] | None = None
    announced: dict[str, QueueReport | None] = field(default_factory=dict)
    offers: tuple[Offer, ...] | None = None
    projects: dict[str, tuple[Project | None, int | None]] = field(default_factory=dict)
    usage: dict[str, ProjectUsage] = field(default_factory=dict)
    moved: tuple[Timestamp, ...] | None = None


class Fleet:
    """Pools, and every claim and partition that has not ended."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self.pools: dict[PoolName, PoolState] = {
            pool.name: PoolState(pool, free_map_for(pool.topology), release_times_for(pool.topology)) for pool in pools
        }
        self.claims: dict[ClaimId, Claim] = {}
        self.partitions: dict[PartitionId, Partition] = {}
        self.names: dict[str, ClaimId] = {}
        self.partition_names: dict[str, PartitionId] = {}
        self.queue: list[QueueKey] = []
        self.lines: dict[ClassKey, PendingClass] = {}  # the queue by pending class, so a turn need not walk all of it
        self.backlog = Backlog()
        self.leases: list[tuple[Timestamp, ClaimId]] = []  # by expiry
        self.last_arrival = Timestamp(0)
        self.reservations: tuple[ReservedBlock, ...] = ()
        self.announced: dict[str, QueueReport] = {}
        self.offers: tuple[Offer, ...] = ()
        self.projects = Projects((), (state.pool for state in self.pools.values()))
        self.usage: dict[str, ProjectUsage] = {}
        self.moving: set[ClaimId] = set()  # claims asked to move that have not resumed yet
        self.asked: set[ClaimId] = set()  # claims asked to yield that have not yielded yet
        self.moved: tuple[Timestamp, ...] = ()  # when claims were asked to move, in the last hour

    @classmethod
    def load(
        cls,
        pools: Iterable[Pool],
        claims: Iterable[Claim],
        partitions: Iterable[Partition],
        devices: Iterable[Device],
        projects: Iterable[Project] = (),
        usage: Iterable[ProjectUsage] = (),
    ) -> Fleet:
        """The fleet of a database's unended records."""
        fleet = cls(pools)
        changes = FleetChanges()
        changes.projects = {project.name: (project, None) for project in projects}
        changes.usage = {used.project: used for used in usage}
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
        """Apply the changes of a turn. Call it only after the database has saved them."""
        if changes.projects:
            self._projects(changes.projects)
        self.usage.update(changes.usage)
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
        self._beside(changes)

    def _beside(self, changes: FleetChanges) -> None:
        """Apply changes to what no record holds."""
        for queue, report in changes.announced.items():
            if report is not None:
                self.announced[queue] = report
            else:
                self.announced.pop(queue, None)
        if changes.reservations is not None:
            self.reservations = changes.reservations
        if changes.offers is not None:
            self.offers = changes.offers
        if changes.moved is not None:
            self.moved = changes.moved

    def beside_the_records(self) -> FleetChanges:
        """State that no database holds: what drivers report, and the last turn's reservations."""
        return FleetChanges(
            foreign={name: dict(state.foreign) for name, state in self.pools.items()},
            problems={name: state.problem for name, state in self.pools.items()},
            reservations=self.reservations,
            announced=dict(self.announced),
            offers=self.offers,
            moved=self.moved,
        )

    def pass_time(self, now: Timestamp) -> None:
        """Stop counting on expected ends that have passed."""
        for state in self.pools.values():
            state.pass_time(now)

    def line_of(self, claim: Claim) -> ClassKey:
        """The pending class of a claim."""
        return class_key(claim, self.projects)

    def _projects(self, changed: Mapping[str, tuple[Project | None, int | None]]) -> None:
        projects = self.projects
        for name, (project, _) in sorted(changed.items()):
            projects = projects.replaced(project) if project is not None else projects.without(name)
            if project is None:
                self.usage.pop(name, None)
        self.projects = projects
        self.lines = {}  # pending classes depend on projects
        for claim in self.waiting():
            self.lines.setdefault(self.line_of(claim), PendingClass()).add(claim.order, backfill_limit_s(claim))

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
        """Update holds and their ends after changes of partitions and claims."""
        for ident in changed_partition_ids(changes):
            partition = self.partitions.get(ident)
            state = self.pools.get(partition.pool) if partition is not None else None
            if partition is not None and state is not None:
                hold = HeldBlock(partition.block, expected_release(partition, self.claims.get(partition.claim)))
                if state.holds.get(ident) != hold:
                    state.hold(ident, hold)

    def _drop(self, partition: Partition) -> None:
        self.partition_names.pop(partition.name, None)
        state = self.pools.get(partition.pool)
        if state is not None:
            release_usable_devices(state, partition.block, state.free)
            state.holds.pop(partition.id, None)
            state.overdue.discard(partition.id)
            state.mark(partition.block, FREE)

    def _device(self, device: Device) -> None:
        state = self.pools[device.pool]
        alone = Block(range(device.index, device.index + 1))
        if device.state is DeviceState.IN_SERVICE:
            if state.out.pop(device.index, None) is not None and not self.holder(device.pool, device.index):
                release_usable_devices(state, alone, state.free)
        else:
            state.out[device.index] = device
            if state.free.is_free(alone):
                state.free.take(alone)
        state.mark(alone, self._until(state, device.index))

    def _until(self, state: PoolState, index: int) -> Timestamp:
        """When a device should be free, as far as its partition decides that."""
        holder = self.holder(state.pool.name, index)
        hold = state.holds.get(holder.id) if holder is not None else None
        if holder is None or hold is None:
            return FREE if holder is None else NO_RELEASE
        return NO_RELEASE if holder.id in state.overdue else hold.until

    def _foreign(self, state: PoolState, blocks: dict[str, Block]) -> None:
        gone = [block for name, block in state.foreign.items() if blocks.get(name) != block]
        state.foreign = dict(blocks)
        for block in gone:
            for index in block:
                state.mark(Block(range(index, index + 1)), self._until(state, index))
                if not self.holder(state.pool.name, index):
                    release_usable_devices(state, Block(range(index, index + 1)), state.free)
        for block in blocks.values():
            for index in block:  # a foreign partition need not be one of our blocks
                alone = Block(range(index, index + 1))
                if state.free.is_free(alone):
                    state.free.take(alone)
                state.mark(alone, self._until(state, index))

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
        for kept, stands in ((self.moving, claim.kept is not None), (self.asked, claim.asked_until is not None)):
            if stands and not claim.ended:
                kept.add(claim.id)
            else:
                kept.discard(claim.id)
        if claim.ended:
            self.claims.pop(claim.id, None)
            self.names.pop(claim.name, None)
            return
        self.claims[claim.id] = claim
        self.names[claim.name] = claim.id
        self.last_arrival = max(self.last_arrival, claim.arrival)
        if claim.state is ClaimState.PENDING:
            insort(self.queue, claim.order)
            self.backlog.add(claim.subject, claim.spec.project, ONE_CLAIM)
            self.lines.setdefault(self.line_of(claim), PendingClass()).add(claim.order, backfill_limit_s(claim))
        if claim.lease_until is not None:
            insort(self.leases, (claim.lease_until, claim.id))

    def _leave(self, claim: Claim) -> None:
        """Remove a claim, in its former state, from all ordered indexes."""
        if claim.state is ClaimState.PENDING:
            del self.queue[bisect_left(self.queue, claim.order)]
            self.backlog.add(claim.subject, claim.spec.project, -ONE_CLAIM)
            key = self.line_of(claim)
            self.lines[key].remove(claim.order)
            if not self.lines[key]:
                del self.lines[key]
        if claim.lease_until is not None:
            del self.leases[bisect_left(self.leases, (claim.lease_until, claim.id))]


def has_resources_left(pool: Pool, used: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether a pool of which ``used`` is held has the secondary resources ``wanted`` left."""
    if not wanted:
        return True
    offered = dict(pool.resources)
    return all(offered.get(name, 0) - used.get(name, 0) >= amount for name, amount in wanted.items())


def add_resources(used: dict[str, int], state: PoolState, claim: Claim | None, sign: int) -> None:
    """Add (or take off, with -1) what a claim holds of a pool's secondary resources."""
    if claim is not None and claim.pool == state.pool.name:
        add_amounts(used, claim.spec.resources, sign)


def add_amounts(used: dict[str, int], resources: Mapping[str, int], sign: int) -> None:
    """Add (or take off, with -1) amounts of secondary resources."""
    for name, amount in resources.items():
        used[name] = used.get(name, 0) + sign * amount


def changed_partition_ids(changes: FleetChanges) -> set[PartitionId]:
    """The partitions whose expected release may have changed; some may be gone."""
    return {*changes.partitions} | {claim.partition for claim, _ in changes.claims.values() if claim.partition}


def expected_release(partition: Partition, claim: Claim | None) -> Timestamp:
    """When a partition's devices should be free: 0 if they are being freed, ``NO_RELEASE`` if no limit is known."""
    if partition.state is PartitionState.REMOVING:
        return Timestamp(0)
    if claim is None or claim.partition != partition.id:  # it broke, and its claim holds another one by now
        return NO_RELEASE
    ends = NO_RELEASE
    if claim.spec.time_limit_s is not None and claim.granted_at is not None:
        ends = add_seconds(claim.ready_at or claim.granted_at, claim.spec.time_limit_s)
    if claim.state is ClaimState.RECLAIMING and claim.asked_until is not None:
        ends = min(ends, claim.asked_until)
    return ends


def release_usable_devices(state: PoolState, block: Block, target: FreeMap | Savepoint) -> None:
    """Release a block, except its devices that are out of service or in foreign partitions."""
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
