"""``kill -9`` of the controller under load: nothing lost, nothing leaked, nothing used twice."""

from __future__ import annotations

import http.client
import random
import threading
from pathlib import Path

import pytest

from examples.demo import processes_of
from tests.e2e.processes import ControllerProcess
from tests.waiting import patient, until

ROUNDS = 8
CLIENTS = 6


class Client(threading.Thread):
    """Makes and releases claims, each with a key of its own, until told to stop; remembers every answer it got."""

    def __init__(self, controller: ControllerProcess, number: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.controller = controller
        self.number = number
        self.seed = seed
        self.chance = random.Random(seed * 1000 + number)
        self.made: dict[str, tuple[int, str]] = {}
        self.asked: dict[str, int] = {}
        self.wrong: list[object] = []
        self.halt = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self.halt.is_set():
            turn += 1
            key, size = f"{self.seed}-{self.number}-{turn}", self.chance.choice([1, 1, 1, 2, 4])
            self.asked[key] = size
            try:
                status, body = self.controller.ask(
                    "POST", "/v1/claims?wait=50ms", {"size": size}, headers={"Idempotency-Key": key}
                )
                if status not in (200, 201):
                    if status < 500:
                        self.wrong.append(body)
                    continue
                self.made[key] = (size, body["id"])
                if self.chance.random() < 0.9:
                    self.controller.ask("DELETE", f"/v1/claims/{body['id']}")
            except (OSError, http.client.HTTPException, ValueError):
                self.halt.wait(0.01)  # the controller is gone: the answer is lost, the claim may be there


@pytest.mark.smoke
def test_kill_minus_nine_under_load(controller: ControllerProcess, tmp_path: Path) -> None:
    chance = random.Random(20261121)
    asked: dict[str, int] = {}
    made: dict[str, tuple[int, str]] = {}
    for round_number in range(ROUNDS):
        clients = [Client(controller, number, round_number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        threading.Event().wait(chance.uniform(0.3, 0.9))  # how far the load gets is the point, and is left to chance
        controller.kill()
        for client in clients:
            client.halt.set()
        for client in clients:
            client.join(patient(40))
            assert client.wrong == []
            asked |= client.asked
            made |= client.made
        controller.start()
        look_at_everything(controller)
    assert len(made) > 50, "there was no load"
    # Law 5: every key that was answered before a kill still gives the same claim; one that was not gives exactly one.
    for key, size in asked.items():
        status, body = controller.ask("POST", "/v1/claims", {"size": size}, headers={"Idempotency-Key": key})
        assert status in (200, 201), body
        assert key not in made or made[key][1] == body["id"]
        again = controller.ask("POST", "/v1/claims", {"size": size}, headers={"Idempotency-Key": key})[1]
        assert again["id"] == body["id"]
    # Law 2: when all are released, nothing is left.
    for claim in everything(controller, "claims"):
        assert controller.ask("DELETE", f"/v1/claims/{claim['id']}")[0] == 200
    for claim in everything(controller, "claims"):
        assert controller.ask("GET", f"/v1/claims/{claim['id']}?wait=20s&for=ENDED")[0] == 200
    assert everything(controller, "partitions") == []
    assert everything(controller, "pools")[0]["free"] == 16


def everything(controller: ControllerProcess, what: str) -> list[dict]:
    status, body = controller.ask("GET", f"/v1/{what}?limit=1000")
    assert status == 200
    items: list[dict] = body["items"]
    return items


def look_at_everything(controller: ControllerProcess) -> None:
    """Laws 1 and 2, as seen from outside."""
    claims = {claim["id"]: claim for claim in everything(controller, "claims")}
    devices: dict[str, str] = {}
    for partition in everything(controller, "partitions"):
        assert partition["state"] == "REMOVING" or partition["claim"] in claims
        first, _, last = partition["devices"].partition("-")
        for index in range(int(first), int(last or first) + 1):
            assert devices.setdefault(f"{index}", partition["id"]) == partition["id"]


@pytest.mark.smoke
def test_a_run_survives_the_controller_s_kill(controller: ControllerProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = {
        "name": "survivor",
        "command": ["sh", "-c", f"until test -e {gate}; do sleep 0.02; done; echo through"],
        "workdir": "/tmp",
        "environment": {"PATH": "/usr/bin:/bin"},
        "tasks": 2,
        "accelerators": {"size": 2},
    }
    status, run = controller.ask("POST", "/v1/runs", {"job": job})
    assert status == 201, run
    for _ in range(3):
        controller.kill()
        controller.start()
    gate.touch()
    status, ended = controller.ask("GET", f"/v1/runs/{run['id']}?wait=20s")
    assert (ended["state"], ended["exitCode"]) == ("SUCCEEDED", 0)
    assert processes_of(run["id"]) == []
    ends = controller.ask("GET", f"/v1/events?run={run['id']}&name=run.ended")[1]["items"]
    assert len(ends) == 1, "every run's end is recorded once"


def test_a_waiting_run_keeps_its_variables_over_kills_and_through_a_pause(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    """Each attempt needs their values anew, and the database has none."""
    names = [f"held-{number}" for number in range(2)]
    for name in names:
        assert controller.ask("POST", "/v1/claims?wait=5s", {"name": name, "size": 8})[0] == 201
    job = {
        "name": "waits",
        "command": ["sh", "-c", "echo $TOKEN; until test -e gate; do sleep 0.02; done"],
        "workdir": str(tmp_path),
        "environment": {"PATH": "/usr/bin:/bin", "TOKEN": "hunter2"},
        "checkpoint": {"resumable": True, "graceS": 0.1},
        "checkpointDirectory": str(tmp_path / "checkpoints"),
        "accelerators": {"size": 16},
    }
    status, run = controller.ask("POST", "/v1/runs", {"job": job}, headers={"Idempotency-Key": "waits"})
    assert (status, run["job"]["environment"]) == (201, {"PATH": "", "TOKEN": ""})
    controller.kill()
    controller.start()
    status, again = controller.ask("POST", "/v1/runs", {"job": job}, headers={"Idempotency-Key": "waits"})
    assert (status, again["id"]) == (201, run["id"])
    for name in names:
        controller.ask("DELETE", f"/v1/claims/{name}")
    until(lambda: controller.ask("GET", f"/v1/runs/{run['id']}")[1]["state"] == "RUNNING")
    status, paused = controller.ask("POST", f"/v1/runs/{run['id']}/pause?wait=20s", {"saveTimeoutS": 0.1})
    assert (status, paused.get("state")) == (200, "PAUSED"), paused
    controller.kill()
    controller.start()
    controller.ask("POST", f"/v1/runs/{run['id']}/resume", {})
    until(lambda: controller.ask("GET", f"/v1/runs/{run['id']}")[1]["state"] == "RUNNING")
    (tmp_path / "gate").touch()
    status, ended = controller.ask("GET", f"/v1/runs/{run['id']}?wait=20s")
    assert (ended["state"], ended["attempt"] > 0) == ("SUCCEEDED", True), ended
    logs = [path.read_text() for path in controller.data.rglob("logs/*/0.log")]
    assert logs == ["hunter2\n"] * 2
    for path in controller.data.glob("moorings.db*"):
        assert b"hunter2" not in path.read_bytes(), path


def test_a_second_controller_on_the_same_data_is_refused(controller: ControllerProcess, tmp_path: Path) -> None:
    second = ControllerProcess(tmp_path, port=0)
    with pytest.raises(AssertionError, match=r"another controller uses .*\(process \d+, http://127.0.0.1:\d+\)"):
        second.start()
    assert controller.ask("GET", "/v1/pools")[0] == 200


def test_a_corrupt_pools_file_names_the_line(tmp_path: Path) -> None:
    broken = ControllerProcess(
        tmp_path, pools='[[pool]]\nname = "a"\nkind = "ipu"\ndriver = "simulated"\ntopolgy = 3\n'
    )
    with pytest.raises(AssertionError, match=r"pools\.toml:\d+: "):
        broken.start()
    broken = ControllerProcess(tmp_path, pools='[[pool]]\nname = "a\n')
    with pytest.raises(AssertionError, match=r"pools\.toml:2: "):
        broken.start()


def test_it_ends_within_seconds_and_cleanly_when_told_to(controller: ControllerProcess) -> None:
    assert controller.stop() == 0
    assert not (controller.data / "controller.json").exists()
    log = (controller.folder / "controller.log").read_text()
    assert controller.key not in log, "law 10"
    assert "controller.stopped" in log


def test_nothing_private_can_be_read_by_others(controller: ControllerProcess) -> None:
    assert controller.data.stat().st_mode & 0o077 == 0
    for path in [controller.credentials, *controller.data.rglob("*")]:
        if path.is_file():
            assert path.stat().st_mode & 0o077 == 0, path
