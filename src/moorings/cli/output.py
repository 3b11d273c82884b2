"""The output formats for people and programs: table, wide, json, yaml, name, csv, custom columns; and ``describe``.

``render`` is a function from values and the time to text, so every format has its golden file. JSON and YAML have the
REST names; the table is for people and for ``awk``: three spaces between columns, ``-`` for nothing, never a broken
line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import zip_longest
from typing import Any, TypeVar, get_origin

from moorings.cli.resources import NOTHING, ResourceKind, TableColumn, age
from moorings.core.model.errors import MooringsError
from moorings.core.model.quantities import duration_text
from moorings.core.model.timestamps import Timestamp
from moorings.terminal.text import cut_text, escape_controls, is_all_printable, is_printable
from moorings.wire.codec import encode, field_types
from moorings.wire.shapes import API_VERSION

T = TypeVar("T")

FORMATS = ("table", "wide", "json", "yaml", "name", "csv")
CUSTOM = "custom-columns"
GAP = "   "
LAST_CHARS = 20  # of the last column on a narrow terminal, if narrower others leave them
NARROWED_CHARS = 8  # at least, of a column that is cut
_ACRONYMS = {"id": "ID", "gcd": "GCD", "gcds": "GCDs", "cpus": "CPUs", "csx": "CSX"}

_COLOUR_OF = {
    **dict.fromkeys(("UP", "READY", "ACTIVE", "RUNNING", "SUCCEEDED", "IN_SERVICE", "VALID", "PASS"), "green"),
    **dict.fromkeys(("FAILED", "LOST", "ERROR", "UNREACHABLE", "TIMED_OUT", "FAIL"), "red"),
    **dict.fromkeys(("PENDING", "WAITING", "GRANTED", "PROVISIONING", "STARTING", "STOPPING", "WARN"), "yellow"),
    **dict.fromkeys(
        ("DRAINED", "QUARANTINED", "RESETTING", "RECLAIMING", "YIELDING", "RELEASING", "REMOVING"), "yellow"
    ),
    **dict.fromkeys(("CANCELLED", "RELEASED", "ANNOUNCED", "REVOKED", "EXPIRED", "SKIP"), "grey"),
}


@dataclass(frozen=True, slots=True)
class TableStyle:
    """The style of a table.

    Attributes:
        headers: whether it has a header line.
        width: characters of a line, or None: nothing is cut.
        paint: colours a text.
        unicode: whether JSON may hold characters beyond ASCII, and a cut line ends with its sign.
        widths: of the columns so far, so that later rows align with the header; None: each table by itself.
    """

    headers: bool = True
    width: int | None = None
    paint: Callable[[str, str], str] = lambda text, _colour: text
    unicode: bool = True
    widths: list[int] | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """An output format: its name, and for custom columns their (header, path) pairs."""

    name: str = "table"
    columns: tuple[tuple[str, str], ...] = ()


def parse_format(text: str) -> OutputFormat:
    """Parse the value of ``-o``.

    Raises:
        MooringsError: ``name.invalid``.
    """
    name, _, argument = text.partition("=")
    if name in FORMATS and not argument:
        return OutputFormat(name)
    pairs = tuple(tuple(part.split(":", 1)) for part in argument.split(",")) if name == CUSTOM else ()
    if pairs and all(len(pair) == 2 and all(pair) for pair in pairs):
        return OutputFormat(CUSTOM, tuple((pair[0], pair[1].lstrip(".")) for pair in pairs))
    raise MooringsError(
        "name.invalid",
        f"{text[:40]!r} is no form of output",
        hint=f"use {', '.join(FORMATS)} or {CUSTOM}=NAME:.name,STATE:.state",
    )


def render_list(
    kind: ResourceKind[T],
    items: Sequence[T],
    output_format: OutputFormat,
    now: Timestamp,
    style: TableStyle = TableStyle(),
) -> str:
    """Items as text without the last newline; empty if there is nothing to show."""
    if output_format.name in ("json", "yaml"):
        listed: dict[str, object] = {
            "apiVersion": API_VERSION,
            "kind": f"{kind.api}List",
            "items": [encode(item) for item in items],
        }
        return _document(listed, output_format, style)
    return _lines(kind, items, output_format, now, style)


def render_one(
    kind: ResourceKind[T], item: T, form: OutputFormat, now: Timestamp, look: TableStyle = TableStyle()
) -> str:
    """One item as text; JSON and YAML give the item itself, not a list."""
    if form.name in ("json", "yaml"):
        return _document(_resource(kind, item), form, look)
    return _lines(kind, (item,), form, now, look)


def render_line(kind: ResourceKind[T], item: T, look: TableStyle = TableStyle()) -> str:
    """One item as one line of JSON, for watching."""
    return _escaped(json.dumps(_resource(kind, item), ensure_ascii=not look.unicode, separators=(",", ":")))


def render_data(data: Mapping[str, object], form: OutputFormat, look: TableStyle = TableStyle()) -> str:
    """Plain data as JSON or YAML."""
    return _document(dict(data), form, look)


def render_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    look: TableStyle = TableStyle(),
    narrowed: Sequence[int] = (),
    dropped: Sequence[int] = (),
) -> str:
    """Aligned columns; on a terminal no line is longer than it is wide.

    First the last column is cut to ``LAST_CHARS``, then those of the numbers in ``narrowed``, the widest first, to
    ``NARROWED_CHARS``. Columns in ``dropped`` are left out, in that order, if that is not enough; then what is furthest
    to the right.
    """
    cells = [[escape_controls(cell) or NOTHING for cell in row] for row in rows]
    shown = [list(headers), *cells] if look.headers else cells
    widths = [max((len(row[index]) for row in shown), default=0) for index in range(len(headers))]
    if look.widths is not None:
        look.widths[:] = widths = [max(pair) for pair in zip_longest(widths, look.widths, fillvalue=0)]
    fitted = _fit_columns(widths, narrowed, dropped, look)
    lines = []
    for number, row in enumerate(shown):
        cut = [_cut(row[index], width, look) for index, width in fitted.items()]
        padded = [cell.ljust(width) for cell, width in zip(cut[:-1], fitted.values(), strict=False)] + cut[-1:]
        if number or not look.headers:
            padded = [_painted(cell, text, look) for cell, text in zip(padded, cut, strict=True)]
        lines.append(GAP.join(padded))
    return "\n".join(lines)


def describe(body: object, now: Timestamp, look: TableStyle = TableStyle()) -> str:
    """Everything about one object, a field a line, with labels for humans."""
    return "\n".join(_describe_fields(encode(body), now, look, depth=0))


def check_field(kind: ResourceKind[T], path: str) -> None:
    """Check that items of that kind have a JSON field, so that a mistyped field is an error and not an order.

    Raises:
        MooringsError: ``name.invalid``.
    """
    shape: Any = kind.shape
    for part in path.lstrip(".").split("."):
        names = field_types(shape) if isinstance(shape, type) and is_dataclass(shape) else {}
        if part not in names and get_origin(shape) is not Mapping:
            known = f"fields: {', '.join(sorted(names))}" if names else ""
            raise MooringsError("name.invalid", f"a {kind.noun} has no field {path[:80]!r}", hint=known)
        shape = names.get(part)


def sort_items(items: Sequence[T], path: str) -> list[T]:
    """Items sorted by a JSON field (``createdAt``, ``job.accelerators.size``); items without it come last."""

    def place(item: T) -> tuple[int, float, str]:
        value = _at(encode(item), path.lstrip("."))
        if isinstance(value, int | float):
            return (0, float(value), "")
        return (1, 0.0, str(value)) if value is not None else (2, 0.0, "")

    return sorted(items, key=place)


def _lines(kind: ResourceKind[T], items: Sequence[T], form: OutputFormat, now: Timestamp, look: TableStyle) -> str:
    if form.name == "name":
        named = kind.reference or (lambda item: f"{kind.noun}/{kind.ident(item)}")
        return "\n".join(escape_controls(named(item)) for item in items)
    if form.name == CUSTOM:
        rows = [[_text(_at(encode(item), path)) for _, path in form.columns] for item in items]
        return render_table([header for header, _ in form.columns], rows, look)
    if form.name == "csv":
        return _csv(kind.columns, items, now, look)
    if form.name == "table" and kind.folded is not None:
        return _table(kind.folded.columns, kind.folded.fold(items), now, look)
    columns = [column for column in kind.columns if form.name == "wide" or not column.wide]
    return _table(columns, items, now, look)


def _table(columns: Sequence[TableColumn[T]], items: Sequence[T], now: Timestamp, look: TableStyle) -> str:
    rows = ([_text(column.cell(item, now)) for column in columns] for item in items)
    narrowed = [index for index, column in enumerate(columns) if column.is_narrowed]
    ranks = sorted((column.rank, index) for index, column in enumerate(columns) if column.rank)
    return render_table([column.header for column in columns], rows, look, narrowed, [index for _, index in ranks])


def _csv(columns: Sequence[TableColumn[T]], items: Sequence[T], now: Timestamp, look: TableStyle) -> str:
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if look.headers:
        writer.writerow(column.header for column in columns)
    writer.writerows([escape_controls(_text(column.cell(item, now))) for column in columns] for item in items)
    return buffer.getvalue().rstrip("\n")


def _resource(kind: ResourceKind[T], item: T) -> dict[str, object]:
    return {"apiVersion": API_VERSION, "kind": kind.api, **encode(item)}


def _document(data: dict[str, object], form: OutputFormat, look: TableStyle) -> str:
    if form.name == "yaml":
        return _yaml(data, unicode=look.unicode)
    return _escaped(json.dumps(data, indent=2, ensure_ascii=not look.unicode))


def _yaml(data: dict[str, object], *, unicode: bool) -> str:
    import yaml  # costs 40 ms, so it is imported only when needed

    text = str(yaml.safe_dump(data, sort_keys=False, allow_unicode=unicode, width=1000)).rstrip("\n")
    if unicode and not is_all_printable(text):  # YAML escapes as little as possible, and this is all or nothing
        return _yaml(data, unicode=False)
    return text


def _escaped(document: str) -> str:
    """JSON without characters that move the cursor or change the reading direction: ``json`` leaves some unescaped."""
    if is_all_printable(document):
        return document
    return "".join(char if is_printable(char) else json.dumps(char)[1:-1] for char in document)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _fit_columns(
    widths: Sequence[int], narrowed: Sequence[int], dropped: Sequence[int], look: TableStyle
) -> dict[int, int]:
    """The columns that the terminal shows, by number, with the width of each."""
    fitted, last = dict(enumerate(widths)), len(widths) - 1
    if look.width is None:
        return fitted
    least = {**dict.fromkeys(narrowed, NARROWED_CHARS), last: LAST_CHARS}
    for index in dropped:
        if _line_chars(min(width, least.get(each, width)) for each, width in fitted.items()) <= look.width:
            break
        del fitted[index]
    _narrow(fitted, [last], LAST_CHARS, look.width)
    _narrow(fitted, narrowed, NARROWED_CHARS, look.width)
    return _clip(fitted, look.width)


def _narrow(fitted: dict[int, int], able: Sequence[int], least: int, chars: int) -> None:
    """Narrow these columns, the widest first, until a line has at most so many characters."""
    over = _line_chars(fitted.values()) - chars
    while over > 0:
        widest = max((index for index in able if fitted.get(index, 0) > least), key=fitted.__getitem__, default=None)
        if widest is None:
            return
        fitted[widest] -= 1
        over -= 1


def _clip(fitted: Mapping[int, int], chars: int) -> dict[int, int]:
    """The columns that fit into a line of so many characters, from the left; the last of them may be cut."""
    clipped: dict[int, int] = {}
    for index, width in fitted.items():
        room = chars - _line_chars(clipped.values()) - (len(GAP) if clipped else 0)
        if clipped and room < min(width, NARROWED_CHARS):
            break
        clipped[index] = min(width, max(room, NARROWED_CHARS))
    return clipped


def _line_chars(widths: Iterable[int]) -> int:
    shown = list(widths)
    return sum(shown) + len(GAP) * max(0, len(shown) - 1)


def _cut(cell: str, width: int, look: TableStyle) -> str:
    return cell if look.width is None else cut_text(cell, width, unicode=look.unicode)


def _painted(padded: str, text: str, look: TableStyle) -> str:
    colour = _COLOUR_OF.get(text, "")
    return padded.replace(text, look.paint(text, colour), 1) if colour else padded


def _at(data: object, path: str) -> object:
    for part in path.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return json.dumps(data) if isinstance(data, dict | list) else data


def _describe_fields(data: Mapping[str, Any], now: Timestamp, look: TableStyle, depth: int) -> list[str]:
    known = {name: value for name, value in data.items() if not _is_empty(value)}
    labels = {name: _label(name) + ":" for name in known}
    width = max((len(label) for label in labels.values()), default=0)
    lines = []
    for name, value in known.items():
        indent = "  " * depth
        if name == "environment":  # names only: people do keep secrets in variables
            lines.append(f"{indent}{labels[name].ljust(width)}  {escape_controls(', '.join(sorted(value)))}")
        elif isinstance(value, dict):
            lines += [indent + labels[name], *_describe_fields(value, now, look, depth + 1)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [indent + labels[name], *_entries(value, now, look, depth + 1)]
        else:
            text = _value(name, value, now)
            lines.append(f"{indent}{labels[name].ljust(width)}  {look.paint(text, _COLOUR_OF.get(text, ''))}")
    return lines


def _is_empty(value: object) -> bool:
    return value in ("", None, [], {}) or (isinstance(value, list) and all(item is None for item in value))


def _entries(values: Sequence[Mapping[str, Any]], now: Timestamp, look: TableStyle, depth: int) -> list[str]:
    lines = []
    for value in values:
        inner = _describe_fields(value, now, look, depth + 1)
        lines += ["  " * depth + "- " + inner[0].lstrip(), *inner[1:]] if inner else []
    return lines


def _label(name: str) -> str:
    stem = name.removesuffix("S") if name.endswith(("LimitS", "leaseS", "warnS", "graceS")) else name
    if "_" in stem:
        return escape_controls(stem)
    words = "".join(f" {char.lower()}" if char.isupper() else char for char in stem).split()
    shown = [_ACRONYMS.get(word, word) for word in words]
    return escape_controls(" ".join([shown[0][:1].upper() + shown[0][1:], *shown[1:]]))


def _value(name: str, value: object, now: Timestamp) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "command" and isinstance(value, list):
        return escape_controls(shlex.join(map(str, value)))
    if isinstance(value, list):
        return ", ".join(NOTHING if item is None else escape_controls(str(item)) for item in value)
    if isinstance(value, str) and (name.endswith(("At", "Until")) or name in ("since", "until", "at")):
        shown = escape_controls(f"{value[:19]}Z")
        return f"{shown} ({age(value, now)} ago)" if name not in ("until", "leaseUntil") else shown
    if isinstance(value, int | float) and name.endswith("S") and name[-2:-1].islower():
        return duration_text(value)
    return escape_controls(str(value))
