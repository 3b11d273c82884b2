"""When what waits would start: what is asked about next, and what of the answers is news."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.kubernetes.proxy.claims import InstanceKey
from moorings.kubernetes.proxy.estimates import AGAIN_S, FIRST_S, choose_queries, has_changed, parse_estimate
from moorings.kubernetes.proxy.instances import EstimatedStart, ManagedInstance
from moorings.kubernetes.proxy.observed import ClaimPhase, ObservedClaim
from moorings.kubernetes.proxy.plan import InstanceClaims
from moorings.kubernetes.proxy.status_text import build_body
from moorings.wire.codec import format_time
from moorings.wire.shapes import EstimateBody

POD1, POD2 = "pod1:8090", "pod2:8090"
NOW = Timestamp(1_790_000_000_000_000)
TIME = format_time(NOW)


def waits(number: int, *controllers: str, learned: float = 0.0) -> ManagedInstance:
    place = InstanceKey("a", f"job-{number}", "u", 0)
    book = InstanceClaims()
    for controller in controllers:
        book.observe(
            ObservedClaim(controller=controller, id=f"claim-{number}", owner=place.owner("lab"), size=4), learned
        )
    return ManagedInstance(place, place.owner("lab"), book)


def key(record: ManagedInstance, controller: str = POD1) -> tuple[str, str]:
    return controller, record.key.job.replace("job", "claim")


def at(seconds: float) -> str:
    return format_time(add_seconds(NOW, seconds))


def test_each_controller_is_asked_about_one_claim_that_waits_there() -> None:
    first, second = waits(1, POD1, POD2), waits(2, POD2)
    found = choose_queries([first, second], {POD1, POD2}, 100.0, TIME)
    assert {name: question.record for name, question in found.items()} == {POD1: first, POD2: first}
    assert choose_queries([first, second], {POD2}, 100.0, TIME).keys() == {POD2}


def test_what_was_not_asked_about_for_longest_comes_next() -> None:
    first, second, third = waits(1, POD1), waits(2, POD1), waits(3, POD1)
    first.estimates[key(first)] = EstimatedStart(asked_at=20.0)
    second.estimates[key(second)] = EstimatedStart(asked_at=10.0)
    assert choose_queries([first, second, third], {POD1}, 1000.0, TIME)[POD1].record is third
    assert choose_queries([first, second], {POD1}, 1000.0, TIME)[POD1].record is second
    first.estimates[key(first)] = EstimatedStart(at(-1), asked_at=20.0)
    assert choose_queries([first, second], {POD1}, 1000.0, TIME)[POD1].record is first, "it should have started"


def test_nothing_is_asked_about_too_soon() -> None:
    record = waits(1, POD1, learned=100.0)
    assert choose_queries([record], {POD1}, 100.0 + FIRST_S / 2, TIME) == {}
    record.estimates[key(record)] = EstimatedStart(asked_at=200.0)
    assert choose_queries([record], {POD1}, 200.0 + AGAIN_S / 2, TIME) == {}
    assert choose_queries([record], {POD1}, 200.0 + AGAIN_S, TIME).keys() == {POD1}


def test_what_does_not_wait_any_more_has_no_estimate() -> None:
    record = waits(1, POD1)
    record.estimates[key(record)] = EstimatedStart(at(60))
    record.claims.claims[key(record)] = replace(record.claims.claims[key(record)], phase=ClaimPhase.GRANTED)
    assert choose_queries([record], {POD1}, 100.0, TIME) == {}
    assert record.estimates == {}


@pytest.mark.parametrize(
    ("before", "found", "news"),
    [
        (None, EstimatedStart(at(600)), True),
        (None, EstimatedStart(), False),
        (EstimatedStart(at(600)), EstimatedStart(at(650)), False),
        (EstimatedStart(at(600)), EstimatedStart(at(670)), True),
        (EstimatedStart(at(86_400)), EstimatedStart(at(86_400 + 3_600)), False),
        (EstimatedStart(at(600)), EstimatedStart(why="1 claim has no time limit"), True),
        (EstimatedStart(why="1 claim has no time limit"), EstimatedStart(at(600)), True),
        (EstimatedStart(why="a"), EstimatedStart(why="a"), False),
    ],
)
def test_only_news_are_told(before: EstimatedStart | None, found: EstimatedStart, news: bool) -> None:
    assert has_changed(before, found, NOW) is news


def test_what_a_controller_says_is_read() -> None:
    assert parse_estimate(None, 1.0) is None
    assert parse_estimate(EstimateBody(starts_now=False, starts_at=at(5)), 1.0) == EstimatedStart(at(5), asked_at=1.0)
    assert parse_estimate(EstimateBody(starts_now=False, why="too long"), 1.0) == EstimatedStart(
        why="too long", asked_at=1.0
    )


def test_what_names_another_s_claim_is_not_passed_on() -> None:
    rule = "what is left of the 8 devices of project a is kept for secret-1a2b3c-0, which comes first"
    found = parse_estimate(
        EstimateBody(starts_now=False, why=f"{rule}; 1 claim that holds devices has no time limit"), 1.0
    )
    assert found == EstimatedStart(why="1 claim that holds devices has no time limit", asked_at=1.0)


def test_of_several_controllers_the_first_to_have_room_is_told() -> None:
    record = waits(1, POD1, POD2)
    record.estimates = {
        key(record, POD1): EstimatedStart(why="nobody knows"),
        key(record, POD2): EstimatedStart(at(60)),
    }
    body = build_body(record, {}, TIME)
    assert (body.starts_at, body.unsure) == (at(60), "")
    record.estimates[key(record, POD1)] = EstimatedStart(at(30))
    assert build_body(record, {}, TIME).starts_at == at(30)
    record.estimates = {key(record, POD1): EstimatedStart(why="nobody knows")}
    assert (build_body(record, {}, TIME).starts_at, build_body(record, {}, TIME).unsure) == (None, "nobody knows")
