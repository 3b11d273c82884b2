"""Asking before something is taken away: at a terminal a question, in a script ``-y``, and nothing in between.

A script that is not asked would delete by mistake what a person would not; one that hangs at a question nobody sees is
no better.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from moorings.cli.errors import UsageErrorWithHint
from moorings.cli.session import CommandContext
from moorings.cli.text import escape_controls

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")


def confirm(session: CommandContext, question: str, look: Callable[[], object], *, yes: bool) -> None:
    """Go on only if somebody wants that.

    Args:
        session: of this command.
        question: what to ask.
        look: raises if what the question is about does not exist: nobody should be asked about nothing.
        yes: it was said on the command line.

    Raises:
        WrongUsage: there is nobody to ask.
        click.Abort: the answer is no.
    """
    if yes:
        return
    if not session.console.can_ask:
        raise UsageErrorWithHint(
            f"there is no terminal to ask at: {question}", hint="say --yes (-y) if that is what you want"
        )
    look()
    if not click.confirm(escape_controls(question), err=True):
        raise click.Abort
