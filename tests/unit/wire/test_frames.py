"""Frames of terminals: complete ones are found, however they arrive, and nothing else passes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.wire.frames import (
    FRAME_BYTES_MAX,
    FrameKind,
    FrameReader,
    TerminalAction,
    TerminalFailure,
    TerminalRequest,
    WindowSize,
    encode_frame,
    parse_failure,
    parse_request,
)
from moorings.workloads.commands import COMMAND_ARGS_MAX, COMMAND_CHARS_MAX
from tests.cases import cases

REQUEST = TerminalRequest(
    action=TerminalAction.EXEC, command=("sh", "-c", "é\udc80"), tty=True, term="xterm", size=WindowSize(9, 7)
)


@given(
    st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=40)), max_size=8),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_frames_arrive_whole_in_any_pieces(frames, lengths):
    sent = b"".join(encode_frame(kind, content) for kind, content in frames)
    reader, at = FrameReader(), 0
    found: list[tuple[FrameKind, bytes]] = []
    while at < len(sent):
        length = lengths[at % len(lengths)]
        found += reader.feed(sent[at : at + length])
        at += length
    assert found == frames


@given(st.binary(max_size=60))
def test_other_bytes_are_frames_or_refused(content):
    reader = FrameReader()
    try:
        list(reader.feed(content))
    except ValueError:
        return


def test_a_longer_frame_is_refused_before_it_arrives():
    with pytest.raises(ValueError, match="too long"):
        list(FrameReader().feed(b"I" + (FRAME_BYTES_MAX + 1).to_bytes(4, "big")))


def test_what_is_wished_arrives_as_it_was():
    assert parse_request(REQUEST.encode()) == REQUEST
    failure = TerminalFailure("it was not found", "look for it", 127)
    assert parse_failure(failure.encode()) == failure
    assert WindowSize.parse(WindowSize(50, 200).encode()) == WindowSize(50, 200)


def test_the_longest_command_fits_a_frame():
    words = tuple("\x01" * (COMMAND_CHARS_MAX // COMMAND_ARGS_MAX) for _ in range(COMMAND_ARGS_MAX))
    longest = TerminalRequest(action=TerminalAction.EXEC, command=words)
    assert parse_request(encode_frame(FrameKind.REQUEST, longest.encode())[5:]) == longest


def changed(**values):
    return json.dumps(json.loads(REQUEST.encode()) | values).encode()


@cases(
    "content",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        changed(action="dance"),
        changed(command=[]),
        changed(command=[""]),
        changed(command=["a\0b"]),
        changed(command=[1]),
        changed(command=["x"] * (COMMAND_ARGS_MAX + 1)),
        changed(command=["x" * (COMMAND_CHARS_MAX + 1)]),
        changed(term="x" * 101),
        changed(size={"rows": -1, "columns": 1}),
        changed(size={"rows": 1, "columns": 100_000}),
        changed(action="forward", port=0),
        changed(action="forward", port=65_536),
        changed(action="forward", port=True),
    ],
)
def test_a_request_out_of_bounds_is_refused(content):
    with pytest.raises(ValueError):
        parse_request(content)
