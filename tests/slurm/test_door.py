"""The agent's door with real munge: nodes are answered whatever strangers do, and little is logged of it."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import socket
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorings.core.model.errors import MooringsError
from moorings.slurm.host import bind_server as door_module
from moorings.slurm.host import plugin_heartbeat
from moorings.slurm.host.bind_protocol import BindReply, BindRequest, BindStatus, GcdReply, build_request
from moorings.slurm.host.bind_server import BindServer
from moorings.slurm.host.wait_reason import WaitReasonQuery
from moorings.slurm.host.wait_reason import build_request as build_why
from moorings.slurm.host.wait_reason import parse_reply as parse_why
from moorings.slurm.munge import Munge
from tests.slurm import programs
from tests.slurm.cluster import SlurmCluster
from tests.slurm.node_agent import binding
from tests.waiting import patient, until_async

NODE, STRANGER = "127.0.0.2", "127.0.0.66"
NONCE = "0123456789abcdef"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def munge(slurm: SlurmCluster) -> Munge:
    return Munge(str(slurm.munge_socket), str(programs.munge_library()))


class Site:
    """A door, and who comes to it."""

    def __init__(self, munge: Munge, door: BindServer, port: int) -> None:
        self.munge = munge
        self.door = door
        self.port = port
        self.streams: list[Streams] = []

    async def connect(self, address: str) -> Streams:
        """A connection that says nothing."""
        streams = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self.streams.append(streams)
        return streams

    def question(self) -> bytes:
        """The line that a node sends."""
        return self.munge.encode(build_request(BindRequest(7, 0, "n1", 0, NONCE))).encode() + b"\n"

    async def ask(self, address: str = NODE) -> bytes:
        """What a node is answered; nothing if it is turned away."""
        reader, writer = await self.connect(address)
        writer.write(self.question())
        return await rest_of(reader)

    async def is_answered(self, address: str = NODE) -> bool:
        line = await self.ask(address)
        return bool(line) and b"status=retry" in self.munge.decode(line.decode().strip()).payload


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is closed; nothing if that was while something still lay unread."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def _later(_: BindRequest) -> BindReply:
    return BindReply(BindStatus.RETRY, "later")


def at_door(munge: Munge, visit: Callable[[Site], Awaitable[None]], answer: Any = _later, **limits: Any) -> None:
    """Open a door, and visit it."""

    async def main() -> None:
        door = BindServer(munge, answer, **limits)
        site = Site(munge, door, await door.open("127.0.0.1", 0))
        try:
            async with asyncio.timeout(patient(30)):
                await visit(site)
        finally:
            door.close()
            for _, writer in site.streams:
                writer.transport.abort()

    asyncio.run(main())


def refusals(caplog: pytest.LogCaptureFixture) -> list[Any]:
    assert all(record.name == "moorings.slurm.agent" for record in caplog.records if record.levelno > logging.INFO)
    return [record for record in caplog.records if record.message == "node.refused"]


@pytest.mark.parametrize("noted", [True, False])
def test_a_slurmd_is_told_whether_its_plugin_was_noted(munge: Munge, noted: bool) -> None:
    heard: list[plugin_heartbeat.PluginHeartbeat] = []
    told = plugin_heartbeat.PluginHeartbeat("n1", "fedcba9876543210", 1500, "0123456789abcdef")

    def note(one: plugin_heartbeat.PluginHeartbeat) -> bool:
        heard.append(one)
        return noted

    async def visit(site: Site) -> None:
        reader, writer = await site.connect(NODE)
        writer.write(munge.encode(plugin_heartbeat.build_request(told)).encode() + b"\n")
        answer = munge.decode((await rest_of(reader)).decode().strip())
        assert answer.payload == plugin_heartbeat.build_reply(told, noted=noted)

    at_door(munge, visit, note=note)
    assert heard == [told]


def test_a_machine_that_takes_every_seat_and_says_nothing_shuts_nobody_out(
    munge: Munge, caplog: pytest.LogCaptureFixture
) -> None:
    async def visit(site: Site) -> None:
        silent = [await site.connect(STRANGER) for _ in range(40)]
        assert await site.is_answered()
        gone = [reader for reader, _ in silent[:24]]  # it may have sixteen
        assert [await rest_of(reader) for reader in gone] == [b""] * 24
        assert not any(reader.at_eof() for reader, _ in silent[24:])

    at_door(munge, visit, connections_max=20, per_address_max=16)
    first, *_ = refusals(caplog)
    assert first.code == "door.crowded"
    assert STRANGER in first.detail


def test_a_node_is_answered_though_a_user_of_its_own_holds_all_of_its_seats(munge: Munge) -> None:
    async def visit(site: Site) -> None:
        for _ in range(16):
            await site.connect(NODE)
        assert await site.is_answered(NODE)

    at_door(munge, visit, connections_max=64, per_address_max=16)


def test_many_machines_that_take_every_seat_shut_nobody_out(munge: Munge) -> None:
    async def visit(site: Site) -> None:
        for number in range(10):
            for _ in range(4):
                await site.connect(f"127.0.1.{number + 1}")
        assert await site.is_answered()

    at_door(munge, visit, connections_max=20, per_address_max=4)


def test_who_has_asked_keeps_his_seat_until_he_is_answered(munge: Munge) -> None:
    asked: asyncio.Queue[BindRequest] = asyncio.Queue()
    go = asyncio.Event()

    async def slow(request: BindRequest) -> BindReply:
        asked.put_nowait(request)
        await go.wait()
        return BindReply(BindStatus.RETRY, "later")

    async def visit(site: Site) -> None:
        questions = []
        for _ in range(3):
            questions.append(asyncio.create_task(site.is_answered(NODE)))
            await asked.get()
            for _ in range(10):
                await site.connect(NODE)
        assert await site.ask(NODE) == b"", "all seats are held by those who wait for their answer"
        go.set()
        assert all(await asyncio.gather(*questions))
        assert await site.is_answered(NODE)

    at_door(munge, visit, slow, connections_max=20, per_address_max=3)


def test_all_are_heard_when_seats_are_free_again(munge: Munge) -> None:
    """As many steps of one node as may ask at once, again and again: no seat is lost."""

    async def visit(site: Site) -> None:
        for _ in range(5):
            assert all(await asyncio.gather(*(site.is_answered() for _ in range(16))))

    at_door(munge, visit, connections_max=16, per_address_max=16)


@pytest.mark.parametrize("line", [b"x" * 100_000, b"\xff\n", b"MUNGE:AAAA:\n", b"\n", b""])
def test_rubbish_is_closed_and_logged_once_in_a_while(
    munge: Munge, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    async def visit(site: Site) -> None:
        for _ in range(30):
            reader, writer = await site.connect(STRANGER)
            writer.write(line)
            writer.write_eof()
            assert await rest_of(reader) == b""
        assert await site.is_answered()
        if line in (b"MUNGE:AAAA:\n", b"\n"):
            await until_async(lambda: sum(1 + record.left_out for record in refusals(caplog)) == 30)

    at_door(munge, visit, complain_s=2.0)
    found = refusals(caplog)
    if line in (b"MUNGE:AAAA:\n", b"\n"):
        assert {record.code for record in found} == {"munge.invalid"}
        assert sum(1 + record.left_out for record in found) == 30
        assert len(found) < 10
    else:
        assert found == []


def sealed_by_games(slurm: SlurmCluster, payload: bytes) -> bytes:
    """A credential that a user has made."""
    command = programs.munged().parents[1] / "bin" / "munge"
    switch = ("setpriv", "--reuid=games", "--regid=games", "--clear-groups", command)
    words: list[str | Path] = [*switch, f"--socket={slurm.munge_socket}", f"--string={payload.decode()}"]
    return subprocess.run(words, env=slurm.env, check=True, capture_output=True).stdout.strip()


def test_only_root_is_answered(slurm: SlurmCluster, munge: Munge, caplog: pytest.LogCaptureFixture) -> None:
    text = sealed_by_games(slurm, build_request(BindRequest(7, 0, "n1", 0, NONCE)))

    async def visit(site: Site) -> None:
        reader, writer = await site.connect(NODE)
        writer.write(text + b"\n")
        assert await reader.read() == b""

    at_door(munge, visit)
    assert [record.code for record in refusals(caplog)] == ["auth.denied"]


def test_why_a_job_waits_is_told_to_who_asks_and_read_by_him_alone(slurm: SlurmCluster, munge: Munge) -> None:
    """Law 10: who asks is for munge to say, and nobody else can read what he is told."""
    asked = []

    def explain(uid: int, job: int) -> str:
        asked.append((uid, job))
        return "secret to others"

    request = WaitReasonQuery(39, NONCE)
    credential = sealed_by_games(slurm, build_why(request)) + b"\n"
    answers: list[bytes] = []

    async def visit(site: Site) -> None:
        for line in (credential, munge.encode(build_why(request)).encode() + b"\n"):
            reader, writer = await site.connect(NODE)
            writer.write(line)
            answers.append(await rest_of(reader))

    at_door(munge, visit, explain=explain)
    games = pwd.getpwnam("games").pw_uid
    assert asked == [(games, 39), (0, 39)]
    assert parse_why(munge.decode(answers[1].decode().strip()).payload, request) == "secret to others"
    with pytest.raises(MooringsError) as told:  # not even root reads what games was told
        munge.decode(answers[0].decode().strip())
    assert told.value.code == "munge.invalid"


def test_who_does_not_take_his_answer_holds_nothing_for_long(munge: Munge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "LINE_S_MAX", 0.3)

    asked: asyncio.Queue[BindRequest] = asyncio.Queue()
    stuck: list[socket.socket] = []

    async def large(request: BindRequest) -> BindReply:
        asked.put_nowait(request)
        reply = binding(request, gcds=500, folder="/ipuof")  # of what munge cannot make smaller
        return replace(reply, gcds=tuple(GcdReply({}, {f"{n}.conf": os.urandom(900)}) for n in range(500)))

    async def visit(site: Site) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            narrow = socket.socket()
            stuck.append(narrow)
            narrow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            narrow.setblocking(False)
            await loop.sock_connect(narrow, ("127.0.0.1", site.port))
            await loop.sock_sendall(narrow, site.question())
            await asked.get()
        while not await site.ask():
            pass  # turned away: both seats are held

    at_door(munge, visit, large, connections_max=2, per_address_max=2)
    for narrow in stuck:
        narrow.close()
