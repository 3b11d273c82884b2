"""The values of jobs' variables, one private file for each run that may still start.

::

    <folder of an engine's runs>/.environments/<run id>.json      0600, in a folder 0700

They lie with the runs, which every controller that may start them can reach; a run's own folder is made by its start,
and tells that there was one. A file in the database's place, encrypted, was refused: its key would lie beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from moorings.engines.launch import as_unavailable
from moorings.engines.run_folder import RunFolder
from moorings.files import fsync_path, write_atomically
from moorings.workloads.runs import RunId

FOLDER = ".environments"  # no run's id begins like this
_SUFFIX = ".json"


class FolderEnvironments:
    """Keeps variables in files.

    Args:
        folders: of the engines' runs, by engine; those of others are kept nowhere.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    def save(self, engine: str, run: RunId, variables: Mapping[str, str]) -> None:
        path = self._path(engine, run)
        with as_unavailable(f"the variables of run {run} cannot be saved"):
            if not path.parent.is_dir():
                path.parent.mkdir(mode=0o700, exist_ok=True)  # where its parent is missing, a disk may be
                fsync_path(path.parent.parent)
            write_atomically(path, json.dumps(dict(variables)).encode())

    def load(self, engine: str, run: RunId) -> Mapping[str, str] | None:
        path = self._path(engine, run)
        with as_unavailable(f"the variables of run {run} cannot be read"):
            try:
                return _read(path)
            except FileNotFoundError:
                os.stat(self._folders[engine])  # noqa: PTH116 - they are not gone because their disk is
                return None

    def remove(self, engine: str, run: RunId) -> None:
        with contextlib.suppress(OSError):
            self._path(engine, run).unlink(missing_ok=True)

    def remove_drafts(self) -> None:
        """Remove what a controller that was killed while it saved has left; no other may be saving."""
        for folder in self._folders.values():
            for entry in _entries(folder):
                if entry.name.startswith("."):
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108 - as below

    def remove_unused(self, used: Collection[RunId], age_s: float) -> int:
        count = 0
        for folder in self._folders.values():
            for entry in _entries(folder):
                is_old = False
                with contextlib.suppress(OSError):
                    is_old = entry.stat(follow_symlinks=False).st_mtime < time.time() - age_s
                if is_old and entry.name.removesuffix(_SUFFIX) not in used:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108 - there may be thousands
                        count += 1
        return count

    def all(self) -> Iterator[tuple[str, RunId, Mapping[str, str]]]:
        """All that is kept: engine, run and variables.

        Raises:
            OSError, ValueError: some cannot be read.
        """
        for engine, folder in self._folders.items():
            for entry in _entries(folder):
                run = entry.name.removesuffix(_SUFFIX)
                if RunFolder.id_pattern.fullmatch(run) and entry.name.endswith(_SUFFIX):
                    with contextlib.suppress(FileNotFoundError):  # it has just been removed
                        yield engine, RunId(run), _read(Path(entry.path))

    def restore(self, engine: str, run: RunId, variables: Mapping[str, str]) -> None:
        """Keep the variables of a backup's run, unless its own are there.

        Raises:
            MooringsError: ``engine.unavailable``.
        """
        is_known = engine in self._folders and RunFolder.id_pattern.fullmatch(run) is not None
        if is_known and not self._path(engine, run).exists():
            with as_unavailable(f"the folder of runs of {engine} cannot be made"):
                self._folders[engine].mkdir(mode=0o700, parents=True, exist_ok=True)
            self.save(engine, run, variables)

    def _path(self, engine: str, run: RunId) -> Path:
        assert RunFolder.id_pattern.fullmatch(run), "ids are made by us"
        return self._folders[engine] / FOLDER / f"{run}{_SUFFIX}"


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(os.scandir(folder / FOLDER))
    return []


def _read(path: Path) -> dict[str, str]:
    """The variables in a file.

    Raises:
        OSError, ValueError: they cannot be read.
    """
    found = json.loads(path.read_bytes())
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{path} is damaged")
    return found
