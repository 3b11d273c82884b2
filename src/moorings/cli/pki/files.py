"""Certificates and keys as files, replaced so that a run that is killed leaves nothing half done.

A certificate and its key are two files, and no file system replaces two at once. So both are first written whole, under
names that everybody knows (``.server.pem.new``, ``.server.key.new``); then the certificate is put in its place, then
the key. Whoever comes next looks for such drafts (``settle``):

- Killed before the certificate was put in its place: nothing has changed, and the drafts go.
- Killed after: the key that waits fits the certificate that is there, and is put in its place.

The certificate goes first because of an authority's: until all may believe the new one, the old one's key stays what it
is. Refused: drafts named by their process (keys would lie about that nobody takes away), and a pair in one file or
behind a link (other programs and sites' scripts know the names).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moorings.client.causes import format_cause
from moorings.core.errors import MooringsError

LOCK = ".lock"
PATIENCE_S = 10.0  # another run is over long before, unless somebody stopped it
_LOOK_S = 0.05

_LEFT_BEHIND = re.compile(r"\.(?P<name>.+\.(?:pem|key))\.\d+\.tmp")  # drafts of releases that named them so


@dataclass(frozen=True, slots=True)
class KeyPairPaths:
    """Where a certificate (of an authority: the bundle that begins with it) and its key are."""

    certificate: Path
    key: Path


def pending_path(path: Path) -> Path:
    """Where the next content of a file is written."""
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
    """Replace a certificate, or a bundle, whose key stays.

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
    """Finish or undo what a run before was killed over; whether it was finished.

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
    """Take away what older releases left in a folder when they were killed: drafts of ``name``, or of any.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    for path in folder.glob(".*.tmp"):
        found = _LEFT_BEHIND.fullmatch(path.name)
        if found is not None and name in ("", found["name"]):
            _remove(path)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Nobody else changes the folder for as long as the block takes.

    Raises:
        MooringsError: ``pki.invalid``: another run has it for more than ``PATIENCE_S``, or it cannot be used.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not _lock(descriptor, folder):
            if time.monotonic() > deadline_s:
                raise MooringsError(
                    "pki.invalid", f"another 'moor pki' is at work in {folder}", hint="wait for it, or end it"
                )
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable(folder, error) from error
    return True


def make_folder(path: Path) -> None:
    """Make a folder that nobody else can look into; one that exists is left as it is: others may have to read it.

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
    """What a file holds.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        hint = "'moor pki init' makes an authority" if path.name == "ca.pem" else ""
        raise MooringsError("pki.invalid", f"{path} cannot be read: {format_cause(error)}", hint=hint) from error


def _matches(certificate: Path, key: Path) -> bool:
    """Whether a key is that of the (first) certificate; what is none, or half of one, fits nothing.

    Raises:
        MooringsError: ``pki.invalid``: one cannot be read.
    """
    from moorings.cli.pki.authority import matches_key

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
    """Put a draft in its place, on the disk before anything follows."""
    try:
        pending_path(path).replace(path)
        _sync(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def _remove(path: Path) -> None:
    if not _is_there(path):  # where nothing may be written, a removal fails even if there is nothing to remove
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # not every network file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(folder: Path, error: OSError) -> MooringsError:
    return MooringsError("pki.invalid", f"the folder {folder} cannot be used: {format_cause(error)}")


def _unwritable(path: Path, error: OSError) -> MooringsError:
    return MooringsError("pki.invalid", f"{path} cannot be written: {format_cause(error)}")
