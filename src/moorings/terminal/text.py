"""Makes foreign text safe to show: reasons, names, a vendor's words."""

from __future__ import annotations


def is_printable(char: str) -> bool:
    """Whether a character only shows itself (or ends a line): no control, none that changes the reading direction."""
    return char == "\n" or char.isprintable()


def is_all_printable(text: str) -> bool:
    """Whether every character of ``text`` is harmless; fast, also for a listing of megabytes."""
    return text.replace("\n", "").isprintable()


def escape_controls(text: str) -> str:
    """``text`` with control characters made visible, on one line: no response can move the cursor or break a row."""
    if text.isprintable():  # most texts are, and a listing has a hundred thousand
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def cut_text(text: str, chars: int, *, unicode: bool = True) -> str:
    """``text`` in at most so many characters, with a sign where it was cut."""
    sign = "…" if unicode else "..."
    return text if len(text) <= chars else text[: chars - len(sign)] + sign
