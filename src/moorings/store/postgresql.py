"""PostgreSQL: a database that several controllers share, on a server of its own.

Isolation is READ COMMITTED: every write begins by locking the installation's row, so writes are serial and each changes
what it has read. SERIALIZABLE was refused: it would add retries and prevent nothing. Reads of several statements are
REPEATABLE READ, so they see one state.

A session is never trusted after an error, and one that the server has closed meanwhile is replaced before use. If the
answer to a commit is lost, it is unknown whether the commit was executed: that is ``store.unavailable``, and reading
the database again gives the truth.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Connection, QueuePool, create_engine, event
from sqlalchemy.exc import DisconnectionError

from moorings.core.model.errors import MooringsError
from moorings.ports.clock import random_id
from moorings.ports.store import Replication
from moorings.store.database import Database
from moorings.store.sql import SqlStore
from moorings.store.upgrade import upgrade

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import ConnectionPoolEntry

    from moorings.store.session import DatabaseTimeouts, PgSession, SessionFactory

IDLE_SESSIONS: Final = 4  # kept open: one writes, the others read
SESSIONS_MAX: Final = 16  # a controller; a server has 100 by default, for all
UPGRADE_LOCK: Final = 0x6D6F6F7275706772  # "moorupgr": advisory locks belong to one database, and that is ours
UPGRADE_ANSWER_S: Final = 3600.0  # a step over large tables takes long
UPGRADE_IDLE_S: Final = 60.0  # between two of its statements: alembic is imported there

_REPLICATION: Final = (
    "SELECT (SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names'), "
    "current_setting('synchronous_commit')"
)

_ID_CHARS = 12

log = logging.getLogger("moorings.store")


class PostgresqlDatabase(Database):
    """One database of a server and the sessions on it."""

    def __init__(self, server: SessionFactory, lock_s: float) -> None:
        self._server = server
        self._lock_s = lock_s
        engine = create_engine(
            URL.create("postgresql+psycopg", database=server.database or None),  # name only: ``creator`` makes sessions
            creator=server.connect,
            poolclass=QueuePool,
            pool_size=IDLE_SESSIONS,
            max_overflow=SESSIONS_MAX - IDLE_SESSIONS,
            pool_timeout=lock_s,
            paramstyle="format",  # positional: ``saving`` gives values row by row
            use_native_hstore=False,
            hide_parameters=True,  # values of rows must not be in a traceback
        )
        event.listen(engine, "checkout", self._check_session)
        super().__init__(engine)

    def _check_session(self, session: PgSession, _entry: ConnectionPoolEntry, _proxy: object) -> None:
        # Not the pool's "pre-ping": it costs a round trip for every transaction, and the turn waits for it.
        if session.is_closed_by_server():
            raise DisconnectionError
        self._server.reset_timeouts(session)

    def replication(self) -> Replication:
        with self.read() as connection:
            row = connection.exec_driver_sql(_REPLICATION).one()
        return Replication(*row)

    def abort(self) -> None:
        self._server.abort()

    def begin_write(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")

    def begin_snapshot(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def begin_upgrade(self, connection: Connection) -> None:
        session: PgSession = connection.connection.driver_connection  # type: ignore[assignment] # ours, see ``creator``
        session.answer_s = UPGRADE_ANSWER_S
        connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{UPGRADE_IDLE_S:g}s'")
        # Wait as long as another controller upgrades; but wait for a table no longer than any statement does, because
        # the next users of that table wait behind us.
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({UPGRADE_LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{self._lock_s:g}s'")

    def before_upgrade(self, connection: Connection, revision: str, head: str) -> None:
        log.warning(
            "store.upgrading",
            extra={
                "detail": f"{self._server}, from revision {revision} to {head}, in one transaction",
                "hint": "no copy is made of a PostgreSQL database: the way back is a backup of your own (pg_dump)",
            },
        )

    def explain(self, error: DBAPIError) -> MooringsError:
        import psycopg

        from moorings.store import session

        assert isinstance(error.orig, psycopg.Error)
        return session.explain_error(error.orig, self._server)


def open_postgresql(url: str, *, installation: str | None = None, patience: DatabaseTimeouts | None = None) -> SqlStore:
    """The store in that database, created or upgraded if necessary.

    Args:
        url: in one of libpq's forms (``postgresql://user@host/name``, ``service=name``); its password, best kept in a
            passfile, is never shown.
        installation: the id of a new installation; None: 12 random letters and digits.
        patience: timeouts of the server.

    Raises:
        MooringsError: ``config.invalid`` (the URL, the server, or the driver is missing), ``store.too_new``,
            ``store.corrupt``, ``store.unavailable``.
    """
    server = _server(url, patience)
    from moorings.store.session import DatabaseTimeouts

    database = PostgresqlDatabase(server, (patience or DatabaseTimeouts()).lock_s)
    try:
        upgrade(database, installation or random_id(_ID_CHARS))
        return SqlStore(database)
    except BaseException:
        database.close()
        raise


def open_session(url: str, patience: DatabaseTimeouts | None = None) -> psycopg.Connection[Any]:
    """A session on that database, outside any store; each statement is a transaction.

    Raises:
        psycopg.Error: no session could be opened, or its server is a standby.
        MooringsError: ``config.invalid``.
    """
    return _server(url, patience).connect()


def _server(url: str, patience: DatabaseTimeouts | None) -> SessionFactory:
    try:
        from moorings.store.session import DatabaseTimeouts, SessionFactory
    except ImportError as error:
        raise MooringsError(
            "config.invalid",
            f"PostgreSQL's driver cannot be loaded: {error}",
            hint="install Moorings with it: pip install 'moorings[postgres]'",
        ) from error
    return SessionFactory(url, patience or DatabaseTimeouts())
