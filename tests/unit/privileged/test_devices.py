"""A process that has a device open is found, however it came by the descriptor."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from moorings.privileged.devices import find_device_holders

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices, and looks at all processes")

RECEIVES = """
import os, socket, sys
os.setresuid(61_001, 61_001, 61_001)
os.write(1, b"here")
kept = socket.recv_fds(socket.socket(fileno=int(sys.argv[1])), 1, 1)
os.write(1, b"took")
sys.stdin.read()
"""


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A node of the device that a file of a running job would be: /dev/zero by another name."""
    path = tmp_path / "accelerator"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        path.open("rb").close()
    except OSError:
        pytest.skip("no device can be made and opened here")
    return path


def test_a_descriptor_that_was_passed_on_is_found(device: Path) -> None:
    mine, theirs = socket.socketpair()
    words = [sys.executable, "-I", "-S", "-c", RECEIVES, str(theirs.fileno())]
    with (
        mine,
        theirs,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=[theirs.fileno()]
        ) as other,
    ):
        assert other.stdout is not None
        assert other.stdout.read(4) == b"here"
        number = device.stat().st_rdev
        assert other.pid not in {each.pid for each in find_device_holders([number])}
        with device.open("rb") as opened:
            socket.send_fds(mine, [b"x"], [opened.fileno()])
            assert os.getpid() in {each.pid for each in find_device_holders([number])}
        assert other.stdout.read(4) == b"took"
        found = {each.pid: each.uid for each in find_device_holders([number])}
        assert found.get(other.pid) == 61_001
        assert os.getpid() not in found
        assert other.pid not in {each.pid for each in find_device_holders([number], inside=[other.pid])}
        assert other.pid not in {each.pid for each in find_device_holders([os.makedev(1, 250)])}
