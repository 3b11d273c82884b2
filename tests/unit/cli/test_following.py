"""Following: what of an output is new, how an end is told, when a wait is over."""

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from moorings.terminal.following import (
    LogDeduplicator,
    format_wait,
    has_reached,
    run_end_text,
    run_exit_code,
    waiting_text,
)
from moorings.wire.shapes import ReasonBody
from tests.cases import cases
from tests.unit.cli import samples

LINES = st.lists(st.binary(max_size=8).filter(lambda text: b"\n" not in text), max_size=8)


def cut(data, draw):
    """``data`` in chunks."""
    edges = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[start:end] for start, end in zip([0, *edges], [*edges, len(data)], strict=True)]


@given(st.binary(max_size=60), st.data())
def test_one_task_is_copied_once_however_often_the_connection_is_lost(output, data):
    copy, printed = LogDeduplicator(woven=False), b""
    for _ in range(3):
        copy.restart()
        seen = output[: data.draw(st.integers(0, len(output)))]
        printed += b"".join(copy.new_bytes(chunk) for chunk in cut(seen, data.draw))
    copy.restart()
    printed += b"".join(copy.new_bytes(chunk) for chunk in cut(output, data.draw)) + copy.finish()
    assert printed == output


@given(LINES, LINES, st.data())
def test_two_tasks_lines_come_once_each_in_whatever_order_they_are_woven(zero, one, data):
    copy, printed = LogDeduplicator(woven=True), b""
    for last in (False, False, True):
        copy.restart()
        lines = [b"[0] " + line for line in zero]
        for line in one:  # one's lines in their order, somewhere between zero's
            after = max((index for index, other in enumerate(lines) if other.startswith(b"[1] ")), default=-1)
            lines.insert(data.draw(st.integers(after + 1, len(lines))), b"[1] " + line)
        output = b"".join(line + b"\n" for line in lines)
        seen = output if last else output[: data.draw(st.integers(0, len(output)))]
        printed += b"".join(copy.new_bytes(chunk) for chunk in cut(seen, data.draw))
    printed += copy.finish()
    got = printed.split(b"\n")[:-1]
    assert [line[4:] for line in got if line.startswith(b"[0] ")] == zero
    assert [line[4:] for line in got if line.startswith(b"[1] ")] == one


def test_a_last_line_without_an_end_is_not_lost():
    copy = LogDeduplicator(woven=True)
    copy.restart()
    assert copy.new_bytes(b"[0] a\n[1] b") == b"[0] a\n"
    assert copy.finish() == b"[1] b"
    assert copy.finish() == b""


@cases(
    ("state", "until", "come"),
    [
        ("PENDING", "GRANTED", False),
        ("GRANTED", "GRANTED", True),
        ("GRANTED", "READY", False),
        ("READY", "READY", True),
        ("READY", "ENDED", False),
        ("RELEASED", "READY", True),
        ("CANCELLED", "GRANTED", True),
        ("FAILED", "ENDED", True),
    ],
)
def test_when_a_wait_is_over(state, until, come):
    assert has_reached(samples.claim(state=state), until) is come


def test_a_wait_says_why_and_where_in_the_queue():
    text = waiting_text(samples.CLAIMS[1])
    assert text == samples.WAITS
    assert waiting_text(samples.claim(state="PENDING")) == "waits for 16 devices"


def test_today_is_not_said_with_a_time_of_day():
    soon = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)
    text = format_wait(ReasonBody(code="pool.full", message="full", until=soon.isoformat()), 1)
    assert text == "position 1, expected by 12:00:00: full"


@cases(
    ("state", "code", "expected"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 3, 3),
        ("FAILED", None, 1),
        ("CANCELLED", 143, 143),
        ("TIMED_OUT", 0, 124),
        ("TIMED_OUT", 143, 143),
        ("LOST", None, 1),
    ],
)
def test_the_exit_code_is_the_jobs_own(state, code, expected):
    assert run_exit_code(samples.run(state=state, exit_code=code)) == expected


def test_nothing_takes_less_than_no_time():
    ended = samples.run(state="SUCCEEDED", started_at="2026-01-31T10:00:00.5Z", ended_at="2026-01-31T10:00:00.46Z")
    assert "after 0.0 s" in run_end_text(ended)


def test_the_end_tells_duration_code_and_why():
    ended = samples.run(
        state="FAILED",
        exit_code=3,
        detail="task 0 exited with 3",
        started_at="2026-01-31T10:00:00Z",
        ended_at="2026-01-31T11:30:00Z",
    )
    assert run_end_text(ended) == "run-7f3kq2m4xw2a: FAILED after 1:30:00, exit code 3: task 0 exited with 3"
    refused = samples.run(state="FAILED", reason=samples.FULL)
    assert run_end_text(refused).startswith("run-7f3kq2m4xw2a: FAILED: waits for 16 devices")
