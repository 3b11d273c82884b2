"""When a job last saved something, from what lies in its checkpoint folder."""

from __future__ import annotations

import os
from pathlib import Path

from moorings.core.instants import SECOND, Instant
from moorings.local.saved import saved_at


def put(path: Path, at_s: int) -> None:
    path.write_text("state")
    os.utime(path, (at_s, at_s))


def test_the_newest_entry_tells(tmp_path: Path) -> None:
    put(tmp_path / "step-1", 1_000)
    put(tmp_path / "step-3", 3_000)
    put(tmp_path / "step-2", 2_000)
    assert saved_at(str(tmp_path)) == Instant(3_000 * SECOND)


def test_nothing_that_the_job_put_there_is_opened_or_followed(tmp_path: Path) -> None:
    inside = tmp_path / "state"
    inside.mkdir()
    put(tmp_path / "elsewhere", 9_000)
    put(inside / "step-1", 1_000)
    (inside / "newest").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(inside / "pipe")
    for name in ("newest", "pipe"):
        os.utime(inside / name, (500, 500), follow_symlinks=False)
    assert saved_at(str(inside)) == Instant(1_000 * SECOND)


def test_a_folder_that_is_empty_missing_or_none_tells_nothing(tmp_path: Path) -> None:
    put(tmp_path / "file", 1_000)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert [saved_at(str(one)) for one in (empty, tmp_path / "missing", tmp_path / "file")] == [None] * 3
