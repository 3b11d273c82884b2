"""The folder of certificates: an authority, the controllers' certificate, and one for each client.

::

    ca.pem  ca.key          the authorities that are trusted, the newest first; the newest one's key
    server.pem  server.key  the controllers'
    clients/SUBJECT.pem     and SUBJECT.key, to be handed to that subject

Folders are 0700 and keys 0600. Every file is replaced whole; a key is replaced a moment before its certificate, and
whoever reads them in that moment finds that they do not fit and reads them again (``app.tls``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from moorings.client.causes import cause_text
from moorings.client.keyfiles import check_private_key
from moorings.core.errors import MooringsError

SERVER = "server"
CLIENTS = "clients"


@dataclass(frozen=True, slots=True)
class Entry:
    """A certificate in the folder.

    Attributes:
        kind: ``authority``, ``server`` or ``client``.
        name: a client's subject, the controllers' first host, or the authority's name.
        names: hosts and addresses of a server's.
        serial: in hexadecimal.
        ends: until when it is good.
        file: where it is.
        trusted: whether the newest authority has signed it (an authority: whether it is the newest).
        fits: whether its key, if that lies beside it, is of this certificate.
    """

    kind: str
    name: str
    names: tuple[str, ...]
    serial: str
    ends: datetime
    file: Path
    trusted: bool
    fits: bool = True

    def days_left(self, now: datetime) -> int:
        """Whole days until it ends; negative: it has ended."""
        return (self.ends - now) // timedelta(days=1)


def client_certificate(folder: Path, subject: str) -> Path:
    """Where a client's certificate is."""
    return folder / CLIENTS / f"{subject}.pem"


def client_key(folder: Path, subject: str) -> Path:
    """Where the key of a client's certificate is."""
    return folder / CLIENTS / f"{subject}.key"


class Pki:
    """The folder.

    Args:
        folder: where it is.
        authority_key: the authority's key, if it is kept elsewhere.
    """

    def __init__(self, folder: Path, authority_key: Path | None = None) -> None:
        self.folder = folder
        self._authority_key = authority_key or folder / "ca.key"

    @property
    def bundle(self) -> Path:
        """The authorities that are trusted."""
        return self.folder / "ca.pem"

    def create(self, names: Sequence[str], now: datetime, days: int) -> None:
        """A new authority, and the controllers' certificate.

        Raises:
            MooringsError: ``pki.exists``, ``pki.invalid``.
        """
        from moorings.cli.pki.authority import issue_server, make_authority

        if self.bundle.exists() or self._authority_key.exists():
            raise MooringsError(
                "pki.exists",
                f"there is an authority in {self.folder}",
                hint="'moor pki rotate' renews its certificates, 'moor pki rotate --ca' makes a new authority",
            )
        authority = make_authority(now)
        server = issue_server(authority, names, now, days)  # first: a wrong name must leave nothing behind
        _make_folder(self.folder)
        _write_pair(self.bundle, authority.certificate, self._authority_key, authority.key)
        _write_pair(self._certificate(SERVER), server.certificate, self._key(SERVER), server.key)

    def issue(self, subject: str, now: datetime, days: int) -> Path:
        """A certificate for a client; where it is.

        Raises:
            MooringsError: ``pki.exists``, ``pki.invalid``, ``key.invalid``.
        """
        from moorings.core.access import check_subject

        check_subject(subject)
        file = client_certificate(self.folder, subject)
        if file.exists():
            hint = f"renew it with 'moor pki rotate {subject}'"
            raise MooringsError("pki.exists", f"{subject} has a certificate: {file}", hint=hint)
        self._issue_client(subject, now, days)
        return file

    def renew_client(self, subject: str, now: datetime, days: int) -> None:
        """A client's certificate, made anew with a new key.

        Raises:
            MooringsError: ``pki.invalid``: there is none, or the authority's files.
        """
        if not client_certificate(self.folder, subject).exists():
            hint = f"make one: moor pki issue {subject}"
            raise MooringsError("pki.invalid", f"there is no certificate of {subject} in {self.folder}", hint=hint)
        self._issue_client(subject, now, days)

    def _issue_client(self, subject: str, now: datetime, days: int) -> None:
        from moorings.cli.pki.authority import Pair, issue_client

        certificate, key = self._authority()
        made = issue_client(Pair(certificate, key), subject, now, days)
        _make_folder(self.folder / CLIENTS)
        file = client_certificate(self.folder, subject)
        _write_pair(file, made.certificate, client_key(self.folder, subject), made.key)

    def renew_server(self, names: Sequence[str], now: datetime, days: int) -> None:
        """The controllers' certificate, made anew with a new key; without ``names`` for those it had.

        Raises:
            MooringsError: ``pki.invalid``.
        """
        from moorings.cli.pki.authority import Pair, issue_server, read_facts

        names = names or read_facts(_read(self._certificate(SERVER))).names
        certificate, key = self._authority()
        made = issue_server(Pair(certificate, key), names, now, days)
        _write_pair(self._certificate(SERVER), made.certificate, self._key(SERVER), made.key)

    def renew_authority(self, now: datetime) -> None:
        """A new authority beside those there are: all are trusted until the old ones are dropped.

        Raises:
            MooringsError: ``pki.invalid``.
        """
        from moorings.cli.pki.authority import make_authority

        made = make_authority(now)
        # The bundle first: should this be cut off, there is one authority more whose key nobody has.
        _write(self.bundle, made.certificate + _read(self.bundle), 0o644)
        _write(self._authority_key, made.key, 0o600)

    def drop_old(self) -> int:
        """Trust the newest authority alone; how many were dropped.

        Raises:
            MooringsError: ``pki.invalid``: a certificate in the folder is still an old one's.
        """
        from moorings.cli.pki.authority import split_bundle

        certificate, _ = self._authority()
        old = [entry.name for entry in self.entries() if entry.kind != "authority" and not entry.trusted]
        if old:
            raise MooringsError(
                "pki.invalid",
                f"{', '.join(sorted(old)[:8])} would not be trusted any more",
                hint="first renew them: moor pki rotate",
            )
        count = len(split_bundle(_read(self.bundle)))
        _write(self.bundle, certificate, 0o644)
        return count - 1

    def entries(self) -> list[Entry]:
        """All certificates: authorities, the controllers', the clients' by name.

        Raises:
            MooringsError: ``pki.invalid``: one cannot be read.
        """
        from moorings.cli.pki.authority import is_of_key, is_signed_by, read_facts, split_bundle

        authorities = split_bundle(_read(self.bundle))
        found = []
        for number, pem in enumerate(authorities):
            facts = read_facts(pem)
            found.append(Entry("authority", facts.subject, (), facts.serial, facts.ends, self.bundle, number == 0))
        files = [self._certificate(SERVER)] if self._certificate(SERVER).exists() else []
        for file in [*files, *sorted((self.folder / CLIENTS).glob("*.pem"))]:
            pem = _read(file)
            facts = read_facts(pem)
            kind = "client" if file.parent.name == CLIENTS else "server"
            trusted, key = is_signed_by(pem, authorities[0]), file.with_suffix(".key")
            fits = not key.exists() or is_of_key(pem, _read(key))
            found.append(Entry(kind, facts.subject, facts.names, facts.serial, facts.ends, file, trusted, fits))
        return found

    def _authority(self) -> tuple[bytes, bytes]:
        """The authority whose key we have: its certificate and that key.

        Raises:
            MooringsError: ``pki.invalid``.
        """
        from moorings.cli.pki.authority import is_of_key, split_bundle

        if not self._authority_key.exists():
            hint = "name it with --ca-key, or make an authority: moor pki init"
            raise MooringsError("pki.invalid", f"there is no {self._authority_key}", hint=hint)
        check_private_key(self._authority_key)
        key = _read(self._authority_key)
        for certificate in split_bundle(_read(self.bundle)):
            if is_of_key(certificate, key):
                return certificate, key
        raise MooringsError("pki.invalid", f"{self._authority_key} is the key of no authority in {self.bundle}")

    def _certificate(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def _key(self, name: str) -> Path:
        return self.folder / f"{name}.key"


def _make_folder(path: Path) -> None:
    try:
        if not path.is_dir():  # one that exists is left as it is: others may have to read it
            path.mkdir(mode=0o700, parents=True)
            path.chmod(0o700)
    except OSError as error:
        raise MooringsError("pki.invalid", f"the folder {path} cannot be used: {cause_text(error)}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        hint = "'moor pki init' makes an authority" if path.name == "ca.pem" else ""
        raise MooringsError("pki.invalid", f"{path} cannot be read: {cause_text(error)}", hint=hint) from error


def _write_pair(file: Path, certificate: bytes, key_file: Path, key: bytes) -> None:
    drafts = _draft(key_file, key, 0o600), _draft(file, certificate, 0o644)
    _replace(drafts[0], key_file)
    _replace(drafts[1], file)


def _write(path: Path, content: bytes, mode: int) -> None:
    _replace(_draft(path, content, mode), path)


def _draft(path: Path, content: bytes, mode: int) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise MooringsError("pki.invalid", f"{path} cannot be written: {cause_text(error)}") from error
    return draft


def _replace(draft: Path, path: Path) -> None:
    try:
        draft.replace(path)
    except OSError as error:
        raise MooringsError("pki.invalid", f"{path} cannot be written: {cause_text(error)}") from error
