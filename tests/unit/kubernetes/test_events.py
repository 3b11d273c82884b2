"""Events: what is told is bounded, counted and never in the way."""

from __future__ import annotations

import asyncio

from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.kube.events import COMBINED, EventAggregator, EventKey, EventRateLimit, EventRecorder
from tests.unit.kubernetes.objects_kept import KeptObjects
from tests.waiting import until_async

NOW = Timestamp(1_000_000_000)
SECOND = 1_000_000


def test_an_object_may_tell_25_things_at_once_and_then_one_in_five_minutes():
    spam = EventRateLimit()
    assert [spam.allow("a", NOW) for _ in range(30)] == [True] * 25 + [False] * 5
    assert spam.allow("b", NOW), "others are not affected"
    later = Timestamp(NOW + 299 * SECOND)
    assert not spam.allow("a", later)
    assert spam.allow("a", Timestamp(NOW + 301 * SECOND))
    assert not spam.allow("a", Timestamp(NOW + 302 * SECOND))


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing():
    spam = EventRateLimit(burst=2)
    assert spam.allow("a", NOW)
    assert spam.allow("a", Timestamp(0))
    assert not spam.allow("a", Timestamp(0))


def test_memory_is_bounded_and_the_oldest_are_forgotten():
    spam = EventRateLimit(burst=1, known_max=10)
    assert all(spam.allow(str(number), NOW) for number in range(100))
    assert len(spam._left) == 10
    assert spam.allow("0", NOW)
    assert not spam.allow("99", NOW)


def about(message: str, reason: str = "FailedCreate") -> EventKey:
    return EventKey("graphcore.ai/v1alpha1", "IPUJob", "a", "job", "uid", "Warning", reason, message)


def test_after_ten_of_one_reason_with_different_words_they_are_counted_as_one():
    similar = EventAggregator()
    told = [similar.combine(about(f"used: {number}"), NOW) for number in range(13)]
    assert told[:10] == [about(f"used: {number}") for number in range(10)]
    assert set(told[10:]) == {about(COMBINED)}
    assert similar.combine(about("used: 3"), NOW) == about("used: 3"), "the same words are counted by themselves"
    assert similar.combine(about("x", "Restarting"), NOW) == about("x", "Restarting"), "another reason"
    later = Timestamp(NOW + 601 * SECOND)
    assert similar.combine(about("used: 20"), later) == about("used: 20")


async def test_refusals_are_bounded_and_hide_nothing_else() -> None:
    kept = KeptObjects()
    recorder = EventRecorder(kept, "ipu-operator", "a", lambda: NOW)
    job = {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "job", "namespace": "a"}}
    for number in range(100):
        recorder.record(job, "Warning", "FailedCreate", f"exceeded quota: used {number}")
    recorder.record(job, "Normal", "Completed", "All instances done")
    serving = asyncio.create_task(recorder.serve())
    try:
        await until_async(lambda: len(kept.objects) == 12)
    finally:
        serving.cancel()
    told = {one["message"]: (one["reason"], one["count"]) for one in kept.objects.values()}
    assert told["All instances done"] == ("Completed", 1)
    assert told["(combined from similar events): exceeded quota: used 24"] == ("FailedCreate", 15)
    assert recorder.dropped == 75
