"""A turn in progress: the fleet's records with the turn's own changes over them.

The turn leaves the fleet unchanged; the caller applies the changes when the database holds them. Changes to free maps
and release times are made under savepoints and rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

from moorings.core import claims, devices, partitions
from moorings.core.announced import QueueReportOverlay
from moorings.core.backlog import Backlog
from moorings.core.claims import Claim, ClaimEvent, ClaimId, ClaimState, PartitionId
from moorings.core.devices import Device, DeviceEvent, DeviceState, PoolName
from moorings.core.ends import ReleaseTimesSavepoint
from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical_json
from moorings.core.fleet import ONE_CLAIM, Fleet, FleetChanges, PoolState, add_resources, release_usable_devices
from moorings.core.instants import Timestamp
from moorings.core.partitions import Partition, PartitionEvent
from moorings.core.placement import Savepoint, savepoint
from moorings.core.plans import SchedulePlan
from moorings.core.policy import Policy
from moorings.core.projects import Projects, ProjectUsage, add_usage
from moorings.core.reasons import Reason
from moorings.core.topology import Block

_DEVICE_EVENTS = {
    DeviceState.QUARANTINED: "device.quarantined",
    DeviceState.DRAINED: "device.drained",
    DeviceState.IN_SERVICE: "device.resumed",
}


class TurnState:
    """The state all parts of a turn share: records as the turn sees them, its events, and moves of state machines."""

    def __init__(self, fleet: Fleet, policy: Policy, now: Timestamp) -> None:
        self.fleet = fleet
        self.policy = policy
        self.now = now
        self.changes = FleetChanges()
        self.events: list[Event] = []
        self.decided = SchedulePlan((), ())
        self._names: dict[str, ClaimId | None] = {}
        self._partition_names: dict[str, PartitionId | None] = {}
        self._new: list[ClaimId] = []
        self._arrival = fleet.last_arrival
        self._backlog = Backlog()  # the turn's changes
        self._elsewhere = QueueReportOverlay(fleet.announced, now)
        self._stack = ExitStack()
        self._trials: dict[PoolName, Savepoint] = {}
        self._ends: dict[PoolName, ReleaseTimesSavepoint] = {}

    def __enter__(self) -> Self:
        self.fleet.pass_time(self.now)
        for name, state in self.fleet.pools.items():
            self._trials[name] = self._stack.enter_context(savepoint(state.free))
            ends = self._ends[name] = ReleaseTimesSavepoint(state.ends)
            self._stack.callback(ends.undo)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # -- what the turn sees: its own changes over the fleet's records ------------------------------------------------

    def claim(self, ident: ClaimId) -> Claim | None:
        """The claim as this turn sees it."""
        changed = self.changes.claims.get(ident)
        return changed[0] if changed is not None else self.fleet.claims.get(ident)

    def partition(self, ident: PartitionId | None) -> Partition | None:
        """The partition as this turn sees it; None once it is removed."""
        if ident is None or ident in self.changes.removed:
            return None
        changed = self.changes.partitions.get(ident)
        return changed[0] if changed is not None else self.fleet.partitions.get(ident)

    def _save_claim(self, claim: Claim, *, new: bool = False) -> Claim:
        for one, amount in ((self.claim(claim.id), -ONE_CLAIM), (claim, ONE_CLAIM)):
            if one is not None and one.state is ClaimState.PENDING:
                self._backlog.add(one.subject, one.spec.project, amount)
        before = self.changes.claims.get(claim.id)
        expected = before[1] if before is not None else None if new else self.fleet.claims[claim.id].version
        self.changes.claims[claim.id] = (claim, expected)
        return claim

    def _save_partition(self, partition: Partition, *, new: bool = False) -> Partition:
        before = self.changes.partitions.get(partition.id)
        expected = before[1] if before is not None else None if new else self.fleet.partitions[partition.id].version
        self.changes.partitions[partition.id] = (partition, expected)
        return partition

    def _tell(
        self, name: str, about: Claim | Partition | Device | PoolName, data: Mapping[str, object] | None = None
    ) -> None:
        text = canonical_json(data) if data else "{}"
        if isinstance(about, Claim):
            event = Event(name=name, at=self.now, claim=about.id, partition=about.partition, pool=about.pool, data=text)
        elif isinstance(about, Partition):
            event = Event(name=name, at=self.now, claim=about.claim, partition=about.id, pool=about.pool, data=text)
        elif isinstance(about, Device):
            event = Event(name=name, at=self.now, pool=about.pool, device=about.id, data=text)
        else:
            event = Event(name=name, at=self.now, pool=about, data=text)
        self.events.append(event)

    @property
    def projects(self) -> Projects:
        """The projects as the turn sees them."""
        projects = self.fleet.projects
        for name, (project, _) in sorted(self.changes.projects.items()):
            projects = projects.replaced(project) if project is not None else projects.without(name)
        return projects

    def usage(self, project: str) -> ProjectUsage:
        """The usage of a project, as the turn sees it."""
        known = self.changes.usage.get(project) or self.fleet.usage.get(project)
        return known if known is not None else ProjectUsage(project, 0, self.now)

    def _charge(self, claim: Claim, partition: Partition) -> None:
        """Charge a claim's project for the partition that it gives back."""
        began = claim.ready_at or claim.granted_at
        if began is None or not self.projects:
            return
        used = self.usage(claim.spec.project)
        half_life_s = self.policy.half_life_s
        self.changes.usage[used.project] = add_usage(used, partition.size, began, self.now, half_life_s)

    def _gone(self, partition: Partition) -> None:
        gone = partitions.step(partition, PartitionEvent.GONE, self.now)
        claim = self._holder(partition)
        if claim is not None:
            self._charge(claim, partition)
        _, expected = self.changes.partitions.pop(partition.id, (gone, self.fleet.partitions[partition.id].version))
        assert expected is not None, "a partition cannot be made and removed in one turn"
        self.changes.removed[partition.id] = expected
        self._partition_names[partition.name] = None
        self._tell("partition.removed", gone, {"devices": str(gone.block)})
        state = self.fleet.pools[partition.pool]
        release_usable_devices(self._seen(state), partition.block, self._trials[partition.pool])

    def _seen(self, state: PoolState) -> PoolState:
        """The pool with this turn's changes, over the same free map."""
        name = state.pool.name
        changed = {index: device for (pool, index), device in self.changes.devices.items() if pool == name}
        out = {**state.out, **changed} if changed else state.out
        return replace(
            state,
            out={i: device for i, device in out.items() if device.state is not DeviceState.IN_SERVICE}
            if changed
            else out,
            foreign=self.changes.foreign.get(name, state.foreign),
            used=self._used(state),
            problem=self.changes.problems.get(name, state.problem),
        )

    def _used(self, state: PoolState) -> dict[str, int]:
        """The pool's secondary resources held by claims, as this turn sees them."""
        used = dict(state.used)
        for claim, _ in self.changes.claims.values():
            if claim.spec.resources:
                before = self.fleet.claims.get(claim.id)
                add_resources(used, state, before, -1)
                add_resources(used, state, None if claim.ended else claim, 1)
        return used

    # -- moves -------------------------------------------------------------------------------------------------------

    def _holder(self, partition: Partition) -> Claim | None:
        """The unended claim whose partition it is."""
        claim = self.claim(partition.claim)
        return claim if claim is not None and claim.partition == partition.id and not claim.ended else None

    def _step_claim(self, claim: Claim, event: ClaimEvent, reason: Reason | None = None) -> Claim:
        moved = claims.step(claim, event, self.now, reason)
        if moved.ended or moved.state is ClaimState.PENDING:
            moved = replace(moved, cell=None, asked_until=None)
        if moved.ended:
            self._names[moved.name] = None
        return self._save_claim(moved)

    def _step_partition(self, partition: Partition, event: PartitionEvent, reason: str = "") -> Partition:
        return self._save_partition(partitions.step(partition, event, self.now, reason))

    def _freed(self, claim: Claim) -> Claim:
        claim = self._step_claim(claim, ClaimEvent.FREED, claim.reason)
        self._tell("claim.released", claim)
        return claim

    def _requeue(self, claim: Claim) -> Claim:
        """The claim has yielded its devices, and waits again in its old place."""
        claim = self._step_claim(claim, ClaimEvent.REQUEUE)
        self._tell("claim.requeued", claim, {"attempt": claim.attempt})
        return claim

    def _break(self, partition: Partition, detail: str) -> Partition:
        partition = self._step_partition(partition, PartitionEvent.BREAK, detail)
        self._tell("partition.broken", partition, {"why": detail, "devices": str(partition.block)})
        return partition

    def _out_of_service(self, partition: Partition, event: DeviceEvent, reason: str) -> None:
        for index in partition.block:
            self._device_event(partition.pool, index, event, f"partition {partition.name}: {reason}")

    def _device_event(self, pool: PoolName, index: int, event: DeviceEvent, reason: str) -> Device:
        state = self.fleet.pools.get(pool)
        if state is None or not 0 <= index < state.pool.topology.n_devices:
            raise MooringsError("device.unknown", f"there is no device {devices.device_id(pool, index)}")
        before = self.changes.devices.get((pool, index)) or state.out.get(index)
        before = before or Device(pool, index, DeviceState.IN_SERVICE, "", self.now)
        device = devices.step(before, event, reason, self.now)
        if device != before:
            self.changes.devices[pool, index] = device
            self._tell(_DEVICE_EVENTS[device.state], device, {"why": reason} if reason else None)
            self._try_device(state, device)
        return device

    def _try_device(self, state: PoolState, device: Device) -> None:
        """Apply a device's change of service to the maps of this turn's plan."""
        alone, on_trial = Block(range(device.index, device.index + 1)), self._trials[device.pool]
        if device.state is not DeviceState.IN_SERVICE:
            if state.free.is_free(alone):
                on_trial.take(alone)
        elif not state.free.is_free(alone) and not any(
            partition.pool == device.pool and device.index in partition.block for partition in self._partitions()
        ):
            release_usable_devices(self._seen(state), alone, on_trial)

    def _partitions(self) -> Iterator[Partition]:
        changed = self.changes.partitions
        yield from (partition for partition, _ in changed.values())
        passed = self.changes.removed
        yield from (p for p in self.fleet.partitions.values() if p.id not in changed and p.id not in passed)
