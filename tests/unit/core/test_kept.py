"""Backfill: who may use a reserved block until it is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.core.model.claims import Claim
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import add_seconds
from moorings.core.model.topology import Block
from tests.unit.core.worlds import POD, World, drafted

NO_PAUSE = Policy(making_s=0.0)


def job(world: World, size: int, limit_s: float | None, owner: str = "local/j") -> Claim:
    return world.pending(size, owner=owner, time_limit_s=limit_s)


@pytest.mark.parametrize(
    ("size", "limit_s", "owner", "inside"),
    [
        (4, 60.0, "local/j", [Block(range(4))]),
        (4, 61.0, "local/j", []),  # it would not end before the block is needed
        (4, None, "local/j", []),
        (4, 60.0, "user/ann", []),  # its user ends it, not its time limit
        (16, 60.0, "local/j", []),  # larger than the reserved block
    ],
)
def test_only_a_claim_that_ends_in_time_uses_a_reserved_block(
    size: int, limit_s: float | None, owner: str, inside: list[Block]
) -> None:
    world = World(POD, policy=NO_PAUSE)
    with drafted(world) as draft:
        state = draft.snapshot.pools[POD.name]
        draft.reserve(world.pending(8), state, Block(range(8)), add_seconds(world.now, 60), None)
        assert [block for _, block in draft.windows.find_inside(job(world, size, limit_s, owner), POD.name)] == inside
        assert draft.windows.open_s(8, [state]) == [60.0]
        assert draft.windows.open_s(16, [state]) == []


def test_a_shorter_time_limit_is_named_only_if_it_opens_a_window() -> None:
    world = World(POD, policy=NO_PAUSE)
    with drafted(world) as draft:
        state = draft.snapshot.pools[POD.name]
        assert draft.windows.next_shorter_s(job(world, 4, None), [state]) == 0.0
        for at, after_s in ((0, 60), (8, 90)):
            draft.reserve(world.pending(8), state, Block(range(at, at + 8)), add_seconds(world.now, after_s), None)
        assert [draft.windows.next_shorter_s(job(world, 4, s), [state]) for s in (None, 90.0, 60.0)] == [90.0, 60.0, 0]
        for window, block in list(draft.windows.find_inside(job(world, 8, 60.0), POD.name)):
            draft.grant(job(world, 8, 60.0), state, block, inside=window)
        assert draft.windows.next_shorter_s(job(world, 4, None), [state]) == 0.0, "both blocks are in use"


def test_a_number_of_devices_is_kept_and_only_what_is_left_over_is_used() -> None:
    world = World(POD, policy=replace(NO_PAUSE, backfill=True))
    with drafted(world) as draft:
        state = draft.snapshot.pools[POD.name]
        draft.reserve(world.pending(8), state, Block(()), add_seconds(world.now, 60), 4)
        windows, long = draft.windows, job(world, 4, None)
        assert windows.fits_counts(long, POD.name, take=False)
        assert windows.fits_counts(long, POD.name, take=True)
        assert not windows.fits_counts(long, POD.name, take=True), "it has no more than four left over"
        assert windows.fits_counts(job(world, 8, 60.0), POD.name, take=True), "it ends before"
