"""Backups: ``python -m moorings.app.backup save|restore|finish``, what ``moor backup`` and ``moor restore`` run.

A backup is one tar file: the database as it stood at one moment (SQLite's own online copy, so the controller may go
on), the pepper without which every access key is void, the pools file, and a manifest with sizes, checksums and the
revision of the tables. Runs' folders and the hardware are not in it: they are not records but the world.

Restoring turns the records back; the world stays as it is. What was made since is recognised by our mark, and nobody
holds it: to the controller that would be a stray, and strays are removed. So a restore leaves a note (``RESTORED``),
and while it is there such partitions are left alone and their devices are given to nobody, for jobs may run on them
(law 3). ``finish`` takes the note away when an admin has seen to it; a partition under a run that still lives on this
machine is left alone even then. Adopting them as claims was refused: who owns them stood only in the records that are
gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import sys
import tarfile
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from moorings import __version__
from moorings.app.folders import RESTORED, RESTORING, DataFolder, write_private
from moorings.app.origin import settings_of
from moorings.app.settings import Settings
from moorings.core.errors import MooringsError
from moorings.local.usage import partitions_in_use
from moorings.store.sqlite import open_sqlite
from moorings.wire.errors import Exit, kind_of

FORMAT = 1
DATABASE, PEPPER, POOLS, MANIFEST = "moorings.db", "pepper", "pools.toml", "manifest.json"
MANIFEST_BYTES_MAX = 1 << 20
SEQ_GAP = 1000  # event numbers told by the database that is replaced are not given again
_CHUNK = 1 << 20
_WORK = ".restore-"
_OLD = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", PEPPER, POOLS)
_USE_ANOTHER = "use another backup; nothing was changed"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a database stands: its installation, tables' revision, last event, and fencing epoch."""

    installation: str
    revision: str
    seq: int
    epoch: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Save or restore; the exit code. What was done goes to standard output."""
    parser = ArgumentParser(prog="moorings-backup")
    parser.add_argument("what", choices=["save", "restore", "finish"])
    parser.add_argument("--file", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    data = given.data.absolute()
    try:
        if given.what == "finish":
            told = finish(data)
        elif given.what == "save":
            told = save(data, given.file.absolute())
        else:
            told = restore(data, given.file.absolute())
    except MooringsError as error:
        sys.stderr.write(f"error: {error.detail} ({error.code})\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return kind_of(error.code).exit
    sys.stdout.write("".join(f"{line}\n" for line in told))
    return Exit.OK


def check_whole(data: Path) -> None:
    """Refuse a folder in which a restore has begun and not ended.

    Raises:
        MooringsError: ``backup.unfinished``.
    """
    if (data / RESTORING).exists():
        raise MooringsError(
            "backup.unfinished",
            f"a restore into {data} has begun and not ended",
            hint="do it again: moor restore FILE; what was there before is in its before-restore folder",
        )


# -- saving ------------------------------------------------------------------------------------------------------------


def save(data: Path, file: Path) -> list[str]:
    """Write a backup of a data folder, also while its controller runs; what to tell.

    Raises:
        MooringsError: ``backup.invalid``, ``store.corrupt``, ``store.unavailable``, ``config.invalid``.
    """
    settings = _settings(data)
    check_whole(data)
    source = data / DATABASE
    if not source.exists():
        raise MooringsError("backup.invalid", f"there is no {source}", hint="name the data folder with --data")
    if file.exists():
        raise MooringsError("backup.invalid", f"{file} is there already", hint="name another file")
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as work:
            parts = _gather(source, data / PEPPER, settings.pools or data / POOLS, Path(work))
            standing = look_at(parts[DATABASE])
            draft = Path(work) / "backup"
            _write_tar(draft, parts, _manifest(parts, standing, settings.pools))
            file.hardlink_to(draft)  # whole or not at all, and never over another
            _sync(file.parent)
    except OSError as error:
        raise MooringsError("backup.invalid", f"{file} cannot be written: {error}", hint="see its disk") from error
    return [
        f"backup written: {file} ({file.stat().st_size} bytes)",
        f"installation {standing.installation}, tables of revision {standing.revision}, up to event {standing.seq}",
        "it holds the access keys' pepper: keep it as safe as the controller itself",
    ]


def _settings(data: Path) -> Settings:
    """The settings of a controller whose records are all in its data folder.

    Raises:
        MooringsError: ``backup.invalid``: they are elsewhere; ``config.invalid``.
    """
    settings, _ = settings_of(data)
    if settings.database or settings.shared:
        raise MooringsError(
            "backup.invalid",
            "this controller's records are not all in its data folder: PostgreSQL has its own way to save them",
            hint=f"pg_dump --format=custom (password in ~/.pgpass), and a copy of {settings.shared or data}/pepper",
        )
    return settings


def _gather(database: Path, pepper: Path, pools: Path, work: Path) -> dict[str, Path]:
    parts = {DATABASE: work / DATABASE}
    parts[DATABASE].touch(mode=0o600)
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=10)) as source,
            contextlib.closing(sqlite3.connect(parts[DATABASE])) as copy,
        ):
            source.backup(copy)  # one consistent state; the controller's writes go on beside it
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a write-ahead log beside it
            answer = copy.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        raise MooringsError("store.unavailable", f"{database} cannot be copied: {error}", retryable=True) from error
    if answer != "ok":
        raise MooringsError("store.corrupt", f"{database} is damaged: {answer}", hint="restore an earlier backup")
    for name, origin in ((PEPPER, pepper), (POOLS, pools)):
        if origin.exists():
            parts[name] = work / name
            shutil.copyfile(origin, parts[name])
    return parts


def look_at(database: Path) -> Standing:
    """Where a database stands.

    Raises:
        MooringsError: ``store.corrupt``: it is no database of ours.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=10)) as connection:
            ident, seq, epoch = connection.execute("SELECT id, seq, epoch FROM installation").fetchone()
            revision = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
    except (sqlite3.Error, TypeError) as error:
        raise MooringsError("store.corrupt", f"{database.name} is no database of Moorings: {error}") from error
    return Standing(str(ident), str(revision), int(seq), int(epoch))


def _manifest(parts: Mapping[str, Path], standing: Standing, pools: Path | None) -> bytes:
    told = {
        "format": FORMAT,
        "moorings": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "installation": standing.installation,
        "revision": standing.revision,
        "seq": standing.seq,
        "poolsFile": str(pools or ""),
        "files": {
            name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for name, path in sorted(parts.items())
        },
    }
    return json.dumps(told, indent=2).encode() + b"\n"


def _write_tar(draft: Path, parts: Mapping[str, Path], manifest: bytes) -> None:
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar, tempfile.TemporaryFile() as head:
            head.write(manifest)
            head.seek(0)
            tar.addfile(_member(MANIFEST, len(manifest)), head)
            for name, path in sorted(parts.items()):
                with path.open("rb") as content:
                    tar.addfile(_member(name, path.stat().st_size), content)
        file.flush()
        os.fsync(file.fileno())


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(time.time())
    return member


# -- restoring ---------------------------------------------------------------------------------------------------------


def restore(data: Path, file: Path) -> list[str]:
    """Put the records of a backup in place of those in a data folder whose controller is down; what to tell.

    Raises:
        MooringsError: ``controller.running``, ``backup.invalid``, ``store.too_new``, ``store.corrupt``; nothing was
            changed then.
    """
    if data.exists():
        _settings(data)
    folder = DataFolder(data)  # nobody else uses it from here on
    try:
        for left in data.glob(f"{_WORK}*"):  # by one that was killed; a pepper may be in it
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=data, prefix=_WORK) as name:
            work = Path(name)
            manifest = _unpack(file, work)
            standing = _prepare(work / DATABASE, data / DATABASE)
            aside = data / f"before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
            _replace(data, work, aside, file)
    except OSError as error:
        raise MooringsError("backup.invalid", f"{file} cannot be restored: {error}", hint="see the disk") from error
    finally:
        folder.close()
    living = sorted(partitions_in_use(data / "runs"))
    told = [
        f"restored: installation {standing.installation} as of {manifest['at']}; events go on at {standing.seq + 1}",
        f"what was there before is in {aside}",
    ]
    if manifest.get("poolsFile"):
        told.append(f"the pools file was {manifest['poolsFile']} then; its copy is {data / POOLS}: compare them")
    if living:
        told.append(f"jobs run on {', '.join(living)}; those that the backup does not know keep their partitions")
    spared = "partitions that the backup does not know are left alone, and their devices given to nobody"
    return [*told, f"{spared}, until 'moor restore --finish'"]


def _unpack(file: Path, work: Path) -> dict[str, str]:
    """The members of a backup, checked, as files in ``work``; its manifest.

    Raises:
        MooringsError: ``backup.invalid``.
    """
    try:
        with tarfile.open(file, mode="r:gz") as tar:
            manifest = _read_manifest(tar)
            for name, about in manifest["files"].items():
                _extract(tar, name, about, work / name)
    except FileNotFoundError as error:
        raise MooringsError(
            "backup.invalid", f"there is no {file}", hint="name a file that 'moor backup' wrote"
        ) from error
    except (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MooringsError(
            "backup.invalid", f"{file} is no whole backup: {error!r:.200}", hint=_USE_ANOTHER
        ) from error
    return {key: str(manifest[key]) for key in ("at", "revision", "installation", "poolsFile")}


def _read_manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    with _open_member(tar, MANIFEST) as content:
        manifest: dict[str, Any] = json.loads(content.read(MANIFEST_BYTES_MAX))
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']!r:.40} is not known here, only {FORMAT}")
    if DATABASE not in manifest["files"] or not set(manifest["files"]) <= {DATABASE, PEPPER, POOLS}:
        raise ValueError(f"it holds {sorted(manifest['files'])!r:.80}")
    return manifest


def _extract(tar: tarfile.TarFile, name: str, about: Mapping[str, object], to: Path) -> None:
    """One member, to a private file; never by the archive's own idea of paths and modes."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file, _open_member(tar, name) as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if (size, digest.hexdigest()) != (about["bytes"], about["sha256"]):
        raise ValueError(f"{name} is not what the manifest says")


@contextlib.contextmanager
def _open_member(tar: tarfile.TarFile, name: str) -> Iterator[IO[bytes]]:
    member = tar.getmember(name)
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise ValueError(f"{name} is no file")
    with content:
        yield content


def _prepare(database: Path, old: Path) -> Standing:
    """Make the backup's database fit to follow the one it replaces; where it stands then.

    Event numbers and the fencing epoch only ever rise, also across a restore: whoever watches would otherwise take new
    events for old ones. Access keys that were revoked since stay revoked.
    """
    open_sqlite(database).close()  # refuses tables of a newer release, and brings older ones up to date
    standing = look_at(database)
    before: Standing | None = None
    with contextlib.suppress(MooringsError):
        before = look_at(old) if old.exists() else None
    if before is None or before.installation != standing.installation:
        return standing
    try:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("ATTACH DATABASE ? AS old", (str(old),))
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "UPDATE main.installation SET seq = max(seq, ?), epoch = max(epoch, ?)",
                (before.seq + SEQ_GAP, before.epoch),
            )
            connection.execute(
                "UPDATE main.access_keys SET revoked_at = (SELECT o.revoked_at FROM old.access_keys o WHERE o.id = "
                "main.access_keys.id) WHERE revoked_at IS NULL AND id IN "
                "(SELECT id FROM old.access_keys WHERE revoked_at IS NOT NULL)"
            )
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise MooringsError("store.corrupt", f"{old} and the backup cannot be joined: {error}") from error
    return look_at(database)


def _replace(data: Path, work: Path, aside: Path, file: Path) -> None:
    """The step that must not be left half done: it is marked while it lasts, and done again after a crash."""
    write_private(data / RESTORING, json.dumps({"from": str(file)}) + "\n")
    _sync(data)
    aside.mkdir(mode=0o700)
    for name in _OLD:
        if (data / name).exists():
            (data / name).rename(aside / name)
    for path in sorted(work.iterdir()):
        path.rename(data / path.name)
    write_private(data / RESTORED, json.dumps({"from": str(file), "aside": str(aside)}) + "\n")
    (data / RESTORING).unlink()
    _sync(data)


def finish(data: Path) -> list[str]:
    """Let go what was left alone since a restore; what to tell."""
    if not (data / RESTORED).exists():
        return [f"no restore into {data} is unfinished"]
    (data / RESTORED).unlink()
    living = sorted(partitions_in_use(data / "runs"))
    kept = f"; those under running jobs ({', '.join(living)}) when these have ended" if living else ""
    return [f"partitions that no record knows are removed from now on{kept}"]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
