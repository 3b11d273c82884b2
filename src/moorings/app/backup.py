"""Backups: ``python -m moorings.app.backup save|restore|external|finish|new``.

For ``moor backup`` and ``moor restore``.

A backup is one tar file: the database at one moment (by SQLite's online copy, so the controller keeps running), the
pepper, without which every access key is void, the pools file and the policy file, the orders to V-IPU controllers, and
a manifest with sizes, checksums and the revision of the tables. Runs' folders and the hardware are not in it: they are
not records but the outside state.

Restoring turns the records back; the outside state stays as it is. ``recovery`` adds the part of it that the records
need before a controller leads from them; ``external`` does so for a database restored with its own tools. A
partition made since the backup carries our mark and has no holder in the records: the controller would treat it as an
orphan and remove it. So a restore leaves a note (``PROTECT_FILE``). While it is there, such partitions are left alone
and their devices stay reserved, for jobs may run on them (law 3). ``finish`` removes the note when an admin has checked
them; a partition under a run that is still alive on this machine is left alone even then. Adopting them as claims was
refused: only the lost records named their owners.
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
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from moorings.app import backup_vipu
from moorings.app.backup_create import (
    DATABASE,
    FORMAT,
    MANIFEST,
    PEPPER,
    POLICY,
    POOLS,
    DatabaseState,
    check_no_restore_pending,
    create_backup,
    find_runs_folders,
    has_database,
    read_database_state,
    read_local_settings,
)
from moorings.app.backup_environments import MEMBER as ENVIRONMENTS
from moorings.app.backup_environments import restore_environments
from moorings.app.clock import SystemClock
from moorings.app.effective_settings import read_effective_settings
from moorings.app.folders import (
    PROTECT_FILE,
    RESTORE_PENDING_FILE,
    RUNS,
    DataFolder,
    SharedFolder,
    replace_private_file,
    runs_folders,
)
from moorings.app.logs import without_secrets
from moorings.app.recovery import INSTALLATION_FILE, advance_numbers, protect_partitions, recover
from moorings.app.settings import Settings
from moorings.controller.rewind_recovery import RecoveredState
from moorings.core.model.errors import MooringsError
from moorings.files import create_file, fsync_path
from moorings.local.live_runs import partitions_in_use
from moorings.local.records import RecordUnreadableError
from moorings.ports.leadership import Leadership, SingleController
from moorings.ports.store import Epoch, LogPosition, Seq
from moorings.store.log_position import LOG_POSITION_FILE as HIGH_WATER
from moorings.store.sql import SqlStore
from moorings.store.sqlite import open_sqlite
from moorings.wire.errors import ExitCode, error_kind

MANIFEST_BYTES_MAX = 1 << 20
LEAD_S = 5.0  # a leader keeps the lock for longer
_CHUNK = 1 << 20
_WORK = ".restore-"
_OLD = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", PEPPER, POOLS)
_USE_ANOTHER = "use another backup; nothing was changed"
_PROTECTED_NOTE = "partitions without a record are kept and their devices stay reserved until 'moor restore --finish'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Save or restore; return the exit code. The report goes to standard output."""
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
            report = finish_restore(data, flags)
        elif given.what == "new":
            report = create_new_database(data)
        elif given.what == "external":
            report = prepare_external_restore(data, flags)
        elif given.what == "save":
            report = create_backup(data, given.file.absolute())
        else:
            report = restore(data, given.file.absolute(), other_installation=given.other_installation)
    except MooringsError as error:
        sys.stderr.write(f"error: {_escape(error.detail)} ({error.code})\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return error_kind(error.code).exit
    sys.stdout.write("".join(f"{_escape(line)}\n" for line in report))
    return ExitCode.OK


def _escape(line: str) -> str:
    """A line without control characters: parts of it come from a file of another user."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)


# -- restoring ---------------------------------------------------------------------------------------------------------


def restore(data: Path, file: Path, *, other_installation: bool = False) -> list[str]:
    """Replace the records in a data folder, whose controller is down, by those of a backup; return the report.

    Args:
        data: the folder.
        file: the backup.
        other_installation: also if the backup is of another installation than the records there.

    Raises:
        MooringsError: ``controller.running``, ``backup.invalid``, ``store.too_new``, ``store.corrupt``; then nothing
            was changed.
    """
    known = read_local_settings(data) if data.exists() else None
    folders = find_runs_folders(data, known) if known is not None else runs_folders(data, data / RUNS, None)
    runs = folders["local"]
    folder = DataFolder(data)  # locked from here on
    try:
        for left in data.glob(f"{_WORK}*"):  # of a killed restore; it may hold a pepper
            shutil.rmtree(left)
        aside = _resume_restore(data) or data / f"before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        with tempfile.TemporaryDirectory(dir=data, prefix=_WORK) as name:
            work = Path(name)
            manifest = _unpack(file, work)
            old = aside / DATABASE if (data / RESTORE_PENDING_FILE).exists() else data / DATABASE
            prepared = _prepare(work / DATABASE, old, runs, other_installation=other_installation)
            of_others = prepared.replaced not in ("", prepared.standing.installation)
            names = (*_OLD, POLICY) if "policyFile" in manifest else _OLD
            restore_environments(folders, work)
            ordered = _replace_records(data, work, aside, file, names, of_others=of_others)
    except (OSError, RecordUnreadableError) as error:
        raise MooringsError("backup.invalid", f"{file} cannot be restored: {error}", hint="see the disk") from error
    finally:
        folder.close()
    return _summary(data, runs, aside, manifest, prepared, ordered)


@dataclass(frozen=True, slots=True)
class _PreparedBackup:
    """The backup's database, ready to be led from.

    Attributes:
        standing: its position now.
        joined: it continues after the replaced database; else that one was unreadable.
        replaced: the installation of the replaced database; empty: that one was unreadable.
        learned: what its records have learned about the runs.
    """

    standing: DatabaseState
    joined: bool
    replaced: str
    learned: RecoveredState


def _summary(
    data: Path, runs: Path, aside: Path, manifest: Mapping[str, str], prepared: _PreparedBackup, ordered: Sequence[str]
) -> list[str]:
    standing = prepared.standing
    lines = [
        f"restored: installation {standing.installation} as of {manifest['at']}; events go on at {standing.seq + 1}"
    ]
    if aside.is_dir() and any(aside.iterdir()):
        lines.append(f"what was there before is in {aside}")
    for key, name in (("poolsFile", POOLS), ("policyFile", POLICY)):
        if manifest.get(key):
            kind = Path(name).stem
            lines.append(f"the {kind} file was {manifest[key]} then; its copy is {data / name}: compare them")
    if prepared.replaced not in ("", standing.installation):
        lines.append(_foreign_partitions_text(f"installation {prepared.replaced}"))
    if ordered:
        lines.append(
            f"what was ordered of {', '.join(ordered)} is that of the backup, too: partitions that Moorings made there "
            "since pass for strangers', and stay until they are removed with vipu"
        )
    if not prepared.joined:
        lines.append("access keys that were revoked or rotated since the backup are as they were then: moor get keys")
    return [*lines, *_run_summary(runs, prepared.learned), _PROTECTED_NOTE]


def _foreign_partitions_text(owner: str) -> str:
    return (
        f"partitions of {owner} are strangers' from now on: they are never removed, and their devices given to nobody; "
        "end their jobs, and remove them with the vendor's own tool"
    )


def _run_summary(runs: Path, learned: RecoveredState | None = None) -> list[str]:
    lines = []
    if learned is not None and learned.started:
        lines.append(f"{', '.join(sorted(learned.started))} started since: they are not started again")
    if learned is not None and learned.within:
        within = ", ".join(f"{one.run} (in {one.claim})" for one in learned.within)
        lines.append(f"made since in claims that the records know, and in them again: {within}")
    try:
        living = sorted(partitions_in_use(runs))
    except (OSError, RecordUnreadableError) as error:
        return [*lines, f"cannot list the jobs that run here: {error}"]
    if living:
        lines.append(f"jobs run on {', '.join(living)}; those that the records do not know keep their partitions")
    return lines


def _resume_restore(data: Path) -> Path | None:
    """The folder with the old records of an interrupted restore: all of them, from now on; None: there was none."""
    try:
        begun = json.loads((data / RESTORE_PENDING_FILE).read_text(encoding="utf-8"))
        aside = data / Path(begun["aside"]).name
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):  # of a release that did not record it
        aside = data / f"before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        begun = {"emptied": False}
    if not begun.get("emptied"):
        _move_aside(data, aside, (*_OLD, POLICY) if begun.get("policy") else _OLD)
    return aside


def _move_aside(data: Path, aside: Path, names: Sequence[str]) -> None:
    """Move the old records, as often as needed: the database, its log and the rest belong together."""
    aside.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        if (data / name).exists():
            (data / name).rename(aside / name)
    fsync_path(aside)
    fsync_path(data)


def _unpack(file: Path, work: Path) -> dict[str, str]:
    """Unpack and check the members of a backup into files in ``work``; return its manifest.

    Raises:
        MooringsError: ``backup.invalid``.
    """
    try:
        with file.open("rb") as content, tarfile.open(fileobj=content, mode="r:gz") as tar:
            _check_owner(file, os.fstat(content.fileno()).st_uid)
            manifest = _read_manifest(tar)
            _check_disk_space(work, sum(int(about["bytes"]) for about in manifest["files"].values()))
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
    """Refuse a file that another user could write: it holds access keys, also an admin's."""
    if owner not in (os.getuid(), 0):
        raise MooringsError(
            "backup.invalid", f"{file} belongs to another user", hint="make a copy of your own, if you trust it"
        )


def _check_disk_space(work: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(work).free
    if n_bytes < 0 or n_bytes > free:
        raise ValueError(f"its {n_bytes} bytes do not fit on the disk, which has {free} free")


def _read_manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    with _open_member(tar, MANIFEST) as content:
        manifest: dict[str, Any] = json.loads(content.read(MANIFEST_BYTES_MAX))
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']!r:.40} is not known here, only {FORMAT}")
    others = {name for name in manifest["files"] if not backup_vipu.is_member(name)}
    if DATABASE not in others or not others <= {DATABASE, PEPPER, POOLS, POLICY, ENVIRONMENTS}:
        raise ValueError(f"it holds {sorted(manifest['files'])!r:.80}")
    return manifest


def _extract(tar: tarfile.TarFile, name: str, about: Mapping[str, object], to: Path) -> None:
    """Extract one member to a private file; ignore the archive's paths and modes; refuse another size or digest."""
    member = tar.getmember(name)
    if member.isreg() and member.size != about["bytes"]:
        raise ValueError(f"{name} is not what the manifest says")
    digest, size = hashlib.sha256(), 0
    with create_file(to) as file, _open_member(tar, name) as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
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


def _prepare(database: Path, old: Path, runs: Path, *, other_installation: bool) -> _PreparedBackup:
    """Prepare the backup's database to follow the one it replaces.

    Raises:
        MooringsError: ``backup.invalid`` (it is of another installation), ``store.*``.
    """
    with contextlib.closing(open_sqlite(database)) as store:  # refuses tables of a newer release, upgrades older ones
        before = _read_old_state(old)
        if before is not None and before.installation != store.installation() and not other_installation:
            raise MooringsError(
                "backup.invalid",
                f"the backup is of installation {store.installation()}, and the records here of {before.installation}",
                hint="its partitions would have no owner: end its jobs, or choose another --data folder; "
                "if it is meant: --other-installation",
            )
        joined = before is not None and before.installation == store.installation()
        joined = joined and _carry_over_revocations(database, old)
        last = LogPosition(Seq(before.seq), Epoch(before.epoch)) if before is not None and joined else None
        learned = recover(store, runs, last, SystemClock().now())
    return _PreparedBackup(
        read_database_state(database), joined, before.installation if before is not None else "", learned
    )


def _read_old_state(old: Path) -> DatabaseState | None:
    """The position of the replaced database; None: there is none, or it cannot be read."""
    try:
        return read_database_state(old) if old.exists() else None
    except MooringsError:
        return None


def _carry_over_revocations(database: Path, old: Path) -> bool:
    """Carry over the access keys revoked or rotated since; return whether the replaced database was readable.

    A database of an older release has no rotations: that release knew none.
    """
    try:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=10)) as connection:
            connection.execute("ATTACH DATABASE ? AS old", (str(old),))
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "UPDATE main.access_keys SET revoked_at = (SELECT o.revoked_at FROM old.access_keys o WHERE o.id = "
                "main.access_keys.id) WHERE revoked_at IS NULL AND id IN "
                "(SELECT id FROM old.access_keys WHERE revoked_at IS NOT NULL)"
            )
            if any(column[1] == "rotated_at" for column in connection.execute("PRAGMA old.table_info(access_keys)")):
                connection.execute(
                    "UPDATE main.access_keys SET (digest, expires_at, rotated_at, old_digest, old_until) = "
                    "(SELECT o.digest, o.expires_at, o.rotated_at, o.old_digest, o.old_until FROM old.access_keys o "
                    "WHERE o.id = main.access_keys.id) WHERE id IN (SELECT o.id FROM old.access_keys o "
                    "WHERE o.id = main.access_keys.id AND o.rotated_at > coalesce(main.access_keys.rotated_at, 0))"
                )
            connection.execute("COMMIT")
    except sqlite3.Error:
        return False
    return True


def _replace_records(
    data: Path, work: Path, aside: Path, file: Path, names: Sequence[str], *, of_others: bool
) -> list[str]:
    """Replace the records, in a step that is marked while it lasts and repeated after a crash.

    The mark names the folder of the old records, for the repetition must read them too. ``names`` are the files to
    replace; ``of_others``: the replaced records are another installation's. Returns the pools whose list of orders is
    now the backup's.
    """
    begun = {
        "from": str(file),
        "aside": str(aside),
        "emptied": (data / RESTORE_PENDING_FILE).exists(),
        "policy": POLICY in names,
    }
    replace_private_file(data / RESTORE_PENDING_FILE, json.dumps(begun) + "\n")
    fsync_path(data)
    if not begun["emptied"]:
        _move_aside(data, aside, names)
        replace_private_file(data / RESTORE_PENDING_FILE, json.dumps(begun | {"emptied": True}) + "\n")
        fsync_path(data)
    for name in names:  # of a restore that was interrupted here: no controller has used them
        (data / name).unlink(missing_ok=True)
    ordered = backup_vipu.restore_vipu_files(data, work, aside, from_other_installation=of_others)
    for path in sorted(work.iterdir()):
        path.rename(data / path.name)
    protect_partitions(data, f"{file} was restored; what was there before is in {aside}")
    (data / RESTORE_PENDING_FILE).unlink()
    fsync_path(data)
    return ordered


# -- a database that its own tools restored ----------------------------------------------------------------------------


def prepare_external_restore(data: Path, flags: Sequence[str] = ()) -> list[str]:
    """Prepare a database that was restored with its own tools (``pg_restore``), before any controller uses it.

    Args:
        data: the data folder of one of its controllers.
        flags: of that controller, beside ``--data``.

    Raises:
        MooringsError: ``controller.running``, ``config.invalid``, ``backup.unfinished``, ``backup.invalid``,
            ``store.*``.
    """
    settings, _ = read_effective_settings(data, flags)
    folder = DataFolder(data)
    try:
        check_no_restore_pending(data)
        report = asyncio.run(_recover_as_leader(settings))
    except (OSError, RecordUnreadableError) as error:
        raise MooringsError("backup.invalid", f"a run's folder cannot be read: {error}", hint="see the disk") from error
    finally:
        folder.close()
    return report


async def _recover_as_leader(settings: Settings) -> list[str]:
    """Prepare it while no other controller can lead: standbys wait for the same lock."""
    store, leadership = await asyncio.to_thread(_open, settings)
    try:
        try:
            await asyncio.wait_for(leadership.acquire(), LEAD_S)
        except TimeoutError:
            raise MooringsError(
                "controller.running",
                "a controller leads from this database, or the server cannot be reached",
                hint="stop every controller of the installation first, restore the database again, then say this",
            ) from None
        beats = asyncio.create_task(
            leadership.wait_until_lost(), name="beats"
        )  # a holder without heartbeats loses the lock
        try:
            return await asyncio.to_thread(_recover_database, store, settings)
        finally:
            beats.cancel()
    finally:
        await leadership.release()
        store.close()


def _open(settings: Settings) -> tuple[SqlStore, Leadership]:
    if not settings.database:
        if not (settings.data / DATABASE).exists():
            raise MooringsError(
                "backup.invalid",
                f"no PostgreSQL database is set, and there is no {settings.data / DATABASE}",
                hint="say it with the controller's own settings: MOORINGS_DATABASE, and --data; see the manual",
            )
        return open_sqlite(settings.data / DATABASE), SingleController()
    from moorings.store.leader_lock import LeaderLock  # psycopg is an extra
    from moorings.store.postgresql import open_postgresql

    return open_postgresql(settings.database), LeaderLock(settings.database)


def _recover_database(store: SqlStore, settings: Settings) -> list[str]:
    shared = SharedFolder(settings.shared or settings.data)
    if settings.database:
        led = bool(store.get_leader().epoch)
        shared.check_installation(store.installation(), led=led, local_runs=settings.local_runs)
    # First: if this is killed, nothing is removed, and it can be repeated.
    protect_partitions(shared.path, "it was restored by its own tools")
    learned = recover(store, settings.runs_folder, None, SystemClock().now())
    where = without_secrets(settings.database) or str(settings.data / DATABASE)
    return [
        f"ready: installation {store.installation()} in {where}; events go on at {store.last_seq() + 1}",
        "access keys that were revoked or rotated since that moment are as they were then: moor get keys",
        *_run_summary(settings.runs_folder, learned),
        _PROTECTED_NOTE,
    ]


# -- a new beginning ---------------------------------------------------------------------------------------------------


def create_new_database(data: Path) -> list[str]:
    """Make an empty database in a used folder that has none any more; return the report.

    Raises:
        MooringsError: ``controller.running``, ``config.invalid``, ``backup.unfinished``, ``backup.invalid``: there is a
            database, or the records are not in this folder.
    """
    runs = read_local_settings(data).runs_folder
    folder = DataFolder(data)
    try:
        check_no_restore_pending(data)
        if has_database(data):
            raise MooringsError(
                "backup.invalid", f"{data / DATABASE} is there", hint="a new installation: choose another --data folder"
            )
        aside = data / f"before-new-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        _move_aside(data, aside, (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", HIGH_WATER))
        with contextlib.closing(open_sqlite(data / DATABASE)) as store:
            ident = store.installation()
            advance_numbers(store, runs, SystemClock().now())  # else earlier fences would refuse its leaders
        (runs / INSTALLATION_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise MooringsError("backup.invalid", f"{data} cannot be written: {error}", hint="see its disk") from error
    finally:
        folder.close()
    return [
        f"made: installation {ident}, empty; the next start makes an access key for its admin",
        _foreign_partitions_text("the installation before"),
        *_run_summary(runs),
    ]


def finish_restore(data: Path, flags: Sequence[str] = ()) -> list[str]:
    """End the protection of partitions since a restore; return the report.

    Args:
        data: the data folder of the controller.
        flags: of the controller, beside ``--data``; a running one has its own.

    Raises:
        MooringsError: ``config.invalid``.
    """
    settings, _ = read_effective_settings(data, flags)
    folder = settings.shared or data
    if not (folder / PROTECT_FILE).exists():
        return [f"no restore into {folder} is unfinished"]
    try:
        living = sorted(partitions_in_use(settings.runs_folder))
    except (OSError, RecordUnreadableError) as error:
        raise MooringsError(
            "backup.invalid", f"cannot list the jobs that run here: {error}", hint="mend that"
        ) from error
    (folder / PROTECT_FILE).unlink()
    kept = f"; those under running jobs ({', '.join(living)}) when these have ended" if living else ""
    return [f"partitions that no record knows are removed from now on{kept}"]


if __name__ == "__main__":
    sys.exit(main())
