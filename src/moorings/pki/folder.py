"""The folder of certificates: an authority, the controllers' certificate, and one for each client.

::

    ca.pem  ca.key          the authorities that are trusted, the newest first; the newest one's key
    server.pem  server.key  the controllers'
    clients/SUBJECT.pem     and SUBJECT.key, to be handed to that subject

Folders are 0700 and keys 0600. Every file is replaced whole; a certificate is replaced a moment before its key, and a
program that reads them in that moment sees that they do not fit and reads them again (``app.tls``). A change locks the
folder, and first finishes or undoes the work of a killed run (``files``): a command can always be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from moorings.client.keyfiles import check_private_key
from moorings.core.model.access import check_subject
from moorings.core.model.errors import MooringsError
from moorings.pki.authority import (
    KeyPair,
    is_signed_by,
    issue_client,
    issue_server,
    make_authority,
    matches_key,
    parse_certificate,
    split_bundle,
)
from moorings.pki.files import (
    CLIENTS,
    LOCAL_NAMES,
    KeyPairPaths,
    client_certificate,
    client_key,
    finish_replace,
    lock_folder,
    make_folder,
    read,
    remove_stale,
    replace_certificate,
    replace_pair,
)

SERVER = "server"


@dataclass(frozen=True, slots=True)
class CertificateEntry:
    """A certificate in the folder.

    Attributes:
        kind: ``authority``, ``server`` or ``client``.
        name: a client's subject, the controllers' first host, or the authority's name.
        names: hosts and addresses of a server's certificate.
        serial: in hexadecimal.
        not_after: end of its validity.
        file: its path.
        is_current: whether the newest authority has signed it (an authority: whether it is the newest).
        key_matches: whether its key, if it is in the folder, belongs to this certificate.
    """

    kind: str
    name: str
    names: tuple[str, ...]
    serial: str
    not_after: datetime
    file: Path
    is_current: bool
    key_matches: bool = True

    def days_left(self, now: datetime) -> int:
        """Whole days until it expires; negative: it has expired."""
        return (self.not_after - now) // timedelta(days=1)


class CertificateStore:
    """The folder.

    Args:
        folder: its path.
        authority_key: the authority's key, if it is kept elsewhere.

    Attributes:
        finished: certificates of killed runs, whose keys have been put in place since.
    """

    def __init__(self, folder: Path, authority_key: Path | None = None) -> None:
        self.folder = folder
        self.finished: list[Path] = []
        self._authority_key = authority_key or folder / "ca.key"

    @property
    def bundle(self) -> Path:
        """The trusted authorities."""
        return self.folder / "ca.pem"

    def finish_pending(self) -> None:
        """Finish or undo the work of a killed run, and nothing else.

        Raises:
            MooringsError: ``pki.invalid``.
        """
        with self._locked():
            pass

    def create(self, names: Sequence[str], now: datetime, days: int) -> None:
        """Make an authority and the controllers' certificate; after a killed run, only the missing files.

        Raises:
            MooringsError: ``pki.exists``, ``pki.invalid``.
        """
        made = make_authority(now)
        server = issue_server(made, names, now, days)  # first: an invalid name must leave no files
        make_folder(self.folder)
        with self._locked():
            certificate, key = self.bundle.exists(), self._authority_key.exists()
            begun = not self._server.certificate.exists() or self._server.certificate in self.finished
            if not certificate and not key:
                replace_pair(self._authority_place, made.certificate, made.key)
            elif certificate and key and begun:
                server = issue_server(KeyPair(*self._authority()), names, now, days)
            else:
                raise self._exists()
            replace_pair(self._server, server.certificate, server.key)

    def _exists(self) -> MooringsError:
        if not self.bundle.exists():
            return MooringsError(
                "pki.exists",
                f"there is an authority's key in {self.folder}, and no certificate of it",
                hint=f"put {self.bundle} back from a copy; or move {self._authority_key} away",
            )
        return MooringsError(
            "pki.exists",
            f"there is an authority in {self.folder}",
            hint="'moor pki rotate' renews its certificates, 'moor pki rotate --ca' makes a new authority",
        )

    def issue(self, subject: str, now: datetime, days: int) -> Path:
        """Make a certificate for a client; return its path.

        Raises:
            MooringsError: ``pki.exists``, ``pki.invalid``, ``key.invalid``.
        """
        check_subject(subject)
        file = client_certificate(self.folder, subject)
        with self._locked():
            if file.exists() and file not in self.finished:  # a finished one has not been handed over
                hint = f"renew it with 'moor pki rotate {subject}'"
                raise MooringsError("pki.exists", f"{subject} has a certificate: {file}", hint=hint)
            self._issue_client(subject, now, days)
        return file

    def renew_client(self, subject: str, now: datetime, days: int) -> None:
        """Replace a client's certificate, with a new key.

        Raises:
            MooringsError: ``pki.invalid``: there is none, or the authority's files.
        """
        with self._locked():
            if not client_certificate(self.folder, subject).exists():
                hint = f"make one: moor pki issue {subject}"
                raise MooringsError("pki.invalid", f"there is no certificate of {subject} in {self.folder}", hint=hint)
            self._issue_client(subject, now, days)

    def _issue_client(self, subject: str, now: datetime, days: int) -> None:
        made = issue_client(KeyPair(*self._authority()), subject, now, days)
        make_folder(self.folder / CLIENTS)
        replace_pair(self._client(subject), made.certificate, made.key)

    def renew_server(self, names: Sequence[str], now: datetime, days: int, *, only: bool = False) -> tuple[str, ...]:
        """Replace the controllers' certificate, with a new key; return the hosts and addresses it covers.

        These are its present names, ``names``, and the loopback ones; with ``only``, its present names are left out.

        Raises:
            MooringsError: ``pki.invalid``.
        """
        with self._locked():
            replaces_names = only or (names and not self._server.certificate.exists())
            had = () if replaces_names else parse_certificate(read(self._server.certificate)).names
            wanted = list(dict.fromkeys([*had, *names, *LOCAL_NAMES]))
            made = issue_server(KeyPair(*self._authority()), wanted, now, days)
            replace_pair(self._server, made.certificate, made.key)
        return parse_certificate(made.certificate).names

    def renew_authority(self, now: datetime) -> None:
        """Add a new authority: all are trusted until the old ones are dropped.

        Raises:
            MooringsError: ``pki.invalid``.
        """
        with self._locked():
            if self.bundle in self.finished:  # the killed run was making it
                return
            made = make_authority(now)
            replace_pair(self._authority_place, made.certificate + read(self.bundle), made.key)

    def drop_old_authorities(self) -> int:
        """Trust only the newest authority; return how many were dropped.

        Raises:
            MooringsError: ``pki.invalid``: a certificate in the folder is still signed by an old one.
        """
        with self._locked():
            certificate, _ = self._authority()
            old = [entry.name for entry in self.entries() if entry.kind != "authority" and not entry.is_current]
            if old:
                raise MooringsError(
                    "pki.invalid",
                    f"{', '.join(sorted(old)[:8])} would not be trusted any more",
                    hint="first renew them: moor pki rotate",
                )
            count = len(split_bundle(read(self.bundle)))
            replace_certificate(self.bundle, certificate)
        return count - 1

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder, and finish or undo the work of a killed run.

        Raises:
            MooringsError: ``pki.invalid``.
        """
        if not self.folder.is_dir():
            read(self.bundle)
        with lock_folder(self.folder):
            drafts = sorted((self.folder / CLIENTS).glob(".*.new"))  # .SUBJECT.pem.new
            clients = [self._client(Path(draft.name[1:]).with_suffix("").stem) for draft in drafts]
            for place in (self._authority_place, self._server, *clients):
                if finish_replace(place):
                    self.finished.append(place.certificate)
            remove_stale(self.folder)
            remove_stale(self.folder / CLIENTS)
            remove_stale(self._authority_key.parent, self._authority_key.name)
            yield

    def entries(self) -> list[CertificateEntry]:
        """All certificates: authorities, the controllers', the clients' by name.

        Raises:
            MooringsError: ``pki.invalid``: one cannot be read.
        """
        authorities = split_bundle(read(self.bundle))
        found = []
        for number, pem in enumerate(authorities):
            facts = parse_certificate(pem)
            found.append(
                CertificateEntry(
                    "authority", facts.subject, (), facts.serial, facts.not_after, self.bundle, number == 0
                )
            )
        files = [self._server.certificate] if self._server.certificate.exists() else []
        for file in [*files, *sorted((self.folder / CLIENTS).glob("*.pem"))]:
            pem = read(file)
            facts = parse_certificate(pem)
            kind = "client" if file.parent.name == CLIENTS else "server"
            trusted, key = is_signed_by(pem, authorities[0]), file.with_suffix(".key")
            fits = not key.exists() or matches_key(pem, read(key))
            found.append(
                CertificateEntry(kind, facts.subject, facts.names, facts.serial, facts.not_after, file, trusted, fits)
            )
        return found

    def _authority(self) -> tuple[bytes, bytes]:
        """The newest authority: its certificate and its key.

        Raises:
            MooringsError: ``pki.invalid``; also if the key is an older one's: its certificates would be outdated at
                once.
        """
        if not self._authority_key.exists():
            hint = "name it with --ca-key, or make an authority: moor pki init"
            raise MooringsError("pki.invalid", f"there is no {self._authority_key}", hint=hint)
        check_private_key(self._authority_key)
        key = read(self._authority_key)
        newest, *older = split_bundle(read(self.bundle))
        if matches_key(newest, key):
            return newest, key
        if any(matches_key(certificate, key) for certificate in older):
            detail = f"{self._authority_key} is the key of an older authority than the newest in {self.bundle}"
            hint = "name the newest one's with --ca-key; if it is lost: moor pki rotate --ca"
            raise MooringsError("pki.invalid", detail, hint=hint)
        raise MooringsError("pki.invalid", f"{self._authority_key} is the key of no authority in {self.bundle}")

    @property
    def _authority_place(self) -> KeyPairPaths:
        return KeyPairPaths(self.bundle, self._authority_key)

    @property
    def _server(self) -> KeyPairPaths:
        return KeyPairPaths(self.folder / f"{SERVER}.pem", self.folder / f"{SERVER}.key")

    def _client(self, subject: str) -> KeyPairPaths:
        return KeyPairPaths(client_certificate(self.folder, subject), client_key(self.folder, subject))
