"""Another scheduler's queue over HTTP: told, offered, waited for, kept apart by keys, and told anew after a restart."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorings.controller.queues import REPORT_TTL_S_MIN
from tests.e2e.processes import ControllerProcess
from tests.waiting import patient, until

ONE, OTHER = "0123456789abcdef", "fedcba9876543210"


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


def moor(controller: ControllerProcess, *words: str, key: str) -> str:
    """What the command prints."""
    where = {"MOORINGS_SERVER": f"http://127.0.0.1:{controller.port}", "MOORINGS_ACCESS_KEY": key}
    argv = [sys.executable, "-m", "moorings.cli.main", *words]
    env = {**controller.environment(), **where}
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=patient(30), env=env).stdout


def test_a_queue_is_told_and_waited_for(controller: ControllerProcess) -> None:
    assert controller.ask("GET", "/v1/queues/slurm/baltic")[1]["code"] == "queue.unknown"
    status, first = tell(controller, 16, 8)
    assert (status, first["offer"]) == (200, {"pod16": {"1": 16, "2": 8, "4": 4, "8": 2, "16": 1}})
    assert [(job["size"], job["offered"]) for job in first["jobs"]] == [(16, True), (8, False)]
    assert first["jobs"][1]["reason"]["code"] in ("queue.kept_for_other", "queue.reserved")
    version = first["version"]

    answers: list[Any] = []
    path = f"/v1/queues/slurm/baltic?wait=600s&version={version}"
    waiting = threading.Thread(target=lambda: answers.append(controller.ask("GET", path)))
    waiting.start()
    time.sleep(0.3)
    assert answers == [], "the offer is the same: there is nothing to tell"
    claim = controller.ask("POST", "/v1/claims?wait=20s", {"size": 16, "owner": "slurm/baltic/1/cafe"})[1]
    assert claim["state"] == "READY"
    waiting.join(patient(10))
    assert answers[0][1]["offer"] == {"pod16": {}}
    assert (answers[0][1]["held"], answers[0][1]["othersWait"]) == ({"pod16": {"16": 1}}, [])
    assert [job["owner"] for job in answers[0][1]["jobs"]] == ["slurm/baltic/2/cafe"]


def test_who_sees_its_jobs_reads_what_waits_there_and_why(controller: ControllerProcess) -> None:
    """No words like the agent's name: it is nobody."""
    assert controller.ask("GET", "/v1/queues")[1]["items"] == []
    holder = {"size": 16, "owner": "slurm/baltic/7/cafe"}
    agent = {"subject": "slurmagent", "role": "agent", "ownerPrefix": "slurm/baltic"}
    key = controller.ask("POST", "/v1/keys", agent)[1]["secret"]
    assert controller.ask("POST", "/v1/claims?wait=20s", holder, key=key)[1]["state"] == "READY"
    assert controller.ask("POST", "/v1/queues", {"queue": "slurm/baltic", "jobs": jobs(16, 8)}, key=key)[0] == 200
    reader = controller.ask("POST", "/v1/keys", {**agent, "subject": "desk"})[1]["secret"]
    status, told = controller.ask("GET", "/v1/queues", key=reader)
    assert (status, [queue["queue"] for queue in told["items"]]) == (200, ["slurm/baltic"])
    first, second = (job["reason"]["message"] for job in told["items"][0]["jobs"])
    assert first == "devices 0-15 of pod16 are kept for it, still held by job 7 on slurm/baltic (no time limit)"
    assert "job 1 on slurm/baltic" in second
    assert "slurmagent" not in str(told)
    shown = moor(controller, "describe", "pool", "pod16", key=reader)
    assert f"  job 1 on slurm/baltic, 16 devices: {first}\n" in shown
    assert f"  job 2 on slurm/baltic, 8 devices: {second}\n" in shown
    viewer = controller.ask("POST", "/v1/keys", {"subject": "ann", "role": "viewer"})[1]["secret"]
    shown = moor(controller, "describe", "pool", "pod16", key=viewer)
    assert "(hidden), 16 devices: devices 0-15 of pod16 are kept for it, still held by another job of 16" in shown
    assert "on slurm/baltic" not in shown
    controller.ask("POST", "/v1/queues", {"queue": "slurm/baltic", "jobs": [{**jobs(1)[0], "pool": "pod16"}]}, key=key)
    assert "job 1 on slurm/baltic, 1 devices" in moor(controller, "describe", "pool", "pod16", key=reader)


def test_that_others_wait_is_told_at_once(controller: ControllerProcess) -> None:
    assert controller.ask("POST", "/v1/claims?wait=20s", {"size": 16, "owner": "slurm/baltic/1/cafe"})[0] == 201
    version = tell(controller, 4)[1]["version"]
    answers: list[Any] = []
    path = f"/v1/queues/slurm/baltic?wait=600s&version={version}"
    waiting = threading.Thread(target=lambda: answers.append(controller.ask("GET", path)))
    waiting.start()
    time.sleep(0.3)
    assert answers == []
    assert controller.ask("POST", "/v1/claims", {"size": 2, "owner": "user/ann"})[1]["state"] == "PENDING"
    waiting.join(patient(10))
    assert answers[0][1]["othersWait"] == ["pod16"]


def test_a_restart_forgets_it_until_it_is_told_again(controller: ControllerProcess) -> None:
    """It is memory's: after a restart nothing is offered, so nothing is promised twice."""
    before = tell(controller, 4)[1]
    controller.kill()
    controller.start()
    assert controller.ask("GET", "/v1/queues/slurm/baltic")[1]["code"] == "queue.unknown"
    after = tell(controller, 4)[1]
    assert after["version"] == before["version"]


def test_of_two_schedulers_of_one_name_one_is_believed(controller: ControllerProcess) -> None:
    path = "/v1/queues/slurm/baltic"
    assert controller.ask("GET", f"{path}?instance={ONE}")[1]["code"] == "queue.unknown"
    status, first = tell(controller, 4, instance=ONE)
    assert (status, first["instance"], "contestedAt" in first) == (200, ONE, False)
    status, refused = tell(controller, instance=OTHER)
    assert status == 409, refused
    assert (refused["code"], refused["retryable"]) == ("queue.taken", False)
    assert first["until"] in refused["detail"]
    assert first["until"] in refused["hint"]
    status, refused = controller.ask("GET", f"{path}?instance={OTHER}")
    assert (status, refused["code"]) == (409, "queue.taken")
    status, found = controller.ask("GET", f"{path}?instance={ONE}")
    assert (status, found["instance"], [job["size"] for job in found["jobs"]]) == (200, ONE, [4])
    assert found["contestedAt"] < found["until"], "who is believed is told of the other"
    assert controller.ask("GET", path)[1]["instance"] == ONE, "who only looks on need not say who it is"


def test_who_waits_for_an_offer_is_refused_it_once_another_is_believed(controller: ControllerProcess) -> None:
    version = tell(controller)[1]["version"]  # by an agent that does not say who it is
    assert controller.ask("GET", f"/v1/queues/slurm/baltic?instance={ONE}")[1]["code"] == "queue.unknown"
    assert tell(controller, instance=ONE, forS=REPORT_TTL_S_MIN)[0] == 200
    answers: list[Any] = []
    path = f"/v1/queues/slurm/baltic?wait=600s&version={version}&instance={ONE}"
    waiting = threading.Thread(target=lambda: answers.append(controller.ask("GET", path)))
    waiting.start()
    until(
        lambda: tell(controller, instance=OTHER)[0] == 200,
        REPORT_TTL_S_MIN + 10,
        what="the first was promised five seconds",
    )
    waiting.join(patient(10))
    assert (answers[0][0], answers[0][1]["code"]) in ((409, "queue.taken"), (404, "queue.unknown"))


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
        ({"queue": "slurm/a", "instance": ""}, "queue.invalid"),
        ({"queue": "slurm/a", "instance": "0123456789ABCDEF"}, "queue.invalid"),
        ({"queue": "slurm/a", "instance": "0" * 17}, "queue.invalid"),
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
