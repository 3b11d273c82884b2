"""When a job last saved something, from what lies in its checkpoint folder."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from moorings.core.instants import SECOND, Timestamp
from moorings.local.saved import AHEAD_S_MAX, CheckpointScans, last_checkpoint_at
from tests.waiting import patient

NOW = Timestamp(10_000 * SECOND)
LOOKS_MAX = 8


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def put(path: Path, at_s: int) -> None:
    path.write_text("state")
    os.utime(path, (at_s, at_s))


def test_the_newest_entry_tells(tmp_path: Path) -> None:
    put(tmp_path / "step-1", 1_000)
    put(tmp_path / "step-3", 3_000)
    put(tmp_path / "step-2", 2_000)
    assert last_checkpoint_at(str(tmp_path), NOW) == Timestamp(3_000 * SECOND)


def test_nothing_that_the_job_put_there_is_opened_or_followed(tmp_path: Path) -> None:
    inside = tmp_path / "state"
    inside.mkdir()
    put(tmp_path / "elsewhere", 9_000)
    put(inside / "step-1", 1_000)
    (inside / "newest").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(inside / "pipe")
    for name in ("newest", "pipe"):
        os.utime(inside / name, (500, 500), follow_symlinks=False)
    assert last_checkpoint_at(str(inside), NOW) == Timestamp(1_000 * SECOND)


def test_a_folder_that_is_empty_missing_or_none_tells_nothing(tmp_path: Path) -> None:
    put(tmp_path / "file", 1_000)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert [last_checkpoint_at(str(one), NOW) for one in (empty, tmp_path / "missing", tmp_path / "file")] == [None] * 3


def test_what_is_said_to_be_of_the_future_does_not_count(tmp_path: Path) -> None:
    put(tmp_path / "far", 10_000 + AHEAD_S_MAX + 1)
    assert last_checkpoint_at(str(tmp_path), NOW) is None
    put(tmp_path / "step-1", 9_000)
    assert last_checkpoint_at(str(tmp_path), NOW) == Timestamp(9_000 * SECOND)
    put(tmp_path / "near", 10_000 + AHEAD_S_MAX)
    assert last_checkpoint_at(str(tmp_path), NOW) == Timestamp((10_000 + AHEAD_S_MAX) * SECOND)


async def test_a_look_tells_what_lies_there(tmp_path: Path) -> None:
    put(tmp_path / "step-1", 1_000)
    assert await CheckpointScans().saved_at(str(tmp_path), NOW) == Timestamp(1_000 * SECOND)


async def test_looks_that_never_return_hold_up_no_others_and_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "step-1", 1_000)
    answers, threads = threading.Event(), []

    def hangs(folder: str, now: Timestamp) -> Timestamp | None:
        if folder == "dead":
            threads.append(threading.current_thread())
            assert answers.wait(patient(60.0))
        return last_checkpoint_at(folder, now)

    monkeypatch.setattr("moorings.local.saved.last_checkpoint_at", hangs)
    monkeypatch.setattr("moorings.local.saved.SCANS_MAX", LOOKS_MAX)
    looks, folder = CheckpointScans(), str(tmp_path)
    try:
        dead = [asyncio.create_task(looks.saved_at("dead", NOW)) for _ in range(LOOKS_MAX - 1)]
        await asyncio.sleep(0)
        assert await looks.saved_at(folder, NOW) == Timestamp(1_000 * SECOND)
        dead.append(asyncio.create_task(looks.saved_at("dead", NOW)))
        await asyncio.sleep(0)
        dead[0].cancel()
        assert await looks.saved_at(folder, NOW) is None, "a look that nobody waits for has not returned"
        assert all(thread.daemon for thread in threads), "none keeps the process from ending"
    finally:
        answers.set()
    assert await asyncio.gather(*dead[1:]) == [None] * (LOOKS_MAX - 1)
    assert await looks.saved_at(folder, NOW) == Timestamp(1_000 * SECOND)


async def test_a_fault_in_a_look_is_told_and_leaves_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: str, now: Timestamp) -> Timestamp | None:
        raise ValueError("a fault")

    put(tmp_path / "step-1", 1_000)
    monkeypatch.setattr("moorings.local.saved.SCANS_MAX", 1)
    looks = CheckpointScans()
    with monkeypatch.context() as faulty:
        faulty.setattr("moorings.local.saved.last_checkpoint_at", fails)
        with pytest.raises(ValueError, match="a fault"):
            await looks.saved_at(str(tmp_path), NOW)
    assert await looks.saved_at(str(tmp_path), NOW) == Timestamp(1_000 * SECOND)
