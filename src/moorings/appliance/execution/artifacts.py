"""Compiled programs on disk: ``<compile_dir>/<uid>/<key>/``, with a key of everything they were made from.

::

    manifest.json       versions, shapes, layers in order, and of each other file its size and sha256
    programs/<n>.mlir   StableHLO, as a portable artifact
    xla/<cpu>/...       what XLA made of them on a CPU of that kind; only read where the CPU is of that kind

A folder is made under another name and renamed when it is complete and on the disk, so a folder with the right name is
complete, or was damaged later; each use checks that. Two compilers of the same program both succeed: the second finds
the artifact of the first. Refused: a lock, for compile folders are often on NFS. Refused too: sharing between users,
for a user's program would run another user's code.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moorings.appliance.execution.errors import execution_error
from moorings.core.model.errors import MooringsError
from moorings.files import create_file, fsync_path

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
_MANIFEST_MOST: Final = 64 << 20
_STALE_S: Final = 24 * 3600.0
_TRIES: Final = 5
_ELSEWHERE: Final = "--compile_dir names another folder"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A complete artifact."""

    key: str
    folder: Path
    manifest: Mapping[str, Any]

    def read(self, name: str) -> bytes:
        """Read one of its files, and check its content again.

        Raises:
            MooringsError: ``artifact.damaged``.
        """
        return _read_checked(self.folder, name, self.manifest["files"][name])


def artifact_key(parts: Mapping[str, Any]) -> str:
    """The key of an artifact made from these JSON values: 64 hexadecimal digits."""
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sha256(content: bytes) -> str:
    """The digest of ``content``."""
    return hashlib.sha256(content).hexdigest()


def cpu_kind() -> str:
    """A name for this machine's kind of CPU: XLA's code for one may use instructions that another lacks."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    kinds = sorted({line for line in lines if line.startswith(wanted)})
    return sha256("\n".join([os.uname().machine, *kinds]).encode())[:16]


def user_folder(compile_dir: Path) -> Path:
    """The folder of this user's artifacts, made if missing. Other users' folders beside it are never read.

    Raises:
        MooringsError: ``execution.failed``: it cannot be made, or others could write to it.
    """
    folder = compile_dir / str(os.getuid())
    try:
        compile_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise execution_error(
            f"the folder of compiled programs {folder} cannot be used: {error.strerror}", _ELSEWHERE
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise execution_error(f"the folder of compiled programs {folder} cannot be used: it is no folder", _ELSEWHERE)
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise execution_error(
            f"the folder of compiled programs {folder} cannot be used: it is not yours alone", _ELSEWHERE
        )
    return folder


def find_artifact(own: Path, key: str) -> Artifact | None:
    """The artifact of a key; None: there is none.

    Args:
        own: the user's folder, from ``user_folder``.
        key: of its inputs.

    Raises:
        MooringsError: ``artifact.damaged``: there is one, but it was changed.
    """
    folder = own / key
    try:
        if not folder.is_dir():
            return None
        if folder.stat().st_uid != os.getuid():
            raise _damage_error(folder, "another user made it")
        with (folder / MANIFEST).open("rb") as file:
            manifest = json.loads(file.read(_MANIFEST_MOST))
        files = manifest["files"]
        if manifest["format"] != FORMAT or manifest["key"] != key:
            raise _damage_error(folder, "its manifest is of something else")
        for name, entry in files.items():
            _read_checked(folder, name, entry)
    except OSError as error:
        raise _damage_error(folder, f"{error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damage_error(folder, "its manifest cannot be read") from error
    return Artifact(key, folder, manifest)


class ArtifactDraft:
    """An unfinished artifact, in a folder of its own; leaving the block without ``publish`` removes it.

    Raises:
        OSError: the folder is not writable.
    """

    def __init__(self, own: Path, key: str) -> None:
        self._own = own
        self._key = key
        self.folder: Final = own / f".{key}.{os.getpid()}-{secrets.token_hex(4)}"

    def __enter__(self) -> ArtifactDraft:
        self._own.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_stale(self._own)
        self.folder.mkdir(mode=0o700)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name: str, content: bytes) -> None:
        """Add a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with create_file(path, durable=False) as file:
            file.write(content)

    def publish(self, manifest: Mapping[str, Any]) -> Artifact:
        """Rename it into place; an artifact that others published meanwhile is used if intact, and replaced if not."""
        files: dict[str, Any] = {}
        for path in sorted(self.folder.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
            if path.is_file():
                content = path.read_bytes()
                files[str(path.relative_to(self.folder))] = {"size": len(content), "sha256": sha256(content)}
        whole = {"format": FORMAT, "key": self._key, **manifest, "files": files}
        self.write(MANIFEST, json.dumps(whole, indent=1).encode())
        for path in self.folder.rglob("*"):
            fsync_path(path)
        fsync_path(self.folder)
        return self._rename(whole)

    def _rename(self, manifest: Mapping[str, Any]) -> Artifact:
        target = self._own / self._key
        for _ in range(_TRIES):
            try:
                self.folder.rename(target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                fsync_path(self._own)
                return Artifact(self._key, target, manifest)
            try:
                if (theirs := find_artifact(self._own, self._key)) is not None:
                    return theirs
            except MooringsError:
                delete_artifact(self._own, self._key)
        raise _damage_error(target, "other processes repeatedly wrote damaged files")


def delete_artifact(own: Path, key: str) -> None:
    """Remove the artifact with a key."""
    aside = own / f".{key}.{os.getpid()}-{secrets.token_hex(4)}"
    try:
        (own / key).rename(aside)
    except FileNotFoundError:
        return  # another process did
    shutil.rmtree(aside, ignore_errors=True)


def _remove_stale(own: Path) -> None:
    """Remove old drafts of killed compilers."""
    for path in own.glob(".*-*"):
        try:
            if path.is_dir() and len(path.name) > 64 and path.stat().st_mtime < time.time() - _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # another process removes it


def _read_checked(folder: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    path = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise _damage_error(folder, "its manifest names a file outside of it")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _damage_error(folder, f"{name}: {error.strerror}") from error
    if len(content) != entry["size"] or sha256(content) != entry["sha256"]:
        raise _damage_error(folder, f"{name} is not as it was made")
    return content


def _damage_error(folder: Path, why: str) -> MooringsError:
    return MooringsError(
        "artifact.damaged",
        f"the compiled program {folder} cannot be used: {why}",
        hint="start run.py again: it is compiled again",
    )
