"""A limit on a wait (``--timeout``), and the parsing of such flags."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import parse_duration_s
from moorings.core.model.timestamps import Timestamp

_BARE = re.compile(r"[0-9]{1,12}(\.[0-9]+)?")


def parse_seconds(text: str) -> float:
    """Seconds in a timeout or a lease. A bare number is refused, as in ``--time`` it means minutes; 0 has no unit.

    Raises:
        MooringsError: ``duration.invalid``.
    """
    _check_unit(text, "s", "m")
    return parse_duration_s(text)


def _check_unit(text: str, *units: str) -> None:
    if _BARE.fullmatch(text.strip()) and float(text):
        spellings = " or ".join(f"{text.strip()}{unit}" for unit in units)
        raise MooringsError("duration.invalid", f"{text[:40]!r} has no unit", hint=f"write {spellings}")


def parse_lifetime_s(text: str) -> float:
    """Seconds for which an access key is valid; 0 is ``never``: it does not expire.

    Raises:
        MooringsError: ``duration.invalid``, ``key.invalid``.
    """
    if text.strip().lower() == "never":
        return 0.0
    from moorings.core.model.access import check_lifetime  # which no other command needs

    _check_unit(text, "d", "h")
    seconds = parse_duration_s(text)
    if not seconds:  # "at once" must not come to mean "for ever"
        raise MooringsError("duration.invalid", "a key cannot live for no time", hint="write 90d, or never")
    check_lifetime(seconds)
    return seconds


def parse_since(text: str, now: Timestamp) -> str:
    """The time in ``--since``, in the API's form: how long ago, as ``10m``, or when, on this machine's clock.

    Raises:
        MooringsError: ``duration.invalid``.
    """
    try:
        at = datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        _check_unit(text, "m", "h")
        try:
            at = datetime.fromtimestamp(now / 1_000_000 - parse_duration_s(text), UTC)
        except (MooringsError, ValueError, OverflowError, OSError) as error:
            detail = f"{text[:40]!r} is neither a duration nor a time"
            raise MooringsError("duration.invalid", detail, hint="write 10m, 2h, or 2026-01-31T12:00") from error
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


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
