"""The store: the controller's interface to a database. The database is the arbiter: memory only caches its content.

Implementations are synchronous and used from one worker thread of the controller (and from others for reads); they
raise ``MooringsError`` only, never a driver's own exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NewType, Protocol

from moorings.core.model.access import Role
from moorings.core.model.claims import Claim, ClaimId, ClaimState, PartitionId
from moorings.core.model.devices import Device
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event
from moorings.core.model.partitions import Partition
from moorings.core.model.projects import Project, ProjectUsage
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.visibility import SEES_ALL, Visibility
from moorings.workloads.appliance import ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import Run, RunId, RunState

Epoch = NewType("Epoch", int)
Seq = NewType("Seq", int)

LOG_START = Seq(0)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far a database has come: it only increases, unless the database is turned back.

    Attributes:
        seq: the number of its last event.
        epoch: of its last leader.
    """

    seq: Seq
    epoch: Epoch

    def is_covered_by(self, other: LogPosition) -> bool:
        """Whether a database at ``other`` may be the one that was at this position."""
        return other.seq >= self.seq and other.epoch >= self.epoch

    def max_with(self, other: LogPosition) -> LogPosition:
        """The higher of both positions."""
        return LogPosition(max(self.seq, other.seq), max(self.epoch, other.epoch))


def rewound_error(known: LogPosition, at: LogPosition) -> MooringsError:
    """The error for a database that is behind its known position."""
    return MooringsError(
        "store.turned_back",
        f"the database was turned back: it is at event {at.seq} of epoch {at.epoch}, and was at {known.seq} of "
        f"{known.epoch}; a standby that lagged was promoted, or a copy was put in its place",
        hint="see 'moor doctor'; partitions that its records do not know are left alone until 'moor restore --finish'",
        retryable=True,
    )


@dataclass(frozen=True, slots=True)
class ExpectedVersion:
    """The version of a record that a save replaces; None: the record is new."""

    expected: int | None


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """The use of an idempotency key: ``subject`` and ``key`` are unique forever.

    Attributes:
        digest: of the request body; empty: the record it made has left the database, and the request is unknown.
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
        removed: partitions whose record is deleted (nothing is left of them), with the version it had.
        devices: devices whose state changed; those IN_SERVICE need no record.
        runs: changed and new runs with the version they replace.
        jobs: the whole job of each new run.
        projects: changed and new projects with the version they replace.
        projects_removed: names of deleted projects, with the version they had; their usage is deleted, too.
        usage: the present usage of projects, whether or not it was known before.
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
    """Everything that has not ended, from the database, and the last sequence number it reflects.

    Projects, and their usage, are ordered by the projects' names.

    Attributes:
        last_archived_seq: number of the last event that has left for an archive; 0: none has.
    """

    claims: tuple[Claim, ...]
    partitions: tuple[Partition, ...]
    devices: tuple[Device, ...]
    runs: tuple[Run, ...]
    projects: tuple[Project, ...]
    usage: tuple[ProjectUsage, ...]
    seq: Seq
    last_archived_seq: Seq = LOG_START


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the outbox."""

    seq: Seq
    event: Event


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A page of a list: at most ``limit`` items after the item ``after`` (its id)."""

    limit: int = 100
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Leader:
    """The last controller that began to lead.

    Attributes:
        controller_name: its name; empty if none ever led.
        url: its address; empty if it gave none.
        epoch: its fencing epoch; 0 if none ever led.
        led_at: when it began; None if none ever led.
    """

    controller_name: str
    url: str
    epoch: Epoch
    led_at: Timestamp | None


@dataclass(frozen=True, slots=True)
class Replication:
    """How a database server keeps its standbys up to date.

    Attributes:
        standbys: how many are connected.
        names: the standbys that a commit waits for, as in PostgreSQL's ``synchronous_standby_names``.
        commit: what it waits for, as in ``synchronous_commit`` of our own sessions.
    """

    standbys: int
    names: str
    commit: str


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An access key as stored: never the secret, only its digest.

    Attributes:
        id: public part, in logs and listings.
        subject: the name it authenticates.
        owner_prefix: it may create and release claims of owners with this prefix.
        digest: HMAC-SHA256 of the secret with the installation's pepper, hex.
        expires_at: when the secret stops working; None: never.
        rotated_at: when it got this secret, if that is not its first.
        previous_digest: of the secret before,
        previous_valid_until: which works until then.
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
    previous_digest: str | None = None
    previous_valid_until: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class ApplianceJobQuery:
    """A selection of an appliance's jobs: by kind, by workflow, by all these labels; without any: all."""

    kind: ApplianceJobType | None = None
    workflow: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def matches(self, part: WorkflowPart | None, labels: Mapping[str, str]) -> bool:
        """Whether a run with that part in a workflow (None: it has none) and these labels is selected."""
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
        controller_name: the controller that wrote it; the file is on its machine.
        at: when it was written.
    """

    first: Seq
    last: Seq
    digest: str
    controller_name: str
    at: Timestamp


@dataclass(frozen=True, slots=True)
class EndedRecords:
    """Records that ended long ago, and that no other record refers to."""

    runs: Sequence[Run] = ()
    claims: Sequence[Claim] = ()

    def __bool__(self) -> bool:
        return bool(self.runs or self.claims)


class Store(Protocol):
    """The database of one installation."""

    def installation(self) -> str:
        """The id of this installation, made with its database; part of every mark."""
        ...

    def begin_epoch(self, controller_name: str, now: Timestamp, url: str = "") -> Epoch:
        """Begin to lead: raises the fencing epoch, so every earlier leader's saves fail from now on.

        Args:
            controller_name: the name of this controller, unique in the installation.
            now: saved as ``led_at``.
            url: its address for the other controllers.
        """
        ...

    def advance_to(self, at: LogPosition) -> None:
        """Number events and leaders above ``at`` from now on: for a database that was turned back."""
        ...

    def get_leader(self) -> Leader:
        """The last controller that began to lead; whether it still does is unknown."""
        ...

    def load_unended(self) -> StoredState:
        """Everything that has not ended, in one consistent read."""
        ...

    def commit(self, epoch: Epoch, changes: Changes, after: Seq = LOG_START) -> Seq:
        """Save all changes in one durable transaction; returns the last sequence number used.

        Args:
            epoch: under which the caller leads.
            changes: the changes.
            after: the last sequence number that the caller knows; a database that has not come so far was turned back.

        Raises:
            MooringsError: ``store.fenced`` (another controller leads), ``store.turned_back``, ``store.removed``,
                ``store.conflict`` (a version differs; or an id, a live partition's or a project's name, a key or a
                device is taken), ``store.unavailable`` (nothing was saved, or it is not known whether it was).
        """
        ...

    def find_idempotency_records(self, pairs: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], IdempotencyRecord]:
        """The existing uses of these (subject, key) pairs."""
        ...

    def get_claim(self, ident: str, visible: Visibility = SEES_ALL) -> Claim | None:
        """The visible claim with that id, or the unended (else the newest) visible claim with that name."""
        ...

    def list_claims(
        self,
        page: PageQuery,
        *,
        states: frozenset[ClaimState] | None = None,
        owner_prefix: str | None = None,
        pool: str | None = None,
        visible: Visibility = SEES_ALL,
    ) -> Sequence[Claim]:
        """Visible claims by arrival, then id."""
        ...

    def get_run(self, ident: str, subject: str | None = None, visible: Visibility = SEES_ALL) -> Run | None:
        """The visible run with that id, or the newest visible one with that job name (of ``subject``, if given)."""
        ...

    def list_runs(
        self,
        page: PageQuery,
        *,
        states: frozenset[RunState] | None = None,
        subject: str | None = None,
        part: ApplianceJobQuery | None = None,
        array: str | None = None,
        visible: Visibility = SEES_ALL,
    ) -> Sequence[Run]:
        """Visible runs by creation, then id; with ``part`` only those of an appliance, with ``array`` its elements."""
        ...

    def get_jobs(self, idents: Sequence[RunId]) -> Mapping[RunId, JobSpec]:
        """The whole jobs of these runs; unknown runs are left out."""
        ...

    def list_events(
        self,
        after: Seq,
        limit: int,
        *,
        claim: str | None = None,
        run: str | None = None,
        names: Sequence[str] = (),
        visible: Visibility = SEES_ALL,
    ) -> Sequence[EventRow]:
        """Visible outbox rows with a greater sequence number, in order; ``names`` may end in ``.*``.

        Everybody sees ``PUBLIC_EVENTS``.
        """
        ...

    def last_seq(self) -> Seq:
        """The last sequence number used."""
        ...

    def log_position(self) -> LogPosition:
        """How far the database has come."""
        ...

    def archives(self) -> Sequence[Archive]:
        """The archived stretches of the event log, oldest first."""
        ...

    def next_archive_range(self, n_events: int, before: Timestamp) -> tuple[Seq, Seq] | None:
        """First and last of the oldest ``n_events`` events, extended to the end of a turn; the same each time.

        None: there are fewer, or the last one happened at ``before`` or later.
        """
        ...

    def delete_archived_events(self, epoch: Epoch, archive: Archive, limit: int, after: Seq = LOG_START) -> int:
        """Remove at most ``limit`` of an archive's events; returns how many. 0: none of them is left.

        The first call, with the oldest events in the database, also records that they have left.

        Args:
            epoch: under which the caller leads.
            archive: written, and durable.
            limit: so that the database is not busy for long.
            after: as in ``commit``.

        Raises:
            MooringsError: as ``commit``; ``store.conflict``: there are older events that no archive has.
        """
        ...

    def list_ended(self, before: Timestamp, limit: int) -> EndedRecords:
        """At most ``limit`` runs, and as many claims, that ended before that, the oldest first.

        A run with a claim of its own is listed when that has ended, too; a claim when no run and no partition refers to
        it any more; jobs of a workflow when the last of them may leave.
        """
        ...

    def delete_ended(self, epoch: Epoch, ended: EndedRecords, after: Seq = LOG_START) -> None:
        """Remove these records; their idempotency keys stay, spent.

        Args:
            epoch: under which the caller leads.
            ended: from ``ended``.
            after: as in ``commit``.

        Raises:
            MooringsError: as ``commit``; ``store.conflict``: a record refers to one of them.
        """
        ...

    def replication(self) -> Replication | None:
        """How its server replicates to standbys; None: it is a file."""
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
        """Revoke a key; False if it does not exist or was revoked before."""
        ...

    def ping(self) -> None:
        """Return if a write is possible now.

        Raises:
            MooringsError: ``store.unavailable``.
        """
        ...

    def check_file(self) -> None:
        """Check that the next controller will find what is written.

        Raises:
            MooringsError: ``store.removed``: the database's file is no longer where it was opened.
        """
        ...

    def check_space(self) -> None:
        """Check that there is room for new work; a reserve is kept for ending work.

        Raises:
            MooringsError: ``store.nearly_full``.
        """
        ...

    def ensure_reserve(self) -> None:
        """Fill up that reserve; called now and then.

        Raises:
            MooringsError: ``store.unavailable``.
        """
        ...

    def abort(self) -> None:
        """End the calls that wait for the database now, in any thread; they fail with ``store.unavailable``."""
        ...

    def close(self) -> None:
        """Close the database."""
        ...
