"""The migrations lead to the tables of ``tables.py``, once, wholly or not at all."""

import logging
import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, event, inspect

from moorings.core.model.errors import MooringsError
from moorings.store import upgrade as upgrading
from moorings.store.sqlite import SqliteDatabase, open_sqlite
from moorings.store.tables import metadata


@pytest.fixture
def path(tmp_path):
    return tmp_path / "moorings.db"


@pytest.fixture
def database(path):
    database = SqliteDatabase(path, 1.0)
    yield database
    database.close()


def test_the_steps_are_one_line_that_ends_at_the_head():
    config = Config()
    config.set_main_option("script_location", "moorings.store:migrations")
    steps = list(ScriptDirectory.from_config(config).walk_revisions())
    assert steps[0].revision == upgrading.HEAD
    assert [step.down_revision for step in steps] == [*[step.revision for step in steps[1:]], None]


def test_the_steps_lead_to_the_metadata(database):
    upgrading.upgrade(database, "test")
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def schema(engine):
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE '%alembic%'")
        return {name: sql and parts(sql) for name, sql in found}  # indexes of keys have no text


def parts(sql):
    """What a statement lists in its parentheses, and the words around them: columns may have come later."""
    listed, depth = [""], 0
    for character in sql:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 1:
            listed.append("")
        else:
            listed[-1] += character
    head, _, listed[0] = listed[0].partition("(")
    listed[-1], _, tail = listed[-1].rpartition(")")
    head = head.replace('"', "")  # a table that was made again has its name in quotes
    return [head.strip(), *sorted(" ".join(one.split()) for one in listed), tail.strip()]


def test_the_steps_lead_to_what_the_metadata_would_make(database, tmp_path):
    # Word by word: alembic does not compare checks, primary keys and conditions of indexes.
    upgrading.upgrade(database, "test")
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    metadata.create_all(engine)
    assert schema(database.engine) == schema(engine)
    engine.dispose()


def test_a_second_upgrade_does_nothing(database):
    upgrading.upgrade(database, "first")
    statements = []
    event.listen(database.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    upgrading.upgrade(database, "second")
    assert statements
    assert {statement.split()[0] for statement in statements} <= {"SELECT", "PRAGMA"}
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT id FROM installation").scalars().all() == ["first"]


def test_an_upgrade_that_is_cut_off_leaves_nothing(database):
    def cut_off(_connection, _cursor, statement, *_others):
        if "CREATE TABLE outbox" in statement:
            raise KeyboardInterrupt

    event.listen(database.engine, "before_cursor_execute", cut_off)
    with pytest.raises(KeyboardInterrupt):
        upgrading.upgrade(database, "test")
    with database.read() as connection:
        assert inspect(connection).get_table_names() == []
    event.remove(database.engine, "before_cursor_execute", cut_off)
    upgrading.upgrade(database, "test")
    with database.read() as connection:
        assert set(inspect(connection).get_table_names()) == {*metadata.tables, "alembic_version"}


def test_a_database_of_the_future_is_refused(database):
    upgrading.upgrade(database, "test")
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'later'")
    with pytest.raises(MooringsError) as caught:
        upgrading.upgrade(database, "test")
    assert caught.value.code == "store.too_new"


def test_a_database_that_is_up_to_date_opens_without_alembic(path):
    open_sqlite(path).close()
    code = (
        "import sys, pathlib\n"
        "from moorings.store.sqlite import open_sqlite\n"
        "open_sqlite(pathlib.Path(sys.argv[1])).close()\n"
        "print('alembic' in sys.modules)\n"
    )
    told = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "False"


def test_logging_is_left_as_it_was(path):
    before = logging.getLogger().handlers[:], logging.getLogger().level, logging.getLogger("alembic").level
    open_sqlite(path).close()
    assert (logging.getLogger().handlers[:], logging.getLogger().level, logging.getLogger("alembic").level) == before
