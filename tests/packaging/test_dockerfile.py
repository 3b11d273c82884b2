"""The Dockerfile built by Debian's buildah, for both architectures: what it makes is what scripts/image.py makes.

There is no registry here, so the base image is the Debian that tests/kubernetes makes. buildah is unpacked, not
installed: it starts itself again without the variables that would lead to its libraries, so it runs where its packages
are laid over ``/usr`` and ``/etc``, in a mount namespace of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts import image
from tests import debian, sampling
from tests.debian import ROOT
from tests.kubernetes import images
from tests.packaging.test_images import ENV, inside
from tests.waiting import patient

BUILD_S = 900.0
TAG = "7.0"
MACHINES = {"amd64": 62, "arm64": 183}  # of ELF
EMULATORS = {"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}
NATIVE = image.ARCHITECTURES.get(platform.machine(), "")
TRUST = Path("/etc/ssl/certs/ca-certificates.crt")
DOCKERFILE = "deploy/images/Dockerfile"
BASE = "localhost/debian:bookworm"
LAID_OVER = """
for each in usr etc; do
    mount --types overlay overlay --options "lowerdir=$1/$each:/$each" "/$each"
done
shift
exec buildah "$@"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * BUILD_S),
    pytest.mark.skipif(not sampling.whole(), reason="builds eight images; make test-all does"),
    pytest.mark.skipif(os.geteuid() != 0, reason="buildah's mounts need root"),
]


@dataclass(frozen=True)
class Built:
    """An image: its document, and what its files are, by their names."""

    document: Mapping[str, Any]
    files: Mapping[str, tuple[object, ...]]


def buildah(store: Path, *words: str) -> str:
    """Run buildah; what it prints."""
    packages = ("buildah", "golang-github-containers-image", "golang-github-containers-common")
    root = debian.folder_of(*packages)
    kind = subprocess.run(["stat", "--file-system", "--format=%T", store], capture_output=True, text=True, check=True)
    driver = "vfs" if kind.stdout.strip() == "overlayfs" else "overlay"  # one does not stand on another
    places = (f"--root={store}/root", f"--runroot={store}/run", f"--storage-driver={driver}")
    argv = ["unshare", "--mount", "--propagation=private", "--", "sh", "-ec", LAID_OVER, "sh", str(root), *places]
    environment = {**ENV, "TMPDIR": str(store), "HOME": str(store)}
    done = subprocess.run(
        [*argv, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(BUILD_S),
        env=environment,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def _trust(root: Path) -> None:
    """This machine's authorities: there may be a proxy between it and the registries, with one of its own."""
    (root / TRUST.parent.relative_to("/")).mkdir(parents=True)
    shutil.copy(TRUST, root / TRUST.relative_to("/"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of buildah's, with the base image."""
    folder = tmp_path_factory.mktemp("buildah")
    trust = images.make_layer("trust", hashlib.sha256(TRUST.read_bytes()).hexdigest(), _trust)
    base = images.Image(BASE, (*images.mpi().layers, trust), env={"SSL_CERT_FILE": str(TRUST)})
    with (folder / "base.tar").open("wb") as stream:
        base.write_archive(stream)
    found = buildah(folder, "pull", "--quiet", f"oci-archive:{folder}/base.tar").strip()
    buildah(folder, "tag", found, BASE)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=sorted(MACHINES))
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def archives(store: Path, architecture: str) -> dict[str, Path]:
    """A docker-archive of each image that the Dockerfile makes."""
    made = {}
    words = ["--isolation=chroot", "--network=host", "--layers", f"--platform=linux/{architecture}"]
    arguments = {"BUILDPLATFORM": f"linux/{NATIVE}", "DEBIAN": BASE, "VERSION": TAG}
    words += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    for name in image.IMAGES:
        tag = f"localhost/{name}:{architecture}"
        buildah(store, "build", *words, f"--target={name}", f"--tag={tag}", f"--file={DOCKERFILE}", ".")
        made[name] = store / f"{name}-{architecture}.tar"
        buildah(store, "push", "--quiet", tag, f"docker-archive:{made[name]}:{tag}")
    return made


@pytest.fixture(scope="module")
def ours(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What scripts/image.py makes of the packages that Debian has now, as the Dockerfile does."""
    folder = tmp_path_factory.mktemp("images")
    file = folder / "images.tar"
    words = [sys.executable, str(ROOT / "scripts" / "image.py"), f"--architecture={architecture}", f"--tag={TAG}"]
    environment = ENV | {"MOORINGS_CACHE": str(folder)}
    subprocess.run([*words, str(file)], check=True, capture_output=True, timeout=patient(BUILD_S), env=environment)
    return file


def read(archive: Path, name: str) -> Built:
    """An image of a docker-archive."""
    files: dict[str, tuple[object, ...]] = {}
    with tarfile.open(archive) as packed:

        def content(member: str) -> bytes:
            stream = packed.extractfile(member)
            assert stream is not None
            return stream.read()

        manifest = json.loads(content("manifest.json"))
        entry = next(each for each in manifest if f"/{name}:" in each["RepoTags"][0])
        for path in entry["Layers"]:
            with tarfile.open(fileobj=packed.extractfile(path)) as layer:
                for member in layer:
                    files[member.name.strip("/")] = describe(member, layer)
        return Built(json.loads(content(entry["Config"])), files)


def describe(member: tarfile.TarInfo, layer: tarfile.TarFile) -> tuple[object, ...]:
    """What a file is, but for its date; of byte code that it is there, for releases of Python differ in it."""
    if member.issym():
        return ("link", member.linkname)
    stream = layer.extractfile(member)
    told = hashlib.sha256(stream.read()).hexdigest() if stream and not member.name.endswith(".pyc") else ""
    return (member.type, stat.S_IMODE(member.mode), member.uid, member.gid, told)


def test_both_recipes_make_the_same(archives: dict[str, Path], ours: Path, architecture: str) -> None:
    for name in image.IMAGES:
        built, expected = read(archives[name], name), read(ours, name)
        assert built.document["architecture"] == expected.document["architecture"] == architecture
        del built.document["config"]["Labels"]["io.buildah.version"]
        assert built.document["config"] == expected.document["config"]
        assert len(built.files) > 1000
        differing = {
            path for path in {*built.files, *expected.files} if built.files.get(path) != expected.files.get(path)
        }
        differing -= {""}  # the root folder itself is in one of the two
        assert sorted(differing) == []


def test_what_it_makes_runs(archives: dict[str, Path], architecture: str, tmp_path: Path) -> None:
    """On this processor, or on one that qemu imitates."""
    words = []
    for name in ("controller", "launcher"):
        root = tmp_path / name
        root.mkdir()
        root.chmod(0o755)
        tmp_path.chmod(0o755)
        unpack(archives[name], root)
        found = {machine_of(path) for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
        assert found == {0, MACHINES[architecture]}, "not all programs are for one architecture"
        if architecture != NATIVE:
            emulator = EMULATORS[architecture]
            shutil.copy(debian.unpacked(emulator, "qemu-user-static"), root)
            words = [f"/{emulator}"]
        done = inside(root, *words, "/usr/bin/python3", "-m", image.IMAGES[name].module, "--help")
        assert (done.returncode, done.stderr) == (0, "")
    done = inside(tmp_path / "launcher", *words, "/usr/local/bin/kubectl", "version", "--client", "--output=json")
    assert json.loads(done.stdout)["clientVersion"]["platform"] == f"linux/{architecture}"


def unpack(archive: Path, root: Path) -> None:
    """The files of an archive with one image."""
    with tarfile.open(archive) as packed:
        manifest = packed.extractfile("manifest.json")
        assert manifest is not None
        for path in json.load(manifest)[0]["Layers"]:
            with tarfile.open(fileobj=packed.extractfile(path)) as layer:
                layer.extractall(root, filter="tar")


def machine_of(file: Path) -> int:
    """For which machine a program or a library is; 0: it is neither."""
    with file.open("rb") as stream:
        head = stream.read(20)
    return int.from_bytes(head[18:20], "little") if head[:4] == b"\x7fELF" else 0
