"""Blocks and topologies: which sets of devices are valid, in text and out of it."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.core.model.topology import CATALOGUE_BLOCKS_MAX, DEVICES_MAX, AnySubset, Block, Catalogue, PowerOfTwo
from tests.cases import cases

sets = st.sets(st.integers(0, 200), max_size=40)
blocks = st.one_of(
    sets.map(lambda members: Block.of(sorted(members))),
    st.tuples(st.integers(0, 5000), st.integers(0, 300)).map(lambda span: Block.of(range(span[0], span[0] + span[1]))),
)
full_blocks = blocks.filter(len)

POD = PowerOfTwo(domains=4, domain_size=16, max_block=64)
CROSS = AnySubset(n_devices=6, max_block=4)
RACK = Catalogue(18, tuple(Block(range(start, start + n)) for n in (1, 6, 18) for start in range(0, 18, n)))


# -- blocks --------------------------------------------------------------------------------------------------------


@given(full_blocks)
def test_a_block_written_is_the_block_read(block):
    assert Block.parse(str(block)) == block


@given(full_blocks)
def test_a_text_has_no_part_that_could_be_shorter(block):
    spans = [part.split("-") for part in str(block).split(",")]
    ends = [(int(span[0]), int(span[-1])) for span in spans]
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(ends))


@given(st.sets(st.integers(0, 60)), st.randoms())
def test_equal_sets_are_equal_blocks_however_they_were_given(members, chance):
    given_in = sorted(members)
    chance.shuffle(given_in)
    block = Block.of(given_in)
    assert block == Block.of(tuple(sorted(members)))
    assert hash(block) == hash(Block.of(tuple(sorted(members))))
    assert list(block) == sorted(members)


@given(st.integers(0, 100), st.integers(0, 20))
def test_a_range_and_a_list_of_the_same_devices_are_the_same_block(start, size):
    span = range(start, start + size)
    assert Block.of(span) == Block.of(list(span)) == Block.of(tuple(reversed(span)))


@given(blocks, blocks)
def test_blocks_overlap_if_some_device_is_in_both(one, other):
    assert one.overlaps(other) is bool(set(one) & set(other))
    assert other.overlaps(one) is one.overlaps(other)


@given(blocks, st.integers(0, 300))
def test_a_block_knows_its_devices_and_its_address(block, index):
    assert (index in block) is (index in set(block))
    assert len(block) == len(set(block))
    assert block.start == min(block, default=0)


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("0,3,5-7", [0, 3, 5, 6, 7]),
        ("5-7, 0", [0, 5, 6, 7]),
        (" 4 ", [4]),
        ("007", [7]),
    ],
)
def test_a_block_may_be_written_as_people_write_it(text, members):
    assert list(Block.parse(text)) == members


@cases(
    "text",
    [
        *[
            "",
            " ",
            "1 2",
            *["-", ",", "1,", ",1", "1-", "-1", "1--2", "1-2-3", "3-1", "x", "1;2", "0x1", "1.5", "+1", "٣"],
        ],
        *["²", "1\0", "0,0", "0-3,2", "{0-3}", str(DEVICES_MAX), f"0-{DEVICES_MAX}"],
        *["9" * 30, "9" * 5000, "1-" + "9" * 5000],
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_block_is_refused(text):
    with pytest.raises(MooringsError) as caught:
        Block.parse(text)
    assert caught.value.code == "block.invalid"
    assert len(str(caught.value)) < 200


def test_a_short_text_cannot_fill_the_memory():
    # Without a limit on what has been read so far, this is a list of 10 ** 12 numbers.
    with pytest.raises(MooringsError, match="names a device twice"):
        Block.parse(",".join([f"0-{DEVICES_MAX - 1}"] * 1_000_000))


@given(st.text("0123456789-, x", max_size=12))
def test_any_text_is_a_block_or_refused(text):
    with contextlib.suppress(MooringsError):
        block = Block.parse(text)
        assert Block.parse(str(block)) == block


# -- power of two --------------------------------------------------------------------------------------------------


def test_the_sizes_of_a_pod_are_the_powers_up_to_the_largest_block():
    assert POD.sizes == (1, 2, 4, 8, 16, 32, 64)
    assert PowerOfTwo(4, 16, 8).sizes == (1, 2, 4, 8)


@given(st.sampled_from(POD.sizes), st.integers(-70, 200))
def test_a_block_of_a_pod_is_aligned_and_inside(size, start):
    block = Block(range(start, start + size))
    assert POD.is_block(block) is (start >= 0 and start % size == 0 and start + size <= POD.n_devices)


@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 15))
def test_a_small_block_of_a_pod_lies_in_one_domain(level, domain, place):
    size = 1 << level
    start = domain * 16 + place - place % size
    block = Block(range(start, start + size))
    assert POD.is_block(block)
    assert len({POD.domain_of(index) for index in block}) == 1


def test_a_larger_block_of_a_pod_is_whole_domains():
    doubled = Block(range(32, 64))
    assert POD.is_block(doubled)
    assert [sum(POD.domain_of(index) == number for index in doubled) for number in range(4)] == [0, 0, 16, 16]


def test_scattered_devices_are_no_block_of_a_pod():
    assert not POD.is_block(Block.of([0, 2]))
    assert not POD.is_block(Block.of([0, 1, 2]))
    assert not POD.is_block(Block.of([]))


@cases("size", POD.sizes)
def test_a_pod_takes_every_power_of_two_with_a_gcd_in_each_domain(size):
    domains = max(1, size // 16)
    assert POD.ineligible_reason(size, domains) is None
    if domains > 1:
        reason = POD.ineligible_reason(size, domains - 1)
        assert reason is not None
        assert (reason.code, reason.hint) == ("claim.gcds_too_few", f"ask for {domains} GCDs (tasks) or more")


@pytest.mark.parametrize(
    ("size", "hint"), [(3, "2 or 4"), (5, "4 or 8"), (48, "32 or 64"), (100, "64"), (10**9, "64"), (0, "1 or 2")]
)
def test_a_pod_refuses_other_sizes_and_names_the_nearest(size, hint):
    reason = POD.ineligible_reason(size, 1)
    assert reason is not None
    assert (reason.code, reason.hint) == ("claim.size_not_allowed", f"ask for {hint}")


def test_a_pod_refuses_more_than_its_largest_block():
    reason = POD.ineligible_reason(128, 128)
    assert reason is not None
    assert (reason.code, reason.hint) == ("claim.too_large", "ask for 64 or fewer")


@cases(
    ("shape", "problem"),
    [
        ((1, 12, 4), "domain_size = 12 is not a power of two"),
        ((1, 0, 1), "domain_size = 0 is not a power of two"),
        ((1, -8, 1), "domain_size = -8 is not a power of two"),
        ((1, 16, 3), "max_block = 3 is not a power of two"),
        ((1, 16, 32), "more than the pool's 16 devices"),
        ((0, 16, 16), "domains = 0 is out of range"),
        ((-1, 16, 16), "domains = -1 is out of range"),
        ((1 << 20, 2, 2), "out of range"),
        ((1, 1 << 40, 2), "out of range"),
    ],
)
def test_a_pod_that_cannot_be_is_refused(shape, problem):
    with pytest.raises(MooringsError, match=problem) as caught:
        PowerOfTwo(*shape)
    assert caught.value.code == "pools.invalid"


# -- any subset ----------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(-2, 8)))
def test_any_devices_are_a_block_of_a_crossbar_if_they_are_there_and_not_too_many(members):
    block = Block.of(sorted(members))
    assert CROSS.is_block(block) is (1 <= len(members) <= 4 and members <= set(range(6)))


def test_a_crossbar_takes_every_size_up_to_its_largest():
    assert [CROSS.ineligible_reason(size, 1) for size in CROSS.sizes] == [None] * 4
    too_large, none = CROSS.ineligible_reason(5, 1), CROSS.ineligible_reason(0, 1)
    assert too_large is not None
    assert (too_large.code, too_large.hint) == ("claim.too_large", "ask for 4 or fewer")
    assert none is not None
    assert none.code == "claim.size_not_allowed"


@pytest.mark.parametrize("shape", [(0, 1), (-1, 1), (DEVICES_MAX + 1, 1), (6, 0), (6, -1), (6, 7)])
def test_a_crossbar_that_cannot_be_is_refused(shape):
    with pytest.raises(MooringsError) as caught:
        AnySubset(*shape)
    assert caught.value.code == "pools.invalid"


# -- catalogue -----------------------------------------------------------------------------------------------------


def test_the_blocks_of_a_catalogue_are_those_listed():
    assert all(RACK.is_block(block) for block in RACK.blocks)
    assert not RACK.is_block(Block.parse("1-6"))
    assert not RACK.is_block(Block.parse("0,1"))


def test_the_sizes_of_a_catalogue_are_those_of_its_blocks():
    assert (RACK.sizes, RACK.max_block) == ((1, 6, 18), 18)
    assert [RACK.ineligible_reason(size, 1) for size in RACK.sizes] == [None] * 3


@pytest.mark.parametrize(
    ("size", "code", "hint"),
    [
        (2, "claim.size_not_allowed", "1, 6, 18"),
        (0, "claim.size_not_allowed", "1, 6, 18"),
        (19, "claim.too_large", "18"),
    ],
)
def test_a_catalogue_refuses_other_sizes_and_names_its_own(size, code, hint):
    reason = RACK.ineligible_reason(size, 1)
    assert reason is not None
    assert reason.code == code
    assert hint in reason.hint


@pytest.mark.parametrize(
    ("n_devices", "listed", "problem"),
    [
        (0, ["0"], "out of range"),
        (8, [], "0 blocks; 1 to"),
        (8, ["0-3", "0-3"], "listed twice"),
        (8, ["4-8"], "outside the pool's 8 devices"),
        (DEVICES_MAX, map(str, range(CATALOGUE_BLOCKS_MAX + 1)), "blocks; 1 to"),
    ],
)
def test_a_catalogue_that_cannot_be_is_refused(n_devices, listed, problem):
    with pytest.raises(MooringsError, match=problem) as caught:
        Catalogue(n_devices, tuple(Block.parse(text) for text in listed))
    assert caught.value.code == "pools.invalid"


def test_an_empty_block_cannot_be_listed():
    with pytest.raises(MooringsError, match="outside"):
        Catalogue(8, (Block.of([]),))


def test_no_pool_has_devices_before_its_first():
    below = Block(range(-2, 0))
    assert not POD.is_block(below)
    assert not CROSS.is_block(below)
    with pytest.raises(MooringsError, match="outside"):
        Catalogue(8, (below,))
