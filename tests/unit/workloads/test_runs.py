"""Runs: how the engine's record of an end becomes the run's."""

from __future__ import annotations

import pytest

from moorings.core.model.errors import IllegalTransitionError
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, a_run
from moorings.workloads.runs import (
    ENDED,
    EndReason,
    EndRecord,
    RunEvent,
    RunState,
    apply_end,
    requeue_yielded,
    step,
    with_start_time,
)
from tests.cases import cases

LATER = Timestamp(NOW + SECOND)
MUCH_LATER = Timestamp(NOW + 60 * SECOND)


@cases(
    ("end", "state"),
    [
        (EndRecord(EndReason.EXITED, 0, (0, 0)), RunState.SUCCEEDED),
        (EndRecord(EndReason.EXITED, 3, (0, 3)), RunState.FAILED),
        (EndRecord(EndReason.EXITED, 137, (None, 137)), RunState.FAILED),
        (EndRecord(EndReason.CANCELLED, 143), RunState.CANCELLED),
        (EndRecord(EndReason.YIELDED, 143), RunState.CANCELLED),
        (EndRecord(EndReason.TIMED_OUT, 143), RunState.TIMED_OUT),
        (EndRecord(EndReason.NOT_STARTED, 126), RunState.FAILED),
        (EndRecord(EndReason.LOST, 1), RunState.LOST),
    ],
    ids=lambda part: str(getattr(part, "ending", part)),
)
@cases("before", [RunState.STARTING, RunState.RUNNING, RunState.YIELDING, RunState.STOPPING])
def test_a_run_ends_as_the_engine_says(before, end, state):
    ended = apply_end(a_run(state=before), end, LATER)
    assert (ended.state, ended.exit_code, ended.task_codes) == (state, end.exit_code, end.task_codes)
    assert ended.is_ended


def test_every_ending_is_known():
    assert {apply_end(a_run(state=RunState.RUNNING), EndRecord(ending, 1), NOW).state for ending in EndReason} <= ENDED


@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_run_ends_once(state):
    with pytest.raises(IllegalTransitionError):
        apply_end(a_run(state=state), EndRecord(EndReason.EXITED, 0), LATER)


def test_a_run_that_waits_cannot_have_succeeded():
    with pytest.raises(IllegalTransitionError):
        apply_end(a_run(), EndRecord(EndReason.EXITED, 0), LATER)


def test_the_engines_moments_count_where_it_has_them():
    run = a_run(state=RunState.RUNNING)
    told = apply_end(run, EndRecord(EndReason.EXITED, 0, started_at=NOW, ended_at=LATER), MUCH_LATER)
    assert (told.started_at, told.ended_at) == (NOW, LATER)
    untold = apply_end(run, EndRecord(EndReason.LOST, 1), MUCH_LATER)
    assert (untold.started_at, untold.ended_at) == (None, MUCH_LATER)


def test_the_first_start_counts():
    run = with_start_time(with_start_time(a_run(state=RunState.RUNNING), LATER), MUCH_LATER)
    assert run.started_at == LATER
    assert apply_end(run, EndRecord(EndReason.EXITED, 0, started_at=MUCH_LATER), MUCH_LATER).started_at == LATER


def test_why_it_was_stopped_is_why_it_ended():
    stopping = step(a_run(state=RunState.RUNNING), RunEvent.STOP, LATER, "ann asked for it")
    assert stopping.stop_reason == "ann asked for it"
    assert apply_end(stopping, EndRecord(EndReason.CANCELLED, 143), LATER).detail == "ann asked for it"


def test_the_engines_own_words_come_first():
    stopping = step(a_run(state=RunState.RUNNING), RunEvent.STOP, LATER, "ann asked for it")
    assert apply_end(stopping, EndRecord(EndReason.LOST, 1, detail="no record"), LATER).detail == "no record"


def test_every_move_counts_as_a_version_and_only_an_end_has_a_moment():
    run = step(a_run(version=4), RunEvent.PARTITION_READY, LATER)
    assert (run.version, run.ended_at) == (5, None)
    assert step(run, RunEvent.FAIL, MUCH_LATER).ended_at == MUCH_LATER


def test_a_detail_stays_until_there_is_a_newer_one():
    run = step(a_run(detail="first"), RunEvent.PARTITION_READY, LATER)
    assert run.detail == "first"
    assert step(run, RunEvent.FAIL, LATER, "second").detail == "second"


def test_a_run_that_has_yielded_waits_for_its_next_attempt():
    run = requeue_yielded(a_run(state=RunState.YIELDING, attempt=2, version=7, started_at=NOW), LATER)
    assert (run.state, run.attempt, run.version, run.started_at) == (RunState.WAITING, 3, 8, NOW)
    assert run.ended_at is None


def test_why_it_was_cancelled_comes_before_why_it_was_to_yield():
    stopping = step(a_run(state=RunState.YIELDING), RunEvent.STOP, LATER, "ann asked for it")
    assert (
        apply_end(stopping, EndRecord(EndReason.YIELDED, 85, detail="lab needs it"), LATER).detail == "ann asked for it"
    )
