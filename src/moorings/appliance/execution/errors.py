"""The ends of work: failures with a message, and a requested stop."""

from __future__ import annotations

from moorings.core.model.errors import MooringsError


class StoppedError(BaseException):
    """A stop was requested (TERM) before there was anything to save.

    Not an ``Exception``: it may be raised inside a user's function, whose error handler must not catch it.
    """


def execution_error(detail: str, hint: str = "") -> MooringsError:
    """The training or the evaluation cannot continue."""
    return MooringsError("execution.failed", detail, hint=hint)


def model_error(detail: str, hint: str = "") -> MooringsError:
    """The user's model or data cannot be compiled."""
    return MooringsError("model.invalid", detail, hint=hint)
