"""``moor backup`` and ``moor restore``: who is asked, what is run, which exit code comes back."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from moorings.app.backup import restore
from moorings.app.backup_create import check_database, create_backup, read_database_state
from moorings.app.folders import DataFolder, SharedFolder
from moorings.app.settings import Settings
from moorings.cli.main import main
from moorings.cli.processes import ControllerProcess
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event
from moorings.store.sqlite import open_sqlite
from moorings.testing.builders import NOW, an_access_key
from tests.databases import open_new


@pytest.fixture
def moor(capfd):
    def call(*arguments):
        code = main(arguments)
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The folder of a controller that has run once and is down."""
    folder = tmp_path / "data"
    DataFolder(folder).close()
    SharedFolder(folder).pepper()
    SharedFolder(folder).pools_file(None)
    open_new(folder / "moorings.db").close()
    monkeypatch.setenv("MOORINGS_DATA", str(folder))
    return folder


def test_there_and_back(moor, data, tmp_path):
    file = tmp_path / "b.tar.gz"
    code, out, _ = moor("backup", str(file))
    assert (code, f"backup written: {file}" in out) == (0, True)
    with tarfile.open(file) as tar:
        assert sorted(tar.getnames()) == ["manifest.json", "moorings.db", "pepper", "pools.toml"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [], "no draft is left"
    pepper = (data / "pepper").read_text()
    (data / "pepper").unlink()
    code, out, _ = moor("restore", str(file), "-y")
    assert (code, "what was there before is in" in out) == (0, True)
    assert (data / "pepper").read_text() == pepper
    assert (data / "pepper").stat().st_mode & 0o777 == 0o600
    code, out, _ = moor("restore", "--finish", "-y")
    assert (code, "are removed from now on" in out) == (0, True)
    assert "no restore into" in moor("restore", "--finish", "-y")[1]


def test_what_a_killed_restore_left_is_removed(moor, data, tmp_path):
    file = tmp_path / "b.tar.gz"
    assert moor("backup", str(file))[0] == 0
    (data / ".restore-killed").mkdir()
    (data / ".restore-killed" / "pepper").write_text("secret")
    assert moor("restore", str(file), "-y")[0] == 0
    assert not list(data.glob(".restore-*"))


@pytest.mark.parametrize(
    "words",
    [
        ("restore",),
        ("restore", "b.tar.gz", "--finish", "-y"),
        ("backup",),
        ("restore", "--external", "--other-installation", "-y"),
    ],
)
def test_wrong_usage(moor, words):
    assert moor(*words)[0] == 2


def test_a_script_must_say_yes(moor, data, tmp_path):
    code, _, err = moor("restore", str(tmp_path / "b.tar.gz"))
    assert (code, "say --yes" in err) == (2, True)


def test_what_fails_has_a_code_a_hint_and_an_exit_code(moor, data, tmp_path):
    code, _, err = moor("restore", str(tmp_path / "none"), "-y")
    assert code == 2
    assert f"error: there is no {tmp_path / 'none'} (backup.invalid)" in err
    assert "hint: " in err
    (data / "moorings.db").unlink()
    code, _, err = moor("backup", str(tmp_path / "b.tar.gz"))
    assert (code, "there is no" in err) == (2, True)


def test_a_file_that_cannot_be_written_is_told(moor, data, tmp_path):
    code, _, err = moor("backup", str(tmp_path / "none" / "b.tar.gz"))
    assert (code, "cannot be written" in err) == (2, True)
    assert not (tmp_path / "none").exists()


def test_postgresql_is_told_its_own_way(moor, data, tmp_path, monkeypatch):
    monkeypatch.setenv("MOORINGS_DATABASE", "postgresql://ann:hunter2@db/moorings")
    code, _, err = moor("backup", str(tmp_path / "b.tar.gz"))
    assert code == 2
    assert "pg_dump" in err
    assert "hunter2" not in err


# -- what replaces what --------------------------------------------------------------------------------------------


def raise_numbers(data, times=5):
    """As many leaders, and an access key that is revoked: what a restored database must not forget."""
    store = open_sqlite(data / "moorings.db")
    for _ in range(times):
        store.begin_epoch("x", NOW)
    store.revoke_access_key("k1", Event(name="key.revoked", at=NOW))
    store.close()
    return read_database_state(data / "moorings.db")


def add_key(data):
    store = open_sqlite(data / "moorings.db")
    store.add_access_key(an_access_key(id="k1", revoked_at=None), Event(name="key.created", at=NOW))
    store.close()


def is_revoked(data):
    store = open_sqlite(data / "moorings.db")
    try:
        key = store.access_key("k1")
        assert key is not None
        return key.revoked_at is not None
    finally:
        store.close()


class KilledError(BaseException):
    """As by SIGKILL: nothing catches it."""


@pytest.mark.parametrize("renames", range(7))
def test_a_restore_killed_at_any_rename_and_done_again_forgets_nothing(moor, data, tmp_path, monkeypatch, renames):
    add_key(data)
    file = tmp_path / "b.tar.gz"
    assert moor("backup", str(file))[0] == 0
    before = raise_numbers(data)
    left, rename = [renames], Path.rename

    def dying(path, to):
        if not left[0]:
            raise KilledError
        left[0] -= 1
        return rename(path, to)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", dying)
        try:
            restore(data, file)
        except KilledError:
            assert (data / "restoring.json").exists()
    told = restore(data, file)
    assert is_revoked(data)
    assert not any("valid again" in line for line in told)
    now = read_database_state(data / "moorings.db")
    assert (now.seq > before.seq + 1000, now.epoch > before.epoch) == (True, True)
    assert now.seq < 1_000_000, "it was known how far numbers had come"
    assert not (data / "restoring.json").exists()


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_where_the_old_records_are_gone_numbers_leap_and_keys_are_told_of(moor, data, tmp_path, how):
    add_key(data)
    file = tmp_path / "b.tar.gz"
    assert moor("backup", str(file))[0] == 0
    before = raise_numbers(data)
    if how == "missing":
        (data / "moorings.db").unlink()
    else:
        (data / "moorings.db").write_bytes(b"no database" * 500)
    code, out, _ = moor("restore", str(file), "-y")
    assert (code, "are as they were then: moor get keys" in out) == (0, True)
    now = read_database_state(data / "moorings.db")
    assert (now.seq > before.seq + 10**6, now.epoch > before.epoch + 10**6) == (True, True)


def test_into_an_empty_folder_nothing_was_there_before(moor, data, tmp_path):
    file = tmp_path / "b.tar.gz"
    assert moor("backup", str(file))[0] == 0
    code, out, _ = moor("restore", str(file), "-y", "--data", str(tmp_path / "new"))
    assert (code, "what was there before" in out) == (0, False)


def test_another_installation_s_backup_is_refused_unless_it_is_meant(moor, data, tmp_path):
    other = tmp_path / "other"
    DataFolder(other).close()
    open_sqlite(other / "moorings.db", installation="other").close()
    file = tmp_path / "b.tar.gz"
    assert moor("backup", str(file), "--data", str(other))[0] == 0
    mine = read_database_state(data / "moorings.db")
    code, _, err = moor("restore", str(file), "-y")
    assert (code, "is of installation other" in err, "--other-installation" in err) == (2, True, True)
    assert read_database_state(data / "moorings.db") == mine
    code, out, _ = moor("restore", str(file), "-y", "--other-installation")
    assert (code, f"partitions of installation {mine.installation} are strangers'" in out) == (0, True)
    assert read_database_state(data / "moorings.db").installation == "other"


def test_a_database_restored_by_its_own_tools_is_made_ready(moor, data):
    before = read_database_state(data / "moorings.db")
    code, out, _ = moor("restore", "--external", "-y")
    assert (code, f"ready: installation {before.installation}" in out) == (0, True)
    assert (data / "restored.json").exists(), "what was made since is left alone"
    now = read_database_state(data / "moorings.db")
    assert (now.seq > before.seq + 10**6, now.epoch > before.epoch + 10**6) == (True, True)


def test_not_under_a_controller_that_runs(moor, data):
    folder = DataFolder(data)
    try:
        code, _, err = moor("restore", "--external", "-y")
    finally:
        folder.close()
    assert (code, "another controller uses" in err) == (5, True)


# -- a database that is lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["pepper", "high-water", "runs"])
def test_an_empty_database_in_a_used_folder_needs_a_word(moor, tmp_path, left):
    folder = tmp_path / "used"
    DataFolder(folder).close()
    check_database(Settings(data=folder))
    (folder / "pools.toml").touch()
    (folder / "runs").mkdir()
    check_database(Settings(data=folder))
    if left == "runs":
        (folder / "runs" / "run-a").mkdir()
    else:
        (folder / left).write_text("x")
    (folder / "moorings.db").touch()
    with pytest.raises(MooringsError) as caught:
        check_database(Settings(data=folder))
    assert (caught.value.code, "restore --new" in caught.value.hint) == ("store.missing", True)
    code, out, err = moor("restore", "--new", "-y", "--data", str(folder))
    assert (code, err) == (0, "")
    assert "strangers'" in out
    check_database(Settings(data=folder))
    assert not (folder / "high-water").exists(), "it is another installation's"
    code, _, err = moor("restore", "--new", "-y", "--data", str(folder))
    assert (code, "moorings.db is there" in err) == (2, True), "never over records"


# -- what is in the file -------------------------------------------------------------------------------------------


def test_a_damaged_database_is_told_as_damaged(moor, data, tmp_path):
    (data / "moorings.db").write_bytes(b"no database" * 500)
    code, _, err = moor("backup", str(tmp_path / "b.tar.gz"))
    assert (code != 0, "(store.corrupt)" in err, "leave it where it is" in err) == (True, True, True)


def test_a_pools_file_that_cannot_be_read_fails_the_backup(moor, data, tmp_path, monkeypatch):
    monkeypatch.setattr("moorings.app.effective_settings.find_running", lambda _: ControllerProcess(1, 1, "", ""))
    monkeypatch.setattr(
        "moorings.app.effective_settings._read_start_arguments", lambda _: (["--pools", "no.toml"], {}, tmp_path)
    )
    with pytest.raises(MooringsError, match=r"no\.toml, the pools file") as raised:
        create_backup(data, tmp_path / "b.tar.gz")
    assert raised.value.code == "backup.invalid"
    assert not (tmp_path / "b.tar.gz").exists()
    (tmp_path / "no.toml").write_text("# mine\n")
    create_backup(data, tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        pools = tar.extractfile("pools.toml")
        assert pools is not None
        assert pools.read() == b"# mine\n", "relative to the controller's folder"


def with_manifest(file, to, change):
    """The backup with a manifest that somebody has changed."""
    with tarfile.open(file) as tar, tarfile.open(to, "w:gz") as out:
        for member in tar.getmembers():
            opened = tar.extractfile(member)
            assert opened is not None
            content = opened.read()
            if member.name == "manifest.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
                member.size = len(content)
            out.addfile(member, io.BytesIO(content))
    return to


def test_what_does_not_fit_on_the_disk_is_not_written_out(moor, data, tmp_path):
    file = tmp_path / "b.tar.gz"
    assert moor("backup", str(file))[0] == 0
    bomb = with_manifest(file, tmp_path / "bomb", lambda told: told["files"]["pepper"].update(bytes=1 << 60))
    code, _, err = moor("restore", str(bomb), "-y")
    assert (code, "do not fit on the disk" in err) == (2, True)
    more = with_manifest(file, tmp_path / "more", lambda told: told["files"]["moorings.db"].update(bytes=1))
    code, _, err = moor("restore", str(more), "-y")
    assert (code, "is not what the manifest says" in err) == (2, True)


def test_control_characters_of_a_manifest_reach_no_terminal(moor, data, tmp_path):
    file = tmp_path / "b.tar.gz"
    assert moor("backup", str(file))[0] == 0
    evil = with_manifest(file, tmp_path / "evil", lambda told: told.update(at="\x1b[2J", poolsFile="a\nb"))
    code, out, _ = moor("restore", str(evil), "-y")
    assert (code, "\x1b" in out, "as of \\x1b[2J" in out, "a\\nb" in out) == (0, False, True, True)


def test_a_file_of_somebody_else_is_refused(moor, data, tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    file = tmp_path / "b.tar.gz"
    assert moor("backup", str(file))[0] == 0
    os.chown(file, 12345, 12345)
    code, _, err = moor("restore", str(file), "-y")
    assert (code, "belongs to another user" in err) == (2, True)
