"""``-l``: labels to search for, in kubectl's syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from moorings.core.model.errors import MooringsError
from moorings.workloads.labels import check_labels

Labels = Mapping[str, str] | None
_COMPARISON = re.compile(r"([^=!]*)(!=|==?)(.*)")
_HINT = "write -l team=nlp, -l team!=nlp, -l team or -l '!team', several joined by commas"


def parse_label_selectors(texts: Sequence[str]) -> Callable[[Labels], bool]:
    """Whether labels meet all of ``key=value``, ``key!=value``, ``key`` and ``!key``, joined by commas or given apart.

    Raises:
        MooringsError: ``label.invalid``.
    """
    wanted = [_parse_condition(text.strip()) for text in ",".join(texts).split(",")] if texts else []
    return lambda labels: all(is_met(labels or {}) for is_met in wanted)


def _parse_condition(text: str) -> Callable[[Mapping[str, str]], bool]:
    found = _COMPARISON.fullmatch(text)
    key, value = (found[1], found[3]) if found else (text.removeprefix("!"), "")
    is_not = found[2] == "!=" if found else text.startswith("!")
    try:
        check_labels({key: value})
    except MooringsError as error:
        raise MooringsError("label.invalid", f"-l {text[:80]!r}: {error.detail}", hint=_HINT) from error
    if found:
        return lambda labels: (labels.get(key) == value) is not is_not
    return lambda labels: (key in labels) is not is_not
