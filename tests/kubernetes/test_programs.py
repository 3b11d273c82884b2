"""The script that programs come from, as far as it makes nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import debian
from tests.waiting import patient

SCRIPT = debian.ROOT / "scripts" / "kubernetes.sh"


def script(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Called from elsewhere, with a cache that is not there yet."""
    environment = {"PATH": "/usr/bin:/bin", "MOORINGS_CACHE": str(folder / "cache")}
    return subprocess.run(
        [SCRIPT, *words], capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=patient(30)
    )


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_it_says_how_it_is_called(tmp_path: Path, word: str) -> None:
    done = script(tmp_path, word)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nusage: kubernetes.sh  " in done.stdout
    for option in ("--helm", "--today", "--help"):
        assert f"\n       kubernetes.sh {option} " in done.stdout
    assert "set -euo" not in done.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is made for that"


def test_what_it_does_not_know_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = script(tmp_path, "--helmet")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: unknown option --helmet" in done.stderr
    assert "--help" in done.stderr
    assert list(tmp_path.iterdir()) == []
