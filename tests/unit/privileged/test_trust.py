"""Code and configuration that is not root's alone is found, wherever on the way to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.privileged.trust import tree_fault, trust_fault

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is root's")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Below the root folder alone: /tmp is everybody's."""
    made = Path(f"/moorings-trust-{os.getpid()}")
    made.mkdir(mode=0o755)
    yield made
    shutil.rmtree(made)


def test_what_is_roots_up_to_the_root_folder_is_trusted(folder: Path) -> None:
    (folder / "code").mkdir(mode=0o755)
    (folder / "code" / "a.py").touch(mode=0o644)
    (folder / "link").symlink_to("code/a.py")
    assert trust_fault(folder / "link") == tree_fault(folder) == ""


def test_what_others_may_change_is_not(folder: Path) -> None:
    code = folder / "code"
    code.mkdir(mode=0o755)
    file = code / "a.py"
    file.touch(mode=0o644)
    file.chmod(0o664)
    assert "a.py can be written by others (0664)" in tree_fault(folder)
    file.chmod(0o644)
    os.chown(file, 61_001, 0)
    assert "a.py is user 61001's" in tree_fault(folder)
    os.chown(file, 0, 0)
    code.chmod(0o777)
    assert "code can be written by others" in trust_fault(file)
    code.chmod(0o755)
    os.chown(code, 61_001, 0)
    assert "code is user 61001's" in trust_fault(file)


def test_the_target_of_a_link_counts(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.py").touch(mode=0o644)
    (folder / "link").symlink_to(tmp_path / "a.py")
    assert "can be written by others" in trust_fault(folder / "link"), "/tmp is everybody's"
    (folder / "own").symlink_to("own")
    assert "too many links" in trust_fault(folder / "own")
    os.chown(folder / "link", 61_001, 0, follow_symlinks=False)
    assert "the link" in trust_fault(folder / "link")
