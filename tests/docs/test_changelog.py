"""CHANGELOG.md has a section for each release, and can be built from the files in changelog.d."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import moorings
from tests.docs.pages import ROOT

RECORDED = {re.sub(r"^moorings-|\.tar\.xz$", "", path.name) for path in (ROOT / "tests/released").glob("moorings-*")}


def run_towncrier(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "9.0.0", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def make_copy(folder: Path) -> None:
    """Only what towncrier reads, without git."""
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "changelog.d", folder / "changelog.d")


def test_each_release_has_a_section() -> None:
    sections = re.findall(r"^## (\S+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert RECORDED
    assert {moorings.__version__, *RECORDED} - set(sections) == set(), "make changelog VERSION=... makes it"


def test_release_moves_fragments_into_a_section(tmp_path: Path) -> None:
    make_copy(tmp_path)
    (tmp_path / "changelog.d" / "+tests.security.md").write_text("A line of\nthis test.\n")
    old_head, old_releases = (ROOT / "CHANGELOG.md").read_text().split("## ", 1)
    done = run_towncrier(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert text.startswith(old_head + "## 9.0.0 - ")
    assert text.endswith("\n\n\n## " + old_releases)
    new = text.removesuffix("## " + old_releases)
    assert "- A line of\n  this test.\n" in new.rpartition("### Security\n\n")[2]
    assert [path.name for path in (tmp_path / "changelog.d").iterdir()] == [".gitignore"]


def test_fragment_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    make_copy(tmp_path)
    (tmp_path / "changelog.d" / "+tests.improved.md").write_text("A line.\n")
    done = run_towncrier(tmp_path, "--draft")
    assert done.returncode != 0
    assert "+tests.improved.md" in done.stdout + done.stderr
