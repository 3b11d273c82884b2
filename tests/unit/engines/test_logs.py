"""The output of tasks, whole lines where it can be, and never half a character."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.engines.logs import CHUNK_BYTES, TaskLog, complete_utf8_length, prefix_lines, read_logs


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "0.log"
    path.touch()
    return path


def drain(task_log, *, final):
    chunks = []
    until = task_log.size()
    while chunk := task_log.read(until, final=final):
        chunks.append(chunk)
    return chunks


@given(st.text(max_size=8), st.integers(0, 8))
def test_no_character_is_cut(text, cut):
    data = text.encode()[:cut]
    kept = data[: complete_utf8_length(data)]
    assert text.startswith(kept.decode())
    assert len(data) - len(kept) < 4


@given(st.binary(max_size=12))
def test_what_is_no_text_at_all_keeps_moving(data):
    assert len(data) - complete_utf8_length(data) <= 3


def test_a_log_that_is_not_there_is_empty(tmp_path):
    assert not TaskLog(tmp_path / "none.log").has_unread()


def test_a_progress_bar_is_seen_before_its_line_ends(log):
    task = TaskLog(log)
    log.write_bytes(b"epoch 1\n 10%\r 20%")
    assert b"".join(drain(task, final=False)) == b"epoch 1\n 10%\r 20%"


def test_half_a_character_waits_for_the_other_half(log):
    task = TaskLog(log)
    log.write_bytes(b"caf\xc3")
    assert drain(task, final=False) == [b"caf"]
    log.write_bytes(b"caf\xc3\xa9\n")
    assert drain(task, final=False) == [b"\xc3\xa9\n"]
    log.write_bytes(b"caf\xc3\xa9\n\xe2\x82")
    assert drain(task, final=True) == [b"\xe2\x82"]


def test_with_a_prefix_only_whole_lines_are_given_until_the_end(log):
    task = TaskLog(log, b"[3] ")
    log.write_bytes(b"one\ntw")
    assert drain(task, final=False) == [b"[3] one\n"]
    log.write_bytes(b"one\ntwo\n\nthree")
    assert drain(task, final=False) == [b"[3] two\n[3] \n"]
    assert drain(task, final=True) == [b"[3] three\n"]
    assert drain(task, final=True) == []


@pytest.mark.parametrize("final", [False, True])
def test_a_very_long_line_comes_in_pieces(log, final):
    text = "é" * CHUNK_BYTES + "\n"
    log.write_bytes(b"x" + text.encode())
    chunks = drain(TaskLog(log), final=final)
    assert b"".join(chunks).decode() == "x" + text
    assert all(chunk.decode() for chunk in chunks)
    pieces = drain(TaskLog(log, b"[0] "), final=final)
    assert all(piece.startswith(b"[0] ") and piece.endswith(b"\n") and piece.decode() for piece in pieces)
    assert b"".join(piece[4:-1] for piece in pieces).decode() + "\n" == "x" + text
    assert max(map(len, pieces)) <= CHUNK_BYTES + 5


@given(st.lists(st.binary(max_size=9), max_size=9), st.booleans())
def test_nothing_is_lost_or_doubled(tmp_path_factory, parts, with_prefix):
    path = tmp_path_factory.mktemp("logs") / "0.log"
    task = TaskLog(path, b"[0] " if with_prefix else b"")
    told = []
    for part in parts:
        with path.open("ab") as file:
            file.write(part)
        told += drain(task, final=False)
    told += drain(task, final=True)
    written = b"".join(parts)
    assert b"".join(told) == prefix_lines(written, b"[0] " if with_prefix else b"")


def test_a_pipe_in_the_place_of_a_log_hangs_nobody(log):
    log.unlink()
    os.mkfifo(log)
    assert drain(TaskLog(log), final=True) == []


async def test_a_chatty_task_does_not_silence_the_others(log, tmp_path):
    quiet = tmp_path / "1.log"
    quiet.write_bytes(b"I too\n")
    log.write_bytes(b"first\n")

    async def ended():
        return False

    async def chat(_):
        with log.open("ab") as file:
            file.write(b"more\n")

    seen = []
    async for chunk in read_logs([TaskLog(log, b"[0] "), TaskLog(quiet, b"[1] ")], ended=ended, pause=chat):
        with log.open("ab") as file:
            file.write(b"and more\n")
        seen.append(chunk)
        if chunk == b"[1] I too\n":
            break
    assert len(seen) == 2


async def test_what_was_added_just_before_the_end_is_read(log):
    answers = iter([False, True])

    async def ended():
        return next(answers)

    async def pause(_):
        log.write_bytes(b"last words")

    assert [chunk async for chunk in read_logs([TaskLog(log)], ended=ended, pause=pause)] == [b"last words"]
