"""The script that programs come from, as far as it makes nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests import debian, sampling
from tests.kubernetes import conftest, programs
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


def test_what_is_brought_is_taken_and_asked_for_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("kube-apiserver", "1.36.4"), ("kubelet", "1.36.4")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho Kubernetes v{version}\n")
        (tmp_path / name).chmod(0o755)
    assert programs.given() == os.environ.get("KUBEBUILDER_ASSETS", "")
    monkeypatch.setitem(programs._ENV, "KUBEBUILDER_ASSETS", str(tmp_path))
    assert programs.given() == str(tmp_path)
    assert programs.kube("kubelet") == tmp_path / "kubelet"
    assert programs.release("kubelet") == (1, 36)


@pytest.mark.parametrize(
    ("asked", "tree", "why", "chosen", "note"),
    [
        ("1.20", "1", "", ["1.20"], "of 1.20"),
        ("both", "1", "", ["1.20", "today"], "of 1.20 and today"),
        ("turn", "1", "", ["today"], "of today"),
        ("turn", "2", "", ["1.20"], "of 1.20"),
        ("turn", "2", "error: away", ["1.20"], "of 1.20"),
        ("turn", "1", "error: away", ["1.20"], "of 1.20 alone; today's cannot be had: error: away"),
        ("both", "1", "error: away", ["1.20"], "of 1.20 alone; today's cannot be had: error: away"),
        ("today", "1", "error: away", ["today"], "of today"),  # it was asked for by name, and fails
    ],
)
def test_what_the_tests_run_on_and_what_is_said_of_it(
    monkeypatch: pytest.MonkeyPatch, asked: str, tree: str, why: str, chosen: list[str], note: str
) -> None:
    options = SimpleNamespace(collectonly=False)
    config = SimpleNamespace(stash=pytest.Stash(), option=options, getoption=lambda _, default: asked)
    monkeypatch.setattr(sampling, "tree", lambda: tree * 40)
    monkeypatch.setattr(programs, "why_not_today", lambda: why)
    monkeypatch.setattr(programs, "given", lambda: "")
    assert conftest._choose(cast(pytest.Config, config)) == chosen
    assert config.stash[conftest._NOTE] == note


def test_what_it_does_not_know_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = script(tmp_path, "--helmet")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: unknown option --helmet" in done.stderr
    assert "--help" in done.stderr
    assert list(tmp_path.iterdir()) == []
