"""Leadership by an advisory lock of PostgreSQL, held by a session of its own.

The lock goes when its session does, and a session goes when its process is killed (at once), when its machine is cut
off (the server's keepalive probes) and when its controller hangs (it sends nothing for ``SILENCE_S``, so the server
ends it): in each case another controller leads within seconds, and no clocks are compared. A lease in a row with a
heartbeat was refused: it needs two machines with equal clocks, and a write to disk every second.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from moorings.store.postgresql import open_session

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger("moorings.store")

ADVISORY_LOCK_ID = 0x6D6F6F72  # "moor": advisory locks belong to one database, and that is ours
TRY_S = 0.3  # how often a standby tries
HEARTBEAT_S = 0.5  # how often the leader shows that it is alive
SILENCE_S = 2.5  # after this silence the server releases the lock

ANSWER_S = 2.5  # a server that takes longer to answer may have released the lock

# If the machine is cut off: the server notices after idle + interval * count = 3 s.
_SESSION = (
    f"SET idle_session_timeout = '{SILENCE_S:g}s'",
    "SET tcp_keepalives_idle = 1",
    "SET tcp_keepalives_interval = 1",
    "SET tcp_keepalives_count = 2",
)


class LeaderLock:
    """Leadership among the controllers on one PostgreSQL database.

    Args:
        url: of the database.
    """

    is_exclusive = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: psycopg.Connection[Any] | None = None
        self._using = threading.Lock()  # a thread whose caller was cancelled continues
        self._logged = ""

    async def acquire(self) -> None:
        while not await asyncio.to_thread(self._try):  # noqa: ASYNC110 - the event is another machine's
            await asyncio.sleep(TRY_S)

    async def wait_until_lost(self) -> str:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            reason = await asyncio.to_thread(self._heartbeat)
            if reason:
                await self.release()
                return reason

    async def release(self) -> None:
        await asyncio.to_thread(self._resign)

    def _resign(self) -> None:
        with self._using:
            self._end()

    def _try(self) -> bool:
        """Whether we hold the lock now."""
        with self._using:
            return self._try_alone()

    def _try_alone(self) -> bool:
        import psycopg

        from moorings.store.session import DatabaseTimeouts

        try:
            if self._session is None:
                self._session = open_session(
                    self._url, DatabaseTimeouts(connect_s=2.0, statement_s=2.0, answer_s=ANSWER_S)
                )
                for setting in _SESSION:
                    self._session.execute(setting)
            row = self._session.execute("SELECT pg_try_advisory_lock(%s)", [ADVISORY_LOCK_ID]).fetchone()
        except psycopg.Error as error:
            self._end()
            self._log_once(_first_line(error))
            return False
        self._log_once("")
        return row is not None and bool(row[0])

    def _heartbeat(self) -> str:
        """Show that we are alive; returns why we lead no longer, if so."""
        import psycopg

        with self._using:
            if self._session is None:
                return "the leadership was given back"
            try:
                self._session.execute("SELECT 1")
            except psycopg.Error as error:
                return f"the session that held the leadership has ended: {_first_line(error)}"
            return ""

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):  # it may be broken: then the server releases the lock by itself
                session.close()

    def _log_once(self, problem: str) -> None:
        """Log a problem once, not at every try."""
        if problem and problem != self._logged:
            log.warning("leadership.unavailable", extra={"detail": problem})
        self._logged = problem


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
