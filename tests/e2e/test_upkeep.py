"""A controller as a process to be kept: signals, its log, old runs, what the doctor and the bundle tell of it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import POOLS, ControllerProcess
from tests.waiting import patient, until

SECRETS = {
    "variable": "value-of-a-variable-4711",
    "token": "hf-token-0815-secret",
    "argument": "argument-secret-1234",
    "log": "password-in-the-log-9876",
    "pools": "password-in-the-pools-5555",
}


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ControllerProcess]:
    made = ControllerProcess(tmp_path, flags=("--config", str(tmp_path / "controller.toml")))
    (tmp_path / "controller.toml").write_text("")
    made.start()
    yield made
    if made.process is not None and made.process.poll() is None:
        assert made.stop() == 0


def log_of(controller: ControllerProcess) -> str:
    return (controller.folder / "controller.log").read_text()


def told(controller: ControllerProcess, number: signal.Signals, last: str) -> str:
    """What the log says after a signal, up to the line with ``last``."""
    assert controller.process is not None
    before = len(log_of(controller))
    controller.process.send_signal(number)
    until(lambda: f"msg={last} " in log_of(controller)[before:])
    return log_of(controller)[before:]


def moor(controller: ControllerProcess, *words: str) -> tuple[int, str, str]:
    environment = {
        **os.environ,
        "MOORINGS_SERVER": f"http://127.0.0.1:{controller.port}",
        "MOORINGS_ACCESS_KEY": controller.key,
        "MOORINGS_DATA": str(controller.data),
    }
    done = subprocess.run(
        [sys.executable, "-m", "moorings.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
        env=environment,
    )
    return done.returncode, done.stdout, done.stderr


def test_hup_takes_over_what_it_can_and_says_what_needs_a_restart(controller: ControllerProcess) -> None:
    config = controller.folder / "controller.toml"
    assert "reload.done" in told(controller, signal.SIGHUP, "reload.done")
    config.write_text('log_level = "debug"\nkeep_runs_days = 7\n')
    (controller.folder / "pools.toml").write_text(POOLS.replace("pod16", "pod17"))
    text = told(controller, signal.SIGHUP, "reload.done")
    assert "msg=reload.taken logger=moorings.controller setting=log_level value=debug" in text
    assert "msg=reload.needs_restart logger=moorings.controller setting=keep_runs_days value=7" in text
    assert "setting=pools pools=pod17" in text or "pools=pod17" in text
    controller.ask("GET", "/v1/pools")
    until(lambda: "msg=request.answered" in log_of(controller))  # debug is on
    assert "user=" in log_of(controller)
    config.write_text("prot = 1\n")
    (controller.folder / "pools.toml").write_text("[[pool]]\nname = 3\n")
    text = told(controller, signal.SIGHUP, "reload.done")
    assert "msg=reload.refused" in text
    assert "msg=pools.refused" in text
    assert "pools.toml:2" in text
    assert controller.ask("GET", "/v1/pools")[0] == 200, "a configuration that is wrong changes nothing"


def test_usr1_writes_the_state_into_the_log(controller: ControllerProcess) -> None:
    controller.ask("POST", "/v1/claims?wait=10s", {"name": "held", "size": 16})
    controller.ask("POST", "/v1/claims", {"name": "waits", "size": 4})
    text = told(controller, signal.SIGUSR1, "state.tasks")
    assert "msg=state.controller" in text
    assert "msg=state.pool logger=moorings.state pool=pod16 free=0" in text
    assert "msg=state.partition" in text
    assert "partition=held" in text
    assert text.count("msg=state.waiting") == 1


def test_a_request_s_id_is_in_the_answer_and_in_the_log(controller: ControllerProcess) -> None:
    (controller.folder / "controller.toml").write_text('log_level = "debug"\n')
    told(controller, signal.SIGHUP, "reload.done")
    status, body = controller.ask("GET", "/v1/claims/none", headers={"X-Request-Id": "mine-4711"})
    assert (status, body["requestId"]) == (404, "mine-4711")
    until(lambda: "request_id=mine-4711" in log_of(controller))
    _, body = controller.ask("GET", "/v1/claims/none", headers={"X-Request-Id": "forged level=info"})
    assert "forged" not in body["requestId"]


def test_the_doctor_finds_a_healthy_controller_healthy_and_is_quick(controller: ControllerProcess) -> None:
    code, out, _ = moor(controller, "doctor", "-o", "json")
    items = {item["id"]: item for item in json.loads(out)["items"]}
    bad = {name: item for name, item in items.items() if item["verdict"] in ("FAIL", "WARN")}
    assert (code, bad) == (0, {})
    assert {"laws", "memory", "host.controller", "host.files", "host.runs", "clock"} <= items.keys()
    assert items["laws"]["docs"] == "docs/how-to/find-out-what-is-wrong.md#laws"


def test_the_doctor_tells_of_a_controller_that_was_killed(controller: ControllerProcess) -> None:
    controller.kill()
    code, out, _ = moor(controller, "doctor", "--only", "host.controller,controller")
    assert code == 8
    assert "did not shut down cleanly" in out
    assert "FAIL     controller " in out
    controller.start()


@pytest.mark.slow
def test_no_secret_is_in_the_bundle(controller: ControllerProcess) -> None:
    pools = controller.folder / "pools.toml"
    pools.write_text(f'# password = "{SECRETS["pools"]}"\n{pools.read_text()}')
    (controller.data / "controller.log").write_text(
        f"ts=1 msg=x detail=password={SECRETS['log']} key={controller.key}\n"
    )
    job = {
        "name": "secretive",
        "command": ["sh", "-c", "sleep 60", "sh", f"--api-key={SECRETS['argument']}"],
        "workdir": "/tmp",
        "environment": {"PATH": "/usr/bin:/bin", "PLAIN": SECRETS["variable"], "HF_TOKEN": SECRETS["token"]},
        "tasks": 1,
        "accelerators": {"size": 1},
    }
    status, run = controller.ask("POST", "/v1/runs", {"job": job})
    assert status == 201, run
    eve = controller.ask("POST", "/v1/keys", {"subject": "eve"})[1]["secret"]
    with (controller.data / "controller.log").open("a") as log:
        log.write(f"ts=2 msg=y detail={SECRETS['token']} {eve}\n")
    file = controller.folder / "diag.tar.gz"
    code, out, err = moor(controller, "diag", str(file))
    assert code == 0, err
    assert file.stat().st_mode & 0o777 == 0o600
    assert "Not in it" in out
    with tarfile.open(file) as tar:
        pieces = {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}  # type: ignore[union-attr]
    names = {name.removeprefix("moorings-diag/") for name in pieces}
    assert names >= {
        *("README.txt", "doctor.json", "versions.json", "machine.json", "settings.json", "pools.toml"),
        *("controller.log", "controller/metrics.txt", "controller/runs.json", "controller/events.json"),
    }
    assert 'name = "pod16"' in pieces["moorings-diag/pools.toml"], "the one that is used, wherever it is"
    assert "secretive" in pieces["moorings-diag/controller/runs.json"], "the run itself is in it"
    assert '"PLAIN": "[left out]"' in pieces["moorings-diag/controller/runs.json"]
    hidden = [
        *SECRETS.values(),
        *(secret.rpartition("_")[2] for secret in (controller.key, eve)),
        (controller.data / "pepper").read_text().strip(),
    ]
    everything = io.StringIO()
    for name, text in pieces.items():
        everything.write(f"{name}\n{text}\n")
    assert [secret for secret in hidden if secret in everything.getvalue()] == []
    code, _, err = moor(controller, "diag", str(file))
    assert (code, "cannot be written" in err) == (2, True), "never over another file"
    assert controller.ask("POST", f"/v1/runs/{run['id']}/cancel?wait=20s")[0] == 200


def test_a_bundle_without_a_controller_still_has_what_there_is(controller: ControllerProcess, tmp_path: Path) -> None:
    key = controller.key
    assert controller.stop() == 0
    code, out, _ = moor(controller, "diag", str(tmp_path / "d.tar.gz"))
    assert code == 0
    assert "Could not be had:" in out
    assert "doctor.json" in out
    assert key not in out


def test_old_runs_are_pruned_at_the_start(tmp_path: Path) -> None:
    made = ControllerProcess(tmp_path)
    made.start()
    job = {"name": "j", "command": ["true"], "workdir": "/tmp", "environment": {}, "accelerators": {"size": 1}}
    run = made.ask("POST", "/v1/runs", {"job": job})[1]["id"]
    assert made.ask("GET", f"/v1/runs/{run}?wait=20s")[1]["state"] == "SUCCEEDED"
    folder = made.data / "runs" / run
    assert made.stop() == 0
    end = json.loads((folder / "end.json").read_text())
    end["record"]["ended_at"] = 1_000_000  # 1970
    (folder / "end.json").write_text(json.dumps(end))
    made.flags = ("--keep-runs-days", "0")
    made.start()
    assert made.stop() == 0
    assert folder.exists(), "0 keeps them for ever"
    made.flags = ()
    made.start()
    until(lambda: not folder.exists())
    assert made.ask("GET", f"/v1/runs/{run}")[1]["state"] == "SUCCEEDED", "what the database knows of it stays"
    assert made.stop() == 0
    assert "msg=runs.pruned" in log_of(made)
