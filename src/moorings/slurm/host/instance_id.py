"""The identity of a Slurm: an id in its StateSaveLocation, beside its state of jobs.

ClusterName does not tell two Slurms apart: a cloned head node has the same name, and the same access key. A Slurm with
another state of jobs must not judge the jobs of the first. So the id lies with that state: it survives restarts, moves
with a backup controller that shares the folder, and is new in a new folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.core.model.queue_reports import INSTANCE_ID_CHARS, check_instance_id
from moorings.files import atomic_file, lock_file

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
            status = os.fstat(file)
            text = os.read(file, INSTANCE_ID_CHARS + 2) if stat.S_ISREG(status.st_mode) else b""
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
    path = folder / FILE
    try:
        owner = folder.stat()
        with atomic_file(path, replace=False) as file:  # two agents may make it at once
            file.write(f"{fresh}\n".encode())
            if os.geteuid() == 0:  # the next agent may run as SlurmUser, the folder's owner
                with contextlib.suppress(PermissionError):  # a unit may leave root no CAP_CHOWN, and root can read it
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
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
        return lock_file(path, create=False)
    except OSError as error:
        raise MooringsError("slurm.unreadable", f"{path} cannot be locked: {error.strerror}", hint=_HINT) from error
