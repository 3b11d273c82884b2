"""Two controllers on one PostgreSQL: both serve, one leads, and whatever becomes of it the other continues."""

from __future__ import annotations

import contextlib
import http.client
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.demo import processes_of
from moorings.store.leader_lock import SILENCE_S
from tests.e2e.processes import POOLS, ControllerProcess, Twin
from tests.waiting import patient, until

ENDS_S = 10  # what an admin is promised of SIGTERM

pytestmark = pytest.mark.slow


@pytest.fixture
def twins(tmp_path: Path, database_url: str) -> Iterator[tuple[Twin, Twin]]:
    """Two controllers; the first leads."""
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        twin = Twin(tmp_path / name, POOLS, database=database_url, shared=tmp_path / "shared")
        made.append(twin)
        twin.start()
        until(lambda: made[0].leads)
    yield made[0], made[1]
    for twin in made:
        if twin.process is not None and twin.process.poll() is None:
            twin.process.send_signal(signal.SIGCONT)
            assert twin.stop() == 0


def claim(controller: ControllerProcess, size: int = 1, key: str = "", wait: str = "20s") -> dict[str, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    status, body = controller.ask("POST", f"/v1/claims?wait={wait}", {"size": size}, headers=headers)
    assert status in (200, 201), body
    return dict(body)


def ask_in_vain(controller: ControllerProcess) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        controller.ask("POST", "/v1/claims", {"size": 1})


def drained(controller: ControllerProcess) -> None:
    """Law 2, at rest."""

    def empty() -> bool:
        _, partitions = controller.ask("GET", "/v1/partitions")
        _, pools = controller.ask("GET", "/v1/pools")
        return not partitions["items"] and pools["items"][0]["free"] == 16

    until(empty)


def test_every_address_serves_the_whole_api(twins: tuple[Twin, Twin]) -> None:
    one, two = twins
    made = claim(two, 4)
    assert made["state"] == "READY"
    assert one.ask("GET", f"/v1/claims/{made['id']}")[1]["id"] == made["id"]
    assert two.ask("GET", "/readyz")[0] == 200
    assert two.ask("GET", "/v1/claims", key=one.key)[0] == 200, "a key is good everywhere"
    assert two.ask("DELETE", f"/v1/claims/{made['id']}?wait=20s")[1]["state"] == "RELEASED"
    assert one.leads
    assert not two.leads
    drained(two)


def test_keys_are_rotated_and_expire_at_every_address(twins: tuple[Twin, Twin], database_url: str) -> None:
    one, two = twins
    key = one.ask("POST", "/v1/keys", {"subject": "ann"})[1]
    assert two.ask("GET", "/v1/pools", key=key["secret"])[0] == 200  # the one that stands by knows it from now on
    status, rotated = two.ask("POST", f"/v1/keys/{key['id']}/rotate", {"graceS": 0}, key=key["secret"])
    assert status == 200
    for twin in twins:
        assert twin.ask("GET", "/v1/pools", key=key["secret"])[1].get("code") == "auth.expired"
        assert twin.ask("GET", "/v1/pools", key=rotated["secret"])[0] == 200
    other = one.ask("POST", "/v1/keys", {"subject": "bob"})[1]
    made = one.ask("POST", "/v1/claims?wait=20s", {"size": 1, "leaseS": 3600, "owner": "user/bob"})[1]
    with psycopg.connect(database_url) as database:
        database.execute("UPDATE access_keys SET expires_at = created_at + 1 WHERE id = %s", [other["id"]])
    for twin in twins:
        assert twin.ask("GET", "/v1/pools", key=other["secret"])[1].get("code") == "auth.expired"
        assert twin.ask("POST", f"/v1/claims/{made['id']}/renew", key=other["secret"])[0] == 200
    assert one.ask("DELETE", f"/v1/claims/{made['id']}?wait=20s")[1]["state"] == "RELEASED"


@pytest.mark.smoke
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_the_other_takes_over(twins: tuple[Twin, Twin], end: signal.Signals) -> None:
    one, two = twins
    held, waiting = claim(one, 16), claim(two, 8, wait="0s")
    status, run = two.ask(
        "POST", "/v1/runs", {"job": {"name": "job", "command": ["sleep", "600"], "workdir": "/tmp", "tasks": 1}}
    )
    assert status == 201, run
    assert one.process is not None
    one.process.send_signal(end)
    until(lambda: two.leads)
    assert two.ask("GET", f"/v1/claims/{held['id']}")[1]["state"] == "READY", "what was given stays given"
    assert two.ask("GET", f"/v1/claims/{waiting['id']}")[1]["state"] == "PENDING"
    two.ask("DELETE", f"/v1/claims/{held['id']}")
    until(lambda: two.ask("GET", f"/v1/claims/{waiting['id']}")[1]["state"] == "READY")
    until(lambda: two.ask("GET", f"/v1/runs/{run['id']}")[1]["state"] == "RUNNING")
    one.process.send_signal(signal.SIGCONT)
    two.ask("POST", f"/v1/runs/{run['id']}/cancel")
    until(lambda: two.ask("GET", f"/v1/runs/{run['id']}")[1]["state"] == "CANCELLED")
    assert not processes_of(run["id"])
    two.ask("DELETE", f"/v1/claims/{waiting['id']}")
    drained(two)


def test_one_that_was_fenced_off_changes_nothing_and_serves_on(twins: tuple[Twin, Twin]) -> None:
    one, two = twins
    before = claim(one)
    assert one.process is not None
    one.process.send_signal(signal.SIGSTOP)
    until(lambda: two.leads)
    made = claim(two, 8)
    one.process.send_signal(signal.SIGCONT)
    until(lambda: "leadership.lost" in one.log())
    # What it had in memory is worth nothing: it asks the other, and its partitions are not taken for strays.
    assert one.ask("GET", f"/v1/claims/{made['id']}")[1]["state"] == "READY"
    assert claim(one, 1)["state"] == "READY"
    assert "partition.stray_found" not in one.log()
    assert "partition.stray_found" not in two.log()
    two.kill()
    until(lambda: one.leads)
    assert {item["id"] for item in one.ask("GET", "/v1/claims")[1]["items"]} >= {made["id"], before["id"]}
    for ident in (made["id"], before["id"]):
        assert one.ask("GET", f"/v1/claims/{ident}")[1]["state"] == "READY"


def test_a_request_in_the_change_of_leaders_is_answered(twins: tuple[Twin, Twin]) -> None:
    """Clients of the other address, with idempotency keys, see no error at all."""
    one, two = twins
    answers: list[tuple[str, int, Any]] = []
    halt = threading.Event()

    def work(number: int) -> None:
        turn = 0
        while not halt.is_set():
            turn += 1
            key = f"{number}-{turn}"
            status, body = two.ask("POST", "/v1/claims", {"size": 1}, headers={"Idempotency-Key": key})
            answers.append((key, status, body))
            if status == 201:
                answers.append((key, *two.ask("DELETE", f"/v1/claims/{body['id']}")))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    until(lambda: len(answers) > 50)
    one.kill()
    until(lambda: two.leads)
    n_answers = len(answers)
    until(lambda: len(answers) > n_answers + 50)
    halt.set()
    for worker in workers:
        worker.join()
    assert [answer for answer in answers if answer[1] not in (200, 201)] == []
    made = {body["id"] for _, status, body in answers if status == 201}
    assert len(made) == len({key for key, status, _ in answers if status == 201}), "one claim a key"
    drained(two)


def test_back_and_forth_under_load(twins: tuple[Twin, Twin]) -> None:
    """Leaders are killed and started again and again; nothing is lost, leaked or used twice."""
    pair = list(twins)
    keys: dict[str, str] = {}
    for round_number in range(6):
        leader, other = pair if pair[0].leads else pair[::-1]
        for number in range(8):
            key = f"{round_number}-{number}"
            keys[key] = claim(other, 1, key=key, wait="0s")["id"]
        assert leader.process is not None
        if round_number % 2:
            leader.process.send_signal(signal.SIGSTOP)
            until(partial(getattr, other, "leads"))
        leader.kill()
        until(partial(getattr, other, "leads"))
        for key, ident in keys.items():
            assert claim(other, 1, key=key, wait="0s")["id"] == ident
        leader.start()
        for ident in list(keys.values())[: len(keys) // 2]:
            other.ask("DELETE", f"/v1/claims/{ident}")
    for ident in keys.values():
        assert pair[0].ask("DELETE", f"/v1/claims/{ident}")[0] == 200
    drained(pair[1])


def test_the_database_goes_away_for_a_while(twins: tuple[Twin, Twin], postgresql: Any, database_name: str) -> None:
    one, two = twins
    made = claim(one, 4)
    postgresql.crash()
    until(lambda: "leadership.lost" in one.log())
    status, body = one.ask("POST", "/v1/claims", {"size": 1})
    assert (status, body["retryable"]) == (503, True), body
    postgresql.start()
    until(lambda: one.leads or two.leads)
    assert two.ask("GET", f"/v1/claims/{made['id']}")[1]["state"] == "READY"
    assert claim(one, 4)["state"] == "READY"


def test_a_database_that_hangs_keeps_no_controller_from_ending(twins: tuple[Twin, Twin], postgresql: Any) -> None:
    one, two = twins
    claim(one, 4)
    postgresql.hang()
    try:
        waiting = threading.Thread(target=ask_in_vain, args=(one,))  # its commit is under way for ever
        waiting.start()
        for twin in (two, one):
            assert twin.process is not None
            twin.process.terminate()
        for twin in (two, one):
            assert twin.process is not None
            assert twin.process.wait(patient(ENDS_S)) == 0
        waiting.join()
    finally:
        postgresql.hang(on=False)


def test_one_that_takes_long_to_begin_goes_on_leading(twins: tuple[Twin, Twin], database_url: str) -> None:
    one, two = twins
    made = claim(one, 4)
    with psycopg.connect(database_url) as busy:
        busy.execute("LOCK TABLE claims IN ACCESS EXCLUSIVE MODE")
        one.kill()
        until(lambda: two.ask("GET", "/healthz")[0] == 200)
        time.sleep(SILENCE_S * 1.6)  # longer than a leader may be silent; what it does meanwhile is the point
        busy.rollback()
    until(lambda: two.leads)
    assert two.ask("GET", f"/v1/claims/{made['id']}")[1]["state"] == "READY"
    assert "leadership.lost" not in two.log()
    assert "leadership.failed" not in two.log()


def test_the_lock_and_the_fence_are_the_databases(twins: tuple[Twin, Twin], database_url: str) -> None:
    """A write under an old epoch is refused, even without another controller."""
    one, _ = twins
    made = claim(one)
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        ).fetchone() == (1,)
        connection.execute("UPDATE installation SET epoch = epoch + 1, holder = 'an intruder'")
    status, body = one.ask("POST", "/v1/claims", {"size": 1})
    assert status == 503, body
    until(lambda: "leadership.lost" in one.log())
    # A GET may still be answered by the leader that stops: only a write shows that one leads again.
    headers = {"Idempotency-Key": "after-the-loss"}
    until(lambda: one.ask("POST", "/v1/claims?wait=20s", {"size": 1}, headers=headers)[1].get("state") == "READY")
    assert one.ask("GET", f"/v1/claims/{made['id']}")[1]["state"] == "READY"


def test_a_folder_that_is_not_the_installations_is_refused(twins: tuple[Twin, Twin], tmp_path: Path) -> None:
    one, _ = twins
    (tmp_path / "three").mkdir()
    third = Twin(tmp_path / "three", POOLS, database=one.database, shared=tmp_path / "elsewhere")
    with pytest.raises(AssertionError, match="used another shared folder"):
        third.start()
