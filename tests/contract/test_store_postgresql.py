"""PostgreSQL keeps the contract of every store, and what only a server can do: end sessions, hang, lose answers."""

import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import event

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.ports.store import Changes, ExpectedVersion, PageQuery, Seq
from moorings.store import session as sessions
from moorings.store.postgresql import SESSIONS_MAX, open_postgresql, open_session
from moorings.store.session import DatabaseTimeouts, SessionFactory
from moorings.testing.builders import NEW, NOW, a_claim, an_access_key, an_event, granted_claims
from moorings.testing.store_suite import StoreSuite
from tests.contract.starting import assert_one_makes_the_database
from tests.postgresql import CONNECTIONS_MAX, NOBODY, PASSWORD, ROLE, PostgresqlServer, find_programs
from tests.severing import Cut, SeveredWay
from tests.waiting import patient, until

# Of a busy machine: a process may stand still for seconds in the middle of a transaction.
CALM = DatabaseTimeouts(idle_in_transaction_s=patient(5))
HASTY = replace(CALM, lock_s=0.5, statement_s=2.0)


class TestPostgresqlStore(StoreSuite):
    @pytest.fixture
    def open_store(self, database_url):
        return functools.partial(open_postgresql, database_url, patience=CALM)


@pytest.fixture
def opened(database_url):
    """Opens a store that gives up soon, and closes it at the end."""
    with contextlib.ExitStack() as stores:

        def open_it(url=database_url, patience=HASTY):
            return stores.enter_context(contextlib.closing(open_postgresql(url, patience=patience)))

        yield open_it


def refused(call, code="store.unavailable"):
    with pytest.raises(MooringsError) as caught:
        call()
    error = caught.value
    assert error.code == code, error.detail
    assert error.hint, error.detail
    assert error.retryable == (code in {"store.unavailable", "store.conflict"})
    return error


def pids(postgresql, name):
    found = postgresql.execute(
        f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}' AND application_name = 'moorings'"
    )
    return [pid for (pid,) in found]


# ------------------------------------------------------------------------------------------------------- a long history

_FILL = """
    INSERT INTO outbox
    SELECT n, (ARRAY['claim.created', 'claim.granted', 'turn.decided', 'run.ended'])[1 + mod(n, 4)], n,
        'claim-' || n / 10, NULL, CASE mod(n, 4) WHEN 3 THEN 'run-' || n / 10 END, NULL, NULL, 1, '{}'
    FROM generate_series(2, 100000) AS n
"""
MANY = 1_100  # rows; what is asked for at most is a page, or where the thousandth event is
READS = {
    "a page": lambda store: store.list_events(Seq(50_000), 100),
    "of a name": lambda store: store.list_events(Seq(50_000), 100, names=["run.ended"]),
    "of a noun": lambda store: store.list_events(Seq(50_000), 100, names=["claim.*", "device.drained"]),
    "of a claim": lambda store: store.list_events(Seq(0), 100, claim="claim-5000"),
    "of a run, by name": lambda store: store.list_events(Seq(0), 100, run="run-5000", names=["run.*"]),
    "a stretch": lambda store: store.next_archive_range(1000, Timestamp(50_000)),
    "loading": lambda store: store.load_unended(),
}


def test_a_read_of_a_long_log_costs_what_it_gives(opened):
    store = opened(patience=DatabaseTimeouts())
    with store._database.write() as connection:
        for statement in (_FILL, "UPDATE installation SET seq = 100000", "ANALYZE outbox"):
            connection.exec_driver_sql(statement)
    asked = []
    event.listen(store._database.engine, "before_cursor_execute", lambda *given: asked.append(given[2:4]))
    for what, read in READS.items():
        asked.clear()
        read(store)
        statements = [one for one in asked if one[0].startswith(("SELECT", "WITH"))]
        assert statements
        with store._database.read() as connection:
            for statement, values in statements:
                told = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}", values)
                costly = [node for node in _nodes(told.scalar_one()[0]["Plan"]) if _reads_much(node)]
                assert costly == [], what


def _nodes(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


def _reads_much(node):
    """Whether a step of a plan gave, or passed over, more rows than anybody asked for."""
    return node["Actual Rows"] + node.get("Rows Removed by Filter", 0) > MANY


# ---------------------------------------------------------------------------------------------- how sessions are set up


def test_a_session_is_durable_and_never_waits_for_ever(postgresql, database_name, opened):
    # Whatever the database's own defaults are.
    postgresql.execute(
        *(
            f"ALTER DATABASE {database_name} SET {setting}"
            for setting in (
                "synchronous_commit = off",
                "default_transaction_read_only = on",
                "default_transaction_isolation = serializable",
                "statement_timeout = 0",
            )
        )
    )
    try:
        store = opened(patience=DatabaseTimeouts())
        store.commit(store.begin_epoch("first", NOW), granted_claims(1))
        with store._database.write() as connection:
            settings = dict(tuple(row) for row in connection.exec_driver_sql("SELECT name, setting FROM pg_settings"))
        with store._database.snapshot() as connection:
            isolation = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
            read_only = connection.exec_driver_sql("SHOW transaction_read_only").scalar_one()
    finally:
        postgresql.execute(f"ALTER DATABASE {database_name} RESET ALL")
    assert settings["synchronous_commit"] == "on"
    assert settings["transaction_isolation"] == "read committed"
    assert (settings["statement_timeout"], settings["lock_timeout"]) == ("15000", "10000")
    assert settings["idle_in_transaction_session_timeout"] == "3000"
    assert settings["client_encoding"] == "UTF8"
    assert settings["jit"] == "off"
    assert (isolation, read_only) == ("repeatable read", "on")


def test_stronger_durability_is_left_as_it_is(postgresql, database_name, opened):
    postgresql.execute(f"ALTER DATABASE {database_name} SET synchronous_commit = remote_apply")
    try:
        with opened()._database.read() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "remote_apply"
    finally:
        postgresql.execute(f"ALTER DATABASE {database_name} RESET ALL")


def test_names_are_compared_by_code_points_whatever_the_databases_language(postgresql, opened):
    if postgresql.execute("SELECT current_setting('server_version_num')::int < 150000") == [(True,)]:
        pytest.skip("a database sorts by ICU's rules from PostgreSQL 15 on; an older server is on this machine")
    name = postgresql.make_database("LOCALE_PROVIDER icu ICU_LOCALE 'en-US' TEMPLATE template0")
    assert postgresql.execute("SELECT 'a' < 'B'", database=name) == [(True,)]  # as a person sorts, not by code points
    store = opened(postgresql.url(name))
    epoch = store.begin_epoch("first", NOW)
    ids = ["B", "Z", "_", "a", "b", "é", "\U0001f600"]
    claims = [a_claim(id=ident, name=ident, owner=f"user/{ident}") for ident in ids]
    store.commit(epoch, Changes(claims=[(claim, NEW) for claim in reversed(claims)]))
    assert [claim.id for claim in store.load_unended().claims] == ids
    assert [claim.id for claim in store.list_claims(PageQuery(3))] == ids[:3]
    assert [claim.id for claim in store.list_claims(PageQuery(9, after="Z"))] == ids[2:]
    assert [claim.id for claim in store.list_claims(PageQuery(), owner_prefix="user/B")] == ["B"]


def test_a_schema_of_ones_own_can_be_given(postgresql, database_name, opened):
    postgresql.execute(f"CREATE SCHEMA berths AUTHORIZATION {ROLE}", database=database_name)
    try:
        store = opened(f"{postgresql.url(database_name)}&options={quote('-c search_path=berths')}")
        store.commit(store.begin_epoch("first", NOW), granted_claims(1))
        found = postgresql.execute("SELECT count(*) FROM berths.claims", database=database_name)
        assert found == [(1,)]
    finally:
        postgresql.execute("DROP SCHEMA berths CASCADE", database=database_name)


def test_a_new_installation_can_be_named(database_url):
    for asked in ("i1", "i2"):
        store = open_postgresql(database_url, installation=asked)
        assert store.installation() == "i1"
        store.close()


def test_a_session_alone_is_checked_and_set_up_like_every_other(database_url):
    with open_session(database_url) as connection:
        assert connection.autocommit
        assert connection.execute("SHOW statement_timeout").fetchone() == ("15s",)


# ----------------------------------------------------------------------------------------------- what cannot be opened


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://moorings:{PASSWORD}@127.0.0.1/x",  # not quoted: libpq repeats it in what it says
        "postgresql://moorings:sesame%zz@127.0.0.1/x",
        "postgresql://moorings:sesame@127.0.0.1/x?sesame=1",
        "mysql://moorings:sesame@127.0.0.1/x",
        "host=127.0.0.1 password=sesame nonsense",
        # libpq ends the password at its first "@" or "/": the rest would be shown as host, port or database
        "postgresql://moorings:open@sesame@127.0.0.1/x",
        "postgresql://moorings:open@h:sesame@127.0.0.1/x",
        "postgresql://moorings:open/sesame@127.0.0.1/x",
        "postgresql://moorings:open?o@sesame@127.0.0.1/x",
        "postgresql://moorings:5432/sesame@127.0.0.1/x",
        "postgresql://moorings:open/s?host=sesame@127.0.0.1/x",
        "postgres://moorings:sesame@@127.0.0.1/x",
        "dbname=postgresql://moorings:sesame@127.0.0.1/x",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(url):
    error = refused(lambda: open_postgresql(url), "config.invalid")
    assert "sesame" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:se%40sa%2Fme@h/x", "the database x on h"),
        ("postgresql://h/a%40b", "the database a@b on h"),
        ("host=@moorings dbname=x", "the database x on @moorings"),
        ("postgresql://ann@h/x?password=ses@me", "the database x on h"),
    ],
)
def test_a_url_with_its_special_characters_in_place_is_taken(url, shown):
    assert str(SessionFactory(url, DatabaseTimeouts())) == shown


def test_a_password_shows_nowhere(postgresql, database_name, opened, caplog):
    caplog.set_level(logging.DEBUG)
    wrong = "wrong sesame"
    told = [refused(lambda: opened(postgresql.tcp_url(database_name, password=wrong)))]
    assert "password authentication failed" in told[0].detail
    store = opened(postgresql.tcp_url(database_name), DatabaseTimeouts(answer_s=5.0))
    store.commit(store.begin_epoch("first", NOW), granted_claims(1))
    postgresql.crash()
    try:
        told.append(refused(store.ping))
    finally:
        postgresql.start()
    store.ping()
    with store._database.engine.connect() as connection:
        shown = repr([store, store._database, store._database.engine, connection.connection.driver_connection])
    for error in told:
        shown += "".join(traceback.format_exception(error)) + error.hint
    assert "sesame" not in shown + caplog.text


def test_a_passfile_and_a_service_are_understood(postgresql, database_name, tmp_path, monkeypatch):
    passfile = tmp_path / "pgpass"
    escaped = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
    passfile.write_text(f"*:*:*:{ROLE}:{escaped}\n")
    passfile.chmod(0o600)
    url = f"postgresql://{ROLE}@127.0.0.1:{postgresql.port}/{database_name}?passfile={quote(str(passfile))}"
    open_postgresql(url).close()
    services = tmp_path / "services.conf"
    services.write_text(
        f"[berths]\nhost=127.0.0.1\nport={postgresql.port}\ndbname={database_name}\nuser={ROLE}\npassfile={passfile}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    open_postgresql("service=berths").close()
    passfile.write_text("")
    assert "service berths" in refused(lambda: open_postgresql("service=berths")).detail


def test_without_the_extra_it_is_told_what_to_install(database_url):
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from moorings.core.model.errors import MooringsError\n"
        "from moorings.store.postgresql import open_postgresql\n"
        "try:\n    open_postgresql(sys.argv[1])\n"
        "except MooringsError as error:\n    print(error.code, error.hint)\n"
    )
    told = subprocess.run([sys.executable, "-c", code, database_url], check=True, capture_output=True, text=True)
    assert told.stdout.startswith("config.invalid ")
    assert "moorings[postgres]" in told.stdout


def test_a_server_that_is_too_old_is_told(database_url, monkeypatch):
    monkeypatch.setattr(sessions, "MIN_SERVER_VERSION", 99)
    assert "too old" in refused(lambda: open_postgresql(database_url), "config.invalid").detail


def test_a_database_that_cannot_hold_every_name_is_told(postgresql):
    name = postgresql.make_database("ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    assert "SQL_ASCII" in refused(lambda: open_postgresql(postgresql.url(name)), "config.invalid").detail


def test_what_is_not_there_is_told(postgresql, database_name):
    error = refused(lambda: open_postgresql(postgresql.url("nowhere")))
    assert "nowhere" in error.detail
    refused(lambda: open_postgresql(f"postgresql://127.0.0.1:1/{database_name}"))
    refused(lambda: open_postgresql(postgresql.url(database_name, role="stranger")))


def test_a_database_of_another_owner_is_told(postgresql, database_name):
    postgresql.execute("DROP SCHEMA public", "CREATE SCHEMA public", database=database_name)
    assert "OWNER" in refused(lambda: open_postgresql(postgresql.url(database_name))).hint


def test_another_programs_database_is_refused_and_kept(postgresql, database_name):
    postgresql.execute("CREATE TABLE recipes (id integer)", database=database_name)
    error = refused(lambda: open_postgresql(postgresql.url(database_name)), "store.corrupt")
    assert "recipes" in error.detail
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    assert postgresql.execute(tables, database=database_name) == [("recipes",)]


def test_a_newer_releases_database_is_refused(postgresql, database_name, opened):
    opened().close()
    postgresql.execute("UPDATE alembic_version SET version_num = '9999'", database=database_name)
    error = refused(lambda: open_postgresql(postgresql.url(database_name)), "store.too_new")
    assert "9999" in error.detail


def test_tables_that_are_gone_are_told_as_damage(postgresql, database_name, opened):
    store = opened()
    postgresql.execute("DROP TABLE outbox", database=database_name)
    refused(lambda: store.begin_epoch("first", NOW), "store.corrupt")


def test_a_standby_is_refused(postgresql):
    standby = PostgresqlServer(find_programs())
    try:
        standby.execute(f"CREATE DATABASE berths OWNER {ROLE}")
        standby.stop()
        signal_file = standby.data / "standby.signal"
        signal_file.touch()
        if os.geteuid() == 0:
            os.chown(signal_file, NOBODY, NOBODY)
        standby.start()
        error = refused(lambda: open_postgresql(standby.url("berths")))
        assert "standby" in error.detail
        assert "target_session_attrs" in error.hint
        with pytest.raises(psycopg.OperationalError, match="standby"):
            open_session(standby.url("berths"))
        # The way out that the hint names: both servers, and the one that can be written is found.
        name = postgresql.make_database()
        both = (
            f"postgresql://{ROLE}@/{name}?host={quote(str(standby.folder))},{quote(str(postgresql.folder))}"
            f"&port={standby.port},{postgresql.port}&target_session_attrs=read-write"
        )
        open_postgresql(both).close()
    finally:
        standby.remove()


# ------------------------------------------------------------------------------------------------ sessions that go away


def test_sessions_that_ended_while_idle_are_replaced(postgresql, database_name, opened):
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    with ThreadPoolExecutor(3) as threads:  # several sessions
        assert all(threads.map(lambda _: store.last_seq(), range(20)))
    ended = pids(postgresql, database_name)
    for pid in ended:
        postgresql.execute(f"SELECT pg_terminate_backend({pid}, 10000)")
    assert pids(postgresql, database_name) == []
    store.commit(epoch, granted_claims(1))
    assert len(store.load_unended().claims) == 1
    assert not set(ended) & set(pids(postgresql, database_name))


def test_a_session_that_ends_in_a_transaction_saves_nothing_and_heals(postgresql, database_name, opened):
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    before = store.load_unended()

    def save():
        with store._database.write() as connection:
            store._saver.save(connection, granted_claims(1), store.last_seq() + 2)
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            postgresql.execute(f"SELECT pg_terminate_backend({pid}, 10000)")
            connection.exec_driver_sql("SELECT 1")

    refused(save)
    assert store.load_unended() == before
    store.commit(epoch, granted_claims(1))


def test_a_server_that_crashes_keeps_what_was_promised(postgresql, opened):
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    store.commit(epoch, granted_claims(1))
    before = store.load_unended()
    postgresql.crash()
    try:
        for call in (store.load_unended, store.ping, lambda: store.commit(epoch, granted_claims(2))):
            refused(call)
    finally:
        postgresql.start()
    assert store.load_unended() == before
    store.commit(epoch, granted_claims(2))


@contextlib.contextmanager
def severed(postgresql, database_name, patience=None):
    """A way to the server that can be cut, and a store that takes it."""
    with contextlib.closing(SeveredWay(postgresql.port)) as way:
        url = postgresql.tcp_url(database_name, port=way.port)
        with contextlib.closing(open_postgresql(url, patience=patience)) as store:
            yield way, store


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER, Cut.SILENCE])
def test_a_lost_answer_to_a_commit_leaves_all_or_nothing(postgresql, database_name, cut):
    patience = DatabaseTimeouts(answer_s=1.0 if cut is Cut.SILENCE else 20.0)
    with severed(postgresql, database_name, patience) as (way, store):
        epoch = store.begin_epoch("first", NOW)
        store.commit(epoch, granted_claims(1))
        before = store.load_unended()
        way.arm(cut)
        refused(lambda: store.commit(epoch, granted_claims(2, 3)))
        assert way.cut.is_set()
        after = store.load_unended()
        if cut is Cut.BEFORE:
            assert after == before
            store.commit(epoch, granted_claims(2, 3))
        else:
            assert [claim.id for claim in after.claims] == [a_claim(number).id for number in (1, 2, 3)]
            assert after.seq == before.seq + 4
            refused(lambda: store.commit(epoch, granted_claims(2, 3)), "store.conflict")
        assert len(store.load_unended().partitions) == 3


def test_who_pings_before_reading_reads_also_a_commit_that_comes_late(postgresql, database_name):
    # The server may still be at work on a commit whose connection is gone; a read would miss it, a write waits for it.
    with severed(postgresql, database_name) as (way, store):
        epoch = store.begin_epoch("first", NOW)
        way.arm(Cut.LATE)
        refused(lambda: store.commit(epoch, granted_claims(1)))
        assert store.load_unended().claims == ()
        with ThreadPoolExecutor(1) as threads:
            pinging = threads.submit(store.ping)
            waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'moorings' AND wait_event_type = 'Lock'"
            until(lambda: postgresql.execute(waits))  # a server tells nobody that somebody waits
            way.late.set()
            pinging.result(patient(60))
        assert len(store.load_unended().claims) == 1


def test_a_lost_answer_to_lead_fences_nobody_wrongly(postgresql, database_name):
    with severed(postgresql, database_name) as (way, store):
        way.arm(Cut.AFTER)
        refused(lambda: store.begin_epoch("first", NOW))
        epoch = store.begin_epoch("first", NOW)
        assert (epoch, store.get_leader().epoch) == (2, 2)
        store.commit(epoch, granted_claims(1))


def test_a_server_that_stands_still_is_given_up(postgresql, database_name, opened):
    store = opened(patience=replace(CALM, answer_s=2.0))
    epoch = store.begin_epoch("first", NOW)
    (pid,) = pids(postgresql, database_name)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "no answer" in refused(lambda: store.commit(epoch, granted_claims(1))).detail
        # Another session is made for what comes next: only that one stood still, and it holds no lock yet.
        store.commit(epoch, granted_claims(2))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [claim.id for claim in store.load_unended().claims] == [a_claim(2).id]


# -------------------------------------------------------------------------------------------------------- others' locks


def test_a_lock_of_an_sql_shell_is_told_and_heals(postgresql, database_name, opened):
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    with psycopg.connect(postgresql.url(database_name, role="postgres")) as shell:
        shell.execute("UPDATE installation SET holder = 'half a commit'")
        for write in (
            lambda: store.commit(epoch, granted_claims(1)),
            lambda: store.begin_epoch("second", NOW),
            lambda: store.add_access_key(an_access_key(), an_event("key.created")),
            store.ping,
        ):
            assert "SQL shell" in refused(write).hint
        # Readers do not wait for the writer, and see nothing of what it has not committed.
        assert store.load_unended().seq == store.last_seq() == 1
        assert store.get_leader().controller_name == "first"
        shell.rollback()
    store.commit(epoch, granted_claims(1))
    store.ping()


def test_a_controller_that_stops_in_a_commit_does_not_stop_the_next_leader(opened):
    stopped, other = opened(patience=DatabaseTimeouts(idle_in_transaction_s=2.0)), opened(patience=CALM)
    epoch = stopped.begin_epoch("first", NOW)

    def stop_in_a_commit():
        with stopped._database.write() as connection:
            stopped._saver.save(connection, Changes(claims=[(a_claim(1), NEW)]), stopped.last_seq())
            connection.exec_driver_sql("UPDATE installation SET seq = seq + 1")
            other.begin_epoch("second", NOW)  # waits until the server has ended that session
            connection.exec_driver_sql("SELECT 1")

    refused(stop_in_a_commit)
    assert other.load_unended().claims == ()
    refused(lambda: stopped.commit(epoch, granted_claims(1)), "store.fenced")


def test_a_deadlock_with_an_sql_shell_ends_and_heals(postgresql, database_name, opened):
    store = opened(patience=CALM)
    epoch = store.begin_epoch("first", NOW)
    store.commit(epoch, granted_claims(1))
    (claim,) = store.load_unended().claims
    change = Changes(claims=[(replace(claim, version=2), ExpectedVersion(1))])
    with (
        psycopg.connect(postgresql.url(database_name, role="postgres")) as shell,
        ThreadPoolExecutor(1) as threads,
    ):
        shell.execute("SET deadlock_timeout = '60s'")  # so that we are the one that is refused
        shell.execute("UPDATE claims SET attempt = 0")
        saving = threads.submit(store.commit, epoch, change)
        shell.execute("SET LOCAL lock_timeout = '50s'")
        waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'moorings' AND wait_event_type = 'Lock'"
        until(lambda: postgresql.execute(waits))  # a server tells nobody that somebody waits
        shell.execute("UPDATE installation SET holder = 'the shell'")
        error = refused(lambda: saving.result(patient(60)))
        assert "deadlock" in error.detail
        shell.rollback()
    store.commit(epoch, change)


def test_a_statement_that_takes_too_long_is_ended_by_the_server(opened):
    store = opened()

    def sleep():
        with store._database.read() as connection:
            connection.exec_driver_sql("SELECT pg_sleep(60)")

    assert "timeout" in refused(sleep).detail
    store.ping()


def test_a_server_without_connections_to_give_is_told_and_heals(postgresql, database_name, opened):
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    url = postgresql.url(database_name)
    with contextlib.ExitStack() as taken:

        def take_all():
            for _ in range(CONNECTIONS_MAX):
                taken.enter_context(psycopg.connect(url))

        with pytest.raises(psycopg.OperationalError):
            take_all()
        assert "max_connections" in refused(lambda: open_postgresql(url)).hint
        store.commit(epoch, granted_claims(1))  # who has a session goes on
    opened()
    store.commit(epoch, granted_claims(2))


def test_no_more_sessions_are_taken_than_a_controller_may_have(postgresql, database_name, opened):
    store = opened()
    inside, leave = threading.Barrier(SESSIONS_MAX + 1), threading.Event()

    def read():
        with store._database.snapshot() as connection:
            connection.exec_driver_sql("SELECT 1")
            inside.wait(patient(60))
            leave.wait(patient(60))

    with ThreadPoolExecutor(SESSIONS_MAX) as threads:
        reading = [threads.submit(read) for _ in range(SESSIONS_MAX)]
        inside.wait(patient(60))
        try:
            assert len(pids(postgresql, database_name)) == SESSIONS_MAX
            assert "in use" in refused(store.last_seq).detail
        finally:
            leave.set()
        for one in reading:
            with contextlib.suppress(MooringsError):  # those the server ended meanwhile, for standing still
                one.result(patient(60))
    assert store.last_seq() == 0


# ---------------------------------------------------------------------------------------------------------- odd values


@pytest.mark.parametrize("name", ["a\x00b", "a\udce9b"])
def test_a_text_that_cannot_be_kept_is_our_fault_and_not_the_databases(opened, name):
    # The API lets none through; the loop tries the others of the same turn again when it is told "internal".
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    changes = granted_claims(1)
    changes.claims.append((a_claim(2, name=name), NEW))
    refused(lambda: store.commit(epoch, changes), "internal.error")
    assert store.load_unended().claims == ()
    store.commit(epoch, granted_claims(1))


def test_of_controllers_that_start_together_one_makes_the_database(database_url):
    assert_one_makes_the_database(functools.partial(open_postgresql, database_url), n_controllers=6, n_processes=3)


def test_many_commits_use_statements_that_are_already_planned(opened):
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    for number in range(12):
        store.commit(epoch, granted_claims(number))
    with store._database.write() as connection:
        planned = connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements").scalars().all()
    assert [statement for statement in planned if "INSERT INTO claims" in statement]
