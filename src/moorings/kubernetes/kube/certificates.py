"""The certificates of webhooks and proxy: made and renewed automatically, each in a Secret. Pure but for fresh keys.

``plan_rotation`` decides what the Secret should hold, from its content, the callers' trusted bundles and ``now``.
``kube.serving_certificate`` executes it.

The Secret has the keys of kube-webhook-certgen, ``ca``, ``cert`` and ``key``, so the chart's patch job may make it; our
own Secrets also have ``ca-key``. ``ca`` is a bundle: an authority enters it before it signs anything, and leaves it
long after its last certificate was replaced, so no call ever fails.

Rejected: require cert-manager. It would be one more thing to install before the first job.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import KubeObject
from moorings.pki.authority import (
    KeyPair,
    is_issued_by,
    issue,
    load_certificate,
    load_key,
    make_authority,
    matches_key,
    to_pem,
)

CA, CERT, KEY, CA_KEY = "ca", "cert", "key", "ca-key"  # of the Secret

SKEW = timedelta(hours=1)  # the API server's clock may be behind
RENEW_BELOW_FRACTION = 3  # renewed when less than a third of a certificate's life is left
PROPAGATION = timedelta(minutes=5)  # until every API server trusts a new authority of the bundle
OVERLAP = timedelta(days=7)  # until every replica serves the new content of the Secret


@dataclass(frozen=True, slots=True)
class CertificateBundle:
    """The content of the Secret, as PEM.

    Attributes:
        ca: the authorities that callers trust, one or several.
        cert: the certificate that is served.
        key: its private key.
        ca_key: private key of one authority in ``ca``; empty: Moorings did not make this Secret.
    """

    ca: bytes
    cert: bytes
    key: bytes
    ca_key: bytes = b""

    def __repr__(self) -> str:
        return "CertificateBundle(...)"  # it holds private keys


def service_names(service: str, namespace: str, more: Iterable[str] = ()) -> tuple[str, ...]:
    """The names of a Service, the one that the API server uses first; ``more`` are hosts and addresses."""
    full = f"{service}.{namespace}.svc"
    return tuple(dict.fromkeys((full, service, f"{service}.{namespace}", f"{full}.cluster.local", *more)))


# -- building ----------------------------------------------------------------------------------------------------------


def make_certificates(names: Sequence[str], now: datetime) -> CertificateBundle:
    """A new authority and a certificate signed by it.

    Raises:
        MooringsError: ``webhook.invalid``: a name is not valid.
    """
    authority = _make_authority(now)
    return _issue(CertificateBundle(authority.certificate, b"", b"", authority.key), names, now)


def _make_authority(now: datetime) -> KeyPair:
    return make_authority(now, "Moorings", SKEW)


def _issue(held: CertificateBundle, names: Sequence[str], now: datetime) -> CertificateBundle:
    """``held`` with a new certificate, signed with its authority's key."""
    signer = _current_authority(held)
    assert signer is not None, "the authority of the key is in the bundle"
    authority = KeyPair(to_pem(signer), held.ca_key)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH]
    made = issue(authority, names[0][:64], [*map(_general, names)], usages, now, skew=SKEW)
    return replace(held, cert=made.certificate, key=made.key)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not name.isascii() or not name.replace("-", "a").replace(".", "a").isalnum() or len(name) > 253:
        hint = "write names as operator.example.org and 10.0.0.1, without port"
        raise MooringsError("webhook.invalid", f"{name[:80]!r} is neither a host's name nor an address", hint=hint)
    return x509.DNSName(name.lower())


# -- deciding ----------------------------------------------------------------------------------------------------------


def plan_rotation(
    current: CertificateBundle | None,
    names: Sequence[str],
    trusted_bundles: Sequence[bytes],
    now: datetime,
    propagation_delay: timedelta = PROPAGATION,
) -> CertificateBundle | None:
    """The new content of the Secret; None: the present content is good.

    An authority is replaced in three steps, days or minutes apart: a new one enters the bundle; once callers trust it,
    it signs a certificate; the old one leaves.

    Args:
        current: present content; None: there is none, or nothing in it can be read.
        names: names that the certificate must be valid for, the most important first.
        trusted_bundles: the bundle that each caller trusts.
        now: the time.
        propagation_delay: time until all callers trust a new authority of the bundle.
    """
    if current is None:
        made = make_certificates(names, now)
        # The Secret was deleted; other replicas serve its old content until they read it again.
        return replace(made, ca=join_authorities([*trusted_bundles, made.ca], now))
    signer = _current_authority(current)
    if not _is_servable(current, names[0], now):  # every call fails already: no transition is needed
        if signer is None or now >= signer.not_valid_after_utc:
            made = make_certificates(names, now)
            return replace(made, ca=join_authorities([current.ca, made.ca], now))
        return _issue(current, names, now)
    serving = load_certificate(current.cert)
    by_signer = signer is not None and is_issued_by(serving, signer)
    if signer is None:
        return (
            _add_authority(current, now) if _is_due(serving, now) or _all_issuers_due(current, serving, now) else None
        )
    if by_signer and _is_due(signer, now):
        return _add_authority(current, now)
    wanted = not by_signer or _is_due(serving, now) or not set(map(_normalize_name, names)) <= _names(serving)
    if wanted and _is_propagated(signer, trusted_bundles, now - propagation_delay):
        return _issue(current, names, now)
    authorities = _parse_all(current.ca)
    made_at = serving.not_valid_before_utc + SKEW
    kept = [signer] if by_signer and now >= made_at + OVERLAP else authorities
    bundle = _bundle(kept, now)
    return replace(current, ca=bundle) if len(_parse_all(bundle)) < len(authorities) else None


def _add_authority(held: CertificateBundle, now: datetime) -> CertificateBundle:
    authority = _make_authority(now)
    return replace(held, ca=join_authorities([held.ca, authority.certificate], now), ca_key=authority.key)


def expires_at(held: CertificateBundle) -> datetime:
    """Until when the certificate is valid; for one that ``plan_rotation`` accepted."""
    return load_certificate(held.cert).not_valid_after_utc


def _is_servable(held: CertificateBundle, name: str, now: datetime) -> bool:
    """Whether a caller would accept the certificate. One that is not yet valid stays: a clock went back."""
    try:
        serving, has_key = load_certificate(held.cert), matches_key(held.cert, held.key)
    except MooringsError:
        return False
    return (
        has_key
        and now < serving.not_valid_after_utc
        and _normalize_name(name) in _names(serving)
        and any(is_issued_by(serving, one) and now < one.not_valid_after_utc for one in _parse_all(held.ca))
    )


def _current_authority(held: CertificateBundle) -> x509.Certificate | None:
    """The authority in the bundle whose private key we have."""
    if not held.ca_key:
        return None
    try:
        public = load_key(held.ca_key).public_key()
    except MooringsError:
        return None
    return next((one for one in _parse_all(held.ca) if one.public_key() == public), None)


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return (ends - now) * RENEW_BELOW_FRACTION < ends - begins


def _all_issuers_due(held: CertificateBundle, serving: x509.Certificate, now: datetime) -> bool:
    return all(_is_due(one, now) for one in _parse_all(held.ca) if is_issued_by(serving, one))


def _is_propagated(signer: x509.Certificate, believed: Sequence[bytes], by: datetime) -> bool:
    return by >= signer.not_valid_before_utc + SKEW and all(signer in _parse_all(one) for one in believed)


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return set()
    hosts = (host.lower() for host in found.get_values_for_type(x509.DNSName))
    return {*hosts, *map(str, found.get_values_for_type(x509.IPAddress))}


def _normalize_name(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower()


def _bundle(authorities: Iterable[x509.Certificate], now: datetime) -> bytes:
    return b"".join(map(to_pem, dict.fromkeys(one for one in authorities if now < one.not_valid_after_utc)))


def join_authorities(bundles: Iterable[bytes], now: datetime) -> bytes:
    """One bundle of several, without expired authorities; PEM."""
    return _bundle((one for each in bundles for one in _parse_all(each)), now)


def _parse_all(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


# -- the Secret and the configurations ---------------------------------------------------------------------------------


def parse_secret(found: KubeObject) -> CertificateBundle | None:
    """The content of a Secret; None if the authorities, the certificate or its key are missing or unreadable."""
    data = found.get("data") or {}
    try:
        plain = {name: base64.b64decode(data.get(name) or "", validate=True) for name in (CA, CERT, KEY, CA_KEY)}
    except (binascii.Error, ValueError, TypeError):
        return None
    if not (plain[CA] and plain[CERT] and plain[KEY]):
        return None
    return CertificateBundle(plain[CA], plain[CERT], plain[KEY], plain[CA_KEY])


def parse_bundle(found: KubeObject, ca: str = CA) -> bytes:
    """The authorities of a Secret, as PEM; empty if it has none."""
    try:
        plain = base64.b64decode((found.get("data") or {}).get(ca) or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        return b""
    return plain if _parse_all(plain) else b""


def build_secret_data(held: CertificateBundle, ca: str = CA, cert: str = CERT, key: str = KEY) -> dict[str, str]:
    """The data of the Secret."""
    plain = {ca: held.ca, cert: held.cert, key: held.key, CA_KEY: held.ca_key}
    return {name: base64.b64encode(value).decode() for name, value in plain.items() if value}


def build_secret(namespace: str, name: str, data: Mapping[str, str]) -> KubeObject:
    """A Secret of type Opaque."""
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "moorings"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": dict(data)}


def with_ca_bundle(configuration: KubeObject, bundle: bytes, failure_policy: str = "") -> KubeObject | None:
    """A webhook configuration whose webhooks trust ``bundle``; None: they already do.

    Args:
        configuration: as the API server returned it; not changed.
        bundle: authorities, as PEM.
        failure_policy: ``Fail`` or ``Ignore``; empty: unchanged.
    """
    wanted = {"caBundle": base64.b64encode(bundle).decode()}
    policy = {"failurePolicy": failure_policy} if failure_policy else {}
    given = list(configuration.get("webhooks") or ())
    changed = [one | policy | {"clientConfig": one["clientConfig"] | wanted} for one in given]
    return configuration | {"webhooks": changed} if changed != given else None


def trusted_bundles_in(configuration: KubeObject) -> list[bytes]:
    """The bundle of each webhook of a configuration; an unreadable one is empty."""
    found = []
    for webhook in configuration.get("webhooks") or ():
        try:
            found.append(base64.b64decode(webhook["clientConfig"].get("caBundle") or "", validate=True))
        except (binascii.Error, ValueError):
            found.append(b"")
    return found
