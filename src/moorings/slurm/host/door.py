"""Where the nodes ask: one line in, one line out, both munge credentials.

Whoever can connect may send anything, so everything is bounded: connections, the line, the time it may take. Only root
of a node that the job runs on gets an answer, and only root can read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from moorings.core.errors import MooringsError
from moorings.slurm.host.nodes import (
    CREDENTIAL_REQUEST_BYTES_MAX,
    BindReply,
    BindRequest,
    Status,
    build_reply,
    parse_request,
)
from moorings.slurm.munge import Munge

log = logging.getLogger("moorings.slurm.agent")

CONNECTIONS_MAX = 2048
LINE_S_MAX = 5.0  # a credential is sent at once
ROOT = 0

Answer = Callable[[BindRequest], Awaitable[BindReply]]


class Door:
    """Listens for nodes and hands their questions to ``answer``."""

    def __init__(self, munge: Munge, answer: Answer) -> None:
        self._munge = munge
        self._answer = answer
        self._open = 0
        self._server: asyncio.Server | None = None

    async def open(self, host: str | None, port: int) -> int:
        """Listen; the port.

        Raises:
            MooringsError: ``config.invalid``: that address cannot be had.
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
        """Listen no longer."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                await self._talk(reader, writer)
        except (OSError, EOFError, ValueError, TimeoutError):
            pass  # it has gone, or sends no line: nothing is owed to it
        except asyncio.CancelledError:
            pass  # the agent stops: the node asks again; asyncio would log a cancelled handler as its own failure
        except MooringsError as error:
            log.warning("node.refused", extra={"code": error.code, "detail": error.detail})
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(LINE_S_MAX):
            line = await reader.readuntil(b"\n")
        credential = await asyncio.to_thread(self._munge.decode, line.decode("ascii").strip())
        if credential.uid != ROOT:
            raise MooringsError("auth.denied", f"uid {credential.uid} asked for a job's binding: only root may")
        request = parse_request(credential.payload)
        reply = await self._answer(request)
        try:
            payload = build_reply(request, reply)
        except MooringsError as error:  # a driver gave what no node would take
            payload = build_reply(request, BindReply(Status.REFUSED, f"the binding cannot be used: {error.detail}"))
        sealed = await asyncio.to_thread(lambda: self._munge.encode(payload, for_uid=ROOT))
        writer.write(sealed.encode("ascii") + b"\n")
        await writer.drain()
