"""A controller with a Slurm cluster in its settings; none is needed here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import patient


def test_a_controller_that_runs_as_root_does_not_start(tmp_path: Path) -> None:
    """Law 10: else everybody who may start a run would be root on every node."""
    assert os.geteuid() == 0, "this needs root, as tests/slurm does"
    config = tmp_path / "controller.toml"
    config.write_text(f'[slurm]\nfolder = "{tmp_path}/runs"\n')
    argv = [sys.executable, "-m", "moorings.app.controller", "--data", str(tmp_path / "data"), "--port", "0"]
    done = subprocess.run(
        [*argv, "--config", str(config)], capture_output=True, text=True, check=False, timeout=patient(60)
    )
    assert done.returncode == 2
    assert "[slurm]: this controller runs as root" in done.stderr
    assert "hint: leave folder out, so that people submit their jobs themselves" in done.stderr
    assert not (tmp_path / "data").exists()
