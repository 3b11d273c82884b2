import pytest

from moorings.api.limits import Seats
from moorings.core.errors import MooringsError


def test_seats_are_bounded_in_all_and_for_each_key() -> None:
    seats = Seats("streams", total=3, per_key=2)
    seats.take("ann")
    seats.take("ann")
    with pytest.raises(MooringsError) as refused:
        seats.take("ann")
    assert (refused.value.code, refused.value.retryable) == ("controller.busy", True)
    seats.take("bob")
    with pytest.raises(MooringsError):
        seats.take("eve")
    seats.leave("ann")
    seats.take("eve")


def test_a_seat_nobody_took_cannot_be_left() -> None:
    with pytest.raises(AssertionError):
        Seats("streams", total=1, per_key=1).leave("ann")
