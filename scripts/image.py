#!/usr/bin/env python3
"""Writes the container images of the chart without Docker: a docker-archive, which docker, podman and ctr can load.

The recipes are those of deploy/images, which the Dockerfile uses too. Layers are kept in the shared cache: equal layers
give equal bytes, and ``--fresh`` makes new ones, with Debian's newest packages. Needs apt-get, dpkg-deb, uv and
python3.11, and no special rights; runs no packed program, so each machine makes the images of all architectures.

usage: image.py [--architecture arm64] [--kubectl FILE] [--sboms FOLDER] FILE [IMAGE...]
       images: controller, vipu-proxy, webhook-certgen, launcher (default: all)
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts import sbom  # noqa: E402  # the one beside this file

RECIPES = ROOT / "deploy" / "images"
UV = str(ROOT / ".tools" / "bin" / "uv")  # `make setup` puts it there
REPOSITORY = "localhost:5000"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # by the machine's own name of it
DEBIAN = "debian"  # as a kubectl: Debian's own
USER = "65532:65532"
UNUSED_S = 86400.0  # age at which an unused layer of the cache is removed
ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONPATH": "/opt/moorings",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
}
OURS = ("base", "dependencies", "package")


@dataclass(frozen=True, slots=True)
class Image:
    """An image as the names of its layers, the lowest first."""

    name: str
    about: str
    layers: tuple[str, ...]
    module: str


IMAGES = {
    image.name: image
    for image in (
        Image(
            "controller",
            "IPU operator, guard of its metrics, and what helm uninstall runs",
            OURS,
            "moorings.app.kubernetes_operator",
        ),
        Image(
            "vipu-proxy",
            "Proxy between the IPU operator and Moorings controllers",
            OURS,
            "moorings.app.kubernetes_proxy",
        ),
        Image(
            "webhook-certgen",
            "Certificates of admission webhooks, called as kube-webhook-certgen is",
            OURS,
            "moorings.app.kubernetes_certgen",
        ),
        Image(
            "launcher",
            "Init container of an IPUJob's launcher, with kubectl",
            ("base", "kubectl", "package"),
            "moorings.app.kubernetes_launcher",
        ),
    )
}


def main() -> int:
    """Write the requested images; returns the exit code."""
    parser = argparse.ArgumentParser(prog="image.py", description="Write the container images of the chart.")
    parser.add_argument("file", type=Path, help="docker-archive to write; packed, if it ends in .gz")
    parser.add_argument("images", nargs="*", default=[], metavar="IMAGE", help=f"of {', '.join(IMAGES)} (default: all)")
    parser.add_argument("--repository", default=REPOSITORY, help="what stands before the names (default: %(default)s)")
    parser.add_argument("--tag", default=version(), help="default: %(default)s")
    parser.add_argument("--sboms", type=Path, metavar="FOLDER", help="what is in each image goes there, as CycloneDX")
    add_options(parser)
    given = parser.parse_args()
    unknown = [name for name in given.images if name not in IMAGES]
    if unknown:
        parser.error(f"there is no image {unknown[0]}: one of {', '.join(IMAGES)}")
    try:
        wanted = [IMAGES[name] for name in given.images] or list(IMAGES.values())
        layers = make_layers(given)
        write(given.file, wanted, layers, given.repository, given.tag)
        if given.sboms is not None:
            write_sboms(given.sboms, wanted, layers, given.tag)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of images, which dist.py and scan.py share."""
    parser.add_argument(
        "--architecture",
        choices=sorted(ARCHITECTURES.values()),
        default=ARCHITECTURES.get(platform.machine(), "amd64"),
        help="of the machines that the images are for (default: %(default)s)",
    )
    kubectl = "the launcher's: a static program of its architecture, or FILE-<architecture> if there is one"
    parser.add_argument("--kubectl", default=DEBIAN, metavar="FILE", help=f"{kubectl} (default: Debian's, 1.20)")
    parser.add_argument("--fresh", action="store_true", help="make all layers anew, with today's packages")
    parser.add_argument("--uv", default=UV, help="default: %(default)s")


def make_layers(given: argparse.Namespace) -> Layers:
    """The layers for these options."""
    return Layers(given.uv, given.architecture, given.kubectl, fresh=given.fresh)


def version() -> str:
    """The version of this project."""
    found = re.search(r'^__version__ = "(.+)"', (ROOT / "src/moorings/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


# -- layers ------------------------------------------------------------------------------------------------------------


@dataclass
class Layers:
    """Layers by name, each a tar file; made at their first use.

    Args:
        uv: the program.
        architecture: of the machines that they are for: amd64 or arm64.
        kubectl: of the launcher: a file, or ``DEBIAN``.
        fresh: whether to replace those in the cache.
    """

    uv: str
    architecture: str
    kubectl: str = DEBIAN
    fresh: bool = False
    made: dict[str, Path] = field(default_factory=dict)

    def get(self, name: str) -> Path:
        """The file of a layer.

        Raises:
            OSError: it cannot be written.
            subprocess.CalledProcessError: a program has failed, and has printed why.
        """
        if name not in self.made:
            recipes = {"base": self._base, "kubectl": self._kubectl}
            parts = {
                "base": [RECIPES / "packages.txt"],
                "kubectl": self._kubectl_files(),
                "dependencies": [ROOT / "uv.lock"],
                "package": sorted(_sources()),
            }
            build = recipes[name] if name in recipes else self._python(name)
            self.made[name] = self._cached(name, build, parts[name])
        return self.made[name]

    def _cached(self, name: str, build: Callable[[Path], None], made_of: Sequence[Path]) -> Path:
        digest = hashlib.sha256(f"{self.architecture} {sys.version_info[:2]}".encode())
        for file in (*sorted(RECIPES.glob("*.sh")), Path(__file__), *made_of):
            digest.update(f"{_short(file)}\0".encode() + file.read_bytes() + b"\0")
        folder = cache_folder() / "images"
        folder.mkdir(parents=True, exist_ok=True)
        layer = folder / f"{name}-{digest.hexdigest()[:16]}.tar"
        with layer.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.fresh or not layer.exists():
                with tempfile.TemporaryDirectory(dir=folder) as work:
                    root, part = Path(work, "root"), Path(work, "layer.tar")
                    root.mkdir()
                    build(root)
                    with part.open("wb") as stream:
                        write_layer(root, stream)
                    part.rename(layer)
                _remove_old(folder, name)
            os.utime(layer)
        return layer

    def _base(self, root: Path) -> None:
        lines = (RECIPES / "packages.txt").read_text().splitlines()
        self._run("root.sh", root, *(line for line in lines if line and not line.startswith("#")))

    def _kubectl(self, root: Path) -> None:
        self._run("kubectl.sh", self.kubectl if self.kubectl == DEBIAN else Path(self.kubectl).absolute(), root)

    def _kubectl_files(self) -> list[Path]:
        names = () if self.kubectl == DEBIAN else (self.kubectl, f"{self.kubectl}-{self.architecture}")
        return [Path(name) for name in names if Path(name).is_file()]

    def _python(self, name: str) -> Callable[[Path], None]:
        return lambda root: self._run("python.sh", name, root)

    def _run(self, recipe: str, *words: str | Path) -> None:
        """Run a recipe; its output goes to standard error."""
        environment = {**os.environ, "ARCHITECTURE": self.architecture, "UV": self.uv}
        subprocess.run([RECIPES / recipe, *words], cwd=ROOT, check=True, stdout=sys.stderr, env=environment)


def cache_folder() -> Path:
    """The folder that all checkouts share, or one of this checkout if HOME is not writable."""
    wanted = os.environ.get("MOORINGS_CACHE")
    if not wanted:
        base = os.environ.get("XDG_CACHE_HOME") or (f"{os.environ['HOME']}/.cache" if os.environ.get("HOME") else "")
        wanted = f"{base}/moorings" if base else ""
    if wanted:
        with contextlib.suppress(OSError):
            Path(wanted).mkdir(parents=True, exist_ok=True)
            if os.access(wanted, os.W_OK):
                return Path(wanted)
    return ROOT / ".tools"


def _remove_old(folder: Path, name: str) -> None:
    """Remove layers that no checkout has used for long; their lock files stay, for they are empty."""
    for old in folder.glob(f"{name}-*.tar"):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            if time.time() - old.stat().st_mtime > UNUSED_S:
                old.unlink()


def write_layer(root: Path, stream: IO[bytes]) -> None:
    """Write a folder's files as a layer: owned by root, without dates, sorted."""
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, str(path.relative_to(root)), recursive=False, filter=plain)


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner, date and umask from a member."""
    member.mtime = 0
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if not member.mode & stat.S_ISVTX:  # /tmp is writable for all
        member.mode = 0o755 if member.isdir() or member.mode & stat.S_IXUSR else 0o644
    return member


def _sources() -> Iterator[Path]:
    folders = ("src/moorings", "deploy/slurm", "docs/man")
    yield from (ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "LICENSE")
    for folder in folders:
        yield from (file for file in (ROOT / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def _short(file: Path) -> Path:
    """The path of a file that is equal in every checkout."""
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else Path(file.name)


# -- images ------------------------------------------------------------------------------------------------------------


def build_config(image: Image, diff_ids: Sequence[str], tag: str, architecture: str) -> dict[str, object]:
    """The configuration document of an image."""
    title = "org.opencontainers.image"
    return {
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": [f"{name}={value}" for name, value in ENV.items()],
            "Entrypoint": ["python3", "-m", image.module],
            "User": USER,
            "WorkingDir": "/",
            "Labels": {
                f"{title}.title": image.name,
                f"{title}.description": image.about,
                f"{title}.version": tag,
                f"{title}.licenses": "Apache-2.0",
                f"{title}.vendor": "Moorings",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each}" for each in diff_ids]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": f"layer {name}"} for name in image.layers],
    }


def write(
    file: Path,
    images: Sequence[Image],
    layers: Layers,
    repository: str,
    tag: str,
    also_called: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write images into one docker-archive; a common layer is in it once.

    Args:
        file: the archive; compressed, if its name ends in .gz.
        images: to write.
        layers: of them.
        repository: prefix of the names.
        tag: of all images.
        also_called: further full names of an image.

    Raises:
        OSError: it cannot be written.
        subprocess.CalledProcessError: a layer cannot be made.
    """
    digests = {name: _digest(layers.get(name)) for image in images for name in image.layers}
    documents: dict[str, bytes] = {}
    manifest = []
    for image in images:
        diff_ids = [digests[name] for name in image.layers]
        document = json.dumps(build_config(image, diff_ids, tag, layers.architecture)).encode()
        name = f"{hashlib.sha256(document).hexdigest()}.json"
        documents[name] = document
        paths = [f"{digests[layer]}/layer.tar" for layer in image.layers]
        called = [f"{repository}/{image.name}:{tag}", *(also_called or {}).get(image.name, ())]
        manifest.append({"Config": name, "RepoTags": called, "Layers": paths})
    documents["manifest.json"] = json.dumps(manifest).encode()
    part = file.with_name(f"{file.name}.part")
    with part.open("wb") as raw, _packed(raw, file) as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        for name, document in documents.items():
            member = tarfile.TarInfo(name)
            member.size = len(document)
            archive.addfile(member, io.BytesIO(document))
        for name, digest in digests.items():
            member = tarfile.TarInfo(f"{digest}/layer.tar")
            member.size = layers.get(name).stat().st_size
            with layers.get(name).open("rb") as layer:
                archive.addfile(member, layer)
    shutil.move(part, file)


def write_sboms(folder: Path, images: Sequence[Image], layers: Layers, tag: str) -> None:
    """Write each image's bill of materials: ``<image>.cdx.json``, in a folder.

    Raises:
        OSError: it cannot be written.
        subprocess.CalledProcessError: a layer cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for each in images:
        document = sbom.build(each.name, tag, layers.architecture, [layers.get(name) for name in each.layers])
        (folder / f"{each.name}.cdx.json").write_text(f"{json.dumps(document, indent=1)}\n")


@contextlib.contextmanager
def _packed(raw: IO[bytes], file: Path) -> Iterator[IO[bytes]]:
    if file.suffix != ".gz":
        yield raw
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as stream:
        yield stream  # type: ignore[misc]  # it has all methods that tarfile needs


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
