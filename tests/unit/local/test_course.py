"""What a supervisor does next, in every order of events."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.local.lifecycle import SAVED_POLL_S, ObservedRun, RunLimits, SupervisorAction, YieldState, decide_next
from moorings.workloads.runs import EndReason, exit_code

HOUR = RunLimits(time_limit_s=3600, warn_s=120, grace_s=30)
ENDLESS = RunLimits(time_limit_s=None, warn_s=120, grace_s=30)


def at(elapsed_s, **known):
    return ObservedRun(elapsed_s=elapsed_s, tasks_left=known.pop("tasks_left", 2), has_no_processes=False, **known)


def test_without_a_limit_it_waits_for_something_to_happen():
    move = decide_next(at(10**9), ENDLESS)
    assert (move.act, move.wait_at_most_s) == (SupervisorAction.WAIT, None)


def test_it_waits_for_the_warning_then_for_the_limit():
    assert decide_next(at(3000), HOUR).wait_at_most_s == 480
    assert decide_next(at(3480), HOUR).act is SupervisorAction.WARN
    assert decide_next(at(3480, warned=True), HOUR).wait_at_most_s == 120


def test_at_the_limit_it_stops():
    move = decide_next(at(3600, warned=True), HOUR)
    assert (move.act, move.ending) == (SupervisorAction.STOP, EndReason.TIMED_OUT)
    assert "1:00:00" in move.detail


@pytest.mark.parametrize("warn_s", [0, 60, 61])
def test_there_is_no_warning_where_none_fits_before_the_limit(warn_s):
    limits = RunLimits(time_limit_s=60, warn_s=warn_s, grace_s=1)
    assert decide_next(at(0), limits).wait_at_most_s == 60


def test_a_failed_task_stops_the_others():
    move = decide_next(at(1, first_failure="task 1 exited with 3", cancel_reason="and somebody asked"), HOUR)
    assert (move.act, move.ending, move.detail) == (SupervisorAction.STOP, EndReason.EXITED, "task 1 exited with 3")


def test_a_cancel_stops_even_at_the_limit():
    move = decide_next(at(3600, cancel_reason="alice asked"), HOUR)
    assert (move.act, move.ending, move.detail) == (SupervisorAction.STOP, EndReason.CANCELLED, "alice asked")


def test_while_stopping_it_waits_for_the_grace_period_then_kills():
    assert decide_next(at(12, stopping_since_s=10, cancel_reason="x"), HOUR).wait_at_most_s == 28
    assert decide_next(at(40, stopping_since_s=10, cancel_reason="x"), HOUR).act is SupervisorAction.KILL


def test_while_stopping_it_waits_for_what_the_tasks_left_too():
    # A shell script dies of TERM at once; the program in it may be writing its checkpoint.
    assert decide_next(at(12, tasks_left=0, stopping_since_s=10), HOUR).act is SupervisorAction.WAIT


def test_what_is_left_when_every_task_has_ended_is_killed():
    assert decide_next(at(5, tasks_left=0), HOUR).act is SupervisorAction.KILL


# -- making room


def asked(since_s=1000.0, by_s=1120.0, *, warned=True):
    return YieldState("lab needs it", since_s, by_s, warned)


def test_who_is_to_make_room_is_warned_at_once_then_stopped_a_grace_period_before_the_end():
    assert decide_next(at(1000, yielding=asked(warned=False)), ENDLESS).act is SupervisorAction.WARN
    assert decide_next(at(1000, yielding=asked()), ENDLESS).wait_at_most_s == 90
    move = decide_next(at(1090, yielding=asked()), ENDLESS)
    assert (move.act, move.ending, move.detail) == (SupervisorAction.STOP, EndReason.YIELDED, "lab needs it")
    assert decide_next(at(1100, yielding=asked(), stopping_since_s=1090), ENDLESS).wait_at_most_s == 20
    assert decide_next(at(1120, yielding=asked(), stopping_since_s=1090), ENDLESS).act is SupervisorAction.KILL


def test_of_a_short_time_half_is_for_the_warning_and_nothing_runs_beyond_it():
    short = asked(1000, 1010)
    assert decide_next(at(1004, yielding=short), ENDLESS).wait_at_most_s == 1
    assert decide_next(at(1005, yielding=short), ENDLESS).act is SupervisorAction.STOP
    assert decide_next(at(1009, yielding=short, stopping_since_s=1005), ENDLESS).wait_at_most_s == 1
    assert decide_next(at(1010, yielding=short, stopping_since_s=1005), ENDLESS).act is SupervisorAction.KILL


def test_a_pause_has_all_of_its_time_to_save():
    pause = replace(asked(1000, 1035), until_saved=True)  # 5 s to save, and the 30 s of grace
    assert decide_next(at(1004, yielding=pause), ENDLESS).wait_at_most_s == SAVED_POLL_S
    assert decide_next(at(1004.9, yielding=pause), ENDLESS).wait_at_most_s == pytest.approx(0.1)
    assert decide_next(at(1005, yielding=pause), ENDLESS).act is SupervisorAction.STOP
    assert decide_next(at(1035, yielding=pause, stopping_since_s=1005), ENDLESS).act is SupervisorAction.KILL


def test_a_task_that_leaves_because_it_was_asked_does_not_stop_the_others():
    assert decide_next(at(1010, yielding=asked(), first_failure="task 1 exited with 85"), ENDLESS).wait_at_most_s == 80


def test_a_cancel_and_the_time_limit_come_before_the_end_of_making_room():
    assert decide_next(at(1010, yielding=asked(), cancel_reason="ann asked"), HOUR).ending is EndReason.CANCELLED
    late = asked(3550, 3670)
    assert decide_next(at(3560, yielding=late), HOUR).wait_at_most_s == 40
    assert decide_next(at(3600, yielding=late), HOUR).ending is EndReason.TIMED_OUT
    assert decide_next(at(3600, yielding=late, stopping_since_s=3590), RunLimits(None, 0, 600)).wait_at_most_s == 70, (
        "as for any stop"
    )


situations = st.builds(
    ObservedRun,
    elapsed_s=st.floats(0, 1e7),
    tasks_left=st.integers(0, 3),
    has_no_processes=st.booleans(),
    first_failure=st.none() | st.just("failed"),
    cancel_reason=st.none() | st.just("asked"),
    yielding=st.none() | st.builds(YieldState, st.just("lab"), st.floats(0, 1e7), st.floats(0, 1e7), st.booleans()),
    warned=st.booleans(),
    stopping_since_s=st.none() | st.floats(0, 1e7),
)
limits = st.builds(
    RunLimits, time_limit_s=st.none() | st.floats(1, 1e7), warn_s=st.floats(0, 1e4), grace_s=st.floats(0, 1e4)
)


@given(situations, limits)
def test_it_finishes_if_and_only_if_nothing_is_left(now, limits):
    assert (decide_next(now, limits).act is SupervisorAction.FINISH) == now.has_no_processes


@given(situations, limits)
def test_it_never_waits_past_its_next_duty(now, limits):
    move = decide_next(now, limits)
    if move.act is not SupervisorAction.WAIT:
        return
    assert move.wait_at_most_s is None or move.wait_at_most_s > 0
    if now.stopping_since_s is None and limits.time_limit_s is not None:
        assert now.elapsed_s + move.wait_at_most_s <= limits.time_limit_s * (1 + 1e-9)


@pytest.mark.parametrize("ending", [ending for ending in EndReason if ending is not EndReason.EXITED])
def test_only_a_run_that_exited_by_itself_can_end_with_zero(ending):
    assert exit_code(ending, None) != 0
    assert exit_code(ending, 7) == 7
    assert exit_code(EndReason.EXITED, None) == 0


@given(situations, limits)
def test_who_is_to_make_room_has_made_it_in_time(now, limits):
    if now.yielding is None or now.has_no_processes:
        return
    late = replace(
        now, elapsed_s=max(now.elapsed_s, now.yielding.deadline_s), yielding=replace(now.yielding, is_warned=True)
    )
    assert decide_next(late, limits).act in (SupervisorAction.STOP, SupervisorAction.KILL)
    stop_at_s = now.yielding.term_at_s(limits.grace_s)
    assert stop_at_s <= now.yielding.deadline_s
    assert stop_at_s >= min(now.yielding.received_at_s, now.yielding.deadline_s)


KEPT = RunLimits(time_limit_s=3600, warn_s=120, grace_s=30, keep_s=600)


def test_an_unattended_terminal_is_kept_for_its_time_and_no_longer():
    assert decide_next(at(599, unattended_s=599), KEPT).act is SupervisorAction.WAIT
    move = decide_next(at(700, unattended_s=600), KEPT)
    assert (move.act, move.ending) == (SupervisorAction.STOP, EndReason.CANCELLED)
    assert "10:00" in move.detail


def test_an_attended_terminal_ends_at_its_limit_only():
    assert decide_next(at(3000), KEPT).act is SupervisorAction.WAIT
    assert decide_next(at(3600, warned=True, unattended_s=700), KEPT).ending is EndReason.TIMED_OUT
