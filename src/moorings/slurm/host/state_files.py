"""The agent's files in StateSaveLocation."""

from __future__ import annotations

import os
from pathlib import Path

DRAFT = ".draft"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file, whole or not at all, readable by its owner alone.

    No fsync: a power cut that loses this file also ends slurmctld, which saves no sooner.

    Raises:
        OSError: nothing was replaced.
    """
    draft = path.with_name(f"{path.name}{DRAFT}")
    with open(draft, "wb", opener=_private) as file:
        file.write(content)
    draft.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
