"""Files that are complete or absent, and locks on files.

Every program of ours may be killed at any moment. So a file is written beside its path and renamed to it, and a lock is
``flock``: it ends with the last process that has it open. Standard library alone: programs that must start fast use it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LOCK_POLL_S = 0.01


@contextlib.contextmanager
def create_file(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file, with those permissions whatever the umask is; ``durable``: on the disk after the block.

    Raises:
        OSError: it exists, or cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        yield file
        file.flush()
        if durable:
            os.fsync(descriptor)


@contextlib.contextmanager
def atomic_file(
    path: Path, *, mode: int = 0o600, durable: bool = True, replace: bool = True, temporary: Path | None = None
) -> Iterator[BinaryIO]:
    """Yield a file that appears at ``path`` after the block, complete; an error in the block leaves ``path`` as it was.

    Args:
        path: the file; its folder exists.
        mode: its permissions, whatever the umask is.
        durable: it survives a power cut after the block.
        replace: whether it may replace a file.
        temporary: its path during the block, for writers with a lock; a killed one leaves it, and the next reuses it.

    Raises:
        FileExistsError: there is a file, and ``replace`` is false.
        OSError: nothing was written.
    """
    draft = temporary or path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}")
    if temporary is not None:
        draft.unlink(missing_ok=True)  # of a writer that was killed
    placed = False
    try:
        with create_file(draft, mode=mode, durable=durable) as file:
            yield file
        if replace:
            draft.replace(path)
            placed = True
        else:
            path.hardlink_to(draft)
    finally:
        if not placed:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    if durable:
        fsync_path(path.parent)


def write_atomically(
    path: Path,
    content: bytes,
    *,
    mode: int = 0o600,
    durable: bool = True,
    replace: bool = True,
    temporary: Path | None = None,
) -> None:
    """Write a file whole or not at all; arguments and errors are those of ``atomic_file``."""
    with atomic_file(path, mode=mode, durable=durable, replace=replace, temporary=temporary) as file:
        file.write(content)


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's new, renamed and removed entries durable.

    Raises:
        OSError: that failed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(path: Path, wait_s: float = 0.0, *, shared: bool = False, create: bool = True) -> int | None:
    """Return a descriptor with the lock of a file; None: another process held the lock for ``wait_s`` seconds.

    Raises:
        OSError: it cannot be opened or locked.
    """
    # NFS only locks files opened for writing.
    flags = os.O_RDWR | (os.O_CREAT if create else 0) | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    locked = False
    try:
        locked = take_lock(descriptor, wait_s, shared=shared)
    finally:
        if not locked:
            os.close(descriptor)
    return descriptor if locked else None


@contextlib.contextmanager
def hold_lock(path: Path, wait_s: float = 0.0) -> Iterator[bool]:
    """Lock a file for the block; yield False if another process held the lock for ``wait_s`` seconds.

    Raises:
        OSError: it cannot be opened or locked.
    """
    descriptor = lock_file(path, wait_s)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def take_lock(descriptor: int, wait_s: float = 0.0, *, shared: bool = False, poll_s: float = LOCK_POLL_S) -> bool:
    """Lock an open file; return False if another process held the lock for ``wait_s`` seconds.

    Raises:
        OSError: it cannot be locked.
    """
    give_up = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:  # flock has no timeout, and a wait without one could block a thread forever
            if time.monotonic() >= give_up:
                return False
            time.sleep(poll_s)
        else:
            return True
