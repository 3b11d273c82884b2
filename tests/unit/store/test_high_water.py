"""The high-water mark: what is on the disk only rises, and a partition is ordered only once it is there."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.ports.store import Epoch, LogPosition, Seq
from moorings.store.log_position import LOG_POSITION_FILE, LogPositionFile


def at(seq: int, epoch: int = 1) -> LogPosition:
    return LogPosition(Seq(seq), Epoch(epoch))


def test_it_only_rises_whoever_writes(tmp_path: Path) -> None:
    one, other = LogPositionFile(tmp_path, "here"), LogPositionFile(tmp_path, "here")
    assert one.read() is None
    one.record_blocking(at(5, 2))
    other.record_blocking(at(3, 3))  # of another leader, with a database that had come less far
    one.record_blocking(at(4, 1))
    assert LogPositionFile(tmp_path, "here").read() == at(5, 3)


def test_another_installation_knows_nothing_of_it(tmp_path: Path) -> None:
    LogPositionFile(tmp_path, "here").record_blocking(at(5))
    assert LogPositionFile(tmp_path, "there").read() is None
    LogPositionFile(tmp_path, "there").record_blocking(at(2))
    assert LogPositionFile(tmp_path, "there").read() == at(2)


@pytest.mark.parametrize(
    "text", ["", "here", "here 5", "here x 1", "here 5 1 7", "here -5 1", "\0" * 256, "here \uff15 1"]
)
def test_what_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / LOG_POSITION_FILE).write_text(text)
    mark = LogPositionFile(tmp_path, "here")
    assert mark.read() is None
    mark.record_blocking(at(7))
    assert LogPositionFile(tmp_path, "here").read() == at(7)


async def test_those_who_wait_together_share_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fdatasync = os.fdatasync

    def sync(file: int) -> None:
        synced.append(file)
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", sync)
    mark = LogPositionFile(tmp_path, "here")
    await asyncio.gather(*(mark.record(at(9)) for _ in range(50)))
    await mark.record(at(8))
    assert len(synced) == 1
    assert (tmp_path / LOG_POSITION_FILE).stat().st_mode & 0o777 == 0o600


async def test_who_came_first_goes_on_first(tmp_path: Path) -> None:
    """A vendor that chooses the devices itself takes partitions as they come: other orders are other devices."""
    mark = LogPositionFile(tmp_path, "here")
    went: list[int] = []

    async def order(number: int) -> None:
        await mark.record(at(9 + number % 3))
        went.append(number)

    await asyncio.gather(*map(order, range(60)))
    assert went == list(range(60))


async def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = LogPositionFile(tmp_path, "here")
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(MooringsError) as caught:
            await mark.record(at(1))
    assert (caught.value.code, caught.value.retryable, "No space left" in caught.value.detail) == (
        "store.unavailable",
        True,
        True,
    )
    await mark.record(at(1))
    assert LogPositionFile(tmp_path, "here").read() == at(1)
