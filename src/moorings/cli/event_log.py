"""An event log from ``moor events --after 0`` or ``moor backup``: its rows, and the trace of its jobs.

Events that had left the database before are read from its archives.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from moorings.controller.rewind_recovery import CONTROLLER_NAME, REWIND_EVENT, parse_recovered_state
from moorings.core.forecast.simulation import SimulatedJob
from moorings.core.model.errors import MooringsError
from moorings.core.model.events import Event, canonical_json
from moorings.core.model.machine import MACHINE_KIND
from moorings.core.model.policy import Policy
from moorings.core.model.serialization import from_plain
from moorings.core.model.timestamps import Timestamp, seconds_between
from moorings.ports.store import EventRow, Seq
from moorings.store.archive import list_archive_files, read_events
from moorings.wire.codec import parse_time

_HELD_UNTIL = ("claim.released", "claim.lost", "claim.failed", "claim.broken", "claim.requeued")
_TURN = "turn.decided"
_LED = "controller.led"
_ABOUT = ("claim", "partition", "run", "pool", "device")
_EXPORT = "export it with 'moor events --after 0 -o json', or name a file that 'moor backup' wrote"
_GZIP = b"\x1f\x8b"
_DATABASE, _POOLS = "moorings.db", "pools.toml"
_UNPACKED_BYTES_MAX = 1 << 32  # of a backup: a small file may unpack to any size
_READ_BYTES_MAX = 1 << 24  # at once: a header may claim any length
_TEXT_BYTES_MAX = 1 << 28
_EVENTS_MAX = 10_000_000
_COPY_BYTES = 1 << 20
_PROBLEM_CHARS = 160
_WORDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    bytes: "bytes",
    list: "a list",
    dict: "a document",
    type(None): "nothing",
}


@dataclass(frozen=True, slots=True)
class EventLogFile:
    """A log that has been read.

    Attributes:
        rows: its events, from the first one on.
        pools: the text of the pools file in a backup; None: there is none.
    """

    rows: tuple[EventRow, ...]
    pools: str | None = None


class _LogFormatError(Exception):
    """The fault of a log, as a half sentence for the error."""


def read_log(path: Path, archive: Path) -> EventLogFile:
    """Read the log in a file: an export, as one JSON document or one line an event, or a backup.

    Args:
        path: the file.
        archive: the folder of the archives with the events that left the database before.

    Raises:
        MooringsError: ``log.unreadable``.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_GZIP)) == _GZIP:
                file.seek(0)
                found = _read_backup(file, str(path))
            else:
                file.seek(0)
                found = EventLogFile(parse_log(file.read().decode("utf-8-sig"), str(path)))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8"
        raise MooringsError("log.unreadable", f"{path} cannot be read: {why}", hint=_EXPORT) from error
    rows = list(islice(_with_archives(found.rows, archive, str(path)), _EVENTS_MAX + 1))
    if len(rows) > _EVENTS_MAX:
        raise MooringsError("log.unreadable", f"{path} and its archives have more than {_EVENTS_MAX} events")
    return replace(found, rows=_check_complete(rows, str(path)))


def _with_archives(rows: Sequence[EventRow], folder: Path, source: str) -> Iterator[EventRow]:
    """The rows, preceded by the archived ones up to the first of them.

    Raises:
        MooringsError: ``log.unreadable``: some are missing, or damaged.
    """
    begin = rows[0].seq if rows else 1
    held = {one.first: one for one in list_archive_files(folder)} if begin > 1 else {}
    following = 1
    while following < begin:
        first = min((one for one in held if following <= one < begin), default=None)
        found = read_events(held[first]) if first is not None else iter(())
        row = next(found, None)
        if first is None or row is None or (first > following and not _is_gap_allowed(row)):
            break
        yield row
        yield from found
        following = held[first].last + 1
    if following < begin and not _is_gap_allowed(rows[0]):
        raise MooringsError(
            "log.unreadable",
            f"{source} is not the whole log: it begins with event {begin}, and {folder} has no archive of events "
            f"{following} to {begin - 1}",
            hint="the controller that led then wrote it, on its own machine: name the folder with --archive",
        )
    yield from (row for row in rows if row.seq >= following)


# -- a backup --------------------------------------------------------------------------------------------------------


class _BoundedGzip(gzip.GzipFile):
    """The unpacked backup, up to the limit."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _READ_BYTES_MAX:
            raise _LogFormatError("there is more in it than a backup has")
        found = super().read(size)
        if self.tell() > _UNPACKED_BYTES_MAX:
            raise _LogFormatError("there is more in it than a backup has")
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset > _UNPACKED_BYTES_MAX:
            raise _LogFormatError("there is more in it than a backup has")
        return super().seek(offset, whence)


def _read_backup(file: IO[bytes], source: str) -> EventLogFile:
    try:
        with _BoundedGzip(fileobj=file) as unpacked, tempfile.NamedTemporaryFile() as copy:
            pools = _extract_database(unpacked, copy)
            copy.flush()
            with contextlib.closing(sqlite3.connect(f"file:{copy.name}?mode=ro&immutable=1", uri=True)) as database:
                rows = _read_events(database, copy.tell())
    except (_LogFormatError, tarfile.TarError, EOFError, zlib.error, ValueError, sqlite3.Error, OSError) as error:
        raise MooringsError(
            "log.unreadable", f"{source} is no whole backup: {_error_text(error)}", hint=_EXPORT
        ) from error
    return EventLogFile(tuple(rows), pools)


def _extract_database(unpacked: _BoundedGzip, copy: IO[bytes]) -> str | None:
    """Copy the database out of a backup; return the text of its pools file, if any."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=unpacked, mode="r:") as tar:
        for member in tar:
            if member.name not in (_DATABASE, _POOLS):
                continue
            if not member.isreg() or member.issparse():
                raise _LogFormatError(f"{member.name} in it is no plain file")
            if member.name in found:
                raise _LogFormatError(f"{member.name} is in it twice")
            content = tar.extractfile(member)
            if content is None:
                raise _LogFormatError(f"{member.name} in it is no plain file")
            if member.name == _DATABASE:
                found[_DATABASE] = b""
                _copy(content, copy, member.size)
            else:
                found[_POOLS] = content.read(_READ_BYTES_MAX)
    while unpacked.read(_COPY_BYTES):
        pass  # the end of the file has its checksum
    if _DATABASE not in found:
        raise _LogFormatError(f"there is no {_DATABASE} in it")
    try:
        return found[_POOLS].decode() if _POOLS in found else None
    except UnicodeDecodeError:
        raise _LogFormatError(f"{_POOLS} in it is not UTF-8") from None


def _copy(content: IO[bytes], copy: IO[bytes], size: int) -> None:
    if size > _UNPACKED_BYTES_MAX:
        raise _LogFormatError(f"{_DATABASE} in it has {size} bytes, and at most {_UNPACKED_BYTES_MAX} are read")
    left = size
    while left > 0:
        part = content.read(min(left, _COPY_BYTES))
        if not part:
            raise _LogFormatError(f"{_DATABASE} in it ends {left} bytes too soon")
        copy.write(part)
        left -= len(part)


def _read_events(database: sqlite3.Connection, size: int) -> list[EventRow]:
    """The events of a database, without the server's library, which would change the tables of an older one.

    A view or a computed column could produce rows for ever: only a plain table is read, and no more of it than a file
    of ``size`` bytes can hold.
    """
    kinds = [kind for (kind,) in database.execute("SELECT type FROM sqlite_master WHERE name = 'outbox'")]
    if kinds != ["table"] or any(hidden for *_, hidden in database.execute("PRAGMA table_xinfo(outbox)")):
        raise _LogFormatError("there is no table of events in it")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _TEXT_BYTES_MAX)
    database.set_authorizer(_only_plain)
    columns = ", ".join(("seq", "name", "at", "data", *_ABOUT))
    asked = f"SELECT {columns} FROM outbox ORDER BY seq LIMIT {_EVENTS_MAX + 1}"  # noqa: S608 - no value of anybody's
    rows: list[EventRow] = []
    for seq, name, at, data, *about in database.execute(asked):
        row = _check_row(seq, name, at, data, dict(zip(_ABOUT, about, strict=True)))
        size -= len(row.event.data)
        if size < 0:
            raise _LogFormatError("its events are longer than the file that holds them")
        rows.append(row)
    if len(rows) > _EVENTS_MAX:
        raise _LogFormatError(f"there are more than {_EVENTS_MAX} events in it")
    return rows


def _only_plain(action: int, first: str | None, _second: str | None, _base: str | None, inner: str | None) -> int:
    """Whether SQLite may do this for a query: a table of the schema may still be a view."""
    plain = action == sqlite3.SQLITE_SELECT or (action == sqlite3.SQLITE_READ and first == "outbox")
    return sqlite3.SQLITE_OK if plain and inner is None else sqlite3.SQLITE_DENY


# -- an export -------------------------------------------------------------------------------------------------------


def parse_log(text: str, source: str) -> tuple[EventRow, ...]:
    """The rows of an exported log: one document with ``items``, or one line an event.

    Raises:
        MooringsError: ``log.unreadable``.
    """
    try:
        return tuple(_row(item, at) for at, item in enumerate(_items(text), start=1))
    except (_LogFormatError, ValueError, RecursionError) as error:
        raise MooringsError(
            "log.unreadable", f"{source} is no export of an event log: {_error_text(error)}", hint=_EXPORT
        ) from error


def _items(text: str) -> Iterable[object]:
    first, _, rest = text.partition("\n")
    try:
        alone = json.loads(first)
    except ValueError:  # a document of many lines, or none at all
        alone = None
    if isinstance(alone, dict) and "seq" in alone:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    document = json.loads(text) if alone is None or rest.strip() else alone
    if not isinstance(document, dict):
        raise _LogFormatError(f"it is {_type_text(document)}, not a document with items")
    items = document.get("items")
    if not isinstance(items, list):
        raise _LogFormatError("it is a document without a list of items")
    return items


def _row(item: object, at: int) -> EventRow:
    if not isinstance(item, dict):
        raise _LogFormatError(f"item {at} of it is {_type_text(item)}, not an event")
    seq, when, data = item.get("seq"), item.get("at"), item.get("data", {})
    if not isinstance(when, str):
        raise _LogFormatError(f"the time of item {at} is {_type_text(when)}")
    if not isinstance(data, dict):
        raise _LogFormatError(f"the data of item {at} is {_type_text(data)}")
    try:
        instant = parse_time(when)
    except MooringsError as error:
        raise _LogFormatError(f"the time of item {at}: {error.detail}") from None
    return _check_row(seq, item.get("name"), instant, canonical_json(data), {key: item.get(key) for key in _ABOUT})


# -- both ------------------------------------------------------------------------------------------------------------


def _check_row(seq: object, name: object, at: object, data: object, about: Mapping[str, Any]) -> EventRow:
    """The row with these values, which may come from anywhere."""
    if not isinstance(seq, int) or isinstance(seq, bool):
        raise _LogFormatError(f"the number of an event is {_type_text(seq)}")
    if not isinstance(name, str):
        raise _LogFormatError(f"the name of event {seq} is {_type_text(name)}")
    if not isinstance(at, int):
        raise _LogFormatError(f"the time of event {seq} is {_type_text(at)}")
    if not isinstance(data, str):
        raise _LogFormatError(f"the data of event {seq} is {_type_text(data)}")
    for key, value in about.items():
        if value is not None and not isinstance(value, str):
            raise _LogFormatError(f"the {key} of event {seq} is {_type_text(value)}, not a name")
    return EventRow(Seq(seq), Event(name=name, at=Timestamp(at), data=data, **about))


def _type_text(value: object) -> str:
    return _WORDS.get(type(value), "something else")


def _error_text(error: Exception) -> str:
    """The message of an error, without programming terms."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON, at line {error.lineno}, column {error.colno}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    packing = (zlib.error, EOFError, gzip.BadGzipFile)
    if isinstance(error, packing) or isinstance(error.__context__, packing):
        return "what is packed in it is damaged, or cut off"
    words = error.strerror if isinstance(error, OSError) else None
    return (words or str(error) or "it is damaged")[:_PROBLEM_CHARS]


def _check_complete(rows: Sequence[EventRow], source: str) -> tuple[EventRow, ...]:
    """The rows, if none is missing: numbers skip only where the database was turned back, with a row that says so."""
    last, leapt_from = 0, None
    led: list[int] = []  # of recoveries that led, and died before saving
    for row in rows:
        if row.seq != last + 1:
            if row.seq <= last or not _is_gap_allowed(row):
                raise _missing(row, last + 1, source)
            leapt_from = leapt_from if leapt_from is not None else last
            led.append(row.seq)
        elif leapt_from is not None and _is_gap_allowed(row):
            led.append(row.seq)
        elif leapt_from is not None and row.event.name == _TURN:
            raise MooringsError(
                "log.unreadable",
                f"{source} cannot be replayed behind event {leapt_from}: the database was turned back there by a "
                "release that did not write down what its records learned",
                hint="replay a backup or an export of before",
            )
        elif leapt_from is not None and row.event.name == REWIND_EVENT:
            if parse_recovered_state(row.event.data).after not in (leapt_from, *led):
                raise _missing(row, leapt_from + 1, source)
            leapt_from, led = None, []
        last = row.seq
    if not any(row.event.name == _TURN for row in rows):
        raise MooringsError("log.unreadable", f"{source} cannot be replayed: there is no turn in it", hint=_EXPORT)
    return tuple(rows)


def _missing(row: EventRow, following: int, source: str) -> MooringsError:
    what = f"event {str(row.seq)[:20]} stands where event {following} should be"
    return MooringsError("log.unreadable", f"{source} is not the whole log: {what}", hint=_EXPORT)


def _is_gap_allowed(row: EventRow) -> bool:
    """Whether a number may skip before this row: the recovery of a database that was turned back led."""
    return row.event.name == _LED and canonical_json({"holder": CONTROLLER_NAME})[1:-1] in row.event.data


def last_policy(rows: Sequence[EventRow]) -> Policy:
    """The policy of the last turn.

    Raises:
        MooringsError: ``log.unreadable``: there is no turn, or one of another release.
    """
    for row in reversed(rows):
        if row.event.name == _TURN:
            try:
                return from_plain(Policy, json.loads(row.event.data)["policy"])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise MooringsError(
                    "log.unreadable",
                    f"the policy of the turn that ends with event {row.seq} cannot be read",
                    hint="it was written by another release; replay it with that one",
                ) from error
    raise MooringsError("log.unreadable", "there is no turn in the log", hint=_EXPORT)


def build_trace(rows: Sequence[EventRow]) -> tuple[SimulatedJob, ...]:
    """The claims with a grant, as jobs: each runs for as long as it held devices.

    A claim that held devices at the end of the last turn runs until then; rows after that are not decided again. Jobs
    without devices are left out: a trace knows only devices.
    """
    end = max((at for at, row in enumerate(rows, start=1) if row.event.name == _TURN), default=0)
    created: dict[str, tuple[Timestamp, dict[str, Any]]] = {}
    since: dict[str, Timestamp] = {}
    held_s: dict[str, float] = {}
    last = Timestamp(0)
    for row in rows[:end]:
        event, last = row.event, max(last, row.event.at)
        if event.claim is None:
            continue
        if event.name == "claim.created":
            created[event.claim] = (event.at, json.loads(event.data))
        elif event.name == "claim.granted":
            since[event.claim] = event.at
        elif event.name in _HELD_UNTIL and event.claim in since:
            held = seconds_between(since.pop(event.claim), event.at)
            held_s[event.claim] = held_s.get(event.claim, 0.0) + held
    for claim, began in since.items():
        held_s[claim] = held_s.get(claim, 0.0) + seconds_between(began, last)
    first = min((at for at, _ in created.values()), default=Timestamp(0))
    return tuple(
        _job(claim, seconds_between(first, at), held_s[claim], data)
        for claim, (at, data) in created.items()
        if claim in held_s and data["kind"] != MACHINE_KIND
    )


def _job(claim: str, arrives_s: float, runs_s: float, data: dict[str, Any]) -> SimulatedJob:
    checkpoint = data.get("checkpoint") or [False]
    return SimulatedJob(
        name=claim,
        arrives_s=arrives_s,
        runs_s=max(0.0, runs_s),
        size=data["size"],
        kind=data["kind"],
        project=data["project"],
        subject=data.get("subject") or "user",
        priority=data["priority"],
        limit_s=data["time_limit_s"],
        preemptible=data["preemptible"],
        resumable=bool(checkpoint[0]),
    )
