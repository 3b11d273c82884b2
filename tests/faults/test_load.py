"""Several clients at once, while the controller is killed again and again: everything drains to nothing in the end."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checking import broken_laws, events_of, left, settle
from tests.faults.story import job
from tests.faults.victims import POLL_S, UNKNOWN_YET, Forge, Victim, victim
from tests.faults.watching import Watcher
from tests.waiting import patient, until

KILLS = 60
CLIENTS = 6
SEED = 20261121


class Client(threading.Thread):
    """Makes claims and runs, each with a key, and repeats each request until it is answered; releases most of them."""

    def __init__(self, v: Victim, number: int) -> None:
        super().__init__(daemon=True)
        self._v = v
        self._number = number
        self._chance = random.Random(SEED + number)
        self.halt = threading.Event()
        self.wrong: list[object] = []
        self.n_answers = 0
        self.made: dict[str, tuple[str, str, dict[str, Any]]] = {}
        self.codes: dict[str, int] = {}

    def run(self) -> None:
        turn = 0
        while not self.halt.is_set():
            turn += 1
            try:
                self._one(f"{self._number}-{turn}")
            except BaseException as error:
                self.wrong.append(repr(error))
                return

    def _one(self, key: str) -> None:
        pool = self._chance.choice(["quick", "slow"])
        if self._chance.random() < 0.2:
            code = self._chance.choice([0, 3])
            body = job(f"job-{key}", f"echo {key} >> started; exit {code}", self._v.folder)
            made = self._insist("POST", "/v1/runs", body, key)
            self.made[key] = ("runs", made["id"], body)
            self.codes[made["id"]] = code
            return
        body = {"size": self._chance.choice([1, 1, 2, 4, 16]), "pool": pool}
        made = self._insist("POST", "/v1/claims?wait=30ms", body, key)
        self.made[key] = ("claims", made["id"], body)
        if self._chance.random() < 0.95:
            self._insist("DELETE", f"/v1/claims/{made['id']}", None, None)

    def _insist(self, method: str, path: str, body: object, key: str | None) -> dict[str, Any]:
        while True:
            try:
                status, answer = self._v.ask(method, path, body, headers={"Idempotency-Key": key} if key else {})
            except UNKNOWN_YET:
                time.sleep(POLL_S)
                continue
            self.n_answers += 1
            if status in (200, 201):
                found: dict[str, Any] = answer
                return found
            assert status == 503, (method, path, status, answer)


def await_load(clients: list[Client], kills: int) -> None:
    """Between any two kills some were served."""
    until(lambda: sum(client.n_answers for client in clients) >= 4 * kills, what="there is no load")


@pytest.mark.slow
def test_it_all_drains_to_nothing(forge: Forge, template: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with victim(tmp_path / "v", forge, template) as v:
        v.start()
        watcher = Watcher(v)
        watcher.start()
        clients = [Client(v, number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for kill in range(KILLS):
            threading.Event().wait(chance.uniform(0.02, 0.6))  # how far the load gets is the point, and left to chance
            await_load(clients, kill)
            v.kill()
            if kill % 5 == 0:
                assert broken_laws(v.data) == []
            v.start()
        for client in clients:
            client.halt.set()
        for client in clients:
            client.join(patient(60))
            assert not client.is_alive()
            assert client.wrong == []
        for client in clients:
            for key, (noun, id_, body) in client.made.items():
                assert v.insist("POST", f"/v1/{noun}", body, key=key)["id"] == id_, "a key gives the same for ever"
        for claim in v.everything("claims"):
            if not claim["owner"].startswith("local/"):
                v.insist("DELETE", f"/v1/claims/{claim['id']}")
        settle(v, left, wait_s=60)
        codes = {id_: code for client in clients for id_, code in client.codes.items()}
        runs = {run["id"]: run for run in v.everything("runs?all=1")}
        assert {id_: run["exitCode"] for id_, run in runs.items()} == codes, "each run's end, once and with its code"
        started = (v.folder / "started").read_text().split()
        assert len(started) == len(set(started)) == len(codes), "each was started once"
        assert watcher.finish(lambda: events_of(v.data)[-1][0]) == events_of(v.data)
