"""The bill of materials (SBOM) of an image, for scanners: CycloneDX 1.5, JSON.

It is made from the layers alone: Debian's packages, Python's, and a kubectl that the site has supplied. Libraries
compiled into a program (Go modules, Rust crates) are missing: no file of the image names them.
"""

from __future__ import annotations

import email
import hashlib
import json
import re
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from email.message import Message
from pathlib import Path
from urllib.parse import quote

Component = dict[str, object]

KUBECTL = "usr/local/bin/kubectl"
_DEBIAN = re.compile(r"var/lib/dpkg/status\.d/[^/]+")
_PYTHON = re.compile(r"opt/moorings/[^/]+\.dist-info/METADATA")
_SYSTEM = "usr/lib/os-release"


def build(name: str, version: str, architecture: str, layers: Sequence[Path]) -> dict[str, object]:
    """The document of an image; equal layers give equal documents.

    Args:
        name: of the image.
        version: its tag.
        architecture: of the machines that run it.
        layers: tar files, the lowest first.

    Raises:
        OSError: one cannot be read.
    """
    packages: list[Component] = []
    system: list[Component] = []
    for layer in layers:
        found = dict(_read(layer))
        release = _release(found.pop(_SYSTEM, b""))
        if release:
            system = [{"type": "operating-system", "bom-ref": "system", "name": release["ID"], **_version(release)}]
        kubectl = found.pop(KUBECTL, None)
        told = [_package(path, _fields(content)) for path, content in found.items()]
        if kubectl is not None and not any(each["name"] == "kubernetes-client" for each in told):
            digest = {"alg": "SHA-256", "content": hashlib.sha256(kubectl).hexdigest()}
            told.append({"type": "application", "bom-ref": "kubectl", "name": "kubectl", "hashes": [digest]})
        packages += told
    packages.sort(key=lambda each: str(each["bom-ref"]))
    about = {"type": "container", "bom-ref": "image", "name": name, "version": version}
    content = {
        "metadata": {"component": about, "properties": [{"name": "architecture", "value": architecture}]},
        "components": [*system, *packages],
    }
    number = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        **content,
    }


def _read(layer: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a layer that list its packages."""
    with tarfile.open(layer) as packed:
        for member in packed:
            name = member.name
            if member.isfile() and (name in (_SYSTEM, KUBECTL) or _DEBIAN.fullmatch(name) or _PYTHON.fullmatch(name)):
                stream = packed.extractfile(member)
                assert stream is not None
                yield name, stream.read()


def _fields(content: bytes) -> Message:
    """The fields of a package; both kinds have the format of e-mail headers."""
    return email.message_from_bytes(content)


def _package(path: str, fields: Message) -> Component:
    name, version = str(fields["Name"] or fields["Package"]), str(fields["Version"])
    purl = pypi_purl(name, version) if _PYTHON.fullmatch(path) else debian_purl(fields)
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def pypi_purl(name: str, version: str) -> str:
    """The package URL of a Python package (https://github.com/package-url/purl-spec)."""
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{quote(version, safe='')}"


def debian_purl(fields: Message) -> str:
    """The package URL of a Debian package; fixes are published under the name of its source package."""
    source, _, version = str(fields["Source"] or "").partition(" ")
    more = f"&upstream={quote(source, safe='')}" if source else ""
    more += f"%40{quote(version.strip('()'), safe='')}" if version else ""
    name, own = quote(str(fields["Package"]), safe=""), quote(str(fields["Version"]), safe="")
    return f"pkg:deb/debian/{name}@{own}?arch={fields['Architecture']}&distro=debian-12{more}"


def _release(content: bytes) -> dict[str, str]:
    pairs = [line.split("=", 1) for line in content.decode().splitlines() if "=" in line]
    return {name: value.strip('"') for name, value in pairs}


def _version(release: dict[str, str]) -> dict[str, str]:
    return {"version": release["VERSION_ID"]} if "VERSION_ID" in release else {}
