"""Whether code and configuration are root's alone, up to the root folder: another user who can write them is root.

It finds an installation that is open to others. It is no defence against code that has run before it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

LINKS_MAX = 40
UNUSED = ("site-packages", "dist-packages", "test")  # in the standard library's folder: those used are in sys.path


def daemon_fault(*folders: Path) -> str:
    """Why what the daemon executes, or one of these folders, is not root's alone; empty: all of it is.

    Looked at are the package, the standard library, the interpreter, each folder of ``sys.path`` with what is
    directly in it (a ``.pth`` file is code), and all modules that are loaded, as those that a ``.pth`` file names.

    Raises:
        OSError: it cannot be looked at.
    """
    trees = [Path(__file__).parent.parent, Path(os.__file__).parent]
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [Path(sys.executable), *folders, *(Path(path) for path in [*sys.path, *loaded] if path)]
    for entry in map(Path, sys.path):
        paths += [each for each in entry.iterdir() if not each.is_dir()] if entry.is_dir() else []
    faults = (*map(tree_fault, trees), *map(trust_fault, dict.fromkeys(paths)))
    return next(filter(None, faults), "")


def trust_fault(path: Path) -> str:
    """Why a path is not root's alone; empty: it is. Every folder on the way to it counts, and every link's target.

    Of a path that is not there, the folders count in which somebody could make it.

    Raises:
        OSError: it cannot be looked at.
    """
    left, at, links = list(path.absolute().parts), Path("/"), 0
    while left:
        at = at.parent if (name := left.pop(0)) == ".." else at / name
        try:
            found = at.lstat()
        except FileNotFoundError:
            return ""
        if fault := _fault(at, found):
            return fault
        if stat.S_ISLNK(found.st_mode):
            left[:0], at, links = Path(os.readlink(at)).parts, at.parent, links + 1  # noqa: PTH115 - not resolved
            if links > LINKS_MAX:
                return f"{path} has too many links"
    return ""


def tree_fault(folder: Path) -> str:
    """Why a folder with all its files is not root's alone; empty: it is.

    Raises:
        OSError: it cannot be looked at.
    """
    return trust_fault(folder) or next(filter(None, _faults_below(folder)), "")


def _faults_below(folder: Path) -> Iterator[str]:
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in UNUSED]
        for path in (os.path.join(top, name) for name in (*folders, *files)):  # noqa: PTH118 - there are thousands
            found = os.lstat(path)
            yield trust_fault(Path(path)) if stat.S_ISLNK(found.st_mode) else _fault(path, found)


def _fault(path: str | Path, found: os.stat_result) -> str:
    is_link = stat.S_ISLNK(found.st_mode)
    if found.st_uid != 0:
        return f"{'the link ' if is_link else ''}{path} is user {found.st_uid}'s"
    is_open = not is_link and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return f"{path} can be written by others ({stat.S_IMODE(found.st_mode):04o})" if is_open else ""
