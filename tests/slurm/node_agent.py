"""The agent's side of the nodes' protocol, for tests of the nodes' side: it answers what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

from moorings.core.model.bindings import Binding, GcdBinding, Rendezvous
from moorings.core.model.devices import PoolName, device_id
from moorings.slurm.host.bind_protocol import BindReply, BindRequest, BindStatus, build_reply, parse_request, reply_for
from moorings.slurm.munge import Munge

POOL = PoolName("pod1")

Answer = Callable[[BindRequest], BindReply | bytes | None]
"""A reply; or the raw line to send instead; or nothing, and the connection is closed. May block: it has a thread."""


class NodeAgent:
    """Answers nodes at ``port`` while it is entered; ``answer`` may be changed at any time."""

    def __init__(self, munge: Munge, answer: Answer, port: int = 0) -> None:
        self.munge = munge
        self.answer = answer
        self.requests: list[BindRequest] = []
        self.uids: set[int] = set()
        self.faults: list[BaseException] = []
        listening = socket.create_server(("127.0.0.1", port), backlog=256)
        self.port: int = listening.getsockname()[1]
        self._socket = listening
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="agent")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def jobs(self) -> list[int]:
        return [request.job for request in self.requests]

    def seal(self, request: BindRequest, reply: BindReply) -> bytes:
        """The line that an honest agent sends."""
        return self.sealed(build_reply(request, reply))

    def sealed(self, payload: bytes) -> bytes:
        return self.munge.encode(payload, for_uid=0).encode() + b"\n"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        async with await asyncio.start_server(self._serve, sock=self._socket):
            await self._over.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if line:
                writer.write(await asyncio.to_thread(self._reply, line))
                await writer.drain()
        except ConnectionError:
            pass  # a task that was cancelled
        except Exception as error:
            self.faults.append(error)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _reply(self, line: bytes) -> bytes:
        credential = self.munge.decode(line.decode().strip())
        request = parse_request(credential.payload)
        self.uids.add(credential.uid)
        self.requests.append(request)
        reply = self.answer(request)
        if isinstance(reply, BindReply):
            return self.seal(request, reply)
        return reply or b""


def binding(request: BindRequest, gcds: int = 1, folder: str = "") -> BindReply:
    """What an honest agent gives: a partition of two devices a GCD; files if there is a folder."""
    shares = tuple(
        GcdBinding(
            gcd,
            (device_id(POOL, 2 * gcd), device_id(POOL, 2 * gcd + 1)),
            f"p{request.job}_gcd{gcd}_ipuof.conf",
            f"GCD {gcd} of job {request.job}\n",
        )
        for gcd in range(gcds)
    )
    api = {"IPUOF_VIPU_API_HOST": "vipu1", "IPUOF_VIPU_API_PARTITION_ID": f"p{request.job}"}
    return reply_for(Binding(f"p{request.job}", api, shares), Rendezvous("n1", 29500), folder)


def retry(message: str = "the partition is CREATING") -> BindReply:
    return BindReply(BindStatus.RETRY, message)


def refused(message: str) -> BindReply:
    return BindReply(BindStatus.REFUSED, message)
