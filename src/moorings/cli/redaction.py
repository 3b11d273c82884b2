"""Takes secrets out of what is handed to others: by what they look like, by what they are called, and by what they are.

Three nets, because each has holes: a pattern does not know every form, a name may not say what it names, and a list of
known values is only as good as whoever made it. What is left out is replaced by ``LEFT_OUT``, so that a reader sees
that something was there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

LEFT_OUT = "[left out]"
VALUE_CHARS_MIN = 6  # shorter ones stand in too many words

_SECRET_NAME = re.compile(
    r"(?i)(pass(wd|word|phrase)?|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key|pepper|auth(?!or)|cookie)"
)
# What stands before a secret's name is in no pattern: a repetition there would cost the square of a long line.
_NAME = r"(?:pass(?:wd|word|phrase)?|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key)"
_VALUE = r"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;\"'}\]]+)"
_OPTION = re.compile(r"(?<!\S)(--?[\w-]+)\s+[^\s-]\S*")
_PATTERNS = (
    (re.compile(r"\b(moor_[A-Za-z0-9]+)_[A-Za-z0-9]+"), rf"\1_{LEFT_OUT}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {LEFT_OUT}"),
    (re.compile(r"(://[^\s:/@\"']{0,256}):[^\s@/\"']+@"), rf"\1:{LEFT_OUT}@"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), LEFT_OUT),
    (re.compile(r"\b[0-9a-fA-F]{64,}\b"), LEFT_OUT),  # a pepper, or a digest
    (re.compile(rf"(?i)({_NAME}[\w.-]{{0,64}}[\"']?\s{{0,8}}[=:]\s{{0,8}}){_VALUE}"), rf"\1{LEFT_OUT}"),
)


def is_secret_name(name: str) -> bool:
    """Whether something of that name should not be shown."""
    return _SECRET_NAME.search(name) is not None


def _without_value(option: re.Match[str]) -> str:
    return f"{option[1]} {LEFT_OUT}" if is_secret_name(option[1]) else option[0]


class Redaction:
    """Takes known values and everything that looks like a secret out of texts.

    Args:
        known: values that must not be shown, wherever they stand.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = sorted({value for value in known if len(value) >= VALUE_CHARS_MIN}, key=len, reverse=True)

    def text(self, text: str) -> str:
        """``text`` without secrets."""
        for value in self._known:
            text = text.replace(value, LEFT_OUT)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return _OPTION.sub(_without_value, text)

    def data(self, value: object, *, hidden: Collection[str] = ()) -> object:
        """Parsed JSON without secrets; of mappings called like one of ``hidden`` only the names are left."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self._item(before, item, hidden) for before, item in zip((None, *value), value, strict=False)]
        if isinstance(value, Mapping):
            return {self.text(str(key)): self._member(str(key), item, hidden) for key, item in value.items()}
        return value

    def _item(self, before: object, item: object, hidden: Collection[str]) -> object:
        """One of a list, which may be a command line: what follows ``--token`` is not shown."""
        if isinstance(before, str) and isinstance(item, str) and before.startswith("-") and is_secret_name(before):
            return self.data(item, hidden=hidden) if "=" in before or item.startswith("-") else LEFT_OUT
        return self.data(item, hidden=hidden)

    def _member(self, key: str, item: object, hidden: Collection[str]) -> object:
        if key in hidden:
            return {self.text(str(name)): LEFT_OUT for name in item} if isinstance(item, Mapping) else LEFT_OUT
        if isinstance(item, str) and item and is_secret_name(key):
            return LEFT_OUT
        return self.data(item, hidden=hidden)
