"""Changes of simulated hardware without a request: restarts, partitions made by hand, breaking, vanishing.

They are applied at the next call, with the times they would have had: without a call no observer can tell. Refused: a
thread or task of its own, because no seed could repeat its timing.
"""

from __future__ import annotations

from dataclasses import replace

from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.core.model.topology import Block, Catalogue, Pool
from moorings.drivers.simulated.faults import FaultKind, VendorFaults
from moorings.drivers.simulated.hardware import SimulatedHardware
from moorings.drivers.simulated.partition import SimulatedPartition
from moorings.drivers.simulated.settings import RestartState

_FATES = (FaultKind.BREAKS_WHILE_PROVISIONING, FaultKind.BREAKS_WHILE_ACTIVE, FaultKind.VANISHES)


def apply_spontaneous_faults(
    machine: SimulatedHardware, pool: Pool, faults: VendorFaults, restart: RestartState, now: Timestamp
) -> None:
    """Apply the faults that need no request; ``restart``: the effect on the state of a fault without one.

    Raises:
        MooringsError: ``driver.unavailable``: the machine's journal cannot be written.
    """
    if FaultKind.RESTART in faults and now >= machine.down_until:
        _restart(machine, faults, restart, now)
    if FaultKind.STRAY in faults:
        _make_stray(machine, pool, faults, now)
    if any(kind in faults for kind in _FATES):
        for partition in machine.partitions(now):
            fated = _with_faults(partition, faults, now)
            if fated != partition:
                machine.save_partition(fated, "fated")


def with_provisioning_fault(made: SimulatedPartition, faults: VendorFaults, now: Timestamp) -> SimulatedPartition:
    """Return a new partition with the time at which it breaks during provisioning, if it does."""
    if not faults.inject_fate(FaultKind.BREAKS_WHILE_PROVISIONING, made.name, made.block, made.serial):
        return made
    share = faults.random_fraction("break", made.serial)
    return replace(made, breaks_at=Timestamp(now + int(share * (made.ready_at - now))))


def _with_faults(partition: SimulatedPartition, faults: VendorFaults, now: Timestamp) -> SimulatedPartition:
    """Return a partition with its fate."""
    if partition.gone_at is not None:
        return partition
    if now < partition.ready_at:
        fresh = partition.breaks_at is None and not partition.was_reset
        return with_provisioning_fault(partition, faults, now) if fresh else partition
    who = (partition.name, partition.block, partition.serial)
    if partition.breaks_at is None and (breaks := faults.inject_fate(FaultKind.BREAKS_WHILE_ACTIVE, *who)):
        partition = replace(partition, breaks_at=max(now, add_seconds(partition.ready_at, breaks.seconds)))
    if partition.vanishes_at is None and (vanishes := faults.inject_fate(FaultKind.VANISHES, *who)):
        partition = replace(partition, vanishes_at=max(now, add_seconds(partition.ready_at, vanishes.seconds)))
    return partition


def _restart(machine: SimulatedHardware, faults: VendorFaults, usual: RestartState, now: Timestamp) -> None:
    fault = faults.inject(FaultKind.RESTART)
    if fault is None:
        return
    machine.set_down_until(add_seconds(now, fault.seconds))
    if (fault.state or usual) == "lost":
        machine.lose_partitions()


def _make_stray(machine: SimulatedHardware, pool: Pool, faults: VendorFaults, now: Timestamp) -> None:
    fault = faults.inject(FaultKind.STRAY)
    if fault is None:
        return
    serial = machine.next_serial()
    name = fault.names[0] if fault.names else f"stray-{serial}"
    blocks = (
        [fault.devices]
        if fault.devices is not None
        else _smallest_blocks(pool, faults.random_fraction("stray", serial))
    )
    block = next((block for block in blocks if machine.find_holder(block, now) is None), None)
    if block is None or machine.find_partition(name, now) is not None:
        return  # its creator was refused
    stray = SimulatedPartition(
        serial=serial,
        name=name,
        block=block,
        gcds=1,
        replicas_per_gcd=1,
        mark="",
        ready_at=now,
        vanishes_at=add_seconds(now, fault.seconds) if fault.seconds else None,
    )
    machine.save_partition(stray, "made by hand")


def _smallest_blocks(pool: Pool, share: float) -> list[Block]:
    """Return the pool's smallest blocks, in order, beginning at that share of them."""
    topology = pool.topology
    if isinstance(topology, Catalogue):
        blocks = [block for block in topology.blocks if len(block) == topology.sizes[0]]
    else:
        blocks = [Block.single(index) for index in range(topology.n_devices)]
    start = int(share * len(blocks))
    return blocks[start:] + blocks[:start]
