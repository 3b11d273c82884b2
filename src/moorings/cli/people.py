"""What each user holds and waits for, and what the limits of projects leave: for ``moor top`` and ``moor motd``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moorings.cli.queue_entries import QueueEntry
from moorings.core.model.owners import is_within
from moorings.core.model.quantities import age_text
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.wire.codec import parse_time
from moorings.wire.shapes import PoolBody, ProjectBody, QuotaBody


@dataclass(frozen=True, slots=True)
class UserQuota:
    """A project's limit for each user: ``held`` of at most ``most`` devices."""

    project: str
    held: int
    most: int


@dataclass(frozen=True, slots=True)
class UserSummary:
    """What a user has.

    Attributes:
        held: devices, by kind.
        share: the dominant share: the largest part, 0 to 1, of the devices of one kind.
        running: rows of the queue that run.
        waiting: those that wait.
        user_quotas: of the projects that limit users, where this one has something.
    """

    user: str
    held: Mapping[str, int]
    share: float
    running: int
    waiting: int
    user_quotas: tuple[UserQuota, ...]


@dataclass(frozen=True, slots=True)
class DevicesLeft:
    """The tightest limit for a user in a project: ``left`` of ``most`` devices, under a limit of ``project``."""

    project: str
    left: int
    most: int


@dataclass(frozen=True, slots=True)
class IdleHolder:
    """A user with devices that have been idle for so long that admins are shown it.

    Attributes:
        held: those devices, by kind.
        jobs: the names of the runs that hold them.
        since: all of them have been idle at least since then.
    """

    user: str
    held: Mapping[str, int]
    jobs: tuple[str, ...]
    since: str


def find_idle_holders(entries: Iterable[QueueEntry]) -> list[IdleHolder]:
    """Each user with such devices that the caller sees; those that have been idle for longest come first."""
    idle_of: dict[str, list[QueueEntry]] = defaultdict(list)
    last_work: dict[str, str] = {}
    for entry in entries:
        if entry.idle is not None and entry.idle.shown_to_admins:
            idle_of[entry.user].append(entry)
            last_work[entry.user] = max(last_work.get(entry.user, ""), entry.idle.since)
    found = [
        IdleHolder(user, _held(idle), tuple(each.name for each in idle), last_work[user])
        for user, idle in idle_of.items()
    ]
    return sorted(found, key=lambda each: (each.since, each.user))


def holder_text(holder: IdleHolder, now: Timestamp) -> str:
    """The idle devices of a user, as a line."""
    jobs = holder.jobs[0] if len(holder.jobs) == 1 else f"{len(holder.jobs)} jobs"
    return f"Idle: {holder.user} holds {devices_text(holder.held)} and {unused_text(holder.since, now)}: {jobs}"


def unused_text(since: str, now: Timestamp) -> str:
    """For how long idle devices were not used."""
    return f"has used no CPU for {age_text(seconds_between(parse_time(since), now))}"


def devices_text(held: Mapping[str, int]) -> str:
    """Devices by kind: ``1 csx, 16 ipu``."""
    return ", ".join(f"{size} {kind}" for kind, size in sorted(held.items()))


def summarize_users(
    entries: Sequence[QueueEntry], pools: Iterable[PoolBody], projects: Iterable[ProjectBody]
) -> list[UserSummary]:
    """Each user who runs or waits; those who hold most come first."""
    devices: Counter[str] = Counter()
    for pool in pools:
        devices[pool.accelerator] += pool.devices
    known = list(projects)
    entries_of: dict[str, list[QueueEntry]] = defaultdict(list)
    for entry in entries:
        entries_of[entry.user].append(entry)
    found = [_summary(user, own, devices, known) for user, own in entries_of.items()]
    return sorted(found, key=lambda each: (-each.share, -sum(each.held.values()), -each.waiting, each.user))


def _summary(
    user: str, own: Sequence[QueueEntry], devices: Mapping[str, int], projects: Iterable[ProjectBody]
) -> UserSummary:
    held = _held(own)
    quotas = (
        UserQuota(project.name, _held_within(project.name, own), most)
        for project in projects
        if (most := find_user_limit(project, user)) is not None
        and any(is_within(entry.project, project.name) for entry in own)
    )
    return UserSummary(
        user,
        held,
        max((size / devices[kind] for kind, size in held.items() if devices.get(kind)), default=0.0),
        sum(not entry.is_waiting for entry in own),
        sum(entry.is_waiting for entry in own),
        tuple(quotas),
    )


def find_user_limit(project: ProjectBody, user: str) -> int | None:
    """What a user may hold in a project, at most; None: there is no limit, or the reader does not see it."""
    usual = None if project.user_limits_hidden else project.user_devices_max
    return (project.user_limits or {}).get(user, usual)


def _held(entries: Iterable[QueueEntry]) -> dict[str, int]:
    held: Counter[str] = Counter()
    for entry in entries:
        if not entry.is_waiting and entry.size:
            held[entry.accelerator] += entry.size
    return dict(held)


def find_devices_left(
    project: str, user: str, own: Sequence[QueueEntry], projects: Iterable[ProjectBody], quotas: Sequence[QuotaBody]
) -> DevicesLeft | None:
    """What the limits of a project and those above it leave a user; None: no limit is known.

    Args:
        project: by its path.
        user: the reader's own name.
        own: the user's entries.
        projects: all that are defined.
        quotas: what the projects hold.
    """
    found = []
    for above in projects:
        if not is_within(project, above.name):
            continue
        most = find_user_limit(above, user)
        if most is not None:
            found.append(DevicesLeft(above.name, max(0, most - _held_within(above.name, own)), most))
        if above.devices_max is not None:
            used = sum(quota.held + quota.borrowed for quota in quotas if quota.project == above.name)
            found.append(DevicesLeft(above.name, max(0, above.devices_max - used), above.devices_max))
    return min(found, key=lambda each: each.left, default=None)


def _held_within(project: str, own: Iterable[QueueEntry]) -> int:
    return sum(entry.size for entry in own if not entry.is_waiting and is_within(entry.project, project))
