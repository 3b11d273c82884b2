"""Foreign text made safe to show: reasons, names, a vendor's words."""

from __future__ import annotations


def plain(text: str) -> str:
    """``text`` with control characters made visible, on one line: no answer can move the cursor or break a row."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
