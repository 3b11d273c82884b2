"""The machine's memory: an append-only file of JSON lines, written by one process at a time and read by the others.

Each record is one write to the page cache, so a killed process loses no answered change; only a power cut could lose
one, and simulated hardware does not survive that. Refused: SQLite (twenty times the cost of an append, and a benchmark
makes a thousand partitions a second here) and rewriting a state file (a kill in the middle loses all of it).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.files import take_lock

Record = dict[str, object]

LOCK_WAIT_S, LOCK_POLL_S = 0.05, 0.001  # a request takes far less; after this long it fails, and is retried

_encode = json.JSONEncoder(separators=(",", ":")).encode


class HardwareJournal:
    """The journal in ``folder`` (0700, made if missing).

    Raises:
        MooringsError: ``driver.unavailable``: the folder cannot be used.
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

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing until the end of the block.

        Raises:
            MooringsError: ``driver.unavailable``: another process holds the lock, because it was stopped at this point.
        """
        if not take_lock(self._lock, LOCK_WAIT_S, poll_s=LOCK_POLL_S):
            raise _unavailable(f"another process holds the lock in {self.path.parent}")
        try:
            yield
        finally:
            if self._lock >= 0:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def read_new(self) -> tuple[bool, int, list[Record]]:
        """Return the news of other processes: whether all is new, the number of the first line, the records.

        A torn last line (its process was killed during the write) is cut off. The journal must be ``held``.

        Raises:
            MooringsError: ``driver.unavailable``: the file cannot be read, or is damaged before its end.
        """
        try:
            size = self._size()
            from_start = size is None
            if size is None:
                self._open()
                size = os.fstat(self._file).st_size
            if size == self._bytes:
                return from_start, 1, []
            content = os.pread(self._file, size - self._bytes, self._bytes)
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.ftruncate(self._file, self._bytes + whole)
        except OSError as error:
            raise _unavailable(f"{self.path} cannot be read: {error}") from error
        first = self.length + 1
        records = [self._parse(line, number) for number, line in enumerate(content[:whole].splitlines(), first)]
        self._bytes += whole
        self.length += len(records)
        return from_start, first, records

    def _size(self) -> int | None:
        """Return the bytes of the journal; None if our open file is outdated: another process has rewritten it."""
        if self._file < 0:
            return None
        mine = os.fstat(self._file)
        return mine.st_size if mine.st_nlink and mine.st_size >= self._bytes else None

    def _open(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._bytes = self.length = 0
        self._file = _open_private(self.path, os.O_RDWR | os.O_APPEND)

    def _parse(self, line: bytes, number: int) -> Record:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.damage_error(number, str(error)) from error
        if not isinstance(record, dict):
            raise self.damage_error(number, "not an object")
        return record

    def damage_error(self, line: int, problem: str) -> MooringsError:
        """Return the error for an unreadable line."""
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
            self._truncate()
            raise _unavailable(f"{self.path} cannot be written: {error}") from error
        self._bytes += len(line)
        self.length += 1

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the whole content, atomically; later appends follow it.

        Raises:
            MooringsError: ``driver.unavailable``: the old content stays.
        """
        lines = [f"{_encode(record)}\n".encode() for record in records]
        content = b"".join(lines)
        fresh = self.path.with_suffix(".new")
        try:
            file = _open_private(fresh, os.O_RDWR | os.O_TRUNC | os.O_APPEND)
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
        """Close file and lock; a second call does nothing."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _truncate(self) -> None:
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
