"""What the controller needs of a database. The database is the arbiter: memory only caches what it holds.

Implementations are synchronous and used from one worker thread of the controller (and from others for reads); they
raise ``MooringsError`` only, never a driver's own exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NewType, Protocol

from moorings.core.access import Role
from moorings.core.claims import Claim, ClaimId, ClaimState, PartitionId
from moorings.core.devices import Device
from moorings.core.errors import MooringsError
from moorings.core.events import Event
from moorings.core.instants import Timestamp
from moorings.core.partitions import Partition
from moorings.core.projects import Project, ProjectUsage
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import Run, RunId, RunState

Epoch = NewType("Epoch", int)
Seq = NewType("Seq", int)

LOG_START = Seq(0)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far a database has come: only ever further, unless somebody turned it back.

    Attributes:
        seq: the number of its last event.
        epoch: of its last leader.
    """

    seq: Seq
    epoch: Epoch

    def is_reached_by(self, other: LogPosition) -> bool:
        """Whether a database that stands at ``other`` may be the one that stood here."""
        return other.seq >= self.seq and other.epoch >= self.epoch

    def raised_to(self, other: LogPosition) -> LogPosition:
        """The higher of both."""
        return LogPosition(max(self.seq, other.seq), max(self.epoch, other.epoch))


def rewound_error(known: LogPosition, at: LogPosition) -> MooringsError:
    """What to say of a database that has come less far than is known of it."""
    return MooringsError(
        "store.turned_back",
        f"the database was turned back: it is at event {at.seq} of epoch {at.epoch}, and was at {known.seq} of "
        f"{known.epoch}; a standby that lagged was promoted, or a copy was put in its place",
        hint="see 'moor doctor'; partitions that its records do not know are left alone until 'moor restore --finish'",
        retryable=True,
    )


@dataclass(frozen=True, slots=True)
class ExpectedVersion:
    """Which version of a record a save replaces; None: the record is new."""

    expected: int | None


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """The use of an idempotency key: ``subject`` and ``key`` are unique for ever.

    Attributes:
        digest: of the request body; empty: what it made has left the database, and its request is not known any more.
    """

    subject: str
    key: str
    digest: str
    claim: ClaimId | None = None
    run: RunId | None = None


@dataclass(slots=True)
class Changes:
    """Everything one turn decided, saved in one transaction or not at all.

    Attributes:
        claims: changed and new claims with the version they replace.
        partitions: changed and new partitions with the version they replace.
        removed: partitions whose record goes (nothing is left of them), with the version it had.
        devices: devices whose state changed; those IN_SERVICE need no record.
        runs: changed and new runs with the version they replace.
        jobs: the whole job of each new run.
        projects: changed and new projects with the version they replace.
        projects_removed: projects that go, each by its name, with the version it had; what they used is forgotten.
        usage: what projects have used by now, whether or not it was known before.
        keys: idempotency keys used by the new records.
        events: the outbox rows, in order.
    """

    claims: list[tuple[Claim, ExpectedVersion]] = field(default_factory=list)
    partitions: list[tuple[Partition, ExpectedVersion]] = field(default_factory=list)
    removed: list[tuple[PartitionId, int]] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    runs: list[tuple[Run, ExpectedVersion]] = field(default_factory=list)
    jobs: dict[RunId, JobSpec] = field(default_factory=dict)
    projects: list[tuple[Project, ExpectedVersion]] = field(default_factory=list)
    projects_removed: list[tuple[str, int]] = field(default_factory=list)
    usage: list[ProjectUsage] = field(default_factory=list)
    keys: list[IdempotencyRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) for item in fields(self))


@dataclass(frozen=True, slots=True)
class StoredState:
    """Everything that has not ended, as the database holds it, and the last sequence number it reflects.

    Projects, and what they used, stand by the projects' names.

    Attributes:
        archived: number of the last event that has left for an archive; 0: none has.
    """

    claims: tuple[Claim, ...]
    partitions: tuple[Partition, ...]
    devices: tuple[Device, ...]
    runs: tuple[Run, ...]
    projects: tuple[Project, ...]
    usage: tuple[ProjectUsage, ...]
    seq: Seq
    archived: Seq = LOG_START


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the outbox."""

    seq: Seq
    event: Event


@dataclass(frozen=True, slots=True)
class PageQuery:
    """How much of a list is wanted: at most ``limit`` after the item ``after`` (its id)."""

    limit: int = 100
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Leader:
    """Who began to lead last.

    Attributes:
        holder: its name; empty if nobody ever led.
        url: where it can be reached; empty if it did not say.
        epoch: its fencing epoch; 0 if nobody ever led.
        led_at: when it began; None if nobody ever led.
    """

    holder: str
    url: str
    epoch: Epoch
    led_at: Timestamp | None


@dataclass(frozen=True, slots=True)
class Replication:
    """How a database server keeps its standbys up to date.

    Attributes:
        standbys: how many are connected.
        names: those that a commit waits for, in PostgreSQL's words (``synchronous_standby_names``).
        commit: what it waits for (``synchronous_commit``), as our own sessions have it.
    """

    standbys: int
    names: str
    commit: str


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An access key as stored: never the secret, only its digest.

    Attributes:
        id: public part, in logs and listings.
        subject: who it speaks for.
        owner_prefix: claims it may make and release belong to owners that begin with it.
        digest: HMAC-SHA256 of the secret under the installation's pepper, hex.
        expires_at: from when on the secret is worth nothing; None: never.
        rotated_at: when it got this secret, if that is not its first.
        old_digest: of the secret before,
        old_until: which works until then.
    """

    id: str
    subject: str
    role: Role
    owner_prefix: str
    digest: str
    created_at: Timestamp
    revoked_at: Timestamp | None = None
    expires_at: Timestamp | None = None
    rotated_at: Timestamp | None = None
    old_digest: str | None = None
    old_until: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class ApplianceJobQuery:
    """Which of an appliance's jobs: of a kind, of a workflow, with all these labels; nothing given: all."""

    kind: ApplianceJobType | None = None
    workflow: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def takes(self, part: WorkflowPart | None, labels: Mapping[str, str]) -> bool:
        """Whether a run with that part in a workflow (None: it has none) and these labels is one of them."""
        return (
            part is not None
            and self.kind in (None, part.kind)
            and self.workflow in (None, part.workflow)
            and self.labels.items() <= labels.items()
        )


@dataclass(frozen=True, slots=True)
class Archive:
    """A stretch of the event log in a file.

    Attributes:
        first: number of its first event.
        last: number of its last event, which ends a turn.
        digest: SHA-256 of the file, hex.
        holder: the controller that wrote it; the file is on that one's machine.
        at: when that was.
    """

    first: Seq
    last: Seq
    digest: str
    holder: str
    at: Timestamp


@dataclass(frozen=True, slots=True)
class EndedRecords:
    """Records that ended long ago, and that nothing else refers to."""

    runs: Sequence[Run] = ()
    claims: Sequence[Claim] = ()

    def __bool__(self) -> bool:
        return bool(self.runs or self.claims)


class Store(Protocol):
    """A database that holds one installation."""

    def installation(self) -> str:
        """The id this installation got when its database was made; part of every mark."""
        ...

    def lead(self, holder: str, now: Timestamp, url: str = "") -> Epoch:
        """Begin to lead: raises the fencing epoch, so every earlier leader's saves fail from now on.

        Args:
            holder: the name of this controller, unique among those of the installation.
            now: told as ``led_at``.
            url: where the others can reach it.
        """
        ...

    def rise(self, at: LogPosition) -> None:
        """Number events and leaders above ``at`` from now on: for a database that was turned back."""
        ...

    def leader(self) -> Leader:
        """Who began to lead last; whether it still does is for nobody to know."""
        ...

    def load(self) -> StoredState:
        """Everything that has not ended, in one consistent read."""
        ...

    def commit(self, epoch: Epoch, changes: Changes, after: Seq = LOG_START) -> Seq:
        """Save all of it in one durable transaction; the last sequence number given.

        Args:
            epoch: under which the caller leads.
            changes: what is saved.
            after: the last sequence number that the caller knows of; a database that has not come so far was turned
                back.

        Raises:
            MooringsError: ``store.fenced`` (another controller leads), ``store.turned_back``, ``store.removed``,
                ``store.conflict`` (a version differs; or an id, a live partition's or a project's name, a key or a
                device is taken), ``store.unavailable`` (nothing was saved, or it is not known whether it was).
        """
        ...

    def keys_used(self, pairs: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], IdempotencyRecord]:
        """The uses of these (subject, key) pairs that exist."""
        ...

    def claim(self, ident: str) -> Claim | None:
        """The claim with that id, or the unended (else the newest) claim with that name."""
        ...

    def claims(
        self,
        page: PageQuery,
        *,
        states: frozenset[ClaimState] | None = None,
        owner_prefix: str | None = None,
        pool: str | None = None,
    ) -> Sequence[Claim]:
        """Claims by arrival, then id."""
        ...

    def run(self, ident: str, subject: str | None = None) -> Run | None:
        """The run with that id, or the newest run whose job has that name (of ``subject``, if one is given)."""
        ...

    def runs(
        self,
        page: PageQuery,
        *,
        states: frozenset[RunState] | None = None,
        subject: str | None = None,
        part: ApplianceJobQuery | None = None,
    ) -> Sequence[Run]:
        """Runs by creation, then id; with ``part`` only jobs of an appliance, and of these as it says."""
        ...

    def jobs(self, idents: Sequence[RunId]) -> Mapping[RunId, JobSpec]:
        """The whole jobs of these runs; those that there are not are missing."""
        ...

    def events(
        self, after: Seq, limit: int, *, claim: str | None = None, run: str | None = None, names: Sequence[str] = ()
    ) -> Sequence[EventRow]:
        """Outbox rows with a greater sequence number, in order; ``names`` may end in ``.*``."""
        ...

    def last_seq(self) -> Seq:
        """The last sequence number given."""
        ...

    def high_water(self) -> LogPosition:
        """How far it has come."""
        ...

    def archives(self) -> Sequence[Archive]:
        """The stretches of the event log that have left, oldest first."""
        ...

    def stretch(self, n_events: int, before: Timestamp) -> tuple[Seq, Seq] | None:
        """First and last of the oldest events: so many, and then up to the end of a turn; the same each time.

        None: there are not so many, or the last one happened at ``before`` or later.
        """
        ...

    def forget_events(self, epoch: Epoch, archive: Archive, limit: int, after: Seq = LOG_START) -> int:
        """Remove at most ``limit`` of the events that stand in an archive; how many. 0: none of them is left.

        The first call, with the oldest events there are, also saves that they have left.

        Args:
            epoch: under which the caller leads.
            archive: written, and on the disk.
            limit: so that the database is not busy for long.
            after: as in ``commit``.

        Raises:
            MooringsError: as ``commit``; ``store.conflict``: there are older events that no archive has.
        """
        ...

    def ended(self, before: Timestamp, limit: int) -> EndedRecords:
        """At most ``limit`` runs, and as many claims, that ended before that, the oldest first.

        A run with a claim of its own comes when that has ended, too; a claim when no run and no partition refers to it
        any more; jobs of a workflow when the last of them may.
        """
        ...

    def forget_ended(self, epoch: Epoch, ended: EndedRecords, after: Seq = LOG_START) -> None:
        """Remove them; their idempotency keys stay, spent.

        Args:
            epoch: under which the caller leads.
            ended: as ``ended`` gave them.
            after: as in ``commit``.

        Raises:
            MooringsError: as ``commit``; ``store.conflict``: something refers to one of them.
        """
        ...

    def replication(self) -> Replication | None:
        """How its server keeps standbys; None: it is a file."""
        ...

    def add_access_key(self, key: AccessKey, event: Event) -> None:
        """Store a new access key.

        Raises:
            MooringsError: ``key.exists``.
        """
        ...

    def access_key(self, ident: str) -> AccessKey | None:
        """The access key with that public id."""
        ...

    def access_keys(self) -> Sequence[AccessKey]:
        """All access keys, oldest first."""
        ...

    def rotate_access_key(self, key: AccessKey, replaced: str, event: Event) -> bool:
        """Save a key with its new secret; False if it was revoked, or its secret's digest is no longer ``replaced``."""
        ...

    def revoke_access_key(self, ident: str, event: Event) -> bool:
        """Revoke it; False if there is none or it was revoked before."""
        ...

    def ping(self) -> None:
        """Returns if a write could be made now.

        Raises:
            MooringsError: ``store.unavailable``.
        """
        ...

    def check_place(self) -> None:
        """See that what is written is found by the next controller.

        Raises:
            MooringsError: ``store.removed``: the database's file is no longer where it was opened.
        """
        ...

    def check_room(self) -> None:
        """See that there is room for new work; what ends work has a reserve.

        Raises:
            MooringsError: ``store.nearly_full``.
        """
        ...

    def keep_reserve(self) -> None:
        """Keep that reserve; called now and then.

        Raises:
            MooringsError: ``store.unavailable``.
        """
        ...

    def abort(self) -> None:
        """End the calls that wait for the database now, in whatever threads; they fail with ``store.unavailable``."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...
