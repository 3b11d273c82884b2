"""SQLite: the whole database in one file beside the controller, nothing to install.

WAL, so that readers never wait for the writer; ``synchronous=FULL``, because with NORMAL a power cut takes the last
commits, and a granted partition would be forgotten; ``BEGIN IMMEDIATE``, because a transaction that reads first and
writes later fails, unpredictably, if another one has written in between.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, QueuePool, create_engine, event

from moorings.core.model.errors import MooringsError
from moorings.files import fsync_path
from moorings.ports.clock import random_id
from moorings.store.database import Database
from moorings.store.sql import SqlStore
from moorings.store.upgrade import upgrade

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import ConnectionPoolEntry

log = logging.getLogger("moorings.store")

SQLITE_OLDEST = (3, 33)  # UPDATE ... FROM; August 2020
BUSY_TIMEOUT_S = 10.0  # longer than any commit or checkpoint; a stopped process that holds the lock is noticed
IDLE_CONNECTIONS = 8  # kept open; more are made if more threads read at once
PAGE_BYTES = 4096  # of every file that SQLite has made since 2016
PREPARED_STATEMENTS = 256  # a connection; every statement of a commit stays parsed

# For each connection. Larger caches made no difference when measured: the system caches the file.
_PRAGMAS = ("PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON")

# Kept free inside the file and its log, so that ends, releases and cancels can be saved on a full disk: the program
# that fills a disk also takes all space that is freed, but not space inside the database.
RESERVE_BYTES = 8 << 20  # some 5,000 claims' ends
RESERVE_SHARE = 16  # and at most this part of a small disk
LOW_BYTES = 64 << 20  # with less than that free on the disk, new work is refused,
LOW_SHARE = 50  # or with less than this part of a small one
CHECKPOINT_PAGES = 1000  # SQLite's default; fewer if the log's reserve is small, because the log must not outgrow it

_Identity = tuple[int, int] | None  # device and inode of a file; None: there is none

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
        self._anchor: sqlite3.Connection | None = None
        self._files: dict[Path, _Identity] = {}
        left = _free_space(path.parent)
        of = left.f_blocks * left.f_frsize if left is not None else RESERVE_BYTES * RESERVE_SHARE
        self._reserve = min(RESERVE_BYTES, of // RESERVE_SHARE)
        pages = max(1, min(CHECKPOINT_PAGES, self._reserve // PAGE_BYTES // 2))
        self._checkpoint = f"PRAGMA wal_autocheckpoint = {pages}"
        engine = create_engine(
            URL.create("sqlite", database=str(path)),
            poolclass=QueuePool,
            hide_parameters=True,  # values of rows must not be in a traceback
            pool_size=IDLE_CONNECTIONS,
            max_overflow=-1,  # the callers' threads are the limit
            connect_args={
                "timeout": busy_timeout_s,
                "isolation_level": None,  # transactions begin explicitly, not where the driver guesses
                "check_same_thread": False,  # the pool hands a connection to one thread at a time
                "cached_statements": PREPARED_STATEMENTS,
            },
        )
        event.listen(engine, "connect", self._prepare)
        super().__init__(engine)

    def _prepare(self, connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
        for pragma in (*_PRAGMAS, self._checkpoint):
            connection.execute(pragma)

    def begin_write(self, connection: Connection) -> None:
        self.check_file()
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def begin_snapshot(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    def begin_upgrade(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # not EXCLUSIVE: ``before_upgrade`` reads during it

    def before_upgrade(self, connection: Connection, revision: str, head: str) -> None:
        copy = self._path.with_name(f"{self._path.name}.before-{head}")
        with _file_errors(copy):
            _copy(self._path, copy)
        log.warning(
            "store.upgrading",
            extra={
                "detail": f"{self._path}, from revision {revision} to {head}, in one transaction",
                "hint": f"the way back: the release before, with {copy} in place of {self._path}",
            },
        )

    def explain(self, error: DBAPIError) -> MooringsError:
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the extension
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return MooringsError(
                "store.corrupt",
                f"{self._path} cannot be read as a database: {error.orig}",
                hint="leave it where it is, and its -wal file: 'moor restore FILE' takes from it what can be read",
            )
        why = str(error.orig)
        if code != sqlite3.SQLITE_FULL and _has_no_room(self._path.parent):  # which SQLite often calls an I/O error
            code, why = sqlite3.SQLITE_FULL, f"its disk is full ({why})"
        return MooringsError(
            "store.unavailable",
            f"the database {self._path} cannot be used now: {why}",
            hint=_HINTS.get(code, ""),
            retryable=True,
        )

    def use_wal(self) -> None:
        """Switch the file to a write-ahead log, permanently: the mode belongs to the file, not to a connection.

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
        # Kept open: when the last connection closes, SQLite removes the log and its index, and on a full disk not even
        # a reader could create them again.
        self._anchor = sqlite3.connect(self._path, check_same_thread=False)
        self._anchor.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        self._files = {
            path: _identity(path, None) for path in (self._path, self._path.with_name(f"{self._path.name}-wal"))
        }

    def check_file(self) -> None:
        """Check that the file and its log are the opened ones: writes to removed files are lost when we end."""
        for path, opened in self._files.items():
            if _identity(path, opened) != opened:
                raise MooringsError(
                    "store.removed",
                    f"the database's file {path} was removed or replaced while it was in use",
                    hint="nothing more is taken on; put the file back, or restore a backup, and start the controller",
                )

    def check_room(self) -> None:
        left = _free_space(self._path.parent)
        if left is None:
            return
        free, low = left.f_bavail * left.f_frsize, min(LOW_BYTES, left.f_blocks * left.f_frsize // LOW_SHARE)
        if free < low:
            raise MooringsError(
                "store.nearly_full",
                f"the disk of the database has {free / 1e6:.1f} MB left; nothing new is taken on below {low / 1e6:.1f}",
                hint="free some space on it; existing claims and runs continue, and can be released and cancelled",
                retryable=True,
            )

    def keep_reserve(self) -> None:
        """Grow the file and its log, if the free space in them has been used up.

        A table that is filled and dropped leaves free pages that were written once: a file that is only extended has
        holes, for which a full disk has no room.
        """
        with self.write() as connection:
            free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one() * PAGE_BYTES
            log = self._path.with_name(f"{self._path.name}-wal").stat().st_size
            left = _free_space(self._path.parent)
            if (
                min(free, log) >= self._reserve // 2
                or left is None
                or left.f_bavail * left.f_frsize < 4 * self._reserve
            ):
                return
            connection.exec_driver_sql("DROP TABLE IF EXISTS reserve")  # of a process that was killed here
            connection.exec_driver_sql("CREATE TABLE reserve (filling BLOB)")
            connection.exec_driver_sql("INSERT INTO reserve VALUES (zeroblob(?))", (self._reserve,))
        with self.write() as connection:
            connection.exec_driver_sql("DROP TABLE reserve")

    def close(self) -> None:
        super().close()
        if self._anchor is not None:
            self._anchor.close()


def _identity(path: Path, unknown: _Identity) -> _Identity:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return unknown
    return found.st_dev, found.st_ino


def _free_space(folder: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:
        return None


def _has_no_room(folder: Path) -> bool:
    left = _free_space(folder)
    return left is not None and left.f_bavail == 0


def open_sqlite(path: Path, *, installation: str | None = None, busy_timeout_s: float = BUSY_TIMEOUT_S) -> SqlStore:
    """The store in that file, created or upgraded if necessary.

    The file gets mode 0600, and a new folder 0700; SQLite gives its -wal and -shm files the same mode as the file.

    Args:
        path: the database's file.
        installation: the id of a new installation; None: 12 random letters and digits.
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
        upgrade(database, installation or random_id(_ID_CHARS))
        database.use_wal()  # after the upgrade has checked that the file is ours
        return SqlStore(database)
    except BaseException:
        database.close()
        raise


def _copy(path: Path, to: Path) -> None:
    """Copy a database, whole or not at all, during a transaction that has changed nothing yet.

    Raises:
        OSError: it cannot be copied.
    """
    part = to.with_name(f"{to.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target, progress=_never_wait)
        fsync_path(part)
    except sqlite3.Error as error:
        part.unlink(missing_ok=True)
        raise OSError(errno.EIO, str(error)) from error
    part.replace(to)
    fsync_path(to.parent)  # before the upgrade commits: after a power cut there is the old database, or its copy


def _never_wait(status: int, _remaining: int, _total: int) -> None:
    """End a copy that would be retried forever: sqlite3 has no limit of its own."""
    if status in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        raise sqlite3.OperationalError("the database is locked")


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
