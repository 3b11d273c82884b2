"""``moor up`` and ``moor down`` with a real controller process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moorings.cli import processes


def moor(*words):
    """A command as a process of its own, as a shell starts it; (exit code, stdout, stderr)."""
    argv = [sys.executable, "-m", "moorings.cli.main", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("MOORINGS_DATA", str(tmp_path / "data"))
    yield tmp_path / "data"
    moor("down")


def test_a_controller_comes_up_once_and_goes_down(data):
    code, out, _ = moor("up", "--port", "0")
    running = processes.find_running(data)
    assert running is not None
    assert (code, out) == (0, f"controller started: {running.url} (process {running.pid}, data in {data})\n")
    credentials = Path.home() / ".config" / "moorings" / "credentials.toml"
    assert credentials.stat().st_mode & 0o777 == 0o600

    code, out, _ = moor("up")
    assert code == 0
    assert f"already runs: {running.url} (process {running.pid}" in out
    code, out, _ = moor("get", "pools", "-o", "json")
    assert code == 0
    assert json.loads(out)["items"][0]["name"] == "pod64"

    code, out, err = moor("down")
    assert (code, out) == (0, f"controller stopped (process {running.pid})\n")
    assert "Runs go on" in err
    assert processes.find_running(data) is None
    assert moor("down") == (0, f"no controller runs on {data}\n", "")


def test_a_controller_that_dies_at_its_start_tells_why(data, tmp_path):
    pools = tmp_path / "pools.toml"
    pools.write_text("[[pool]]\nname = 3\n")
    code, out, err = moor("up", "--port", "0", "--pools", str(pools))
    assert (code, out) == (2, "")  # pools.invalid
    assert "error: the controller ended with exit code" in err
    assert f"{pools}:2" in err
    assert "controller.log" in err
