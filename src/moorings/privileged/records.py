"""Small files of root's own: written whole or not at all, and surely on disk before anybody is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RECORD_BYTES_MAX = 4 << 20
RESERVED_BYTES = 4096
FREE_BYTES_MIN = 64 << 20  # left on the disk, for the records of what runs


def write_record(path: Path, record: dict[str, Any], *, owner: int | None = None) -> None:
    """Write a record durably; the folder is root's, so nobody else puts anything in the way.

    Args:
        path: where.
        record: what.
        owner: the only user to read it; None: the one who writes it.

    Raises:
        OSError: that failed.
    """
    draft = _draft(path)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if owner is not None:
            os.fchown(descriptor, owner, -1)
        file.write(json.dumps(record).encode())
        file.truncate()  # it may have been reserved
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    fsync_folder(path.parent)


def reserve_record(path: Path) -> None:
    """Take the space of a small record now: it can be written when the disk is full.

    Raises:
        OSError: that failed.
    """
    descriptor = os.open(_draft(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, RESERVED_BYTES)
    finally:
        os.close(descriptor)


def is_nearly_full(folder: Path) -> bool:
    """Whether a folder's disk has no more room than what is kept for the records of what runs."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize < FREE_BYTES_MIN


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.draft")


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
