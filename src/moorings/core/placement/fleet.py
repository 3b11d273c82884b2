"""The fleet: everything that has not ended, as one value that a turn decides on.

``Fleet`` is owned by the scheduling loop. A turn reads it and does not change it; ``apply`` changes it, only after the
database has taken the turn's changes. A fleet rebuilt from the database is equal, because the free maps are canonical.
``core.invariants`` finds every law that a fleet breaks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from moorings.core.model.backlog import Amount, Backlog
from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState, PartitionId
from moorings.core.model.devices import Device, DeviceState, PoolName
from moorings.core.model.machine import MACHINE_KIND
from moorings.core.model.partitions import Partition, PartitionState
from moorings.core.model.projects import Project, Projects, ProjectUsage
from moorings.core.model.queue_reports import Offer, QueueReport
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block, Pool
from moorings.core.placement.free_map import NO_RELEASE, OUT_OF_SERVICE, FreeMap, HeldBlock, Savepoint, free_map_for
from moorings.core.placement.pending_classes import ClassKey, PendingClass, QueueKey, backfill_limit_s, class_key
from moorings.core.placement.release_times import FREE, ReleaseTimes, release_times_for

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
        out_of_service: devices out of service, by index.
        foreign_blocks: blocks of foreign partitions (made outside Moorings), by name.
        used_resources: secondary resources held by claims.
        unreachable_reason: why its driver cannot be reached; empty if it can.
        held_blocks: its partitions and the expected end of each, passed or not.
        release_times: release times of devices that are not free.
        due_releases: expected ends that have not passed yet, as a heap.
        overdue: partitions in ``held_blocks`` whose expected end has passed.
        overdue_checked_at: the time up to which ``due_releases`` was processed.
    """

    pool: Pool
    free: FreeMap
    release_times: ReleaseTimes
    out_of_service: dict[int, Device] = field(default_factory=dict)
    foreign_blocks: dict[str, Block] = field(default_factory=dict)
    used_resources: dict[str, int] = field(default_factory=dict)
    unreachable_reason: str = ""
    held_blocks: dict[PartitionId, HeldBlock] = field(default_factory=dict)
    due_releases: list[tuple[Timestamp, PartitionId]] = field(default_factory=list)
    overdue: set[PartitionId] = field(default_factory=set)
    overdue_checked_at: Timestamp = Timestamp(0)

    @property
    def unusable(self) -> set[int]:
        """The devices that no claim can get: out of service, or in foreign partitions."""
        return {*self.out_of_service, *(index for block in self.foreign_blocks.values() for index in block)}

    def has_resources(self, wanted: Mapping[str, int]) -> bool:
        """Whether the pool has these secondary resources left."""
        return has_resources_left(self.pool, self.used_resources, wanted)

    def set_held_block(self, ident: PartitionId, hold: HeldBlock) -> None:
        """Record that a partition is held, and until when."""
        self.held_blocks[ident] = hold
        self.overdue.discard(ident)
        if 0 < hold.until < NO_RELEASE:
            heappush(self.due_releases, (hold.until, ident))
        self.set_release_time(hold.block, hold.until)

    def set_release_time(self, block: Block, until: Timestamp) -> None:
        """Set when devices should be free, except devices out of service or in foreign partitions."""
        self.release_times.set_release(block, until)
        for index in block if self.out_of_service else ():
            if index in self.out_of_service:
                self.release_times.set_release(Block.single(index), OUT_OF_SERVICE)
        for other in self.foreign_blocks.values():
            if other.overlaps(block):
                for index in other:
                    if index in block and self.release_times.release_time(index) < NO_RELEASE:
                        self.release_times.set_release(Block.single(index), NO_RELEASE)

    def mark_overdue(self, now: Timestamp) -> None:
        """Give up expected ends that have passed; restore them if the clock was set back."""
        if now < self.overdue_checked_at:
            for ident in [one for one in self.overdue if self.held_blocks[one].until > now]:
                self.set_held_block(ident, self.held_blocks[ident])
        self.overdue_checked_at = now
        while self.due_releases and self.due_releases[0][0] <= now:
            until, ident = heappop(self.due_releases)
            hold = self.held_blocks.get(ident)
            if hold is not None and hold.until == until and ident not in self.overdue:
                self.overdue.add(ident)
                self.set_release_time(hold.block, NO_RELEASE)


@dataclass(slots=True)
class FleetChanges:
    """What a turn changed, as values: records with the version they replace (None: new)."""

    claims: dict[ClaimId, tuple[Claim, int | None]] = field(default_factory=dict)
    partitions: dict[PartitionId, tuple[Partition, int | None]] = field(default_factory=dict)
    removed_partitions: dict[PartitionId, int] = field(default_factory=dict)
    devices: dict[tuple[PoolName, int], Device] = field(default_factory=dict)
    foreign: dict[PoolName, dict[str, Block]] = field(default_factory=dict)
    problems: dict[PoolName, str] = field(default_factory=dict)
    reserved_blocks: tuple[ReservedBlock, ...] | None = None
    queue_reports: dict[str, QueueReport | None] = field(default_factory=dict)
    offers: tuple[Offer, ...] | None = None
    projects: dict[str, tuple[Project | None, int | None]] = field(default_factory=dict)
    usage: dict[str, ProjectUsage] = field(default_factory=dict)
    move_times: tuple[Timestamp, ...] | None = None


class Fleet:
    """Pools, and every claim and partition that has not ended."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self.pools: dict[PoolName, PoolState] = {
            pool.name: PoolState(pool, free_map_for(pool.topology), release_times_for(pool.topology)) for pool in pools
        }
        self.claims: dict[ClaimId, Claim] = {}
        self.partitions: dict[PartitionId, Partition] = {}
        self.claim_ids_by_name: dict[str, ClaimId] = {}
        self.partition_ids_by_name: dict[str, PartitionId] = {}
        self.queue: list[QueueKey] = []
        self.pending_classes: dict[
            ClassKey, PendingClass
        ] = {}  # the queue by pending class, so a turn need not walk all of it
        self.backlog = Backlog()
        self.lease_expiries: list[tuple[Timestamp, ClaimId]] = []  # by expiry
        self.last_arrival = Timestamp(0)
        self.reserved_blocks: tuple[ReservedBlock, ...] = ()
        self.queue_reports: dict[str, QueueReport] = {}
        self.offers: tuple[Offer, ...] = ()
        self.projects = Projects((), (state.pool for state in self.pools.values()))
        self.usage: dict[str, ProjectUsage] = {}
        self.moving_claims: set[ClaimId] = set()  # claims asked to move that have not resumed yet
        self.claims_asked_to_yield: set[ClaimId] = set()  # claims asked to yield that have not yielded yet
        self.move_times: tuple[Timestamp, ...] = ()  # when claims were asked to move, in the last hour

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
        for ident in changes.removed_partitions:
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
            self.pools[name].unreachable_reason = problem
        for claim, _ in changes.claims.values():
            self._claim(claim)
        self._holds(changes)
        self._apply_volatile(changes)

    def _apply_volatile(self, changes: FleetChanges) -> None:
        """Apply changes to what no record holds."""
        for queue, report in changes.queue_reports.items():
            if report is not None:
                self.queue_reports[queue] = report
            else:
                self.queue_reports.pop(queue, None)
        if changes.reserved_blocks is not None:
            self.reserved_blocks = changes.reserved_blocks
        if changes.offers is not None:
            self.offers = changes.offers
        if changes.move_times is not None:
            self.move_times = changes.move_times

    def volatile_state(self) -> FleetChanges:
        """State that no database holds: what drivers report, and the last turn's reservations."""
        return FleetChanges(
            foreign={name: dict(state.foreign_blocks) for name, state in self.pools.items()},
            problems={name: state.unreachable_reason for name, state in self.pools.items()},
            reserved_blocks=self.reserved_blocks,
            queue_reports=dict(self.queue_reports),
            offers=self.offers,
            move_times=self.move_times,
        )

    def mark_overdue(self, now: Timestamp) -> None:
        """Stop counting on expected ends that have passed."""
        for state in self.pools.values():
            state.mark_overdue(now)

    def class_key_of(self, claim: Claim) -> ClassKey:
        """The pending class of a claim."""
        return class_key(claim, self.projects)

    def _projects(self, changed: Mapping[str, tuple[Project | None, int | None]]) -> None:
        projects = self.projects
        for name, (project, _) in sorted(changed.items()):
            projects = projects.with_project(project) if project is not None else projects.without(name)
            if project is None:
                self.usage.pop(name, None)
        self.projects = projects
        self.pending_classes = {}  # pending classes depend on projects
        for claim in self.pending_claims():
            self.pending_classes.setdefault(self.class_key_of(claim), PendingClass()).add(
                claim.queue_key, backfill_limit_s(claim)
            )

    def find_claim(self, ident: str) -> Claim | None:
        """The unended claim with that id or name."""
        return self.claims.get(ClaimId(ident)) or self.claims.get(self.claim_ids_by_name.get(ident, ClaimId("")))

    def find_partition(self, ident: str) -> Partition | None:
        """The partition with that id or name."""
        named = self.partition_ids_by_name.get(ident, PartitionId(""))
        return self.partitions.get(PartitionId(ident)) or self.partitions.get(named)

    def pending_claims(self) -> Iterator[Claim]:
        """The claims in the queue, first to last."""
        for order in self.queue:
            yield self.claims[order[2]]

    def _hold(self, partition: Partition) -> None:
        self.partition_ids_by_name[partition.name] = partition.id
        state = self.pools.get(partition.pool)
        if state is not None:
            for block in state.free.free_within(partition.block):
                state.free.allocate(block)

    def _holds(self, changes: FleetChanges) -> None:
        """Update holds and their ends after changes of partitions and claims."""
        for ident in changed_partition_ids(changes):
            partition = self.partitions.get(ident)
            state = self.pools.get(partition.pool) if partition is not None else None
            if partition is not None and state is not None:
                hold = HeldBlock(partition.block, expected_release(partition, self.claims.get(partition.claim)))
                if state.held_blocks.get(ident) != hold:
                    state.set_held_block(ident, hold)

    def _drop(self, partition: Partition) -> None:
        self.partition_ids_by_name.pop(partition.name, None)
        state = self.pools.get(partition.pool)
        if state is not None:
            release_usable_devices(state, partition.block, state.free)
            state.held_blocks.pop(partition.id, None)
            state.overdue.discard(partition.id)
            state.set_release_time(partition.block, FREE)

    def _device(self, device: Device) -> None:
        state = self.pools[device.pool]
        alone = Block.single(device.index)
        if device.state is DeviceState.IN_SERVICE:
            if state.out_of_service.pop(device.index, None) is not None and not self.partition_on_device(
                device.pool, device.index
            ):
                release_usable_devices(state, alone, state.free)
        else:
            state.out_of_service[device.index] = device
            if state.free.is_free(alone):
                state.free.allocate(alone)
        state.set_release_time(alone, self._device_release_time(state, device.index))

    def _device_release_time(self, state: PoolState, index: int) -> Timestamp:
        """When a device should be free, as far as its partition decides that."""
        holder = self.partition_on_device(state.pool.name, index)
        hold = state.held_blocks.get(holder.id) if holder is not None else None
        if holder is None or hold is None:
            return FREE if holder is None else NO_RELEASE
        return NO_RELEASE if holder.id in state.overdue else hold.until

    def _foreign(self, state: PoolState, blocks: dict[str, Block]) -> None:
        gone = [block for name, block in state.foreign_blocks.items() if blocks.get(name) != block]
        state.foreign_blocks = dict(blocks)
        for block in gone:
            for index in block:
                state.set_release_time(Block.single(index), self._device_release_time(state, index))
                if not self.partition_on_device(state.pool.name, index):
                    release_usable_devices(state, Block.single(index), state.free)
        for block in blocks.values():
            for index in block:  # a foreign partition need not be one of our blocks
                alone = Block.single(index)
                if state.free.is_free(alone):
                    state.free.allocate(alone)
                state.set_release_time(alone, self._device_release_time(state, index))

    def partition_on_device(self, pool: PoolName, index: int) -> Partition | None:
        """The partition that holds a device, if one does."""
        return next((p for p in self.partitions.values() if p.pool == pool and index in p.block), None)

    def _claim(self, claim: Claim) -> None:
        before = self.claims.get(claim.id)
        if before is not None:
            self._unindex(before)
        if claim.spec.resources or claim.spec.machine:
            for state in self.pools.values():
                add_resources(state.used_resources, state, before, -1)
                add_resources(state.used_resources, state, None if claim.is_ended else claim, 1)
        for kept, stands in (
            (self.moving_claims, claim.kept is not None),
            (self.claims_asked_to_yield, claim.asked_until is not None),
        ):
            if stands and not claim.is_ended:
                kept.add(claim.id)
            else:
                kept.discard(claim.id)
        if claim.is_ended:
            self.claims.pop(claim.id, None)
            self.claim_ids_by_name.pop(claim.name, None)
            return
        self.claims[claim.id] = claim
        self.claim_ids_by_name[claim.name] = claim.id
        self.last_arrival = max(self.last_arrival, claim.arrival)
        if claim.state is ClaimState.PENDING:
            insort(self.queue, claim.queue_key)
            self.backlog.add(claim.subject, claim.spec.project, ONE_CLAIM)
            self.pending_classes.setdefault(self.class_key_of(claim), PendingClass()).add(
                claim.queue_key, backfill_limit_s(claim)
            )
        if claim.lease_until is not None:
            insort(self.lease_expiries, (claim.lease_until, claim.id))

    def _unindex(self, claim: Claim) -> None:
        """Remove a claim, in its former state, from all ordered indexes."""
        if claim.state is ClaimState.PENDING:
            del self.queue[bisect_left(self.queue, claim.queue_key)]
            self.backlog.add(claim.subject, claim.spec.project, -ONE_CLAIM)
            key = self.class_key_of(claim)
            self.pending_classes[key].remove(claim.queue_key)
            if not self.pending_classes[key]:
                del self.pending_classes[key]
        if claim.lease_until is not None:
            del self.lease_expiries[bisect_left(self.lease_expiries, (claim.lease_until, claim.id))]


def has_resources_left(pool: Pool, used: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether a pool of which ``used`` is held has the secondary resources ``wanted`` left."""
    return not wanted or short_resource(pool, used, wanted) is None


def short_resource(pool: Pool, used: Mapping[str, int], wanted: Mapping[str, int]) -> str | None:
    """The first of the ``wanted`` resources that a pool of which ``used`` is held lacks; None: none.

    A machine offers what it counts; of anything else it has enough.
    """
    offered = dict(pool.resources)
    lacks = (name for name, amount in wanted.items() if offered.get(name, 0) - used.get(name, 0) < amount)
    return next((name for name in lacks if name in offered or pool.kind != MACHINE_KIND), None)


def held_amounts(claim: Claim, pool: Pool) -> Mapping[str, int]:
    """What a claim holds of a pool's secondary resources; of a machine also with devices of another pool."""
    if claim.pool == pool.name:
        return claim.spec.resources
    return claim.spec.machine if claim.pool is not None and pool.kind == MACHINE_KIND else {}


def machine_needs(spec: ClaimSpec) -> Mapping[str, int]:
    """What a claim needs of the controller's machine."""
    return spec.resources if spec.kind == MACHINE_KIND else spec.machine


def add_resources(used: dict[str, int], state: PoolState, claim: Claim | None, sign: int) -> None:
    """Add (or take off, with -1) what a claim holds of a pool's secondary resources."""
    if claim is not None:
        add_amounts(used, held_amounts(claim, state.pool), sign)


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
    kept = state.unusable.intersection(block) if state.out_of_service or state.foreign_blocks else ()
    if not kept:
        target.release(block)
    for index in block if kept else ():
        if index not in kept:
            target.release(Block.single(index))
