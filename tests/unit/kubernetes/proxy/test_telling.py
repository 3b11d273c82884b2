"""What is told of partitions: to the operator, in the tracker, in numbers; little changes while nothing new is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moorings.kubernetes.proxy import metrics, tracker
from moorings.kubernetes.proxy.asking import Place
from moorings.kubernetes.proxy.choice import Book, Wish
from moorings.kubernetes.proxy.keeper import Keeper
from moorings.kubernetes.proxy.known import Known, Phase
from moorings.kubernetes.proxy.records import Record
from moorings.kubernetes.proxy.shapes import PartitionBody, PartitionsBody, is_given_back
from moorings.kubernetes.proxy.telling import body_of

PLACE = Place("a", "j", "u", 0)
WAITS = Known(controller="pod1:8090", id="claim-x", owner=PLACE.owner("lab"), size=4)


def told(code: str, message: str) -> tuple[str, str, str]:
    book = Book()
    book.note(replace(WAITS, code=code, message=message), 1.0)
    body = body_of(Record(PLACE, PLACE.owner("lab"), book), {}, "2026-01-01T00:00:00.000000Z")
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


def test_what_only_makes_room_is_not_given_back() -> None:
    book = Book()
    book.note(replace(WAITS, phase=Phase.RELEASING), 1.0)
    record = Record(PLACE, PLACE.owner("lab"), book)
    assert (body_of(record, {}, "").state, is_given_back(body_of(record, {}, ""))) == ("RELEASING", False)
    book.wish = Wish.OVER
    assert (body_of(record, {}, "").state, is_given_back(body_of(record, {}, ""))) == ("RELEASING", True)


def test_a_ready_partition_says_which_claim_it_is() -> None:
    book = Book()
    held = replace(WAITS, phase=Phase.READY)
    book.note(held, 1.0)
    record = Record(PLACE, PLACE.owner("lab"), book)
    record.choice = replace(record.choice, winner=held)
    assert body_of(record, {}, "").claim == "claim-x"


def test_a_large_tracker_is_written_less_often() -> None:
    one = PartitionBody(namespace="a", job="j", uid="u", instance=0, state="READY", ipus=4)
    assert tracker.pause_s(tracker.view([one])) == 2.0
    many = tracker.pause_s(tracker.view([one] * 400))
    assert 2.0 < many < 30.0
    assert tracker.pause_s(tracker.view([one] * 8000)) == 30.0


class Counted(Keeper):
    """Counts how often all partitions are walked over."""

    walks = 0

    def partitions(self, namespace: str = "", job: str = "") -> PartitionsBody:
        self.walks += 1
        return super().partitions(namespace, job)


def test_numbers_are_made_once_in_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Counted("lab", {}, "abc", lambda: 0)
    numbers = metrics.Metrics(keeper)
    before = keeper.walks
    assert len({numbers.text() for _ in range(20)}) == 1
    assert keeper.walks == before + 1
    monkeypatch.setattr(numbers, "_fresh_until", 0.0)
    numbers.text()
    assert keeper.walks == before + 2
