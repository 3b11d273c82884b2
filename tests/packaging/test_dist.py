"""``make dist``: one file with what a site installs on Kubernetes, laid out as the operator's documentation has it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from moorings import __version__
from scripts import image
from scripts.dist import DOCS, relink
from tests.debian import ROOT
from tests.docs.pages import anchors
from tests.once import made_once
from tests.packaging.chart import CHART, run_helm
from tests.waiting import patient

ENV = dict(os.environ)  # as it was for whoever runs the tests: the cache is in their home
MAKE_S = 600.0
LINK = re.compile(r"\[[^\]]*\]\((?![a-z]+:)([^)\s]+)\)")
TOP = f"gc-ipu-operator-v{__version__}"
CHART_FILE = f"gc-ipu-operator-helm-chart-v{__version__}.tgz"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(MAKE_S)]


def make(folder: Path) -> Path:
    words = [sys.executable, str(ROOT / "scripts" / "dist.py"), f"--folder={folder}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patient(MAKE_S), env=ENV)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a site unpacks it."""

    def unpacked(folder: Path) -> None:
        made = make(folder)
        assert [each.name for each in folder.iterdir()] == [f"{TOP}.tar.gz"]
        with tarfile.open(made) as packed:
            packed.extractall(folder, filter="data")

    return made_once(tmp_path_factory, "dist", unpacked) / TOP


def test_it_is_laid_out_as_documented(package: Path) -> None:
    assert {each.name for each in package.iterdir()} == {
        "CRDs",
        "CRDs-cel",
        "docs",
        "examples",
        "sboms",
        CHART_FILE,
        "gc-operator-images.tar.gz",
        "gc-operator.cksm",
        "gc-ipu-operator-helm-chart.cksm",
    }
    for name in ("CRDs", "CRDs-cel"):
        assert [each.name for each in (package / name).iterdir()] == ["graphcore.ai_ipujobs.yaml"]
        committed = ROOT / "deploy" / "kubernetes" / name / "graphcore.ai_ipujobs.yaml"
        assert (package / name / "graphcore.ai_ipujobs.yaml").read_bytes() == committed.read_bytes()
    bills = {each.name for each in (package / "sboms").iterdir()}
    assert bills == {f"{name}.cdx.json" for name in image.IMAGES}
    assert (package / "docs" / "README.md").exists()
    assert (package / "docs" / "helm-chart.md").read_text() == (CHART / "README.md").read_text()


def test_the_examples_that_the_pages_apply_are_in_it(package: Path) -> None:
    here = {path.name: path.read_bytes() for path in (ROOT / "examples" / "kubernetes").iterdir()}
    assert {path.name: path.read_bytes() for path in (package / "examples" / "kubernetes").iterdir()} == here
    named = [
        name
        for page in [ROOT / "README.md", *(package / "docs").rglob("*.md")]
        for name in re.findall(r"examples/kubernetes/\S*\.yaml", page.read_text())
    ]
    assert len(named) > 3
    assert [name for name in named if not (package / name).exists()] == []


def test_every_link_of_its_pages_leads_to_something_in_it(package: Path) -> None:
    pages = sorted((package / "docs").rglob("*.md"))
    links = [(page, target) for page in pages for target in LINK.findall(page.read_text())]
    dead = []
    for page, target in links:
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        inside = path.is_relative_to(package.resolve()) and path.exists()
        if not inside or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            dead.append(f"{page.relative_to(package)}: {target}")
    assert dead == []
    assert (package / "docs" / "reference" / "ipu-operator-manual.md", "../helm-chart.md") in links
    assert len(links) > 300, "those that lead nowhere are gone; no others"


def test_a_page_keeps_its_words_where_a_link_leads_out_of_the_package() -> None:
    page = DOCS / "how-to" / "a.md"
    packed = {page: "docs/how-to/a.md", CHART / "README.md": "docs/helm-chart.md", DOCS / "b.md": "docs/b.md"}
    told = "[the\nchart](../../deploy/helm/ipu-operator/README.md#install), [`code`](../../src/x.py#L1), [b](../b.md), "
    told += "[here](#top), [there](https://graphcore.ai/b.md)\n"
    code = "```console\n$ [out](../../../x)\n```\n"
    kept = "[the\nchart](../helm-chart.md#install), `code`, [b](../b.md), [here](#top), [there](https://graphcore.ai/b.md)\n"
    assert relink(told + code + told, page, packed) == kept + code + kept


def test_the_checksums_are_right_and_a_change_is_noticed(package: Path) -> None:
    for name in ("gc-operator.cksm", "gc-ipu-operator-helm-chart.cksm"):
        done = subprocess.run(["sha256sum", "--check", name], cwd=package, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    listed = "".join((package / name).read_text() for name in ("gc-operator.cksm", "gc-ipu-operator-helm-chart.cksm"))
    assert {line.split()[1] for line in listed.splitlines()} == {
        "gc-operator-images.tar.gz",
        CHART_FILE,
        "CRDs/graphcore.ai_ipujobs.yaml",
        "CRDs-cel/graphcore.ai_ipujobs.yaml",
        *(f"examples/kubernetes/{path.name}" for path in (ROOT / "examples" / "kubernetes").iterdir()),
        *(f"sboms/{name}.cdx.json" for name in image.IMAGES),
    }
    assert "examples/kubernetes/hello.yaml" in listed
    (package / "examples" / "kubernetes" / "hello.yaml").rename(package / "kept")
    words = ["sha256sum", "--check", "gc-operator.cksm"]
    try:
        assert subprocess.run(words, cwd=package, capture_output=True, check=False).returncode == 1
    finally:
        (package / "kept").rename(package / "examples" / "kubernetes" / "hello.yaml")


def test_helm_takes_the_chart_as_it_takes_the_folder(package: Path) -> None:
    packed, folder = (run_helm("template", "gc", str(chart), values={}) for chart in (package / CHART_FILE, CHART))
    assert packed.returncode == 0, packed.stderr
    assert packed.stdout == folder.stdout
    assert (
        run_helm("show", "readme", str(package / CHART_FILE)).stdout.strip()
        == (CHART / "README.md").read_text().strip()
    )


def test_the_images_are_those_that_the_chart_names(package: Path) -> None:
    with tarfile.open(package / "gc-operator-images.tar.gz") as packed:
        stream = packed.extractfile("manifest.json")
        assert stream is not None
        tags = {tag for each in json.load(stream) for tag in each["RepoTags"]}
    assert {f"localhost:5000/{name}:{__version__}" for name in ("controller", "vipu-proxy", "launcher")} < tags
    rendered = run_helm("template", "gc", str(package / CHART_FILE), values={}).stdout
    for name in ("controller", "vipu-proxy"):
        assert f"image: localhost:5000/{name}:{__version__}\n" in rendered
    named = re.search(r"--launcher-image=(\S+)", rendered)
    assert named is not None
    assert named[1] in tags, "its default has no version, and is never pulled"


def test_the_documentation_in_it_says_which_definition_is_for_whom(package: Path) -> None:
    told = (package / "docs" / "how-to" / "kubernetes-install.md").read_text()
    for name in ("CRDs", "CRDs-cel"):
        assert f"| `{name}/graphcore.ai_ipujobs.yaml` | the definition of IPUJobs" in told
    assert "not in the package" not in told


def test_it_is_the_same_every_time(package: Path, tmp_path: Path) -> None:
    assert make(tmp_path).read_bytes() == (package.parent / f"{TOP}.tar.gz").read_bytes()
