"""A new SQLite database as a copy of an empty one: making the tables takes ten times as long, and many tests need one.

Tests of making the tables open an empty file themselves: `tests/unit/store`, and some of `tests/contract`.
"""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite


def open_new(path: Path, *, busy_timeout_s: float | None = None) -> SqlStore:
    """The store in that file. If there is none, it becomes a new installation's, with an id of its own."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(_empty())
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE installation SET id = ?", (secrets.token_hex(6),))
    return open_sqlite(path) if busy_timeout_s is None else open_sqlite(path, busy_timeout_s=busy_timeout_s)


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "moorings.db"
        open_sqlite(path).close()
        return path.read_bytes()
