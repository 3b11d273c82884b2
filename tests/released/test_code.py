"""The kept code of the release is what runs where a test says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.released.code import environment_of, released_code

__all__ = ["released_code"]  # a fixture


@pytest.mark.parametrize("old", [True, False])
def test_a_program_is_of_the_release_that_is_asked_for(released_code: Path, old: bool) -> None:
    words = [sys.executable, "-c", "import moorings; print(moorings.__file__)"]
    environment = environment_of(released_code if old else None)
    told = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(told.strip()).is_relative_to(released_code) == old
