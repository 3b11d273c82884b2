"""Upgrade of a database's tables to those of this release.

It runs whenever a store is opened, so it needs no admin; alembic, which takes a while to import, is loaded only if
there is something to do. All steps are one transaction under the database's own lock: of two controllers that start
together one upgrades and the other finds it done, and a killed one has changed nothing.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, column, insert, inspect, select, table

from moorings.core.model.errors import MooringsError
from moorings.store.database import Database
from moorings.store.tables import installation

HEAD: Final = "0008"  # the newest revision in migrations/versions
_SCRIPTS: Final = "moorings.store:migrations"  # package data: found however the package is installed


def upgrade(database: Database, ident: str) -> None:
    """Upgrade the tables; a new database becomes the installation ``ident``.

    Raises:
        MooringsError: ``store.too_new``, ``store.corrupt``, ``store.unavailable``.
    """
    with database.read() as connection:
        if _revision(connection) == HEAD:
            return
    with database.upgrade() as connection:
        if _revision(connection) != HEAD:
            _run_migrations(database, connection)
        if connection.execute(select(installation.c.id)).first() is None:
            connection.execute(insert(installation).values(only=1, id=ident, seq=0, epoch=0, holder=""))


def _revision(connection: Connection) -> str | None:
    """The revision of the tables; None if there are none.

    Raises:
        MooringsError: ``store.corrupt`` if they belong to another program.
    """
    present = inspect(connection).get_table_names()
    if not present:
        return None
    if "alembic_version" not in present or installation.name not in present:
        raise MooringsError(
            "store.corrupt",
            f"{connection.engine.url.database} holds tables of another program ({', '.join(sorted(present)[:3])})",
            hint="give Moorings a database of its own; nothing was changed",
        )
    version = table("alembic_version", column("version_num"))
    return str(connection.execute(select(version.c.version_num)).scalar_one())


def _run_migrations(database: Database, connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    revision = _revision(connection)
    if revision is not None and revision not in known:
        raise MooringsError(
            "store.too_new",
            f"{connection.engine.url.database} has tables of a newer release (revision {revision}, known here: {HEAD})",
            hint="run the release that made it, or a newer one, or restore a backup; nothing was changed",
        )
    if revision is not None:
        database.before_upgrade(connection, revision, HEAD)
    command.upgrade(config, "head")
