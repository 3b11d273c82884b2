"""What is known of a claim, from lists, answers and events, in any order."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.kubernetes.proxy.claims import InstanceKey
from moorings.kubernetes.proxy.instances import ManagedInstance, rebuild_request
from moorings.kubernetes.proxy.observed import (
    ClaimPhase,
    ObservedClaim,
    apply_event,
    merge_observed,
    observe_body,
    observe_created,
)
from moorings.kubernetes.proxy.plan import InstanceClaims
from moorings.wire.shapes import CheckpointShape, ClaimBody, EventBody, ReasonBody

AT = "2026-01-01T00:00:0{}.000000Z"


def event(called: str, second: int, attempt: int = 0, **data: object) -> EventBody:
    partition = None if called in ("claim.created", "claim.cancelled") else f"claim-abc-{attempt}"
    return EventBody(
        seq=second, name=called, at=AT.format(second), claim="claim-abc", partition=partition, pool="p", data=data
    )


LIFE = (
    event("claim.granted", 1, name="job-x-0", devices="0-3"),
    event("claim.broken", 2, why="smoke"),
    event("claim.granted", 3, 1, name="job-x-0-1", devices="4-7"),
    event("claim.ready", 4, 1),
    event("claim.lost", 5, 1, why="vanished"),
    event("claim.releasing", 6, 1, why="released by proxy"),
    event("claim.released", 7, 1),
)


def test_a_life_by_events_alone() -> None:
    created = event("claim.created", 0, owner="kubernetes/lab/n/j/u/0", size=4, gcds=2, replicas_per_gcd=1, priority=1)
    found = observe_created("pod1:8090", created)
    assert found is not None
    assert (found.size, found.gcds, found.priority, found.phase) == (4, 2, 1, ClaimPhase.WAITING)
    seen = []
    for one in LIFE:
        found = apply_event(found, one)
        seen.append((found.phase, found.attempt, found.partition, found.partition_id))
    assert seen == [
        (ClaimPhase.GRANTED, 0, "job-x-0", "claim-abc-0"),
        (ClaimPhase.WAITING, 1, "", ""),
        (ClaimPhase.GRANTED, 1, "job-x-0-1", "claim-abc-1"),
        (ClaimPhase.READY, 1, "job-x-0-1", "claim-abc-1"),
        (ClaimPhase.LOST, 1, "job-x-0-1", "claim-abc-1"),
        (ClaimPhase.RELEASING, 1, "job-x-0-1", "claim-abc-1"),
        (ClaimPhase.ENDED, 1, "job-x-0-1", "claim-abc-1"),
    ]
    assert found.granted_at == AT.format(3)


@pytest.mark.parametrize(("preemptible", "resumable"), [(True, False), (True, True), (False, False)])
def test_that_it_may_be_asked_back_is_known_to_a_proxy_that_begins_anew(preemptible: bool, resumable: bool) -> None:
    """What it asks another controller for is what its job said."""
    place = InstanceKey("n", "j", "u", 0)
    owner = place.owner("lab")
    contract = [resumable, None, 0.0, 0.0]
    told = event("claim.created", 0, owner=owner, size=4, preemptible=preemptible, checkpoint=contract)
    listed = replace(
        body("PENDING"), owner=owner, preemptible=preemptible, checkpoint=CheckpointShape(resumable=resumable)
    )
    for found in (observe_created("pod1:8090", told), observe_body("pod1:8090", listed)):
        assert found is not None
        book = InstanceClaims()
        book.observe(found, 1.0)
        request = rebuild_request(ManagedInstance(place, owner, book))
        assert request is not None
        assert (request.preemptible, request.resumable) == (preemptible, resumable)


def body(state: str, attempt: int = 0, reason: str = "") -> ClaimBody:
    held = state != "PENDING"
    return ClaimBody(
        id="claim-abc",
        name="job-x-0",
        owner="kubernetes/lab/n/j/u/0",
        subject="proxy",
        state=state,
        accelerator="ipu",
        size=4,
        gcds=1,
        replicas_per_gcd=1,
        project="n",
        priority=0,
        preemptible=False,
        attempt=attempt,
        created_at=AT.format(0),
        granted_at=AT.format(1) if held else None,
        partition="job-x-0" if held else None,
        partition_id=f"claim-abc-{attempt}" if held else None,
        reason=ReasonBody(code="queue.no_room", message=reason) if reason else None,
    )


TOLD = (
    observe_body("c", body("PENDING", reason="waits")),
    observe_body("c", body("GRANTED")),
    observe_body("c", body("READY")),
    observe_body("c", body("PENDING", attempt=1)),
    observe_body("c", body("READY", attempt=1)),
)


def test_old_tidings_change_nothing_in_whatever_order_they_come() -> None:
    for order in permutations(TOLD):
        found = order[0]
        for one in order[1:]:
            found = merge_observed(found, one)
        assert (found.attempt, found.phase) == (1, ClaimPhase.READY)


@given(st.lists(st.sampled_from(LIFE), max_size=12), st.sampled_from(TOLD))
def test_nothing_goes_back(events: list[EventBody], first: ObservedClaim) -> None:
    found = first
    for one in events:
        later = apply_event(found, one)
        assert (later.attempt, later.phase) >= (found.attempt, found.phase)
        found = later


def test_a_state_of_a_newer_controller_is_not_ready() -> None:
    assert observe_body("c", body("FLOATING")).phase is ClaimPhase.WAITING


LENT = (
    event("claim.granted", 1, name="job-x-0", devices="0-3"),
    event("claim.ready", 2),
    event("claim.reclaiming", 3, until=1_767_225_660_000_000),
    event("claim.yielding", 4, why="its Pods have ended"),
    replace(event("claim.requeued", 5), partition=None, data={"attempt": 1}),
    event("claim.granted", 6, 1, name="job-x-0-r1", devices="4-7"),
    event("claim.ready", 7, 1),
)


def test_a_claim_that_gives_its_partition_back_waits_again_and_gets_another() -> None:
    found = ObservedClaim(controller="pod1:8090", id="claim-abc", owner="kubernetes/lab/n/j/u/0", size=4)
    seen = []
    for one in LENT:
        found = apply_event(found, one)
        seen.append((found.phase, found.attempt, found.held, found.partition, found.until != ""))
    assert seen == [
        (ClaimPhase.GRANTED, 0, True, "job-x-0", False),
        (ClaimPhase.READY, 0, True, "job-x-0", False),
        (ClaimPhase.RECLAIMING, 0, True, "job-x-0", True),
        (ClaimPhase.RELEASING, 0, False, "job-x-0", True),
        (ClaimPhase.WAITING, 1, False, "", False),
        (ClaimPhase.GRANTED, 1, True, "job-x-0-r1", False),
        (ClaimPhase.READY, 1, True, "job-x-0-r1", False),
    ]


@pytest.mark.parametrize(
    ("first", "fresh"), [("PENDING", True), ("GRANTED", True), ("READY", False), ("LOST", False), ("FLOATING", False)]
)
def test_a_claim_that_was_ready_when_it_was_first_seen_may_have_been_used(first: str, fresh: bool) -> None:
    seen = observe_body("c", body(first))
    assert merge_observed(seen, observe_body("c", body("READY"))).fresh is fresh
    assert apply_event(seen, event("claim.ready", 2)).fresh is fresh
    assert merge_observed(observe_body("c", body("READY")), seen).fresh is False, "a late word proves nothing"


def test_whether_a_partition_may_have_been_used_begins_anew_with_each_attempt() -> None:
    found, seen = observe_body("c", body("READY")), []
    for one in LENT[2:]:
        found = apply_event(found, one)
        seen.append(found.fresh)
    assert seen == [False, False, True, True, True]
    missed = apply_event(observe_body("c", body("GRANTED")), event("claim.ready", 4, 1))
    assert (missed.attempt, missed.fresh) == (1, False)


def test_a_list_tells_until_when_a_claim_may_keep_its_partition() -> None:
    until = "2026-01-01T00:01:00.000000Z"
    listed = observe_body("pod1:8090", replace(body("RECLAIMING"), asked_until=until))
    assert (listed.phase, listed.until, listed.held) == (ClaimPhase.RECLAIMING, until, True)
    assert observe_body("pod1:8090", body("YIELDING")).phase is ClaimPhase.RELEASING
