"""A run's folder with a folder for each attempt: the part that is the same for every scheduler.

::

    <run id>/<attempt>/
        order.json        the submission; an attempt without it was not submitted
        logs/<rank>.log   output
        end.json          how the attempt ended; final

Files are 0600 and written whole and durably, and the first record stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar

from moorings.core.records import to_plain
from moorings.workloads.runs import EndRecord, RunId


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """One attempt of a run."""

    path: Path
    number: int

    def log(self, rank: int) -> Path:
        """Return the path of a task's output."""
        return self.path / "logs" / f"{rank}.log"

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file, whole and durably.

        Raises:
            OSError: that failed.
        """
        path = self.path / name
        _write_temporary(path, content).rename(path)

    def write_once(self, name: str, content: bytes) -> None:
        """Create a file, unless it exists.

        Raises:
            OSError: it could not be created.
        """
        path = self.path / name
        draft = _write_temporary(path, content)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    def save_end(self, end: EndRecord) -> None:
        """Record how the attempt ended; the first record stays."""
        self.write_once("end.json", to_json(end))


AttemptT = TypeVar("AttemptT", bound=AttemptFolder)


class RunFolder(ABC, Generic[AttemptT]):
    """One run's folder; it need not exist."""

    ids: ClassVar[re.Pattern[str]]  # the ids of runs that the engine can have

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, runs: Path, run: RunId) -> Self | None:
        """Return the folder of that run below ``runs``; None for an invalid id (it would leave the folder)."""
        return cls(runs / run) if cls.ids.fullmatch(run) else None

    def newest(self) -> AttemptT | None:
        """Return the newest submitted attempt; None: there is none.

        Raises:
            OSError: the folder cannot be read.
        """
        try:
            numbers = sorted((int(each.name) for each in self.path.iterdir() if each.name.isdecimal()), reverse=True)
        except FileNotFoundError:
            return None
        attempts = (self.attempt(number) for number in numbers)
        return next((attempt for attempt in attempts if (attempt.path / "order.json").exists()), None)

    @abstractmethod
    def attempt(self, number: int) -> AttemptT:
        """Return that attempt."""


def to_json(record: object) -> bytes:
    """Return a record as JSON."""
    return json.dumps(to_plain(record)).encode()


def _write_temporary(path: Path, content: bytes) -> Path:
    """Write a file beside ``path``, whole and durably; return its path."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    return draft
