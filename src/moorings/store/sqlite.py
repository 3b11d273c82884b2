"""SQLite: the whole database in one file beside the controller, nothing to install.

WAL, so that readers never wait for the writer; ``synchronous=FULL``, because with NORMAL a power cut takes the last
commits, and a granted partition would be forgotten; ``BEGIN IMMEDIATE``, because a transaction that reads first and
writes later fails, unrepeatably, when another one has written in between.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, QueuePool, create_engine, event

from moorings.core.errors import MooringsError
from moorings.store.database import Database
from moorings.store.sql import SqlStore
from moorings.store.upgrade import upgrade

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import ConnectionPoolEntry

SQLITE_OLDEST = (3, 33)  # UPDATE ... FROM; August 2020
BUSY_TIMEOUT_S = 10.0  # longer than any commit or checkpoint; a stopped process that holds the lock is noticed
IDLE_CONNECTIONS = 8  # kept open; more are made when more threads read at once
PREPARED_STATEMENTS = 256  # a connection; every statement of a commit stays parsed

# For each connection. Larger caches were measured to change nothing: the system caches the file.
_PRAGMAS = ("PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON")

_ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_ID_CHARS = 12

_HINTS = {
    sqlite3.SQLITE_FULL: "free some space on its disk",
    sqlite3.SQLITE_BUSY: "another process holds it locked: is a second controller or an SQL shell open on it?",
    sqlite3.SQLITE_LOCKED: "another process holds it locked: is a second controller or an SQL shell open on it?",
    sqlite3.SQLITE_READONLY: "the controller's user must own the file and its folder and be able to write both",
    sqlite3.SQLITE_CANTOPEN: "the controller's user must own the file and its folder and be able to write both",
    sqlite3.SQLITE_PERM: "the controller's user must own the file and its folder and be able to write both",
    sqlite3.SQLITE_IOERR: "look for errors of its disk in the kernel's log",
}


class SqliteDatabase(Database):
    """One file and the connections to it."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self._path = path
        engine = create_engine(
            URL.create("sqlite", database=str(path)),
            poolclass=QueuePool,
            pool_size=IDLE_CONNECTIONS,
            max_overflow=-1,  # the callers' threads are the limit
            connect_args={
                "timeout": busy_timeout_s,
                "isolation_level": None,  # transactions begin where we say, not where the driver guesses
                "check_same_thread": False,  # the pool hands a connection to one thread at a time
                "cached_statements": PREPARED_STATEMENTS,
            },
        )
        event.listen(engine, "connect", _prepare)
        super().__init__(engine)

    def begin_write(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def begin_snapshot(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    def begin_upgrade(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN EXCLUSIVE")

    def explain(self, error: DBAPIError) -> MooringsError:
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the extension
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return MooringsError(
                "store.corrupt",
                f"{self._path} cannot be read as a database: {error.orig}",
                hint="move it away with its -wal and -shm files and restore a backup; nothing was changed",
            )
        return MooringsError(
            "store.unavailable",
            f"the database {self._path} cannot be used now: {error.orig}",
            hint=_HINTS.get(code, ""),
            retryable=True,
        )

    def use_wal(self) -> None:
        """Switch the file to a write-ahead log, for good: the mode is the file's, not a connection's.

        Raises:
            MooringsError: ``store.unavailable``, also if its file system cannot do that; ``store.corrupt``.
        """
        with self.read() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
        if mode != "wal":
            raise MooringsError(
                "store.unavailable",
                f"{self._path} cannot have a write-ahead log: its file system has no shared memory",
                hint="put the database on a local disk, not on NFS or the like",
            )


def _prepare(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def open_sqlite(path: Path, *, installation: str | None = None, busy_timeout_s: float = BUSY_TIMEOUT_S) -> SqlStore:
    """The store in that file, made or upgraded if need be.

    The file is made 0600, and its folder 0700 if there is none; SQLite gives its -wal and -shm files the same mode.

    Args:
        path: the database's file.
        installation: the id a new installation gets; None: 12 random letters and digits.
        busy_timeout_s: how long a write waits for another process's.

    Raises:
        MooringsError: ``store.too_new``, ``store.corrupt``, ``store.unavailable``.
    """
    _check_sqlite(sqlite3.sqlite_version_info)
    path = path.absolute()
    with _file_errors(path):
        _make_private(path)
    database = SqliteDatabase(path, busy_timeout_s)
    try:
        upgrade(database, installation or "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARS)))
        database.use_wal()  # after the upgrade has made sure that the file is ours
        return SqlStore(database)
    except BaseException:
        database.close()
        raise


def _check_sqlite(version: tuple[int, ...]) -> None:
    if version < SQLITE_OLDEST:
        raise MooringsError(
            "store.unavailable",
            f"this Python has SQLite {'.'.join(map(str, version))}, which is too old",
            hint=f"use a Python with SQLite {'.'.join(map(str, SQLITE_OLDEST))} or newer; `uv python install` gets one",
        )


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MooringsError(
            "store.unavailable",
            f"the database {path} cannot be made: {error.strerror}",
            hint=_HINTS[sqlite3.SQLITE_CANTOPEN],
            retryable=True,
        ) from error


def _make_private(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # An existing file is not opened here: closing it would drop the locks of every other connection of this process.
    if not path.exists():
        path.touch(mode=0o600)
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)
