"""The certificates of a cluster and the kubeconfigs made of them. Nothing here outlives a test's folder."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=365)


class Authority:
    """A certificate authority in a folder; ``issue`` writes ``NAME.crt`` and ``NAME.key`` there."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.certificate = folder / f"{name}.crt"
        self.key = folder / f"{name}.key"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        usage = _usage(key_cert_sign=True, crl_sign=True, digital_signature=True)
        made = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        write_key(self.key, self._key)

    def issue(
        self, name: str, common_name: str, *, groups: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """A certificate for a client, and with ``hosts`` (names, addresses) for a server; its path and its key's."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = (
            _builder(subject, self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), False)
        paths = (self.folder / f"{name}.crt", self.folder / f"{name}.key")
        paths[0].write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        write_key(paths[1], key)
        return paths


def write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key that only its owner may read."""
    file.touch(0o600)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    file.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))


def write_signing_keys(folder: Path) -> tuple[Path, Path]:
    """The key that signs the tokens of service accounts, and its public half."""
    key = ec.generate_private_key(ec.SECP256R1())
    paths = (folder / "sa.key", folder / "sa.pub")
    write_key(paths[0], key)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    paths[1].write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return paths


def write_kubeconfig(
    file: Path, server: str, authority: Path, *, pair: tuple[Path, Path] | None = None, token: str = ""
) -> Path:
    """Write a kubeconfig that needs no file beside it, for a certificate with its key or for a token."""
    user = {"token": token} if token else {}
    if pair:
        user = {"client-certificate-data": _data(pair[0]), "client-key-data": _data(pair[1])}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority-data": _data(authority)}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    }
    file.touch(0o600)
    file.write_text(yaml.safe_dump(document))
    return file


def _data(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
