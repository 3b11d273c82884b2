"""A turn in progress: the fleet's records with the turn's own changes over them.

The turn leaves the fleet unchanged; the caller applies the changes when the database holds them. Changes to free maps
and release times are made under savepoints and rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from moorings.core.model import claims, devices, partitions
from moorings.core.model.backlog import Backlog
from moorings.core.model.claims import Claim, ClaimEvent, ClaimId, ClaimState, PartitionId
from moorings.core.model.devices import Device, DeviceEvent, DeviceState, PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import UNOWNED, Event, canonical_json
from moorings.core.model.partitions import Partition, PartitionEvent
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Projects, ProjectUsage, add_usage
from moorings.core.model.queue_reports import QueueReportOverlay
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.core.model.visibility import ownership_of
from moorings.core.placement.fleet import (
    ONE_CLAIM,
    Fleet,
    FleetChanges,
    PoolState,
    add_resources,
    release_usable_devices,
)
from moorings.core.placement.free_map import Savepoint
from moorings.core.placement.plans import SchedulePlan
from moorings.core.placement.release_times import ReleaseTimesSavepoint

_DEVICE_EVENTS = {
    DeviceState.QUARANTINED: "device.quarantined",
    DeviceState.DRAINED: "device.drained",
    DeviceState.IN_SERVICE: "device.resumed",
}


class TurnState:
    """The state of a turn: records as the turn sees them, its events, and moves of state machines.

    Attributes:
        changes: what the turn has changed.
        events: its events.
        plan: the plan, once the queue was scheduled.
        claim_ids_by_name: names of claims that the turn has used, or (None) freed; ``partition_names``: of partitions.
        new_claim_ids: the claims created in this turn.
        last_arrival: the latest arrival of a claim.
        backlog: the changes of what is pending.
        queue_reports: what agents say of other schedulers' queues.
        savepoints: the free maps of the pools; ``release_times``: their release times.
    """

    def __init__(self, fleet: Fleet, policy: Policy, now: Timestamp) -> None:
        self.fleet = fleet
        self.policy = policy
        self.now = now
        self.changes = FleetChanges()
        self.events: list[Event] = []
        self.plan = SchedulePlan((), ())
        self.claim_ids_by_name: dict[str, ClaimId | None] = {}
        self.partition_names: dict[str, PartitionId | None] = {}
        self.new_claim_ids: list[ClaimId] = []
        self.last_arrival = fleet.last_arrival
        self.backlog = Backlog()  # the turn's changes
        self.queue_reports = QueueReportOverlay(fleet.queue_reports, now)
        self.savepoints: dict[PoolName, Savepoint] = {}
        self.release_times: dict[PoolName, ReleaseTimesSavepoint] = {}

    def begin(self) -> None:
        """Begin to change free maps and release times."""
        self.fleet.mark_overdue(self.now)
        for name, state in self.fleet.pools.items():
            self.savepoints[name] = Savepoint(state.free)
            self.release_times[name] = ReleaseTimesSavepoint(state.release_times)

    def roll_back(self) -> None:
        """Restore free maps and release times."""
        for ends in self.release_times.values():
            ends.rollback()
        for free in self.savepoints.values():
            free.rollback()

    # -- what the turn sees: its own changes over the fleet's records ------------------------------------------------

    def claim(self, ident: ClaimId) -> Claim | None:
        """The claim as this turn sees it."""
        changed = self.changes.claims.get(ident)
        return changed[0] if changed is not None else self.fleet.claims.get(ident)

    def partition(self, ident: PartitionId | None) -> Partition | None:
        """The partition as this turn sees it; None once it is removed."""
        if ident is None or ident in self.changes.removed_partitions:
            return None
        changed = self.changes.partitions.get(ident)
        return changed[0] if changed is not None else self.fleet.partitions.get(ident)

    def save_claim(self, claim: Claim, *, new: bool = False) -> Claim:
        """Save a claim among the changes."""
        for one, amount in ((self.claim(claim.id), -ONE_CLAIM), (claim, ONE_CLAIM)):
            if one is not None and one.state is ClaimState.PENDING:
                self.backlog.add(one.subject, one.spec.project, amount)
        before = self.changes.claims.get(claim.id)
        expected = before[1] if before is not None else None if new else self.fleet.claims[claim.id].version
        self.changes.claims[claim.id] = (claim, expected)
        return claim

    def save_partition(self, partition: Partition, *, new: bool = False) -> Partition:
        """Save a partition among the changes."""
        before = self.changes.partitions.get(partition.id)
        expected = before[1] if before is not None else None if new else self.fleet.partitions[partition.id].version
        self.changes.partitions[partition.id] = (partition, expected)
        return partition

    def emit_event(
        self, name: str, about: Claim | Partition | Device | PoolName, data: Mapping[str, object] | None = None
    ) -> None:
        """Add an event about a claim, partition, device or pool."""
        text = canonical_json(data) if data else "{}"
        claim = about if isinstance(about, Claim) else self.claim(about.claim) if isinstance(about, Partition) else None
        of = ownership_of(claim) if claim is not None else UNOWNED
        if isinstance(about, Claim):
            named: dict[str, str | None] = {"claim": about.id, "partition": about.partition, "pool": about.pool}
        elif isinstance(about, Partition):
            named = {"claim": about.claim, "partition": about.id, "pool": about.pool}
        elif isinstance(about, Device):
            named = {"pool": about.pool, "device": about.id}
        else:
            named = {"pool": about}
        self.events.append(Event(name=name, at=self.now, data=text, ownership=of, **named))

    @property
    def projects(self) -> Projects:
        """The projects as the turn sees them."""
        projects = self.fleet.projects
        for name, (project, _) in sorted(self.changes.projects.items()):
            projects = projects.with_project(project) if project is not None else projects.without(name)
        return projects

    def usage(self, project: str) -> ProjectUsage:
        """The usage of a project, as the turn sees it."""
        known = self.changes.usage.get(project) or self.fleet.usage.get(project)
        return known if known is not None else ProjectUsage(project, 0, self.now)

    def _charge_usage(self, claim: Claim, partition: Partition) -> None:
        """Charge a claim's project for the partition that it gives back."""
        began = claim.ready_at or claim.granted_at
        if began is None or not self.projects:
            return
        used = self.usage(claim.spec.project)
        half_life_s = self.policy.half_life_s
        self.changes.usage[used.project] = add_usage(used, partition.size, began, self.now, half_life_s)

    def remove_partition(self, partition: Partition) -> None:
        """The driver has reported that nothing of a partition is left."""
        gone = partitions.step(partition, PartitionEvent.GONE, self.now)
        claim = self.claim_holding(partition)
        if claim is not None:
            self._charge_usage(claim, partition)
        _, expected = self.changes.partitions.pop(partition.id, (gone, self.fleet.partitions[partition.id].version))
        assert expected is not None, "a partition cannot be made and removed in one turn"
        self.changes.removed_partitions[partition.id] = expected
        self.partition_names[partition.name] = None
        self.emit_event("partition.removed", gone, {"devices": str(gone.block)})
        state = self.fleet.pools[partition.pool]
        release_usable_devices(self.current_pool(state), partition.block, self.savepoints[partition.pool])

    def current_pool(self, state: PoolState) -> PoolState:
        """The pool with this turn's changes, over the same free map."""
        name = state.pool.name
        changed = {index: device for (pool, index), device in self.changes.devices.items() if pool == name}
        out = {**state.out_of_service, **changed} if changed else state.out_of_service
        return replace(
            state,
            out_of_service={i: device for i, device in out.items() if device.state is not DeviceState.IN_SERVICE}
            if changed
            else out,
            foreign_blocks=self.changes.foreign.get(name, state.foreign_blocks),
            used_resources=self._current_resources(state),
            unreachable_reason=self.changes.problems.get(name, state.unreachable_reason),
        )

    def _current_resources(self, state: PoolState) -> dict[str, int]:
        """The pool's secondary resources held by claims, as this turn sees them."""
        used = dict(state.used_resources)
        for claim, _ in self.changes.claims.values():
            if claim.spec.resources or claim.spec.machine:
                before = self.fleet.claims.get(claim.id)
                add_resources(used, state, before, -1)
                add_resources(used, state, None if claim.is_ended else claim, 1)
        return used

    # -- moves -------------------------------------------------------------------------------------------------------

    def claim_holding(self, partition: Partition) -> Claim | None:
        """The unended claim whose partition it is."""
        claim = self.claim(partition.claim)
        return claim if claim is not None and claim.partition == partition.id and not claim.is_ended else None

    def step_claim(self, claim: Claim, event: ClaimEvent, reason: Reason | None = None) -> Claim:
        """Move a claim to its next state."""
        moved = claims.step(claim, event, self.now, reason)
        if moved.is_ended or moved.state is ClaimState.PENDING:
            moved = replace(moved, cell=None, asked_until=None)
        if moved.is_ended:
            self.claim_ids_by_name[moved.name] = None
        return self.save_claim(moved)

    def step_partition(self, partition: Partition, event: PartitionEvent, reason: str = "") -> Partition:
        """Move a partition to its next state."""
        return self.save_partition(partitions.step(partition, event, self.now, reason))

    def finish_release(self, claim: Claim) -> Claim:
        """The devices of a released claim are free."""
        claim = self.step_claim(claim, ClaimEvent.FREED, claim.reason)
        self.emit_event("claim.released", claim)
        return claim

    def requeue(self, claim: Claim) -> Claim:
        """The claim has yielded its devices, and waits again in its old place."""
        claim = self.step_claim(claim, ClaimEvent.REQUEUE)
        self.emit_event("claim.requeued", claim, {"attempt": claim.attempt})
        return claim

    def fail_partition(self, partition: Partition, detail: str) -> Partition:
        """A partition broke."""
        partition = self.step_partition(partition, PartitionEvent.BREAK, detail)
        self.emit_event("partition.broken", partition, {"why": detail, "devices": str(partition.block)})
        return partition

    def take_out_of_service(self, partition: Partition, event: DeviceEvent, reason: str) -> None:
        """Take the devices of a partition out of service."""
        for index in partition.block:
            self.step_device(partition.pool, index, event, f"partition {partition.name}: {reason}")

    def step_device(self, pool: PoolName, index: int, event: DeviceEvent, reason: str) -> Device:
        """Move a device to its next state.

        Raises:
            MooringsError: ``device.unknown``, ``state.illegal_move``.
        """
        state = self.fleet.pools.get(pool)
        if state is None or not 0 <= index < state.pool.topology.n_devices:
            raise MooringsError("device.unknown", f"there is no device {devices.device_id(pool, index)}")
        before = self.changes.devices.get((pool, index)) or state.out_of_service.get(index)
        before = before or Device(pool, index, DeviceState.IN_SERVICE, "", self.now)
        device = devices.step(before, event, reason, self.now)
        if device != before:
            self.changes.devices[pool, index] = device
            self.emit_event(_DEVICE_EVENTS[device.state], device, {"why": reason} if reason else None)
            self._apply_device(state, device)
        return device

    def _apply_device(self, state: PoolState, device: Device) -> None:
        """Apply a device's change of service to the maps of this turn's plan."""
        alone, on_trial = Block.single(device.index), self.savepoints[device.pool]
        if device.state is not DeviceState.IN_SERVICE:
            if state.free.is_free(alone):
                on_trial.allocate(alone)
        elif not state.free.is_free(alone) and not any(
            partition.pool == device.pool and device.index in partition.block for partition in self.list_partitions()
        ):
            release_usable_devices(self.current_pool(state), alone, on_trial)

    def list_partitions(self) -> Iterator[Partition]:
        """The partitions as the turn sees them."""
        changed = self.changes.partitions
        yield from (partition for partition, _ in changed.values())
        passed = self.changes.removed_partitions
        yield from (p for p in self.fleet.partitions.values() if p.id not in changed and p.id not in passed)
