"""``/v1/events``: the event log, in pages and as a stream."""

from __future__ import annotations

import re

from starlette.responses import Response

from moorings.api.parameters import AFTER, CLAIM, EVENT_NAMES, PAGING, RUN, SEQ_MAX, WATCH
from moorings.api.render import event_body
from moorings.api.request_context import RequestContext
from moorings.api.route import Route
from moorings.api.streams import EventSelection, StreamResponse, stream_events
from moorings.core.model.errors import MooringsError
from moorings.ports.store import Seq
from moorings.wire import operations

STREAM_TYPE = "text/event-stream"
_SEQ = re.compile(r"[0-9]{1,19}")


async def list_events(call: RequestContext) -> Response:
    """List events, or watch them.

    In the order of their sequence numbers. With `watch=1`, or `Accept: text/event-stream`, the answer is a stream of
    server-sent events (`id` is the sequence number, `event` the name, `data` the event as JSON) that starts after
    `Last-Event-ID`, else after `after`, else now, and goes on. Both have what the key sees at that moment: the events
    of its own claims and runs, of those of its projects, and of pools and devices. Events that are older than the
    controller keeps them are not in the list; a stream, or a list's next page, that would have to go on from such a one
    is refused.
    """
    wanted = EventSelection(call.query_value(CLAIM), call.query_value(RUN), call.query_value(EVENT_NAMES))
    begin = _begin(call)
    if call.query_value(WATCH) or STREAM_TYPE.encode() in call.headers.get(b"accept", b""):
        return await _watch(call, wanted, begin)
    page = call.page_request("events")
    after = _parse_seq(page.after, "continue") if page.after else begin or Seq(0)
    rows = await wanted.read(call.service, call.caller, after, page.page.limit, whole=bool(page.after))
    shown, token = page.split_page(rows, lambda row: str(row.seq))
    return await call.respond_list((event_body(row, call.caller) for row in shown), token)


def _begin(call: RequestContext) -> Seq | None:
    last = call.headers.get(b"last-event-id")
    after = call.query_value(AFTER)  # read in any case: an invalid value is refused, also where it is not used
    return after if last is None else _parse_seq(last.decode("latin-1"), "Last-Event-ID")


async def _watch(call: RequestContext, wanted: EventSelection, after: Seq | None) -> Response:
    seats, key = call.service.watch_slots, call.caller.key_id
    start = call.controller.last_seq() if after is None else after
    await wanted.read(
        call.service, call.caller, start, 0, whole=True
    )  # refused while there is still a status to say so
    seats.require(key)
    return StreamResponse(
        stream_events(call.service, wanted, start, call.authenticate), STREAM_TYPE, lambda: seats.release(key)
    )


def _parse_seq(text: str, name: str) -> Seq:
    if not _SEQ.fullmatch(text) or int(text) > SEQ_MAX:
        raise MooringsError("page.invalid", f"{name} must be a sequence number, not {text[:40]!r}")
    return Seq(int(text))


_STREAM = {
    "schema": {"type": "string", "description": "server-sent events"},
    "itemSchema": {"$ref": "#/components/schemas/EventBody"},
}


ROUTES = (
    Route(
        operations.LIST_EVENTS,
        list_events,
        (AFTER, CLAIM, RUN, EVENT_NAMES, WATCH, *PAGING),
        headers={"Last-Event-ID": ("The last sequence number that was seen; wins over `after`.", "^[0-9]{1,19}$")},
        content={STREAM_TYPE: _STREAM},
    ),
)
