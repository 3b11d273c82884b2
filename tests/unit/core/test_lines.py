"""Lines: what they answer is what a sorted list of the same claims answers, whatever was put in and taken out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.claims import Claim, ClaimId, ClaimSpec, ClaimState
from moorings.core.model.projects import Project, Projects, UserLimit
from moorings.core.model.timestamps import Timestamp
from moorings.core.placement import pending_classes
from moorings.core.placement.pending_classes import (
    NO_LIMIT_S,
    QUEUE_START,
    PendingClass,
    PendingClassView,
    QueueKey,
    backfill_limit_s,
    class_key,
)

LIMITS = (1.0, 5.0, 20.0, NO_LIMIT_S)
orders = st.tuples(st.integers(-3, 3), st.integers(1, 30).map(Timestamp), st.sampled_from("abc").map(ClaimId))
limits = st.sampled_from(LIMITS)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few claims already make several chunks."""
    monkeypatch.setattr(pending_classes, "CHUNK_MAX", 4)


def next_of(known: dict[QueueKey, float], after: QueueKey, limit_s: float) -> QueueKey | None:
    return min((order for order, limit in known.items() if order > after and limit <= limit_s), default=None)


def same(line: PendingClass, known: dict[QueueKey, float], asked: QueueKey) -> None:
    assert list(line) == sorted(known)
    assert len(line) == len(known)
    assert bool(line) is bool(known)
    assert line.first_key() == min(known, default=None)
    assert line.last_key() == max(known, default=None)
    assert line.by_arrival is not None
    assert [(at, ident) for _, at, ident in line.by_arrival] == sorted((at, ident) for _, at, ident in known)
    for limit_s in LIMITS:
        for after in (QUEUE_START, asked, *known):
            assert line.next_within(after, limit_s) == next_of(known, after, limit_s)
    for after in known:
        assert line.next_within(after) == next_of(known, after, NO_LIMIT_S)


@settings(deadline=None)
@given(st.lists(st.tuples(orders, limits), max_size=40), orders)
def test_a_line_answers_as_a_sorted_list_does(steps: list[tuple[QueueKey, float]], asked: QueueKey) -> None:
    """An order that is in is taken out, another is put in."""
    line, known = PendingClass(), dict[QueueKey, float]()
    for order, limit_s in steps:
        if order in known:
            line.remove(order)
            del known[order]
        else:
            line.add(order, limit_s)
            known[order] = limit_s
        same(line, known, asked)
    for order in sorted(known, key=lambda one: (known[one], one)):
        line.remove(order)
        del known[order]
        same(line, known, asked)


def test_long_lines_stay_in_order_through_splits_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    line, known = PendingClass(), dict[QueueKey, float]()
    for number in range(1000):
        order = (number * 7 % 3, Timestamp(number * 389 % 997 + 1), ClaimId(f"c{number}"))
        known[order] = LIMITS[number * 5 % 4]
        line.add(order, known[order])
    assert list(line) == sorted(known)
    for order in sorted(known)[::3]:
        line.remove(order)
        del known[order]
    assert list(line) == sorted(known)
    found: list[QueueKey] = []
    while (following := line.next_within(found[-1] if found else QUEUE_START, 1.0)) is not None:
        found.append(following)
    assert found == sorted(order for order, limit_s in known.items() if limit_s <= 1.0)


@pytest.mark.parametrize("order", [(0, Timestamp(2), ClaimId("b")), (0, Timestamp(9), ClaimId("a"))])
def test_who_stands_in_no_line_cannot_leave_it(order: QueueKey) -> None:
    line = PendingClass()
    line.add((0, Timestamp(1), ClaimId("a")), NO_LIMIT_S)
    line.add((0, Timestamp(3), ClaimId("a")), NO_LIMIT_S)
    with pytest.raises(AssertionError, match="stands in no line"):
        line.remove(order)


def claim(number: int, limit_s: float, priority: int = 0, owner: str = "local/run") -> Claim:
    told = None if limit_s == NO_LIMIT_S else limit_s
    return Claim(
        id=ClaimId(f"c{number}"),
        name=f"c{number}",
        owner=owner,
        subject="ann",
        spec=ClaimSpec(kind="ipu", size=1, time_limit_s=told, priority=priority),
        state=ClaimState.PENDING,
        arrival=Timestamp(100 + number),
    )


@settings(deadline=None)
@given(
    st.lists(st.tuples(limits, st.integers(0, 1), st.sampled_from(["stays", "gone", "changed", "new"])), max_size=25),
    st.booleans(),
)
def test_a_view_is_the_line_without_the_gone_and_with_the_added(
    given: list[tuple[float, int, str]],
    without_line: bool,
) -> None:
    line, held, gone, added, known = PendingClass(), dict[ClaimId, Claim](), dict[ClaimId, object](), [], list[Claim]()
    for number, (limit_s, priority, fate) in enumerate(given):
        one = claim(number, limit_s, priority)
        if fate != "new":
            held[one.id] = one
            if not without_line:
                line.add(one.queue_key, backfill_limit_s(one))
        if fate in ("gone", "changed"):
            gone[one.id] = None
        if fate == "changed":  # its priority is another one now
            one = replace(one, spec=replace(one.spec, priority=1 - priority))
        if fate in ("changed", "new"):
            gone[one.id] = None
            added.append(one)
        if fate in ("changed", "new") or (fate == "stays" and not without_line):
            known.append(one)
    view = PendingClassView(None if without_line else line, held, gone, added)
    known.sort(key=lambda one: one.queue_key)
    assert view.first() == (known[0] if known else None)
    for limit_s in LIMITS:
        found: list[Claim] = []
        while (following := view.next(found[-1].queue_key if found else QUEUE_START, limit_s)) is not None:
            found.append(following)
        assert found == [one for one in known if backfill_limit_s(one) <= limit_s]


@settings(deadline=None)
@given(
    st.lists(st.tuples(limits, st.integers(-1, 1), st.sampled_from(["stays", "gone", "changed", "new"])), max_size=25),
    st.integers(-1, 26),
    st.integers(-1, 2),
)
def test_the_aged_of_a_view_are_those_that_came_by_then_first_come_first(
    given: list[tuple[float, int, str]], number_by: int, below: int
) -> None:
    line, held, gone, added, known = PendingClass(), dict[ClaimId, Claim](), dict[ClaimId, object](), [], list[Claim]()
    for number, (limit_s, priority, fate) in enumerate(given):
        one = claim(number, limit_s, priority)
        if fate != "new":
            held[one.id] = one
            line.add(one.queue_key, backfill_limit_s(one))
        if fate == "changed":
            one = replace(one, spec=replace(one.spec, priority=1 - priority))
        if fate != "stays":
            gone[one.id] = None
        if fate in ("changed", "new"):
            added.append(one)
        if fate != "gone":
            known.append(one)
    by = Timestamp(100 + number_by)
    aged = PendingClassView(line, held, gone, added).aged(by, below)
    expected = [one for one in known if one.arrival <= by]
    if not expected or all(one.spec.priority >= below for one in known):
        assert aged is None or aged.first() == next(iter(expected), None), "what is gone may still be seen there"
        if not gone:
            assert aged is None
        return
    assert aged is not None
    assert aged.first() == expected[0]
    for limit_s in LIMITS:
        found: list[Claim] = []
        while (following := aged.next(found[-1].queue_key if found else QUEUE_START, limit_s)) is not None:
            found.append(following)
        assert found == [one for one in expected if backfill_limit_s(one) <= limit_s]


def test_what_a_person_claims_by_hand_has_no_end() -> None:
    assert backfill_limit_s(claim(1, 20.0)) == 20.0
    assert backfill_limit_s(claim(1, NO_LIMIT_S)) == NO_LIMIT_S
    assert backfill_limit_s(claim(1, 20.0, owner="user/ann")) == NO_LIMIT_S


def test_who_pays_parts_lines_only_where_there_are_projects() -> None:
    one = claim(1, NO_LIMIT_S)
    other = replace(one, subject="bob", spec=replace(one.spec, project="lab", preemptible=True))
    limited = Projects([Project(name="lab", user_devices_max=4)])
    assert class_key(one, Projects()) == class_key(other, Projects())
    assert class_key(one, limited) != class_key(other, limited)
    lab = Projects([Project(name="lab")])
    assert class_key(other, lab) == class_key(replace(other, subject="ann"), lab)
    few = Projects([Project(name="lab", user_limits=(UserLimit("bob", 4),))])
    for counted in (limited, few):
        assert class_key(other, counted) != class_key(replace(other, subject="ann"), counted)
    assert class_key(other, lab) != class_key(replace(other, spec=replace(other.spec, preemptible=False)), lab)
    assert class_key(one, lab) == class_key(replace(one, spec=replace(one.spec, priority=3, time_limit_s=4.0)), lab)
