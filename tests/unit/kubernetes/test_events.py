"""Events: what is told is bounded, counted and never in the way."""

from __future__ import annotations

from moorings.core.instants import Instant
from moorings.kubernetes.events import Spam

NOW = Instant(1_000_000_000)
SECOND = 1_000_000


def test_an_object_may_tell_25_things_at_once_and_then_one_in_five_minutes():
    spam = Spam()
    assert [spam.lets("a", NOW) for _ in range(30)] == [True] * 25 + [False] * 5
    assert spam.lets("b", NOW), "others are not affected"
    later = Instant(NOW + 299 * SECOND)
    assert not spam.lets("a", later)
    assert spam.lets("a", Instant(NOW + 301 * SECOND))
    assert not spam.lets("a", Instant(NOW + 302 * SECOND))


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing():
    spam = Spam(burst=2)
    assert spam.lets("a", NOW)
    assert spam.lets("a", Instant(0))
    assert not spam.lets("a", Instant(0))


def test_memory_is_bounded_and_the_oldest_are_forgotten():
    spam = Spam(burst=1, known_max=10)
    assert all(spam.lets(str(number), NOW) for number in range(100))
    assert len(spam._left) == 10
    assert spam.lets("0", NOW)
    assert not spam.lets("99", NOW)
