"""The simulated vendor's controller: carries out requests on the machine, refuses like a real one, shows states.

Faults (an agent that is down, an unknown state) change the shown states here; ``driver`` handles faults of requests and
answers on their way.
"""

from __future__ import annotations

from dataclasses import replace

from moorings.core.model.driver_results import DriverResult, ObservedState, PartitionSpec, ResultCode
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block, Pool
from moorings.drivers.simulated.faults import FaultKind, VendorCall, VendorFaults
from moorings.drivers.simulated.hardware import SimulatedHardware
from moorings.drivers.simulated.partition import SimulatedPartition, VendorState
from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.drivers.simulated.spontaneous import with_provisioning_fault

_SEEN: dict[str, ObservedState] = {
    VendorState.PROVISIONING: ObservedState.PROVISIONING,
    VendorState.ACTIVE: ObservedState.ACTIVE,
    VendorState.RESETTING: ObservedState.RESETTING,
    VendorState.REMOVING: ObservedState.REMOVING,
    VendorState.ERROR: ObservedState.ERROR,
}


def parse_state(shown: str) -> ObservedState:
    """Return our state for a vendor's; an unknown one is UNKNOWN: not ready, not gone (law 4)."""
    return _SEEN.get(shown, ObservedState.UNKNOWN)


class VendorController:
    """Requests for one machine; each takes effect at ``now``, at once and as a whole."""

    def __init__(
        self, pool: Pool, settings: SimulatedSettings, machine: SimulatedHardware, faults: VendorFaults
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._machine = machine
        self._faults = faults

    def create(self, order: PartitionSpec, now: Timestamp) -> DriverResult:
        held = self._machine.find_partition(order.name, now)
        if held is not None:
            return self._existing_answer(held, order, now)
        refusal = self._rejection(order)
        if refusal:
            return DriverResult(ResultCode.REJECTED, ObservedState.ABSENT, refusal)
        holder = self._machine.find_holder(order.block, now)
        if holder is not None:
            detail = f"device in use: {order.block} overlaps partition {holder.name}"
            return DriverResult(ResultCode.UNAVAILABLE, ObservedState.ABSENT, detail)
        settings = self._settings
        time_s = settings.provision_s + settings.provision_per_device_s * len(order.block)
        made = SimulatedPartition(
            serial=self._machine.next_serial(),
            name=order.name,
            block=order.block,
            gcds=order.gcds,
            replicas_per_gcd=order.replicas_per_gcd,
            mark=order.mark,
            ready_at=add_seconds(now, time_s * self._slow_factor(VendorCall.CREATE, order.name, order.block)),
        )
        if self._faults:
            made = with_provisioning_fault(made, self._faults, now)
        self._machine.save_partition(made, "created")
        return self._answer_for(made, now)

    def _existing_answer(self, held: SimulatedPartition, order: PartitionSpec, now: Timestamp) -> DriverResult:
        if held.mark != order.mark:
            return DriverResult(
                ResultCode.UNAVAILABLE, detail=f"partition {order.name} already exists and is not yours"
            )
        if held.block != order.block:
            return DriverResult(ResultCode.REJECTED, detail=f"partition {order.name} already exists, on {held.block}")
        return self._answer_for(held, now)

    def _rejection(self, order: PartitionSpec) -> str:
        """Return why the vendor's controller refuses to create this partition; empty if it does not."""
        size, topology = len(order.block), self._pool.topology
        too_long = self._faults.inject(FaultKind.NAME_TOO_LONG, VendorCall.CREATE, order.name, order.block)
        if too_long or len(order.name) > self._settings.name_chars_max:
            return f"Failed to acquire {size} {self._pool.kind.upper()}(s)"  # as misleading as V-IPU's own words
        if not topology.is_block(order.block):
            return f"devices {order.block} cannot form a partition"
        if order.gcds < 1 or size % order.gcds:
            return f"{size} devices cannot be divided among {order.gcds} GCDs"
        reason = topology.ineligible_reason(size, order.gcds)
        return reason.message if reason is not None else ""

    def reset(self, name: str, mark: str, now: Timestamp) -> DriverResult:
        held = self._find_owned(name, mark, now)
        state = held.state(now) if held is not None else None
        if held is None or state is VendorState.REMOVING:
            return DriverResult(
                ResultCode.REJECTED, ObservedState.REMOVING if held else ObservedState.ABSENT, f"no partition {name}"
            )
        if state is VendorState.PROVISIONING:
            return DriverResult(
                ResultCode.UNAVAILABLE, ObservedState.PROVISIONING, f"partition {name} is not ready yet"
            )
        if state is not VendorState.ACTIVE:
            return self._answer_for(held, now)
        settings = self._settings
        time_s = settings.reset_s + settings.reset_per_device_s * len(held.block)
        ready_at = add_seconds(now, time_s * self._slow_factor(VendorCall.RESET, name, held.block))
        held = replace(held, ready_at=ready_at, was_reset=True)
        self._machine.save_partition(held, "reset")
        return self._answer_for(held, now)

    def remove(self, name: str, mark: str, now: Timestamp) -> DriverResult:
        held = self._find_owned(name, mark, now)
        if held is None:
            return DriverResult(ResultCode.OK, ObservedState.ABSENT)
        if held.gone_at is not None:
            return DriverResult(ResultCode.OK, ObservedState.REMOVING)
        settings = self._settings
        time_s = settings.remove_s + settings.remove_per_device_s * len(held.block)
        gone_at = add_seconds(now, time_s * self._slow_factor(VendorCall.REMOVE, name, held.block))
        if gone_at <= now:
            self._machine.delete_partition(held)
            return DriverResult(ResultCode.OK, ObservedState.ABSENT)
        self._machine.save_partition(replace(held, gone_at=gone_at), "removed")
        return DriverResult(ResultCode.OK, ObservedState.REMOVING)

    def _find_owned(self, name: str, mark: str, now: Timestamp) -> SimulatedPartition | None:
        """Return the partition of that name if it carries the mark: another owner's is never touched."""
        held = self._machine.find_partition(name, now)
        return held if held is not None and held.mark == mark else None

    def _slow_factor(self, call: VendorCall, name: str, block: Block) -> float:
        fault = self._faults.inject(FaultKind.SLOW, call, name, block)
        return 1.0 if fault is None else fault.factor

    def _answer_for(self, held: SimulatedPartition, now: Timestamp) -> DriverResult:
        """Return the answer with the progress of a partition, created now or before."""
        seen = parse_state(self.reported_state(held, now))
        if seen is ObservedState.ERROR:
            return DriverResult(ResultCode.BROKEN, seen, f"partition {held.name} is in error")
        if seen is ObservedState.REMOVING:
            return DriverResult(ResultCode.UNAVAILABLE, seen, f"partition {held.name} is being removed")
        return DriverResult(ResultCode.OK, seen)

    def reported_state(self, partition: SimulatedPartition, now: Timestamp) -> str:
        """Return the shown state of a partition; empty if it no longer exists."""
        state = partition.state(now)
        if state is None:
            return ""
        if not self._faults:
            return state
        fault = self._faults.inject(FaultKind.LYING_UNKNOWN, None, partition.name, partition.block)
        if fault is not None:
            return fault.raw
        unreachable = state is not VendorState.REMOVING and self._faults.agent_down(partition.block) is not None
        return VendorState.ERROR if unreachable else state
