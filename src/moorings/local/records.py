"""What a run's folder says, as values, and their JSON.

The supervisor outlives an upgrade of the controller, so a reader passes over keys it does not know and takes the
default of those that are missing. Everything else that is not as expected is ``DamagedError``: a torn or foreign
file must never be taken for an end. The codec of ``wire`` was not taken: it is a promise to other machines, in
camelCase and without enums, and may change for their sake.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from moorings.core.instants import Instant
from moorings.workloads.runs import EndRecord, Phase

RecordT = TypeVar("RecordT")


class UnreadableError(Exception):
    """A file of a run's folder cannot be read or does not hold what it should: nothing follows from it."""


class DamagedError(UnreadableError):
    """It can be read and is no such record, and trying again will not make it one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What names one process for as long as the machine is up.

    Attributes:
        pid: its id.
        ticks: when it was started, in clock ticks since the boot: the id alone is given to others later.
    """

    pid: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Status:
    """What a supervisor says of itself.

    Attributes:
        attempt: which start of the run this is.
        phase: STARTING (saved before the first task is started) or RUNNING (all have been started).
        boot: ``/proc/sys/kernel/random/boot_id``: process ids mean nothing after a restart of the machine.
        supervisor: the process that says this.
        tasks: the tasks, by rank; each leads a session of its process id.
    """

    attempt: int
    phase: Phase
    boot: str
    supervisor: Identity
    started_at: Instant | None = None
    tasks: tuple[Identity, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The recorded end of one attempt."""

    attempt: int
    record: EndRecord


@dataclass(frozen=True, slots=True)
class CancelOrder:
    """Somebody's wish that one attempt stops."""

    attempt: int
    reason: str


def to_json(record: object) -> str:
    """A record as JSON, in ASCII: file names and variables that are not UTF-8 survive as lone surrogates."""
    return json.dumps(_plain(record))


def from_json(kind: type[RecordT], text: str | bytes) -> RecordT:
    """The record a JSON text holds.

    Raises:
        DamagedError: it is not JSON, or not of that kind.
    """
    try:
        return cast("RecordT", _revive(kind, json.loads(text)))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"not a record of kind {kind.__name__}: {error}") from error


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


@cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind)


def _revive(hint: object, value: object) -> object:
    """``value`` (parsed JSON) as the type ``hint`` says; ValueError if it is something else."""
    if isinstance(hint, NewType):
        return _revive(hint.__supertype__, value)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _revive(next(a for a in get_args(hint) if a is not types.NoneType), value)
    if origin is tuple and isinstance(value, list):
        return tuple(_revive(get_args(hint)[0], item) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {key: _revive(get_args(hint)[1], item) for key, item in value.items()}
    if isinstance(hint, type):
        return _revive_plain(hint, value)
    raise ValueError(f"{value!r:.80} is not {hint}")


def _revive_plain(hint: type, value: object) -> object:
    if is_dataclass(hint) and isinstance(value, dict):
        return _revive_record(hint, value)
    if issubclass(hint, StrEnum) and isinstance(value, str):
        return hint(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{value!r:.80} is not {hint.__name__}")


def _revive_record(kind: type, values: dict[str, object]) -> object:
    hints = _hints(kind)
    known = {}
    for item in fields(kind):
        if item.name in values:
            known[item.name] = _revive(hints[item.name], values[item.name])
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{item.name} is missing")
    return kind(**known)
