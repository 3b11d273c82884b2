"""The statements of one commit.

Each statement takes many rows, in a few fixed numbers of rows, so that it is compiled and parsed only once. The
alternatives were measured. A SQLAlchemy statement for each row costs ten times what SQLite needs for it. The driver's
``executemany`` is as fast by itself, but releases the interpreter's lock for every row: beside a busy event loop each
row can then wait 5 ms for the lock, and a commit of thirty claims took up to 1.5 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from sqlalchemy import (
    BindParameter,
    Column,
    Delete,
    Insert,
    Select,
    Subquery,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    insert,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.compiler import SQLCompiler

from moorings.core.model.devices import Device, DeviceState
from moorings.core.model.projects import ProjectUsage
from moorings.ports.store import Changes, ExpectedVersion, Seq
from moorings.store import rows, tables
from moorings.store.conflicts import CommitRejectedError, UniqueViolationError, VersionConflictError
from moorings.store.rows import RowTuple, Value

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect

ROWS_A_STATEMENT_MAX = 32  # and every smaller power of two


class ChangeWriter:
    """Saves the changes of a turn, in an order that every constraint allows."""

    def __init__(self, dialect: Dialect) -> None:
        self._claims = _VersionedTable(tables.claims, dialect)
        self._partitions = _VersionedTable(tables.partitions, dialect)
        self._runs = _VersionedTable(tables.runs, dialect)
        self._partition_devices = _InsertStatement(tables.partition_devices, dialect)
        self._projects = _VersionedTable(tables.projects, dialect)
        self._usage = _InsertStatement(tables.project_usage, dialect)
        self._delete_usage = _delete(tables.project_usage, ["project"], dialect)
        self._keys = _InsertStatement(tables.idempotency_keys, dialect)
        self._devices = _InsertStatement(tables.devices, dialect)
        self._delete_devices = _delete(tables.devices, ["pool", "device"], dialect)
        self._outbox = _InsertStatement(tables.outbox, dialect)

    def save(self, connection: Connection, changes: Changes, last: Seq) -> None:
        """Save all changes, with ``last`` as the number of the last event.

        Raises:
            CommitRejectedError: the database rejected a change; the transaction must be rolled back.
        """
        # Removals come first: the same turn may reuse what they give up.
        self._partitions.remove(connection, changes.removed)
        self._projects.remove(connection, changes.projects_removed)
        self._claims.save(connection, [(rows.claim_row(claim), save) for claim, save in changes.claims])
        self._partitions.save(connection, [(rows.partition_row(one), save) for one, save in changes.partitions])
        made = [partition for partition, save in changes.partitions if save.expected is None]
        self._partition_devices.add(connection, list(chain.from_iterable(map(rows.partition_device_rows, made))))
        self._runs.save(connection, [(rows.run_row(run, changes.jobs.get(run.id)), save) for run, save in changes.runs])
        self._projects.save(connection, [(rows.project_row(one), save) for one, save in changes.projects])
        self._save_usage(connection, changes.usage, [name for name, _ in changes.projects_removed])
        self._keys.add(connection, [rows.key_use_row(use) for use in changes.keys])
        self._save_devices(connection, changes.devices)
        first = last - len(changes.events) + 1
        self._outbox.add(connection, [rows.event_row(seq, one) for seq, one in enumerate(changes.events, first)])

    def _save_devices(self, connection: Connection, devices: Sequence[Device]) -> None:
        latest = {(device.pool, device.index): device for device in devices}
        # Delete the old row in any case: shorter than an upsert, and the same SQL everywhere.
        self._delete_devices.run(connection, list(latest))
        out = [device for device in latest.values() if device.state is not DeviceState.IN_SERVICE]
        self._devices.add(connection, [rows.device_row(device) for device in out])

    def _save_usage(self, connection: Connection, usage: Sequence[ProjectUsage], removed: Sequence[str]) -> None:
        latest = {used.project: used for used in usage}
        self._delete_usage.run(connection, [(name,) for name in {**dict.fromkeys(removed), **latest}])
        self._usage.add(connection, [rows.usage_row(used) for used in latest.values()])


class _VersionedTable:
    """Inserts, updates and removals of records that count their versions; each is saved once in a commit.

    An update also compares what never changes in a record: a save that would change it finds no row.
    """

    def __init__(self, table: Table, dialect: Dialect) -> None:
        fixed = [column for column in table.c if column.info.get("fixed")]
        once = [column for column in table.c if column.info.get("once")]
        changing = [column for column in table.c if not column.info]
        assert [*fixed, *once, *changing] == list(table.c), "columns stand in the order of life"
        self._table = table
        self._fixed_until, self._changing_from = len(fixed), len(fixed) + len(once)
        self._new = _InsertStatement(table, dialect)
        self._update = _update(table, changing, fixed, dialect)
        (key,) = table.primary_key
        self._remove = _delete(table, [key.name, "version"], dialect)

    def save(self, connection: Connection, saves: Iterable[tuple[RowTuple, ExpectedVersion]]) -> None:
        """Insert the new records and update the others.

        Raises:
            CommitRejectedError: an id or a name is taken, or a version differs.
        """
        new: list[RowTuple] = []
        changed: list[RowTuple] = []
        guards: list[tuple[str, int]] = []
        for row, save in saves:
            if save.expected is None:
                new.append(row)
            else:
                changed.append((*row[self._changing_from :], *row[: self._fixed_until], save.expected))
                guards.append((str(row[0]), save.expected))
        self._new.add(connection, new)
        try:
            n_changed = self._update.run(connection, changed)
        except IntegrityError as error:
            raise CommitRejectedError from error
        if n_changed != len(changed):
            raise VersionConflictError(self._table, guards)

    def remove(self, connection: Connection, guards: Sequence[tuple[str, int]]) -> None:
        """Delete records, each with the version it must have.

        Raises:
            VersionConflictError: one of them has another version, or is gone.
        """
        if self._remove.run(connection, guards) != len(guards):
            raise VersionConflictError(self._table, guards)


class _InsertStatement:
    """Inserts."""

    def __init__(self, table: Table, dialect: Dialect) -> None:
        self._table = table
        self._insert = _insert(table, dialect)

    def add(self, connection: Connection, new: Sequence[RowTuple]) -> None:
        """Insert new rows.

        Raises:
            UniqueViolationError: a constraint rejected one of them.
        """
        try:
            self._insert.run(connection, new)
        except IntegrityError as error:
            raise UniqueViolationError(self._table, new) from error


class _Statement:
    """A statement that takes any number of rows.

    Args:
        build: the statement for a number of rows; ``_place`` makes its parameters.
        dialect: of the database.
    """

    def __init__(self, build: Callable[[int], Insert | Update | Delete], dialect: Dialect) -> None:
        self._build = build
        self._dialect = dialect
        self._texts: dict[int, str] = {}

    def run(self, connection: Connection, given: Sequence[RowTuple]) -> int:
        """Execute the statement; returns how many rows of the database it changed."""
        n_changed = start = 0
        while start < len(given):
            n_rows = min(1 << (len(given) - start).bit_length() - 1, ROWS_A_STATEMENT_MAX)
            values = tuple(chain.from_iterable(given[start : start + n_rows]))
            n_changed += connection.exec_driver_sql(self._text(n_rows), values).rowcount
            start += n_rows
        return n_changed

    def _text(self, n_rows: int) -> str:
        if n_rows not in self._texts:
            compiled = self._build(n_rows).compile(dialect=self._dialect)
            assert isinstance(compiled, SQLCompiler)
            places = [tuple(map(int, name.split("_"))) for name in compiled.positiontup or ()]
            assert places == sorted(places), "values are given row by row"
            self._texts[n_rows] = str(compiled)
        return self._texts[n_rows]


def _place(row: int, at: int, column: Column[Value]) -> BindParameter[Value]:
    return bindparam(f"{row}_{at}", type_=column.type)


def _insert(table: Table, dialect: Dialect) -> _Statement:
    """Takes values in the order of the columns."""

    def build(n_rows: int) -> Insert:
        return insert(table).values(
            [{column.name: _place(row, at, column) for at, column in enumerate(table.c)} for row in range(n_rows)]
        )

    return _Statement(build, dialect)


def _update(
    table: Table, changing: Sequence[Column[Value]], fixed: Sequence[Column[Value]], dialect: Dialect
) -> _Statement:
    """Takes the new values of changing columns, then those of fixed columns, then the expected version."""
    kept = [*fixed, table.c.version]

    def line(row: int) -> Select[*tuple[Value, ...]]:
        return select(*(_place(row, at, column).label(f"given_{at}") for at, column in enumerate([*changing, *kept])))

    def lines(n_rows: int) -> Subquery:
        # Not VALUES: the names of its columns differ between databases.
        return (union_all(*map(line, range(n_rows))) if n_rows > 1 else line(0)).subquery("given")

    def build(n_rows: int) -> Update:
        given = list(lines(n_rows).c)
        new, same = given[: len(changing)], given[len(changing) :]
        return (
            update(table)
            .values(dict(zip(changing, new, strict=True)))
            .where(*(column == value for column, value in zip(kept, same, strict=True)))
        )

    return _Statement(build, dialect)


def _delete(table: Table, names: Sequence[str], dialect: Dialect) -> _Statement:
    """Takes values of the named columns, which identify the rows to delete."""

    def build(n_rows: int) -> Delete:
        # Not `(id, version) IN (VALUES ...)`: SQLite finds no index for that.
        return delete(table).where(
            or_(
                *(
                    and_(*(table.c[name] == _place(row, at, table.c[name]) for at, name in enumerate(names)))
                    for row in range(n_rows)
                )
            )
        )

    return _Statement(build, dialect)
