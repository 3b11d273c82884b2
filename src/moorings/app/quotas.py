"""The quotas of the people of a shared machine: from root's file into the limits of project ``default``.

That is the project of everybody who names none, and all limits of projects are decided in one place already: a second
kind of limit, of the whole machine, was refused. A file that cannot be used changes nothing, because a typing error
must not free a machine of its limits. Groups are resolved here, so that decisions depend on no directory service.
"""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import pwd
import stat
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from moorings.app.people import ROOT
from moorings.app.wiring import Assembly
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import DEFAULT_PROJECT, Project
from moorings.core.model.quotas import QUOTAS_BYTES_MAX, DeviceQuotas, parse_quotas
from moorings.privileged.trust import trust_fault

log = logging.getLogger("moorings.controller")

QUOTAS_FILE = Path("/etc/moorings/quotas.toml")
MARKER = "limits-of-quotas-file"  # in the data folder: exists while the limits of ``default`` are the file's
PASSWD = Path("/etc/passwd")

_ROOTS = "it must be root's alone, and readable: chown root, chmod 644"
_READABLE = "the user 'moorings' must be able to read it: chmod 644, and 755 for its folder"


def load_quotas(path: Path, find_fault: Callable[[Path], str] = trust_fault) -> DeviceQuotas | None:
    """The quotas in a file; None: there is no file.

    Args:
        path: the file.
        find_fault: says why a path is not root's alone.

    Raises:
        MooringsError: ``quotas.invalid``.
    """
    try:
        text = _read(path, find_fault)
    except FileNotFoundError:
        return None
    except OSError as error:
        detail = f"{path} cannot be read: {error.strerror or error}"
        raise MooringsError("quotas.invalid", detail, hint=_READABLE) from error
    except UnicodeDecodeError as error:
        detail = f"{path} cannot be read: it is not UTF-8"
        raise MooringsError("quotas.invalid", detail, hint="write it as TOML in UTF-8") from error
    return parse_quotas(text, source=str(path), find_account=find_account_name, list_members=list_group_members)


def _read(path: Path, find_fault: Callable[[Path], str]) -> str:
    # Opened without waiting: a FIFO would hold up the thread for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
        fault = find_fault(path)
        if not fault and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            fault = "it is not a regular file"
        if fault:
            raise MooringsError("quotas.invalid", f"{path} is not used: {fault}", hint=_ROOTS)
        data = file.read(QUOTAS_BYTES_MAX + 1)
    if len(data) > QUOTAS_BYTES_MAX:
        detail = f"{path} is longer than {QUOTAS_BYTES_MAX} bytes"
        raise MooringsError("quotas.invalid", detail, hint="name groups instead of people")
    return data.decode()


def find_account_name(name: str) -> str | None:
    """The name of the account that a name means; None: there is none."""
    try:
        return pwd.getpwnam(name).pw_name
    except (KeyError, ValueError):  # a null character is a ValueError
        return None


def list_group_members(name: str, passwd: Path = PASSWD) -> Collection[str] | None:
    """The members of a group: those that it lists, and the local accounts that have it as their own; None: no group.

    Accounts are not enumerated: in a directory service that takes long, and with ``getpwall`` stops every thread.
    """
    try:
        group = grp.getgrnam(name)
    except (KeyError, ValueError):
        return None
    lines = passwd.read_text("utf-8", "surrogateescape").splitlines()
    accounts = (line.split(":") for line in lines)
    return {*group.gr_mem, *(each[0] for each in accounts if len(each) > 3 and each[3] == str(group.gr_gid))}


class MachineQuotas:
    """Sets the limits of project ``default`` as the file says.

    Args:
        path: the file.
        data: the data folder.
        find_fault: says why a path is not root's alone.
    """

    def __init__(self, path: Path, data: Path, find_fault: Callable[[Path], str] = trust_fault) -> None:
        self._path = path
        self._marker = data / MARKER
        self._find_fault = find_fault
        self._logged: tuple[object, ...] = ()

    async def apply(self, assembly: Assembly) -> None:
        """Set what differs; log a problem once for each change of the file, and give it to the doctor."""
        problem: MooringsError | None = None
        state = _file_state(self._path)
        try:
            quotas = await asyncio.to_thread(load_quotas, self._path, self._find_fault)
            await self._set(assembly, quotas)
        except MooringsError as error:
            problem = error
        except OSError as error:  # of the marker, or of the list of accounts
            problem = MooringsError("quotas.invalid", f"the limits of {self._path} cannot be set: {error}")
        assembly.loop.quotas_problem = problem
        if problem is not None and self._logged != (state, problem.detail):
            failed = {"code": problem.code, "detail": problem.detail, "hint": problem.hint}
            log.warning("quotas.refused", extra=failed)
        self._logged = (state, problem.detail) if problem is not None else ()

    async def _set(self, assembly: Assembly, quotas: DeviceQuotas | None) -> None:
        if quotas is not None:
            self._marker.touch(mode=0o600)
        elif not self._marker.exists():
            return
        wanted = quotas or DeviceQuotas()
        known = assembly.loop.fleet.projects.get(DEFAULT_PROJECT)
        before = known or Project(name=DEFAULT_PROJECT)
        after = replace(before, user_devices_max=wanted.user_devices_max, user_limits=wanted.user_limits)
        if after != before:
            version = known.version if known is not None else None
            await assembly.controller.projects.set_project(ROOT, after, version)
            log.info("quotas.applied", extra={"everyone": wanted.user_devices_max, "people": len(wanted.user_limits)})
        if quotas is None:
            self._marker.unlink(missing_ok=True)


def _file_state(path: Path) -> tuple[int, ...]:
    """What differs after each change of a file; empty: it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
