"""The identity of a Slurm: an id in its StateSaveLocation, beside its state of jobs.

ClusterName does not tell two Slurms apart: a cloned head node has the same name, and the same access key. A Slurm with
another state of jobs must not judge the jobs of the first. So the id lies with that state: it survives restarts, moves
with a backup controller that shares the folder, and is new in a new folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from moorings.core.announced import INSTANCE_ID_CHARS, check_instance_id
from moorings.core.errors import MooringsError

FILE = "moorings_instance"
_HINT = (
    "run it beside slurmctld, as SlurmUser; under systemd, ReadWritePaths= must name StateSaveLocation, and root needs "
    "CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE"
)


def read_instance(folder: Path) -> str | None:
    """Return the id of the Slurm with its state in ``folder``; None: it has none yet.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    path = folder / FILE
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            told = os.fstat(file)
            text = os.read(file, INSTANCE_ID_CHARS + 2) if stat.S_ISREG(told.st_mode) else b""
        finally:
            os.close(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MooringsError("slurm.unreadable", f"{path} cannot be read: {error.strerror}", hint=_HINT) from error
    instance = text.removesuffix(b"\n").decode("ascii", "replace")
    try:
        check_instance_id(instance)
    except MooringsError as error:
        hint = "while the agent is stopped, remove it: another is made, and counts once the old one is forgotten"
        raise MooringsError(
            "slurm.unreadable", f"{path} does not hold {INSTANCE_ID_CHARS} hex digits", hint=hint
        ) from error
    return instance


def ensure_instance(folder: Path, fresh: str) -> str:
    """Return the id of the Slurm with its state in ``folder``; store ``fresh`` if it has none yet.

    It is written whole or not at all: a half-written id would block the agent until an admin removes it.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    known = read_instance(folder)
    if known is not None:
        return known
    check_instance_id(fresh)
    path, draft = folder / FILE, folder / f".{FILE}.{fresh}"
    try:
        owner = folder.stat()
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, f"{fresh}\n".encode())
            if os.geteuid() == 0:  # the next agent may run as SlurmUser, the folder's owner
                with contextlib.suppress(PermissionError):  # a unit may leave root no CAP_CHOWN, and root can read it
                    os.fchown(file, owner.st_uid, owner.st_gid)
            os.fsync(file)
            os.link(draft, path)  # unlike a rename, a link replaces no file that another agent has just made
        finally:
            os.close(file)
            draft.unlink()
        _save(folder)
    except FileExistsError:
        pass
    except OSError as error:
        raise MooringsError("slurm.unreadable", f"{path} cannot be made: {error.strerror}", hint=_HINT) from error
    made = read_instance(folder)
    if made is None:
        raise MooringsError("slurm.unreadable", f"{path} was removed just now", hint=_HINT)
    return made


def lock_instance(folder: Path) -> int | None:
    """Lock ``folder`` for the one agent of its Slurm, until this process ends; return the open file.

    None: another agent has the lock. The lock also works between machines that share the folder by NFS.

    Raises:
        MooringsError: ``slurm.unreadable``.
    """
    path = folder / FILE
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)  # NFS only locks files opened for writing
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        except OSError:
            os.close(file)
            raise
    except OSError as error:
        raise MooringsError("slurm.unreadable", f"{path} cannot be locked: {error.strerror}", hint=_HINT) from error
    return file


def _save(folder: Path) -> None:
    """Sync the folder and its new entries to disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
