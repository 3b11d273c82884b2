"""The manual pages: mandoc finds nothing to complain about, they show what they should, and the wheel has them."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from moorings.app.documents.manual import escape, prose
from moorings.cli.commands import COMMANDS
from tests.debian import program, surroundings
from tests.docs.pages import ROOT
from tests.waiting import patient

MANUAL = ROOT / "docs" / "man"


def mandoc(*words: object) -> subprocess.CompletedProcess[str]:
    tool = program("mandoc", "mandoc")
    argv = [str(tool), *map(str, words)]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=patient(60), env=surroundings(tool)
    )


def shown(page: Path) -> str:
    """What a terminal shows, without letters typed over to be bold."""
    return re.sub(".\b", "", mandoc("-T", "utf8", "-O", "width=200", page).stdout)


def test_mandoc_finds_nothing_to_complain_about() -> None:
    done = mandoc("-T", "lint", "-W", "warning", *sorted(MANUAL.glob("man*/*")))
    assert (done.returncode, done.stdout) == (0, "")


def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "moor.1"
    page.write_text((MANUAL / "man1" / "moor.1").read_text().replace(".TP\n", ".TPP\n", 1))
    assert "TPP" in mandoc("-T", "lint", "-W", "warning", page).stdout


def test_every_command_and_every_file_has_a_page() -> None:
    names = {path.name for path in MANUAL.glob("man*/*")}
    files = {"moorings-controller.8", "moorings-controller.toml.5", "moorings-pools.5", "moorings-job.5"}
    assert names == {"moor.1", *(f"moor-{name}.1" for name in COMMANDS), *files}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("man1/moor.1", "killed by signal N"),
        ("man1/moor-run.1", "moor run --ipus 4 -- python3 train.py --epochs 3"),
        ("man1/moor-get.1", "moor get partition [OPTIONS] [NAME]..."),
        ("man5/moorings-job.5", "warn_signal"),
        ("man5/moorings-pools.5", "[[pool]]"),
        ("man8/moorings-controller.8", "--keep-runs-days"),
    ],
)
def test_a_page_shows(page: str, words: str) -> None:
    assert words in shown(MANUAL / page)


@pytest.mark.parametrize(
    "text", [".TH is no request", "'quoted", "a\\b", "--flag", "~/.config", "café", "^ and `code`"]
)
def test_text_stays_text(text: str, tmp_path: Path) -> None:
    page = tmp_path / "t.1"
    page.write_text(f".TH T 1 2026-11-21\n.SH NAME\nt \\- {escape('t')}\n.SH TEXT\n{prose(text)}\n", "utf-8")
    assert text.replace("`", "") in shown(page)


@pytest.mark.slow
def test_the_wheel_brings_them_where_man_looks(tmp_path: Path) -> None:
    uv = ROOT / ".tools" / "bin" / "uv"
    assert uv.exists(), "make setup brings it"
    done = subprocess.run(
        [str(uv), "build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(ROOT)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(110),
    )
    assert done.returncode == 0, done.stderr
    wheel = next(tmp_path.glob("*.whl"))
    data = f"{'-'.join(wheel.name.split('-')[:2])}.data/data/share/man"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"{data}/{path.relative_to(MANUAL)}" for path in MANUAL.glob("man*/*")} <= names
