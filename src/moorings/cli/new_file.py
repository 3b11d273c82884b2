"""A file that a command makes for its user: new, private, and visible only when complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A new file with mode 0600, made before its contents are collected; removed again if it is not completed.

    Raises:
        MooringsError: ``config.invalid``.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unwritable_error(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable_error(path, error) from error
        raise


def unwritable_error(path: Path, error: OSError) -> MooringsError:
    """The error for a file that cannot be made."""
    return MooringsError("config.invalid", f"{path} cannot be written: {format_cause(error)}", hint="name another one")
