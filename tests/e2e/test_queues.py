"""Another scheduler's queue over HTTP: told, offered, waited for, kept apart by keys, and told anew after a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import ControllerProcess


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ControllerProcess]:
    made = ControllerProcess(tmp_path)
    (tmp_path / "pools.toml").write_text(made.pools)
    made.start()
    yield made
    made.kill()


def jobs(*sizes: int) -> list[dict[str, Any]]:
    return [{"owner": f"slurm/baltic/{n}/cafe", "size": size} for n, size in enumerate(sizes, start=1)]


def tell(controller: ControllerProcess, *sizes: int, **more: Any) -> tuple[int, Any]:
    return controller.ask("POST", "/v1/queues", {"queue": "slurm/baltic", "jobs": jobs(*sizes), **more})


def test_a_queue_is_told_and_waited_for(controller: ControllerProcess) -> None:
    assert controller.ask("GET", "/v1/queues/slurm/baltic")[1]["code"] == "queue.unknown"
    status, first = tell(controller, 16, 8)
    assert (status, first["offer"]) == (200, {"pod16": {"1": 16, "2": 8, "4": 4, "8": 2, "16": 1}})
    assert [(job["size"], job["offered"]) for job in first["jobs"]] == [(16, True), (8, False)]
    assert first["jobs"][1]["reason"]["code"] in ("queue.kept_for_other", "queue.reserved")
    version = first["version"]

    answers: list[Any] = []
    path = f"/v1/queues/slurm/baltic?wait=30s&version={version}"
    waiting = threading.Thread(target=lambda: answers.append(controller.ask("GET", path)))
    waiting.start()
    time.sleep(0.3)
    assert answers == [], "the offer is the same: there is nothing to tell"
    claim = controller.ask("POST", "/v1/claims?wait=20s", {"size": 16, "owner": "slurm/baltic/1/cafe"})[1]
    assert claim["state"] == "READY"
    waiting.join(10)
    assert answers[0][1]["offer"] == {"pod16": {}}
    assert [job["owner"] for job in answers[0][1]["jobs"]] == ["slurm/baltic/2/cafe"]


def test_a_restart_forgets_it_until_it_is_told_again(controller: ControllerProcess) -> None:
    """It is memory's: after a restart nothing is offered, so nothing is promised twice."""
    before = tell(controller, 4)[1]
    controller.kill()
    controller.start()
    assert controller.ask("GET", "/v1/queues/slurm/baltic")[1]["code"] == "queue.unknown"
    after = tell(controller, 4)[1]
    assert after["version"] == before["version"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"queue": "slurm"}, "owner.invalid"),
        ({"queue": "slurm/a/b"}, "queue.invalid"),
        ({"queue": "local/a"}, "queue.invalid"),
        ({"queue": "slurm/a", "jobs": [{"owner": "slurm/b/1/x", "size": 1}]}, "queue.invalid"),
        ({"queue": "slurm/a", "jobs": [{"owner": "slurm/a/1/x", "size": 1}] * 2}, "queue.invalid"),
        ({"queue": "slurm/a", "jobs": [{"owner": f"slurm/a/{n}/x", "size": 1} for n in range(65)]}, "queue.invalid"),
        ({"queue": "slurm/a", "jobs": [{"owner": "slurm/a/1/x", "size": -1}]}, "claim.size_invalid"),
        ({"queue": "slurm/a", "jobs": [{"owner": "slurm/a/1/x", "size": 1, "since": "now"}]}, "queue.invalid"),
        ({"queue": "slurm/a", "jobs": [{"owner": "slurm/a/1/x", "size": 1, "sise": 2}]}, "body.invalid"),
        ({"queue": "slurm/a", "forS": 1e6}, "queue.invalid"),
    ],
)
def test_what_cannot_be_told(controller: ControllerProcess, body: dict[str, Any], code: str) -> None:
    status, problem = controller.ask("POST", "/v1/queues", body)
    assert (status, problem["code"]) == (422, code), problem
    assert problem["detail"]


def test_only_its_own_agent_tells_of_a_queue(controller: ControllerProcess) -> None:
    wanted = {"subject": "slurmagent", "role": "agent", "ownerPrefix": "slurm/baltic"}
    secret = controller.ask("POST", "/v1/keys", wanted)[1]["secret"]
    other = controller.ask("POST", "/v1/keys", wanted | {"ownerPrefix": "slurm/bal", "subject": "b"})[1]["secret"]
    body = {"queue": "slurm/baltic", "jobs": jobs(4)}
    assert controller.ask("POST", "/v1/queues", body, key=secret)[0] == 200
    assert controller.ask("GET", "/v1/queues/slurm/baltic", key=secret)[0] == 200
    for method, path, sent in (("POST", "/v1/queues", body), ("GET", "/v1/queues/slurm/baltic", None)):
        status, problem = controller.ask(method, path, sent, key=other)
        assert (status, problem["code"]) == (403, "owner.denied")
