"""Jobs are handed in at the root daemon's socket; a daemon that is busy, away or says no is told of."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from moorings.client import spool
from moorings.core.model.errors import MooringsError

ENTRY = "1000-0123456789abcdef0123456789abcdef"


class Daemon:
    """Answers one connection after the other; None: closes it unanswered."""

    def __init__(self, path: Path, answers: Sequence[object]) -> None:
        self.path, self.seen = path, list[object]()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve, args=(answers,))
        self._thread.start()

    def _serve(self, answers: Sequence[object]) -> None:
        for answer in answers:
            connected, _ = self._listening.accept()
            with connected:
                if answer is None:
                    continue
                received = b""
                while part := connected.recv(1 << 16):
                    received += part
                self.seen.append(json.loads(received))
                connected.sendall(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def close(self) -> None:
        self._thread.join()
        self._listening.close()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spool, "BUSY_S", 0.001)
    return tmp_path / "submit"


@pytest.fixture
def answered(path: Path, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    made = Daemon(path, request.param)
    yield made
    made.close()


def test_a_daemon_that_has_not_accepted_others_is_asked_again(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as first:
        listening.bind(str(path))
        listening.listen(0)
        first.connect(str(path))
        with pytest.raises(MooringsError) as caught:
            spool.hand_in(path, {})
    assert "too many other requests" in caught.value.detail


def test_the_socket_is_beside_the_controllers_folder() -> None:
    assert spool.submit_socket("/run/moorings/controller/api") == Path("/run/moorings/submit")


@pytest.mark.parametrize("answered", [[None, None, {"entry": ENTRY}]], indirect=True)
def test_a_busy_daemon_is_asked_again(answered: Daemon) -> None:
    assert spool.hand_in(answered.path, {"command": ["id"]}) == ENTRY
    assert answered.seen == [{"op": "spool", "job": {"command": ["id"]}}]


@pytest.mark.parametrize("answered", [[{"error": "daemon.busy"}, {"entry": ENTRY}]], indirect=True)
def test_a_daemon_that_says_that_it_is_busy_is_asked_again(answered: Daemon) -> None:
    assert spool.hand_in(answered.path, {}) == ENTRY


@pytest.mark.parametrize("answered", [[{"entry": ENTRY, "state": "ABSENT"}]], indirect=True)
def test_a_job_is_taken_back(answered: Daemon) -> None:
    spool.withdraw(answered.path, ENTRY)
    assert answered.seen == [{"op": "withdraw", "entry": ENTRY}]


@pytest.mark.parametrize("answered", [[{"error": "spool.full", "detail": "it is full", "hint": "wait"}]], indirect=True)
def test_a_refusal_is_the_daemons_own_sentence(answered: Daemon) -> None:
    with pytest.raises(MooringsError) as refused:
        spool.hand_in(answered.path, {})
    assert (refused.value.code, refused.value.detail, refused.value.hint) == ("spool.refused", "it is full", "wait")


@pytest.mark.parametrize("answered", [[None] * spool.BUSY_TRIES], indirect=True)
def test_one_that_stays_busy_is_given_up(answered: Daemon) -> None:
    with pytest.raises(MooringsError) as error:
        spool.hand_in(answered.path, {})
    assert (error.value.code, error.value.retryable) == ("engine.unavailable", True)


@pytest.mark.parametrize("answered", [[b"no JSON"]], indirect=True)
def test_what_is_no_answer_is_an_error(answered: Daemon) -> None:
    with pytest.raises(MooringsError) as error:
        spool.hand_in(answered.path, {})
    assert error.value.code == "engine.unavailable"


def test_a_daemon_that_is_away_is_an_error_that_says_where(path: Path) -> None:
    with pytest.raises(MooringsError) as error:
        spool.hand_in(path, {})
    assert (error.value.code, str(path) in error.value.detail) == ("engine.unavailable", True)
    assert "moor up --system" in error.value.hint
