"""How a command ends: wrong usage, or an exit code."""

from __future__ import annotations

import click

from moorings.wire.errors import ExitCode


class UsageErrorWithHint(click.UsageError):
    """Wrong usage with a hint of its own, where ``--help`` would not help."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class CommandExit(Exception):  # noqa: N818 - an end, not an error
    """Ends a command with an exit code, after it has written everything."""

    def __init__(self, code: ExitCode | int) -> None:
        super().__init__(code)
        self.code = int(code)
