"""What is known of a claim, from lists, answers and events, in any order."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from moorings.kubernetes.proxy.known import Known, Phase, after, begun, known_of, newer
from moorings.wire.shapes import ClaimBody, EventBody, ReasonBody

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
    found = begun("pod1:8090", created)
    assert found is not None
    assert (found.size, found.gcds, found.priority, found.phase) == (4, 2, 1, Phase.WAITING)
    seen = []
    for one in LIFE:
        found = after(found, one)
        seen.append((found.phase, found.attempt, found.partition, found.partition_id))
    assert seen == [
        (Phase.GRANTED, 0, "job-x-0", "claim-abc-0"),
        (Phase.WAITING, 1, "", ""),
        (Phase.GRANTED, 1, "job-x-0-1", "claim-abc-1"),
        (Phase.READY, 1, "job-x-0-1", "claim-abc-1"),
        (Phase.LOST, 1, "job-x-0-1", "claim-abc-1"),
        (Phase.RELEASING, 1, "job-x-0-1", "claim-abc-1"),
        (Phase.ENDED, 1, "job-x-0-1", "claim-abc-1"),
    ]
    assert found.granted_at == AT.format(3)


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
    known_of("c", body("PENDING", reason="waits")),
    known_of("c", body("GRANTED")),
    known_of("c", body("READY")),
    known_of("c", body("PENDING", attempt=1)),
    known_of("c", body("READY", attempt=1)),
)


def test_old_tidings_change_nothing_in_whatever_order_they_come() -> None:
    for order in permutations(TOLD):
        found = order[0]
        for one in order[1:]:
            found = newer(found, one)
        assert (found.attempt, found.phase) == (1, Phase.READY)


@given(st.lists(st.sampled_from(LIFE), max_size=12), st.sampled_from(TOLD))
def test_nothing_goes_back(events: list[EventBody], first: Known) -> None:
    found = first
    for one in events:
        later = after(found, one)
        assert (later.attempt, later.phase) >= (found.attempt, found.phase)
        found = later


def test_a_state_of_a_newer_controller_is_not_ready() -> None:
    assert known_of("c", body("FLOATING")).phase is Phase.WAITING
