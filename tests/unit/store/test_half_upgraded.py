"""Releases that meet on one database: old code on new tables, new code on old ones, and an upgrade that was killed."""

import json
import logging
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import inspect

from moorings.core.model.claims import ClaimState, PoolBlock
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import Project, ProjectUsage
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import Block
from moorings.ports.store import Epoch, Leader
from moorings.store.postgresql import open_postgresql
from moorings.store.sqlite import open_sqlite
from moorings.store.tables import installation
from moorings.store.upgrade import HEAD, upgrade
from moorings.testing.builders import NOW, POOL, granted_claims
from tests.unit.store.killed import database_of
from tests.unit.store.recording import RELEASED, recorded, released, replay
from tests.waiting import patient

PATIENCE_S = patient(100)


class Made:
    """A database of one kind, made by the steps up to a release."""

    def __init__(self, kind, where):
        self.kind, self.where = kind, where
        self.database = database_of(kind, where)

    def make(self, revision):
        config = Config()
        config.set_main_option("script_location", "moorings.store:migrations")
        with self.database.upgrade() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            columns = inspect(connection).get_columns("installation")
            given = {"only": 1, "id": "'recorded'", "seq": 0, "epoch": 0, "holder": "''"}
            assert set(given) <= {column["name"] for column in columns}
            names = ", ".join(f'"{name}"' for name in given)
            values = ", ".join(map(str, given.values()))
            connection.exec_driver_sql(f"INSERT INTO installation ({names}) VALUES ({values})")

    def open(self):
        return open_sqlite(self.where) if self.kind == "sqlite" else open_postgresql(self.where)


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request):
    return request.param


@pytest.fixture
def make(request, tmp_path, postgresql):
    """Makes a database of that kind with the tables of that release."""
    made: list[Made] = []
    taken: list[str] = []

    def make_it(kind, revision):
        if kind == "sqlite":
            where = tmp_path / f"{len(made)}" / "moorings.db"
            where.parent.mkdir()
        else:
            taken.append(postgresql.take_database())
            where = postgresql.url(taken[-1])
        made.append(Made(kind, where))
        made[-1].make(revision)
        return made[-1]

    yield make_it
    for one in made:
        one.database.close()
    for name in taken:
        postgresql.give_back(name)


# ------------------------------------------------------------------------------------------------ old code, new tables


def test_every_release_was_recorded():
    revisions = sorted(
        path.name[:4] for path in (RELEASED.parents[3] / "src/moorings/store/migrations/versions").glob("0*")
    )
    upto = revisions[: revisions.index(HEAD) + 1]
    assert released() == [(revision, kind) for revision in upto for kind in ("postgresql", "sqlite")]


@pytest.mark.parametrize(("release", "kind"), released())
def test_released_code_gets_the_same_answers_on_the_new_tables(make, release, kind):
    said = recorded(release, kind)
    assert sum(len(transaction["statements"]) for transaction in said) > 50
    then, now = make(kind, release), make(kind, "head")
    expected = replay(then.database.engine, said)
    assert replay(now.database.engine, said) == expected
    assert any(isinstance(gave, list) and gave for answers in expected for gave in answers)  # it read something


@pytest.mark.parametrize(("release", "kind"), released())
def test_a_controller_of_a_release_goes_on_while_another_one_upgrades(make, release, kind):
    said = recorded(release, kind)
    alone, beside = make(kind, release), make(kind, release)
    expected = replay(alone.database.engine, said)
    half = len(said) // 2
    got = replay(beside.database.engine, said[:half])
    beside.open().close()  # the new controller; the old one's connections are still open
    got += replay(beside.database.engine, said[half:])
    assert got == expected
    store = beside.open()
    assert len(store.load_unended().claims) == 2
    store.close()


def test_an_old_leader_after_a_new_one_does_not_inherit_its_address(make, kind):
    made = make(kind, "head")
    with closing(made.open()) as store:
        with made.database.write() as connection:
            connection.exec_driver_sql("UPDATE installation SET holder = 'new', url = 'https://new:8090'")
        assert store.get_leader() == Leader("new", "https://new:8090", Epoch(0), None)
        replay(made.database.engine, recorded("0001", kind)[:1])  # `lead` of release 0001
        assert store.get_leader() == Leader("host-1", "", Epoch(1), NOW)
        epoch = store.begin_epoch("new", Timestamp(NOW + 1), url="https://new:8090")
        assert store.get_leader() == Leader("new", "https://new:8090", epoch, Timestamp(NOW + 1))


def test_an_old_controller_leaves_projects_and_what_it_does_not_know_of_a_claim(make, kind):
    made, said = make(kind, "head"), recorded("0004", kind)
    replay(made.database.engine, said[:2])  # it leads, and grants
    with made.database.write() as connection:
        connection.exec_driver_sql("UPDATE claims SET cell = '0-15', kept_pool = 'pod64', kept = '8-11'")
        connection.exec_driver_sql("INSERT INTO projects VALUES ('lab', 3, '{}')")
        connection.exec_driver_sql("INSERT INTO project_usage VALUES ('lab', 5, 6)")
    replay(made.database.engine, said[2:])
    with closing(made.open()) as store:
        claim = store.get_claim("claim-0001")
        assert (claim.state, claim.version) == (ClaimState.RELEASED, 2)  # it was saved since
        assert (claim.cell, claim.kept) == (Block.of(range(16)), PoolBlock(POOL, Block.of(range(8, 12))))
        assert store.get_claim("claim-0011").cell is None
        saved = store.load_unended()
        assert saved.projects == (Project(name="lab", version=3),)
        assert saved.usage == (ProjectUsage("lab", 5, Timestamp(6)),)


# ------------------------------------------------------------------------------------------------ new code, old tables


@pytest.mark.parametrize(("release", "kind"), released())
def test_new_code_upgrades_a_filled_database_and_keeps_all_of_it(make, release, kind, caplog):
    made = make(kind, release)
    replay(made.database.engine, recorded(release, kind))

    with made.database.read() as connection:
        there = inspect(connection)
        columns = {
            table: [column["name"] for column in there.get_columns(table) if not column["name"].startswith("url")]
            for table in there.get_table_names()
            if table != "alembic_version"
        }

    def everything():
        """What the release knew: a later one may have more columns."""
        with made.database.read() as connection:
            asked = {table: ", ".join(f'"{name}"' for name in names) for table, names in columns.items()}
            return {
                table: sorted(map(repr, connection.exec_driver_sql(f"SELECT {names} FROM {table}")))
                for table, names in asked.items()
            }

    before = everything()
    assert all(before[name] for name in ("claims", "partitions", "runs", "outbox", "idempotency_keys", "access_keys"))
    with caplog.at_level(logging.WARNING, "moorings.store"):
        store = made.open()
    assert everything() == before
    assert [record.message for record in caplog.records] == ["store.upgrading"] * (release != HEAD)
    assert store.installation() == "recorded"
    assert store.get_leader() == Leader("host-11", "", Epoch(2), NOW)
    store.commit(store.begin_epoch("new", NOW), granted_claims(500))
    store.close()
    caplog.clear()
    made.open().close()
    assert caplog.records == []


def test_an_upgrade_that_is_killed_anywhere_leaves_the_old_tables_or_the_new(make, kind):
    made = make(kind, "0001")
    replay(made.database.engine, recorded("0001", kind))
    made.database.close()
    told = subprocess.run(
        [sys.executable, "-m", "tests.unit.store.killed", kind, str(made.where)],
        check=True, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    found = [json.loads(line) for line in told.stdout.splitlines()]
    old = sorted(column.name for column in installation.c if not column.name.startswith("url"))
    new = sorted(column.name for column in installation.c)
    *kills, last = found
    assert len(kills) >= 10
    for one in kills:
        assert (one["revision"], one["columns"]) == ("0001", old)
        for copy in one.get("copy", []):  # whole, whenever it is there
            assert (copy["revision"], copy["columns"]) == ("0001", old)
    assert not last["killed"]
    assert (last["revision"], last["columns"]) == (HEAD, new)
    store = made.open()
    assert len(store.load_unended().claims) == 2
    store.close()


def test_half_an_upgrade_done_by_hand_is_told_and_changes_nothing(make, kind):
    # Not by us: each of our steps is a transaction. By a person who ran half of a script.
    made = make(kind, "0001")
    with made.database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE installation ADD COLUMN url TEXT")
    with pytest.raises(MooringsError) as caught:
        made.open()
    assert caught.value.code in {"store.unavailable", "store.corrupt"}
    assert "url" in caught.value.detail
    with made.database.read() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "0001"


# ---------------------------------------------------------------------------------------------------- the way back


def test_sqlite_is_copied_before_it_is_upgraded_and_the_copy_is_the_way_back(make):
    made = make("sqlite", "0001")
    said = recorded("0001", "sqlite")
    half = len(said) // 2
    replay(made.database.engine, said[:half])
    made.database.close()
    store = made.open()
    store.commit(store.begin_epoch("new", NOW), granted_claims(500))
    store.close()
    copy = made.where.with_name(f"moorings.db.before-{HEAD}")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert {file.name for file in made.where.parent.iterdir()} == {"moorings.db", copy.name}

    alone = make("sqlite", "0001")
    expected = replay(alone.database.engine, said)[half:]
    shutil.copy(copy, made.where)
    assert replay(made.database.engine, said[half:]) == expected  # the old release continues where it was


def test_a_copy_that_cannot_be_made_stops_the_upgrade(make):
    made = make("sqlite", "0001")
    (made.where.parent / f"moorings.db.before-{HEAD}.part").mkdir()  # in the way
    with pytest.raises(MooringsError) as caught:
        made.open()
    assert caught.value.code == "store.unavailable"
    assert f"before-{HEAD}" in caught.value.detail
    with closing(sqlite3.connect(made.where)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0001",)


def test_a_new_database_is_not_copied(tmp_path, caplog):
    open_sqlite(tmp_path / "moorings.db").close()
    assert [file.name for file in tmp_path.iterdir()] == ["moorings.db"]
    assert caplog.records == []


def test_an_upgrade_waits_for_no_table_for_ever(make, postgresql):
    # An SQL shell that read something and was left open: whoever wants the table next would wait behind the upgrade.
    made = make("postgresql", "0001")
    hasty = type(made.database)(made.database._server, 0.3)
    with made.database.snapshot() as shell:
        shell.exec_driver_sql("SELECT id FROM installation")
        with pytest.raises(MooringsError) as caught:
            upgrade(hasty, "unused")
        assert "lock" in caught.value.detail
        assert caught.value.code == "store.unavailable"
    upgrade(hasty, "unused")
    hasty.close()


def test_upgrades_take_turns_however_long_one_takes(make, postgresql):
    made = make("postgresql", "0001")
    with made.database.upgrade() as connection:
        locked = connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").scalar_one()
        assert locked == 1
        # For the one who waits neither a lock's nor a statement's time runs out.
        settings = "SELECT name, setting FROM pg_settings WHERE name IN ('statement_timeout')"
        assert connection.exec_driver_sql(settings).all() == [("statement_timeout", "0")]
