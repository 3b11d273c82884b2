"""The informer's cache and its pauses; how it meets a real API server is in tests/kubernetes."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from moorings.kubernetes.kube.api import WatchEvent
from moorings.kubernetes.kube.informer import PAUSE_MAX_S, ObjectKey, ObjectStore, retry_delay_s, without_managed_fields


def pod(name: str, version: int, job: str = "a", uid: str = "") -> dict:
    metadata = {"namespace": "n", "name": name, "uid": uid or name, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": {"job": job}, "managedFields": [{}]}}


def cache() -> ObjectStore:
    return ObjectStore(lambda found: [found["metadata"]["labels"]["job"]])


def test_an_event_changes_what_is_known_and_tells_old_and_new_owners():
    known = cache()
    assert known.apply_event(WatchEvent("ADDED", pod("p", 1))) == (ObjectKey("n", "p"), {"a"})
    assert known.apply_event(WatchEvent("MODIFIED", pod("p", 2, "b"))) == (ObjectKey("n", "p"), {"a", "b"})
    assert known.indexed("a") == ()
    assert [found["metadata"]["resourceVersion"] for found in known.indexed("b")] == ["2"]
    assert known.apply_event(WatchEvent("DELETED", pod("p", 3, "b"))) == (ObjectKey("n", "p"), {"b"})
    assert len(known) == 0
    assert known.indexed("b") == ()
    assert known.apply_event(WatchEvent("DELETED", pod("p", 3))) == (ObjectKey("n", "p"), set()), (
        "an event twice does no harm"
    )


def test_who_wrote_which_field_is_not_kept():
    found = pod("p", 1)
    assert "managedFields" in found["metadata"]
    assert "managedFields" not in without_managed_fields(found)["metadata"]
    assert without_managed_fields(found) == found


def test_a_list_tells_what_is_new_changed_and_gone_and_nothing_else():
    known = cache()
    known.replace([pod("same", 1), pod("changed", 1), pod("gone", 1), pod("again", 1, uid="first")])
    changes = known.replace([pod("same", 1), pod("changed", 2, "b"), pod("new", 3), pod("again", 1, uid="second")])
    assert {key.name: touched for key, touched in changes} == {
        "gone": {"a"},
        "changed": {"a", "b"},
        "new": {"a"},
        "again": {"a"},
    }


@given(st.lists(st.tuples(st.sampled_from("pqr"), st.sampled_from("ab"), st.booleans()), max_size=30))
def test_the_index_is_what_the_objects_say(moves):
    known = cache()
    there: dict[str, str] = {}
    for version, (name, job, deleted) in enumerate(moves):
        known.apply_event(WatchEvent("DELETED" if deleted else "MODIFIED", pod(name, version, job)))
        if deleted:
            there.pop(name, None)
        else:
            there[name] = job
    for job in "ab":
        names = {found["metadata"]["name"] for found in known.indexed(job)}
        assert names == {name for name, owner in there.items() if owner == job}
    assert {found["metadata"]["name"] for found in known} == set(there)


def test_an_event_costs_the_same_among_ten_thousand_objects_as_among_a_hundred():
    def cost(count: int) -> float:
        known = cache()
        known.replace([pod(f"p{number}", 1, f"j{number % (count // 10)}") for number in range(count)])
        best = float("inf")
        for turn in range(20):
            events = [WatchEvent("MODIFIED", pod(f"p{number}", 2 + turn, f"j{number % 10}")) for number in range(100)]
            begun = time.thread_time()  # of the processor: what others take of it does not count
            for event in events:
                known.apply_event(event)
            best = min(best, time.thread_time() - begun)
        return best

    assert cost(10_000) < 5 * cost(100)


@given(st.integers(0, 10_000), st.floats(0, 300), st.floats(0, 1))
def test_a_pause_is_bounded_and_at_least_what_the_server_asked_for(failures, retry_after_s, chance):
    wanted = retry_delay_s(failures, retry_after_s, chance)
    if failures == 0:
        assert wanted == 0
    else:
        assert max(0.25, retry_after_s) <= wanted <= 2 * max(PAUSE_MAX_S, retry_after_s)
