"""Confirmation before something is removed: a question at a terminal, ``-y`` in a script, and nothing in between.

Without a question a script would delete by mistake; with one it would hang without a visible sign.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from moorings.cli.errors import UsageErrorWithHint
from moorings.terminal.context import CommandContext
from moorings.terminal.text import escape_controls

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")


def confirm(session: CommandContext, question: str, check_exists: Callable[[], object], *, yes: bool) -> None:
    """Return only if the user confirms.

    Args:
        session: of this command.
        question: what to ask.
        check_exists: raises if the subject of the question does not exist, so that no pointless question is asked.
        yes: the confirmation was given on the command line.

    Raises:
        UsageErrorWithHint: there is no terminal to ask at.
        click.Abort: the answer is no.
    """
    if yes:
        return
    if not session.console.can_ask:
        raise UsageErrorWithHint(
            f"there is no terminal to ask at: {question}", hint="say --yes (-y) if that is what you want"
        )
    check_exists()
    before, session.if_interrupted = session.if_interrupted, "nothing was changed"
    if not click.confirm(escape_controls(question), err=True):
        raise click.Abort
    session.if_interrupted = before
