"""Server-sent events: whatever the network makes of the chunks, the events are the same."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.client.sse import EVENT_BYTES_MAX, EventParser, StreamEvent
from moorings.core.model.errors import MooringsError

STREAM = (
    b": heartbeat\n\n"
    b'id: 7\nevent: claim.granted\ndata: {"a":\ndata: 1}\n\n'
    b"id: 8\r\ndata: caf\xc3\xa9\r\n\r\n"
    b"retry: 10\nid: 9\nevent: x\ndata\n\n"
    b"event: unfinished\ndata: never"
)
EVENTS = [
    StreamEvent("7", "claim.granted", '{"a":\n1}'),
    StreamEvent("8", "message", "café"),
    StreamEvent("9", "x", ""),
]


def test_events_are_read_and_an_unfinished_one_is_not():
    assert EventParser().feed(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_chunks_make_no_difference(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = EventParser()
    found = [event for start, end in pairwise(edges) for event in parser.feed(STREAM[start:end])]
    assert found == EVENTS


def test_a_line_without_an_end_is_refused():
    with pytest.raises(MooringsError) as caught:
        EventParser().feed(b"data: " + b"x" * EVENT_BYTES_MAX)
    assert caught.value.code == "controller.unreachable"
