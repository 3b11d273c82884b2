"""The one function that reads state tables."""

from __future__ import annotations

from enum import StrEnum

import pytest

from moorings.core.model.errors import IllegalTransitionError
from moorings.core.model.state_machine import terminal_states, transition


class Door(StrEnum):
    OPEN = "OPEN"
    SHUT = "SHUT"
    BRICKED_UP = "BRICKED_UP"


class Act(StrEnum):
    PUSH = "push"
    BRICK_UP = "brick_up"


NEXT = {
    Door.OPEN: {Act.PUSH: Door.SHUT},
    Door.SHUT: {Act.PUSH: Door.OPEN, Act.BRICK_UP: Door.BRICKED_UP},
    Door.BRICKED_UP: {},
}


def test_the_next_state_stands_in_the_table():
    assert transition(NEXT, "door", "front", Door.SHUT, Act.BRICK_UP, lambda: ()) is Door.BRICKED_UP


def test_a_move_that_is_not_in_the_table_tells_who_where_what_and_the_story():
    with pytest.raises(IllegalTransitionError) as caught:
        transition(NEXT, "door", "front", Door.OPEN, Act.BRICK_UP, lambda: ("green", "made of oak"))
    error = caught.value
    assert error.code == "state.illegal_move"
    assert str(error) == "door front is OPEN: 'brick_up' is not possible (story: green; made of oak)"


def test_a_move_without_a_story_has_no_empty_brackets():
    with pytest.raises(IllegalTransitionError) as caught:
        transition(NEXT, "door", "front", Door.BRICKED_UP, Act.PUSH, lambda: ())
    assert str(caught.value) == "door front is BRICKED_UP: 'push' is not possible"


def test_the_story_is_only_asked_for_when_it_is_told():
    def story():
        raise AssertionError("asked for")

    assert transition(NEXT, "door", "front", Door.OPEN, Act.PUSH, story) is Door.SHUT


def test_the_ends_are_the_states_nothing_follows():
    assert terminal_states(NEXT) == {Door.BRICKED_UP}
