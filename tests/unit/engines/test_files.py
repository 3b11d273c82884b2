"""Files are complete or absent, and locks end with their process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from moorings.files import atomic_file, hold_lock, lock_file, write_atomically


def names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def test_files_are_replaced_whole_and_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_atomically(path, b"one")
    with path.open("rb") as before:
        write_atomically(path, b"two")
        assert before.read() == b"one"
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["record"]


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_atomically(path, b"old", mode=0o640)
    with pytest.raises(ZeroDivisionError), atomic_file(path) as file:
        file.write(b"half" + bytes(1 // 0))
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"old", 0o640)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "folder", b"new")
    assert sorted(names(tmp_path)) == ["folder", "record"]


def test_a_file_is_not_replaced_unless_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_atomically(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_atomically(path, b"second", replace=False)
    assert (path.read_bytes(), names(tmp_path)) == (b"first", ["record"])


def test_links_are_replaced_and_not_followed(tmp_path: Path) -> None:
    path, draft, target = tmp_path / "record", tmp_path / "draft", tmp_path / "target"
    target.write_text("theirs")
    for link in (path, draft):
        link.symlink_to(target)
    write_atomically(path, b"ours", temporary=draft)
    assert (path.read_bytes(), path.is_symlink(), target.read_text()) == (b"ours", False, "theirs")


def test_a_lock_is_exclusive_or_shared_and_ends_with_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(FileNotFoundError):
        lock_file(path, create=False)
    shared = [lock_file(path, shared=True) for _ in range(2)]
    assert None not in shared
    assert lock_file(path, 0.02) is None
    for descriptor in shared:
        os.close(descriptor or 0)
    with hold_lock(path) as ours:
        assert ours
        with hold_lock(path) as again:
            assert not again
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
