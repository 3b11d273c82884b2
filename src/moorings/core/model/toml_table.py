"""Strict reading of TOML: every key is known, every type right, and every error names its file and line.

``tomllib`` gives values without positions, so a second, simple pass over the text finds the line of each key. A schema
library would check the types but not give the lines, and core may import only the standard library.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

from moorings.core.model.errors import MooringsError

TEXT_CHARS_MAX = 1 << 20

PROBLEM_CHARS_MAX = 500  # a key may be as long as the file
KEY_PARTS_MAX = 256  # `tomllib` takes time with the square of a key's parts: an hour for the longest text

_HEADER = re.compile(r"(\[{1,2})([^\[\]]+)\]{1,2}\s*(#.*)?")  # on a stripped line: two blanks in a row would cost n²
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*+\"|'[^']*+'")
_KEY = re.compile(r"\s*(?:\"([^\"\\]*)\"|'([^']*)'|([A-Za-z0-9_.\"'-]+?))\s*=")

Path = tuple[str | int, ...]
T = TypeVar("T")
NumberT = TypeVar("NumberT", int, float)


def _positions(text: str) -> dict[Path, int]:
    """Line of every header and key, by path; inline tables count as the line of their key."""
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    here: Path = ()
    for number, line in enumerate(text.split("\n"), start=1):  # as in TOML; `splitlines` knows other line ends
        header = _HEADER.fullmatch(line.strip())
        if header:
            here = ()
            parts = [part.strip().strip("\"'") for part in header[2].split(".")]
            for part in parts[:-1]:
                here = (*here, part)
                if here in counts:
                    here = (*here, counts[here])
            here = (*here, parts[-1])
            if header[1] == "[[":
                counts[here] = counts.get(here, -1) + 1
                here = (*here, counts[here])
            lines.setdefault(here, number)
            continue
        key = _KEY.match(line)
        if key:
            quoted = key[1] if key[1] is not None else key[2]
            parts = [part.strip("\"'") for part in key[3].split(".")] if quoted is None else [quoted]
            lines.setdefault((*here, *parts), number)
            lines.setdefault((*here, parts[0]), number)  # of a dotted key, the table
    return lines


def _check_keys(text: str, source: str, code: str) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > KEY_PARTS_MAX and _QUOTED.sub("", line).count(".") > KEY_PARTS_MAX:
            raise MooringsError(
                code,
                f"{source}:{number}: more than {KEY_PARTS_MAX} dots stand outside of quotes in this line",
                hint="write tables as [a.b], and long texts in quotes",
            )


class TomlTable:
    """One TOML table being read: read the known keys with the typed getters, then call ``reject_unknown_keys``.

    Args:
        values: the table.
        source: name of the file, for messages.
        code: the error code of every error (``pools.invalid``, ``job.invalid``).
    """

    def __init__(
        self, values: Mapping[str, object], source: str, code: str, lines: Mapping[Path, int], path: Path
    ) -> None:
        self._values = values
        self._source = source
        self._code = code
        self._lines = lines
        self._path = path
        self._seen: set[str] = set()

    @classmethod
    def parse(cls, text: str, *, source: str, code: str) -> TomlTable:
        """The top table of a TOML text.

        Raises:
            MooringsError: the text is too long or not TOML; the line is named.
        """
        if len(text) > TEXT_CHARS_MAX:
            raise MooringsError(code, f"{source}: the file is longer than {TEXT_CHARS_MAX} characters")
        _check_keys(text, source, code)
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
            line = re.search(r"at line (\d+)", str(error))
            where = f"{source}:{line[1]}" if line else source
            raise MooringsError(code, f"{where}: {error}", hint="the file is not valid TOML") from error
        return cls(values, source, code, _positions(text), ())

    @classmethod
    def of(cls, values: Mapping[str, object], *, source: str, code: str) -> TomlTable:
        """The top table of values that are not from a text: errors name the source alone."""
        return cls(values, source, code, {}, ())

    def location(self, key: str | None = None) -> str:
        """``file:line`` of a key of this table, or of the nearest enclosing element."""
        path: Path = self._path if key is None else (*self._path, key)
        while path:
            if path in self._lines:
                return f"{self._source}:{self._lines[path]}"
            path = path[:-1]
        return self._source

    def fail_at(self, key: str | None, problem: str, hint: str = "") -> NoReturn:
        """Raise an error about ``key`` (or about the table), with file and line."""
        text = problem if len(problem) <= PROBLEM_CHARS_MAX else f"{problem[:PROBLEM_CHARS_MAX]}..."
        raise MooringsError(self._code, f"{self.location(key)}: {text}", hint=hint)

    def has(self, key: str) -> bool:
        """Whether the key is present; it counts as known from then on."""
        self._seen.add(key)
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._take(key, default)
        if not isinstance(value, str):
            self.fail_at(key, f"{key} must be a string, not {_kind(value)}")
        return value

    def matched(self, key: str, form: re.Pattern[str], what: str) -> str:
        """A string that matches a pattern; ``what`` describes the pattern."""
        text = self.text(key)
        if not form.fullmatch(text):
            self.fail_at(key, f"{key} {text[:80]!r} is not {what}")
        return text

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail_at(key, f"{key} must be a whole number, not {_kind(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number."""
        value = self._take(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail_at(key, f"{key} must be a number, not {_kind(value)}")
        try:
            return float(value)
        except OverflowError:
            self.fail_at(key, f"{key} is too large")

    def within(self, key: str, value: NumberT, least: float, most: float, unit: str = "") -> NumberT:
        """The value of a key, if it lies between two bounds; ``unit`` is for the error."""
        if not least <= value <= most:  # refuses nan and inf too, which TOML can write
            self.fail_at(key, f"{key} = {value} is not between {least:.12g} and {most:.12g}{unit}")
        return value

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            self.fail_at(key, f"{key} must be true or false, not {_kind(value)}")
        return value

    def strings(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """A list of strings."""
        value = self._take(key, list(default) if default is not None else None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail_at(key, f"{key} must be a list of strings, not {_kind(value)}")
        return tuple(value)

    def raw_value(self, key: str) -> object:
        """The raw value, for keys that may be written in several ways."""
        return self._take(key, None)

    def table(self, key: str) -> TomlTable:
        """A table inside this one; empty if it is missing."""
        value = self._take(key, {})
        if not isinstance(value, dict):
            self.fail_at(key, f"{key} must be a table, not {_kind(value)}")
        return TomlTable(value, self._source, self._code, self._lines, (*self._path, key))

    def tables(self, key: str) -> tuple[TomlTable, ...]:
        """The tables of an array of tables."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.fail_at(key, f"{key} must be written as [[{key}]]")
        return tuple(
            TomlTable(item, self._source, self._code, self._lines, (*self._path, key, index))
            for index, item in enumerate(value)
        )

    def named(self, key: str, read: Callable[[TomlTable], T]) -> dict[str, T]:
        """What ``read`` makes of each table in a table, by its name; a table may have no key that is not read."""
        tables, found = self.table(key), {}
        for name in tables.keys():
            one = tables.table(name)
            found[name] = read(one)
            one.reject_unknown_keys()
        return found

    def keys(self) -> tuple[str, ...]:
        """The keys present, in order."""
        return tuple(self._values)

    def reject_unknown_keys(self) -> None:
        """Raise an error about the first unknown key."""
        for key in self._values:
            if key not in self._seen:
                self.fail_at(key, f"{key!r} is not known here", hint=f"known: {', '.join(sorted(self._seen))}")

    def _take(self, key: str, default: object) -> object:
        self._seen.add(key)
        value = self._values.get(key, default)
        if value is None:
            self.fail_at(None, f"{key} is missing")
        return value


def _kind(value: object) -> str:
    names = {
        str: "a string",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a table",
    }
    return names.get(type(value), "a date or time")
