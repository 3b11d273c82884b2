"""Queries on a long history that do not read all of it, and the removal of its oldest part.

These are statements of ``sql``, which begins the transactions. A statement here may touch many rows only up to a limit:
meanwhile the deciding turn waits for the database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    union,
    union_all,
)

from moorings.core.model.claims import ENDED as ENDED_CLAIMS
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import canonical_json
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.visibility import Visibility
from moorings.ports.store import LOG_START, Archive, EndedRecords, IdempotencyRecord, Seq
from moorings.store import rows
from moorings.store.tables import archives, claims, idempotency_keys, outbox, partitions, runs, spent_keys
from moorings.store.visible import EVENTS
from moorings.workloads.runs import ENDED as ENDED_RUNS

T = TypeVar("T")

TURN: Final = "turn.decided"  # the last event of every turn
_AT_ONCE: Final = 200  # values in one statement; old SQLite allows 999 parameters
_DIGEST_BYTES: Final = 16
_ENDED_CLAIMS = sorted(state.value for state in ENDED_CLAIMS)
_ENDED_RUNS = sorted(state.value for state in ENDED_RUNS)
_earlier_runs = runs.alias("earlier")
_LAST_ARCHIVED = select(func.max(archives.c.last))

# The names in the log, one step of the index each. Not ``DISTINCT``: that reads the whole log.
_first_name = select(func.min(outbox.c.name).label("name")).cte("names", recursive=True)
_NAMES = _first_name.union_all(
    select(select(func.min(outbox.c.name)).where(outbox.c.name > _first_name.c.name).scalar_subquery()).where(
        _first_name.c.name.is_not(None)
    )
)
_ALL_NAMES = select(_NAMES.c.name).where(_NAMES.c.name.is_not(None))


# -------------------------------------------------------------------------------------------------------------- events


def select_by_names(
    connection: Connection, wanted: Sequence[str], after: Seq, limit: int
) -> Select[*tuple[Any, ...]] | None:
    """The statement that reads the events of these names after ``after``, at most ``limit``; names may end in ``.*``.

    None: there are no such events. It merges one list for each name, each in the order of its index: one list of
    several names would read and sort all of them. So prefixes are expanded to names first, in the same snapshot.
    """
    exact = {name for name in wanted if not name.endswith(".*")}
    begins = tuple(name[:-1] for name in wanted if name.endswith(".*"))
    if begins:
        exact.update(name for name in connection.execute(_ALL_NAMES).scalars() if name.startswith(begins))
    # Each ordered by itself: PostgreSQL merges only such lists, and sorts all others completely.
    ordered = [
        select(outbox.c.seq).where(outbox.c.name == name, outbox.c.seq > after).order_by(outbox.c.seq).subquery()
        for name in sorted(exact)
    ]
    found = [select(one.c.seq) for one in ordered]
    if not found:
        return None
    merged = (union_all(*found) if len(found) > 1 else found[0]).order_by("seq").limit(max(limit, 0))
    return select(outbox).where(outbox.c.seq.in_(merged)).order_by(outbox.c.seq)


def select_visible(
    visible: Visibility, named: Sequence[ColumnElement[bool]], after: Seq, limit: int
) -> Select[*tuple[Any, ...]]:
    """The statement that reads the visible events after ``after``, at most ``limit``, that meet one of ``named``.

    It merges one list for each way to see an event, each in the order of its index: so it costs what the caller sees,
    however long the log is. An event may be in several lists.
    """
    wanted = [or_(*named)] if named else []
    ordered = [
        select(outbox.c.seq)
        .where(part, outbox.c.seq > after, *wanted)
        .order_by(outbox.c.seq)
        .limit(max(limit, 0))
        .subquery()
        for part in EVENTS.each_visible(visible)
    ]
    merged = union(*(select(one.c.seq) for one in ordered)).order_by("seq").limit(max(limit, 0))
    return select(outbox).where(outbox.c.seq.in_(merged)).order_by(outbox.c.seq)


def last_archived_seq(connection: Connection) -> Seq:
    """Number of the last archived event."""
    return Seq(connection.execute(_LAST_ARCHIVED).scalar_one() or LOG_START)


def list_archives(connection: Connection) -> Sequence[Archive]:
    """The archived stretches, oldest first."""
    return [rows.parse_archive(*row) for row in connection.execute(select(archives).order_by(archives.c.last))]


def next_archive_range(connection: Connection, n_events: int, before: Timestamp) -> tuple[Seq, Seq] | None:
    """First and last of the oldest ``n_events`` unarchived events, extended to the end of a turn."""
    oldest = (
        select(outbox.c.seq, outbox.c.at).where(outbox.c.seq > last_archived_seq(connection)).order_by(outbox.c.seq)
    )
    first = connection.execute(oldest.limit(1)).first()
    nth = connection.execute(oldest.limit(1).offset(n_events - 1)).first()
    if first is None or nth is None or nth.at >= before:
        return None
    ends = select(outbox.c.seq, outbox.c.at).where(outbox.c.name == TURN, outbox.c.seq >= nth.seq)
    last = connection.execute(ends.order_by(outbox.c.seq).limit(1)).first()
    return None if last is None or last.at >= before else (Seq(first.seq), Seq(last.seq))


def delete_archived_events(connection: Connection, archive: Archive, limit: int) -> int:
    """Remove some events of an archive, and record that they have left; returns how many were removed.

    Raises:
        MooringsError: ``store.conflict``.
    """
    known = connection.execute(select(archives).where(archives.c.last == archive.last)).first()
    if known is None:
        oldest = connection.execute(select(func.min(outbox.c.seq))).scalar_one()
        if archive.first != oldest or archive.first <= last_archived_seq(connection):
            raise MooringsError(
                "store.conflict",
                f"an archive of events {archive.first} to {archive.last} does not begin with the oldest, {oldest}",
                hint="nothing was removed",
            )
        connection.execute(insert(archives).values(rows.archive_values(archive)))
    elif rows.parse_archive(*known).digest != archive.digest:
        raise MooringsError("store.conflict", f"there is another archive up to event {archive.last}")
    some = select(outbox.c.seq).where(outbox.c.seq <= archive.last).order_by(outbox.c.seq).limit(limit).subquery()
    until = connection.execute(select(func.max(some.c.seq))).scalar_one()
    return connection.execute(delete(outbox).where(outbox.c.seq <= until)).rowcount if until is not None else 0


# ------------------------------------------------------------------------------------------------------ claims and runs


def list_ended(connection: Connection, before: Timestamp, limit: int) -> EndedRecords:
    """Runs and claims that ended before that, and that no other record refers to."""
    other = _earlier_runs.c
    younger = exists().where(other.workflow == runs.c.workflow, or_(other.ended_at.is_(None), other.ended_at >= before))
    own = exists().where(claims.c.id == runs.c.claim, or_(claims.c.ended_at.is_(None), claims.c.ended_at >= before))
    old_runs = select(runs).where(
        runs.c.ended_at < before,
        literal("").concat(runs.c.state).in_(_ENDED_RUNS),  # so that no index on the state is used: most have ended
        or_(runs.c.workflow.is_(None), ~younger),
        or_(runs.c.claim.is_(None), runs.c.within == 1, ~own),
    )
    old_claims = select(claims).where(
        claims.c.ended_at < before,
        literal("").concat(claims.c.state).in_(_ENDED_CLAIMS),
        ~exists().where(runs.c.claim == claims.c.id),
        ~exists().where(partitions.c.claim == claims.c.id),
    )
    found_runs = connection.execute(old_runs.order_by(runs.c.ended_at, runs.c.id).limit(limit)).all()
    found_claims = connection.execute(old_claims.order_by(claims.c.ended_at, claims.c.id).limit(limit)).all()
    return EndedRecords([rows.parse_run(*row) for row in found_runs], [rows.parse_claim(*row) for row in found_claims])


def delete_ended(connection: Connection, gone: EndedRecords) -> None:
    """Remove these records, and keep digests of their keys.

    Raises:
        IntegrityError: a record refers to one of them.
    """
    for table, column, idents in (
        (runs, idempotency_keys.c.run, [run.id for run in gone.runs]),
        (claims, idempotency_keys.c.claim, [claim.id for claim in gone.claims]),
    ):
        for part in _parts(idents):
            _spend(connection, column.in_(part))
            _remove(connection, table, part)


def _remove(connection: Connection, table: Table, idents: Sequence[str]) -> None:
    connection.execute(delete(table).where(table.c.id.in_(idents), table.c.ended_at.is_not(None)))


# ----------------------------------------------------------------------------------------------------- idempotency keys


def _spend(connection: Connection, chosen: ColumnElement[bool]) -> None:
    found = connection.execute(select(idempotency_keys).where(chosen)).all()
    if found:
        values = [{"digest": key_digest(row.subject, row.key), "claim": row.claim, "run": row.run} for row in found]
        connection.execute(insert(spent_keys), values)
        connection.execute(delete(idempotency_keys).where(chosen))


def find_spent_keys(
    connection: Connection, pairs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], IdempotencyRecord]:
    """The (subject, key) pairs whose records have left."""
    found: dict[tuple[str, str], IdempotencyRecord] = {}
    for part in _parts([(key_digest(*pair), pair) for pair in pairs]):
        meant = dict(part)
        for digest, claim, run in connection.execute(select(spent_keys).where(spent_keys.c.digest.in_(meant))):
            subject, key = meant[bytes(digest)]
            found[subject, key] = rows.parse_idempotency_record(subject, key, "", claim, run)
    return found


def key_digest(subject: str, key: str) -> bytes:
    """The permanent trace of a key: 16 bytes; a key with another's digest cannot be found."""
    return hashlib.sha256(canonical_json({"key": key, "subject": subject}).encode()).digest()[:_DIGEST_BYTES]


def _parts(values: Sequence[T]) -> Iterable[Sequence[T]]:
    return (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))
