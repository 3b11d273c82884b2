"""Failed demands.

An expected "no" is a value (a ``reasons.Reason``); a demand that cannot be met raises ``MooringsError``. The table that
maps a code to an HTTP status and to an exit code stands in ``wire.errors``: core neither serves HTTP nor exits.
"""

from __future__ import annotations

from collections.abc import Iterable


class MooringsError(Exception):
    """A failed demand with a stable ``code``, a sentence, a hint and whether trying again can help.

    Args:
        code: ``noun.problem``, stable for ever; must stand in ``wire.errors.ERRORS``.
        detail: one sentence that says what failed, with the values that matter.
        hint: what the caller can do next; may be empty.
        retryable: whether the same demand may succeed later without a change.
    """

    def __init__(self, code: str, detail: str, *, hint: str = "", retryable: bool = False) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.retryable = retryable


class IllegalTransitionError(MooringsError):
    """A state machine was asked for a move its table does not have; carries the story of that object."""

    def __init__(self, kind: str, ident: str, state: str, event: str, story: Iterable[str] = ()) -> None:
        told = "; ".join(story)
        super().__init__(
            "state.illegal_move",
            f"{kind} {ident} is {state}: '{event}' is not possible" + (f" (story: {told})" if told else ""),
        )
        self.kind = kind
        self.ident = ident
        self.state = state
        self.event = event
