"""Limits: every machine gets in, connections that asked stay, and no client holds more than its part."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from moorings.net.limits import ClientLimit, ConnectionLimit


def full(total: int, per_address: int, *addresses: str) -> ConnectionLimit[int]:
    """Seats that guests 0, 1, ... of these addresses have taken."""
    seats: ConnectionLimit[int] = ConnectionLimit(total, per_address)
    for guest, address in enumerate(addresses):
        assert seats.acquire(address, guest) is None
    return seats


def test_a_machine_at_its_limit_gives_up_its_own_longest_silent_one() -> None:
    seats = full(10, 3, "a", "b", "a", "a")
    assert seats.acquire("a", 4) == 0
    assert not seats.mark_busy(0)
    assert seats.mark_busy(1)
    assert len(seats) == 4


def test_with_all_seats_taken_the_machine_with_most_silent_ones_gives_one_up() -> None:
    seats = full(6, 5, "node", "greedy", "greedy", "greedy", "greedy", "node")
    assert seats.acquire("other", 6) == 1
    assert seats.acquire("node", 7) == 2


def test_who_has_asked_stays() -> None:
    seats = full(4, 2, "a", "a", "b", "b")
    for guest in range(4):
        assert seats.mark_busy(guest)
    assert seats.acquire("a", 4) == 4, "there is no seat for him"
    assert seats.acquire("c", 5) == 5
    seats.release(2)
    assert seats.acquire("c", 6) is None
    assert seats.acquire("d", 7) == 6


def test_who_leaves_makes_room_and_may_leave_twice() -> None:
    seats = full(2, 2, "a", "b")
    seats.release(0)
    seats.release(0)
    assert len(seats) == 1
    assert seats.acquire("c", 2) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "keep", "leave"]), st.sampled_from("abc"), st.integers(0, 40)), max_size=80
    )
)
def test_limits_hold_and_nobody_is_lost(moves: list[tuple[str, str, int]]) -> None:
    seats: ConnectionLimit[int] = ConnectionLimit(6, 3)
    here: dict[int, str] = {}
    asked: set[int] = set()
    for number, (what, address, which) in enumerate(moves):
        guest = sorted(here)[which % len(here)] if here else -1
        if what == "take":
            before = Counter(here.values())
            gone = seats.acquire(address, number)
            assert gone not in asked
            if gone is None:
                assert len(here) < 6
                assert before[address] < 3
            elif gone != number:
                del here[gone]
            if gone != number:
                here[number] = address
        elif what == "keep":
            assert seats.mark_busy(guest) == (guest in here)
            asked |= {guest} & set(here)
        else:
            seats.release(guest)
            here.pop(guest, None)
        assert len(seats) == len(here) <= 6
        assert all(count <= 3 for count in Counter(here.values()).values())


@given(st.lists(st.sampled_from("ab"), min_size=20, max_size=60))
def test_a_machine_that_comes_for_the_first_time_always_gets_in_beside_silent_ones(crowd: list[str]) -> None:
    seats: ConnectionLimit[int] = ConnectionLimit(8, 6)
    for guest, address in enumerate(crowd):
        seats.acquire(address, guest)
    assert seats.acquire("node", 1000) != 1000
    assert seats.mark_busy(1000)


def test_last_connections_are_for_addresses_with_few() -> None:
    connections: ConnectionLimit[int] = ConnectionLimit(12, 12, reserved=2)
    for guest in range(10):
        assert connections.acquire("a", guest) is None
    assert connections.acquire("a", 10) == 0
    assert connections.acquire("b", 11) is None
    assert connections.acquire("c", 12) is None
    assert connections.acquire("d", 13) == 1, "all are taken, and a has the most idle ones"


def test_without_eviction_one_more_of_an_address_is_refused() -> None:
    connections: ConnectionLimit[int] = ConnectionLimit(8, evicts=False)
    taken = {
        address: sum(connections.acquire(address, guest) is None for guest in guests)
        for address, guests in (("a", range(10)), ("b", range(10, 20)), ("c", range(20, 30)))
    }
    assert taken == {"a": 4, "b": 2, "c": 1}
    connections.release(0)
    assert connections.acquire("d", 30) is None


# -- amounts -----------------------------------------------------------------------------------------------------------


def test_one_client_gets_half_and_each_other_half_of_the_rest() -> None:
    limit = ClientLimit(16)
    got = {who: sum(limit.acquire(who) for _ in range(20)) for who in "abcde"}
    assert got == {"a": 8, "b": 4, "c": 2, "d": 1, "e": 0}
    assert limit.n_held == 15


def test_amount_at_once_is_bounded_like_amounts_in_parts() -> None:
    limit = ClientLimit(100)
    assert not limit.acquire("a", 51)
    assert limit.acquire("a", 50)
    assert not limit.acquire("b", 26)
    assert limit.acquire("b", 25)


def test_returned_amount_can_be_taken_again_and_no_client_is_remembered() -> None:
    limit = ClientLimit(100)
    assert limit.acquire("a", 0)
    assert limit.acquire("a", 30)
    assert limit.acquire("a", 20)
    assert not limit.acquire("a", 1)
    assert limit.n_held == 50
    for amount in (30, 0, 20, 0):
        limit.release("a", amount)
    assert limit.n_held == 0
    assert limit.acquire("b", 50)
    limit.release("b", 50)
    assert limit.__dict__["_held"] == {}
