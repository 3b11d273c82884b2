"""What a supervisor does next, in every order of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.local.course import Act, Limits, Situation, choose
from moorings.workloads.runs import Ending, exit_code

HOUR = Limits(time_limit_s=3600, warn_s=120, grace_s=30)
ENDLESS = Limits(time_limit_s=None, warn_s=120, grace_s=30)


def at(elapsed_s, **known):
    return Situation(elapsed_s=elapsed_s, tasks_left=known.pop("tasks_left", 2), childless=False, **known)


def test_without_a_limit_it_waits_for_something_to_happen():
    move = choose(at(10**9), ENDLESS)
    assert (move.act, move.within_s) == (Act.WAIT, None)


def test_it_waits_for_the_warning_then_for_the_limit():
    assert choose(at(3000), HOUR).within_s == 480
    assert choose(at(3480), HOUR).act is Act.WARN
    assert choose(at(3480, warned=True), HOUR).within_s == 120


def test_at_the_limit_it_stops():
    move = choose(at(3600, warned=True), HOUR)
    assert (move.act, move.ending) == (Act.STOP, Ending.TIMED_OUT)
    assert "1:00:00" in move.detail


@pytest.mark.parametrize("warn_s", [0, 60, 61])
def test_there_is_no_warning_where_none_fits_before_the_limit(warn_s):
    limits = Limits(time_limit_s=60, warn_s=warn_s, grace_s=1)
    assert choose(at(0), limits).within_s == 60


def test_a_failed_task_stops_the_others():
    move = choose(at(1, failure="task 1 exited with 3", cancel="and somebody asked"), HOUR)
    assert (move.act, move.ending, move.detail) == (Act.STOP, Ending.EXITED, "task 1 exited with 3")


def test_a_cancel_stops_even_at_the_limit():
    move = choose(at(3600, cancel="alice asked"), HOUR)
    assert (move.act, move.ending, move.detail) == (Act.STOP, Ending.CANCELLED, "alice asked")


def test_while_stopping_it_waits_for_the_grace_period_then_kills():
    assert choose(at(12, stopping_since_s=10, cancel="x"), HOUR).within_s == 28
    assert choose(at(40, stopping_since_s=10, cancel="x"), HOUR).act is Act.KILL


def test_while_stopping_it_waits_for_what_the_tasks_left_too():
    # A shell script dies of TERM at once; the program in it may be writing its checkpoint.
    assert choose(at(12, tasks_left=0, stopping_since_s=10), HOUR).act is Act.WAIT


def test_what_is_left_when_every_task_has_ended_is_killed():
    assert choose(at(5, tasks_left=0), HOUR).act is Act.KILL


situations = st.builds(
    Situation,
    elapsed_s=st.floats(0, 1e7),
    tasks_left=st.integers(0, 3),
    childless=st.booleans(),
    failure=st.none() | st.just("failed"),
    cancel=st.none() | st.just("asked"),
    warned=st.booleans(),
    stopping_since_s=st.none() | st.floats(0, 1e7),
)
limits = st.builds(
    Limits, time_limit_s=st.none() | st.floats(1, 1e7), warn_s=st.floats(0, 1e4), grace_s=st.floats(0, 1e4)
)


@given(situations, limits)
def test_it_finishes_if_and_only_if_nothing_is_left(now, limits):
    assert (choose(now, limits).act is Act.FINISH) == now.childless


@given(situations, limits)
def test_it_never_waits_past_its_next_duty(now, limits):
    move = choose(now, limits)
    if move.act is not Act.WAIT:
        return
    assert move.within_s is None or move.within_s > 0
    if now.stopping_since_s is None and limits.time_limit_s is not None:
        assert now.elapsed_s + move.within_s <= limits.time_limit_s * (1 + 1e-9)


@pytest.mark.parametrize("ending", [ending for ending in Ending if ending is not Ending.EXITED])
def test_only_a_run_that_exited_by_itself_can_end_with_zero(ending):
    assert exit_code(ending, None) != 0
    assert exit_code(ending, 7) == 7
    assert exit_code(Ending.EXITED, None) == 0
