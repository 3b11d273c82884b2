"""State tables: ``NEXT[state][event]`` and the one function that reads them.

One table a file, each beside its states, each state with a comment that says what is true and what is held. Only the
``step`` functions built on ``advance`` change a state. The diagrams in ``docs/reference/states.md`` are made from the
same tables, so they cannot drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from moorings.core.errors import IllegalTransitionError

StateT = TypeVar("StateT", bound=StrEnum)
EventT = TypeVar("EventT", bound=StrEnum)


def transition(
    table: Mapping[StateT, Mapping[EventT, StateT]],
    kind: str,
    ident: str,
    state: StateT,
    event: EventT,
    story: Callable[[], Iterable[str]],
) -> StateT:
    """The state that follows ``state`` on ``event``.

    Raises:
        IllegalMoveError: the table has no such move; the message holds the object's story (only then is it asked for).
    """
    try:
        return table[state][event]
    except KeyError:
        raise IllegalTransitionError(kind, ident, state, event, story()) from None


def terminal_states(table: Mapping[StateT, Mapping[EventT, StateT]]) -> frozenset[StateT]:
    """The states nothing follows."""
    return frozenset(state for state, moves in table.items() if not moves)
