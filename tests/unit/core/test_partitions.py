"""Partitions: what a move changes, what a partition is called, and how it is cut into GCDs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.claims import NAME_CHARS_MAX, check_name
from moorings.core.model.partitions import PartitionEvent, PartitionState, gcd_blocks, step, unique_partition_name
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import Block
from moorings.testing.builders import NOW, a_partition

LATER = Timestamp(NOW + SECOND)

names = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,34}[a-z0-9])?", fullmatch=True)


def test_a_move_counts_as_a_version_and_keeps_when_and_why():
    moved = step(a_partition(version=3), PartitionEvent.BREAK, LATER, "a link is down")
    assert (moved.state, moved.version, moved.since, moved.reason) == (PartitionState.ERROR, 4, LATER, "a link is down")


def test_a_reason_does_not_outlive_the_next_move():
    assert step(a_partition(reason="slow"), PartitionEvent.ACTIVE, LATER).reason == ""


def test_its_size_is_that_of_its_block():
    assert a_partition(block=Block.parse("0,3,5-7")).size == 5


def test_the_first_partition_of_a_claim_has_its_name():
    assert unique_partition_name("train", 0, ()) == "train"


def test_later_attempts_are_numbered_so_that_a_vendor_never_sees_a_name_twice():
    assert unique_partition_name("train", 2, ()) == "train-2"
    assert unique_partition_name("train", 0, {"train", "train-1"}) == "train-2"


@given(names, st.integers(0, 10**6), st.sets(st.integers(0, 5)))
def test_a_name_is_within_the_vendors_limit_and_not_taken(name, attempt, taken_after):
    taken = {unique_partition_name(name, attempt + more, ()) for more in taken_after}
    made = unique_partition_name(name, attempt, taken)
    assert made not in taken
    assert len(made) <= NAME_CHARS_MAX
    assert check_name(made)


@pytest.mark.parametrize(
    ("block", "gcds", "shares"),
    [
        ("0-3", 1, ((0, 1, 2, 3),)),
        ("0-3", 2, ((0, 1), (2, 3))),
        ("8-11", 4, ((8,), (9,), (10,), (11,))),
        ("1,5,9,13", 2, ((1, 5), (9, 13))),
    ],
)
def test_gcds_are_neighbouring_shares_in_order(block, gcds, shares):
    assert gcd_blocks(Block.parse(block), gcds) == shares


@given(st.integers(0, 1000), st.integers(1, 16), st.integers(1, 16))
def test_gcds_share_a_block_equally_and_leave_nothing(start, gcds, share):
    block = Block.of(range(start, start + gcds * share))
    shares = gcd_blocks(block, gcds)
    assert [len(part) for part in shares] == [share] * gcds
    assert [index for part in shares for index in part] == list(block)


def test_the_longest_name_makes_room_for_the_number():
    assert unique_partition_name("x" * 36, 12, ()) == "x" * 33 + "-12"
    assert unique_partition_name("x" * 36, 0, {"x" * 36}) == "x" * 34 + "-1"
