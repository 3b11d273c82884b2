"""Certificates that cert-manager, or a person, keeps in a mounted Secret."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.certificates import CertificateBundle, make_certificates
from moorings.kubernetes.kube.mounted_certificate import MountedCertificate
from moorings.kubernetes.kube.serving_certificate import ConfigMapTrustStore
from tests.unit.kubernetes.objects_kept import KeptObjects, SetClock


def put(folder: Path, held: CertificateBundle) -> None:
    for name, text in (("tls.crt", held.cert), ("tls.key", held.key), ("ca.crt", held.ca)):
        (folder / name).write_bytes(text)


def told(kube: Any) -> str:
    return str(kube.objects["ConfigMap", "moor", "proxy-ca"]["data"]["ca.crt"])


async def test_a_new_certificate_is_served_and_its_authority_is_told_beside_the_one_before(tmp_path: Path) -> None:
    first, second = (make_certificates(["proxy"], datetime.now(UTC)) for _ in range(2))
    kube: Any = KeptObjects()
    ours = MountedCertificate(tmp_path, SetClock(datetime.now(UTC)), ConfigMapTrustStore(kube, "moor", "proxy-ca"))
    with pytest.raises(MooringsError, match="cannot be read"):
        await ours.prepare()
    assert not ours.is_ready
    put(tmp_path, first)
    await ours.prepare()
    assert ours.is_ready
    assert told(kube) == first.ca.decode()
    put(tmp_path, second)
    await ours.reconcile()
    assert told(kube) == (first.ca + second.ca).decode(), "who knows the first alone is there for a while"
    assert isinstance(ours.context, ssl.SSLContext)
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(MooringsError) as caught:
        await ours.reconcile()
    assert "authority" in caught.value.hint
