"""An event log as ``moor events --after 0`` or ``moor backup`` writes it: its rows, and the trace of jobs in it."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from moorings.core.errors import MooringsError
from moorings.core.events import Event, canonical
from moorings.core.instants import Instant, seconds_between
from moorings.core.policy import Policy
from moorings.core.records import revive
from moorings.core.simulate import SimulatedJob
from moorings.ports.store import Row, Seq
from moorings.wire.codec import parse_time

_HELD_UNTIL = ("claim.released", "claim.lost", "claim.failed", "claim.broken", "claim.requeued")
_EXPORT = "export it with 'moor events --after 0 -o json', or name a file that 'moor backup' wrote"
_GZIP = b"\x1f\x8b"
_DATABASE, _POOLS = "moorings.db", "pools.toml"
_POOLS_BYTES_MAX = 1 << 24


@dataclass(frozen=True, slots=True)
class Log:
    """A log that was read.

    Attributes:
        rows: its events, from the first one on.
        pools: the text of the pools file that is beside it in a backup; None: it has none.
    """

    rows: tuple[Row, ...]
    pools: str | None = None


def read_log(path: Path) -> Log:
    """The log of a file: an export, as one JSON document or a line an event, or a backup.

    Raises:
        MooringsError: ``log.unreadable``.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_GZIP)) == _GZIP:
                file.seek(0)
                return _of_backup(file, str(path))
            file.seek(0)
            return Log(parse_log(file.read().decode("utf-8-sig"), str(path)))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8"
        raise MooringsError("log.unreadable", f"{path} cannot be read: {why}", hint=_EXPORT) from error


def _of_backup(file: IO[bytes], source: str) -> Log:
    try:
        with tarfile.open(fileobj=file, mode="r:gz") as tar, tempfile.NamedTemporaryFile() as copy:
            shutil.copyfileobj(_member(tar, _DATABASE), copy)
            copy.flush()
            pools = _member(tar, _POOLS).read(_POOLS_BYTES_MAX).decode() if _POOLS in tar.getnames() else None
            with contextlib.closing(sqlite3.connect(f"file:{copy.name}?mode=ro&immutable=1", uri=True)) as database:
                rows = tuple(_logged(database))
    except (tarfile.TarError, EOFError, KeyError, ValueError, sqlite3.Error, OSError) as error:
        raise MooringsError("log.unreadable", f"{source} is no whole backup: {error!r:.120}", hint=_EXPORT) from error
    return Log(_whole(rows, source), pools)


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    content = tar.extractfile(name)
    if content is None:
        raise ValueError(f"{name} is no file")
    return content


def _logged(database: sqlite3.Connection) -> Iterator[Row]:
    """The events of a database: its own library is the server's, and would change the tables of an older one."""
    columns = "seq, name, at, claim, partition, run, pool, device, data"
    for seq, name, at, claim, partition, run, pool, device, data in database.execute(
        f"SELECT {columns} FROM outbox ORDER BY seq"  # noqa: S608 - no value of anybody's is in it
    ):
        about = {"claim": claim, "partition": partition, "run": run, "pool": pool, "device": device}
        yield Row(Seq(seq), Event(name=name, at=Instant(at), data=data, **about))


def parse_log(text: str, source: str) -> tuple[Row, ...]:
    """The rows of an exported log: one document with ``items``, or a line an event.

    Raises:
        MooringsError: ``log.unreadable``.
    """
    try:
        rows = tuple(map(_row, _items(text)))
    except (ValueError, KeyError, TypeError, RecursionError, MooringsError) as error:
        raise MooringsError(
            "log.unreadable", f"{source} is no export of an event log: {error!r:.120}", hint=_EXPORT
        ) from error
    return _whole(rows, source)


def _items(text: str) -> Iterable[dict[str, Any]]:
    first = text.split("\n", 1)[0].strip()
    try:
        alone = json.loads(first)
    except ValueError:  # a document that is written over many lines, or none at all
        alone = None
    if isinstance(alone, dict) and "seq" in alone:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    items: list[dict[str, Any]] = json.loads(text)["items"]
    return items


def _whole(rows: tuple[Row, ...], source: str) -> tuple[Row, ...]:
    for at, row in enumerate(rows):
        if row.seq != at + 1:
            what = f"event {row.seq} stands where event {at + 1} should be"
            raise MooringsError("log.unreadable", f"{source} is not the whole log: {what}", hint=_EXPORT)
    return rows


def _row(item: dict[str, Any]) -> Row:
    event = Event(
        name=item["name"],
        at=parse_time(item["at"]),
        claim=item.get("claim"),
        partition=item.get("partition"),
        run=item.get("run"),
        pool=item.get("pool"),
        device=item.get("device"),
        data=canonical(item.get("data", {})),
    )
    return Row(Seq(int(item["seq"])), event)


def policy_of(rows: Sequence[Row]) -> Policy:
    """The policy of the last turn.

    Raises:
        MooringsError: ``log.unreadable``: there is no turn, or one of another release.
    """
    for row in reversed(rows):
        if row.event.name == "turn.decided":
            try:
                return revive(Policy, json.loads(row.event.data)["policy"])
            except (ValueError, KeyError, TypeError) as error:
                raise MooringsError("log.unreadable", f"the policy of a turn cannot be read: {error!r:.120}") from error
    raise MooringsError("log.unreadable", "there is no turn in the log", hint=_EXPORT)


def trace_of(rows: Iterable[Row]) -> tuple[SimulatedJob, ...]:
    """The claims of a log that were granted something, as jobs: each runs as long as it held devices.

    What still held devices at the end of the log ran until then.
    """
    created: dict[str, tuple[Instant, dict[str, Any]]] = {}
    since: dict[str, Instant] = {}
    held_s: dict[str, float] = {}
    last = Instant(0)
    for row in rows:
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
    first = min((at for at, _ in created.values()), default=Instant(0))
    return tuple(
        _job(claim, seconds_between(first, at), held_s[claim], data)
        for claim, (at, data) in created.items()
        if claim in held_s
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
