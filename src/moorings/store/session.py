"""One session on a PostgreSQL server, set up so that no call on it can hang and no error reveals a secret.

The only module that imports psycopg, an extra: ``postgresql`` loads it when a database is opened. A bare psycopg
connection was refused, because it waits forever if a server takes a statement and never answers: the server's timeouts
run on the server, and a stopped server, or a firewall that drops the connection, sends nothing at all.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import scalar_row

from moorings.core.model.errors import MooringsError
from moorings.store.database import REPORT_HINT

if TYPE_CHECKING:
    from psycopg.abc import PQGen

ResultT = TypeVar("ResultT")

log = logging.getLogger("moorings.store")

MIN_SERVER_VERSION: Final = 14  # the oldest supported release; leadership needs idle_session_timeout
PREPARED_STATEMENTS: Final = 256  # a session; every statement of a commit stays planned
_WAIT_S: Final = 0.1  # psycopg's own polling interval

_URL_HINT = (
    "a URL of libpq: postgresql://USER@HOST/DATABASE, or service=NAME; the password belongs into ~/.pgpass "
    "(?passfile=FILE), and special characters are written %XX"
)
_SCHEMES: Final = ("postgresql", "postgres")
_SHOWN: Final = ("host", "hostaddr", "port", "dbname", "service")


@dataclass(frozen=True, slots=True)
class DatabaseTimeouts:
    """Timeouts of the database, in seconds.

    Attributes:
        connect_s: for one server of the URL to accept a session.
        lock_s: for a lock that another session holds; as long as SQLite's.
        statement_s: for one statement, enforced by the server.
        answer_s: for any answer at all; longer than those before, because the server's own errors say more.
        idle_in_transaction_s: until the server ends a session that holds locks and sends nothing. A controller that was
            stopped in a commit blocks the next leader for that long.
    """

    connect_s: float = 5.0
    lock_s: float = 10.0
    statement_s: float = 15.0
    answer_s: float = 20.0
    idle_in_transaction_s: float = 3.0


class UnusableServerError(psycopg.OperationalError):
    """A server answered, but is not usable; ``error`` has the reason."""

    def __init__(self, error: MooringsError) -> None:
        super().__init__(error.detail)
        self.error = error


class PgSession(psycopg.Connection[Any]):
    """A connection on which every wait ends; transactions begin only explicitly."""

    answer_s: float = DatabaseTimeouts().answer_s

    def wait(self, gen: PQGen[ResultT], interval: float = _WAIT_S, timeout: float | None = None) -> ResultT:
        """Wait for the server's answer, and return it.

        Raises:
            psycopg.OperationalError: no answer within ``answer_s``; the session is closed, because a late answer would
                be taken for that of the next statement.
        """
        within_s = self.answer_s if timeout is None else timeout
        try:
            return super().wait(gen, interval, within_s)
        except psycopg.OperationalError as error:
            if type(error).__name__ == "_WaitTimeout":  # psycopg has no public name for it
                self.pgconn.finish()
                raise psycopg.OperationalError(f"no answer within {within_s:g} s") from error
            raise

    def shut_down(self) -> None:
        """Shut down its connection, from any thread: a call that waits for an answer on it fails at once."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.fileno())) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def is_closed_by_server(self) -> bool:
        """Whether the server has closed it while it was idle, without asking the server.

        Any unexpected input counts: mostly it is the server's goodbye, and a new session costs little.
        """
        if self.closed:
            return True
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))


class SessionFactory:
    """Opens sessions: has the parsed URL and the settings of every session.

    Args:
        url: in any of libpq's forms; may contain a password, and is never shown.
        patience: timeouts of its sessions.

    Raises:
        MooringsError: ``config.invalid``.
    """

    def __init__(self, url: str, patience: DatabaseTimeouts) -> None:
        self._patience = patience
        self._parameters = {**_read_url(url), "client_encoding": "utf8"}
        defaults = {
            "application_name": "moorings",
            "connect_timeout": max(2, round(patience.connect_s)),  # libpq takes whole seconds, and 1 as 2
            # The system notices a server that vanished, even in the middle of an answer.
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": round(patience.answer_s * 1000),
        }
        for name, value in defaults.items():
            self._parameters.setdefault(name, value)

        self._sessions: WeakSet[PgSession] = WeakSet()

    def __str__(self) -> str:
        """For people: the database and its host; no user, no password."""
        given = self._parameters
        name = given.get("dbname") or (f"of service {given['service']}" if given.get("service") else "of PostgreSQL")
        place = given.get("host") or given.get("hostaddr")
        return f"the database {name} on {place}" if place else f"the database {name}"

    @property
    def database(self) -> str:
        """The name of the database, if the URL gives it."""
        return str(self._parameters.get("dbname") or "")

    def connect(self) -> PgSession:
        """A new session, on a writable server that keeps what it has confirmed.

        Raises:
            psycopg.Error: no session could be opened; ``UnusableServerError`` if the server is not usable.
        """
        session = PgSession.connect(make_conninfo("", **self._parameters), autocommit=True)
        try:
            session.prepared_max = PREPARED_STATEMENTS
            session.answer_s = self._patience.answer_s
            self._check(session)
            self._set_up(session)
            self._sessions.add(session)
        except BaseException:
            session.close()
            raise
        return session

    def abort(self) -> None:
        """End the waits of its sessions: a hanging server must not keep a controller from ending."""
        for session in list(self._sessions):
            session.shut_down()

    def reset_timeouts(self, session: PgSession) -> None:
        """Reset its timeout to the default of sessions."""
        session.answer_s = self._patience.answer_s

    def _check(self, session: PgSession) -> None:
        version = session.info.server_version
        if version < MIN_SERVER_VERSION * 10_000:
            raise UnusableServerError(
                MooringsError(
                    "config.invalid",
                    f"{self} is served by PostgreSQL {version // 10_000}, which is too old",
                    hint=f"use PostgreSQL {MIN_SERVER_VERSION} or newer",
                )
            )
        encoding = session.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise UnusableServerError(
                MooringsError(
                    "config.invalid",
                    f"{self} keeps its texts in {encoding}, which cannot hold every name",
                    hint="make one in UTF-8: createdb --encoding=UTF8 --template=template0 NAME",
                )
            )

    def _set_up(self, session: PgSession) -> None:
        """Set the server's timeouts, and durability: an acknowledged commit is on the server's disk."""
        timeouts = {
            "statement_timeout": self._patience.statement_s,
            "lock_timeout": self._patience.lock_s,
            "idle_in_transaction_session_timeout": self._patience.idle_in_transaction_s,
        }
        wanted = [f"set_config('{name}', '{round(seconds * 1000)}', false)" for name, seconds in timeouts.items()]
        durable = "current_setting('synchronous_commit')"
        wanted.append(
            f"set_config('synchronous_commit', CASE {durable} WHEN 'off' THEN 'on' ELSE {durable} END, false)"
        )
        wanted.append("set_config('jit', 'off', false)")  # compiling takes longer than any of our statements runs
        with session.cursor(row_factory=scalar_row) as cursor:
            statement = f"SELECT pg_is_in_recovery(), {', '.join(wanted)}"
            if cursor.execute(statement.encode()).fetchone():
                raise UnusableServerError(
                    MooringsError(
                        "store.unavailable",
                        f"{self} is on a standby server, which can only be read",
                        hint="name every server in the URL and add target_session_attrs=read-write to it",
                        retryable=True,
                    )
                )


def _read_url(url: str) -> dict[str, Any]:
    parameters: dict[str, Any] | None = None
    with suppress(psycopg.Error):
        parameters = dict(conninfo_to_dict(url))
    # Outside the handler: libpq's error about a URL repeats parts of it, which may contain the password.
    if parameters is None or _is_cut(url, parameters):
        raise MooringsError("config.invalid", "the URL of the database cannot be read", hint=_URL_HINT)
    return parameters


def _is_cut(url: str, parameters: dict[str, Any]) -> bool:
    """Whether libpq took an unescaped ``@`` or ``/`` of the password for its end, and the rest for host or database.

    Both would be shown to people, and sent to name servers.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme in _SCHEMES:
        authority, _, behind = rest.partition("/")
        if authority.count("@") > 1 or "@" in behind.partition("?")[0]:
            return True
        if "%40" in url:  # it is escaped
            return False
    # After the first character: a host that begins with ``@`` is a socket in the abstract namespace.
    return any("@" in str(parameters.get(name) or "")[1:] for name in _SHOWN)


# ---------------------------------------------------------------------------------------------------- meaning of errors

_CORRUPT = {
    "XX001": "its files are damaged",
    "XX002": "its indexes are damaged",
    "42P01": "its tables are not those of this release",
    "42703": "its tables are not those of this release",
}
_HINTS = {
    "25006": "it is a standby: name every server in the URL and add target_session_attrs=read-write to it",
    "25P03": "this process stood still for seconds in a transaction: is the machine overloaded or was it suspended?",
    "28": "check user and password: ~/.pgpass must be 0600 and have a line for this server, database and user",
    "3D000": "make it: createdb --encoding=UTF8 --template=template0 --owner=USER NAME",
    "3F000": "the role needs a schema of its own: ALTER DATABASE NAME OWNER TO USER",
    "40P01": "another program locks its tables in another order: is an SQL shell open on it?",
    "42501": "the role must own the database: ALTER DATABASE NAME OWNER TO USER",
    "53100": "free some space on the server's disk",
    "53": "the server is out of memory or connections: see its log, and raise max_connections if they are used up",
    "55P03": "another program holds a lock: is an SQL shell open on it? See pg_stat_activity",
    "57014": "the server is overloaded, or the statement was cancelled: see pg_stat_activity",
    "57P": "the server is going down or coming up",
    "58": "look for errors of the disk in the logs of the server's machine",
}
_UNREACHABLE_HINT = (
    "is the server up, does it take connections from here (pg_hba.conf, max_connections), and do user and password fit?"
)


def explain_error(error: psycopg.Error, server: SessionFactory) -> MooringsError:
    """The meaning of an error of a session on ``server``: ``store.*``, ``config.invalid`` or ``internal.error``.

    Only the first sentence of the server's message is shown: its details contain values of rows.
    """
    if isinstance(error, UnusableServerError):
        return error.error
    state = error.sqlstate or ""
    message = error.diag.message_primary or str(error).strip().partition("\n")[0]
    if state in _CORRUPT:
        return MooringsError(
            "store.corrupt",
            f"{server} cannot be used, {_CORRUPT[state]}: {message}",
            hint="see the server's log, and restore a backup",
        )
    if isinstance(error, psycopg.DataError):
        return MooringsError("internal.error", f"a record cannot be saved: {message}", hint=REPORT_HINT)
    hint = next((_HINTS[state[:length]] for length in (5, 3, 2) if state[:length] in _HINTS), "")
    if not state and not hint:
        hint = _UNREACHABLE_HINT
    return MooringsError("store.unavailable", f"{server} cannot be used now: {message}", hint=hint, retryable=True)
