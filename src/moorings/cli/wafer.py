"""Jobs of wafer-scale appliances in their users' terms: the columns, the phases, and the objects that scripts read.

An object has ``meta``, ``spec`` and ``status``, as with the vendor's command, so that a site's scripts keep working.
``shapes`` would be the wrong place: the API has runs, and these are a view of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moorings.cli.output import TableStyle, render_table
from moorings.cli.resources import NOTHING, ResourceKind, TableColumn, age, wide
from moorings.client.client import Client
from moorings.client.requests import ClaimFilter
from moorings.core.model.access import APPLIANCE_OWNER_PREFIX
from moorings.core.model.devices import DeviceState
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import age_text
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.core.model.topology import Block
from moorings.wire.codec import parse_time
from moorings.wire.shapes import (
    ApplianceJobBody,
    ClaimBody,
    DeviceBody,
    LabelsRequest,
    PartitionBody,
    PoolBody,
    RunBody,
)
from moorings.workloads.appliance import (
    APPLIANCE_KIND,
    ApplianceJobType,
    AppliancePhase,
    appliance_phase,
    priority_bucket,
)
from moorings.workloads.labels import check_labels

SINGLE_QUERIES_MAX = 10  # up to this many reasons are requested one by one; for more, the whole queue is read


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferJobMeta:
    """A job's identity: ``namespace`` is its session, which is its project."""

    name: str
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    create_time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferJobSpec:
    """The request: ``priority_value`` is 0 (first) to 399."""

    type: str
    user: str
    workflow: str
    priority: str
    priority_value: int
    num_systems: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferJobStatus:
    """The job's status: ``systems`` are those it holds now."""

    phase: str
    systems: tuple[str, ...] = ()
    schedule_time: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    position: int | None = None
    reason: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferJob:
    """One job, as shown."""

    meta: WaferJobMeta
    spec: WaferJobSpec
    status: WaferJobStatus

    @property
    def is_queued(self) -> bool:
        """Whether it waits in the queue."""
        return self.status.phase == AppliancePhase.QUEUED


def job_from_list(body: ApplianceJobBody) -> WaferJob:
    """A job from a list; the list has no reason for its wait."""
    return WaferJob(
        meta=WaferJobMeta(name=body.id, namespace=body.project, labels=body.labels, create_time=body.created_at),
        spec=WaferJobSpec(
            type=body.kind,
            user=body.subject,
            workflow=body.workflow,
            priority=priority_bucket(body.priority),
            priority_value=max(-body.priority, 0),
            num_systems=body.systems,
        ),
        status=WaferJobStatus(
            phase=appliance_phase(body.state, scheduled=body.scheduled_at is not None),
            systems=system_names(body.pool, body.devices),
            schedule_time=body.scheduled_at,
            start_time=body.started_at,
            end_time=body.ended_at,
            reason=body.detail,
        ),
    )


def job_from_run(run: RunBody) -> WaferJob:
    """A job from all the data of its run.

    Raises:
        MooringsError: ``run.unknown``: it is not a job of an appliance.
    """
    part = run.job.appliance
    if part is None:
        raise MooringsError("run.unknown", f"{run.id} is no job of an appliance", hint="see 'moor get runs'")
    ended = run.ended_at is not None
    reason = run.detail if ended else run.reason.message if run.reason is not None else ""
    phase = appliance_phase(run.state, scheduled=run.scheduled_at is not None)
    return WaferJob(
        meta=WaferJobMeta(name=run.id, namespace=run.job.project, labels=run.labels, create_time=run.created_at),
        spec=WaferJobSpec(
            type=part.kind,
            user=run.subject,
            workflow=part.workflow,
            priority=priority_bucket(run.priority),
            priority_value=max(-run.priority, 0),
            num_systems=run.job.accelerators.size,
        ),
        status=WaferJobStatus(
            phase=phase,
            systems=system_names(run.pool, run.devices),
            schedule_time=run.scheduled_at,
            start_time=run.started_at,
            end_time=run.ended_at,
            position=None if ended else run.position,
            reason=reason or None,
            exit_code=run.exit_code,
        ),
    )


def system_names(pool: str | None, devices: str) -> tuple[str, ...]:
    """The systems in a list of devices, as ``moor drain device`` accepts them: ``cs:0``, ``cs:1``."""
    return tuple(f"{pool}:{index}" for index in Block.parse(devices).members) if pool and devices else ()


def systems_text(systems: Sequence[str]) -> str:
    """Systems of a pool in short form: ``cs:0-3,7``."""
    if not systems:
        return ""
    pool = systems[0].rpartition(":")[0]
    return f"{pool}:{Block.of([int(name.rpartition(':')[2]) for name in systems])}"


_RANKS: Mapping[str, int] = {AppliancePhase.RUNNING: 0, AppliancePhase.SCHEDULED: 1, AppliancePhase.QUEUED: 2}


def sort_jobs(jobs: Sequence[WaferJob]) -> list[WaferJob]:
    """Running jobs, then the queue in its order, then ended jobs; each oldest first."""

    def place(job: WaferJob) -> tuple[int, int, int, str]:
        rank = _RANKS.get(job.status.phase, 3)
        return rank, job.spec.priority_value if job.is_queued else 0, job.status.position or 0, job.meta.create_time

    return sorted(jobs, key=place)


def with_reasons(client: Client, jobs: Sequence[WaferJob]) -> list[WaferJob]:
    """Jobs, with reasons and places in the queue for those that wait."""
    waiting = [job.meta.name for job in jobs if job.is_queued]
    if len(waiting) <= SINGLE_QUERIES_MAX:
        statuses = {name: job_from_run(client.get_run(name)).status for name in waiting}
    else:
        claims = client.list_claims(ClaimFilter(state="PENDING", owner_prefix=APPLIANCE_OWNER_PREFIX))
        statuses = {claim.owner.removeprefix(APPLIANCE_OWNER_PREFIX): _queued_status(claim) for claim in claims}
    return [
        replace(job, status=replace(job.status, position=said.position, reason=said.reason))
        if job.is_queued and (said := statuses.get(job.meta.name)) is not None
        else job
        for job in jobs
    ]


def _queued_status(claim: ClaimBody) -> WaferJobStatus:
    reason = claim.reason.message if claim.reason is not None else None
    return WaferJobStatus(phase=AppliancePhase.QUEUED.value, position=claim.position, reason=reason)


# -- the table ---------------------------------------------------------------------------------------------------------


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels for a table: ``team=nlp,user=ann``."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def job_duration(status: WaferJobStatus, now: Timestamp) -> str:
    """How long a job has run, or ran."""
    if status.start_time is None:
        return NOTHING
    end = parse_time(status.end_time) if status.end_time is not None else now
    return age_text(seconds_between(parse_time(status.start_time), end))


def _reason(status: WaferJobStatus) -> str:
    place = f"position {status.position}" if status.position is not None else ""
    return f"{status.reason} ({place})" if status.reason and place else status.reason or place


JOBS: ResourceKind[WaferJob] = ResourceKind(
    "job",
    "jobs",
    (),
    "WaferJob",
    WaferJob,
    (
        TableColumn("SESSION", lambda job, _now: job.meta.namespace),
        TableColumn("NAME", lambda job, _now: job.meta.name),
        TableColumn("TYPE", lambda job, _now: job.spec.type),
        TableColumn("PRIORITY", lambda job, _now: job.spec.priority),
        TableColumn("AGE", lambda job, now: age(job.meta.create_time, now)),
        TableColumn("DURATION", lambda job, now: job_duration(job.status, now)),
        TableColumn("PHASE", lambda job, _now: job.status.phase),
        TableColumn("SYSTEMS", lambda job, _now: systems_text(job.status.systems)),
        TableColumn("USER", lambda job, _now: job.spec.user),
        TableColumn("LABELS", lambda job, _now: labels_text(job.meta.labels)),
        TableColumn("WORKFLOW", lambda job, _now: job.spec.workflow),
        TableColumn("DASHBOARD", lambda _job, _now: ""),  # none of our pages shows a job
        wide("VALUE", lambda job, _now: job.spec.priority_value),
        wide("WANTS", lambda job, _now: job.spec.num_systems),
        wide("REASON", lambda job, _now: _reason(job.status)),
    ),
    lambda job: job.meta.name,
)


# -- what people write -------------------------------------------------------------------------------------------------


def job_name(text: str) -> str:
    """A job's name, from ``NAME``, ``job/NAME``, ``SESSION/NAME``, or its Slurm step's name ``NAME-csxN``."""
    name = text.rpartition("/")[2]
    stem, mark, count = name.rpartition("-csx")
    return stem if mark and count.isascii() and count.isdigit() else name


def parse_selectors(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Labels to search for: ``key=value``, several joined by commas or given one by one.

    Raises:
        MooringsError: ``label.invalid``.
    """
    pairs = []
    for text in ",".join(texts).split(",") if texts else ():
        key, equals, value = text.partition("=")
        if not equals:
            raise MooringsError("label.invalid", f"{text[:80]!r} is not KEY=VALUE", hint="write -l team=nlp")
        check_labels({key: value})
        pairs.append((key, value))
    return tuple(pairs)


def parse_changes(texts: Sequence[str]) -> LabelsRequest:
    """Changes of labels: ``key=value`` sets one, ``key-`` removes one.

    Raises:
        MooringsError: ``label.invalid``.
    """
    wanted: dict[str, str] = {}
    gone: list[str] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals and not text.endswith("-"):
            raise MooringsError(
                "label.invalid", f"{text[:80]!r} changes no label", hint="write KEY=VALUE to set one, KEY- to remove it"
            )
        key = key if equals else text[:-1]
        check_labels({key: value})
        if key in wanted or key in gone:
            raise MooringsError("label.invalid", f"label {key} is named twice", hint="say once what becomes of it")
        if equals:
            wanted[key] = value
        else:
            gone.append(key)
    return LabelsRequest(labels=wanted, remove=tuple(gone))


# -- systems -----------------------------------------------------------------------------------------------------------
# The systems of wafer-scale appliances and their holders, with the free memory and the queue.

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
    def has_error(self) -> bool:
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
    found = Counter((job.spec.type, job.is_queued) for job in jobs if job.status.phase in _UNENDED)
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
