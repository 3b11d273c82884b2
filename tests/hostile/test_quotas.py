"""One access key cannot fill memory and disk with what waits: quotas, over HTTP, by clients that race."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from moorings.core.model.access import Role
from moorings.core.model.backlog import NO_AMOUNT, Amount
from moorings.core.model.policy import Policy
from tests.hostile.harbour import Harbour, harbour
from tests.waiting import patient

COUNT, BYTES = 20, 100_000
CLIENTS, EACH = 4, 15


@pytest.fixture
def port_of_call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harbour]:
    """A controller whose devices are all held by an admin."""
    policy = Policy(waiting_max=COUNT, waiting_bytes_max=BYTES)
    with harbour(tmp_path_factory.mktemp("harbour"), policy=policy) as found:
        with a_client(found, Role.ADMIN) as admin:
            held = admin.post("/v1/claims?wait=30s", json={"size": 64})
            assert held.json()["state"] == "READY"
        yield found
        found.give_everything_back()


def a_client(port_of_call: Harbour, role: Role = Role.USER) -> httpx2.Client:
    return httpx2.Client(base_url=port_of_call.url, headers=port_of_call.bearer(role), timeout=patient(60))


def job(environment_bytes: int = 0) -> dict[str, Any]:
    environment = {"A": "x" * environment_bytes}
    return {"job": {"name": "j", "command": ["true"], "workdir": "/", "environment": environment}}


def race(port_of_call: Harbour, path: str, body: dict[str, Any]) -> Counter[tuple[int, str]]:
    """How so many requests of several clients at once were answered: status and code."""
    answers: list[tuple[int, str]] = []
    start = threading.Barrier(CLIENTS)

    def send() -> None:
        with a_client(port_of_call) as client:
            start.wait()
            for _ in range(EACH):
                answer = client.post(path, json=body)
                answers.append((answer.status_code, answer.json().get("code", "")))

    threads = [threading.Thread(target=send) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(answers)


REFUSED = (429, "quota.waiting")


def test_clients_that_race_get_as_many_claims_as_may_wait(port_of_call: Harbour) -> None:
    answers = race(port_of_call, "/v1/claims", {"size": 1})
    assert answers == {(201, ""): COUNT, REFUSED: CLIENTS * EACH - COUNT}
    assert port_of_call.rig.fleet.backlog.for_subject("user") == Amount(COUNT)


def test_clients_that_race_get_as_many_bytes_of_jobs_as_may_wait(port_of_call: Harbour) -> None:
    answers = race(port_of_call, "/v1/runs", job(BYTES // 10))
    assert answers == {(201, ""): 9, REFUSED: CLIENTS * EACH - 9}, "each has some bytes beside its environment"
    waits = port_of_call.rig.assembly.loop.runs.backlog.for_subject("user")
    assert waits.count == 9
    assert 9 * BYTES // 10 < waits.body_bytes <= BYTES


def test_what_is_asked_again_with_its_key_is_nothing_new(port_of_call: Harbour) -> None:
    with a_client(port_of_call) as client:
        key = {"Idempotency-Key": "first"}
        first = client.post("/v1/runs", json=job(), headers=key).json()
        assert race(port_of_call, "/v1/runs", job())[201, ""] == COUNT - 1
        again = client.post("/v1/runs", json=job(), headers=key)
        assert (again.status_code, again.json()["id"]) == (201, first["id"])
        assert again.json()["job"] == first["job"]

        refused = client.post("/v1/runs", json=job()).json()
        assert refused["detail"] == f"what user has waiting is {COUNT} runs, and may be {COUNT}"
        assert "waiting_max in the policy file" in refused["hint"]
        assert refused["retryable"] is False, "else a client would ask again and again"
        client.post(f"/v1/runs/{first['id']}/cancel?wait=30s")
        assert client.post("/v1/runs", json=job()).status_code == 201


def test_nobody_else_is_refused_and_nothing_is_left_of_what_was_refused(port_of_call: Harbour) -> None:
    race(port_of_call, "/v1/runs", job())
    with a_client(port_of_call, Role.ADMIN) as admin:
        assert admin.post("/v1/runs", json=job()).status_code == 201
    port_of_call.give_everything_back()
    assert port_of_call.rig.assembly.loop.runs.backlog.for_subject("user") == NO_AMOUNT
    assert port_of_call.rig.fleet.backlog.for_subject("user") == NO_AMOUNT
