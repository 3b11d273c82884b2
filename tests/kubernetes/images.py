"""Container images without Docker and without a registry: layers are tar files, and an archive of them goes to ctr.

``busybox()`` and ``pause()`` are one static program. ``mpi()``, ``moorings()`` and ``launcher()`` stand on one Debian
with Python, Open MPI and an SSH client, made once by debootstrap and kept in the shared cache. A Pod's image is the
``name`` of one of these; ``imagePullPolicy`` has to be ``IfNotPresent``, which it is by itself.

``python -m tests.kubernetes.images`` makes what takes long.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tests import debian
from tests.kubernetes import programs
from tests.waiting import patient

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}  # the Debian that has this environment's Python
_PACKAGES = ("python3-minimal", "python3", "openmpi-bin", "openssh-client", "ca-certificates")
_OCI = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as images have them
_HOME = "opt/moorings"  # where this project lies in its images
_UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists", "var/log")
_KEPT_S = 14 * 86400.0
_UNPACK_S = 600.0


@dataclass(frozen=True, slots=True)
class Image:
    """An image by its layers, the lowest first; each is a tar file as it is."""

    name: str
    layers: tuple[Path, ...]
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    def write_archive(self, stream: IO[bytes], without: Collection[Path] = ()) -> None:
        """Write an OCI archive, as ``ctr images import`` takes it; ``without`` are layers that are there already."""
        digests = [_digest(layer) for layer in self.layers]
        environment = {"PATH": _PATH, **self.env}
        settings = {
            "Cmd": list(self.command),
            "Entrypoint": list(self.entrypoint),
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "User": self.user,
            "WorkingDir": "/",
        }
        architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
        document = {
            "architecture": architecture,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
            "history": [{"created_by": f"layer {layer.name}"} for layer in self.layers],  # buildah asks for it
        }
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            config = _add_blob(archive, "config.v1", document)
            layers = []
            for layer, digest in zip(self.layers, digests, strict=True):
                size = layer.stat().st_size
                layers.append({"mediaType": f"{_OCI}.layer.v1.tar", "digest": f"sha256:{digest}", "size": size})
                if layer not in without:
                    with layer.open("rb") as file:
                        _add(archive, f"blobs/sha256/{digest}", file, size)
            manifest = {"schemaVersion": 2, "mediaType": f"{_OCI}.manifest.v1+json", "config": config, "layers": layers}
            found = _add_blob(archive, "manifest.v1", manifest)
            found["annotations"] = {"io.containerd.image.name": self.name}
            found["platform"] = {"architecture": architecture, "os": "linux"}
            for name, content in (
                ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
                ("index.json", {"schemaVersion": 2, "manifests": [found]}),
            ):
                text = json.dumps(content).encode()
                _add(archive, name, io.BytesIO(text), len(text))


def pause() -> Image:
    """What holds a Pod's namespaces."""
    return Image("moorings.test/pause:1", (_busybox_layer(),), entrypoint=("/bin/busybox", "sleep", "2147483647"))


def busybox() -> Image:
    """A shell and the usual small commands; Debian's ``wget -T`` crashes: leave the ``-T`` out."""
    return Image("moorings.test/busybox:1", (_busybox_layer(),), command=("/bin/sh",))


def mpi() -> Image:
    """Debian with Open MPI, an SSH client and Python: what a user's image has."""
    return Image("moorings.test/mpi:1", (_debian_layer(),), command=("/bin/sh",))


def moorings() -> Image:
    """This project as its images have it: its wheel's dependencies, ``src/moorings`` and ``moor``; of this moment."""
    return Image(
        "moorings.test/moorings:1",
        (_debian_layer(), _dependencies_layer(), _source_layer()),
        command=("/usr/bin/python3",),
        env={"PYTHONPATH": f"/{_HOME}", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"},
    )


def launcher() -> Image:
    """The launcher's init image: this project beside a static kubectl, ``/usr/local/bin/kubectl``."""
    base = moorings()
    return Image("moorings.test/launcher:1", (*base.layers, _kubectl_layer()), base.command, env=base.env)


def prepare() -> None:
    """Make the layers that take minutes, where the cache has none."""
    _busybox_layer()
    _debian_layer()
    _dependencies_layer()


# -- layers ----------------------------------------------------------------------------------------------------------


def make_layer(name: str, recipe: str, build: Callable[[Path], None]) -> Path:
    """A layer in the shared cache: what ``build`` puts in a folder, made once for a recipe.

    Raises:
        AssertionError: it cannot be made.
    """
    cache = programs.cache_folder() / "layers"
    cache.mkdir(exist_ok=True)
    layer = cache / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.tar"
    with layer.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest want it at the same time
        if not layer.exists():
            root = layer.with_suffix(".root")
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            try:
                build(root)
                part = layer.with_suffix(".part")
                with part.open("wb") as file:
                    write_layer(root, file)
                part.rename(layer)
            finally:
                shutil.rmtree(root, ignore_errors=True)
            _remove_old(cache, name, layer)
        os.utime(layer)
    return layer


def write_layer(root: Path, stream: IO[bytes]) -> None:
    """Write a folder's files as a layer, the same bytes for the same files."""
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, str(path.relative_to(root)), recursive=False, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = 0
    member.uname = member.gname = ""
    return member


def _remove_old(cache: Path, name: str, but: Path) -> None:
    for old in cache.glob(f"{name}-*.tar"):
        if old != but and time.time() - old.stat().st_mtime > _KEPT_S:
            old.unlink(missing_ok=True)


@functools.cache
def _busybox_layer() -> Path:
    program = programs.busybox()

    def build(root: Path) -> None:
        for folder in ("bin", "tmp", "etc", "root", "proc", "sys", "dev"):
            (root / folder).mkdir()
        (root / "tmp").chmod(0o1777)
        shutil.copy(program, root / "bin" / "busybox")
        listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
        for applet in set(listed.stdout.split()) - {"busybox"}:
            (root / "bin" / applet).symlink_to("busybox")
        _write_users(root)

    return make_layer("busybox", f"1 {_digest(program)}", build)


def _write_users(root: Path) -> None:
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nnogroup:x:65534:\n")


@functools.cache
def _debian_layer() -> Path:
    version = sys.version_info[:2]
    assert version in _SUITES, f"no Debian is known to have this environment's Python {version}: one of {_SUITES}"
    suite = _SUITES[version]
    return make_layer("debian", f"1 {suite} {_PACKAGES} {_UNUSED}", functools.partial(_bootstrap, suite))


def _bootstrap(suite: str, root: Path) -> None:
    folder = debian.folder_of("debootstrap")
    found = shutil.which("debootstrap") or folder / "usr" / "sbin" / "debootstrap"
    log = programs.cache_folder() / "layers" / "debootstrap.log"
    words = ["--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    words += ["--keyring=/usr/share/keyrings/debian-archive-keyring.gpg", suite, str(root)]
    mirror = os.environ.get("DEBIAN_MIRROR")
    with log.open("wb") as stream:
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "--", found, *words, *([mirror] if mirror else [])],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            check=False,
            timeout=patient(_UNPACK_S),
            env={
                "PATH": _PATH,
                "DEBOOTSTRAP_DIR": str(folder / "usr" / "share" / "debootstrap"),
                "DEBIAN_FRONTEND": "noninteractive",
                "LC_ALL": "C",
            },
        )
    assert done.returncode == 0, f"debootstrap failed (log: {log}):\n{log.read_text(errors='replace')[-2000:]}"
    for place in _UNUSED:
        shutil.rmtree(root / place, ignore_errors=True)
        (root / place).mkdir(parents=True, exist_ok=True)
    for device in (root / "dev").iterdir():  # a container has its own
        device.unlink() if not device.is_dir() or device.is_symlink() else shutil.rmtree(device)


@functools.cache
def _dependencies_layer() -> Path:
    distributions = _dependencies("moorings")
    versions = sorted(f"{each.name}=={each.version}" for each in distributions)

    def build(root: Path) -> None:
        place = root / _HOME
        for each in distributions:
            for file in each.files or ():
                path = PurePosixPath(file)
                source = Path(str(each.locate_file(file)))
                if ".." in path.parts or path.suffix == ".pyc" or not source.is_file():  # programs of its own, caches
                    continue
                target = place / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    return make_layer("dependencies", f"2 {sys.version_info[:2]} {versions}", build)


def _dependencies(name: str) -> list[importlib.metadata.Distribution]:
    """What a distribution needs, and what that needs, of this environment; without extras."""
    found: dict[str, importlib.metadata.Distribution] = {}
    todo = [name]
    while todo:
        for line in importlib.metadata.distribution(todo.pop()).requires or ():
            wanted = re.match(r"[A-Za-z0-9._-]+", line)
            if not wanted or wanted[0].lower() in found:
                continue
            try:
                found[wanted[0].lower()] = importlib.metadata.distribution(wanted[0])
            except importlib.metadata.PackageNotFoundError:  # another system's, or an extra's
                continue
            if "extra ==" in line:
                del found[wanted[0].lower()]
            else:
                todo.append(wanted[0])
    return list(found.values())


def _source_layer() -> Path:
    source = debian.ROOT / "src" / "moorings"
    digest = hashlib.sha256()
    for file in _sources(source):
        digest.update(f"{file.relative_to(source)}\0".encode() + file.read_bytes() + b"\0")

    def build(root: Path) -> None:
        place = root / _HOME / "moorings"
        for file in _sources(source):
            target = place / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        _write_program(root / "usr" / "local" / "bin" / "moor", "moorings.cli.main")

    return make_layer("source", f"2 {digest.hexdigest()}", build)


def _sources(source: Path) -> Iterator[Path]:
    return (file for file in sorted(source.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)


def _write_program(file: Path, module: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/usr/bin/python3\nfrom {module} import main\nmain()\n")
    file.chmod(0o755)


def _kubectl_layer() -> Path:
    program = programs.kube("kubectl")

    def build(root: Path) -> None:
        place = root / "usr" / "local" / "bin"
        place.mkdir(parents=True)
        shutil.copy(program, place / "kubectl")

    return make_layer("kubectl", f"1 {_digest(program)}", build)


@functools.cache
def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _add_blob(archive: tarfile.TarFile, kind: str, content: object) -> dict[str, Any]:
    text = json.dumps(content).encode()
    digest = hashlib.sha256(text).hexdigest()
    _add(archive, f"blobs/sha256/{digest}", io.BytesIO(text), len(text))
    return {"mediaType": f"{_OCI}.{kind}+json", "digest": f"sha256:{digest}", "size": len(text)}


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, content)


if __name__ == "__main__":
    programs.prepare()
    prepare()
