"""Frames: what is sent arrives, and what is none, or too much, is refused before memory is taken for it."""

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moorings.appliance.execution.connections import ServerAddress, ServerConnection, ServerConnections
from moorings.appliance.execution.frames import FrameError, body_bytes_max, receive_frame, send_frame
from moorings.appliance.execution.rendezvous import FILE_NAME, connect_servers, weight_servers
from moorings.core.model.errors import MooringsError
from tests.waiting import patient

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        right.settimeout(patient(20))
        yield left, right


def framed(head: bytes, body: bytes = b"", *, magic: bytes = b"MWF2", claimed: int | None = None) -> bytes:
    return struct.pack("!4sIQ", magic, len(head), len(body) if claimed is None else claimed) + head + body


def test_arrays_arrive_as_they_were_sent(pair: Pair):
    left, right = pair
    arrays = {
        "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
        "turned": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "number": np.float32(2.5) * np.ones((), np.float32),
        "nothing": np.zeros((0, 3), np.float32),
    }
    send_frame(left, {"op": "x", "n": 7}, arrays)
    shapes = {name: array.shape for name, array in arrays.items()}
    frame = receive_frame(right, body_bytes_max(shapes))
    assert frame is not None
    assert frame.head == {"op": "x", "n": 7}
    for name, array in arrays.items():
        np.testing.assert_array_equal(frame.arrays[name], array)
        assert frame.arrays[name].shape == array.shape


def test_a_peer_that_closes_between_frames_is_no_error(pair: Pair):
    left, right = pair
    send_frame(left, {"op": "bye"})
    left.close()
    assert receive_frame(right, 10) is not None
    assert receive_frame(right, 10) is None


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "is no frame"),
        (framed(b"{}", claimed=1 << 40), "at most 65536 and 1000 bytes|at most 65536 and 1000"),
        (struct.pack("!4sIQ", b"MWF2", 1 << 30, 0), "at most 65536"),
        (framed(b"{}"), "head of a frame"),
        (framed(b"[1]"), "head of a frame"),
        (framed(b"[" * 60_000), "head of a frame"),
        (framed(b'{"arrays": [1]}'), "head of a frame"),
        (framed(b'{"arrays": ["w"]}', bytes(12)), "gives one no shape"),
        (framed(b'{"arrays": [["w"]]}', bytes(12)), "gives one no shape"),
        (framed(b'{"arrays": [["w", [-3]]]}', bytes(12)), "gives one no shape"),
        (framed(b'{"arrays": [["w", [3.0]]]}', bytes(12)), "gives one no shape"),
        (framed(b'{"arrays": [["w", [true, 3]]]}', bytes(12)), "gives one no shape"),
        (framed(b'{"arrays": [["w", [' + b"1," * 32 + b"3]]]}", bytes(12)), "gives one no shape"),
        (framed(b'{"arrays": [["w", [3]]]}', bytes(11)), "not whole"),
        (framed(b'{"arrays": []}', bytes(12)), "more in it"),
        (framed(b'{"arrays": [["w", [3]], ["w", [3]]]}', bytes(24)), "more in it"),
        (framed(b'{"arrays": []}')[:-3], "in the middle of a frame"),
    ],
)
def test_what_is_no_frame_is_refused(pair: Pair, sent: bytes, why: str):
    left, right = pair

    def speak() -> None:
        with contextlib.suppress(OSError):
            left.sendall(sent)
            left.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=speak)
    sender.start()
    with pytest.raises(FrameError, match=why):
        receive_frame(right, 1000)
    sender.join()


def test_a_shape_that_lies_takes_no_memory(pair: Pair):
    pair[0].sendall(framed(json.dumps({"arrays": [["w", [1000000, 1000000]]]}).encode(), bytes(12)))
    with pytest.raises(FrameError, match="not whole"):
        receive_frame(pair[1], 1000)


# A real server

SHAPES = [{"w": (2, 3)}]


def connect_one(place: ServerAddress, token: str, system: int = 0) -> ServerConnection:
    return ServerConnection.connect(ServerAddress(place.path, token), 0, system, 10_000, lambda _server: "")


def test_a_server_lets_in_nobody_without_its_token_and_goes_on(tmp_path: Path):
    with weight_servers([[0]], SHAPES, 1, None, tmp_path) as servers:
        [place] = servers.places
        stranger = connect_one(place, "0" * 32)
        with pytest.raises(MooringsError, match="has gone"):
            stranger.call("weights", layer=0, step=0)
        stranger.close()
        with socket.socket(socket.AF_UNIX) as browser:
            browser.connect(str(place.path))
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 4000)
            browser.settimeout(patient(20))
            with contextlib.suppress(ConnectionResetError):
                assert browser.recv(1) == b""
        link = connect_one(place, place.token)
        link.call("put", {"w": np.ones((2, 3), np.float32)}, layer=0, part="w")
        link.call("begin", step=4)
        link.send("weights", layer=0, step=4)
        np.testing.assert_array_equal(link.receive().arrays["w"], np.ones((2, 3)))
        link.close()


def test_its_folder_and_sockets_are_the_users_alone(tmp_path: Path):
    with weight_servers([[0]], SHAPES, 1, None, tmp_path) as servers:
        path = servers.places[0].path
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_mode & 0o777 == 0o600
        assert len(str(path)) < 108
    assert not path.parent.exists()


def test_a_frame_larger_than_a_layer_ends_the_talk_and_is_said(tmp_path: Path):
    with weight_servers([[0]], SHAPES, 1, None, tmp_path) as servers:
        link = connect_one(servers.places[0], servers.places[0].token)
        with pytest.raises(MooringsError, match="at most 65536"):
            link.call("put", {"w": np.ones(10_000, np.float32)}, layer=0, part="w")
        link.close()


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"w": np.ones((3, 2), np.float32)}, "other names or shapes"),
        ({"v": np.ones((2, 3), np.float32)}, "other names or shapes"),
        ({}, "other names or shapes"),
    ],
)
def test_weights_of_another_shape_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], why: str):
    with weight_servers([[0]], SHAPES, 1, None, tmp_path) as servers:
        link = connect_one(servers.places[0], servers.places[0].token)
        with pytest.raises(MooringsError, match=why):
            link.call("put", arrays, layer=0, part="w")
        link.close()


def test_only_the_first_system_may_lead(tmp_path: Path):
    with weight_servers([[0]], SHAPES, 2, None, tmp_path) as servers:
        link = connect_one(servers.places[0], servers.places[0].token, system=1)
        with pytest.raises(MooringsError, match="system 1 may not say 'begin'"):
            link.call("begin", step=0)
        link.close()


def test_a_system_that_leaves_without_a_word_is_told_to_all_who_wait(tmp_path: Path):
    with weight_servers([[0]], SHAPES, 2, None, tmp_path) as servers:
        [place] = servers.places
        first, second = connect_one(place, place.token), connect_one(place, place.token, system=1)
        first.send("collect")
        second.close()
        with pytest.raises(MooringsError, match="system 1 has gone"):
            first.receive()
        first.close()


def test_servers_end_with_who_started_them(tmp_path: Path):
    code = """if True:
        import json, os, sys
        from pathlib import Path
        from moorings.appliance.execution.rendezvous import weight_servers
        with weight_servers([[0], []], [{"w": (1,)}], 1, None, Path(sys.argv[1])) as servers:
            servers.publish()
            print(json.dumps([str(servers.places[0].path), *servers.pids]), flush=True)
            os.kill(os.getpid(), 9)  # without a chance to tidy up
    """
    starter = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, check=False, timeout=patient(60)
    )
    assert starter.returncode == -9
    path, *pids = json.loads(starter.stdout)
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([fd], [], [], 20)[0], f"server {pid} lives on"
        os.close(fd)
    assert not Path(path).parent.exists()
    assert list(tmp_path.iterdir()) == []  # nor a file that tells of them


def test_a_server_that_was_not_told_all_removes_its_socket():
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "0.sock"))
        listener.listen()
        command = [sys.executable, "-m", "moorings.appliance.execution.server", str(listener.fileno())]
        subprocess.run(command, input=b'{"token": "', pass_fds=[listener.fileno()], check=True, timeout=patient(60))
    assert not folder.exists()


def test_servers_are_found_until_all_systems_have_come_and_no_longer(tmp_path: Path):
    shares = [[0], []]
    with weight_servers(shares, SHAPES, 2, None, tmp_path) as servers:
        servers.publish()
        notice, sockets = tmp_path / FILE_NAME, servers.places[0].path.parent
        first = ServerConnections(servers.places, shares, SHAPES, 0)
        late: list[ServerConnections] = []
        seen: list[bool] = []

        def check() -> None:  # asked while it waits: the other system comes after a while
            seen.append(notice.exists() and len(list(sockets.iterdir())) == 2)
            if len(seen) == 3:
                late.append(connect_servers(tmp_path, shares, SHAPES, 1, lambda: None))

        servers.wait_for_systems(first, check)
        assert seen[:3] == [True] * 3
        assert not notice.exists()
        assert not sockets.exists()
        assert len(late) == 1
        with pytest.raises(MooringsError, match="found no weight servers"):
            connect_servers(tmp_path, shares, SHAPES, 1, lambda: None, 0.2)
        for links in (first, *late):
            links.close()


def test_a_system_that_came_to_a_half_has_not_come(tmp_path: Path):
    class EnoughError(Exception):
        pass

    with weight_servers([[0]], SHAPES, 2, None, tmp_path) as servers:
        [place] = servers.places
        first, half = ServerConnections([place], [[0]], SHAPES, 0), connect_one(place, place.token, system=1)
        asked = 0

        def check() -> None:
            nonlocal asked
            asked += 1
            if asked == 5:
                raise EnoughError

        with pytest.raises(EnoughError):
            servers.wait_for_systems(first, check)
        assert place.path.exists()
        half.close()
        with pytest.raises(MooringsError, match="system 1 has gone"):
            servers.wait_for_systems(first, lambda: None)
        first.close()


def test_modules_in_the_users_folder_are_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w')\nraise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    with weight_servers([[0]], SHAPES, 1, None, tmp_path) as servers:
        links = ServerConnections(servers.places, [[0]], SHAPES, 0, servers.exit_reason)
        servers.wait_for_systems(links, lambda: None)
        links.close()
    assert not (tmp_path / "taken").exists()
