"""State machines: ``NEXT[state][event]`` and the one function that reads such a table.

Each table has its own file, beside its states; a comment at each state says what is true and what is held. Only the
``step`` functions built on ``transition`` change a state. The diagrams in ``docs/reference/states.md`` are made from
the same tables, so they cannot drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from moorings.core.model.errors import IllegalTransitionError

StateT = TypeVar("StateT", bound=StrEnum)
EventT = TypeVar("EventT", bound=StrEnum)


def transition(
    table: Mapping[StateT, Mapping[EventT, StateT]],
    kind: str,
    ident: str,
    state: StateT,
    event: EventT,
    history: Callable[[], Iterable[str]],
) -> StateT:
    """The state that follows ``state`` on ``event``.

    Raises:
        IllegalTransitionError: the table has no such move; the message has the object's history, made only then.
    """
    try:
        return table[state][event]
    except KeyError:
        raise IllegalTransitionError(kind, ident, state, event, history()) from None


def terminal_states(table: Mapping[StateT, Mapping[EventT, StateT]]) -> frozenset[StateT]:
    """The states without a next state."""
    return frozenset(state for state, moves in table.items() if not moves)
