"""A run's folder, and for every engine with a scheduler of its own a folder for each attempt.

::

    <run id>/<attempt>/
        order.json        the submission; an attempt without it was not submitted
        pause.json        how it is to save and stop, of a run that is being paused
        logs/<rank>.log   output
        end.json          how the attempt ended; final

Files are 0600 and written whole and durably, and the first record stays.
"""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from moorings.core.model.serialization import from_plain, to_plain
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.files import write_atomically
from moorings.workloads.runs import EndRecord, RunId


@dataclass(frozen=True, slots=True)
class PauseOrder:
    """An order to save a checkpoint and stop.

    Attributes:
        reason: why, as a sentence.
        deadline: when no process may be left, however little was saved.
        known: path of the newest whole checkpoint by then; None: there was none.
        known_at: when that was written.
    """

    reason: str
    deadline: Timestamp
    known: str | None
    known_at: Timestamp | None


class AttemptState(Protocol):
    """The state in an attempt's folder."""

    @property
    def end(self) -> EndRecord | None:
        """How the attempt ended; final."""
        ...

    @property
    def is_submitted(self) -> bool:
        """Whether the scheduler may know the attempt."""
        ...


@dataclass(frozen=True, slots=True)
class AttemptFolder(ABC):
    """One attempt of a run."""

    path: Path
    number: int

    def log_path(self, rank: int) -> Path:
        """Return the path of a task's output."""
        return self.path / "logs" / f"{rank}.log"

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file, whole and durably.

        Raises:
            OSError: that failed.
        """
        write_atomically(self.path / name, content)

    def write_once(self, name: str, content: bytes) -> None:
        """Create a file, unless it exists.

        Raises:
            OSError: it could not be created.
        """
        with contextlib.suppress(FileExistsError):
            write_atomically(self.path / name, content, replace=False)

    def pause_order(self) -> PauseOrder | None:
        """Return the order to save and stop, if there is one.

        Raises:
            OSError, ValueError: it cannot be read.
        """
        try:
            return from_plain(PauseOrder, json.loads((self.path / "pause.json").read_bytes()))
        except FileNotFoundError:
            return None

    def save_pause_order(self, order: PauseOrder) -> None:
        """Record it; the first one stays.

        Raises:
            OSError: that failed.
        """
        self.write_once("pause.json", to_json(order))

    def save_end(self, end: EndRecord) -> None:
        """Record how the attempt ended; the first record stays."""
        self.write_once("end.json", to_json(end))

    @abstractmethod
    def read_state(self) -> AttemptState:
        """Return the folder's state now.

        Raises:
            OSError, ValueError: it cannot be read, or holds foreign data.
        """


AttemptT = TypeVar("AttemptT", bound=AttemptFolder)


class RunFolder(ABC):
    """One run's folder; it need not exist."""

    id_pattern: ClassVar[re.Pattern[str]] = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of the engine's runs

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def find(cls, runs: Path, run: RunId) -> Self | None:
        """Return the folder of that run below ``runs``; None for an invalid id (it would leave the folder)."""
        return cls(runs / run) if cls.id_pattern.fullmatch(run) else None

    @classmethod
    @contextlib.contextmanager
    def hold_ended(cls, runs: Path, run: RunId, before: Timestamp) -> Iterator[bool]:
        """Keep a run from being started; yield whether it ended before a time, so that its folder may be deleted.

        Raises:
            OSError: its folder cannot be read or locked.
        """
        folder = cls.find(runs, run)
        if folder is None or not folder.ended_before(before):
            yield False
            return
        with folder.keep_idle() as idle:
            yield idle and folder.ended_before(before)

    @abstractmethod
    def ended_before(self, before: Timestamp) -> bool:
        """Whether the run ended before a time; False if a record is damaged.

        Raises:
            OSError: the folder cannot be read.
        """

    @abstractmethod
    def keep_idle(self) -> AbstractContextManager[bool]:
        """Keep the run from being started for the block; yield False if another process is starting or running it.

        Raises:
            OSError: the folder cannot be locked.
        """


class ScheduledRunFolder(RunFolder, Generic[AttemptT]):
    """The folder of a run that a scheduler starts; a folder for each attempt."""

    def newest_attempt(self) -> AttemptT | None:
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

    def ended_before(self, before: Timestamp) -> bool:
        """Whether the run ended before a time, or its scheduler never knew it and its folder has not changed since."""
        try:
            newest = self.newest_attempt()
            facts = newest.read_state() if newest is not None else None
        except ValueError:  # damaged
            return False
        if facts is not None and facts.end is not None:
            return facts.end.ended_at is not None and facts.end.ended_at < before
        if facts is not None and facts.is_submitted:
            return False
        touched = newest.path if newest is not None else self.path / "door"  # without it, it is not a run's folder
        return touched.stat().st_mtime < before / SECOND

    @abstractmethod
    def attempt(self, number: int) -> AttemptT:
        """Return that attempt."""


def to_json(record: object) -> bytes:
    """Return a record as JSON, in ASCII: names and variables that are not UTF-8 survive as lone surrogates."""
    return json.dumps(to_plain(record)).encode()
