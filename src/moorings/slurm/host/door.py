"""The server for nodes: one line in, one line out, both munge credentials.

Any client that can connect may send anything, so everything is bounded: connections, in total and per machine, the
line, its time, and the log lines about it. Only root of one of the job's nodes gets a binding, and only root can read
it. Every user may ask why a job waits (``why``); that is answered at once, for that user's eyes only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from moorings.core.errors import MooringsError
from moorings.slurm.host import hello, why
from moorings.slurm.host.nodes import (
    CREDENTIAL_REQUEST_BYTES_MAX,
    BindReply,
    BindRequest,
    BindStatus,
    build_reply,
    parse_request,
)
from moorings.slurm.host.seats import ConnectionLimit
from moorings.slurm.host.troubles import RateLimitedWarnings
from moorings.slurm.munge import Munge

CONNECTIONS_MAX = 2048
# Each slurmstepd asks once at its start, for all its tasks, and again if no agent listens: several jobs a core.
CONNECTIONS_PER_ADDRESS_MAX = 256
LINE_S_MAX = 5.0  # a line is sent at once, and received at once
COMPLAIN_S = 1.0
ROOT = 0

Answer = Callable[[BindRequest], Awaitable[BindReply]]
Why = Callable[[int, int], str | None]
"""Arguments: the user's uid, by munge, and the job id. Result: why it waits; None: nothing for this user."""
Note = Callable[[hello.PluginHeartbeat], bool]
"""Result: whether it is recorded that a node's slurmd has loaded the plugin."""


def _of_none(_uid: int, _job: int) -> None:
    return None


def _not_noted(_told: hello.PluginHeartbeat) -> bool:
    return False


class BindServer:
    """Listens for nodes and passes their requests to ``answer``.

    Args:
        munge: decodes and makes credentials.
        answer: answers a request.
        explain: returns why a job waits, for a user.
        note: records that a node has the plugin.
        connections_max: at the same time, in total.
        per_address_max: of them from one address.
        complain_s: seconds between two log lines of refusals for the same reason.
    """

    def __init__(
        self,
        munge: Munge,
        answer: Answer,
        explain: Why = _of_none,
        note: Note = _not_noted,
        *,
        connections_max: int = CONNECTIONS_MAX,
        per_address_max: int = CONNECTIONS_PER_ADDRESS_MAX,
        complain_s: float = COMPLAIN_S,
    ) -> None:
        self._munge = munge
        self._answer = answer
        self._explain = explain
        self._note = note
        self._seats: ConnectionLimit[asyncio.StreamWriter] = ConnectionLimit(connections_max, per_address_max)
        self._complaints = RateLimitedWarnings("node.refused", complain_s)
        self._server: asyncio.Server | None = None

    async def open(self, host: str | None, port: int) -> int:
        """Listen; return the port.

        Raises:
            MooringsError: ``config.invalid``: the address is not available.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=CREDENTIAL_REQUEST_BYTES_MAX, backlog=512
            )
        except OSError as error:
            hint = "is another agent running? else choose another AgentPort in vipu.conf"
            raise MooringsError("config.invalid", f"port {port} cannot be had: {error.strerror}", hint=hint) from error
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = _address_of(writer)
        gone = self._seats.take(address, writer)
        try:
            if gone is not None:
                gone.transport.abort()
                told = f"too many connections at once, the last from {address}: one that had asked nothing was closed"
                self._complaints.tell("door.crowded", told)
            if gone is not writer:
                await self._talk(reader, writer)
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the client has gone, or sends no line: it gets no answer
        except asyncio.CancelledError:
            pass  # the agent stops and the node asks again; asyncio would log a cancelled handler as a failure
        except MooringsError as error:
            self._complaints.tell(error.code, f"{error.detail}, from {address}")
        finally:
            await _end(writer)
            self._seats.leave(writer)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(LINE_S_MAX):
            line = await reader.readuntil(b"\n")
        credential = await asyncio.to_thread(self._munge.decode, line.decode("ascii").strip())
        if credential.payload.startswith(why.GREETING):
            question = why.parse_request(credential.payload)
            reason = why.build_reply(question, self._explain(credential.uid, question.job))
            await self._seal(writer, reason, credential.uid)
            return
        if credential.uid != ROOT:
            raise MooringsError("auth.denied", f"uid {credential.uid} asked for a job's binding: only root may")
        if credential.payload.startswith(hello.GREETING):
            told = hello.parse_request(credential.payload)
            await self._seal(writer, hello.build_reply(told, noted=self._note(told)), ROOT)
            return
        request = parse_request(credential.payload)
        if not self._seats.keep(writer):
            return
        reply = await self._answer(request)
        try:
            payload = build_reply(request, reply)
        except MooringsError as error:  # the driver returned something that no node accepts
            payload = build_reply(request, BindReply(BindStatus.REFUSED, f"the binding cannot be used: {error.detail}"))
        await self._seal(writer, payload, ROOT)

    async def _seal(self, writer: asyncio.StreamWriter, payload: bytes, uid: int) -> None:
        sealed = await asyncio.to_thread(lambda: self._munge.encode(payload, for_uid=uid))
        writer.write(sealed.encode("ascii") + b"\n")


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close a connection once the reply is sent, or its timeout is over."""
    writer.close()
    try:
        async with asyncio.timeout(LINE_S_MAX):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()  # does nothing if it is closed


def _address_of(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")  # None: already disconnected
    return str(peer[0]) if peer else ""
