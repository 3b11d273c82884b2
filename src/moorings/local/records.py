"""The records of a run's folder, as values and their JSON.

The supervisor survives an upgrade of the controller, hence ``core.model.serialization``; an unexpected content is
``RecordDamagedError``: a torn or foreign file must never count as an end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TypeVar

from moorings.core.model.serialization import OMIT_IF_DEFAULT, from_plain
from moorings.core.model.timestamps import Timestamp
from moorings.workloads.runs import EndRecord, RunPhase

RecordT = TypeVar("RecordT")


class RecordUnreadableError(ValueError):
    """A file of a run's folder cannot be read or has the wrong content: conclude nothing from it."""


class RecordDamagedError(RecordUnreadableError):
    """The file is readable and not such a record, and a retry will not change that."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The identity of a process until the next boot.

    Attributes:
        pid: its id.
        ticks: its start time, in clock ticks since the boot: ids are reused.
    """

    pid: int
    ticks: int


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """A supervisor's own record.

    Attributes:
        attempt: the attempt of the run.
        phase: STARTING (saved before the first task is started) or RUNNING (all have been started).
        boot: ``/proc/sys/kernel/random/boot_id``: process ids are invalid after a restart of the machine.
        supervisor: its own process.
        tasks: the tasks, by rank; each is the leader of a session.
    """

    attempt: int
    phase: RunPhase
    boot: str
    supervisor: ProcessIdentity
    started_at: Timestamp | None = None
    tasks: tuple[ProcessIdentity, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The recorded end of one attempt."""

    attempt: int
    record: EndRecord


@dataclass(frozen=True, slots=True)
class CancelRecord:
    """A request to stop one attempt."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class YieldRecord:
    """A request that one attempt yields.

    Attributes:
        reason: why, as a sentence.
        by_s: when no process of it may be left, in seconds of ``time.monotonic``, the same for all processes.
        until_saved: it is stopped as soon as it has saved a checkpoint.
    """

    attempt: int
    reason: str
    by_s: float
    until_saved: bool = field(default=False, metadata=OMIT_IF_DEFAULT)


def from_json(kind: type[RecordT], text: str | bytes) -> RecordT:
    """Parse a record from JSON.

    Raises:
        RecordDamagedError: it is not JSON, or not of that kind.
    """
    try:
        return from_plain(kind, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise RecordDamagedError(f"not a record of kind {kind.__name__}: {error}") from error
