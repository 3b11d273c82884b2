"""Logs repeated failures: in a loop at their begin and end, by strangers at a limited rate."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from moorings.core.model.errors import MooringsError

log = logging.getLogger("moorings.slurm.agent")


class FailureLog:
    """The steps that currently fail, by name."""

    def __init__(self) -> None:
        self._codes: dict[str, str] = {}

    @contextlib.contextmanager
    def logged(self, what: str) -> Iterator[list[str]]:
        """Run a step that may fail and is retried; the yielded list is true after a success."""
        good: list[str] = []
        try:
            yield good
        except MooringsError as error:
            level = logging.DEBUG if self._codes.get(what) == error.code else logging.WARNING
            self._codes[what] = error.code
            fields = {"what": what, "code": error.code, "detail": error.detail, "hint": error.hint}
            log.log(level, "agent.failed", extra=fields)
        else:
            good.append(what)
            if self._codes.pop(what, None) is not None:
                log.info("agent.recovered", extra={"what": what})


class RateLimitedWarnings:
    """Warnings that strangers can cause: one line per cause and interval, with the number of the others.

    Args:
        event: the lines' name.
        apart_s: seconds between two lines of a cause.
    """

    def __init__(self, event: str, apart_s: float) -> None:
        self._event = event
        self._apart_s = apart_s
        self._more: dict[str, tuple[str, int]] = {}  # by code: the last detail since its line, and their number

    def warn(self, code: str, detail: str) -> None:
        """Log it now, or count it for the next line of its cause."""
        if code in self._more:
            self._more[code] = (detail, self._more[code][1] + 1)
        else:
            self._log(code, detail, 0)

    def _log(self, code: str, detail: str, left_out: int) -> None:
        log.warning(self._event, extra={"code": code, "detail": detail, "left_out": left_out})
        self._more[code] = ("", 0)
        asyncio.get_running_loop().call_later(self._apart_s, self._due, code)

    def _due(self, code: str) -> None:
        detail, count = self._more.pop(code)
        if count:
            self._log(code, detail, count - 1)
