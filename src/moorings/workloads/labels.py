"""Labels: words that owners put on runs to find them again."""

from __future__ import annotations

import re
from collections.abc import Mapping

from moorings.core.model.errors import MooringsError

LABELS_MAX = 32
_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?)?")


def check_labels(labels: Mapping[str, str]) -> None:
    """Check that these labels are allowed.

    Raises:
        MooringsError: ``label.invalid``.
    """
    if len(labels) > LABELS_MAX:
        raise MooringsError("label.invalid", f"{len(labels)} labels are more than {LABELS_MAX}")
    for key, value in labels.items():
        if not _KEY.fullmatch(key):
            raise MooringsError("label.invalid", f"{key[:80]!r} is not the key of a label", hint=_HINT)
        if not _VALUE.fullmatch(value):
            raise MooringsError("label.invalid", f"label {key}: {value[:80]!r} is not allowed", hint=_HINT)


_HINT = "use up to 63 letters, digits, '.', '_', '/' and '-'; begin and end with a letter or digit"


def apply_label_changes(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The labels after these changes; None removes one."""
    merged = {**labels, **changes}
    return {key: value for key, value in sorted(merged.items()) if value is not None}
