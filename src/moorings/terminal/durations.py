"""A limit on a wait (``--timeout``), and the parsing of such flags."""

from __future__ import annotations

import time

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_duration_s
from moorings.core.model.timestamps import DAY_S

BARE_S = 1.0


def parse_seconds(text: str) -> float:
    """Seconds in a timeout or a lease; a bare number means seconds, as in the API's ``?wait=60``.

    Raises:
        MooringsError: ``duration.invalid``.
    """
    return parse_duration_s(text, bare_s=BARE_S)


def parse_lifetime_s(text: str) -> float:
    """Seconds for which an access key is valid; a bare number means days; 0 is ``never``: it does not expire.

    Raises:
        MooringsError: ``duration.invalid``, ``key.invalid``.
    """
    if text.strip().lower() == "never":
        return 0.0
    from moorings.core.model.access import check_lifetime  # which no other command needs

    seconds = parse_duration_s(text, bare_s=DAY_S)
    if not seconds:  # "at once" must not come to mean "for ever"
        raise MooringsError("duration.invalid", "a key cannot live for no time", hint="write 90d, or never")
    check_lifetime(seconds)
    return seconds


class Deadline:
    """The time left for something; None: unlimited."""

    @classmethod
    def of(cls, text: str | None) -> Deadline:
        """The limit given by ``--timeout``.

        Raises:
            MooringsError: ``duration.invalid``.
        """
        return cls(None if text is None else parse_seconds(text))

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._until is not None and time.monotonic() >= self._until

    def remaining_s(self, most_s: float) -> float:
        """The seconds left, at most ``most_s``; never quite zero, so that a request still waits a moment."""
        if self._until is None:
            return most_s
        return max(0.05, min(most_s, self._until - time.monotonic()))
