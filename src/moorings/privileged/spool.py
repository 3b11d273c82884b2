"""The jobs that people have handed in, each under the uid that the kernel named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorings.privileged.accounts import PersonAccount
from moorings.privileged.records import fsync_folder, is_nearly_full, read_record, write_record
from moorings.privileged.refusals import Refused

JOB_BYTES_MAX = 1 << 20
ENTRIES_MAX = 10_000  # of one person
BYTES_MAX = 64 << 20  # of one person's entries together
_ENTRY = re.compile(r"(0|[1-9][0-9]{0,9})-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class SpooledJob:
    """A job as it was handed in.

    Attributes:
        entry: its id, which nobody can guess.
        uid: who handed it in, and
        name: that account's name then: the uid may be given to somebody else later.
        job: the job, which only the supervisor reads.
    """

    entry: str
    uid: int
    name: str
    job: dict[str, Any]


class Spool:
    """The spool; its folder is root's alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def remove_drafts(self) -> None:
        """Remove what was being taken in when a daemon, or the process that served a person, was killed."""
        for draft in self._folder.glob("*/.*"):
            draft.unlink(missing_ok=True)

    def add(self, account: PersonAccount, job: dict[str, Any]) -> str:
        """Take a job in; returns the entry's id once it is on disk.

        Raises:
            Refused: ``spool.too_large``, ``spool.full``.
            OSError: it cannot be saved.
        """
        length = len(json.dumps(job))
        if length > JOB_BYTES_MAX:
            raise Refused("spool.too_large", f"the job has more than {JOB_BYTES_MAX} bytes", "put its input in files")
        if is_nearly_full(self._folder):
            raise Refused("spool.full", "the disk of the spool is full", "ask the machine's admin")
        folder = self._folder / str(account.uid)
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            fsync_folder(self._folder)
        sizes = []
        for each in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):  # a draft that has become an entry, or one that was removed
                sizes.append(each.stat().st_size)
        if len(sizes) >= ENTRIES_MAX or sum(sizes) + length > BYTES_MAX:
            detail = f"{account.name} has {len(sizes)} jobs of {sum(sizes)} bytes here already"
            raise Refused("spool.full", detail, "wait until some have ended")
        entry = f"{account.uid}-{secrets.token_hex(16)}"
        write_record(folder / entry, {"uid": account.uid, "name": account.name, "at": time.time(), "job": job})
        return entry

    def read(self, entry: str) -> SpooledJob:
        """An entry.

        Raises:
            Refused: ``entry.unknown``.
            OSError, ValueError: it cannot be read.
        """
        record = read_record(self._path(entry))
        if record is None:
            raise Refused("entry.unknown", f"there is no entry {entry}")
        return SpooledJob(entry, int(record["uid"]), str(record["name"]), dict(record["job"]))

    def has(self, entry: str) -> bool:
        """Whether there is that entry."""
        return self._path(entry).exists()

    def older_than(self, age_s: float) -> Iterator[str]:
        """The entries that were handed in so long ago."""
        for path in self._folder.glob("*/[0-9]*"):
            if path.stat().st_mtime < time.time() - age_s:
                yield path.name

    def remove(self, entry: str) -> None:
        """Remove an entry; one that is not there is removed.

        Raises:
            OSError: that failed.
        """
        path = self._path(entry)
        if path.exists():
            path.unlink()
            fsync_folder(path.parent)

    def _path(self, entry: str) -> Path:
        return self._folder / str(entry_uid(entry)) / entry


def entry_uid(entry: object) -> int:
    """The uid of who has handed in an entry, by its id.

    Raises:
        Refused: ``entry.invalid``.
    """
    return int(check_entry(entry).partition("-")[0])


def check_entry(entry: object) -> str:
    """An entry's id, as it may come from anywhere.

    Raises:
        Refused: ``entry.invalid``.
    """
    if not isinstance(entry, str) or not _ENTRY.fullmatch(entry):
        raise Refused("entry.invalid", "that is no entry's id")
    return entry
