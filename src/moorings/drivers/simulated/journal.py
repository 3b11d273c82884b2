"""The machine's memory: an append-only file of JSON lines that one process at a time writes.

Each record is one write to the page cache, so a killed process loses nothing that was answered; only a power cut could,
and simulated hardware does not survive that. Refused: SQLite (twenty times the cost of an append, and a benchmark makes
a thousand partitions a second here) and rewriting a state file (a kill in the middle loses all of it).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from moorings.core.errors import MooringsError

Record = dict[str, object]

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """The journal in ``folder`` (0700, made if need be), locked for this process until ``close``.

    Raises:
        MooringsError: ``driver.unavailable``: the folder cannot be used, or another process uses it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"
        self.length = 0
        self._file = -1
        self._bytes = 0
        try:
            _make_private(folder)
            self._lock = _open_private(folder / "lock", os.O_RDWR)
        except OSError as error:
            raise _unavailable(f"the folder {folder} of a simulated pool cannot be used: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise MooringsError(
                "driver.unavailable",
                f"another process uses the simulated pool in {folder}",
                hint="one controller at a time can drive a simulated pool; stop the other one",
                retryable=True,
            ) from error

    def read(self) -> Iterator[Record]:
        """Every whole record; a torn last line (the process was killed while it wrote) is left out.

        Raises:
            MooringsError: ``driver.unavailable``: the file cannot be read, or is damaged before its end.
        """
        try:
            lines = self.path.read_bytes().split(b"\n") if self.path.exists() else []
        except OSError as error:
            raise _unavailable(f"{self.path} cannot be read: {error}") from error
        for number, line in enumerate(lines[:-1], start=1):  # after the last newline stands nothing, or a torn line
            try:
                record = json.loads(line)
            except ValueError as error:
                raise self.damaged(number, str(error)) from error
            if not isinstance(record, dict):
                raise self.damaged(number, "not an object")
            yield record

    def damaged(self, line: int, problem: str) -> MooringsError:
        """The error that says that a line cannot be understood."""
        return MooringsError(
            "driver.unavailable",
            f"{self.path}:{line}: the simulated machine's journal is damaged: {problem}",
            hint="move the file away to start with an empty machine",
        )

    def append(self, record: Record) -> None:
        """Write one record, whole or not at all.

        Raises:
            MooringsError: ``driver.unavailable``: nothing was written.
        """
        line = f"{_encode(record)}\n".encode()
        try:
            _write_all(self._file, line)
        except OSError as error:
            self._cut_back()
            raise _unavailable(f"{self.path} cannot be written: {error}") from error
        self._bytes += len(line)
        self.length += 1

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the whole content, atomically, and go on appending to it.

        Raises:
            MooringsError: ``driver.unavailable``: the old content stays.
        """
        lines = [f"{_encode(record)}\n".encode() for record in records]
        content = b"".join(lines)
        fresh = self.path.with_suffix(".new")
        try:
            file = _open_private(fresh, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
            try:
                _write_all(file, content)
                fresh.replace(self.path)
            except OSError:
                os.close(file)
                raise
        except OSError as error:
            raise _unavailable(f"{self.path} cannot be rewritten: {error}") from error
        if self._file >= 0:
            os.close(self._file)
        self._file, self._bytes, self.length = file, len(content), len(lines)

    def close(self) -> None:
        """Let go of file and lock; a second call does nothing."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _cut_back(self) -> None:
        # Half a line in the middle would make the next record unreadable too.
        if self._file >= 0:
            os.ftruncate(self._file, self._bytes)


def _make_private(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _open_private(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _write_all(file: int, content: bytes) -> None:
    if os.write(file, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _unavailable(detail: str) -> MooringsError:
    return MooringsError("driver.unavailable", detail, retryable=True)
