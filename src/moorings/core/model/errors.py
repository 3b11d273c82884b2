"""Errors of failed requests.

An expected "no" is a value (a ``reasons.Reason``); a request that cannot be met raises ``MooringsError``. The table
from codes to HTTP statuses and exit codes is in ``wire.errors``: core neither serves HTTP nor exits.
"""

from __future__ import annotations

from collections.abc import Iterable


class MooringsError(Exception):
    """A failed request with a stable ``code``, a sentence, a hint and whether a retry can help.

    Args:
        code: ``noun.problem``, never changed; must be in ``wire.errors.ERRORS``.
        detail: one sentence that says what failed, with the values that matter.
        hint: what the caller can do next; may be empty.
        retryable: whether the same request may succeed later without a change.
    """

    def __init__(self, code: str, detail: str, *, hint: str = "", retryable: bool = False) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.retryable = retryable


class IllegalTransitionError(MooringsError):
    """The state table has no such move; the message has the history of that object."""

    def __init__(self, kind: str, ident: str, state: str, event: str, history: Iterable[str] = ()) -> None:
        history = "; ".join(history)
        super().__init__(
            "state.illegal_move",
            f"{kind} {ident} is {state}: '{event}' is not possible" + (f" (story: {history})" if history else ""),
        )
