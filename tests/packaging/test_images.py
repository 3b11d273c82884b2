"""The container images: their recipe read by a linter, and the same images made without Docker, opened and run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings import __version__
from scripts import image
from tests import debian
from tests.debian import ROOT
from tests.once import made_once
from tests.packaging.dockerfile import read_targets
from tests.waiting import patient

ENV = dict(os.environ)  # as it was for whoever runs the tests: the cache is in their home
DOCKERFILE = ROOT / "deploy" / "images" / "Dockerfile"
MAKE_S = 600.0
SLOW = pytest.mark.timeout(MAKE_S)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All images, in a folder as they lie in the archive."""

    def unpacked(folder: Path) -> None:
        make(folder / "images.tar")
        with tarfile.open(folder / "images.tar") as packed:
            packed.extractall(folder / "archive", filter="data")
        (folder / "images.tar").unlink()

    return made_once(tmp_path_factory, "images", unpacked) / "archive"


def make(file: Path, *names: str) -> None:
    words = [sys.executable, str(ROOT / "scripts" / "image.py"), str(file), *names]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patient(MAKE_S), env=ENV)
    assert done.returncode == 0, done.stderr


def hadolint(file: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "hadolint"
    return subprocess.run([program, file], capture_output=True, text=True, check=False, timeout=patient(60))


def test_the_linter_has_nothing_to_say_of_the_recipe(tmp_path: Path) -> None:
    done = hadolint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(DOCKERFILE.read_text().replace("USER 65532:65532", "USER root"))
    assert "DL3002" in hadolint(wrong).stdout, "it sees that the last user is root"


def differing(text: str) -> list[str]:
    """The images that a Dockerfile makes otherwise than scripts/image.py does."""
    made = read_targets(text, {"VERSION": "7.0"})
    return [
        each.name
        for each in image.IMAGES.values()
        if made[each.name].config != image.build_config(each, [], "7.0", "amd64")["config"]
        or made[each.name].copied != tuple(f"/root.{layer}" for layer in each.layers)
    ]


def test_both_recipes_make_the_same_images() -> None:
    assert differing(DOCKERFILE.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new", "image_of"),
    [
        ("USER 65532:65532", "USER 65532", list(image.IMAGES)),
        ("WORKDIR /\n", "WORKDIR /tmp\n", list(image.IMAGES)),
        ("PYTHONUNBUFFERED=1", "PYTHONUNBUFFERED=0", list(image.IMAGES)),
        ("moorings.app.kubernetes_certgen", "moorings.app.kubernetes_proxy", ["webhook-certgen"]),
        ("COPY --from=kubectl /root.kubectl/ /\n", "", ["launcher"]),
        ("COPY --from=python /root.dependencies/ /\n", "", ["controller", "vipu-proxy", "webhook-certgen"]),
    ],
)
def test_a_difference_between_the_recipes_is_seen(old: str, new: str, image_of: list[str]) -> None:
    text = DOCKERFILE.read_text()
    assert text.count(old) == 1
    assert differing(text.replace(old, new)) == image_of


@pytest.mark.parametrize("more", ["EXPOSE 8080", "VOLUME /data", 'CMD ["--help"]'])
def test_what_scripts_image_py_cannot_say_is_not_in_the_recipe(more: str) -> None:
    with pytest.raises(ValueError, match="is not known here"):
        differing(f"{DOCKERFILE.read_text()}{more}\n")


def test_both_recipes_start_from_the_same_tools() -> None:
    text = DOCKERFILE.read_text()
    uv = re.search(r"^UV_VERSION=(\S+)", (ROOT / "scripts" / "bootstrap-uv.sh").read_text(), re.MULTILINE)
    assert uv is not None
    assert f"ARG UV_VERSION={uv[1]}\n" in text
    suite = re.search(r"^SUITE=(\w+)", (image.RECIPES / "root.sh").read_text(), re.MULTILINE)
    assert suite is not None
    assert f"ARG DEBIAN=debian:{suite[1]}-slim\n" in text
    for made in ("./root.sh /root.base ", '"$KUBECTL" /root.kubectl\n', "dependencies /root.dependencies\n"):
        assert made in text


@SLOW
def test_the_archive_is_whole(archive: Path) -> None:
    manifest = json.loads((archive / "manifest.json").read_text())
    tags = [tag for each in manifest for tag in each["RepoTags"]]
    assert tags == [f"localhost:5000/{name}:{__version__}" for name in image.IMAGES]
    for each in manifest:
        config = (archive / each["Config"]).read_bytes()
        assert each["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
        said = json.loads(config)
        assert said["config"]["User"] == "65532:65532"
        assert said["config"]["Labels"]["org.opencontainers.image.version"] == __version__
        for layer, digest in zip(each["Layers"], said["rootfs"]["diff_ids"], strict=True):
            with (archive / layer).open("rb") as stream:
                assert f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}" == digest


def layers(archive: Path, name: str) -> list[Path]:
    for each in json.loads((archive / "manifest.json").read_text()):
        if each["RepoTags"] == [f"localhost:5000/{name}:{__version__}"]:
            return [archive / layer for layer in each["Layers"]]
    raise AssertionError(f"there is no {name}")


def members(archive: Path) -> Iterator[tarfile.TarInfo]:
    for layer in {layer for name in image.IMAGES for layer in layers(archive, name)}:
        with tarfile.open(layer) as packed:
            yield from packed


@SLOW
def test_an_image_is_small_and_tells_nothing_of_who_made_it(archive: Path) -> None:
    size = sum(layer.stat().st_size for layer in layers(archive, "controller"))
    assert size < 150_000_000
    assert sum(layer.stat().st_size for layer in layers(archive, "launcher")) < 120_000_000
    for member in members(archive):
        assert (member.uid, member.gid, member.mtime) == (0, 0, 0), member.name
        assert not member.mode & (stat.S_ISUID | stat.S_ISGID), member.name
        assert not member.mode & stat.S_IWOTH or member.issym() or member.name == "tmp", member.name
        assert not member.name.endswith(("bin/sh", "bin/bash", "bin/dpkg", "direct_url.json", "RECORD")), member.name


@SLOW
def test_licences_and_the_list_of_packages_are_there(archive: Path) -> None:
    names = {member.name for member in members(archive)}
    for package in ("libssl3", "python3.11-minimal", "kubernetes-client"):
        assert f"usr/share/doc/{package}/copyright" in names
        assert f"var/lib/dpkg/status.d/{package}" in names, "scanners look there"
    assert "opt/moorings/cryptography/__init__.py" in names
    assert "opt/moorings/moorings/__init__.py" in names
    assert any(name.startswith(f"opt/moorings/moorings-{__version__}.dist-info/licenses/") for name in names)


@pytest.fixture(scope="module")
def roots(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file system of the controller's image and of the launcher's."""
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    names = ("controller", "launcher")

    def unpacked(folder: Path) -> None:
        folder.chmod(0o755)
        for name in names:
            (folder / name).mkdir()
            for layer in layers(archive, name):
                with tarfile.open(layer) as packed:
                    packed.extractall(folder / name, filter="tar")
            (folder / name).chmod(0o755)

    made = made_once(tmp_path_factory, "roots", unpacked)
    return {name: made / name for name in names}


def inside(root: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an image, as its user, with its variables and nothing of ours."""
    words = ["/usr/sbin/chroot", f"--userspec={image.USER}", str(root), *argv]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=patient(60), env=image.ENV)


@SLOW
@pytest.mark.parametrize("each", [*image.IMAGES.values()], ids=lambda each: each.name)
def test_the_program_of_an_image_starts_in_it(roots: dict[str, Path], each: image.Image) -> None:
    root = roots["launcher" if each.name == "launcher" else "controller"]
    done = inside(root, "python3", "-m", each.module, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout


@SLOW
@pytest.mark.parametrize("module", ["kubernetes_metrics_guard", "kubernetes_uninstall"])
def test_the_controller_s_image_has_what_the_chart_runs_in_it(roots: dict[str, Path], module: str) -> None:
    done = inside(roots["controller"], "python3", "-m", f"moorings.app.{module}", "--help")
    assert (done.returncode, done.stderr) == (0, "")


@SLOW
def test_the_launcher_s_image_has_a_kubectl_that_needs_nothing(roots: dict[str, Path], tmp_path: Path) -> None:
    kubectl = roots["launcher"] / "usr/local/bin/kubectl"
    done = inside(roots["launcher"], "kubectl", "version", "--client", "--output=json")
    assert json.loads(done.stdout)["clientVersion"]["major"] == "1"
    # It is copied into containers of any kind.
    copy = tmp_path / "alone" / "kubectl"
    copy.parent.mkdir()
    copy.write_bytes(kubectl.read_bytes())
    copy.chmod(0o755)
    done = inside(copy.parent, "/kubectl", "version", "--client", "--output=json")
    assert done.returncode == 0, done.stderr


@SLOW
def test_the_roots_of_trust_are_there(roots: dict[str, Path]) -> None:
    code = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    assert int(inside(roots["controller"], "python3", "-c", code).stdout) > 100


def test_an_unknown_image_is_refused(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "scripts" / "image.py"), str(tmp_path / "x.tar"), "kernel"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patient(60), env=ENV)
    assert done.returncode == 2
    assert "there is no image kernel: one of controller, vipu-proxy" in done.stderr


def put_kubectl(file: Path | str, folder: Path, architecture: str) -> subprocess.CompletedProcess[str]:
    words = [str(image.RECIPES / "kubectl.sh"), str(file), str(folder)]
    environment = {**ENV, "ARCHITECTURE": architecture}
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=patient(60), env=environment)


@pytest.fixture(scope="module")
def static() -> Path:
    """A program that needs no library."""
    return debian.unpacked("busybox", "busybox-static")


def test_a_kubectl_of_the_site_goes_into_the_launcher_s_image(static: Path, tmp_path: Path) -> None:
    architecture = image.ARCHITECTURES[platform.machine()]
    shutil.copy(static, tmp_path / "plain")
    shutil.copy(static, tmp_path / f"two-{architecture}")
    (tmp_path / "two-other").write_text("not this one")
    for name in ("plain", "two"):
        done = put_kubectl(tmp_path / name, tmp_path / f"root-{name}", architecture)
        assert done.returncode == 0, done.stderr
        made = tmp_path / f"root-{name}" / "usr/local/bin/kubectl"
        assert made.read_bytes() == static.read_bytes()
        assert stat.S_IMODE(made.stat().st_mode) == 0o755


def test_a_kubectl_that_would_not_run_everywhere_is_refused(static: Path, tmp_path: Path) -> None:
    architecture = image.ARCHITECTURES[platform.machine()]
    other = next(each for each in image.ARCHITECTURES.values() if each != architecture)
    (tmp_path / "script").write_text("#!/bin/sh\n")
    for file, wanted, words in (
        (tmp_path / "none", architecture, "none: No such file or directory"),
        (tmp_path / "script", architecture, "script is not a program for Linux"),
        (static, other, f"busybox is for {architecture}, and the image for {other}"),
        (Path(shutil.which("dpkg") or ""), architecture, "dpkg needs libraries, which a job's image may lack"),
    ):
        done = put_kubectl(file, tmp_path / "root", wanted)
        assert done.returncode == 1
        assert words in done.stderr
    assert not (tmp_path / "root").exists()


@SLOW
def test_another_kubectl_makes_another_layer(static: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        str(ROOT / "scripts" / "image.py"),
        f"--kubectl={static}",
        str(tmp_path / "x.tar"),
        "launcher",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patient(MAKE_S), env=ENV)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "x.tar") as packed:
        packed.extractall(tmp_path, filter="data")
    with tarfile.open(layers(tmp_path, "launcher")[1]) as layer:
        kubectl = layer.extractfile("usr/local/bin/kubectl")
        assert kubectl is not None
        assert kubectl.read() == static.read_bytes()
