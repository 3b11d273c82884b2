"""Upgrades a database again and again, killed (``kill -9``) at a later point each time; tells what each kill left.

A program of its own: it forks, which is quick and safe only in a process without threads. One JSON line a kill, the
last one for the upgrade that was let through: ``python -m tests.unit.store.killed (sqlite PATH | postgresql URL)``.
"""

import itertools
import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import alembic.command  # noqa: F401 (once, and not in each child)
import psycopg
from sqlalchemy import event

from moorings.store.postgresql import PostgresqlDatabase
from moorings.store.session import DatabaseTimeouts, SessionFactory
from moorings.store.sqlite import SqliteDatabase
from moorings.store.upgrade import upgrade


def database_of(kind, where):
    """The database, as the store's openers make it."""
    if kind == "sqlite":
        return SqliteDatabase(Path(where), 5.0)
    return PostgresqlDatabase(SessionFactory(where, DatabaseTimeouts()), 5.0)


def upgrade_until(kind, where, kill_at):
    """Upgrade; before or after each statement and before the commit is a point, and at that one it is killed."""
    points = itertools.count()

    def point(*_):
        if next(points) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    database = database_of(kind, where)
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(database.engine, name, point)
    upgrade(database, "unused")
    database.close()


def look(kind, where):
    """The revision and the columns of the changed table, asked without any of our code."""
    if kind == "sqlite":
        return {**_look_at_file(Path(where)), "copy": _copy_of(Path(where))}
    with psycopg.connect(where) as connection:
        columns = connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'installation' ORDER BY 1"
        )
        names = [name for (name,) in columns.fetchall()]
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone() or (None,)
    return {"revision": revision, "columns": names}


def _look_at_file(path):
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = sorted(row[1] for row in connection.execute("PRAGMA table_info(installation)"))
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return {"revision": revision, "columns": names}


def _copy_of(path):
    copies = [file for file in path.parent.glob(f"{path.name}.before-*") if file.suffix != ".part"]
    return [_look_at_file(copy) for copy in copies]


def main():
    kind, where = sys.argv[1:]
    for kill_at in itertools.count():
        child = os.fork()
        if child == 0:
            upgrade_until(kind, where, kill_at)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        assert killed or status == 0, status
        sys.stdout.write(json.dumps({"killed": killed, **look(kind, where)}) + "\n")
        if not killed:
            return


if __name__ == "__main__":
    main()
