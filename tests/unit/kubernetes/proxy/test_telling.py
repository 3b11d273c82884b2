"""What is told of partitions: to the operator, in the tracker, in numbers; little changes while nothing new is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from moorings.client.transport import Endpoint
from moorings.kubernetes.proxy import metrics, publishing, tracker
from moorings.kubernetes.proxy.claims import InstanceKey
from moorings.kubernetes.proxy.controllers import ControllerConnection, ControllerTarget
from moorings.kubernetes.proxy.instances import ManagedInstance
from moorings.kubernetes.proxy.observed import ClaimPhase, ObservedClaim
from moorings.kubernetes.proxy.partition_manager import PartitionManager
from moorings.kubernetes.proxy.plan import DesiredState, InstanceClaims
from moorings.kubernetes.proxy.publishing import WORDS_S, PublishDecision, StatusPublisher, decide_publish
from moorings.kubernetes.proxy.settings import ControllerEntry
from moorings.kubernetes.proxy.status_text import build_body
from moorings.kubernetes.proxy.usage import IpuUsage
from moorings.kubernetes.proxy.watch_cache import WatchCache
from moorings.kubernetes.proxy_api.shapes import PartitionBody, PartitionsBody, is_given_back
from tests.waiting import until_async as until

PLACE = InstanceKey("a", "j", "u", 0)
WAITS = ObservedClaim(controller="pod1:8090", id="claim-x", owner=PLACE.owner("lab"), size=4)


def told(code: str, message: str) -> tuple[str, str, str]:
    book = InstanceClaims()
    book.observe(replace(WAITS, code=code, message=message), 1.0)
    body = build_body(ManagedInstance(PLACE, PLACE.owner("lab"), book), {}, "2026-01-01T00:00:00.000000Z")
    return body.state, body.code, body.message


@pytest.mark.parametrize("code", ["pool.full", "pool.fragmented", "queue.reserved", "queue.next_turn", "pool.newer"])
def test_who_waits_is_told_why_without_counts_and_others_names(code: str) -> None:
    first = told(code, "needs 4: 3 of 16 free; first in line is secret-job (ann)")
    assert first == told(code, "needs 4: 0 of 16 free; first in line is other (bob)")
    assert first[:2] == ("WAITING", code)
    assert first[2]
    assert "secret" not in first[2]


def test_what_is_lacking_is_told() -> None:
    assert told("pool.full", "x")[2] == "no block of 4 IPUs is free"


def link(*, answers: bool) -> ControllerConnection:
    """A controller that is not opened."""
    made = ControllerConnection(
        ControllerTarget(ControllerEntry("one", 1, {}), Endpoint("http://one:1")),
        "",
        PartitionManager("lab", {}, "abc", lambda: 0),
    )
    made.is_reachable = answers
    return made


def waits(links: Mapping[str, ControllerConnection], **codes: str) -> tuple[str, str]:
    """Code and message of an instance that waits with these codes at these controllers."""
    book = InstanceClaims()
    for name, code in codes.items():
        book.observe(replace(WAITS, controller=name, id=f"claim-{name}", code=code), 1.0)
    body = build_body(ManagedInstance(PLACE, PLACE.owner("lab"), book), links, "")
    assert body.state == "WAITING"
    return body.code, body.message


def test_a_place_in_a_queue_counts_before_the_silence_of_another() -> None:
    away, here, other = link(answers=False), link(answers=True), link(answers=True)
    assert waits({"a": away, "b": here}, b="pool.full") == ("pool.full", "no block of 4 IPUs is free")
    assert waits({"a": away, "b": here}, a="pool.full", b="queue.next_turn")[0] == "queue.next_turn"
    assert waits({"a": away, "b": here}) == ("partition.waiting", ""), "one that answers is asked in a moment"
    assert waits({"a": away}, a="pool.full") == ("controller.unreachable", "a does not answer")
    assert waits({"a": here, "b": other}, b="queue.aged", a="pool.full")[0] == "pool.full", "the first in the list"


def test_silence_is_told_where_all_that_answer_refuse() -> None:
    record = ManagedInstance(PLACE, PLACE.owner("lab"), InstanceClaims())
    record.claims.refused["b"] = ("pool.none", "too large")
    body = build_body(record, {"a": link(answers=False), "b": link(answers=True)}, "")
    assert (body.code, body.message) == ("controller.unreachable", "a does not answer")


def test_words_are_published_at_once_and_then_at_the_end_of_a_pause() -> None:
    shown = PartitionBody(namespace="a", job="j", uid="u", instance=0, state="WAITING", ipus=4, message="one")
    first, then = replace(shown, message=""), replace(shown, message="two", since="later")
    assert decide_publish(shown, None, 0.0, 100.0) == PublishDecision(shown)
    assert decide_publish(shown, first, 100.0, 100.0) == PublishDecision(shown), "the first words"
    held_back = decide_publish(then, shown, 100.0, 100.25)
    assert (held_back.body, held_back.requeue_after_s) == (None, WORDS_S - 0.25)
    assert decide_publish(then, shown, 100.0, 100.0 + WORDS_S) == PublishDecision(replace(then, since=shown.since))
    assert decide_publish(shown, shown, 100.0, 100.2) == PublishDecision()
    ready = replace(then, state="READY")
    assert decide_publish(ready, shown, 100.0, 100.2) == PublishDecision(ready)


async def test_the_last_words_are_published_however_often_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "WORDS_S", 0.05)
    journal, links = WatchCache("abc"), {"a": link(answers=True)}
    publisher = StatusPublisher(journal, IpuUsage(), lambda: links, lambda record: publisher.publish(record), lambda: 0)
    record = ManagedInstance(PLACE, PLACE.owner("lab"))
    for number in range(100):
        record.last_error = f"a: {number}"
        publisher.publish(record)
    assert journal.number < 50
    await until(lambda: record.published is not None and record.published.message == "a: 99")
    assert record.publish_timer is None
    record.last_error = "more"
    publisher.publish(record)
    publisher.withdraw(record)
    assert record.publish_timer is None, "nothing is published of what is gone"


def test_what_only_makes_room_is_not_given_back() -> None:
    book = InstanceClaims()
    book.observe(replace(WAITS, phase=ClaimPhase.RELEASING), 1.0)
    record = ManagedInstance(PLACE, PLACE.owner("lab"), book)
    assert (build_body(record, {}, "").state, is_given_back(build_body(record, {}, ""))) == ("RELEASING", False)
    book.desired = DesiredState.RELEASED
    assert (build_body(record, {}, "").state, is_given_back(build_body(record, {}, ""))) == ("RELEASING", True)


def test_a_ready_partition_says_which_claim_it_is() -> None:
    book = InstanceClaims()
    held = replace(WAITS, phase=ClaimPhase.READY)
    book.observe(held, 1.0)
    record = ManagedInstance(PLACE, PLACE.owner("lab"), book)
    record.plan = replace(record.plan, winner=held)
    assert build_body(record, {}, "").claim == "claim-x"


def test_a_large_tracker_is_written_less_often() -> None:
    one = PartitionBody(namespace="a", job="j", uid="u", instance=0, state="READY", ipus=4)
    assert tracker.pause_s(tracker.build_data([one])) == 2.0
    many = tracker.pause_s(tracker.build_data([one] * 400))
    assert 2.0 < many < 30.0
    assert tracker.pause_s(tracker.build_data([one] * 8000)) == 30.0


class Counted(PartitionManager):
    """Counts how often all partitions are walked over."""

    walks = 0

    def partitions(self, namespace: str = "", job: str = "") -> PartitionsBody:
        self.walks += 1
        return super().partitions(namespace, job)


def test_numbers_are_made_once_in_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Counted("lab", {}, "abc", lambda: 0)
    numbers = metrics.ProxyMetrics(keeper)
    before = keeper.walks
    assert len({numbers.text() for _ in range(20)}) == 1
    assert keeper.walks == before + 1
    monkeypatch.setattr(numbers, "_fresh_until", 0.0)
    keeper.links = {"a": link(answers=True), "b": link(answers=True)}
    keeper.links["b"].alias_of = "a"
    text = numbers.text().decode()
    assert keeper.walks == before + 2
    assert 'moorings_proxy_controller_alias{controller="a"} 0.0' in text
    assert 'moorings_proxy_controller_alias{controller="b"} 1.0' in text
