"""The fence: no start under an epoch that has passed, and no new leader in the middle of a start."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.engines.fence import FileFence
from moorings.ports.store import Epoch


@pytest.fixture
def fence(tmp_path: Path) -> FileFence:
    return FileFence(tmp_path)


def stopped(fence: FileFence, epoch: int) -> bool:
    try:
        with fence.hold_epoch(Epoch(epoch), 0):
            return False
    except MooringsError as error:
        return (error.code, error.retryable) == ("engine.unavailable", True)


def test_without_a_leader_everybody_passes(fence: FileFence) -> None:
    assert not stopped(fence, 0)


def test_earlier_leaders_are_stopped_and_later_ones_pass(fence: FileFence) -> None:
    fence.raise_epoch(Epoch(5), 0)
    assert [stopped(fence, epoch) for epoch in (4, 5, 6)] == [True, False, False]


def test_it_is_never_lowered(fence: FileFence, tmp_path: Path) -> None:
    fence.raise_epoch(Epoch(12), 0)
    FileFence(tmp_path).raise_epoch(Epoch(3), 0)
    assert stopped(fence, 11)


def test_several_starts_go_on_at_once_and_nobody_begins_to_lead_meanwhile(fence: FileFence, tmp_path: Path) -> None:
    with fence.hold_epoch(Epoch(1), 0), FileFence(tmp_path).hold_epoch(Epoch(1), 0):
        with pytest.raises(MooringsError, match="in the middle of starting a run") as caught:
            FileFence(tmp_path).raise_epoch(Epoch(2), 0)
        assert caught.value.hint
    fence.raise_epoch(Epoch(2), 0)
    assert stopped(fence, 1)


@pytest.mark.parametrize("left", [b"", b"7", b"x" * 19])
def test_what_a_crash_or_a_stranger_left_in_the_file_lets_the_newest_leader_in(
    fence: FileFence, tmp_path: Path, left: bytes
) -> None:
    (tmp_path / ".epoch").write_bytes(left)
    fence.raise_epoch(Epoch(9), 0)
    assert [stopped(fence, 8), stopped(fence, 9)] == [True, False]


def test_the_file_is_its_owners(fence: FileFence, tmp_path: Path) -> None:
    fence.raise_epoch(Epoch(1), 0)
    assert stat.S_IMODE((tmp_path / ".epoch").stat().st_mode) == 0o600
