"""Archives of events and ended records, as files.

Files, not tables of another database: they never change, any tool can copy and read them, and the log packs to a tenth
of its size. A file of events is named by its first and last event, and has the same bytes whenever it is written from
the same events; so after a kill the next writer writes it again, and no event is in two files.

No SQL here: ``moor replay`` reads archives where the server's libraries are not installed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from moorings.core.model.errors import MooringsError
from moorings.core.model.events import EVENT_VERSION, UNOWNED, Event
from moorings.core.model.serialization import to_plain
from moorings.core.model.timestamps import Timestamp
from moorings.files import fsync_path
from moorings.ports.archive import JobsOf
from moorings.ports.store import EndedRecords, EventRow, Seq
from moorings.workloads.environment import names_alone
from moorings.workloads.jobs import JobSpec

LINE_BYTES_MAX: Final = 1 << 28
_ABOUT: Final = ("claim", "partition", "run", "pool", "device")
_LEVEL: Final = 6
_JOBS_AT_ONCE: Final = 100  # half a megabyte each, at most
_EVENTS = re.compile(r"events-([0-9]{19})-([0-9]{19})\.jsonl\.gz")
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of events, from the first to the last."""

    path: Path
    first: Seq
    last: Seq


class ArchiveFolder:
    """A folder of archives, 0700, its files 0600; created with the first file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_events(self, first: Seq, last: Seq, rows: Iterable[EventRow]) -> str:
        """Write the file of these events, durably, unless it exists; returns its digest.

        Raises:
            MooringsError: ``archive.failed``: it cannot be written, or a different file of that name exists.
        """
        name = f"events-{first:019d}-{last:019d}.jsonl.gz"
        seen: list[Seq] = []

        def lines() -> Iterator[str]:
            for row in rows:
                seen.append(row.seq)
                yield _line(row)

        digest = self._write(lambda _digest: name, lines())
        if not seen or (seen[0], seen[-1]) != (first, last):
            raise _failed(self.path / name, "it has not the events of its name")
        return digest

    def write_ended_records(self, ended: EndedRecords, jobs: JobsOf) -> None:
        """Write ended records, a line each, a run with its whole job.

        Raises:
            MooringsError: ``archive.failed``.
        """

        def lines() -> Iterator[str]:
            for at in range(0, len(ended.runs), _JOBS_AT_ONCE):
                some = ended.runs[at : at + _JOBS_AT_ONCE]
                of = jobs([run.id for run in some])
                told = ((run, _without_values(of[run.id])) for run in some)
                yield from (_encode({"run": to_plain(run), "job": to_plain(job)}) for run, job in told)
            yield from (_encode({"claim": to_plain(claim)}) for claim in ended.claims)

        instants = [*(run.ended_at for run in ended.runs), *(claim.ended_at for claim in ended.claims)]
        first = min((at for at in instants if at is not None), default=0)
        self._write(lambda digest: f"ended-{first:019d}-{digest[:12]}.jsonl.gz", lines())

    def _write(self, name_of: Callable[[str], str], lines: Iterable[str]) -> str:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for draft in self.path.glob(".draft-*"):  # of a killed writer: one controller writes here at a time
                draft.unlink()
            descriptor, draft_name = tempfile.mkstemp(dir=self.path, prefix=".draft-")
            draft = Path(draft_name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    _pack(file, lines)
                    file.flush()
                    os.fsync(file.fileno())
                digest = _digest(draft)
                path = self.path / name_of(digest)
                if path.exists() and _digest(path) != digest:
                    raise _failed(path, "another file of that name is there")
                draft.replace(path)
                fsync_path(self.path)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise _failed(self.path, error.strerror or str(error)) from error
        return digest


def list_archive_files(folder: Path) -> list[ArchiveFile]:
    """The files of events in a folder, by their first event.

    Raises:
        MooringsError: ``archive.failed``: the folder cannot be read; a missing folder has no files.
    """
    found: list[ArchiveFile] = []
    try:
        with suppress(FileNotFoundError):
            for path in folder.iterdir():
                named = _EVENTS.fullmatch(path.name)
                if named is not None:
                    found.append(ArchiveFile(path, Seq(int(named[1])), Seq(int(named[2]))))
    except OSError as error:
        raise _failed(folder, error.strerror or str(error)) from error
    return sorted(found, key=lambda one: (one.first, one.last))


def read_events(stretch: ArchiveFile) -> Iterator[EventRow]:
    """The events of a file, exactly as they were in the log.

    Raises:
        MooringsError: ``log.unreadable``.
    """
    last = stretch.first - 1
    try:
        with gzip.open(stretch.path, "rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                row = _row(json.loads(line), last)
                last = row.seq
                yield row
        _check_end(last, stretch)
    except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise MooringsError(
            "log.unreadable",
            f"the archive {stretch.path} is damaged: {error!s:.160}",
            hint="put a copy of it in its place",
        ) from error


def _line(row: EventRow) -> str:
    event = row.event
    about = {name: getattr(event, name) for name in _ABOUT}
    known = {name: value for name, value in about.items() if value is not None}
    return _encode(
        {"at": event.at, "data": event.data, "name": event.name, "seq": row.seq, "version": EVENT_VERSION, **known}
    )


def _check_end(last: int, stretch: ArchiveFile) -> None:
    if last != stretch.last:
        raise ValueError("it ends too soon")


def _row(said: Mapping[str, object], last: int) -> EventRow:
    seq, at, name, data = said["seq"], said["at"], said["name"], said["data"]
    about = {key: said.get(key) for key in _ABOUT}
    texts = all(value is None or isinstance(value, str) for value in about.values())
    if not (isinstance(seq, int) and isinstance(at, int) and isinstance(name, str) and isinstance(data, str) and texts):
        raise TypeError("a line of it is no event")
    if seq <= last:
        raise ValueError("its events are not in order")
    named = {key: value for key, value in about.items() if isinstance(value, str)}
    return EventRow(Seq(seq), Event(name=name, at=Timestamp(at), data=data, ownership=UNOWNED, **named))


def _pack(file: IO[bytes], lines: Iterable[str]) -> None:
    with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed:
        for line in lines:
            packed.write(f"{line}\n".encode("ascii"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _failed(path: Path, why: str) -> MooringsError:
    return MooringsError(
        "archive.failed",
        f"the archive {path} cannot be written: {why}",
        hint="nothing leaves the database before it is; see the disk, or the setting 'archive'",
    )


def _without_values(job: JobSpec) -> JobSpec:
    """The job, of whose variables an earlier release wrote the values into the database."""
    return replace(job, environment=names_alone(job.environment))
