"""Small files of root's own: written whole or not at all, and surely on disk before anybody is told."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

RECORD_BYTES_MAX = 4 << 20


def write_record(path: Path, record: dict[str, Any], *, mode: int = 0o600) -> None:
    """Write a record durably; the folder is root's, so nobody else puts anything in the way.

    Raises:
        OSError: that failed.
    """
    draft = path.with_name(f".{path.name}.draft")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps(record).encode())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    fsync_folder(path.parent)


def read_record(path: Path) -> dict[str, Any] | None:
    """A record; None: there is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = json.loads(file.read(RECORD_BYTES_MAX))
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no record")  # noqa: TRY004 - as JSON that cannot be parsed
    return found


def fsync_folder(folder: Path) -> None:
    """Put a folder's names on disk.

    Raises:
        OSError: that failed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
