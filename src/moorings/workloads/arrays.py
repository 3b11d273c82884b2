"""Arrays: one job, run once for each index, as ``sbatch --array`` has it.

Each element is a run of its own, with its own claim and end. Nothing holds them together but their array's id, which
the ids of the elements begin with, and a limit on how many of them ask for devices at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moorings.core.model.errors import MooringsError

ELEMENTS_MAX = 1000
ARRAY_CHARS_MAX = 200
INDEX_MAX = 999_999

INDEX_VARIABLE, ID_VARIABLE, SIZE_VARIABLE = "MOORINGS_ARRAY_INDEX", "MOORINGS_ARRAY_ID", "MOORINGS_ARRAY_SIZE"
SLURM_INDEX_VARIABLE = "SLURM_ARRAY_TASK_ID"  # for scripts that were written for sbatch

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", re.ASCII)
_LONG = re.compile(r"0*[1-9]\d{6,}(-\d+)?(:\d+)?|\d+-0*[1-9]\d{6,}(:\d+)?", re.ASCII)  # an index above INDEX_MAX
_HINT = "write 0-99, 1,3,7-9 or 0-10:2; with %8 behind it, 8 at most ask for devices at once"


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """The place of a run in its array.

    Attributes:
        id: of the array.
        index: of this element.
        size: elements of the array.
        limit: how many of them ask for devices, or hold some, at once; 0: all.
    """

    id: str
    index: int
    size: int
    limit: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a program knows its element."""
        index = str(self.index)
        return {
            INDEX_VARIABLE: index,
            ID_VARIABLE: self.id,
            SIZE_VARIABLE: str(self.size),
            SLURM_INDEX_VARIABLE: index,
        }


def element_id(array: str, index: int) -> str:
    """The id of an element's run."""
    return f"{array}-{index}"


def parse_array(text: str) -> tuple[tuple[int, ...], int]:
    """The indexes of an array in rising order, and its limit (0: none), from ``0-99%8`` or ``1,3,7-9``.

    Raises:
        MooringsError: ``job.invalid``.
    """
    ranges, percent, limit = text.partition("%")
    if len(text) > ARRAY_CHARS_MAX or (percent and not re.fullmatch(r"[1-9]\d{0,5}", limit, re.ASCII)):
        raise _invalid(text)
    found: set[int] = set()
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None and _LONG.fullmatch(part):
            detail = f"array {text[:80]}: an index is at most {INDEX_MAX:,}"
            raise MooringsError("job.invalid", detail, hint="count from 0, and add the rest in the program")
        if match is None:
            raise _invalid(text)
        first, last, step = (int(each) if each is not None else None for each in match.groups())
        assert first is not None
        indexes = range(first, (first if last is None else last) + 1, step or 1)
        if not indexes or step == 0:
            raise _invalid(text)
        if len(indexes) > ELEMENTS_MAX or len(found | set(indexes)) > ELEMENTS_MAX:
            detail = f"array {text[:80]} has more than {ELEMENTS_MAX} elements"
            raise MooringsError("job.invalid", detail, hint="split it into several")
        found.update(indexes)
    return tuple(sorted(found)), int(limit) if percent else 0


def format_indexes(indexes: Iterable[int]) -> str:
    """Rising indexes in few characters, as ``3,7-9``."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in _stretches(indexes))


def _stretches(indexes: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for index in indexes:
        if first is None or last is None:
            first = index
        elif index != last + 1:
            yield first, last
            first = index
        last = index
    if first is not None and last is not None:
        yield first, last


def _invalid(text: str) -> MooringsError:
    return MooringsError("job.invalid", f"{text[:80]!r} are no indexes of an array", hint=_HINT)
