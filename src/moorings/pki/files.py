"""Certificates and keys as files, replaced so that a killed run leaves nothing half done.

A certificate and its key are two files, and no file system replaces two at once. So both are first written whole, under
fixed names (``.server.pem.new``, ``.server.key.new``); then the certificate is renamed into place, then the key. The
next run looks for such drafts (``finish_replace``):

- Killed before the certificate was renamed: nothing has changed, and the drafts are removed.
- Killed after: the key's draft fits the certificate in place, and is renamed.

The certificate goes first because of an authority's: until all clients can trust the new one, the old one's key must
stay. Refused: drafts with the process id in their names (nothing would remove such keys), and a pair in one file or
behind a link (other programs and sites' scripts know the names).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.files import fsync_path, lock_file

CLIENTS = "clients"
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")  # without them the admin on the controller's machine is locked out
LOCK = ".lock"
PATIENCE_S = 10.0  # another run takes far less, unless it was stopped

_LEFT_BEHIND = re.compile(r"\.(?P<name>.+\.(?:pem|key))\.\d+\.tmp")  # drafts with the names of older releases


@dataclass(frozen=True, slots=True)
class KeyPairPaths:
    """The paths of a certificate (of an authority: the bundle that begins with it) and its key."""

    certificate: Path
    key: Path


def client_certificate(folder: Path, subject: str) -> Path:
    """The path of a client's certificate."""
    return folder / CLIENTS / f"{subject}.pem"


def client_key(folder: Path, subject: str) -> Path:
    """The path of the key of a client's certificate."""
    return folder / CLIENTS / f"{subject}.key"


def pending_path(path: Path) -> Path:
    """The path of a file's next content."""
    return path.with_name(f".{path.name}.new")


def replace_pair(place: KeyPairPaths, certificate: bytes, key: bytes) -> None:
    """Replace a certificate and its key; the key is 0600.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    try:
        _draft(place.certificate, certificate, 0o644)
        _draft(place.key, key, 0o600)
        _publish(place.certificate)
        _publish(place.key)
    except BaseException:
        with contextlib.suppress(MooringsError):
            finish_replace(place)
        raise


def replace_certificate(path: Path, content: bytes) -> None:
    """Replace a certificate, or a bundle, and keep its key.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    try:
        _draft(path, content, 0o644)
        _publish(path)
    except BaseException:
        with contextlib.suppress(MooringsError):
            _remove(pending_path(path))
        raise


def finish_replace(place: KeyPairPaths) -> bool:
    """Finish or undo the work of a killed run; return whether it was finished.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    waiting = pending_path(place.key)
    finished = _is_there(waiting) and _is_there(place.certificate) and _matches(place.certificate, waiting)
    if finished:
        _publish(place.key)
    _remove(waiting)
    _remove(pending_path(place.certificate))
    return finished


def remove_stale(folder: Path, name: str = "") -> None:
    """Remove the drafts of older releases' killed runs from a folder: of ``name``, or of any file.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    for path in folder.glob(".*.tmp"):
        found = _LEFT_BEHIND.fullmatch(path.name)
        if found is not None and name in ("", found["name"]):
            _remove(path)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for the duration of the block.

    Raises:
        MooringsError: ``pki.invalid``: another run holds the lock for more than ``PATIENCE_S``, or the folder is
            unusable.
    """
    try:
        lock = lock_file(folder / LOCK, PATIENCE_S)
    except OSError as error:
        raise _unusable(folder, error) from error
    if lock is None:
        raise MooringsError("pki.invalid", f"another 'moor pki' is at work in {folder}", hint="wait for it, or end it")
    try:
        yield
    finally:
        os.close(lock)


def make_folder(path: Path) -> None:
    """Make a folder that only this user can read; an existing one is left as it is: others may have to read it.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    try:
        if not path.is_dir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
    except OSError as error:
        raise _unusable(path, error) from error


def read(path: Path) -> bytes:
    """The contents of a file.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        hint = "'moor pki init' makes an authority" if path.name == "ca.pem" else ""
        raise MooringsError("pki.invalid", f"{path} cannot be read: {format_cause(error)}", hint=hint) from error


def _matches(certificate: Path, key: Path) -> bool:
    """Whether a key belongs to the (first) certificate; an invalid or incomplete file fits nothing.

    Raises:
        MooringsError: ``pki.invalid``: one cannot be read.
    """
    from moorings.pki.authority import matches_key

    contents = read(certificate), read(key)
    try:
        return matches_key(*contents)
    except MooringsError:
        return False


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _unusable(path.parent, error) from error


def _draft(path: Path, content: bytes, mode: int) -> None:
    try:
        pending_path(path).unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(pending_path(path), flags, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error


def _publish(path: Path) -> None:
    """Rename a draft into place, on the disk before any later step."""
    try:
        pending_path(path).replace(path)
        with contextlib.suppress(OSError):  # not every network file system supports it
            fsync_path(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def _remove(path: Path) -> None:
    if not _is_there(path):  # in a read-only folder, a removal fails even if there is nothing to remove
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unusable(folder: Path, error: OSError) -> MooringsError:
    return MooringsError("pki.invalid", f"the folder {folder} cannot be used: {format_cause(error)}")


def _unwritable(path: Path, error: OSError) -> MooringsError:
    return MooringsError("pki.invalid", f"{path} cannot be written: {format_cause(error)}")
