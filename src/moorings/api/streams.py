"""Streams: the event log as server-sent events, without buffering for a slow reader.

There is no queue for each subscriber. A watch knows the last sequence number it sent, reads the next rows from the
store when it may write again, and waits for new ones when there are none: a slow reader costs only its connection, and
loses nothing. Fan-out through a queue for each was refused for that reason; the rows are in the database's cache
anyway.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from moorings.api.render import event_body
from moorings.api.request_context import ApiContext, first_of
from moorings.core.model.access import Caller
from moorings.core.model.errors import MooringsError
from moorings.ports.store import EventRow, Seq
from moorings.wire.codec import encode

EVENTS_A_READ = 200

log = logging.getLogger("moorings.api")


class StreamResponse(StreamingResponse):
    """A streamed response; ``leave`` is called once when it has ended, in every case.

    After a failure it ends without its last chunk, so the reader does not take the part for the whole.
    """

    def __init__(self, chunks: AsyncGenerator[bytes], media_type: str, leave: Callable[[], None]) -> None:
        super().__init__(chunks, media_type=media_type, headers={"X-Accel-Buffering": "no"})
        self._chunks = chunks
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        except MooringsError as error:
            log.warning("stream.ended", extra={"code": error.code, "detail": error.detail, "path": scope["path"]})
        except Exception:
            log.exception("stream.failed", extra={"path": scope["path"]})
        finally:
            self._leave()
            await self._chunks.aclose()


@dataclass(frozen=True, slots=True)
class EventSelection:
    """The filter of a request for events."""

    claim: str | None = None
    run: str | None = None
    names: tuple[str, ...] = ()

    async def read(self, service: ApiContext, caller: Caller, after: Seq, limit: int, *, whole: bool) -> list[EventRow]:
        """At most ``limit`` matching events that the caller sees now, with a greater sequence number.

        Raises:
            MooringsError: ``events.gone``: ``whole`` is set, and some of them have left the database.
        """
        rows = await service.controller.list_events(
            caller, after, limit, claim=self.claim, run=self.run, names=self.names, whole=whole
        )
        return list(rows)


def format_event(row: EventRow, caller: Caller) -> bytes:
    """One row as a server-sent event."""
    data = json.dumps(encode(event_body(row, caller)), separators=(",", ":"), ensure_ascii=False)
    return f"id: {row.seq}\nevent: {row.event.name}\ndata: {data}\n\n".encode()


async def stream_events(
    service: ApiContext, wanted: EventSelection, after: Seq, authenticate: Callable[[], Awaitable[Caller]]
) -> AsyncGenerator[bytes]:
    """The events after ``after``, as they happen; until the server stops, or the access key is revoked or expires.

    Raises:
        MooringsError: the store failed, ``events.gone``, or ``auth.*``.
    """
    time, beat_s = asyncio.get_running_loop().time, service.limits.heartbeat_s
    yield f": events after {after}\n\n".encode()
    beat = time() + beat_s
    while not service.closing.is_begun:
        caller = await authenticate()
        head = service.controller.last_seq()  # before the read: the read sees at least these
        rows = await wanted.read(service, caller, after, EVENTS_A_READ, whole=True)
        if rows:
            yield b"".join(format_event(row, caller) for row in rows)
            after = rows[-1].seq
        if len(rows) == EVENTS_A_READ:
            continue
        after = max(after, head)  # events that the filter skipped need not be read again
        if time() >= beat:
            yield b": heartbeat\n\n"
            beat = time() + beat_s
        try:
            waiting = service.controller.wait_events(after, max(0.0, beat - time()))
            await service.closing.run_or_abort(first_of(waiting, service.key_revoked.wait()))
        except MooringsError:
            if not service.closing.is_begun:
                raise


async def stream_output(
    service: ApiContext, chunks: AsyncIterator[bytes], authenticate: Callable[[], Awaitable[Caller]]
) -> AsyncGenerator[bytes]:
    """``chunks``, until the server stops, or the access key is revoked or expires.

    Raises:
        MooringsError: ``controller.unreachable`` or ``auth.*`` then: there may have been more.
    """
    while (chunk := await service.closing.run_or_abort(anext(chunks, None))) is not None:
        await authenticate()
        yield chunk
