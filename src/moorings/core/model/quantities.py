"""Durations, sizes and lists as people write them (Slurm's and the field's spellings), and back."""

from __future__ import annotations

import re
from collections.abc import Iterable

from moorings.core.model.errors import MooringsError

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_UNIT_FORM = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ms|s|m|h|d|w)", re.ASCII)  # moor 0.1.0 sends ten decimals
_SLURM_FORM = re.compile(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,6}))?(?::(\d{1,6}))?", re.ASCII)
_BYTES_FORM = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


def parse_duration_s(text: str, *, bare_s: float = 60.0) -> float:
    """Seconds in ``30s``, ``5m``, ``2h``, ``1d``, or in Slurm's ``MM``, ``MM:SS``, ``HH:MM:SS``, ``D-HH[:MM[:SS]]``.

    Args:
        text: as a person wrote it.
        bare_s: what a number without a unit counts, in seconds: a minute for time limits, as in Slurm; a second (1.0)
            for timeouts.

    Raises:
        MooringsError: ``duration.invalid``.
    """
    text = text.strip()
    unit = _UNIT_FORM.fullmatch(text)
    if unit:
        return float(unit[1]) * _UNITS_S[unit[2]]
    match = _SLURM_FORM.fullmatch(text)
    if match is None:
        raise MooringsError(
            "duration.invalid",
            f"{text[:40]!r} is not a duration",
            hint="write 30s, 5m, 2h, 10:00, 1:30:00 or 1-12:00:00",
        )
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1] is not None:  # D-HH[:MM[:SS]]
        return float(days * 86_400 + first * 3600 + second * 60 + third)
    if match[4] is not None:  # HH:MM:SS
        return float(first * 3600 + second * 60 + third)
    if match[3] is not None:  # MM:SS
        return float(first * 60 + second)
    return first * bare_s


def duration_text(seconds: float) -> str:
    """Seconds as Slurm writes them: ``10:00``, ``1:30:00``, ``1-12:00:00``."""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{secs:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{secs:02d}"
    return f"{minutes}:{secs:02d}"


def age_text(seconds: float) -> str:
    """A duration in short form, as kubectl prints ages: ``40s``, ``12m``, ``3d22h``."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    if whole < 172_800:
        return f"{whole // 3600}h"
    days, rest = divmod(whole, 86_400)
    return f"{days}d{rest // 3600}h" if days < 8 and rest >= 3600 else f"{days}d"


def parse_bytes(text: str) -> int:
    """Bytes in a size: ``512``, ``4G``, ``4GiB``, ``1.5T`` (powers of 1024, as in Slurm).

    Raises:
        MooringsError: ``size.invalid``.
    """
    match = _BYTES_FORM.fullmatch(text.strip())
    if match is None:
        raise MooringsError("size.invalid", f"{text[:40]!r} is not a size", hint="write 512M, 4G or 1.5T")
    power = " kmgtp".index(match[2].lower() or " ")
    return round(float(match[1]) * float(1024**power))


def parse_memory_bytes(text: str) -> int:
    """Bytes of memory in a size with a unit: Slurm counts a bare number in megabytes, so here it would mislead.

    Raises:
        MooringsError: ``size.invalid``.
    """
    n_bytes = parse_bytes(text)
    number = text.strip()
    if n_bytes and number[-1].isdigit():
        raise MooringsError("size.invalid", f"{number!r} has no unit", hint=f"write {number}M or {number}G")
    return n_bytes


def amount_text(amount: int) -> str:
    """An amount of a resource for people: large amounts, which can only be bytes, with a unit (``64 GiB``)."""
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if amount >= 1 << power:
            return f"{round(amount / (1 << power), 1):g} {unit}"
    return str(amount)


def join_first(names: Iterable[object], most: int = 5) -> str:
    """The first few names for a sentence, and the count of the rest."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")
