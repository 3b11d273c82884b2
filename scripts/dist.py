#!/usr/bin/env python3
"""Writes the package that a site installs on Kubernetes: dist/gc-ipu-operator-v<version>.tar.gz (``make dist``).

Images for other architectures than amd64 make a separate file, with the architecture in its name.

It has the definition of IPUJobs, without and with CEL rules (docs/how-to/kubernetes-install.md says which to use),
documentation, examples, the chart, the images, their bills of materials (SBOM), and checksums for
``sha256sum --check``. helm is not needed: a chart is a tar file. Equal files, and equal layers of images, give equal
bytes.

usage: dist.py [--fresh] [--architecture arm64] [--kubectl FILE]
       --fresh: images with Debian's newest packages; for a release
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts import image  # noqa: E402  # the one beside this file

DEFINITIONS = ROOT / "deploy" / "kubernetes"
CRDS = ("CRDs/graphcore.ai_ipujobs.yaml", "CRDs-cel/graphcore.ai_ipujobs.yaml")
CHART = ROOT / "deploy" / "helm" / "ipu-operator"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples" / "kubernetes"
CHART_NAME, IMAGES_NAME = "gc-ipu-operator-helm-chart", "gc-operator-images.tar.gz"
# The chart's default names, without a version: with `Never`, a node must have the images under exactly this name.
ALSO_CALLED = {"launcher": ("launcher:latest",)}
_FENCED = re.compile(r"(^ *```.*?^ *```+ *$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:)([^)\s#]+)(#[^)\s]*)?\)")  # a link to a file, not to a site or this page


def main() -> int:
    """Write the file; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="dist.py", description="Write what a site installs on Kubernetes as one file."
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="where to (default: dist)")
    image.add_options(parser)
    given = parser.parse_args()
    for crd in CRDS:
        if not (DEFINITIONS / crd).exists():
            sys.stderr.write(f"error: {(DEFINITIONS / crd).relative_to(ROOT)} is missing\nhint: make docs writes it\n")
            return 1
    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        made = write(given.folder, image.make_layers(given))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{made}\n")
    return 0


def write(folder: Path, layers: image.Layers) -> Path:
    """Write the package; returns its path.

    Raises:
        OSError: it cannot be written.
        subprocess.CalledProcessError: an image cannot be made.
    """
    version = image.version()
    top = f"gc-ipu-operator-v{version}"
    images = folder / IMAGES_NAME
    image.write(images, list(image.IMAGES.values()), layers, image.REPOSITORY, version, ALSO_CALLED)
    chart = pack(CHART, "ipu-operator")
    chart_name = f"{CHART_NAME}-v{version}.tgz"
    crds = {name: (DEFINITIONS / name).read_bytes() for name in CRDS}
    files = {**crds, chart_name: chart}
    examples = {f"examples/kubernetes/{path.name}": path.read_bytes() for path in sorted(EXAMPLES.glob("*.yaml"))}
    with tempfile.TemporaryDirectory() as work:
        image.write_sboms(Path(work), list(image.IMAGES.values()), layers, version)
        sboms = {f"sboms/{path.name}": path.read_bytes() for path in sorted(Path(work).iterdir())}
    files |= examples | sboms | documents()
    with images.open("rb") as stream:
        of_images = hashlib.file_digest(stream, "sha256").hexdigest()
    files["gc-operator.cksm"] = checksums(
        {name: _sha256(content) for name, content in (crds | examples | sboms).items()} | {IMAGES_NAME: of_images}
    )
    files[f"{CHART_NAME}.cksm"] = checksums({chart_name: _sha256(chart)})
    made = folder / f"{top}{'' if layers.architecture == 'amd64' else f'-{layers.architecture}'}.tar.gz"
    part = made.with_suffix(".part")
    with (
        part.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=1, mtime=0) as packed,  # the images are packed
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        images.open("rb") as stream,
    ):
        for name in sorted({*files, IMAGES_NAME}):
            member = _member(f"{top}/{name}")
            content = stream if name == IMAGES_NAME else io.BytesIO(files[name])
            member.size = images.stat().st_size if name == IMAGES_NAME else len(files[name])
            archive.addfile(member, content)
    images.unlink()
    part.rename(made)
    return made


def documents() -> dict[str, bytes]:
    """The documentation, by name in the package; its links stay inside the package."""
    packed = dict(_papers())
    return {
        name: relink(path.read_text(), path, packed).encode() if path.suffix == ".md" else path.read_bytes()
        for path, name in packed.items()
    }


def _papers() -> Iterator[tuple[Path, str]]:
    for path in sorted(DOCS.rglob("*")):
        if path.is_file():
            yield path, f"docs/{path.relative_to(DOCS)}"
    yield CHART / "README.md", "docs/helm-chart.md"
    yield ROOT / "LICENSE", "docs/LICENSE"


def relink(text: str, page: Path, packed: Mapping[Path, str]) -> str:
    """A page as it is in the package: links lead to files there; of links to other files only the text stays.

    Args:
        text: the page, in Markdown.
        page: its path here.
        packed: the package's files: names there, by path here.
    """

    def link(found: re.Match[str]) -> str:
        name = packed.get((page.parent / found[2]).resolve())
        if name is None:
            return found[1]
        return f"[{found[1]}]({os.path.relpath(name, Path(packed[page]).parent)}{found[3] or ''})"

    parts = _FENCED.split(text)
    return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))


def pack(folder: Path, name: str) -> bytes:
    """A chart in helm's format."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        files.sort(key=lambda path: path.name != "Chart.yaml")  # the chart's description comes first
        for path in files:
            content = path.read_bytes()
            member = _member(f"{name}/{path.relative_to(folder)}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def checksums(digests: dict[str, str]) -> bytes:
    """Checksums in the format of ``sha256sum --check``."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())).encode()


def _member(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode = 0o644
    return member


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
