"""Makes and reads certificates: from names, lives and ``now`` to PEM, and from PEM to the contents.

ECDSA on P-256: every TLS library knows it, and a handshake costs a tenth of one with RSA. No revocation lists: a
certificate is useless without the access key, and that is revoked in one place and at once.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from moorings.core.model.access import CONTROLLER_URI, SUBJECT_URI, check_subject
from moorings.core.model.errors import MooringsError

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
SKEW = timedelta(minutes=5)  # clocks of other machines may be behind

_HOST = re.compile(
    r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}[A-Za-z0-9_])?)*"
)
_HOST_CHARS_MAX = 253
_PEM = serialization.Encoding.PEM

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """The contents of a certificate.

    Attributes:
        subject: its holder: a client's subject, else the common name.
        names: hosts and addresses it covers.
        is_controller: whether it is a controller's own.
        serial: in hexadecimal.
        not_before: start of its validity, and
        not_after: the end.
    """

    subject: str
    names: tuple[str, ...]
    is_controller: bool
    serial: str
    not_before: datetime
    not_after: datetime


def make_authority(now: datetime, name: str = "Moorings authority", skew: timedelta = SKEW) -> KeyPair:
    """An authority that signs certificates, but no other authorities; its name gets a unique suffix."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # A unique name: while an old and a new authority are both trusted, no program confuses them.
    called = _name(f"{name} {serial:x}"[:40])
    ends = now + timedelta(days=AUTHORITY_DAYS)
    builder = x509.CertificateBuilder(called, called, key.public_key(), serial, now - skew, ends)
    return _sign(builder, key, key, signs_certificates=True)


def issue_client(authority: KeyPair, subject: str, now: datetime, days: int = CERTIFICATE_DAYS) -> KeyPair:
    """A client's certificate, with the name ``moorings:subject/<subject>``.

    Raises:
        MooringsError: ``key.invalid``: no access key can have that subject; ``pki.invalid``: the authority's files.
    """
    check_subject(subject)
    names = [x509.UniformResourceIdentifier(SUBJECT_URI + subject)]
    return issue(authority, subject, names, [ExtendedKeyUsageOID.CLIENT_AUTH], now, days)


def issue_server(authority: KeyPair, names: Sequence[str], now: datetime, days: int = CERTIFICATE_DAYS) -> KeyPair:
    """A controller's certificate for hosts and addresses; it also lets a controller forward its clients' requests.

    Raises:
        MooringsError: ``pki.invalid``: an invalid name, or the authority's files.
    """
    general = [*map(_host, names), x509.UniformResourceIdentifier(CONTROLLER_URI)]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return issue(authority, names[0][:64], general, usages, now, days)


def issue(
    authority: KeyPair,
    common: str,
    names: Sequence[x509.GeneralName],
    usages: Sequence[x509.ObjectIdentifier],
    now: datetime,
    days: int = CERTIFICATE_DAYS,
    skew: timedelta = SKEW,
) -> KeyPair:
    """A certificate with a new key; it does not outlive the authority.

    Raises:
        MooringsError: ``pki.invalid``: the authority's files, or the authority has expired.
    """
    signer, signing_key = load_certificate(authority.certificate), load_key(authority.key)
    ends = min(now + timedelta(days=days), signer.not_valid_after_utc)
    if ends <= now:
        hint = "make a new one: moor pki rotate --ca"
        raise MooringsError("pki.invalid", f"the authority has ended at {signer.not_valid_after_utc}", hint=hint)
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    builder = (
        x509.CertificateBuilder(signer.subject, _name(common), key.public_key(), serial, now - skew, ends)
        .add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
        .add_extension(_authority_key_identifier(signer), critical=False)
    )
    return _sign(builder, key, signing_key, signs_certificates=False)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _sign(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signing_key: PrivateKey,
    *,
    signs_certificates: bool,
) -> KeyPair:
    usage = x509.KeyUsage(  # Python 3.13 and Go refuse an authority without it
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
    path_length = 0 if signs_certificates else None
    made = (
        builder.add_extension(x509.BasicConstraints(ca=signs_certificates, path_length=path_length), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    return KeyPair(to_pem(made), key.private_bytes(_PEM, form, serialization.NoEncryption()))


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not _HOST.fullmatch(name) or len(name) > _HOST_CHARS_MAX:
            raise MooringsError(
                "pki.invalid",
                f"{name[:80]!r} is neither a host's name nor an address",
                hint="write names as controller.example.org and 10.0.0.1, without port",
            ) from None
        return x509.DNSName(name)


# -- reading -----------------------------------------------------------------------------------------------------------


def parse_certificate(pem: bytes) -> CertificateInfo:
    """The contents of a certificate; of the first one if a file has several.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    found = load_certificate(pem)
    names: tuple[str, ...] = ()
    uris: list[str] = []
    try:
        alternative = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = alternative.get_values_for_type(x509.UniformResourceIdentifier)
        addresses = alternative.get_values_for_type(x509.IPAddress)
        names = (*alternative.get_values_for_type(x509.DNSName), *map(str, addresses))
    except x509.ExtensionNotFound:
        pass  # it has at most a common name
    except ValueError as error:
        raise MooringsError("pki.invalid", f"the certificate cannot be read: {error}") from error
    subjects = [uri.removeprefix(SUBJECT_URI) for uri in uris if uri.startswith(SUBJECT_URI)]
    common = [str(each.value) for each in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return CertificateInfo(
        subject=next(iter(subjects or common), ""),
        names=names,
        is_controller=CONTROLLER_URI in uris,
        serial=f"{found.serial_number:x}",
        not_before=found.not_valid_before_utc,
        not_after=found.not_valid_after_utc,
    )


def split_bundle(pem: bytes) -> list[bytes]:
    """The certificates of a file, one by one.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    try:
        return [to_pem(each) for each in x509.load_pem_x509_certificates(pem)]
    except ValueError as error:
        raise MooringsError("pki.invalid", f"no certificates can be read: {error}") from error


def matches_key(certificate: bytes, key: bytes) -> bool:
    """Whether a certificate belongs to a private key.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    return load_certificate(certificate).public_key() == load_key(key).public_key()


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether an authority has signed a certificate.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    return is_issued_by(load_certificate(certificate), load_certificate(authority))


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def load_key(pem: bytes) -> PrivateKey:
    """A private key that can sign.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    try:
        found = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise MooringsError("pki.invalid", "the private key cannot be read: an unencrypted PEM is wanted") from error
    if not isinstance(found, PrivateKey):
        raise MooringsError("pki.invalid", f"{type(found).__name__} cannot sign certificates")
    return found


def load_certificate(pem: bytes) -> x509.Certificate:
    """A certificate; the first one if a file has several.

    Raises:
        MooringsError: ``pki.invalid``.
    """
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise MooringsError("pki.invalid", f"the certificate cannot be read: {error}") from error


def to_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(_PEM)


def _authority_key_identifier(certificate: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        found = x509.SubjectKeyIdentifier.from_public_key(certificate.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(found)
