"""Roff's man macros: the few that manual pages need, and the escapes that keep text from being read as requests."""

from __future__ import annotations

import re
from collections.abc import Iterable

RELEASED = "2026-11-21"  # the release's date, not today's: the same code gives the same pages

_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def escape(text: str) -> str:
    """``text`` shown unchanged: hyphens stay hyphens when copied, and no line is a request."""
    text = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")
    )
    text = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in text)
    return f"\\&{text}" if text.startswith(".") else text


def prose(text: str) -> str:
    """A paragraph of Markdown: code in bold, links as their text."""
    parts = _SPAN.split(_LINK.sub(r"\1", " ".join(text.split())))
    told = [f"\\fB{escape(part)}\\fP" if index % 2 else escape(part) for index, part in enumerate(parts)]
    shown = "".join(told)
    return f"\\&{shown}" if shown.startswith((".", "'")) else shown


def head(name: str, number: int, version: str) -> str:
    """The first lines of a page of section ``number``."""
    made = '.\\" Made by "make docs" from the code; do not edit.\n'
    return f'{made}.TH {name.upper()} {number} {RELEASED} "Moorings {version}"\n'


def section(title: str, *parts: str) -> str:
    """A section; its first paragraph needs no macro."""
    return f".SH {title}\n" + "".join(parts).removeprefix(".PP\n")


def subsection(title: str, *parts: str) -> str:
    """A section of a section."""
    return f".SS {escape(title)}\n" + "".join(parts).removeprefix(".PP\n")


def paragraph(text: str) -> str:
    """A paragraph."""
    return f".PP\n{prose(text)}\n" if text.strip() else ""


def tagged(term: str, text: str) -> str:
    """A term (Markdown) and its meaning."""
    meaning = prose(text) or "\\&"
    return f".TP\n{prose(term)}\n{meaning}\n"


def verbatim(lines: Iterable[str]) -> str:
    """Lines unchanged."""
    shown = "\n".join(escape(line) or "\\&" for line in lines)
    return f".PP\n.nf\n.RS 4\n{shown}\n.RE\n.fi\n"
