"""The contents of a backup and how it is written: the database at one moment, and the files around it.

Also the checks of a data folder before its use. ``backup`` restores.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from moorings import __version__
from moorings.app import backup_vipu
from moorings.app.backup_environments import copy_environments
from moorings.app.effective_settings import read_effective_settings
from moorings.app.folders import RESTORE_PENDING_FILE, runs_folders
from moorings.app.settings import Settings
from moorings.core.model.errors import MooringsError
from moorings.files import create_file, fsync_path
from moorings.local.run_folder import LocalRunFolder
from moorings.store.archive import list_archive_files
from moorings.store.log_position import LOG_POSITION_FILE as HIGH_WATER
from moorings.workloads.runs import RunId

FORMAT = 1
DATABASE, PEPPER, POOLS, MANIFEST = "moorings.db", "pepper", "pools.toml", "manifest.json"
POLICY = "policy.toml"
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """The position of a database: its installation, tables' revision, last event, and fencing epoch."""

    installation: str
    revision: str
    seq: int
    epoch: int


def check_no_restore_pending(data: Path) -> None:
    """Refuse a folder with an unfinished restore.

    Raises:
        MooringsError: ``backup.unfinished``.
    """
    if (data / RESTORE_PENDING_FILE).exists():
        raise MooringsError(
            "backup.unfinished",
            f"a restore into {data} was interrupted",
            hint="do it again: moor restore FILE; what was there before is in its before-restore folder",
        )


def check_database(settings: Settings) -> None:
    """Refuse a used folder without its database: an empty one would know nothing of its keys and runs.

    Raises:
        MooringsError: ``store.missing``.
    """
    data = settings.data
    if has_database(data):
        return
    used = [name for name in (PEPPER, HIGH_WATER) if (data / name).exists()]
    if used or _has_runs(settings.runs_folder):
        raise MooringsError(
            "store.missing",
            f"{data} was used before, and there is no {DATABASE} in it",
            hint="put it back, or 'moor restore FILE'; "
            f"'moor restore --new --data {data}' starts over: keys, claims and runs are forgotten then",
        )


def has_database(data: Path) -> bool:
    """Whether a data folder has records."""
    database = data / DATABASE
    return database.exists() and database.stat().st_size > 0


def _has_runs(runs: Path) -> bool:
    names = (path.name for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else ()
    return any(LocalRunFolder.find(runs, RunId(name)) is not None for name in names)  # a disk of its own has lost+found


# -- saving ------------------------------------------------------------------------------------------------------------


def create_backup(data: Path, file: Path) -> list[str]:
    """Write a backup of a data folder, also while its controller runs; return the report.

    Raises:
        MooringsError: ``backup.invalid``, ``store.corrupt``, ``store.unavailable``, ``config.invalid``.
    """
    settings = read_local_settings(data)
    check_no_restore_pending(data)
    source = data / DATABASE
    if not source.exists():
        raise MooringsError("backup.invalid", f"there is no {source}", hint="name the data folder with --data")
    if file.exists():
        raise MooringsError("backup.invalid", f"{file} is there already", hint="name another file")
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as work:
            parts = _copy_database(source, Path(work))
            parts |= _copy_files(data, settings, Path(work))
            parts |= copy_environments(find_runs_folders(data, settings), Path(work))
            parts |= _copy_vipu_files(data, Path(work))  # after the records: every order they mention is in it
            standing = read_database_state(parts[DATABASE])
            draft = Path(work) / "backup"
            _write_tar(draft, parts, _manifest(parts, standing, settings))
            file.hardlink_to(draft)  # whole or not at all, and never over another file
            fsync_path(file.parent)
    except OSError as error:
        raise MooringsError("backup.invalid", f"{file} cannot be written: {error}", hint="see its disk") from error
    return [
        f"backup written: {file} ({file.stat().st_size} bytes)",
        f"installation {standing.installation}, tables of revision {standing.revision}, up to event {standing.seq}",
        "it holds the access keys' pepper and the values of jobs' variables: keep it as safe as the controller itself",
        *_archive_note(settings.archive_folder),
    ]


def _archive_note(folder: Path) -> list[str]:
    count = len(list_archive_files(folder))
    return [f"not in it are {count} files of older events, in {folder}: copy them, too"] if count else []


def read_local_settings(data: Path) -> Settings:
    """The settings of a controller with all its records in its data folder.

    Raises:
        MooringsError: ``backup.invalid``: they are elsewhere; ``config.invalid``.
    """
    settings, _ = read_effective_settings(data)
    if settings.database or settings.shared:
        raise MooringsError(
            "backup.invalid",
            "this controller's records are not all in its data folder: PostgreSQL has its own way to save them",
            hint=f"pg_dump --format=custom (password in ~/.pgpass), and a copy of {settings.shared or data}/pepper",
        )
    return settings


def _copy_database(database: Path, work: Path) -> dict[str, Path]:
    """A copy of the database, in ``work``.

    Raises:
        MooringsError: ``store.corrupt``, ``store.unavailable``.
    """
    parts = {DATABASE: work / DATABASE}
    parts[DATABASE].touch(mode=0o600)
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=10)) as source,
            contextlib.closing(sqlite3.connect(parts[DATABASE])) as copy,
        ):
            source.backup(copy)  # one consistent state; the controller keeps writing meanwhile
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a write-ahead log beside it
            answer = copy.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN:
            raise _damage_error(database, str(error)) from error
        raise MooringsError("store.unavailable", f"{database} cannot be copied: {error}", retryable=True) from error
    if answer != "ok":
        raise _damage_error(database, answer)
    return parts


def _copy_files(data: Path, settings: Settings, work: Path) -> dict[str, Path]:
    """Copies of the files that the controller's settings name or its data folder holds.

    Raises:
        MooringsError: ``backup.invalid``.
    """
    parts = {}
    named = ((PEPPER, None), (POOLS, settings.pools), (POLICY, settings.policy))
    for name, configured in named:
        if configured is not None and not os.access(configured, os.R_OK):
            raise MooringsError(
                "backup.invalid",
                f"{configured}, the {Path(name).stem} file that the controller uses, cannot be read",
                hint="put it back, or let this user read it: without it the backup would not be whole",
            )
        origin = configured or data / name
        if origin.exists():
            parts[name] = work / name
            shutil.copyfile(origin, parts[name])
    return parts


def find_runs_folders(data: Path, settings: Settings) -> dict[str, Path]:
    """The folders of runs by engine, of a controller with those settings."""
    return runs_folders(data, settings.runs_folder, settings.slurm.folder if settings.slurm is not None else None)


def _copy_vipu_files(data: Path, work: Path) -> dict[str, Path]:
    """Copies of the orders to V-IPU controllers; such a file is replaced whole.

    Raises:
        MooringsError: ``backup.invalid``.
    """
    return {name: Path(shutil.copyfile(path, work / name)) for name, path in backup_vipu.find_vipu_files(data).items()}


def _damage_error(database: Path, how: str) -> MooringsError:
    return MooringsError(
        "store.corrupt", f"{database} is damaged: {how}", hint="leave it where it is: moor restore FILE, an earlier one"
    )


def read_database_state(database: Path) -> DatabaseState:
    """The position of a database.

    Raises:
        MooringsError: ``store.corrupt``: it is not a database of ours.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=10)) as connection:
            ident, seq, epoch = connection.execute("SELECT id, seq, epoch FROM installation").fetchone()
            revision = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
    except (sqlite3.Error, TypeError) as error:
        raise MooringsError("store.corrupt", f"{database.name} is no database of Moorings: {error}") from error
    return DatabaseState(str(ident), str(revision), int(seq), int(epoch))


def _manifest(parts: Mapping[str, Path], standing: DatabaseState, settings: Settings) -> bytes:
    manifest = {
        "format": FORMAT,
        "moorings": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "installation": standing.installation,
        "revision": standing.revision,
        "seq": standing.seq,
        "poolsFile": str(settings.pools or ""),
        "policyFile": str(settings.policy or ""),  # also if there is none: earlier releases had no policy
        "files": {
            name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for name, path in sorted(parts.items())
        },
    }
    return json.dumps(manifest, indent=2).encode() + b"\n"


def _write_tar(draft: Path, parts: Mapping[str, Path], manifest: bytes) -> None:
    with (
        create_file(draft) as file,
        tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar,
        tempfile.TemporaryFile() as head,
    ):
        head.write(manifest)
        head.seek(0)
        tar.addfile(_member(MANIFEST, len(manifest)), head)
        for name, path in sorted(parts.items()):
            with path.open("rb") as content:
                tar.addfile(_member(name, path.stat().st_size), content)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(time.time())
    return member


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
