"""Markdown for the pages: one way to write tables and the line that says a page is generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WIDTH_MAX = 80  # of every column but the last; wider lines are too long to read
GENERATED = "<!-- Made by `make docs` from the code; do not edit. -->\n\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose columns are aligned in the source, too."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in (heads, *rows)]
    widths = [min(max(len(row[column]) for row in cells), WIDTH_MAX) for column in range(len(heads))]
    widths[-1] = len(heads[-1])  # the last column needs no padding
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def code(text: object) -> str:
    """``text`` as code; empty for empty text."""
    return f"`{text}`" if str(text) else ""


def anchor(title: str) -> str:
    """The anchor that forges make from a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")
