"""Why work ends: failures that a line tells, and the wish to end."""

from __future__ import annotations

from moorings.core.errors import MooringsError


class StoppedError(BaseException):
    """Somebody asked for the end (TERM) before there was anything to save.

    Not an ``Exception``: it comes out of a user's function too, and what handles that one's failures must not take it.
    """


def execution_error(detail: str, hint: str = "") -> MooringsError:
    """The training or the evaluation cannot go on."""
    return MooringsError("execution.failed", detail, hint=hint)


def model_error(detail: str, hint: str = "") -> MooringsError:
    """The user's model or data are not what can be compiled."""
    return MooringsError("model.invalid", detail, hint=hint)
