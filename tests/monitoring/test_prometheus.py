"""Real Prometheus: our text is what it wants, our rules ring when they should, and a live scrape arrives."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from tests.debian import ROOT, program
from tests.e2e.processes import ControllerProcess
from tests.processes import launch
from tests.waiting import patient, until

DEPLOY = ROOT / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def promtool() -> Path:
    return program("promtool", "prometheus")


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ControllerProcess]:
    made = ControllerProcess(tmp_path)
    made.start()
    yield made
    assert made.stop() == 0


def run(*argv: object, given: bytes | None = None) -> str:
    done = subprocess.run(list(map(str, argv)), input=given, capture_output=True, check=False, timeout=patient(60))
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return (done.stdout + done.stderr).decode()


def metrics(controller: ControllerProcess) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{controller.port}/metrics", timeout=patient(10)) as answer:
        content: bytes = answer.read()
        return content


def test_the_rules_ring_when_they_should_and_only_then(promtool: Path) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", DEPLOY / "moorings.rules.yml")
    assert "SUCCESS" in run(promtool, "test", "rules", DEPLOY / "moorings.rules.test.yml")
    run(promtool, "check", "config", DEPLOY / "scrape.yml")


def test_a_rule_that_is_broken_is_noticed(promtool: Path, tmp_path: Path) -> None:
    # The test of the rules can fail: a threshold that is wrong does make it.
    for name in ("moorings.rules.yml", "moorings.rules.test.yml"):
        shutil.copy(DEPLOY / name, tmp_path / name)
    rules = tmp_path / "moorings.rules.yml"
    rules.write_text(rules.read_text().replace("sum(moorings_leader) == 0", "sum(moorings_leader) == 7"))
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "moorings.rules.test.yml"],
        capture_output=True,
        check=False,
        timeout=patient(60),
    )
    assert done.returncode != 0
    assert b"MooringsNoLeader" in done.stderr + done.stdout


def test_every_alert_has_a_test_and_a_page_of_the_runbook() -> None:
    rules = [
        rule["alert"]
        for group in yaml.safe_load((DEPLOY / "moorings.rules.yml").read_text())["groups"]
        for rule in group["rules"]
    ]
    tests = (DEPLOY / "moorings.rules.test.yml").read_text()
    runbook = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    assert len(rules) == len(set(rules)) > 10
    assert [alert for alert in rules if alert not in tests] == []
    assert [alert for alert in rules if f"### {alert}\n" not in runbook] == []


def test_the_metrics_rules_and_dashboard_speak_of_are_there(controller: ControllerProcess) -> None:
    import re

    controller.ask("POST", "/v1/claims?wait=10s", {"size": 1})
    controller.ask("GET", "/v1/claims/none")
    text = metrics(controller).decode()
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    files = [DEPLOY / "moorings.rules.yml", *(ROOT / "deploy" / "grafana").glob("*.json")]
    spoken = {name for file in files for name in re.findall(r"\b(?:moorings|process)_[a-z_]+", file.read_text())}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in spoken if name != "process_start_time_seconds"}
    assert sorted(families - told) == []


def test_promtool_finds_nothing_to_complain_of(promtool: Path, controller: ControllerProcess) -> None:
    controller.ask("POST", "/v1/claims?wait=10s", {"size": 1})
    assert run(promtool, "check", "metrics", given=metrics(controller)) == ""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.slow
def test_a_live_scrape_arrives(controller: ControllerProcess, tmp_path: Path) -> None:
    status, claim = controller.ask("POST", "/v1/claims?wait=10s", {"size": 4})
    assert (status, claim["state"]) == (201, "READY")
    config = yaml.safe_load((DEPLOY / "scrape.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{controller.port}"]
    config["rule_files"] = [str(DEPLOY / "moorings.rules.yml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = launch(
            [
                program("prometheus", "prometheus"),
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        held = asked(port, 'moorings_devices{pool="pod16",state="held"}', process, tmp_path)
        assert held["value"][1] == "4"
        assert asked(port, "moorings_leader", process, tmp_path)["value"][1] == "1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=patient(10)) as answer:
            groups = json.load(answer)["data"]["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    finally:
        process.terminate()
        process.wait(patient(20))


def asked(port: int, query: str, process: subprocess.Popen[bytes], folder: Path) -> dict:
    """The one sample that answers a query; another process's scrape cannot be awaited, so it is asked again."""

    def log() -> str:
        return (folder / "prometheus.log").read_text()[-2000:]

    def answered() -> list[dict]:
        assert process.poll() is None, log()
        url = f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}"
        with urllib.request.urlopen(url, timeout=patient(10)) as answer:
            return list(json.load(answer)["data"]["result"])

    [sample] = until(answered, 60, what=lambda: f"{query} has no answer: {log()}", not_yet=OSError)
    return dict(sample)
