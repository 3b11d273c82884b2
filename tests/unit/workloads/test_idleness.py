"""When a run is idle: never on one reading, never on a missing one, and never again once it works."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.timestamps import Timestamp, add_seconds, seconds_between
from moorings.workloads.idleness import (
    QUIET_READINGS,
    WORK_SHARE,
    IdleLimits,
    Idleness,
    RunUsage,
    UsageReading,
    find_idleness,
    next_usage,
)
from tests.cases import cases

BEGIN = Timestamp(1_700_000_000_000_000)
LIMITS = IdleLimits(after_s=1800.0, admin_after_s=14_400.0)
INTERVAL_S = LIMITS.interval_s


def read(readings: Sequence[tuple[float, float]], limits: IdleLimits = LIMITS) -> list[Idleness | None]:
    """What was found at each reading; a reading is the time since the one before, and what was used in that time."""
    found: list[Idleness | None] = []
    usage: RunUsage | None = None
    at, used_s = BEGIN, 5.0
    for passed_s, more_s in readings:
        at, used_s = add_seconds(at, passed_s), used_s + more_s
        usage = next_usage(usage, UsageReading(0, used_s), at, limits.interval_s)
        found.append(find_idleness(usage, limits))
    return found


QUIET, BUSY = (INTERVAL_S, 0.0), (INTERVAL_S, 1.0)


def test_it_is_idle_after_a_while_and_later_admins_are_shown_it():
    found = read([QUIET] * 300)
    first, long = found.index(Idleness(Timestamp(BEGIN + 60_000_000))), [each and each.is_long for each in found]
    assert (first, long.index(True)) == (30, 240), "after 30 minutes, and after four hours"
    assert all(long[240:])
    assert {each.since for each in found[30:] if each is not None} == {add_seconds(BEGIN, 60.0)}


def test_a_run_that_works_again_is_not_idle_any_more():
    found = read([QUIET] * 40 + [BUSY] + [QUIET] * 31)
    assert found[39] is not None
    assert found[40:71] == [None] * 30 + [found[70]]
    assert found[70] == Idleness(add_seconds(BEGIN, 41 * 60.0)), "since it worked"


@cases(
    ("used_s", "is_idle"),
    [(0.0, True), (0.5 * WORK_SHARE * INTERVAL_S, True), (WORK_SHARE * INTERVAL_S, False)],
)
def test_a_little_cpu_is_no_work(used_s, is_idle):
    assert (read([(INTERVAL_S, used_s)] * 100)[-1] is not None) == is_idle


@cases("gap_s", [3600.0, 86_400.0, -60.0, 0.0], ids=str)
def test_after_a_gap_or_a_clock_that_was_set_the_time_begins_again(gap_s):
    found = read([QUIET] * 40 + [(gap_s, 0.0)] + [QUIET] * 30)
    assert found[39] is not None
    assert found[40:70] == [None] * 30
    assert found[70] is not None


def test_a_late_reading_is_no_gap():
    assert read([(70.0, 0.0)] * 40)[-1] is not None


def test_a_count_that_goes_back_begins_again():
    assert read([QUIET] * 40 + [(INTERVAL_S, -1.0)])[-1] is None


def test_another_attempt_begins_again():
    quiet = RunUsage(UsageReading(0, 5.0), add_seconds(BEGIN, 7200.0), BEGIN, quiet=120)
    assert find_idleness(quiet, LIMITS) is not None
    after = next_usage(quiet, UsageReading(1, 5.0), add_seconds(quiet.read_at, 60.0), INTERVAL_S)
    assert find_idleness(after, LIMITS) is None


@cases(
    ("limits", "found"),
    [
        (IdleLimits(0.0, 14_400.0), None),
        (IdleLimits(1800.0, 0.0), False),
        (IdleLimits(1800.0, 60.0), True),
        (IdleLimits(1800.0, 1800.0), True),
    ],
    ids=str,
)
def test_each_limit_can_be_off(limits, found):
    (last,) = read([QUIET] * 100, limits)[-1:]
    assert (last.is_long if last is not None else None) == found


def test_the_interval_is_a_part_of_the_limit_within_bounds():
    assert [IdleLimits(after_s, 0.0).interval_s for after_s in (1.0, 10.0, 1800.0)] == [0.5, 2.0, 60.0]


READINGS = st.lists(st.tuples(st.sampled_from([0.0, 30.0, 60.0, 61.0, 500.0]), st.sampled_from([0.0, 0.01, 2.0])))


@given(READINGS, st.sampled_from([60.0, 300.0, 1800.0]))
def test_an_idle_run_has_not_worked_for_all_that_time_and_several_readings(readings, after_s):
    limits = IdleLimits(after_s, 2 * after_s)
    found = read(readings, limits)
    ends = [BEGIN]
    for passed_s, _ in readings:
        ends.append(add_seconds(ends[-1], passed_s))
    for number, (idle, now) in enumerate(zip(found, ends[1:], strict=True)):
        if idle is None:
            continue
        assert seconds_between(idle.since, now) >= (2 * after_s if idle.is_long else after_s)
        since = [at for at, end in enumerate(ends[1:]) if idle.since < end <= now and at <= number]
        assert len(since) >= QUIET_READINGS
        assert all(readings[at][1] < WORK_SHARE * readings[at][0] for at in since)
        assert all(readings[at][0] <= 2 * limits.interval_s + 10.0 for at in since)
