"""SQLite keeps the contract of every store, and what only a file can suffer: damage, a full disk, a newer release."""

import functools
import os
import shutil
import sqlite3
import stat
import threading
from types import SimpleNamespace

import pytest
from sqlalchemy import event

from moorings.core.model.errors import MooringsError
from moorings.ports.store import Changes, Seq
from moorings.store import sqlite
from moorings.store.sqlite import open_sqlite
from moorings.testing.builders import NEW, NOW, a_claim, an_access_key, an_event, granted_claims
from moorings.testing.store_suite import StoreSuite
from tests.contract.starting import assert_one_makes_the_database
from tests.databases import open_new
from tests.waiting import patient


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "moorings.db"


class TestSqliteStore(StoreSuite):
    @pytest.fixture
    def open_store(self, path):
        return functools.partial(open_sqlite, path)


@pytest.fixture
def opened(path):
    """Opens a store that gives up soon when the file is locked, and closes it at the end."""
    stores = []

    def open_it():
        stores.append(open_new(path, busy_timeout_s=0.05))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_private_from_the_first_moment(path):
    before = os.umask(0)
    try:
        store = open_sqlite(path)  # the real thing: a copied file would be as private as the test makes it
        store.commit(store.begin_epoch("first", NOW), granted_claims(1))
    finally:
        os.umask(before)
    assert mode_of(path.parent) == 0o700
    assert {file.name: mode_of(file) for file in path.parent.iterdir()} == {
        "moorings.db": 0o600,
        "moorings.db-shm": 0o600,
        "moorings.db-wal": 0o600,
    }
    store.close()


def test_files_that_others_could_read_are_made_private(path, opened):
    opened().close()
    path.chmod(0o644)
    opened()
    assert mode_of(path) == 0o600


def test_a_path_may_hold_any_character(tmp_path):
    odd = tmp_path / "a b%20?mode=ro#c" / "ü:&.db"
    store = open_sqlite(odd)
    store.commit(store.begin_epoch("first", NOW), granted_claims(1))
    store.close()
    assert [file.name for file in odd.parent.iterdir()] == ["ü:&.db"]


def test_every_commit_is_synced(opened):
    store = opened()
    with store._database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1


def test_a_new_installation_can_be_named(tmp_path):
    store = open_sqlite(tmp_path / "a.db", installation="i1")
    assert store.installation() == "i1"
    store.close()
    again = open_sqlite(tmp_path / "a.db", installation="i2")
    assert again.installation() == "i1"
    again.close()


def test_installations_differ(tmp_path):
    stores = [open_sqlite(tmp_path / name) for name in ("a.db", "b.db")]
    assert stores[0].installation() != stores[1].installation()
    for store in stores:
        store.close()


# ----------------------------------------------------------------------------------------------- what cannot be opened


def refusal(path):
    with pytest.raises(MooringsError) as caught:
        open_sqlite(path)
    assert caught.value.hint
    assert str(path) in caught.value.detail
    return caught.value


@pytest.mark.parametrize("content", [b"this is a text, not a database\n" * 100, b"SQLite format 3\0" + b"\xff" * 8176])
def test_a_file_that_is_no_database_is_refused_and_kept(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    error = refusal(path)
    assert error.code == "store.corrupt"
    assert not error.retryable
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_kept(path):
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE recipes (id INTEGER PRIMARY KEY)")
    other.close()
    before = path.read_bytes()
    assert refusal(path).code == "store.corrupt"
    assert path.read_bytes() == before


def test_a_newer_releases_database_is_refused_and_kept(path):
    open_sqlite(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    newer.close()
    before = path.read_bytes()
    error = refusal(path)
    assert error.code == "store.too_new"
    assert "9999" in error.detail
    assert path.read_bytes() == before


def test_damage_found_while_working_is_told_as_such(path, opened):
    store = opened()
    store.commit(store.begin_epoch("first", NOW), Changes(claims=[(a_claim(number), NEW) for number in range(500)]))
    store.close()
    with path.open("r+b") as file:
        file.seek(4096)  # everything behind the first page, which holds the schema
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(MooringsError) as caught:
        opened().load_unended()
    assert caught.value.code == "store.corrupt"


def test_a_python_with_an_old_sqlite_is_told(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 26, 0))
    with pytest.raises(MooringsError) as caught:
        open_sqlite(path)
    assert caught.value.code == "store.unavailable"
    assert "3.26.0" in caught.value.detail
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    error = refusal(tmp_path / "file" / "moorings.db")
    assert error.code == "store.unavailable"


def test_a_folder_in_place_of_the_file_is_told(path):
    path.mkdir(parents=True)
    assert refusal(path).code == "store.unavailable"


# ------------------------------------------------------------------------------------------------- what fails and heals


def test_a_full_disk_saves_nothing_and_heals(opened):
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    store.commit(epoch, granted_claims(1))
    before = store.load_unended()
    limit = "PRAGMA max_page_count = 1"  # SQLite takes that as "no larger than now"

    def fill(connection, _record, _proxy):
        connection.execute(limit)

    event.listen(store._database.engine, "checkout", fill)
    huge = Changes(events=[an_event(data='"' + "x" * 1_000_000 + '"')], claims=[(a_claim(2), NEW)])
    for _ in range(2):
        with pytest.raises(MooringsError) as caught:
            store.commit(epoch, huge)
        assert caught.value.code == "store.unavailable"
        assert caught.value.retryable
        assert "disk" in caught.value.hint
        assert store.load_unended() == before

    limit = "PRAGMA max_page_count = 1000000"
    store.commit(epoch, huge)
    assert len(store.load_unended().claims) == 2


def test_a_locked_file_is_unavailable_for_writes_and_heals(path, opened):
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    blocker.execute("UPDATE installation SET holder = 'half a commit'")
    for write in (
        lambda: store.commit(epoch, granted_claims(1)),
        lambda: store.begin_epoch("second", NOW),
        lambda: store.add_access_key(an_access_key(), an_event("key.created")),
        store.ping,
    ):
        with pytest.raises(MooringsError) as caught:
            write()
        assert caught.value.code == "store.unavailable"
        assert caught.value.retryable
        assert "locked" in caught.value.hint
    # Readers do not wait for the writer, and see nothing of what it has not committed.
    assert store.load_unended().seq == store.last_seq() == 1
    assert [row.event.name for row in store.list_events(Seq(0), 10)] == ["controller.led"]
    blocker.execute("ROLLBACK")
    blocker.close()
    store.commit(epoch, granted_claims(1))
    store.ping()


def test_a_file_that_may_not_be_written_is_unavailable(path, opened):
    store = opened()
    with store._database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")  # as root, a file's mode would not stop us
        assert connection.exec_driver_sql("PRAGMA query_only").scalar_one() == 1
    with pytest.raises(MooringsError) as caught:
        store.ping()
    assert caught.value.code == "store.unavailable"
    store.ping()  # the connection was thrown away


def test_a_reader_keeps_its_view_while_others_write(opened):
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    store.commit(epoch, granted_claims(1))
    inside, written = threading.Event(), threading.Event()
    seen = []

    def read():
        with store._database.snapshot() as connection:
            count = "SELECT count(*) FROM claims"
            seen.append(connection.exec_driver_sql(count).scalar_one())
            inside.set()
            assert written.wait(patient(60))
            seen.append(connection.exec_driver_sql(count).scalar_one())

    reader = threading.Thread(target=read)
    reader.start()
    assert inside.wait(patient(60))
    store.commit(epoch, granted_claims(2))
    written.set()
    reader.join()
    assert seen == [1, 1]
    assert len(store.load_unended().claims) == 2


def test_of_controllers_that_start_together_one_makes_the_database(path):
    assert_one_makes_the_database(functools.partial(open_sqlite, path), n_controllers=8, n_processes=4)


# ------------------------------------------------------------------------------------------------- where the file lies


@pytest.mark.parametrize("name", ["moorings.db", "moorings.db-wal"])
@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_was_removed_or_replaced_takes_no_save(path, opened, name, how):
    """What is written to a file without a name is lost with the process."""
    store = opened()
    epoch = store.begin_epoch("first", NOW)
    store.commit(epoch, granted_claims(1))
    store.check_file()
    file = path.with_name(name)
    file.rename(path.with_name("away"))
    if how == "replaced":
        shutil.copy(path.with_name("away"), file)
    for call in (store.check_file, lambda: store.commit(epoch, granted_claims(2)), store.ping):
        with pytest.raises(MooringsError) as caught:
            call()
        assert (caught.value.code, name in caught.value.detail) == ("store.removed", True)
    file.unlink(missing_ok=True)
    path.with_name("away").rename(file)
    store.check_file()
    store.commit(epoch, granted_claims(2))


def test_a_folder_that_cannot_be_looked_into_is_not_taken_for_an_empty_one(path, opened, monkeypatch):
    store = opened()

    def denied(_path, **_more):
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(type(path), "stat", denied)
        store.check_file()


# ------------------------------------------------------------------------------ a reserve for a full disk


@pytest.fixture
def roomy(path, monkeypatch):
    """A store on a disk whose room the test tells: so many bytes are left of so many."""
    room = SimpleNamespace(f_bavail=1 << 20, f_blocks=1 << 24, f_frsize=4096)
    monkeypatch.setattr(sqlite, "_free_space", lambda _folder: room)
    store = open_sqlite(path)
    yield store, room
    store.close()


def pages(store, which):
    with store._database.read() as connection:
        return connection.exec_driver_sql(f"PRAGMA {which}").scalar_one()


def grow_no_more(store):
    def end(connection, _record, _proxy):
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes that as "no larger than now"

    event.listen(store._database.engine, "checkout", end)


def test_what_ends_work_is_saved_in_a_file_that_cannot_grow(roomy, path):
    store, _ = roomy
    epoch = store.begin_epoch("first", NOW)
    store.ensure_reserve()
    assert path.with_name("moorings.db-wal").stat().st_size > sqlite.RESERVE_BYTES
    grow_no_more(store)
    text = '"' + "x" * 1_000_000 + '"'
    for _ in range(7):
        store.commit(epoch, Changes(events=[an_event(data=text)]))
    with pytest.raises(MooringsError):
        store.commit(epoch, Changes(events=[an_event(data=text), an_event(data=text)]))


def test_a_reserve_that_was_used_up_is_filled_again_but_not_with_the_last_of_a_disk(roomy):
    store, room = roomy
    epoch = store.begin_epoch("first", NOW)
    store.ensure_reserve()
    full = pages(store, "freelist_count")
    assert full * sqlite.PAGE_BYTES > sqlite.RESERVE_BYTES
    store.commit(epoch, Changes(events=[an_event(data='"' + "x" * 6_000_000 + '"')]))
    room.f_bavail, plenty = 0, room.f_bavail
    store.ensure_reserve()
    assert pages(store, "freelist_count") < full // 2
    room.f_bavail = plenty
    store.ensure_reserve()
    assert pages(store, "freelist_count") >= full
    before = pages(store, "page_count")
    store.ensure_reserve()
    assert pages(store, "page_count") == before


def test_a_reserve_that_a_kill_left_half_made_is_made_anew(roomy):
    store, _ = roomy
    with store._database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE reserve (filling BLOB)")
    store.ensure_reserve()
    with store._database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema WHERE name = 'reserve'").scalar() == 0


@pytest.mark.parametrize(("left", "of"), [(16384, 1 << 24), (30, 1000)])
def test_new_work_is_taken_on_while_there_is_room(roomy, left, of):
    store, room = roomy
    room.f_bavail, room.f_blocks = left, of
    store.check_space()


def test_nothing_new_is_taken_on_while_the_disk_is_nearly_full(roomy):
    store, room = roomy
    room.f_bavail = 16383
    with pytest.raises(MooringsError, match=r"67\.1 MB left") as caught:
        store.check_space()
    assert (caught.value.code, caught.value.retryable) == ("store.nearly_full", True)
