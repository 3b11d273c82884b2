"""``moor backup`` and ``moor restore``: who is asked, what is run, which exit code comes back."""

import tarfile

import pytest

from moorings.app.folders import DataFolder, SharedFolder
from moorings.cli.main import main
from moorings.store.sqlite import open_sqlite


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
    open_sqlite(folder / "moorings.db").close()
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


@pytest.mark.parametrize("words", [("restore",), ("restore", "b.tar.gz", "--finish", "-y"), ("backup",)])
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
