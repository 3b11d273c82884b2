"""Finds the checkpoint to resume from in a model's folder, without NumPy: an .npz file is a zip file with checksums."""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAME: Final = re.compile(r"checkpoint_(0|[1-9][0-9]{0,9})\.npz")
READ_MAX: Final = 8 << 20  # bytes at once; enough for the directory of some 50,000 arrays


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint: its path, and the number of steps done."""

    path: Path
    step: int


def parse_checkpoint_name(path: Path) -> CheckpointFile | None:
    """The checkpoint with that file name; None: the name has another form."""
    match = NAME.fullmatch(path.name)
    return CheckpointFile(path, int(match[1])) if match else None


def find_newest(folder: Path) -> tuple[CheckpointFile | None, list[str]]:
    """The newest intact checkpoint of a folder, and a sentence about each newer one that is damaged.

    Raises:
        OSError: the folder cannot be read.
    """
    damaged: list[str] = []
    if not folder.is_dir():
        return None, damaged
    found = [checkpoint for path in folder.iterdir() if (checkpoint := parse_checkpoint_name(path)) is not None]
    for checkpoint in sorted(found, key=lambda each: each.step, reverse=True):
        problem = find_damage(checkpoint.path)
        if problem is None:
            return checkpoint, damaged
        damaged.append(f"{checkpoint.path.name} cannot be used: {problem}")
    return None, damaged


def find_damage(path: Path) -> str | None:
    """The damage of a checkpoint's file; None: it is intact. Reads all of it, little at once.

    Another user may have put anything under such a name into a shared folder: never open a file that blocks or does not
    end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return "it is a link" if path.is_symlink() else error.strerror or str(error)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "it is no file"
        with _BoundedReads(descriptor, "rb", closefd=False) as file, zipfile.ZipFile(file) as archive:
            return _find_bad_member(archive.infolist(), status.st_size) or _find_bad_checksum(archive)
    except OSError as error:
        return error.strerror or str(error)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, struct.error) as error:
        return f"it is damaged ({str(error)[:80]})"
    finally:
        os.close(descriptor)


def _find_bad_member(members: list[zipfile.ZipInfo], size: int) -> str | None:
    """Find members that our files never have: compressed ones, or larger than the file."""
    if not members:
        return "it is empty"
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            return f"{member.filename[:80]!r} in it is packed"
    if sum(member.file_size for member in members) > size:
        return "it is shorter than what should be in it"
    return None


def _find_bad_checksum(archive: zipfile.ZipFile) -> str | None:
    bad = archive.testzip()
    return f"{bad[:80]!r} in it is damaged" if bad is not None else None


class _BoundedReads(io.FileIO):
    """A file that limits each read, whatever length a damaged field gives, so that memory does not run out."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = max(0, os.fstat(self.fileno()).st_size - self.tell())
        if size > READ_MAX:
            raise zipfile.BadZipFile("a length in it is too large")
        return super().read(size) or b""
