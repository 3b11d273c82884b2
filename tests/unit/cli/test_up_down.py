"""``moor up`` and ``moor down`` with a real controller process."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from moorings.cli import processes
from moorings.pki.folder import CertificateStore
from tests.waiting import patient


def moor(*words):
    """A command as a process of its own, as a shell starts it; (exit code, stdout, stderr)."""
    argv = [sys.executable, "-m", "moorings.cli.main", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=patient(100), check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("MOORINGS_DATA", str(tmp_path / "data"))
    yield tmp_path / "data"
    moor("down")


def test_a_controller_comes_up_once_and_goes_down(data):
    code, out, err = moor("up", "--port", "0")
    running = processes.find_running(data)
    assert running is not None
    assert ("moor up --system" in err) == (os.geteuid() == 0), "jobs would be root's, for admins only"
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
    assert "go on" not in err, "there are none"
    assert processes.find_running(data) is None
    assert moor("down") == (0, f"no controller runs on {data}\n", "")


def test_runs_go_on_and_are_told_of(data, tmp_path):
    assert moor("up", "--port", "0")[0] == 0
    assert moor("run", "--detach", "--name", "long", "--", "sleep", "600")[0] == 0
    code, _, err = moor("down")
    assert (code, "\nRuns continue; 'moor up'" in err) == (0, True)
    assert moor("up", "--port", "0")[0] == 0
    assert moor("cancel", "long", "--wait")[0] == 0
    assert "go on" not in moor("down")[2]


def test_who_may_not_ask_is_told_of_runs_all_the_same(data):
    assert moor("up", "--port", "0")[0] == 0
    (Path.home() / ".config" / "moorings" / "credentials.toml").unlink()
    code, _, err = moor("down")
    assert (code, "\nRuns, if there are any, continue; 'moor up'" in err) == (0, True)


@pytest.mark.parametrize(("names", "code"), [(["pod1.example.org"], 7), (["pod1.example.org", "127.0.0.1"], 0)])
def test_a_certificate_for_another_name_is_told_at_once(data, tmp_path, names, code):
    made = CertificateStore(tmp_path / "pki")
    made.create(names, datetime.now(UTC), 9)
    found, _, err = moor("up", "--port", "0", "--pki", str(made.folder))
    assert found == code, err
    running = processes.find_running(data)
    assert running is not None
    if code:
        assert f"the controller (process {running.pid}) runs, and cannot be asked whether it is ready" in err
        assert f"the certificate of {running.url} is for another name" in err
        assert "moor pki rotate --name HOST" in err


def test_a_controller_for_other_machines_must_be_asked_for(data, tmp_path):
    code, _, err = moor("up", "--port", "0", "--host", "0.0.0.0")
    assert (code, "without TLS, access keys would travel" in err, "--plain-http" in err) == (2, True, True)
    assert moor("up", "--port", "0", "--plain-http", "--pki", str(tmp_path))[0] == 2
    code, out, _ = moor("up", "--port", "0", "--host", "0.0.0.0", "--plain-http")
    assert (code, out.startswith("controller started: http://")) == (0, True)


@pytest.mark.parametrize("record", ["junk", None])
def test_one_whose_record_was_damaged_is_known_by_its_lock_and_goes_down(data, record):
    assert moor("up", "--port", "0")[0] == 0
    running = processes.find_running(data)
    assert running is not None
    (data / "controller.json").unlink()
    if record is not None:
        (data / "controller.json").write_text(record)
    code, _, err = moor("up", "--port", "0")
    assert (code, "'moor down' stops it" in err) == (5, True)
    assert moor("down")[:2] == (0, f"controller stopped (process {running.pid})\n")
    assert not processes.is_alive(running)
    assert moor("down") == (0, f"no controller runs on {data}\n", "")


def test_what_holds_the_lock_and_is_no_controller_is_told_and_left_alone(data):
    data.mkdir()
    with (data / "controller.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, out, err = moor("down")
    assert (code, out) == (5, "")
    assert f"process {os.getpid()} uses {data} and is no controller (controller.running)" in err
    assert f"ps -fp {os.getpid()}" in err


def test_a_controller_that_dies_at_its_start_tells_why(data, tmp_path):
    pools = tmp_path / "pools.toml"
    pools.write_text("[[pool]]\nname = 3\n")
    code, out, err = moor("up", "--port", "0", "--pools", str(pools))
    assert (code, out) == (2, "")  # pools.invalid
    assert "error: the controller ended with exit code" in err
    assert f"{pools}:2" in err
    assert "controller.log" in err


def test_one_that_was_killed_comes_back_where_it_was(data):
    assert moor("up", "--port", "0")[0] == 0
    killed = processes.find_running(data)
    assert killed is not None
    os.kill(killed.pid, signal.SIGKILL)
    while processes.is_alive(killed):
        os.sched_yield()
    assert moor("up")[0] == 0
    running = processes.find_running(data)
    assert running is not None
    assert running.url == killed.url
    assert moor("get", "pools", "-o", "name")[1] == "pool/pod64\n"


def test_a_context_of_another_controller_is_left_alone_and_the_new_one_is_named(data):
    file = Path.home() / ".config" / "moorings" / "credentials.toml"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text('[contexts.default]\nserver = "http://127.0.0.1:9"\naccess_key = "moor_other"\n')
    file.chmod(0o600)
    code, _, err = moor("up", "--port", "0")
    running = processes.find_running(data)
    assert running is not None
    context = f"default-{running.url.rpartition(':')[2]}"
    assert code == 0
    assert f"use it with: moor --context {context} ..., or moor config use-context {context}" in err
    assert moor("--context", context, "get", "pools", "-o", "name")[1] == "pool/pod64\n"
    assert 'server = "http://127.0.0.1:9"' in file.read_text()


def test_a_key_that_does_not_work_is_told_where_one_runs_already(data):
    assert moor("up", "--port", "0")[0] == 0
    file = Path.home() / ".config" / "moorings" / "credentials.toml"
    file.write_text(file.read_text().replace("moor_", "moor_not_"))
    code, out, err = moor("up")
    assert code == 0
    assert "already runs" in out
    assert "the access key of context default does not work" in err
