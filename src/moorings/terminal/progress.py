"""Progress on stderr: why a command waits.

One live line on a terminal; in a log a plain line when the reason changes and at least every 30 seconds, so that a log
shows both the wait and its reason. A spinner was refused: it shows no reason.
"""

from __future__ import annotations

import time

from moorings.terminal.console import Console
from moorings.terminal.text import escape_controls

REPEAT_S = 30.0


class Progress:
    """The progress messages of a command.

    Args:
        console: where to.
        repeat_s: how often an unchanged reason is repeated without a terminal.
    """

    def __init__(self, console: Console, *, repeat_s: float = REPEAT_S) -> None:
        self._console = console
        self._repeat_s = repeat_s
        self._live = console.err_is_tty and not console.quiet
        self._shown = ""
        self._said_at = 0.0

    def report(self, text: str) -> None:
        """Report an event: a line that stays."""
        self.clear()
        self._console.info(escape_controls(text))

    def show_waiting(self, text: str) -> None:
        """Report the current reason of a wait."""
        now = time.monotonic()
        if self._live:
            self._console.write_live(text)
        elif text != self._shown or now - self._said_at >= self._repeat_s:
            self._console.info(escape_controls(text))
            self._said_at = now
        self._shown = text

    def clear(self) -> None:
        """Remove the live line, before anything else is written."""
        if self._live and self._shown:
            self._console.write_live("")
        self._shown = ""
