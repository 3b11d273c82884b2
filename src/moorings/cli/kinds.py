"""The kinds of things one can look at: their nouns, their columns, their names in JSON. One entry a kind.

A column says how one cell is made from one item and the time; ``output`` does the rest. Adding a kind or a column is
one entry here and a golden file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Generic, TypeVar

from moorings.cli.shares import blocks_text, shares_text
from moorings.cli.text import plain
from moorings.core.instants import Timestamp, seconds_between
from moorings.core.quantities import age_text, duration_text
from moorings.wire.codec import parse_time
from moorings.wire.shapes import (
    ClaimBody,
    DeviceBody,
    EstimateBody,
    EventBody,
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
    "exit_code",
    "reference",
    "role",
    "version",
)


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column: its header, and its cell of an item at a time. ``wide``: only with ``-o wide``."""

    header: str
    cell: Callable[[T, Timestamp], object]
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Folded(Generic[T]):
    """A shorter view for the plain table: neighbours that are alike become one row."""

    columns: tuple[Column[Sequence[T]], ...]
    fold: Callable[[Iterable[T]], Sequence[Sequence[T]]]


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One kind of thing.

    Attributes:
        noun: as in ``moor get <noun>``; ``plural`` and ``aliases`` mean the same.
        api: its name in JSON documents (``Partition``, ``PartitionList``).
        shape: what its fields are.
        columns: its table.
        ident: what ``-o name`` prints after the noun.
        folded: a shorter table, if there is one.
    """

    noun: str
    plural: str
    aliases: tuple[str, ...]
    api: str
    shape: type[T]
    columns: tuple[Column[T], ...]
    ident: Callable[[T], str]
    folded: Folded[T] | None = None


def age(text: str | None, now: Timestamp) -> str:
    """How long ago an API time is."""
    return age_text(seconds_between(parse_time(text), now)) if text else NOTHING


def reason_text(reason: ReasonBody | None, position: int | None = None) -> str:
    """A reason for a table: its message, until when at the latest, and the place in the queue."""
    message = reason.sentence if reason is not None else ""
    place = f"position {position}" if position is not None else ""
    return f"{message} ({place})" if message and place else message or place


def estimate_text(found: EstimateBody, now: Timestamp, *, would: str = "starts") -> str:
    """An estimate as a sentence: ``starts at 2026-01-31T14:05:00Z at the latest (in 1:20:00), unless ...``."""
    if found.starts_now:
        return f"{would} now"
    if found.starts_at is None:
        return plain(f"nobody can say when it {would}: {found.why}")
    left = duration_text(seconds_between(now, parse_time(found.starts_at)))
    return plain(f"{would} at {found.starts_at[:19]}Z at the latest (in {left}), unless somebody comes who is first")


def topology_text(pool: PoolBody) -> str:
    """How a pool is wired, in a word: ``power-of-two 4x64``."""
    return f"{pool.topology.type} {pool.topology.domains}x{pool.topology.domain_size}"


def subject_of(event: EventBody) -> str:
    """What an event is about, as a name that other commands take."""
    about = (("run", event.run), ("claim", event.claim), ("device", event.device), ("pool", event.pool))
    return next((f"{noun}/{ident}" for noun, ident in about if ident), NOTHING)


def fold_devices(devices: Iterable[DeviceBody]) -> list[list[DeviceBody]]:
    """Neighbouring devices that are alike in all that matters, together."""
    rows: list[list[DeviceBody]] = []
    for _, alike in groupby(sorted(devices, key=lambda item: (item.pool, item.index)), key=_likeness):
        for device in alike:
            if rows and _likeness(rows[-1][-1]) == _likeness(device) and rows[-1][-1].index + 1 == device.index:
                rows[-1].append(device)
            else:
                rows.append([device])
    return rows


def _likeness(device: DeviceBody) -> tuple[str | None, ...]:
    return (device.pool, device.accelerator, device.state, device.partition, device.owner, device.reason)


def span(devices: Sequence[DeviceBody]) -> str:
    """Neighbouring devices as one text: ``pod64:3-5``."""
    first, last = devices[0], devices[-1]
    return first.id if first is last else f"{first.pool}:{first.index}-{last.index}"


def _event_detail(event: EventBody, names: Sequence[str] | None = None) -> str:
    """The plain values of an event's data; of those names only, if any are given."""
    chosen = event.data.items() if names is None else ((name, event.data.get(name)) for name in names)
    return " ".join(f"{name}={value}" for name, value in chosen if isinstance(value, str | int | float) and value != "")


def _run_reason(run: RunBody) -> str:
    """Why a run waits, or how it ended."""
    if run.ended_at is None:
        return reason_text(run.reason, run.position)
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


def field(name: str) -> Callable[[Any, Timestamp], object]:
    """The cell that is the field ``name`` itself."""
    return lambda item, _now: getattr(item, name)


def since(name: str) -> Callable[[Any, Timestamp], object]:
    """The cell that is the age of the time in field ``name``."""
    return lambda item, now: age(getattr(item, name), now)


wide = partial(Column, wide=True)

POOLS: Kind[PoolBody] = Kind(
    "pool",
    "pools",
    ("po",),
    "Pool",
    PoolBody,
    (
        Column("NAME", field("name")),
        Column("KIND", field("accelerator")),
        Column("DRIVER", field("driver")),
        Column("DEVICES", field("devices")),
        Column("FREE", field("free")),
        Column("LARGEST", field("largest")),
        Column("PARTITIONS", field("partitions")),
        Column("WAITING", field("waiting")),
        wide("OUT", field("out_of_service")),
        wide("TOPOLOGY", lambda pool, _now: topology_text(pool)),
        wide("MAX_BLOCK", lambda pool, _now: pool.topology.max_block),
        Column("STATE", lambda pool, _now: "UP" if pool.reachable else "UNREACHABLE"),
        wide("PROBLEM", field("problem")),
    ),
    lambda pool: pool.name,
)

DEVICES: Kind[DeviceBody] = Kind(
    "device",
    "devices",
    ("dev", "devs"),
    "Device",
    DeviceBody,
    (
        Column("ID", field("id")),
        Column("KIND", field("accelerator")),
        Column("DOMAIN", field("domain")),
        Column("STATE", field("state")),
        Column("PARTITION", field("partition")),
        Column("OWNER", field("owner")),
        Column("AGE", since("since")),
        Column("REASON", field("reason")),
    ),
    lambda device: device.id,
    Folded(
        (
            Column("DEVICES", lambda row, _now: span(row)),
            Column("COUNT", lambda row, _now: len(row)),
            Column("KIND", lambda row, _now: row[0].accelerator),
            Column("STATE", lambda row, _now: row[0].state),
            Column("PARTITION", lambda row, _now: row[0].partition),
            Column("OWNER", lambda row, _now: row[0].owner),
            Column("REASON", lambda row, _now: row[0].reason),
        ),
        fold_devices,
    ),
)

PARTITIONS: Kind[PartitionBody] = Kind(
    "partition",
    "partitions",
    ("part", "parts"),
    "Partition",
    PartitionBody,
    (
        Column("NAME", field("name")),
        Column("POOL", field("pool")),
        Column("SIZE", field("size")),
        Column("DEVICES", field("devices")),
        Column("GCDS", field("gcds")),
        Column("STATE", field("state")),
        Column("OWNER", field("owner")),
        Column("AGE", since("since")),
        wide("KIND", field("accelerator")),
        wide("REPLICAS", lambda item, _now: item.gcds * item.replicas_per_gcd),
        wide("CLAIM", field("claim")),
        wide("ID", field("id")),
        wide("REASON", field("reason")),
    ),
    lambda item: item.name,
)

CLAIMS: Kind[ClaimBody] = Kind(
    "claim",
    "claims",
    ("cl",),
    "Claim",
    ClaimBody,
    (
        wide("ID", field("id")),
        Column("NAME", field("name")),
        Column("OWNER", field("owner")),
        Column("KIND", field("accelerator")),
        Column("SIZE", field("size")),
        Column("STATE", field("state")),
        Column("POOL", field("pool")),
        Column("PARTITION", field("partition")),
        wide("DEVICES", field("devices")),
        wide("GCDS", field("gcds")),
        wide("PROJECT", field("project")),
        wide("PRIORITY", field("priority")),
        wide("LIMIT", lambda item, _now: None if item.time_limit_s is None else duration_text(item.time_limit_s)),
        wide("ATTEMPT", field("attempt")),
        Column("AGE", since("created_at")),
        Column("REASON", lambda item, _now: reason_text(item.reason, item.position)),
    ),
    lambda item: item.name,
)

RUNS: Kind[RunBody] = Kind(
    "run",
    "runs",
    ("job", "jobs"),
    "Run",
    RunBody,
    (
        Column("ID", field("id")),
        Column("NAME", field("name")),
        Column("STATE", field("state")),
        Column("DEVICES", lambda item, _now: item.job.accelerators.size),
        wide("TASKS", lambda item, _now: item.job.tasks),
        wide("POOL", field("pool")),
        Column("PARTITION", field("partition")),
        wide("SUBJECT", field("subject")),
        wide("ENGINE", field("engine")),
        wide("CLAIM", field("claim")),
        Column("AGE", since("created_at")),
        Column("EXIT", field("exit_code")),
        Column("REASON", lambda item, _now: _run_reason(item)),
        wide("COMMAND", lambda item, _now: " ".join(item.job.command)),
    ),
    lambda item: item.id,
)

PROJECTS: Kind[ProjectBody] = Kind(
    "project",
    "projects",
    ("proj",),
    "Project",
    ProjectBody,
    (
        Column("NAME", field("name")),
        Column("WEIGHT", lambda item, _now: f"{item.weight:g}"),
        Column("GUARANTEED", lambda item, _now: shares_text(item.shares)),
        Column("DEVICES_MAX", field("devices_max")),
        Column("USER_MAX", field("user_devices_max")),
        wide("PRIORITY_MAX", field("priority_max")),
        wide("WAITING_MAX", field("waiting_max")),
        wide("WAITING_BYTES_MAX", field("waiting_bytes_max")),
        Column("MEMBERS", lambda item, _now: ",".join(item.members)),
        wide("ALIASES", lambda item, _now: ",".join(item.aliases)),
        wide("VERSION", field("version")),
    ),
    lambda item: item.name,
)

QUOTAS: Kind[QuotaBody] = Kind(
    "quota",
    "quotas",
    (),
    "Quota",
    QuotaBody,
    (
        Column("PROJECT", field("project")),
        Column("POOL", field("pool")),
        Column("GUARANTEED", field("guaranteed")),
        wide("BLOCKS", lambda item, _now: blocks_text(item.blocks)),
        Column("HELD", field("held")),
        Column("BORROWED", field("borrowed")),
        Column("WAITING", field("waiting_devices")),
        wide("CLAIMS", field("waiting")),
        wide("WEIGHT", lambda item, _now: f"{item.weight:g}"),
        wide("DEVICES_MAX", field("devices_max")),
        Column("USED_HOURS", lambda item, _now: f"{item.used_device_hours:.1f}"),
    ),
    lambda item: f"{item.project}:{item.pool}",
)

KEYS: Kind[KeyBody] = Kind(
    "key",
    "keys",
    (),
    "Key",
    KeyBody,
    (
        Column("ID", field("id")),
        Column("SUBJECT", field("subject")),
        Column("ROLE", field("role")),
        Column("OWNER_PREFIX", field("owner_prefix")),
        Column("AGE", since("created_at")),
        Column("EXPIRES", lambda item, now: _key_expires(item, now)),
        Column("STATE", lambda item, now: _key_state(item, now)),
    ),
    lambda item: item.id,
)

EVENTS: Kind[EventBody] = Kind(
    "event",
    "events",
    ("ev",),
    "Event",
    EventBody,
    (
        Column("SEQ", field("seq")),
        Column("TIME", lambda item, _now: item.at[:19] + "Z"),
        Column("NAME", field("name")),
        Column("OBJECT", lambda item, _now: subject_of(item)),
        wide("PARTITION", field("partition")),
        wide("POOL", field("pool")),
        Column("DETAIL", lambda item, _now: _event_detail(item, EVENT_DATA_SHOWN)),
        wide("DATA", lambda item, _now: _event_detail(item)),
    ),
    lambda item: str(item.seq),
)

KINDS: dict[str, Kind[Any]] = {
    kind.noun: kind for kind in (POOLS, DEVICES, PARTITIONS, CLAIMS, RUNS, PROJECTS, QUOTAS, KEYS, EVENTS)
}
