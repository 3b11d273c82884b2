"""Whether code and configuration are root's alone, up to the root folder: else whoever can write them is root."""

from __future__ import annotations

import os
import stat
from pathlib import Path

LINKS_MAX = 40


def trust_fault(path: Path) -> str:
    """Why a path is not root's alone; empty: it is. Every folder on the way to it counts, and every link's target.

    Raises:
        OSError: it cannot be looked at.
    """
    left = list(path.absolute().parts[1:])
    at, links = Path("/"), 0
    fault = _fault(at)
    while not fault and left:
        name = left.pop(0)
        if name == "..":
            at = at.parent
            continue
        at = at / name
        if at.is_symlink():
            fault = "" if at.lstat().st_uid == 0 else f"the link {at} is user {at.lstat().st_uid}'s"
            links += 1
            if links > LINKS_MAX:
                return f"{path} has too many links"
            target = Path(os.readlink(at))  # noqa: PTH115 - as it is written, not resolved
            left = [*(part for part in target.parts if part != "/"), *left]
            at = Path("/") if target.is_absolute() else at.parent
            continue
        fault = _fault(at)
    return fault


def _fault(path: Path) -> str:
    found = path.lstat()
    if found.st_uid != 0:
        return f"{path} is user {found.st_uid}'s"
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return f"{path} can be written by others ({stat.S_IMODE(found.st_mode):04o})" if writable else ""


def tree_fault(folder: Path) -> str:
    """Why a folder with all its files is not root's alone; empty: it is.

    Raises:
        OSError: it cannot be looked at.
    """
    fault = trust_fault(folder)
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(top, name)
            fault = fault or (trust_fault(path) if path.is_symlink() else _fault(path))
    return fault
