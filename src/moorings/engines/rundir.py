"""A run's folder with a folder for each attempt: what is alike of it, whoever's scheduler the run is in.

::

    <run id>/<attempt>/
        order.json        what was asked; an attempt without it was not ordered
        logs/<rank>.log   output
        end.json          how the attempt ended; the last word

Files are 0600, made whole and durably, and a record's first word stays.
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
        """Where a task's output goes."""
        return self.path / "logs" / f"{rank}.log"

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file, whole and durably.

        Raises:
            OSError: it was not.
        """
        path = self.path / name
        _write_temporary(path, content).rename(path)

    def write_once(self, name: str, content: bytes) -> None:
        """Make a file, unless it is there.

        Raises:
            OSError: it could not be made.
        """
        path = self.path / name
        draft = _write_temporary(path, content)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    def save_end(self, end: EndRecord) -> None:
        """Write how the attempt ended; the first word stays."""
        self.write_once("end.json", to_json(end))


AttemptT = TypeVar("AttemptT", bound=AttemptFolder)


class RunFolder(ABC, Generic[AttemptT]):
    """One run's folder; need not exist."""

    ids: ClassVar[re.Pattern[str]]  # of runs that the engine can have

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, runs: Path, run: RunId) -> Self | None:
        """The folder of that run below ``runs``; None if the id cannot be one of ours (it would leave the folder)."""
        return cls(runs / run) if cls.ids.fullmatch(run) else None

    def newest(self) -> AttemptT | None:
        """The newest attempt that was ordered; None: there is none.

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
        """That attempt."""


def to_json(record: object) -> bytes:
    """A record as JSON."""
    return json.dumps(to_plain(record)).encode()


def _write_temporary(path: Path, content: bytes) -> Path:
    """A file beside ``path``, whole and on the disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    return draft
