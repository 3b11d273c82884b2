"""Shares: nobody holds more than he leaves free."""

from __future__ import annotations

from moorings.kubernetes.shares import DynamicLimit


def test_one_gets_half_and_each_other_half_of_the_rest() -> None:
    shares = DynamicLimit(16)
    got = {who: sum(shares.take(who) for _ in range(20)) for who in "abcde"}
    assert got == {"a": 8, "b": 4, "c": 2, "d": 1, "e": 0}
    assert shares.in_use == 15


def test_what_is_taken_at_once_is_bounded_as_what_is_taken_in_parts() -> None:
    shares = DynamicLimit(100)
    assert not shares.take("a", 51)
    assert shares.take("a", 50)
    assert not shares.take("b", 26)
    assert shares.take("b", 25)


def test_what_is_given_back_can_be_taken_again_and_nobody_is_remembered() -> None:
    shares = DynamicLimit(100)
    assert shares.take("a", 0)
    assert shares.take("a", 30)
    assert shares.take("a", 20)
    assert not shares.take("a", 1)
    assert shares.in_use == 50
    for amount in (30, 0, 20, 0):
        shares.give("a", amount)
    assert shares.in_use == 0
    assert shares.take("b", 50)
    shares.give("b", 50)
    assert shares.__dict__["_held"] == {}
