"""The kinds of resources: their nouns, columns and JSON names. One entry a kind.

A column computes a cell from an item and the time; ``output`` does the rest. A new kind or column is one entry here and
a golden file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Generic, TypeVar

from moorings.cli.guarantees import blocks_text, format_guarantees, format_user_limits
from moorings.cli.queue_entries import QueueEntry
from moorings.core.model.quantities import age_text, amount_text, duration_text
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.terminal.text import escape_controls
from moorings.wire.codec import parse_time
from moorings.wire.shapes import (
    CheckpointBody,
    ClaimBody,
    DeviceBody,
    EstimateBody,
    EventBody,
    IdleBody,
    KeyBody,
    PartitionBody,
    PoolBody,
    ProjectBody,
    QuotaBody,
    ReasonBody,
    RunBody,
)

T = TypeVar("T")

NOTHING = "-"
EVENT_DATA_SHOWN = (
    "name",
    "size",
    "kind",
    "owner",
    "devices",
    "why",
    "reason",
    "detail",
    "step",
    "resume_from",
    "lost_s",
    "by",
    "exit_code",
    "reference",
    "role",
    "version",
)


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[T]):
    """One column: its header, and the function for its cells.

    ``wide``: only with ``-o wide``. ``is_narrowed``: cut on a narrow terminal, so that the last column keeps some room.
    ``rank``: left out of a line that is still too long, rank 1 first; 0: never.
    """

    header: str
    cell: Callable[[T, Timestamp], object]
    wide: bool = False
    is_narrowed: bool = False
    rank: int = 0


@dataclass(frozen=True, slots=True)
class GroupedView(Generic[T]):
    """A shorter form of the plain table: adjacent items that are alike become one row."""

    columns: tuple[TableColumn[Sequence[T]], ...]
    fold: Callable[[Iterable[T]], Sequence[Sequence[T]]]


@dataclass(frozen=True, slots=True)
class ResourceKind(Generic[T]):
    """One kind of resource.

    Attributes:
        noun: as in ``moor get <noun>``; ``plural`` and ``aliases`` are its other spellings.
        api: its name in JSON documents (``Partition``, ``PartitionList``).
        shape: the type of its items.
        columns: its table.
        ident: what ``-o name`` prints after the noun.
        folded: a shorter table, if there is one.
        reference: what ``-o name`` prints instead, where an item is another noun's as well.
        nothing: what is said of an empty list; empty: that there are none of the plural.
    """

    noun: str
    plural: str
    aliases: tuple[str, ...]
    api: str
    shape: type[T]
    columns: tuple[TableColumn[T], ...]
    ident: Callable[[T], str]
    folded: GroupedView[T] | None = None
    reference: Callable[[T], str] | None = None
    nothing: str = ""


def age(text: str | None, now: Timestamp) -> str:
    """How long ago an API time is."""
    return age_text(seconds_between(parse_time(text), now)) if text else NOTHING


def reason_text(reason: ReasonBody | None, position: int | None = None) -> str:
    """A reason for a table: its message, the latest time it lasts, and the place in the queue."""
    message = reason.sentence if reason is not None else ""
    place = f"position {position}" if position is not None else ""
    return f"{message} ({place})" if message and place else message or place


def estimate_text(found: EstimateBody, now: Timestamp, *, would: str = "starts") -> str:
    """An estimate as a sentence: ``starts at 2026-01-31T14:05:00Z at the latest (in 1:20:00), unless ...``."""
    if found.starts_now:
        return f"{would} now"
    if found.starts_at is None:
        return escape_controls(f"start time unknown: {found.why}")
    left = duration_text(seconds_between(now, parse_time(found.starts_at)))
    return escape_controls(
        f"{would} at {found.starts_at[:19]}Z at the latest (in {left}), unless a higher-priority claim arrives"
    )


def topology_text(pool: PoolBody) -> str:
    """How a pool is wired, in a word: ``power-of-two 4x64``."""
    return f"{pool.topology.type} {pool.topology.domains}x{pool.topology.domain_size}"


def size_text(size: int, accelerator: str) -> str:
    """Devices and their kind: ``16 ipu``; empty for none."""
    return f"{size} {accelerator}" if size else ""


def elapsed_text(entry: QueueEntry, now: Timestamp) -> str:
    """How long it has run or waited, and its time limit if it has one: ``12m/2h``."""
    limit = "" if entry.time_limit_s is None else f"/{age_text(entry.time_limit_s)}"
    return f"{age(entry.since, now)}{limit}"


def subject_of(event: EventBody) -> str:
    """The subject of an event, as a name that other commands accept."""
    about = (("run", event.run), ("claim", event.claim), ("device", event.device), ("pool", event.pool))
    return next((f"{noun}/{ident}" for noun, ident in about if ident), NOTHING)


def group_devices(devices: Iterable[DeviceBody]) -> list[list[DeviceBody]]:
    """Groups of adjacent devices that are alike in all columns that matter."""
    rows: list[list[DeviceBody]] = []
    for _, alike in groupby(sorted(devices, key=lambda item: (item.pool, item.index)), key=_group_key):
        for device in alike:
            if rows and _group_key(rows[-1][-1]) == _group_key(device) and rows[-1][-1].index + 1 == device.index:
                rows[-1].append(device)
            else:
                rows.append([device])
    return rows


def _group_key(device: DeviceBody) -> tuple[str | None, ...]:
    return (device.pool, device.accelerator, device.state, device.partition, device.owner, device.reason)


def device_range(devices: Sequence[DeviceBody]) -> str:
    """Adjacent devices as one text: ``pod64:3-5``."""
    first, last = devices[0], devices[-1]
    return first.id if first is last else f"{first.pool}:{first.index}-{last.index}"


def _event_detail(event: EventBody, names: Sequence[str] | None = None) -> str:
    """The plain values of an event's data; only those of ``names``, if given."""
    chosen = event.data.items() if names is None else ((name, event.data.get(name)) for name in names)
    return " ".join(f"{name}={value}" for name, value in chosen if isinstance(value, str | int | float) and value != "")


def idle_text(idle: IdleBody | None, now: Timestamp) -> str:
    """For how long it has been idle; empty: it is not."""
    return f"idle {age(idle.since, now)}" if idle is not None else ""


def _queue_reason(entry: QueueEntry, now: Timestamp) -> str:
    return entry.short_reason or idle_text(entry.idle, now)


def _run_reason(run: RunBody, now: Timestamp) -> str:
    """Why a run waits, that it is idle, or how it ended."""
    if run.ended_at is None:
        return idle_text(run.idle, now) or reason_text(run.reason, run.position)
    return run.detail or ("" if run.exit_code == 0 else reason_text(run.reason))


def _key_expires(key: KeyBody, now: Timestamp) -> str:
    """How long a key still works."""
    if key.revoked_at is not None or _key_state(key, now) == "EXPIRED":
        return NOTHING
    return "never" if key.expires_at is None else age_text(seconds_between(now, parse_time(key.expires_at)))


def _key_state(key: KeyBody, now: Timestamp) -> str:
    if key.revoked_at is not None:
        return "REVOKED"
    return "EXPIRED" if key.expires_at is not None and parse_time(key.expires_at) <= now else "VALID"


def field_cell(name: str) -> Callable[[Any, Timestamp], object]:
    """A function for the cell with the field ``name``."""
    return lambda item, _now: getattr(item, name)


def age_cell(name: str) -> Callable[[Any, Timestamp], object]:
    """A function for the cell with the age of the time in field ``name``."""
    return lambda item, now: age(getattr(item, name), now)


wide = partial(TableColumn, wide=True)

POOLS: ResourceKind[PoolBody] = ResourceKind(
    "pool",
    "pools",
    ("po",),
    "Pool",
    PoolBody,
    (
        TableColumn("NAME", field_cell("name")),
        TableColumn("KIND", field_cell("accelerator"), rank=3),
        TableColumn("DRIVER", field_cell("driver"), rank=1),
        TableColumn("DEVICES", field_cell("devices")),
        TableColumn("FREE", field_cell("free")),
        TableColumn("LARGEST", field_cell("largest")),
        TableColumn("PARTITIONS", field_cell("partitions"), rank=2),
        TableColumn("WAITING", field_cell("waiting")),
        wide("OUT", field_cell("out_of_service")),
        wide("TOPOLOGY", lambda pool, _now: topology_text(pool)),
        wide("MAX_BLOCK", lambda pool, _now: pool.topology.max_block),
        TableColumn("STATE", lambda pool, _now: "UP" if pool.reachable else "UNREACHABLE"),
        wide("PROBLEM", field_cell("problem")),
    ),
    lambda pool: pool.name,
)

DEVICES: ResourceKind[DeviceBody] = ResourceKind(
    "device",
    "devices",
    ("dev", "devs"),
    "Device",
    DeviceBody,
    (
        TableColumn("ID", field_cell("id")),
        TableColumn("KIND", field_cell("accelerator")),
        TableColumn("DOMAIN", field_cell("domain")),
        TableColumn("STATE", field_cell("state")),
        TableColumn("PARTITION", field_cell("partition")),
        TableColumn("OWNER", field_cell("owner")),
        TableColumn("AGE", age_cell("since")),
        TableColumn("REASON", field_cell("reason")),
    ),
    lambda device: device.id,
    GroupedView(
        (
            TableColumn("DEVICES", lambda row, _now: device_range(row)),
            TableColumn("COUNT", lambda row, _now: len(row)),
            TableColumn("KIND", lambda row, _now: row[0].accelerator),
            TableColumn("STATE", lambda row, _now: row[0].state),
            TableColumn("PARTITION", lambda row, _now: row[0].partition),
            TableColumn("OWNER", lambda row, _now: row[0].owner),
            TableColumn("REASON", lambda row, _now: row[0].reason),
        ),
        group_devices,
    ),
)

PARTITIONS: ResourceKind[PartitionBody] = ResourceKind(
    "partition",
    "partitions",
    ("part", "parts"),
    "Partition",
    PartitionBody,
    (
        TableColumn("NAME", field_cell("name")),
        TableColumn("POOL", field_cell("pool")),
        TableColumn("SIZE", field_cell("size")),
        TableColumn("DEVICES", field_cell("devices")),
        TableColumn("GCDS", field_cell("gcds"), rank=1),
        TableColumn("STATE", field_cell("state")),
        TableColumn("OWNER", field_cell("owner"), is_narrowed=True),
        TableColumn("AGE", age_cell("since"), rank=2),
        wide("KIND", field_cell("accelerator")),
        wide("REPLICAS", lambda item, _now: item.gcds * item.replicas_per_gcd),
        wide("CLAIM", field_cell("claim")),
        wide("ID", field_cell("id")),
        wide("REASON", field_cell("reason")),
    ),
    lambda item: item.name,
)

CLAIMS: ResourceKind[ClaimBody] = ResourceKind(
    "claim",
    "claims",
    ("cl",),
    "Claim",
    ClaimBody,
    (
        wide("ID", field_cell("id")),
        TableColumn("NAME", field_cell("name")),
        TableColumn("OWNER", field_cell("owner"), is_narrowed=True),
        TableColumn("KIND", field_cell("accelerator"), rank=2),
        TableColumn("SIZE", field_cell("size")),
        TableColumn("STATE", field_cell("state")),
        TableColumn("POOL", field_cell("pool"), rank=3),
        TableColumn("PARTITION", field_cell("partition"), rank=1),
        wide("DEVICES", field_cell("devices")),
        wide("GCDS", field_cell("gcds")),
        wide("PROJECT", field_cell("project")),
        wide("PRIORITY", field_cell("priority")),
        wide("LIMIT", lambda item, _now: None if item.time_limit_s is None else duration_text(item.time_limit_s)),
        wide("ATTEMPT", field_cell("attempt")),
        TableColumn("AGE", age_cell("created_at"), rank=4),
        TableColumn("REASON", lambda item, _now: reason_text(item.reason, item.position)),
    ),
    lambda item: item.name,
)

RUNS: ResourceKind[RunBody] = ResourceKind(
    "run",
    "runs",
    ("job", "jobs"),
    "Run",
    RunBody,
    (
        TableColumn("ID", field_cell("id")),
        TableColumn("NAME", field_cell("name"), is_narrowed=True),
        TableColumn("STATE", field_cell("state")),
        TableColumn("DEVICES", lambda item, _now: item.job.accelerators.size),
        wide("TASKS", lambda item, _now: item.job.tasks),
        wide("POOL", field_cell("pool")),
        TableColumn("PARTITION", field_cell("partition"), rank=1),
        wide("SUBJECT", field_cell("subject")),
        wide("ENGINE", field_cell("engine")),
        wide("CLAIM", field_cell("claim")),
        TableColumn("AGE", age_cell("created_at"), rank=2),
        TableColumn("EXIT", field_cell("exit_code"), rank=3),
        TableColumn("REASON", _run_reason),
        wide("COMMAND", lambda item, _now: " ".join(item.job.command)),
    ),
    lambda item: item.id,
)

# ``/v1/queues`` of the API are the queues of other schedulers; this is the controller's own, of which there is one.
QUEUE_ENTRIES: ResourceKind[QueueEntry] = ResourceKind(
    "queue",
    "queues",
    ("q",),
    "QueueEntry",
    QueueEntry,
    (
        TableColumn("POS", field_cell("position")),
        TableColumn("USER", field_cell("user"), is_narrowed=True),
        TableColumn("NAME", field_cell("name"), is_narrowed=True, rank=1),
        TableColumn("STATE", field_cell("state")),
        TableColumn("DEVICES", lambda item, _now: size_text(item.size, item.accelerator)),
        TableColumn("TIME/LIMIT", elapsed_text, rank=2),
        wide("ID", field_cell("ident")),
        wide("POOL", field_cell("pool")),
        wide("BLOCK", field_cell("devices")),
        wide("PROJECT", field_cell("project")),
        wide("PRIORITY", field_cell("priority")),
        TableColumn("REASON", _queue_reason),
        wide("DETAIL", lambda item, _now: reason_text(item.reason) if item.short_reason else ""),
    ),
    lambda item: item.ident,
    reference=lambda item: f"run/{item.run}" if item.run else f"claim/{item.name or item.claim}",
    nothing="Nothing runs or waits",
)

CHECKPOINTS: ResourceKind[CheckpointBody] = ResourceKind(
    "checkpoint",
    "checkpoints",
    ("ckpt", "ckpts"),
    "Checkpoint",
    CheckpointBody,
    (
        TableColumn("RUN", field_cell("run")),
        TableColumn("STEP", field_cell("step")),
        TableColumn("SIZE", lambda item, _now: amount_text(item.size_bytes)),
        TableColumn("AGE", age_cell("written_at")),
        TableColumn("WROTE", lambda item, _now: NOTHING if item.write_s is None else f"{item.write_s:.1f}s"),
        TableColumn("WHOLE", lambda item, _now: "yes" if item.whole else "no"),
        TableColumn("NAME", lambda item, _now: item.path.rsplit("/", 1)[-1]),
        wide("RULE", field_cell("rule")),
        wide("PATH", field_cell("path")),
        TableColumn("REASON", field_cell("why")),
    ),
    lambda item: item.path,
)

PROJECTS: ResourceKind[ProjectBody] = ResourceKind(
    "project",
    "projects",
    ("proj",),
    "Project",
    ProjectBody,
    (
        TableColumn("NAME", field_cell("name")),
        TableColumn("WEIGHT", lambda item, _now: f"{item.weight:g}", rank=2),
        TableColumn("GUARANTEED", lambda item, _now: format_guarantees(item.shares)),
        TableColumn("DEVICES_MAX", field_cell("devices_max")),
        TableColumn("USER_MAX", field_cell("user_devices_max"), rank=1),
        wide("USER_LIMITS", lambda item, _now: format_user_limits(item.user_limits or {})),
        wide("PRIORITY_MAX", field_cell("priority_max")),
        wide("WAITING_MAX", field_cell("waiting_max")),
        wide("WAITING_BYTES_MAX", field_cell("waiting_bytes_max")),
        TableColumn("MEMBERS", lambda item, _now: ",".join(item.members)),
        wide("ADMINS", lambda item, _now: ",".join(item.admins or ())),
        wide("OPEN", field_cell("open")),
        wide("ALIASES", lambda item, _now: ",".join(item.aliases)),
        wide("VERSION", field_cell("version")),
    ),
    lambda item: item.name,
)

QUOTAS: ResourceKind[QuotaBody] = ResourceKind(
    "quota",
    "quotas",
    (),
    "Quota",
    QuotaBody,
    (
        TableColumn("PROJECT", field_cell("project")),
        TableColumn("POOL", field_cell("pool")),
        TableColumn("GUARANTEED", field_cell("guaranteed")),
        wide("BLOCKS", lambda item, _now: blocks_text(item.blocks)),
        TableColumn("HELD", field_cell("held")),
        TableColumn("BORROWED", field_cell("borrowed")),
        TableColumn("WAITING", field_cell("waiting_devices")),
        wide("CLAIMS", field_cell("waiting")),
        wide("WEIGHT", lambda item, _now: f"{item.weight:g}"),
        wide("DEVICES_MAX", field_cell("devices_max")),
        TableColumn("USED_HOURS", lambda item, _now: f"{item.used_device_hours:.1f}"),
    ),
    lambda item: f"{item.project}:{item.pool}",
)

KEYS: ResourceKind[KeyBody] = ResourceKind(
    "key",
    "keys",
    (),
    "Key",
    KeyBody,
    (
        TableColumn("ID", field_cell("id")),
        TableColumn("SUBJECT", field_cell("subject"), is_narrowed=True),
        TableColumn("ROLE", field_cell("role")),
        TableColumn("OWNER_PREFIX", field_cell("owner_prefix"), rank=2),
        TableColumn("AGE", age_cell("created_at"), rank=1),
        TableColumn("EXPIRES", lambda item, now: _key_expires(item, now)),
        TableColumn("STATE", lambda item, now: _key_state(item, now)),
    ),
    lambda item: item.id,
)

EVENTS: ResourceKind[EventBody] = ResourceKind(
    "event",
    "events",
    ("ev",),
    "Event",
    EventBody,
    (
        TableColumn("SEQ", field_cell("seq")),
        TableColumn("TIME", lambda item, _now: item.at[:19] + "Z"),
        TableColumn("NAME", field_cell("name")),
        TableColumn("OBJECT", lambda item, _now: subject_of(item)),
        wide("PARTITION", field_cell("partition")),
        wide("POOL", field_cell("pool")),
        TableColumn("DETAIL", lambda item, _now: _event_detail(item, EVENT_DATA_SHOWN)),
        wide("DATA", lambda item, _now: _event_detail(item)),
    ),
    lambda item: str(item.seq),
)

KINDS: dict[str, ResourceKind[Any]] = {
    kind.noun: kind
    for kind in (POOLS, DEVICES, PARTITIONS, CLAIMS, RUNS, QUEUE_ENTRIES, CHECKPOINTS, PROJECTS, QUOTAS, KEYS, EVENTS)
}
