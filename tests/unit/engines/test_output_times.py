"""Which output was written since a time, from the sizes that were noted beside it."""

import os
import struct
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.engines.logs import CHUNK_BYTES, TaskLog
from moorings.engines.output_times import NOTES_OF_TASKS, OutputTimes, size_at, times_path
from moorings.local.run_folder import LocalRunFolder

START = Timestamp(1_700_000_000_000_000)


@pytest.fixture
def folder(tmp_path):
    return LocalRunFolder(tmp_path / "run")


@pytest.fixture
def log(folder):
    folder.create()
    os.close(folder.open_log(0, 0))
    return folder.log_path(0, 0)


@pytest.fixture
def times(folder, log):
    return OutputTimes([log], partial(folder.open_times, 0), START)


def grow(log, text, at_s):
    """Add to a log, with the time at which it was changed."""
    with log.open("a") as file:
        file.write(text)
    at_ns = int(add_seconds(START, at_s)) * 1000
    os.utime(log, ns=(at_ns, at_ns))


def since(log, at_s):
    task = TaskLog(log)
    task.skip_until(add_seconds(START, at_s))
    return task.read(task.size(), final=True).decode()


def test_output_begins_where_it_had_grown_to(log, times):
    for second in range(6):
        times.note(add_seconds(START, second))
        grow(log, f"line {second}\n", second)
    times.note(add_seconds(START, 6))
    assert since(log, -1).startswith("line 0")
    assert since(log, 3).startswith("line 3")  # it had not been seen when the third second began
    assert since(log, 4.5).startswith("line 4")
    assert since(log, 60) == ""


def test_notes_that_a_job_wrote_itself_lead_nowhere(log, times):
    times.note(START)
    grow(log, "line\n", 1)
    times_path(log).write_bytes(struct.pack("<QQ", 0, 2**64 - 1))
    assert since(log, 0) == ""


def test_a_line_that_has_ended_since_is_whole(log, times):
    times.note(START)
    grow(log, "first\nthe second ", 1)
    times.note(add_seconds(START, 2))
    grow(log, "has ended\n", 9)
    times.note(add_seconds(START, 10))
    assert since(log, 5) == "the second has ended\n"


def test_of_a_line_without_an_end_only_the_new_part_is_shown(log, times):
    times.note(START)
    grow(log, "x" * (2 * CHUNK_BYTES), 1)
    times.note(add_seconds(START, 2))
    grow(log, "y", 9)
    times.note(add_seconds(START, 10))
    assert since(log, 5) == "y"


def test_output_of_which_no_times_were_noted_is_refused_unless_it_is_older(log):
    grow(log, "from an earlier release\n", 5)
    assert since(log, 10) == ""
    with pytest.raises(MooringsError, match=r"when the output in 0\.log was written is not known") as caught:
        since(log, 1)
    assert caught.value.code == "engine.rejected"


def test_a_task_without_output_has_none_since(log, times):
    times.note(START)
    assert (since(log, -5), since(log, 5)) == ("", "")
    assert TaskLog(log.with_name("1.log")).size() == 0


@given(st.lists(st.integers(1, 1 << 40), unique=True, max_size=20).map(sorted), st.integers(0, 1 << 41))
def test_the_last_note_before_a_time_is_found(tmp_path_factory, notes, at):
    path = tmp_path_factory.mktemp("times") / "0"
    path.write_bytes(b"".join(noted.to_bytes(8, "little") + (noted * 3).to_bytes(8, "little") for noted in notes))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        earlier = [noted for noted in notes if noted <= at]
        expected = None if not notes else earlier[-1] * 3 if earlier else 0
        assert size_at(descriptor, Timestamp(at)) == expected
    finally:
        os.close(descriptor)


def test_notes_of_a_long_run_become_rare(log, times):
    def note_until(end_s, step_s):
        at_s = end_s - 50 * step_s
        while at_s < end_s:
            grow(log, ".", at_s)
            times.note(add_seconds(START, at_s))
            at_s += step_s
        return times_path(log).stat().st_size // 16

    times.note(START)
    early = note_until(60, 0.5)
    assert 20 <= early <= 30
    age_s = 20.0 * NOTES_OF_TASKS
    assert note_until(age_s, 1.0) - early <= 4  # one in twenty seconds


def test_a_clock_that_is_set_back_keeps_the_order(log, times):
    times.note(START)
    grow(log, "a\n", 10)
    times.note(add_seconds(START, 10))
    grow(log, "b\n", 5)
    times.note(add_seconds(START, 5))
    times.note(add_seconds(START, 20))
    grow(log, "", 20)
    assert since(log, 10) == "b\n"


def test_the_folder_knows_its_attempts_beside_the_times(folder, log, times):
    times.note(START)
    assert folder.previous_attempts(1) == [0]
    assert times_path(log).stat().st_mode & 0o777 == 0o600
