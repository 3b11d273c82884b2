"""The data folder: private, one controller at a time, and a file is there whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from moorings import __version__
from moorings.app.folders import PEPPER_BYTES, DataFolder, SharedFolder, create_private_file, replace_private_file
from moorings.core.model.errors import MooringsError
from moorings.core.model.pools import parse_pools


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "moorings"


@pytest.fixture
def folder(path: Path):
    folder = DataFolder(path)
    yield folder
    folder.close()


@pytest.fixture
def open_umask():
    """As careless a umask as there is."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(path: Path) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        DataFolder(path)
    return caught.value


# -- modes ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("open_umask")
def test_everything_is_private_whatever_the_umask(folder, path):
    SharedFolder(path).pepper()
    SharedFolder(path).pools_file(None)
    folder.write_address("http://127.0.0.1:8090")
    assert mode(path) == 0o700
    assert {file.name: mode(file) for file in path.iterdir()} == {
        "controller.lock": 0o600,
        "controller.json": 0o600,
        "pepper": 0o600,
        "pools.toml": 0o600,
    }


def test_a_folder_that_others_could_enter_is_closed(path):
    path.mkdir(parents=True)
    path.chmod(0o755)
    DataFolder(path).close()
    assert mode(path) == 0o700


def test_a_folder_of_somebody_else_is_not_used(path, monkeypatch):
    path.mkdir(parents=True)
    monkeypatch.setattr("os.getuid", lambda: path.stat().st_uid + 1)
    error = refused(path)
    assert error.code == "config.invalid"
    assert "belongs to another user" in str(error)
    assert error.hint


@pytest.mark.parametrize("below", [False, True])
def test_a_file_in_its_place_is_told(tmp_path, below):
    (tmp_path / "file").touch()
    error = refused(tmp_path / "file" / "data" if below else tmp_path / "file")
    assert error.code == "config.invalid"
    assert str(tmp_path / "file") in str(error)


# -- the lock ------------------------------------------------------------------------------------------------------


def test_a_folder_is_used_by_one_controller_at_a_time(folder, path):
    error = refused(path)
    assert error.code == "controller.running"
    assert "moor down" in error.hint


def test_who_uses_it_is_told(folder, path):
    folder.write_address("http://127.0.0.1:8090")
    assert f"(process {os.getpid()}, http://127.0.0.1:8090)" in str(refused(path))


@pytest.mark.parametrize("told", ["", "{", "[]", "{}", '{"pid": "x", "url": ""}', "\xff"])
def test_an_announcement_that_cannot_be_read_is_left_out(folder, path, told):
    (path / "controller.json").write_bytes(told.encode("latin-1"))
    assert str(refused(path)) == f"another controller uses {path}"


def test_a_folder_that_was_let_go_can_be_used_again(path):
    for _ in range(3):
        DataFolder(path).close()


def test_a_refused_controller_does_not_take_the_lock_from_the_first(folder, path):
    refused(path)
    assert refused(path).code == "controller.running"


def test_a_killed_controller_leaves_no_lock_behind(path):
    code = "import sys; from pathlib import Path; from moorings.app.folders import DataFolder\n"
    code += (
        "folder = DataFolder(Path(sys.argv[1])); folder.write_address('http://x'); print('locked', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"locked\n"
        assert f"process {first.pid}" in str(refused(path))
        first.kill()
    DataFolder(path).close()


# -- what stands in it ---------------------------------------------------------------------------------------------


def test_drafts_of_a_killed_controller_are_removed(path):
    path.mkdir(mode=0o700, parents=True)
    drafts = [path / f".{name}.4711.tmp" for name in ("pepper", "controller.json", "pools.toml")]
    others = [path / ".notes.tmp", path / ".pepper.old.tmp", path / "pepper.4711.tmp"]
    for file in (*drafts, *others):
        file.touch()
    DataFolder(path).close()
    assert [file for file in drafts if file.exists()] == []
    assert all(file.exists() for file in others), "what is not ours stays"


def test_an_old_draft_goes_when_its_file_is_written_again(tmp_path):
    """Also where no lock says that nobody else is writing; it may hold a secret."""
    old, fresh = (tmp_path / f".credentials.toml.{pid}.tmp" for pid in (4711, 4712))
    old.touch()
    fresh.touch()
    os.utime(old, (0, 0))
    replace_private_file(tmp_path / "credentials.toml", "new")
    assert (old.exists(), fresh.exists()) == (False, True)


def test_the_pepper_is_made_once(folder, path):
    pepper = SharedFolder(path).pepper()
    assert len(pepper) == PEPPER_BYTES
    assert SharedFolder(path).pepper() == pepper
    assert pepper.hex().encode() in (path / "pepper").read_bytes()


def test_two_installations_have_two_peppers(path, tmp_path):
    assert SharedFolder(tmp_path / "other").pepper() != SharedFolder(path).pepper()


def test_of_two_that_write_a_file_once_the_first_wins(path):
    path.mkdir(parents=True)
    create_private_file(path / "pepper", "first")
    create_private_file(path / "pepper", "second")
    assert (path / "pepper").read_text() == "first"
    assert [file.name for file in path.iterdir()] == ["pepper"]


# -- a folder and its database -------------------------------------------------------------------------------------


def test_a_new_folder_is_taken_into_use_by_a_new_installation(path):
    SharedFolder(path).check_installation("abc", led=False, local_runs=True)
    SharedFolder(path).check_installation("abc", led=True, local_runs=True)
    assert mode(path / "installation") == 0o600


@pytest.mark.parametrize(("led", "local_runs"), [(False, True), (True, True), (True, False)])
def test_another_installations_folder_is_refused(path, led, local_runs):
    SharedFolder(path).check_installation("abc", led=False, local_runs=True)
    with pytest.raises(MooringsError, match="belongs to installation 'abc'") as caught:
        SharedFolder(path).check_installation("xyz", led=led, local_runs=local_runs)
    assert caught.value.code == "config.invalid"


def test_a_new_folder_under_an_old_database_would_take_its_runs_for_dead(path):
    with pytest.raises(MooringsError, match="used another shared folder") as caught:
        SharedFolder(path).check_installation("abc", led=True, local_runs=True)
    assert "local_runs = false" in caught.value.hint
    SharedFolder(path).check_installation("abc", led=True, local_runs=False)


@pytest.mark.parametrize("damaged", [b"", b"\n", b"ab", b"00" * 31, b"xy" * 32, b"\xff" * 64])
def test_a_damaged_pepper_is_told_and_not_used(folder, path, damaged):
    (path / "pepper").write_bytes(damaged)
    with pytest.raises(MooringsError, match="pepper") as caught:
        SharedFolder(path).pepper()
    assert caught.value.code == "config.invalid"
    assert "every access key" in caught.value.hint
    assert (path / "pepper").read_bytes() == damaged


def test_the_first_start_has_a_pool(folder, path):
    file = SharedFolder(path).pools_file(None)
    assert file == path / "pools.toml"
    (entry,) = parse_pools(file.read_text())
    assert entry.pool.name == "pod64"


def test_an_admins_own_pools_stay_as_they_are(folder, path):
    (path / "pools.toml").write_text("# mine")
    assert SharedFolder(path).pools_file(None).read_text() == "# mine"


def test_a_chosen_pools_file_is_not_made(folder, path, tmp_path):
    chosen = tmp_path / "chosen.toml"
    assert SharedFolder(path).pools_file(chosen) == chosen
    assert not chosen.exists()
    assert not (path / "pools.toml").exists()


def test_the_announcement_tells_where_it_listens_and_goes_with_it(path):
    folder = DataFolder(path)
    folder.write_address("http://127.0.0.1:8090")
    told = json.loads((path / "controller.json").read_text())
    stat_line = Path("/proc/self/stat").read_text()
    assert told == {
        "pid": os.getpid(),
        "startTicks": int(stat_line.rpartition(")")[2].split()[19]),
        "url": "http://127.0.0.1:8090",
        "version": __version__,
    }
    folder.close()
    assert not (path / "controller.json").exists()


def test_a_controller_that_never_announced_itself_can_close(path):
    DataFolder(path).close()
    assert [file.name for file in path.iterdir()] == ["controller.lock"]


# -- private files -------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole_and_stays_private(tmp_path):
    file = tmp_path / "secret"
    file.write_text("old and long")
    file.chmod(0o644)
    replace_private_file(file, "new")
    assert (file.read_text(), mode(file)) == ("new", 0o600)
    assert list(tmp_path.iterdir()) == [file]
