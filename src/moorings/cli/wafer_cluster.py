"""The systems of wafer-scale appliances and their holders, with the free memory and the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorings.cli.kinds import ResourceKind, TableColumn, age
from moorings.cli.output import TableStyle, render_table
from moorings.cli.wafer import WaferJob
from moorings.core.access import APPLIANCE_OWNER_PREFIX
from moorings.core.devices import DeviceState
from moorings.core.topology import Block
from moorings.wire.shapes import DeviceBody, PartitionBody, PoolBody
from moorings.workloads.appliance import APPLIANCE_KIND, ApplianceJobType, AppliancePhase

MEMORY = "memory"  # the pool's resource for its management node's memory
OK, ERROR = "ok", "error"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMeta:
    """A system's name: that of its device."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """The place of a system."""

    type: str = "system"
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStatus:
    """A system's status: ``ok`` or ``error``, the device's own state, its holder, and since when.

    ``job`` is a job's name, or the owner of another claim (a reservation, a manual partition).
    """

    state: str
    device_state: str
    job: str | None = None
    user: str | None = None
    since: str | None = None
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferSystem:
    """One system, as shown."""

    meta: SystemMeta
    spec: SystemSpec
    status: SystemStatus

    @property
    def bad(self) -> bool:
        """Whether it needs an administrator's attention."""
        return self.status.state != OK


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferPool:
    """The resources of a pool beside its systems, in bytes. None: no memory of a management node is managed."""

    name: str
    reachable: bool
    systems: int
    free: int
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLengths:
    """How many jobs of each kind wait, and run (or are about to)."""

    queued: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)


def is_appliance(pool: PoolBody) -> bool:
    """Whether a pool's accelerators are wafer-scale systems."""
    return pool.accelerator == APPLIANCE_KIND


def systems_of(
    pool: PoolBody, devices: Iterable[DeviceBody], partitions: Iterable[PartitionBody], jobs: Iterable[WaferJob]
) -> list[WaferSystem]:
    """The systems of a pool and their holders."""
    users = {job.meta.name: job.spec.user for job in jobs}
    holds = {index: held for held in partitions if held.devices for index in Block.parse(held.devices)}
    return [_system(pool, device, holds.get(device.index), users) for device in devices]


def _system(pool: PoolBody, device: DeviceBody, held: PartitionBody | None, users: Mapping[str, str]) -> WaferSystem:
    owner = held.owner if held is not None else ""
    job = owner.removeprefix(APPLIANCE_OWNER_PREFIX)
    good = device.state == DeviceState.IN_SERVICE and pool.reachable
    notes = [device.reason, pool.problem if not pool.reachable else "", _holder_note(held)]
    return WaferSystem(
        meta=SystemMeta(name=device.id),
        spec=SystemSpec(pool=pool.name),
        status=SystemStatus(
            state=OK if good else ERROR,
            device_state=device.state,
            job=job or None,
            user=users.get(job) or (owner.partition("/")[2] if owner.startswith("user/") else None),
            since=held.since if held is not None else device.since,
            notes="; ".join(filter(None, notes)),
        ),
    )


def _holder_note(held: PartitionBody | None) -> str:
    """A note on how a system is held, if it is not simply in use."""
    if held is None or held.state == "ACTIVE":
        return ""
    return f"{held.state}: {held.reason}" if held.reason else held.state


def summarize_pool(pool: PoolBody) -> WaferPool:
    """A summary of a pool."""
    memory = pool.resources.get(MEMORY)
    used = (pool.resources_used or {}).get(MEMORY)
    return WaferPool(
        name=pool.name,
        reachable=pool.reachable,
        systems=pool.devices,
        free=pool.free,
        memory_bytes=memory,
        memory_free_bytes=memory - used if memory is not None and used is not None else None,
        problem=pool.problem,
    )


def count_jobs(jobs: Iterable[WaferJob]) -> QueueLengths:
    """How many of these jobs wait and run."""
    found = Counter((job.spec.type, job.queued) for job in jobs if job.status.phase in _UNENDED)
    kinds = tuple(ApplianceJobType)
    return QueueLengths(
        queued={str(kind): found[kind, True] for kind in kinds},
        running={str(kind): found[kind, False] for kind in kinds},
    )


_UNENDED = (AppliancePhase.QUEUED, AppliancePhase.SCHEDULED, AppliancePhase.RUNNING)

SYSTEMS: ResourceKind[WaferSystem] = ResourceKind(
    "system",
    "systems",
    (),
    "WaferSystem",
    WaferSystem,
    (
        TableColumn("NAME", lambda system, _now: system.meta.name),
        TableColumn("TYPE", lambda system, _now: system.spec.type),
        TableColumn("STATE", lambda system, _now: system.status.state),
        TableColumn("DEVICE", lambda system, _now: system.status.device_state),
        TableColumn("JOB", lambda system, _now: system.status.job),
        TableColumn("USER", lambda system, _now: system.status.user),
        TableColumn("SINCE", lambda system, now: age(system.status.since, now)),
        TableColumn("NOTES", lambda system, _now: system.status.notes),
    ),
    lambda system: system.meta.name,
)


def summary_text(pools: Sequence[WaferPool], lengths: QueueLengths, look: TableStyle) -> str:
    """Pools and queue, for a terminal."""
    rows = [
        (
            pool.name,
            f"{pool.free} of {pool.systems}",
            _memory(pool),
            "UP" if pool.reachable else "UNREACHABLE",
            pool.problem,
        )
        for pool in pools
    ]
    kinds = [(kind, str(lengths.queued.get(kind, 0)), str(lengths.running.get(kind, 0))) for kind in ApplianceJobType]
    return "\n\n".join(
        (
            render_table(("POOL", "SYSTEMS_FREE", "MEMORY_FREE", "STATE", "NOTES"), rows, look),
            render_table(("JOBS", "QUEUED", "RUNNING"), kinds, look),
        )
    )


def _memory(pool: WaferPool) -> str:
    if pool.memory_bytes is None:
        return ""
    free = "?" if pool.memory_free_bytes is None else f"{pool.memory_free_bytes / _GIB:g}"
    return f"{free} of {pool.memory_bytes / _GIB:g} GiB"
