"""Tables of Slurm's commands with columns of fixed width, so that text of a user cannot look like another record.

Job names, comments and (without accounting) account names may hold any character, also line ends. ``scontrol show job
-o`` and ``squeue -o '%i|%j'`` can therefore print records that do not exist. ``squeue -O 'Name:64|'`` cuts and pads by
bytes, on 22.05, 24.11 and 26.05 alike, so all records have one length and each field has a fixed place. JSON
was refused: it ignores filters and changes its shape between releases.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from moorings.core.model.errors import MooringsError

_SEPARATOR = "|"
_END = b"|"
_NOTHING = ("", "(null)", "N/A", "None", "NONE", "Unknown")

HOSTS_MAX = 65_536
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class FixedColumn:
    """A column: our name, Slurm's, and its width in bytes."""

    name: str
    field: str
    width: int


def build_format(columns: Sequence[FixedColumn]) -> str:
    """Return the value of ``-O`` for these columns."""
    return ",".join(f"{column.field}:{column.width}{_SEPARATOR}" for column in columns)


def parse_rows(answer: bytes, columns: Sequence[FixedColumn], *, source: str) -> Iterator[dict[str, str]]:
    """Yield each record's fields (``read_row``) by our names.

    Args:
        answer: the command's output.
        columns: the columns in the request.
        source: the command's name, for messages.

    Raises:
        MooringsError: ``slurm.unreadable``; no record is yielded before all are checked.
    """
    for row in cut_rows(answer, columns, source=source):
        yield read_row(row, columns)


def cut_rows(answer: bytes, columns: Sequence[FixedColumn], *, source: str) -> list[bytes]:
    """Return the records after a check of their form; arguments and errors are those of ``parse_rows``."""
    record = _record(tuple(columns))
    if len(answer) % record.size:
        _raise_unreadable(source, f"wrote {len(answer)} bytes, which is no multiple of {record.size}")
    marks = (_END,) * len(columns) + (b"\n",)
    for number, row in enumerate(record.iter_unpack(answer), start=1):
        if (*row[1::2], row[-1]) != marks:
            _raise_unreadable(source, f"wrote a record that is not in the form asked for, number {number}")
    return [answer[begin : begin + record.size] for begin in range(0, len(answer), record.size)]


def read_row(row: bytes, columns: Sequence[FixedColumn]) -> dict[str, str]:
    """Return the fields of one record by our names, without padding."""
    texts = _record(tuple(columns)).unpack(row)[::2]
    names = (column.name for column in columns)
    return {name: text.decode("utf-8", "replace").rstrip(" ") for name, text in zip(names, texts, strict=False)}


@functools.lru_cache
def _record(columns: tuple[FixedColumn, ...]) -> struct.Struct:
    return struct.Struct("".join(f"{column.width}s1s" for column in columns) + "1s")


def value_or_empty(text: str) -> str:
    """Return ``text``, or an empty string for one of Slurm's words for nothing."""
    return "" if text in _NOTHING else text


def is_whole(text: str, width: int) -> bool:
    """Whether a field was not cut: a field that fills its column may be cut."""
    return len(text.encode()) < width


def expand_hostlist(folded: str, hosts_max: int = HOSTS_MAX) -> tuple[str, ...]:
    """Return the hosts of a folded list: ``n[1-2,05],gpu1`` are ``n1 n2 n05 gpu1``.

    Raises:
        MooringsError: ``slurm.unreadable``: not a list of hosts, or more than ``hosts_max``.
    """
    found: list[str] = []
    for part in _parts(folded):
        found += _expand(part, folded, hosts_max - len(found))
    return tuple(found)


def _parts(folded: str) -> Iterator[str]:
    """Yield the parts between commas outside of brackets."""
    depth, begun = 0, ""
    for char in folded:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            yield begun
            begun = ""
        else:
            begun += char
    if begun:
        yield begun


def _expand(part: str, folded: str, room: int) -> list[str]:
    before, bracket, rest = part.partition("[")
    if room < 1:
        _raise_unreadable("Slurm", f"a list of more than {HOSTS_MAX} hosts")
    if not bracket:
        if not part or "]" in part:
            _raise_unreadable("Slurm", f"{folded[:80]!r} is no list of hosts")
        return [part]
    inside, closed, after = rest.partition("]")
    spans = [_SPAN.fullmatch(span) for span in inside.split(",")]
    if not closed or not all(spans):
        _raise_unreadable("Slurm", f"{folded[:80]!r} is no list of hosts")
    tails = _expand(after, folded, room) if after else [""]
    found: list[str] = []
    for span in spans:
        assert span is not None
        low, high = int(span[1]), int(span[2] or span[1])
        if (high - low + 1) * len(tails) > room - len(found) or high < low:
            _raise_unreadable("Slurm", f"{folded[:80]!r} names too many hosts, or none")
        found += [f"{before}{number:0{len(span[1])}}{tail}" for number in range(low, high + 1) for tail in tails]
    return found


def _raise_unreadable(source: str, problem: str) -> NoReturn:
    raise MooringsError(
        "slurm.unreadable",
        f"{source} {problem}",
        hint="is this a release of Slurm that Moorings knows (22.05 to 26.05)?",
    )
