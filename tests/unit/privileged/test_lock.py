"""One root daemon at a time, also after one that was killed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from moorings.privileged import __main__ as program


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)


def test_a_lock_that_a_child_of_a_killed_daemon_still_has_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, lock = opened(tmp_path / "lock"), opened(tmp_path / "lock")
    fcntl.flock(held, fcntl.LOCK_EX)
    monkeypatch.setattr("time.sleep", lambda _seconds: os.close(held))  # the child ends
    assert program._takes(lock)
    os.close(lock)


def test_a_lock_that_a_daemon_has_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, lock = opened(tmp_path / "lock"), opened(tmp_path / "lock")
    fcntl.flock(held, fcntl.LOCK_EX)
    monkeypatch.setattr(program, "LOCK_S", 0.0)
    assert not program._takes(lock)
    os.close(lock)
    os.close(held)
