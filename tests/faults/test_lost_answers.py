"""A network that drops answers and sends requests twice, and clients that disappear."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checking import Seen, left, settle
from tests.faults.story import job
from tests.faults.victims import POLL_S, UNKNOWN_YET, Forge, Victim, victim
from tests.waiting import patient, until

N_CLAIMS = 40


class Network(threading.Thread):
    """Stands between a client and a controller: one request a connection, treated as ``mode`` says.

    ``drop``: the request arrives, its answer does not. ``twice``: it arrives twice at once; one answer comes back.
    ``half``: only half of the request arrives. ``good``: nothing is done to it.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.mode = "good"
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._carry, args=(client, self.mode), daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._server.close()

    def _carry(self, client: socket.socket, mode: str) -> None:
        with client, contextlib.ExitStack() as stack:
            request = _read_request(client)
            to = [stack.enter_context(self._connect()) for _ in range(2 if mode == "twice" else 1)]
            for server in to:
                server.sendall(request if mode != "half" else request[: len(request) // 2])
            if mode == "half":
                return
            answers = [_read_all(server) for server in to]  # until the controller has served it
            if mode != "drop":
                client.sendall(answers[-1])

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._to), timeout=patient(30))


def _read_request(client: socket.socket) -> bytes:
    content = b""
    while b"\r\n\r\n" not in content:
        content += client.recv(65536)
    head, _, body = content.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += client.recv(65536)
    return head + b"\r\nConnection: close\r\n\r\n" + body


def _read_all(server: socket.socket) -> bytes:
    parts = []
    while part := server.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.fixture
def v(forge: Forge, template: Path, tmp_path: Path) -> Iterator[Victim]:
    with victim(tmp_path / "v", forge, template) as made:
        made.start()
        yield made


@contextlib.contextmanager
def network(v: Victim) -> Iterator[Network]:
    """A network in front of the controller; ``v.ask`` goes through it."""
    made = Network(v.port)
    direct, v.port = v.port, made.port
    made.start()
    try:
        yield made
    finally:
        v.port = direct
        made.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["drop", "twice", "half"])
def test_a_request_that_is_repeated_is_done_once(mode: str, v: Victim) -> None:
    with network(v) as between:
        made = []
        for number in range(N_CLAIMS):
            body: dict[str, Any] = {"size": 1, "pool": "quick" if number % 2 else "slow"}
            path, key = "/v1/claims", f"key-{number}"
            if number % 10 == 0:
                path, body = "/v1/runs", job(f"job-{number}", "echo up >> started", v.folder)
            between.mode = mode
            headers = {"Idempotency-Key": key}
            try:
                v.ask("POST", path, body, headers=headers)
                assert mode == "twice"
            except UNKNOWN_YET:
                assert mode != "twice"
            between.mode = "good"
            status, answer = v.ask("POST", path, body, headers=headers)
            assert status in (200, 201), answer
            made.append((path, answer["id"]))
        between.mode = mode
        for path, id_ in made:
            if path == "/v1/claims":
                with contextlib.suppress(*UNKNOWN_YET):
                    v.ask("DELETE", f"{path}/{id_}")
        between.mode = "good"
        for path, id_ in made:
            if path == "/v1/claims":
                assert v.ask("DELETE", f"{path}/{id_}?wait=20s")[0] == 200
            else:
                assert v.ask("GET", f"{path}/{id_}?wait=20s")[1]["exitCode"] == 0
    settle(v, left)
    seen = Seen.of(v.data / "moorings.db")
    assert (len(seen.claims), len(seen.runs)) == (N_CLAIMS, N_CLAIMS // 10), "none was made twice"
    assert (v.folder / "started").read_text() == "up\n" * (N_CLAIMS // 10)


def test_clients_that_disappear_while_they_wait(v: Victim) -> None:
    """Their claims wait on; those with a lease go when nobody renews it; no seat and no connection stays taken."""
    holder = v.insist("POST", "/v1/claims?wait=20s", {"size": 16, "pool": "quick"}, key="holder")
    callers = []
    for number in range(30):
        body = {"size": 16, "pool": "quick", **({"leaseS": 5} if number % 2 else {})}
        connection = http.client.HTTPConnection("127.0.0.1", v.port)
        headers = {"Authorization": f"Bearer {v.key}", "Content-Type": "application/json"}
        headers["Idempotency-Key"] = f"gone-{number}"
        connection.request("POST", "/v1/claims?wait=600s", json.dumps(body), headers)
        callers.append(connection)
    until(lambda: len(v.everything("claims?state=PENDING")) == 30)
    for connection in callers:
        connection.close()
    until(lambda: len(v.everything("claims?state=PENDING")) == 15, 30)
    assert all("leaseS" not in claim for claim in v.everything("claims?state=PENDING"))
    again = v.insist("POST", "/v1/claims", {"size": 16, "pool": "quick"}, key="gone-0")
    assert (again["state"], again["position"]) == ("PENDING", 1), "it kept its place"
    until(lambda: _connections(v.pid) <= 1)
    for claim in v.everything("claims"):
        v.insist("DELETE", f"/v1/claims/{claim['id']}")
    v.insist("GET", f"/v1/claims/{holder['id']}?wait=20s&for=ENDED")
    settle(v, left)


def test_a_granted_claim_whose_owner_has_gone(v: Victim) -> None:
    """The partition of a lease that nobody renews is given to who waits."""
    leased = v.insist("POST", "/v1/claims?wait=20s", {"size": 16, "pool": "slow", "leaseS": 5}, key="leased")
    assert leased["state"] == "READY"
    waiting = v.insist("POST", "/v1/claims", {"size": 16, "pool": "slow"}, key="waiting")
    assert v.insist("GET", f"/v1/claims/{waiting['id']}?wait=30s")["state"] == "READY"
    assert [e["name"] for e in v.everything(f"events?claim={leased['id']}&name=claim.*")] == [
        *("claim.created", "claim.granted", "claim.ready", "claim.lapsed", "claim.releasing", "claim.released"),
    ]
    v.insist("DELETE", f"/v1/claims/{waiting['id']}?wait=20s")
    settle(v, left)


def test_one_key_cannot_take_all_seats(v: Victim) -> None:
    """Answers that wait are bounded for each access key: others are served meanwhile."""
    v.insist("POST", "/v1/claims?wait=20s", {"size": 16, "pool": "quick"}, key="holder")
    waiting = v.insist("POST", "/v1/claims", {"size": 16, "pool": "quick"}, key="waiting")
    other = v.insist("POST", "/v1/keys", {"subject": "other", "role": "viewer"})["secret"]
    path = f"/v1/claims/{waiting['id']}?wait=600s"
    sockets = [_send(v, path) for _ in range(600)]
    try:
        refused = _answered(sockets, 88)
        assert len(refused) == 88, "512 seats a key"
        assert all(b"controller.busy" in text for text in refused)
        assert v.ask("GET", f"/v1/claims/{waiting['id']}?wait=50ms", key=other)[0] == 200
    finally:
        for each in sockets:
            each.close()
    until(lambda: v.ask("GET", f"/v1/claims/{waiting['id']}?wait=50ms")[0] == 200)


def test_few_file_descriptors(forge: Forge, template: Path, tmp_path: Path) -> None:
    """Connections beyond what the process may have open are turned away; it goes on serving the others, and runs."""
    with victim(tmp_path / "few", forge, template) as few:
        few.start(limits={"RLIMIT_NOFILE": 320})
        held = [socket.create_connection(("127.0.0.1", few.port)) for _ in range(50)]
        turned_away = [each for each in held[:64] if _closed(each)]
        assert len(held) - len(turned_away) >= 48
        more = [socket.create_connection(("127.0.0.1", few.port)) for _ in range(300)]
        until(lambda: sum(map(_closed, more)) >= 250)
        for each in [*held, *more]:
            each.close()
        run = few.insist("POST", "/v1/runs", job("few", "exit 3", few.folder), key="run")
        assert few.insist("GET", f"/v1/runs/{run['id']}?wait=20s")["exitCode"] == 3
        settle(few, left)


def _send(v: Victim, path: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", v.port))
    made.sendall(f"GET {path} HTTP/1.1\r\nHost: moorings\r\nAuthorization: Bearer {v.key}\r\n\r\n".encode())
    return made


def _answered(sockets: list[socket.socket], n_wanted: int) -> list[bytes]:
    """What came on those sockets on which something came, once it came on so many; a moment longer for more."""
    give_up = time.monotonic() + patient(30)
    while len(ready := select.select(sockets, [], [], 0.3)[0]) < n_wanted and time.monotonic() < give_up:
        time.sleep(POLL_S)
    return [each.recv(65536) for each in ready]


def _closed(each: socket.socket) -> bool:
    """Whether the other side has closed it."""
    if not select.select([each], [], [], 0)[0]:
        return False
    try:
        return each.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


def _connections(pid: int) -> int:
    """How many connections a process has open, its listening socket not counted."""
    sockets = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets += str(fd.readlink()).startswith("socket:")
    return sockets - 3  # it listens on one, and its event loop wakes itself through a pair
