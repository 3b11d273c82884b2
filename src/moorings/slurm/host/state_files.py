"""The agent's files in StateSaveLocation."""

from __future__ import annotations

from pathlib import Path

from moorings.files import write_atomically

DRAFT = ".draft"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file, whole or not at all, readable by its owner alone.

    No fsync: a power cut that loses this file also ends slurmctld, which saves no sooner.

    Raises:
        OSError: nothing was replaced.
    """
    write_atomically(path, content, durable=False, temporary=path.with_name(f"{path.name}{DRAFT}"))
