"""The store port in SQL.

Nothing here depends on the kind of database; that is in ``database`` and its subclasses. Lists are read in the order of
an index and a page at a time, so their cost is the page's, not the history's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    case,
    false,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError

from moorings.core.model.claims import ENDED as ENDED_CLAIMS
from moorings.core.model.claims import Claim, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.visibility import SEES_ALL, Visibility
from moorings.ports.store import (
    LOG_START,
    AccessKey,
    ApplianceJobQuery,
    Archive,
    Changes,
    EndedRecords,
    Epoch,
    IdempotencyRecord,
    Leader,
    LogPosition,
    PageQuery,
    Replication,
    Seq,
    StoredState,
    rewound_error,
)
from moorings.ports.store import EventRow as Numbered
from moorings.store import history, rows
from moorings.store.conflicts import CommitRejectedError
from moorings.store.database import Database
from moorings.store.saving import ChangeWriter
from moorings.store.tables import (
    access_keys,
    claims,
    devices,
    idempotency_keys,
    installation,
    outbox,
    partitions,
    project_usage,
    projects,
    runs,
)
from moorings.store.visible import CLAIMS, EVENTS, RUNS, OwnedTable
from moorings.workloads.jobs import JobSpec
from moorings.workloads.runs import ENDED as ENDED_RUNS
from moorings.workloads.runs import Run, RunId, RunState

_LIVE_CLAIMS = sorted(state.value for state in ClaimState if state not in ENDED_CLAIMS)
_LIVE_RUNS = sorted(state.value for state in RunState if state not in ENDED_RUNS)
_LIVE_STATES = {state for state in ClaimState if state not in ENDED_CLAIMS} | {
    state for state in RunState if state not in ENDED_RUNS
}
# SQLAlchemy's types for all columns of a table; ``rows`` has the type of each.
_AnySelect = Select[*tuple[Any, ...]]
_AnyRow = Row[*tuple[Any, ...]]

# Statements of every turn are built once: building one costs more than running it.
_RAISE_SEQ = update(installation).values(seq=installation.c.seq + bindparam("n_events"))
_RAISE_SEQ_GUARDED = _RAISE_SEQ.where(
    installation.c.epoch == bindparam("leading"), installation.c.seq >= bindparam("after")
)
_LAST_SEQ = select(installation.c.seq)
_HIGH_WATER = select(installation.c.seq, installation.c.epoch)
_LEADER = select(
    *(installation.c[name] for name in ("holder", "url", "url_epoch", "epoch", "led_at")),
)
_PAIRS_AT_ONCE = 16
# Not `(subject, key) IN (VALUES ...)`: SQLite compares those without the columns' types, so without an index.
_KEYS_USED = select(idempotency_keys).where(
    or_(
        *(
            and_(
                idempotency_keys.c.subject == bindparam(f"subject_{place}"),
                idempotency_keys.c.key == bindparam(f"key_{place}"),
            )
            for place in range(_PAIRS_AT_ONCE)
        )
    )
)

# The job, which may be half a megabyte, only of rows without a head.
_JOB_FOR_HEAD = case((runs.c.head.is_(None), runs.c.job)).label("job")
_RUNS = select(*(_JOB_FOR_HEAD if column is runs.c.job else column for column in runs.c))

_ALL = 1000  # more characters than any event name has
_LAST_CHARACTER = "\U0010ffff"  # texts are compared by code points, see ``tables.BytewiseText``


class SqlStore:
    """One installation in an SQL database whose tables are up to date."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._saver = ChangeWriter(database.engine.dialect)
        with database.read() as connection:
            self._installation: str = connection.execute(select(installation.c.id)).scalar_one()

    def installation(self) -> str:
        return self._installation

    # ---------------------------------------------------------------------------------------------------------- saving

    def begin_epoch(self, holder: str, now: Timestamp, url: str = "") -> Epoch:
        raised = installation.c.epoch + 1
        with self._database.write() as connection:
            last = _allocate_seq(connection, 1)
            connection.execute(
                update(installation).values(epoch=raised, holder=holder, led_at=now, url=url, url_epoch=raised)
            )
            epoch = Epoch(connection.execute(select(installation.c.epoch)).scalar_one())
            data = canonical_json({"epoch": epoch, "holder": holder})
            self._saver.save(connection, Changes(events=[Event(name="controller.led", at=now, data=data)]), last)
        return epoch

    def advance_to(self, at: LogPosition) -> None:
        at_least = {installation.c.seq: at.seq, installation.c.epoch: at.epoch}
        with self._database.write() as connection:
            connection.execute(
                update(installation).values(
                    {column.name: case((column < least, least), else_=column) for column, least in at_least.items()}
                )
            )

    def get_leader(self) -> Leader:
        with self._database.read() as connection:
            row = connection.execute(_LEADER).one()
        return rows.parse_leader(*row)

    def commit(self, epoch: Epoch, changes: Changes, after: Seq = LOG_START) -> Seq:
        try:
            with self._database.write() as connection:
                last = _allocate_seq(connection, len(changes.events), LogPosition(after, epoch))
                self._saver.save(connection, changes, last)
            return last
        except CommitRejectedError as refused:
            with self._database.snapshot() as connection:
                raise refused.explain(connection) from refused

    # --------------------------------------------------------------------------------------------------------- reading

    def load_unended(self) -> StoredState:
        with self._database.snapshot() as connection:
            waiting = select(claims).where(claims.c.state.in_(_LIVE_CLAIMS)).order_by(claims.c.arrival, claims.c.id)
            live = _RUNS.where(runs.c.state.in_(_LIVE_RUNS)).order_by(runs.c.created_at, runs.c.id)
            held = select(partitions).order_by(partitions.c.id)
            out = select(devices).order_by(devices.c.pool, devices.c.device)
            paying = select(projects).order_by(projects.c.name)
            used = select(project_usage).order_by(project_usage.c.project)
            # Converted after the transaction: a server ends a transaction that is idle for seconds.
            found = [connection.execute(chosen).all() for chosen in (waiting, held, out, live, paying, used)]
            seq, archived = _last_seq(connection), history.last_archived_seq(connection)
        return StoredState(
            claims=tuple(rows.parse_claim(*row) for row in found[0]),
            partitions=tuple(rows.parse_partition(*row) for row in found[1]),
            devices=tuple(rows.parse_device(*row) for row in found[2]),
            runs=tuple(rows.parse_run(*row) for row in found[3]),
            projects=tuple(rows.parse_project(*row) for row in found[4]),
            usage=tuple(rows.parse_usage(*row) for row in found[5]),
            seq=seq,
            last_archived_seq=archived,
        )

    def find_idempotency_records(self, pairs: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], IdempotencyRecord]:
        found: list[IdempotencyRecord] = []
        # No snapshot, which would cost a round trip: keys are only ever added.
        with self._database.read() as connection:
            for start in range(0, len(pairs), _PAIRS_AT_ONCE):
                part = pairs[start : start + _PAIRS_AT_ONCE]
                wanted: dict[str, str] = {}
                for place in range(_PAIRS_AT_ONCE):  # the last pair fills the rest
                    pair = part[min(place, len(part) - 1)]
                    wanted[f"subject_{place}"], wanted[f"key_{place}"] = pair
                found.extend(rows.parse_idempotency_record(*row) for row in connection.execute(_KEYS_USED, wanted))
            # Read last: a key that is moved meanwhile from one table to the other is then found in at least one.
            used = {(use.subject, use.key): use for use in found}
            used |= history.find_spent_keys(connection, [pair for pair in pairs if pair not in used])
        return used

    def get_claim(self, ident: str, visible: Visibility = SEES_ALL) -> Claim | None:
        shown = select(claims).where(CLAIMS.is_visible(visible))
        named = shown.where(claims.c.name == ident).order_by(claims.c.arrival.desc(), claims.c.id.desc())
        row = self._first(
            shown.where(claims.c.id == ident),
            named.where(claims.c.state.in_(_LIVE_CLAIMS)),
            named,
        )
        return None if row is None else rows.parse_claim(*row)

    def list_claims(
        self,
        page: PageQuery,
        *,
        states: frozenset[ClaimState] | None = None,
        owner_prefix: str | None = None,
        pool: str | None = None,
        visible: Visibility = SEES_ALL,
    ) -> Sequence[Claim]:
        chosen = select(claims)
        if owner_prefix:
            chosen = chosen.where(_prefix_condition(claims.c.owner, owner_prefix))
        if pool is not None:
            chosen = chosen.where(claims.c.pool == pool)
        part = _OwnedPart(claims, claims.c.arrival, CLAIMS, visible)
        return [rows.parse_claim(*row) for row in self._page(chosen, part, page, states)]

    def get_run(self, ident: str, subject: str | None = None, visible: Visibility = SEES_ALL) -> Run | None:
        shown = _RUNS.where(RUNS.is_visible(visible))
        named = shown.where(runs.c.name == ident).order_by(runs.c.created_at.desc(), runs.c.id.desc())
        if subject is not None:
            named = named.where(runs.c.subject == subject)
        row = self._first(shown.where(runs.c.id == ident), named)
        return None if row is None else rows.parse_run(*row)

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
        chosen: _AnySelect = _RUNS
        if subject is not None:
            chosen = chosen.where(runs.c.subject == subject)
        if part is not None:
            chosen = chosen.where(*_part_conditions(part))
        if array is not None:
            chosen = chosen.where(_prefix_condition(runs.c.id, f"{array}-"))
        owned = _OwnedPart(runs, runs.c.created_at, RUNS, visible)
        return [rows.parse_run(*row) for row in self._page(chosen, owned, page, states)]

    def get_jobs(self, idents: Sequence[RunId]) -> Mapping[RunId, JobSpec]:
        chosen = select(runs.c.id, runs.c.job).where(runs.c.id.in_(idents))
        with self._database.read() as connection:
            return {RunId(ident): rows.parse_job_text(text) for ident, text in connection.execute(chosen)}

    def list_events(
        self,
        after: Seq,
        limit: int,
        *,
        claim: str | None = None,
        run: str | None = None,
        names: Sequence[str] = (),
        visible: Visibility = SEES_ALL,
    ) -> Sequence[Numbered]:
        chosen = select(outbox).where(outbox.c.seq > after).order_by(outbox.c.seq).limit(max(limit, 0))
        if claim is not None:
            chosen = chosen.where(outbox.c.claim == claim)
        if run is not None:
            chosen = chosen.where(outbox.c.run == run)
        if claim is not None or run is not None:  # few: their own index finds them
            chosen = chosen.where(EVENTS.is_visible(visible))
            if names:
                chosen = chosen.where(or_(*(_name_condition(name) for name in names)))
        elif not visible.sees_all:
            chosen = history.select_visible(visible, [_name_condition(name) for name in names], after, limit)
        elif names:
            with self._database.snapshot() as connection:
                found = history.select_by_names(connection, names, after, limit)
                return [rows.parse_event(*row) for row in connection.execute(found)] if found is not None else []
        with self._database.read() as connection:
            return [rows.parse_event(*row) for row in connection.execute(chosen)]

    def last_seq(self) -> Seq:
        with self._database.read() as connection:
            return _last_seq(connection)

    def log_position(self) -> LogPosition:
        with self._database.read() as connection:
            return _high_water(connection)

    # ------------------------------------------------------------------------------------------------------- retention

    def archives(self) -> Sequence[Archive]:
        with self._database.read() as connection:
            return history.list_archives(connection)

    def next_archive_range(self, n_events: int, before: Timestamp) -> tuple[Seq, Seq] | None:
        with self._database.snapshot() as connection:
            return history.next_archive_range(connection, n_events, before)

    def delete_archived_events(self, epoch: Epoch, archive: Archive, limit: int, after: Seq = LOG_START) -> int:
        with self._database.write() as connection:
            _allocate_seq(connection, 0, LogPosition(after, epoch))
            return history.delete_archived_events(connection, archive, limit)

    def list_ended(self, before: Timestamp, limit: int) -> EndedRecords:
        with self._database.snapshot() as connection:
            return history.list_ended(connection, before, limit)

    def delete_ended(self, epoch: Epoch, ended: EndedRecords, after: Seq = LOG_START) -> None:
        try:
            with self._database.write() as connection:
                _allocate_seq(connection, 0, LogPosition(after, epoch))
                history.delete_ended(connection, ended)
        except IntegrityError as error:
            raise MooringsError("store.conflict", "something refers to a record that was to leave") from error

    def replication(self) -> Replication | None:
        return self._database.replication()

    # ----------------------------------------------------------------------------------------------------- access keys

    def add_access_key(self, key: AccessKey, event: Event) -> None:
        try:
            with self._database.write() as connection:
                last = _allocate_seq(connection, 1)
                connection.execute(
                    insert(access_keys).values(dict(zip(access_keys.c.keys(), rows.access_key_row(key), strict=True)))
                )
                self._saver.save(connection, Changes(events=[event]), last)
        except IntegrityError as error:
            raise MooringsError("key.exists", f"there is an access key {key.id}", hint="choose another id") from error

    def access_key(self, ident: str) -> AccessKey | None:
        row = self._first(select(access_keys).where(access_keys.c.id == ident))
        return None if row is None else rows.parse_access_key(*row)

    def access_keys(self) -> Sequence[AccessKey]:
        with self._database.read() as connection:
            found = connection.execute(select(access_keys).order_by(access_keys.c.created_at, access_keys.c.id))
            return [rows.parse_access_key(*row) for row in found]

    def rotate_access_key(self, key: AccessKey, replaced: str, event: Event) -> bool:
        unchanged = and_(
            access_keys.c.id == key.id, access_keys.c.digest == replaced, access_keys.c.revoked_at.is_(None)
        )
        with self._database.write() as connection:
            new = dict(zip(access_keys.c.keys(), rows.access_key_row(key), strict=True))
            if not connection.execute(update(access_keys).where(unchanged).values(new)).rowcount:
                return False
            self._saver.save(connection, Changes(events=[event]), _allocate_seq(connection, 1))
        return True

    def revoke_access_key(self, ident: str, event: Event) -> bool:
        valid = and_(access_keys.c.id == ident, access_keys.c.revoked_at.is_(None))
        with self._database.write() as connection:
            if not connection.execute(update(access_keys).where(valid).values(revoked_at=event.at)).rowcount:
                return False
            self._saver.save(connection, Changes(events=[event]), _allocate_seq(connection, 1))
        return True

    # ------------------------------------------------------------------------------------------------------- the whole

    def ping(self) -> None:
        # A real commit: a rolled back transaction never touches the disk, so it would not find it full.
        with self._database.write() as connection:
            _allocate_seq(connection, 0)

    def check_file(self) -> None:
        self._database.check_file()

    def check_space(self) -> None:
        self._database.check_room()

    def ensure_reserve(self) -> None:
        self._database.keep_reserve()

    def abort(self) -> None:
        self._database.abort()

    def close(self) -> None:
        self._database.close()

    def _first(self, *choices: _AnySelect) -> _AnyRow | None:
        with self._database.snapshot() as connection:
            for chosen in choices:
                row = connection.execute(chosen.limit(1)).first()
                if row is not None:
                    return row
        return None

    def _page(
        self, chosen: _AnySelect, owned: _OwnedPart, page: PageQuery, states: Collection[ClaimState | RunState] | None
    ) -> Sequence[_AnyRow]:
        """The page of the selection, by moment and id; empty if ``page.after`` does not exist."""
        limit, table, moment = max(page.limit, 0), owned.table, owned.moment
        chosen = chosen.order_by(moment, table.c.id).limit(limit)
        with self._database.snapshot() as connection:
            if page.after is not None:
                start = connection.execute(select(moment).where(table.c.id == page.after)).scalar_one_or_none()
                beyond = false() if start is None else tuple_(moment, table.c.id) > tuple_(start, page.after)
                chosen = chosen.where(beyond)
            lists = owned.lists(chosen, states)
            if len(lists) == 1:
                return connection.execute(lists[0]).all()
            found = [row for part in lists for row in connection.execute(part).all()]
        at, ident = list(table.c).index(moment), list(table.c).index(table.c.id)
        return sorted({row[ident]: row for row in found}.values(), key=lambda row: (row[at], row[ident]))[:limit]


@dataclass(frozen=True, slots=True)
class _OwnedPart:
    """What of a table a caller sees, as lists in the order of an index: one list of them all would be sorted whole."""

    table: Table
    moment: Column[int]
    owned: OwnedTable
    visible: Visibility

    def lists(self, chosen: _AnySelect, states: Collection[ClaimState | RunState] | None) -> list[_AnySelect]:
        """The selections that together are the visible part of ``chosen`` in these states; None: in any."""
        state = self.table.c.state
        if states is not None and (self.visible.sees_all or _LIVE_STATES.issuperset(states)):
            chosen = chosen.where(self.owned.is_visible(self.visible))  # few have not ended
            return [chosen.where(state == each.value) for each in states]
        if self.visible.sees_all:
            return [chosen]
        if states is not None:
            chosen = chosen.where(literal("").concat(state).in_(sorted(each.value for each in states)))
        return [chosen.where(part) for part in self.owned.each_visible(self.visible)]


def _allocate_seq(connection: Connection, n_events: int, known: LogPosition | None = None) -> Seq:
    """Allocate numbers for new events; returns the last.

    The first statement of every write: it takes the write lock, so numbers are in the order of commits.

    Args:
        connection: in a transaction that writes.
        n_events: the number of events.
        known: the epoch under which the caller leads, and how far it knows the database to have come.

    Raises:
        MooringsError: ``store.fenced`` if another controller began to lead after that epoch, ``store.turned_back``.
    """
    if known is None:
        raised = connection.execute(_RAISE_SEQ, {"n_events": n_events})
    else:
        guards = {"n_events": n_events, "leading": known.epoch, "after": known.seq}
        raised = connection.execute(_RAISE_SEQ_GUARDED, guards)
    if known is not None and not raised.rowcount:
        at, holder = _high_water(connection), connection.execute(select(installation.c.holder)).scalar_one()
        if at.epoch <= known.epoch:
            raise rewound_error(known, at)
        raise MooringsError(
            "store.fenced",
            f"{holder or 'nobody'} leads this installation now",
            hint="this controller must not decide any more: stop it, or let it lead again",
        )
    return _last_seq(connection)


def _part_conditions(part: ApplianceJobQuery) -> Iterator[ColumnElement[bool]]:
    yield runs.c.kind == part.kind.value if part.kind is not None else runs.c.kind.is_not(None)
    if part.workflow is not None:
        yield runs.c.workflow == part.workflow
    for key, value in part.labels.items():  # canonical: one label has one text, and no value contains a quote
        yield runs.c.labels.contains(rows.labels_text({key: value})[1:-1], autoescape=True)


def _high_water(connection: Connection) -> LogPosition:
    seq, epoch = connection.execute(_HIGH_WATER).one()
    return LogPosition(Seq(seq), Epoch(epoch))


def _last_seq(connection: Connection) -> Seq:
    return Seq(connection.execute(_LAST_SEQ).scalar_one())


def _prefix_condition(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    # A range, not LIKE: it uses the index, and nothing in the prefix is a pattern.
    return and_(column >= prefix, column < prefix + _LAST_CHARACTER)


def _name_condition(name: str) -> ColumnElement[bool]:
    # On an expression without an index: SQLite could otherwise use that of the names, and read events of all claims.
    begin = name.removesuffix("*")
    return func.substr(outbox.c.name, 1, len(begin) if begin != name else _ALL) == begin
