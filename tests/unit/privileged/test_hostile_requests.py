"""Whatever is sent to the root daemon, it answers or closes, and keeps nothing of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorings.privileged import connections
from moorings.privileged.connections import REQUEST_BYTES_MAX, answer_request
from moorings.privileged.daemon import RootDaemon
from tests.unit.privileged.rig import ANN, CONTROLLER, NEEDS_ROOT, RootRig
from tests.waiting import patient, until

pytestmark = NEEDS_ROOT
NAMES = ("op", "job", "entry", "attempt", "order", "limits", "entries", "record", "name", "signal", "cpus", "run")
WORDS = ("spool", "withdraw", "start", "ask", "kill", "status", "forget", "cancel", f"{ANN}-{'0' * 32}", "../x")
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=15,
)
REQUESTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8).flatmap(
    lambda body: st.sampled_from(WORDS).map(lambda op: json.dumps(body | {"op": op}).encode())
)
SENT = REQUESTS | VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RootRig]:
    made = RootRig(tmp_path, f"moorings-test-{os.getpid()}", ("/bin/false",))
    made.start()
    yield made
    made.end()


@pytest.fixture
def daemon(tmp_path: Path, rig: RootRig) -> RootDaemon:
    folder = tmp_path / "other"
    folder.mkdir()
    return RootDaemon(folder, rig.tree(), ("/bin/false",), (CONTROLLER, CONTROLLER), rig.account, lambda _: None)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=SENT)
def test_every_request_has_an_answer(daemon: RootDaemon, sent: bytes) -> None:
    operations: dict[object, connections.Operation] = {
        **daemon.operations_of_person,
        **daemon.operations_of_controller,
    }
    answer = answer_request(sent, ANN, operations)
    assert json.loads(json.dumps(answer)) == answer or "states" in answer


def kept(rig: RootRig) -> dict[str, object]:
    """What a daemon holds: descriptors, children, files."""
    children = Path(f"/proc/{rig.pid}/task/{rig.pid}/children").read_text().split()
    files = {str(path) for path in rig.folder.rglob("*") if path.parent.parent != rig.folder / "spool"}
    return {"open": len(os.listdir(f"/proc/{rig.pid}/fd")), "children": children, "files": files}  # noqa: PTH208


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(sent=SENT, to=st.sampled_from(("submit", "control")), ends=st.sampled_from(("half", "close", "read")))
def send_anything(rig: RootRig, sent: bytes, to: str, ends: str) -> None:
    with rig.connect(to) as connected:
        connected.settimeout(patient(30))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connected.sendall(sent)
            if ends == "close":
                return
            if ends == "read":
                connected.shutdown(socket.SHUT_WR)
            while connected.recv(1 << 16):
                pass


def test_the_daemon_keeps_nothing_of_what_was_sent(rig: RootRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.kill()
    monkeypatch.setattr(connections, "RECEIVE_S_MAX", 0.05)  # of requests that are never complete
    rig.start()
    rig.ask(CONTROLLER, "control", {"op": "status"})
    before = kept(rig)
    send_anything(rig)
    with rig.connect("submit") as much, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        much.settimeout(patient(30))
        much.sendall(b" " * (REQUEST_BYTES_MAX + (1 << 20)))
    assert rig.ask(CONTROLLER, "control", {"op": "status"})["states"] == []
    until(lambda: kept(rig) == before, 30, what=lambda: f"{kept(rig)} instead of {before}")
