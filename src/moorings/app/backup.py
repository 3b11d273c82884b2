"""Backups: ``python -m moorings.app.backup save|restore|external|finish|new``.

For ``moor backup`` and ``moor restore``.

A backup is one tar file: the database as it stood at one moment (SQLite's own online copy, so the controller may go
on), the pepper without which every access key is void, the pools file and the policy file, what was ordered of V-IPU
controllers, and a manifest with sizes, checksums and the revision of the tables. Runs' folders and the hardware are not
in it: they are not records but the world.

Restoring turns the records back; the world stays as it is. What the records must know of it before a controller leads
from them is told to them in ``turned_back``; a database that its own tools restored is made ready by ``external``. What
was made since is recognised by our mark, and nobody holds it: to the controller that would be a stray, and strays are
removed. So a restore leaves a note (``RESTORED``), and while it is there such partitions are left alone and their
devices are given to nobody, for jobs may run on them (law 3). ``finish`` takes the note away when an admin has seen to
it; a partition under a run that still lives on this machine is left alone even then. Adopting them as claims was
refused: who owns them stood only in the records that are gone.
"""

from __future__ import annotations

import asyncio
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
from moorings.app import backup_orders
from moorings.app.clock import SystemClock
from moorings.app.folders import RESTORED, RESTORING, DataFolder, SharedFolder, write_private
from moorings.app.high_water import FILE as HIGH_WATER
from moorings.app.logs import without_secrets
from moorings.app.origin import settings_of
from moorings.app.settings import Settings
from moorings.app.turned_back import RUNS, make_ready, spare
from moorings.core.errors import MooringsError
from moorings.local.records import UnreadableError
from moorings.local.rundir import sync_folder
from moorings.local.usage import partitions_in_use
from moorings.ports.leadership import Alone, Leadership
from moorings.ports.store import Epoch, HighWater, Seq
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from moorings.wire.errors import Exit, kind_of
from moorings.workloads.runs import RunId

FORMAT = 1
DATABASE, PEPPER, POOLS, MANIFEST = "moorings.db", "pepper", "pools.toml", "manifest.json"
POLICY = "policy.toml"
MANIFEST_BYTES_MAX = 1 << 20
LEAD_S = 5.0  # whoever leads keeps the lock for longer
_CHUNK = 1 << 20
_WORK = ".restore-"
_OLD = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", PEPPER, POOLS)
_USE_ANOTHER = "use another backup; nothing was changed"
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SPARED = (
    "partitions that the records do not know are left alone, and their devices given to nobody, "
    "until 'moor restore --finish'"
)


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
    parser.add_argument("what", choices=["save", "restore", "external", "finish", "new"])
    parser.add_argument("--file", type=Path)
    parser.add_argument("--other-installation", action="store_true")
    parser.add_argument("--shared")
    parser.add_argument("--config")
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    data = given.data.absolute()
    flags = [word for name in ("shared", "config") if vars(given)[name] for word in (f"--{name}", vars(given)[name])]
    try:
        if given.what == "finish":
            told = finish(data, flags)
        elif given.what == "new":
            told = begin_anew(data)
        elif given.what == "external":
            told = external(data, flags)
        elif given.what == "save":
            told = save(data, given.file.absolute())
        else:
            told = restore(data, given.file.absolute(), other_installation=given.other_installation)
    except MooringsError as error:
        sys.stderr.write(f"error: {_plain(error.detail)} ({error.code})\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return kind_of(error.code).exit
    sys.stdout.write("".join(f"{_plain(line)}\n" for line in told))
    return Exit.OK


def _plain(line: str) -> str:
    """A line without control characters: parts of it stood in a file that somebody else may have written."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)


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


def check_database(data: Path) -> None:
    """Refuse a folder that was used and whose database is gone: an empty one would know nothing of its keys and runs.

    Raises:
        MooringsError: ``store.missing``.
    """
    if _has_database(data):
        return
    used = [name for name in (PEPPER, HIGH_WATER) if (data / name).exists()]
    if used or _has_runs(data / RUNS):
        raise MooringsError(
            "store.missing",
            f"{data} was used before, and there is no {DATABASE} in it",
            hint="put it back, or 'moor restore FILE'; "
            f"'moor restore --new --data {data}' begins anew: keys, claims and runs are forgotten then",
        )


def _has_database(data: Path) -> bool:
    database = data / DATABASE
    return database.exists() and database.stat().st_size > 0


def _has_runs(runs: Path) -> bool:
    return runs.is_dir() and any(path.is_dir() for path in runs.iterdir())


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
            parts = _gather(source, Path(work))
            parts |= _gather_files(data, settings, Path(work))
            parts |= _gather_orders(data, Path(work))  # after the records: what they say was ordered is in it
            standing = look_at(parts[DATABASE])
            draft = Path(work) / "backup"
            _write_tar(draft, parts, _manifest(parts, standing, settings))
            file.hardlink_to(draft)  # whole or not at all, and never over another
            sync_folder(file.parent)
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


def _gather(database: Path, work: Path) -> dict[str, Path]:
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
            source.backup(copy)  # one consistent state; the controller's writes go on beside it
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a write-ahead log beside it
            answer = copy.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN:
            raise _damaged(database, str(error)) from error
        raise MooringsError("store.unavailable", f"{database} cannot be copied: {error}", retryable=True) from error
    if answer != "ok":
        raise _damaged(database, answer)
    return parts


def _gather_files(data: Path, settings: Settings, work: Path) -> dict[str, Path]:
    """Copies of the files that the controller was told to use, or has in its data folder.

    Raises:
        MooringsError: ``backup.invalid``.
    """
    parts = {}
    named = ((PEPPER, None), (POOLS, settings.pools), (POLICY, settings.policy))
    for name, told in named:
        if told is not None and not os.access(told, os.R_OK):
            raise MooringsError(
                "backup.invalid",
                f"{told}, the {Path(name).stem} file that the controller uses, cannot be read",
                hint="put it back, or let this user read it: without it the backup would not be whole",
            )
        origin = told or data / name
        if origin.exists():
            parts[name] = work / name
            shutil.copyfile(origin, parts[name])
    return parts


def _gather_orders(data: Path, work: Path) -> dict[str, Path]:
    """Copies of what was ordered of V-IPU controllers; such a file is replaced whole.

    Raises:
        MooringsError: ``backup.invalid``.
    """
    return {name: Path(shutil.copyfile(path, work / name)) for name, path in backup_orders.lists_in(data).items()}


def _damaged(database: Path, how: str) -> MooringsError:
    return MooringsError(
        "store.corrupt", f"{database} is damaged: {how}", hint="leave it where it is: moor restore FILE, an earlier one"
    )


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


def _manifest(parts: Mapping[str, Path], standing: Standing, settings: Settings) -> bytes:
    told = {
        "format": FORMAT,
        "moorings": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "installation": standing.installation,
        "revision": standing.revision,
        "seq": standing.seq,
        "poolsFile": str(settings.pools or ""),
        "policyFile": str(settings.policy or ""),  # told also where there is none: a backup of before had no policy
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


def restore(data: Path, file: Path, *, other_installation: bool = False) -> list[str]:
    """Put the records of a backup in place of those in a data folder whose controller is down; what to tell.

    Args:
        data: the folder.
        file: the backup.
        other_installation: also if it is of another installation than the records there.

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
        aside = _resume(data) or data / f"before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        with tempfile.TemporaryDirectory(dir=data, prefix=_WORK) as name:
            work = Path(name)
            manifest = _unpack(file, work)
            old = aside / DATABASE if (data / RESTORING).exists() else data / DATABASE
            prepared = _prepare(work / DATABASE, old, data / RUNS, other_installation=other_installation)
            of_others = prepared.replaced not in ("", prepared.standing.installation)
            names = (*_OLD, POLICY) if "policyFile" in manifest else _OLD
            ordered = _replace(data, work, aside, file, names, of_others=of_others)
    except (OSError, UnreadableError) as error:
        raise MooringsError("backup.invalid", f"{file} cannot be restored: {error}", hint="see the disk") from error
    finally:
        folder.close()
    return _told(data, aside, manifest, prepared, ordered)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The backup's database, made ready.

    Attributes:
        standing: where it stands now.
        joined: it goes on where the replaced one was; else nobody could ask that one.
        replaced: the installation of the replaced one; empty: nobody could ask it.
        started: runs that waited in the backup and have started since.
    """

    standing: Standing
    joined: bool
    replaced: str
    started: Sequence[RunId]


def _told(
    data: Path, aside: Path, manifest: Mapping[str, str], prepared: _Prepared, ordered: Sequence[str]
) -> list[str]:
    standing = prepared.standing
    told = [
        f"restored: installation {standing.installation} as of {manifest['at']}; events go on at {standing.seq + 1}"
    ]
    if aside.is_dir() and any(aside.iterdir()):
        told.append(f"what was there before is in {aside}")
    for key, name in (("poolsFile", POOLS), ("policyFile", POLICY)):
        if manifest.get(key):
            kind = Path(name).stem
            told.append(f"the {kind} file was {manifest[key]} then; its copy is {data / name}: compare them")
    if prepared.replaced not in ("", standing.installation):
        told.append(_strangers(f"installation {prepared.replaced}"))
    if ordered:
        told.append(
            f"what was ordered of {', '.join(ordered)} is that of the backup, too: partitions that Moorings made there "
            "since pass for strangers', and stay until they are removed with vipu"
        )
    if not prepared.joined:
        told.append("access keys that were revoked since the backup are valid again: moor get keys")
    return [*told, *_told_of_runs(data, prepared.started), _SPARED]


def _strangers(whose: str) -> str:
    return (
        f"partitions of {whose} are strangers' from now on: they are never removed, and their devices given to nobody; "
        "end their jobs, and remove them with the vendor's own tool"
    )


def _told_of_runs(folder: Path, started: Sequence[RunId]) -> list[str]:
    told = []
    if started:
        told.append(f"{', '.join(started)} waited then and started since: they are not started again")
    try:
        living = sorted(partitions_in_use(folder / RUNS))
    except (OSError, UnreadableError) as error:
        return [*told, f"what jobs run here cannot be told: {error}"]
    if living:
        told.append(f"jobs run on {', '.join(living)}; those that the records do not know keep their partitions")
    return told


def _resume(data: Path) -> Path | None:
    """Where an interrupted restore put the old records aside: all of them, from now on; None: none was interrupted."""
    try:
        begun = json.loads((data / RESTORING).read_text(encoding="utf-8"))
        aside = data / Path(begun["aside"]).name
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):  # of a release that did not say
        aside = data / f"before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        begun = {"emptied": False}
    if not begun.get("emptied"):
        _put_aside(data, aside, (*_OLD, POLICY) if begun.get("policy") else _OLD)
    return aside


def _put_aside(data: Path, aside: Path, names: Sequence[str]) -> None:
    """Move the old records, as often as it takes: the database, its log and the rest belong together."""
    aside.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        if (data / name).exists():
            (data / name).rename(aside / name)
    sync_folder(aside)
    sync_folder(data)


def _unpack(file: Path, work: Path) -> dict[str, str]:
    """The members of a backup, checked, as files in ``work``; its manifest.

    Raises:
        MooringsError: ``backup.invalid``.
    """
    try:
        with file.open("rb") as content, tarfile.open(fileobj=content, mode="r:gz") as tar:
            _check_owner(file, os.fstat(content.fileno()).st_uid)
            manifest = _read_manifest(tar)
            _check_room(work, sum(int(about["bytes"]) for about in manifest["files"].values()))
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
    wanted = ("at", "revision", "installation", "poolsFile", *(("policyFile",) if "policyFile" in manifest else ()))
    return {key: str(manifest[key]) for key in wanted}


def _check_owner(file: Path, owner: int) -> None:
    """Refuse a file that somebody else could write: there are access keys in it, an admin's among them."""
    if owner not in (os.getuid(), 0):
        raise MooringsError(
            "backup.invalid", f"{file} belongs to another user", hint="make a copy of your own, if you trust it"
        )


def _check_room(work: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(work).free
    if n_bytes < 0 or n_bytes > free:
        raise ValueError(f"its {n_bytes} bytes do not fit on the disk, which has {free} free")


def _read_manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    with _open_member(tar, MANIFEST) as content:
        manifest: dict[str, Any] = json.loads(content.read(MANIFEST_BYTES_MAX))
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']!r:.40} is not known here, only {FORMAT}")
    others = {name for name in manifest["files"] if not backup_orders.is_member(name)}
    if DATABASE not in others or not others <= {DATABASE, PEPPER, POOLS, POLICY}:
        raise ValueError(f"it holds {sorted(manifest['files'])!r:.80}")
    return manifest


def _extract(tar: tarfile.TarFile, name: str, about: Mapping[str, object], to: Path) -> None:
    """One member, to a private file; never by the archive's own idea of paths and modes, never more than was told."""
    member = tar.getmember(name)
    if member.isreg() and member.size != about["bytes"]:
        raise ValueError(f"{name} is not what the manifest says")
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


def _prepare(database: Path, old: Path, runs: Path, *, other_installation: bool) -> _Prepared:
    """Make the backup's database fit to follow the one it replaces.

    Raises:
        MooringsError: ``backup.invalid`` (it is another installation's), ``store.*``.
    """
    with contextlib.closing(open_sqlite(database)) as store:  # refuses tables of a newer release, upgrades older ones
        before = _look_at_old(old)
        if before is not None and before.installation != store.installation() and not other_installation:
            raise MooringsError(
                "backup.invalid",
                f"the backup is of installation {store.installation()}, and the records here of {before.installation}",
                hint="partitions of the present one would be nobody's: end its jobs, or choose another --data folder; "
                "if it is meant: --other-installation",
            )
        joined = before is not None and before.installation == store.installation()
        joined = joined and _revoke_again(database, old)
        last = HighWater(Seq(before.seq), Epoch(before.epoch)) if before is not None and joined else None
        started = make_ready(store, runs, last, SystemClock().now())
    return _Prepared(look_at(database), joined, before.installation if before is not None else "", started)


def _look_at_old(old: Path) -> Standing | None:
    """Where the replaced database stands; None: there is none, or it cannot be read."""
    try:
        return look_at(old) if old.exists() else None
    except MooringsError:
        return None


def _revoke_again(database: Path, old: Path) -> bool:
    """Let access keys that were revoked since stay revoked; whether the replaced database could tell which."""
    try:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=10)) as connection:
            connection.execute("ATTACH DATABASE ? AS old", (str(old),))
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "UPDATE main.access_keys SET revoked_at = (SELECT o.revoked_at FROM old.access_keys o WHERE o.id = "
                "main.access_keys.id) WHERE revoked_at IS NULL AND id IN "
                "(SELECT id FROM old.access_keys WHERE revoked_at IS NOT NULL)"
            )
            connection.execute("COMMIT")
    except sqlite3.Error:
        return False
    return True


def _replace(data: Path, work: Path, aside: Path, file: Path, names: Sequence[str], *, of_others: bool) -> list[str]:
    """The step that must not be left half done: it is marked while it lasts, and done again after a crash.

    The mark tells where the old records are, for whoever does it again must ask them too. ``names`` are the files that
    give way; ``of_others``: the records that are replaced are another installation's. Gives the pools whose list of
    orders is the backup's now.
    """
    begun = {"from": str(file), "aside": str(aside), "emptied": (data / RESTORING).exists(), "policy": POLICY in names}
    write_private(data / RESTORING, json.dumps(begun) + "\n")
    sync_folder(data)
    if not begun["emptied"]:
        _put_aside(data, aside, names)
        write_private(data / RESTORING, json.dumps(begun | {"emptied": True}) + "\n")
        sync_folder(data)
    for name in names:  # of a restore that was interrupted here: no controller has used them
        (data / name).unlink(missing_ok=True)
    ordered = backup_orders.put_back(data, work, aside, of_others=of_others)
    for path in sorted(work.iterdir()):
        path.rename(data / path.name)
    spare(data, f"{file} was restored; what was there before is in {aside}")
    (data / RESTORING).unlink()
    sync_folder(data)
    return ordered


# -- a database that its own tools restored ----------------------------------------------------------------------------


def external(data: Path, flags: Sequence[str] = ()) -> list[str]:
    """Make a database ready that was restored by its own tools (``pg_restore``), before any controller uses it.

    Args:
        data: the data folder of one of its controllers.
        flags: with which that one is started, beside ``--data``.

    Raises:
        MooringsError: ``controller.running``, ``config.invalid``, ``backup.unfinished``, ``backup.invalid``,
            ``store.*``.
    """
    settings, _ = settings_of(data, flags)
    folder = DataFolder(data)
    try:
        check_whole(data)
        told = asyncio.run(_make_ready_alone(settings))
    except (OSError, UnreadableError) as error:
        raise MooringsError("backup.invalid", f"a run's folder cannot be read: {error}", hint="see the disk") from error
    finally:
        folder.close()
    return told


async def _make_ready_alone(settings: Settings) -> list[str]:
    """Make it ready while nobody else can lead: whoever stands by waits for the same lock."""
    store, leadership = await asyncio.to_thread(_open, settings)
    try:
        try:
            await asyncio.wait_for(leadership.gain(), LEAD_S)
        except TimeoutError:
            raise MooringsError(
                "controller.running",
                "a controller leads from this database, or the server cannot be reached",
                hint="stop every controller of the installation first, restore the database again, then say this",
            ) from None
        beats = asyncio.create_task(leadership.lost(), name="beats")  # the lock goes with who shows no sign of life
        try:
            return await asyncio.to_thread(_make_ready, store, settings)
        finally:
            beats.cancel()
    finally:
        await leadership.resign()
        store.close()


def _open(settings: Settings) -> tuple[SqlStore, Leadership]:
    if not settings.database:
        if not (settings.data / DATABASE).exists():
            raise MooringsError(
                "backup.invalid",
                f"no PostgreSQL database is set, and there is no {settings.data / DATABASE}",
                hint="say it with the controller's own settings: MOORINGS_DATABASE, and --data; see the manual",
            )
        return open_sqlite(settings.data / DATABASE), Alone()
    from moorings.store.leading import SessionLock  # psycopg is an extra
    from moorings.store.postgresql import open_postgresql

    return open_postgresql(settings.database), SessionLock(settings.database)


def _make_ready(store: SqlStore, settings: Settings) -> list[str]:
    shared = SharedFolder(settings.shared or settings.data)
    if settings.database:
        led = bool(store.leader().epoch)
        shared.check_installation(store.installation(), led=led, local_runs=settings.local_runs)
    # First: should this be killed, nothing is removed, and it can be done again.
    spare(shared.path, "it was restored by its own tools")
    started = make_ready(store, shared.path / RUNS, None, SystemClock().now())
    where = without_secrets(settings.database) or str(settings.data / DATABASE)
    return [
        f"ready: installation {store.installation()} in {where}; events go on at {store.last_seq() + 1}",
        "access keys that were revoked since that moment are valid again: moor get keys",
        *_told_of_runs(shared.path, started),
        _SPARED,
    ]


# -- a new beginning ---------------------------------------------------------------------------------------------------


def begin_anew(data: Path) -> list[str]:
    """Make an empty database in a folder that was used and has none any more; what to tell.

    Raises:
        MooringsError: ``controller.running``, ``config.invalid``, ``backup.unfinished``, ``backup.invalid``: there is
            one, or the records are not in this folder.
    """
    _settings(data)
    folder = DataFolder(data)
    try:
        check_whole(data)
        if _has_database(data):
            raise MooringsError(
                "backup.invalid", f"{data / DATABASE} is there", hint="a new installation: choose another --data folder"
            )
        aside = data / f"before-new-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        _put_aside(data, aside, (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", HIGH_WATER))
        with contextlib.closing(open_sqlite(data / DATABASE)) as store:
            ident = store.installation()
    except OSError as error:
        raise MooringsError("backup.invalid", f"{data} cannot be written: {error}", hint="see its disk") from error
    finally:
        folder.close()
    return [
        f"made: installation {ident}, empty; the next start makes an access key for its admin",
        _strangers("the installation before"),
        *_told_of_runs(data, ()),
    ]


def finish(data: Path, flags: Sequence[str] = ()) -> list[str]:
    """Let go what was left alone since a restore; what to tell.

    Args:
        data: the data folder of the controller.
        flags: with which it is started, beside ``--data``; one that runs is asked.

    Raises:
        MooringsError: ``config.invalid``.
    """
    settings, _ = settings_of(data, flags)
    folder = settings.shared or data
    if not (folder / RESTORED).exists():
        return [f"no restore into {folder} is unfinished"]
    try:
        living = sorted(partitions_in_use(folder / RUNS))
    except (OSError, UnreadableError) as error:
        raise MooringsError(
            "backup.invalid", f"what jobs run here cannot be told: {error}", hint="mend that"
        ) from error
    (folder / RESTORED).unlink()
    kept = f"; those under running jobs ({', '.join(living)}) when these have ended" if living else ""
    return [f"partitions that no record knows are removed from now on{kept}"]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
