"""Who may be connected: every machine gets in, those that asked stay, and nothing is without a limit."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from moorings.slurm.host.seats import ConnectionLimit


def full(total: int, per_address: int, *addresses: str) -> ConnectionLimit[int]:
    """Seats that guests 0, 1, ... of these addresses have taken."""
    seats: ConnectionLimit[int] = ConnectionLimit(total, per_address)
    for guest, address in enumerate(addresses):
        assert seats.take(address, guest) is None
    return seats


def test_a_machine_at_its_limit_gives_up_its_own_longest_silent_one() -> None:
    seats = full(10, 3, "a", "b", "a", "a")
    assert seats.take("a", 4) == 0
    assert not seats.keep(0)
    assert seats.keep(1)
    assert len(seats) == 4


def test_with_all_seats_taken_the_machine_with_most_silent_ones_gives_one_up() -> None:
    seats = full(6, 5, "node", "greedy", "greedy", "greedy", "greedy", "node")
    assert seats.take("other", 6) == 1
    assert seats.take("node", 7) == 2


def test_who_has_asked_stays() -> None:
    seats = full(4, 2, "a", "a", "b", "b")
    for guest in range(4):
        assert seats.keep(guest)
    assert seats.take("a", 4) == 4, "there is no seat for him"
    assert seats.take("c", 5) == 5
    seats.leave(2)
    assert seats.take("c", 6) is None
    assert seats.take("d", 7) == 6


def test_who_leaves_makes_room_and_may_leave_twice() -> None:
    seats = full(2, 2, "a", "b")
    seats.leave(0)
    seats.leave(0)
    assert len(seats) == 1
    assert seats.take("c", 2) is None


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
            gone = seats.take(address, number)
            assert gone not in asked
            if gone is None:
                assert len(here) < 6
                assert before[address] < 3
            elif gone != number:
                del here[gone]
            if gone != number:
                here[number] = address
        elif what == "keep":
            assert seats.keep(guest) == (guest in here)
            asked |= {guest} & set(here)
        else:
            seats.leave(guest)
            here.pop(guest, None)
        assert len(seats) == len(here) <= 6
        assert all(count <= 3 for count in Counter(here.values()).values())


@given(st.lists(st.sampled_from("ab"), min_size=20, max_size=60))
def test_a_machine_that_comes_for_the_first_time_always_gets_in_beside_silent_ones(crowd: list[str]) -> None:
    seats: ConnectionLimit[int] = ConnectionLimit(8, 6)
    for guest, address in enumerate(crowd):
        seats.take(address, guest)
    assert seats.take("node", 1000) != 1000
    assert seats.keep(1000)
