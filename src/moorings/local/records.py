"""What a run's folder says, as values, and their JSON.

The supervisor outlives an upgrade of the controller, hence ``core.records``; what is not as expected is
``RecordDamagedError``: a torn or foreign file must never be taken for an end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeVar

from moorings.core.instants import Timestamp
from moorings.core.records import from_plain, to_plain
from moorings.workloads.runs import EndRecord, RunPhase

RecordT = TypeVar("RecordT")


class RecordUnreadableError(Exception):
    """A file of a run's folder cannot be read or does not hold what it should: nothing follows from it."""


class RecordDamagedError(RecordUnreadableError):
    """It can be read and is no such record, and trying again will not make it one."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """What names one process for as long as the machine is up.

    Attributes:
        pid: its id.
        ticks: when it was started, in clock ticks since the boot: the id alone is given to others later.
    """

    pid: int
    ticks: int


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """What a supervisor says of itself.

    Attributes:
        attempt: which start of the run this is.
        phase: STARTING (saved before the first task is started) or RUNNING (all have been started).
        boot: ``/proc/sys/kernel/random/boot_id``: process ids mean nothing after a restart of the machine.
        supervisor: the process that says this.
        tasks: the tasks, by rank; each leads a session of its process id.
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
    """Somebody's wish that one attempt stops."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class YieldRecord:
    """One attempt is to make room.

    Attributes:
        reason: why, as a sentence.
        by_s: when nothing of it may run any more, in seconds of ``time.monotonic``, which is one for all processes.
    """

    attempt: int
    reason: str
    by_s: float


def to_json(record: object) -> str:
    """A record as JSON, in ASCII: file names and variables that are not UTF-8 survive as lone surrogates."""
    return json.dumps(to_plain(record))


def from_json(kind: type[RecordT], text: str | bytes) -> RecordT:
    """The record a JSON text holds.

    Raises:
        DamagedError: it is not JSON, or not of that kind.
    """
    try:
        return from_plain(kind, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise RecordDamagedError(f"not a record of kind {kind.__name__}: {error}") from error
