"""The policy in deploy/dbus, on a bus of its own: nobody but root asks systemd to move a process."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import patient, until

POLICY = Path(__file__).parents[3] / "deploy" / "dbus" / "moorings-jobs.conf"
SYSTEMD = Path("/usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf")
NOBODY = 65_534  # a user that D-Bus can look up
NAME, MANAGER = "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root owns systemd's name"),
    pytest.mark.skipif(not shutil.which("dbus-daemon") or not shutil.which("dbus-send"), reason="there is no D-Bus"),
    pytest.mark.skipif(not SYSTEMD.exists(), reason=f"there is no {SYSTEMD}"),
]


def call(serial: int, member: str, signature: str = "", body: bytes = b"") -> bytes:
    """A message to the bus itself (D-Bus specification, message format)."""

    def field(code: int, kind: str, value: str) -> bytes:
        length = struct.pack("<I", len(value)) if kind != "g" else bytes([len(value)])
        return bytes([code, 1]) + kind.encode() + b"\0" + length + value.encode() + b"\0"

    named = [(1, "o", "/org/freedesktop/DBus"), (2, "s", "org.freedesktop.DBus"), (3, "s", member)]
    fields = b""
    for each in [*named, (6, "s", "org.freedesktop.DBus"), *([(8, "g", signature)] if signature else [])]:
        fields += bytes(-len(fields) % 8) + field(*each)
    head = struct.pack("<cBBBIII", b"l", 1, 0, 1, len(body), serial, len(fields)) + fields
    return head + bytes(-len(head) % 8) + body


@pytest.fixture
def bus(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A bus with systemd's policy and perhaps ours, and one who has systemd's name and answers nothing."""
    for above in (tmp_path, *tmp_path.parents):
        above.chmod(above.stat().st_mode | 0o011)
    path = tmp_path / "bus"
    files = "".join(f"<include>{each}</include>" for each in (SYSTEMD, POLICY)[: request.param])
    config = tmp_path / "bus.conf"
    config.write_text(
        f"<busconfig><type>system</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>"
        '<policy context="default"><allow user="*"/><deny own="*"/><deny send_type="method_call"/>'
        '<allow send_type="error"/><allow send_type="method_return"/><allow send_type="signal"/>'
        '<allow receive_type="method_call"/><allow receive_type="method_return"/><allow receive_type="signal"/>'
        '<allow receive_type="error"/><allow send_destination="org.freedesktop.DBus"/></policy>'
        f"{files}</busconfig>"
    )
    with subprocess.Popen(["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"]) as daemon:
        try:
            with owned(path):
                yield str(path)
        finally:
            daemon.terminate()


@contextlib.contextmanager
def owned(path: Path) -> Iterator[None]:
    """Have systemd's name on a bus."""
    until(path.exists)
    with socket.socket(socket.AF_UNIX) as owner:
        owner.connect(str(path))
        owner.sendall(b"\0AUTH EXTERNAL " + b"0".hex().encode() + b"\r\n")
        assert owner.recv(1000).startswith(b"OK ")
        name = struct.pack("<I", len(NAME)) + NAME.encode() + b"\0"
        name += bytes(-len(name) % 4) + struct.pack("<I", 4)
        owner.sendall(b"BEGIN\r\n" + call(1, "Hello") + call(2, "RequestName", "su", name))
        reader = threading.Thread(target=lambda: deque(iter_bytes(owner), maxlen=0))
        reader.start()
        try:
            asked = (str(path), 0, "org.freedesktop.DBus", "GetNameOwner", f"string:{NAME}")
            until(lambda: sent(*asked) == "", what=lambda: sent(*asked))
            yield
        finally:
            owner.shutdown(socket.SHUT_RDWR)
            reader.join()


def iter_bytes(connected: socket.socket) -> Iterator[int]:
    while part := connected.recv(1 << 16):
        yield from part


def sent(path: str, uid: int, interface: str, member: str, *words: str) -> str:
    """What the bus says to a call of a user; empty: it is passed on."""
    to = NAME if interface.startswith(NAME) else "org.freedesktop.DBus"
    command = ["dbus-send", f"--bus=unix:path={path}", "--print-reply", "--reply-timeout=300", f"--dest={to}"]
    done = subprocess.run(
        [*command, f"/{to.replace('.', '/')}", f"{interface}.{member}", *words],
        user=uid,
        capture_output=True,
        text=True,
        timeout=patient(30),
        check=False,
    )
    return "refused" if "AccessDenied" in done.stderr else "" if "NoReply" in done.stderr else done.stderr


MOVES = [
    (MANAGER, "AttachProcessesToUnit"),
    (f"{NAME}.Scope", "AttachProcesses"),
    (f"{NAME}.Service", "AttachProcesses"),
]


@pytest.mark.parametrize("bus", [1], indirect=True)
def test_systemd_lets_everybody_ask_for_a_move(bus: str) -> None:
    assert [sent(bus, NOBODY, *move) for move in MOVES] == [""] * 3


@pytest.mark.parametrize("bus", [2], indirect=True)
def test_nobody_but_root_asks_for_a_move(bus: str) -> None:
    assert [sent(bus, NOBODY, *move) for move in MOVES] == ["refused"] * 3
    assert sent(bus, NOBODY, MANAGER, "GetUnit", "string:x") == ""
    assert [sent(bus, 0, *move) for move in MOVES] == [""] * 3
