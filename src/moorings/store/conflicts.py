"""The errors of a rejected commit: which record caused it, and which of its values was taken.

Database drivers report this in their own words, with only the name of a constraint. So after the rollback it is looked
up again from the rejected rows. That costs something only after an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sqlalchemy import (
    Column,
    Connection,
    ForeignKeyConstraint,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    and_,
    or_,
    select,
)

from moorings.core.model.errors import MooringsError
from moorings.store import tables
from moorings.store.rows import RowTuple, Value

_CHUNK = 200  # values in one query; old SQLite allows 999 parameters

_TAKEN = {
    tables.claims.c.id: "there is a claim with the id {0}",
    tables.partitions.c.id: "there is a partition with the id {0}",
    tables.partitions.c.pool: "pool {0} has a live partition named {1}",
    tables.partition_devices.c.pool: "device {0}:{1} is in a live partition",
    tables.runs.c.id: "there is a run with the id {0}",
    tables.projects.c.name: "there is a project {0}",
    tables.idempotency_keys.c.subject: "{0} has used the key {1}",
}


class CommitRejectedError(Exception):
    """The database rejected a commit; ``explain`` finds the reason, after the rollback."""

    def explain(self, connection: Connection) -> MooringsError:
        """The ``store.conflict`` that names what was taken or stale."""
        return _conflict("something that is named does not exist")


class UniqueViolationError(CommitRejectedError):
    """A constraint rejected one of these new rows."""

    def __init__(self, table: Table, rows: Sequence[RowTuple]) -> None:
        super().__init__(table.name)
        self._table = table
        self._rows = rows

    def explain(self, connection: Connection) -> MooringsError:
        return _conflict(_find_taken(connection, self._table, self._rows))


class VersionConflictError(CommitRejectedError):
    """One of these records does not have the version (or the identity) that a save expects.

    Args:
        table: the table of the records.
        guards: id (of a project its name) and expected version of each save.
    """

    def __init__(self, table: Table, guards: Iterable[tuple[str, int]]) -> None:
        super().__init__(table.name)
        self._table = table
        self._guards = tuple(guards)

    def explain(self, connection: Connection) -> MooringsError:
        return _conflict(_find_stale(connection, self._table, self._guards))


def _conflict(detail: str) -> MooringsError:
    return MooringsError("store.conflict", detail, hint="nothing was saved; load again and decide anew", retryable=True)


def _find_stale(connection: Connection, table: Table, guards: Sequence[tuple[str, int]]) -> str:
    (key,) = table.primary_key
    found: dict[str, int] = {}
    for start in range(0, len(guards), _CHUNK):
        ids = [ident for ident, _ in guards[start : start + _CHUNK]]
        versions = connection.execute(select(key, table.c.version).where(key.in_(ids)))
        found.update((ident, version) for ident, version in versions)
    noun = table.name.removesuffix("s")
    for ident, expected in guards:
        if ident not in found:
            return f"{noun} {ident} is gone"
        if found[ident] != expected:
            return f"{noun} {ident} has version {found[ident]}, not {expected}"
    return f"something of a {noun} that never changes was to be changed"


def _find_taken(connection: Connection, table: Table, rows: Sequence[RowTuple]) -> str:
    place = {column.name: index for index, column in enumerate(table.c)}
    constraints = sorted(table.constraints, key=lambda one: str(one.name))
    for unique in constraints:
        if isinstance(unique, UniqueConstraint | PrimaryKeyConstraint):
            columns = list(unique.columns)
            values = [tuple(row[place[column.name]] for column in columns) for row in rows]
            taken = _duplicate(values) or _first_present(connection, columns, values)
            if taken is not None:
                return _TAKEN.get(columns[0], f"{table.name} has {{0}}").format(*taken)
    for key in constraints:
        if isinstance(key, ForeignKeyConstraint):
            (element,) = key.elements
            named = [row[place[element.parent.name]] for row in rows]
            absent = _absent(connection, element.column, named)
            if absent:  # after the rollback, this also lists rows that the same commit was to insert
                one_of = "one of " if len(absent) > 1 else ""
                return f"{one_of}{element.parent.name} {', '.join(map(str, absent[:5]))} does not exist"
    return f"a row of {table.name} is not allowed"


def _duplicate(values: Sequence[RowTuple]) -> RowTuple | None:
    counted = Counter(values)
    return next((value for value in values if counted[value] > 1), None)


def _first_present(
    connection: Connection, columns: Sequence[Column[Value]], values: Sequence[RowTuple]
) -> RowTuple | None:
    for start in range(0, len(values), _CHUNK):
        # Not `(pool, name) IN (VALUES ...)`: SQLite compares those without the columns' types, so without an index.
        wanted = (
            and_(*(column == part for column, part in zip(columns, value, strict=True)))
            for value in values[start : start + _CHUNK]
        )
        row = connection.execute(select(*columns).where(or_(*wanted)).limit(1)).first()
        if row is not None:
            return tuple(row)
    return None


def _absent(connection: Connection, column: Column[Value], values: Sequence[Value]) -> list[Value]:
    present: set[Value] = set()
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        present.update(connection.execute(select(column).where(column.in_(part))).scalars())
    return [value for value in values if value not in present]
