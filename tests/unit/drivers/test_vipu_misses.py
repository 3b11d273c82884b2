"""What follows from partitions made elsewhere: it ends, and not by taking out of service what works."""

from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.driver_results import ResultCode
from moorings.core.model.topology import Block
from moorings.drivers.vipu.misplacements import BLOCK_TRIES, PAUSE_S_MAX, REJECTED_FROM, RESTS_FROM, Misplacements

A, B, WHOLE = Block.parse("0-1"), Block.parse("2-3"), Block.parse("0-3")


def test_a_block_that_is_missed_again_is_broken_if_the_vendor_was_told_which():
    for steered, expected in ((True, ResultCode.BROKEN), (False, ResultCode.UNAVAILABLE)):
        misses = Misplacements(chooses_devices=steered)
        misses.record_misplaced("a", A)
        assert misses.verdict(A) is ResultCode.UNAVAILABLE
        misses.record_placed(B)
        misses.record_misplaced("b", A)
        assert misses.verdict(A) is expected
        assert misses.verdict(B) is ResultCode.UNAVAILABLE


def test_one_that_is_looked_at_twice_counts_once():
    misses = Misplacements(chooses_devices=True)
    for _ in range(REJECTED_FROM + 1):
        misses.record_misplaced("a", A)
    assert (misses.consecutive, misses.verdict(A), misses.backoff_s) == (1, ResultCode.UNAVAILABLE, 0.0)


def test_a_block_that_was_hit_after_all_begins_anew():
    misses = Misplacements(chooses_devices=True)
    misses.record_misplaced("a", A)
    misses.record_placed(WHOLE)
    misses.record_misplaced("b", A)
    assert misses.verdict(A) is ResultCode.UNAVAILABLE


def test_a_vendor_that_follows_no_order_breaks_no_more_blocks():
    misses = Misplacements(chooses_devices=True)
    verdicts = []
    for number in range(REJECTED_FROM + 3):
        block = Block.of(range(number * 2, number * 2 + 2))
        misses.record_misplaced(f"p{number}", block)
        verdicts.append(misses.verdict(block))
    assert verdicts == [ResultCode.UNAVAILABLE] * (REJECTED_FROM - 1) + [ResultCode.REJECTED] * 4


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([A, B, WHOLE]), st.booleans()), max_size=60))
def test_nobody_tries_for_ever(story):
    """Whatever happened: after a bounded number of misses in a row every order gets an answer that ends it."""
    misses = Misplacements(chooses_devices=True)
    for number, (name, block, placed) in enumerate(story):
        if placed:
            misses.record_placed(block)
            assert (misses.consecutive, misses.backoff_s) == (0, 0.0)
        else:
            misses.record_misplaced(f"{name}{number}", block)
            assert 0.0 <= misses.backoff_s <= PAUSE_S_MAX
            assert (misses.backoff_s > 0) is (misses.consecutive >= RESTS_FROM)
    for number in range(BLOCK_TRIES):
        misses.record_misplaced(f"last{number}", A)
    assert misses.verdict(A) in (ResultCode.BROKEN, ResultCode.REJECTED)
