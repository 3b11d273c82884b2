"""A kind of database: how its transactions begin and what its errors mean. Everything else is the same SQL.

A transaction ends in one of three ways: committed; rolled back with the caller's error; or, if the database itself
failed, rolled back with ``store.unavailable`` or ``store.corrupt`` and its connection closed. Whether a connection is
usable after such an error depends on the database, its version and the error, so none is trusted.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from moorings.core.model.errors import MooringsError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from moorings.ports.store import Replication

REPORT_HINT = "please report this"


class Database(ABC):
    """An engine and the few differences between kinds of databases."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # Writers of this process queue here, where they wake at once, not in the database, where some only poll.
        self._writing = threading.Lock()

    @abstractmethod
    def begin_write(self, connection: Connection) -> None:
        """Begin a transaction that will write, so that it cannot fail half-way because another one writes too."""

    @abstractmethod
    def begin_snapshot(self, connection: Connection) -> None:
        """Begin a transaction in which every read sees the same commits."""

    @abstractmethod
    def begin_upgrade(self, connection: Connection) -> None:
        """Begin a transaction during which no other one changes the schema."""

    @abstractmethod
    def before_upgrade(self, connection: Connection, revision: str, head: str) -> None:
        """Keep a way back, in the transaction that will change the schema, or log that there is none.

        Raises:
            MooringsError: ``store.unavailable``: the way back cannot be kept; nothing was changed.
        """

    def check_room(self) -> None:  # noqa: B027 - a server's disk is not visible from here
        """Check that there is room for new work.

        Raises:
            MooringsError: ``store.nearly_full``.
        """

    def keep_reserve(self) -> None:  # noqa: B027 - nor can room be kept on it
        """Keep room for ending work when the disk is full.

        Raises:
            MooringsError: ``store.unavailable``.
        """

    @abstractmethod
    def explain(self, error: DBAPIError) -> MooringsError:
        """The meaning of a driver's error: ``store.unavailable`` or ``store.corrupt``.

        Also ``internal.error``, if it rejects a value: the code that lets such a value in has a bug, the store is well.
        """

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One durable transaction, committed at the end of the block.

        Raises:
            IntegrityError: a constraint refused a row; the caller knows which row.
            MooringsError: ``store.unavailable``, ``store.corrupt``.
        """
        with self._writing, self._connected() as connection:
            self.begin_write(connection)
            yield connection
            connection.commit()

    @contextmanager
    def upgrade(self) -> Iterator[Connection]:
        """One transaction that may change the schema, committed at the end of the block.

        Raises:
            MooringsError: ``store.unavailable``, ``store.corrupt``.
        """
        with self._writing, self._connected() as connection:
            self.begin_upgrade(connection)
            yield connection
            connection.commit()

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Several reads of one state.

        Raises:
            MooringsError: ``store.unavailable``, ``store.corrupt``.
        """
        with self._connected() as connection:
            self.begin_snapshot(connection)
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One read.

        Raises:
            MooringsError: ``store.unavailable``, ``store.corrupt``.
        """
        with self._connected() as connection:
            yield connection

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with self.engine.connect() as connection:
                try:
                    yield connection
                except IntegrityError:
                    raise
                except DBAPIError:
                    connection.invalidate()
                    raise
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise self.explain(error) from error
        except UnicodeEncodeError as error:  # half of a surrogate pair: no database accepts that
            raise MooringsError("internal.error", f"a record cannot be saved: {error}", hint=REPORT_HINT) from error
        except NoConnectionError as error:
            raise MooringsError(
                "store.unavailable",
                "every connection to the database is in use",
                hint="too many ask at once, or the database is slow",
                retryable=True,
            ) from error

    def check_file(self) -> None:  # noqa: B027 - a server's place is its own business
        """Check that the database is still where it was opened.

        Raises:
            MooringsError: ``store.removed``.
        """

    def replication(self) -> Replication | None:
        """How its server replicates to standbys; None: it is no server."""
        return None

    def abort(self) -> None:  # noqa: B027 - a file answers by itself, or the system does
        """End the calls in progress, if they can hang."""

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()
