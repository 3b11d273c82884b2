"""What goes wrong in a loop that goes on: told when it begins and when it is over, not at every turn."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from moorings.core.errors import MooringsError

log = logging.getLogger("moorings.slurm.agent")


class Troubles:
    """The steps that fail now, by name."""

    def __init__(self) -> None:
        self._codes: dict[str, str] = {}

    @contextlib.contextmanager
    def told(self, what: str) -> Iterator[list[str]]:
        """A step that may fail and is tried again; what it yields is true once it has gone well."""
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
