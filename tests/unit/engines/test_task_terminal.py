"""The terminal of a task: who sees what, and for how long it waits for anybody."""

import os
import socket
import time

import pytest

from moorings.engines import task_terminal
from moorings.engines.channels import ClientChannel
from moorings.engines.task_terminal import SCROLLBACK_BYTES_MAX, TaskTerminal, open_terminal
from moorings.wire.frames import FrameKind, FrameReader, WindowSize
from tests.waiting import until


class Rig:
    """A terminal, its slave side and its log."""

    def __init__(self, folder):
        self.log = folder / "log"
        master, self.slave = open_terminal(WindowSize())
        os.set_blocking(self.slave, False)
        self.terminal = TaskTerminal(master, os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        self.theirs = []

    def attach(self):
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.theirs.append(theirs)
        client = ClientChannel(ours)
        self.terminal.attach(client, WindowSize(10, 20))
        return client, theirs

    def has_logged(self, text):
        self.terminal.take_output()
        return self.log.read_bytes().endswith(text)

    def print(self, text):
        """Write, and pass on what is written, until all is."""
        rest = text.encode()
        while rest:
            try:
                rest = rest[os.write(self.slave, rest) :]
            except BlockingIOError:
                self.terminal.take_output()
        last = text.encode().replace(b"\n", b"\r\n")[-40:]
        until(lambda: self.has_logged(last))


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    os.close(made.slave)
    for theirs in made.theirs:
        theirs.close()
    made.terminal.close(0)


def shown(theirs):
    found = b""
    reader = FrameReader()
    try:
        while chunk := theirs.recv(1 << 20):
            found += b"".join(content for kind, content in reader.feed(chunk) if kind is FrameKind.OUTPUT)
    except BlockingIOError:
        pass
    return found


def test_who_attaches_later_sees_the_last_output_from_a_line_on(rig):
    rig.print("".join(f"line {number}\n" for number in range(20_000)))
    client, theirs = rig.attach()
    seen = shown(theirs)
    client.flush()
    seen += shown(theirs)
    assert seen.startswith(b"line ")
    assert seen.endswith(b"line 19999\r\n")
    assert SCROLLBACK_BYTES_MAX - 20 < len(seen) <= SCROLLBACK_BYTES_MAX
    client.close()


def test_time_unattended_begins_with_the_last_client_that_leaves(rig):
    assert rig.terminal.unattended_s is not None
    (one, _), (other, _) = rig.attach(), rig.attach()
    assert rig.terminal.unattended_s is None
    for client in (one, one):  # twice is once
        rig.terminal.detach(client)
        assert rig.terminal.unattended_s is None
    rig.terminal.detach(other)
    assert rig.terminal.unattended_s is not None
    one.close()
    other.close()


def test_client_that_takes_nothing_stops_the_program_for_a_time(rig, monkeypatch):
    client, theirs = rig.attach()
    while rig.terminal.takes_output:
        client.send(FrameKind.OUTPUT, b"x" * 60_000)
    assert list(rig.terminal.stalled_clients()) == []
    later = time.monotonic() + task_terminal.STALLED_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert list(rig.terminal.stalled_clients()) == [client]
    shown(theirs)
    client.flush()
    assert list(rig.terminal.stalled_clients()) == []  # it has taken some
    assert rig.terminal.takes_output
    client.close()
