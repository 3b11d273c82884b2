"""What the bills of materials say, and what is said of old packages."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moorings import __version__
from scripts import image, sbom
from tests import debian, sampling
from tests.debian import ROOT
from tests.once import made_once
from tests.waiting import patient

ENV = dict(os.environ)  # as it was for whoever runs the tests: the cache is in their home
MAKE_S = 600.0
VALIDATOR = "cyclonedx-python-lib[json-validation]==11.9.0"
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
for name in sys.argv[1:]:
    error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(name).read())
    sys.exit(f"{name}: {error}") if error else None
"""

pytestmark = pytest.mark.timeout(MAKE_S)


def run(script: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "scripts" / script), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=patient(MAKE_S), env=ENV | more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bills of all images, and beside them what the launcher's is with a kubectl of the site."""

    def made(folder: Path) -> None:
        kubectl = debian.unpacked("busybox", "busybox-static")
        for name, words, images in (("usual", (), ()), ("own", (f"--kubectl={kubectl}",), ("launcher",))):
            archive = folder / f"{name}.tar"
            done = run("image.py", f"--sboms={folder / name}", *words, str(archive), *images)
            assert done.returncode == 0, done.stderr
            archive.unlink()

    return made_once(tmp_path_factory, "sboms", made)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def purls(document: dict[str, Any], kind: str) -> list[str]:
    found = [each["purl"] for each in document["components"] if "purl" in each]
    return [purl for purl in found if purl.startswith(f"pkg:{kind}/")]


def test_each_image_has_a_bill_of_all_its_packages(folder: Path) -> None:
    lines = (image.RECIPES / "packages.txt").read_text().splitlines()
    wanted = {line for line in lines if line and not line.startswith("#")}
    locked = re.findall(r'^name = "(.+)"\nversion = "(.+)"', (ROOT / "uv.lock").read_text(), re.MULTILINE)
    known = {sbom.pypi_purl(*each) for each in locked} | {sbom.pypi_purl("moorings", __version__)}
    architecture = image.ARCHITECTURES[os.uname().machine]
    for name in image.IMAGES:
        document = read(folder / "usual" / f"{name}.cdx.json")
        assert document["metadata"]["component"]["name"] == name
        assert {"type": "operating-system", "bom-ref": "system", "name": "debian", "version": "12"} in document[
            "components"
        ]
        names = {each["name"] for each in document["components"] if each.get("purl", "").startswith("pkg:deb/")}
        assert names == wanted | ({"kubernetes-client"} if name == "launcher" else set())
        for purl in purls(document, "deb/debian"):
            assert re.fullmatch(rf"pkg:deb/debian/\S+@[^?:+]+\?arch=({architecture}|all)&distro=debian-12(&\S+)?", purl)
        python = set(purls(document, "pypi"))
        assert python <= known
        assert len(python) == (1 if name == "launcher" else 33)
        references = [each["bom-ref"] for each in document["components"]]
        assert len(references) == len(set(references))


def test_a_kubectl_of_the_site_is_in_it_by_its_sum(folder: Path) -> None:
    document = read(folder / "own" / "launcher.cdx.json")
    assert "kubernetes-client" not in json.dumps(document)
    found = [each for each in document["components"] if each["name"] == "kubectl"]
    assert [(each["type"], each["hashes"][0]["alg"], len(each["hashes"][0]["content"])) for each in found] == [
        ("application", "SHA-256", 64)
    ]


@pytest.mark.skipif(not sampling.whole(), reason="fetches CycloneDX's own validator; make test-all does")
def test_cyclonedx_s_own_validator_takes_them(folder: Path) -> None:
    files = [str(file) for file in folder.rglob("*.cdx.json")]
    argv = [image.UV, "tool", "run", "--from", VALIDATOR, "python", "-c", VALIDATE, *files]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=patient(120), env=ENV)
    assert done.returncode == 0, done.stderr
    assert len(files) == 5


def test_a_package_that_lacks_a_fix_is_named(folder: Path, tmp_path: Path) -> None:
    document = read(folder / "usual" / "controller.cdx.json")
    for each in document["components"]:
        if each["name"] == "libssl3":
            each["version"] = "3.0.1-1"
        if each["name"] == "netbase":
            each["name"] = "no-such-package"
    file = tmp_path / "old.cdx.json"
    file.write_text(json.dumps(document))
    done = run("scan.py", str(file), PATH=without_scanners())
    assert done.returncode == 1, done.stderr
    assert re.search(r"^controller: libssl3 3\.0\.1-1 is old: Debian has 3\.0\.\d+", done.stdout, re.MULTILINE)
    assert "controller: no-such-package is in Debian no more" in done.stdout
    assert "grype is not here: it was not asked" in done.stdout


def test_the_newest_is_looked_for_among_security_fixes_too() -> None:
    words = [str(image.RECIPES / "root.sh"), "--newest", "libssl3", "python3.11-minimal"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=patient(60), env=ENV)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["libssl3", "python3.11-minimal"]
    assert "bookworm-security" in done.stdout


def test_without_the_list_of_security_fixes_nothing_is_made(tmp_path: Path) -> None:
    words = [str(image.RECIPES / "root.sh"), str(tmp_path / "root"), "netbase"]
    nowhere = ENV | {"DEBIAN_MIRROR": "http://127.0.0.1:9/debian"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patient(60), env=nowhere)
    assert done.returncode == 100
    assert "127.0.0.1:9/debian-security" in done.stderr
    assert not (tmp_path / "root").exists()


@pytest.mark.skipif(not sampling.whole(), reason="makes all images anew; make test-all does")
def test_no_image_of_today_lacks_a_fix_that_debian_has(tmp_path: Path) -> None:
    done = run("scan.py", "--fresh", PATH=without_scanners(), MOORINGS_CACHE=str(tmp_path))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout.count("packages of Debian are the newest") == len(image.IMAGES)


def test_a_scanner_that_is_here_is_asked_and_believed(folder: Path, tmp_path: Path) -> None:
    grype = tmp_path / "grype"
    grype.write_text('#!/bin/sh\necho "asked: $*"\nexit 1\n')
    grype.chmod(grype.stat().st_mode | stat.S_IXUSR)
    file = folder / "usual" / "controller.cdx.json"
    done = run("scan.py", str(file), PATH=f"{tmp_path}:{without_scanners()}")
    assert f"asked: --quiet --fail-on=high sbom:{file}" in done.stdout
    assert done.returncode == 1


def without_scanners() -> str:
    return ":".join(
        path for path in ENV["PATH"].split(":") if not any(Path(path, one).exists() for one in ("grype", "trivy"))
    )
