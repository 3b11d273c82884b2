"""Which claim belongs to which instance: lists, events and responses in any order, limits, and other clusters."""

from __future__ import annotations

import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import Timestamp
from moorings.kubernetes.proxy import cluster_claims
from moorings.kubernetes.proxy.claims import InstanceKey, claim_name
from moorings.kubernetes.proxy.cluster_claims import ENDED_S, SETTLED_S, ClusterClaims
from moorings.kubernetes.proxy.observed import ClaimPhase, observe_body
from moorings.kubernetes.proxy.plan import DesiredState
from moorings.kubernetes.proxy_api.shapes import PartitionRequest
from moorings.wire.codec import format_time
from moorings.wire.shapes import ClaimBody, EventBody

ONE, TWO = "pod1:8090", "pod2:8090"
BEGAN = Timestamp(1_790_000_000_000_000)
LONG_AGO, NOW = format_time(Timestamp(BEGAN - (SETTLED_S + 1) * 1_000_000)), format_time(BEGAN)
PLACE = InstanceKey("ns", "job", "uid", 0)


def table(mark: str = "") -> ClusterClaims:
    return ClusterClaims("lab", mark, BEGAN)


def request(number: int = 0, namespace: str = "ns", **more: object) -> PartitionRequest:
    job = f"job-{number}" if number else "job"
    return PartitionRequest(namespace=namespace, job=job, uid="uid", instance=0, ipus=4, **more)  # type: ignore[arg-type]


def body(
    state: str = "READY", ident: str = "claim-a", place: InstanceKey = PLACE, since: str = NOW, mark: str = ""
) -> ClaimBody:
    return ClaimBody(
        id=ident,
        name=claim_name(place, "lab", mark=mark),
        owner=place.owner("lab"),
        subject="proxy",
        state=state,
        accelerator="ipu",
        size=4,
        gcds=1,
        replicas_per_gcd=1,
        project="ns",
        priority=0,
        preemptible=False,
        attempt=0,
        created_at=since,
        ready_at=since if state == "READY" else None,
    )


def event(called: str, ident: str = "claim-a", **data: object) -> EventBody:
    return EventBody(seq=1, name=called, at=NOW, claim=ident, partition=None, pool="p", data=data)


def created(mark: str = "") -> EventBody:
    return event("claim.created", owner=PLACE.owner("lab"), size=4, name=claim_name(PLACE, "lab", mark=mark))


def phases(claims: ClusterClaims) -> dict[tuple[str, str], ClaimPhase]:
    return {key: known.phase for record in claims.list_instances() for key, known in record.claims.claims.items()}


def test_events_of_a_listed_claim_reach_its_instance() -> None:
    claims = table()
    changed, foreign = claims.apply_list(ONE, [body("PENDING")], 1.0, 1.5, first=True)
    assert (changed, foreign) == ({PLACE.owner("lab")}, [])
    assert claims.apply_events(ONE, [event("claim.granted")], 2.0, listing=False) == [claims.get(PLACE)]
    assert phases(claims) == {(ONE, "claim-a"): ClaimPhase.GRANTED}
    assert claims.apply_events(ONE, [event("claim.granted")], 3.0, listing=False) == [], "nothing new"
    assert claims.apply_events(TWO, [event("claim.lost")], 3.0, listing=False) == [], "another controller's"


def test_only_a_changed_list_reports_owners() -> None:
    claims = table()
    claims.apply_list(ONE, [body()], 1.0, 1.5, first=True)
    assert claims.apply_list(ONE, [body()], 2.0, 2.5, first=False)[0] == set()
    assert claims.apply_list(ONE, [], 3.0, 3.5, first=False)[0] == {PLACE.owner("lab")}
    claims.get(PLACE).claims.uncertain_controllers.add(TWO)
    assert claims.apply_list(TWO, [], 4.0, 4.5, first=False)[0] == {PLACE.owner("lab")}, "it has no unknown claim"


def test_a_created_claim_makes_its_instance_known() -> None:
    claims = table()
    (record,) = claims.apply_events(ONE, [created()], 1.0, listing=True)
    assert (record.key, list(record.claims.claims)) == (PLACE, [(ONE, "claim-a")])
    assert claims.may_hold_claims(ONE)
    assert not claims.may_hold_claims(TWO)


def test_an_event_during_a_list_is_kept_until_the_list_is_there() -> None:
    claims = table()
    assert claims.apply_events(ONE, [event("claim.granted")], 1.0, listing=True) == []
    claims.apply_list(ONE, [body("PENDING")], 0.5, 1.5, first=True)
    kept = claims.take_events(ONE)
    assert len(claims.apply_events(ONE, kept, 1.5, listing=False)) == 1
    assert phases(claims) == {(ONE, "claim-a"): ClaimPhase.GRANTED}


def test_events_of_others_claims_are_not_kept_for_ever() -> None:
    claims = table()
    claims.apply_events(ONE, [event("claim.granted", "of-slurm")], 1.0, listing=True)
    claims.apply_list(ONE, [], 0.5, 1.5, first=True)
    claims.apply_events(ONE, claims.take_events(ONE), 1.5, listing=False)
    assert claims.take_events(ONE) == []


def test_a_late_response_does_not_revive_an_ended_claim() -> None:
    claims = table()
    claims.apply_list(ONE, [body()], 1.0, 1.0, first=True)
    record = claims.get(PLACE)
    claims.apply_events(ONE, [event("claim.released")], 2.0, listing=False)
    claims.apply_claim(record, observe_body(ONE, body()), 3.0)
    claims.apply_owners_list(record, ONE, [observe_body(ONE, body())], 1.5, 3.0)
    assert phases(claims) == {}
    claims.forget_ended(2.0 + ENDED_S + 1)
    claims.apply_claim(record, observe_body(ONE, body()), 400.0)
    assert len(phases(claims)) == 1


def test_a_claim_that_was_ready_long_before_the_process_is_settled() -> None:
    claims = table()
    other = InstanceKey("ns", "other", "uid", 0)
    new = body(ident="claim-b", place=other)
    claims.apply_list(ONE, [body(since=LONG_AGO), new], 1.0, 1.0, first=True)
    assert claims.get(PLACE).claims.settled == {(ONE, "claim-a")}
    assert claims.get(other).claims.settled == set()
    later = table()
    later.apply_list(ONE, [body(since=LONG_AGO)], 1.0, 1.0, first=False)
    assert later.get(PLACE).claims.settled == set(), "this process may have given it out"


def test_another_clusters_claims_are_reported_and_not_tracked() -> None:
    claims = table("mark")
    stranger = body(mark="another")
    assert claims.apply_list(ONE, [stranger], 1.0, 1.0, first=True) == (set(), [stranger])
    assert claims.apply_events(ONE, [created("another")], 2.0, listing=True) == []
    assert claims.take_events(ONE) == []
    assert not claims.instances
    changed, foreign = claims.apply_list(ONE, [body()], 2.0, 2.0, first=False)
    assert (len(changed), foreign) == (1, []), "a claim without a mark may be an earlier release's"


def test_one_namespace_cannot_take_all_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_claims, "NAMESPACE_INSTANCES_MAX", 2)
    monkeypatch.setattr(cluster_claims, "INSTANCES_MAX", 3)
    claims = table()
    first = claims.request_partition(request(1))
    claims.request_partition(request(2))
    with pytest.raises(MooringsError, match="namespace ns has, or waits for, 2 partitions") as refused:
        claims.request_partition(request(3))
    assert (refused.value.code, refused.value.retryable) == ("partition.too_many", True)
    assert claims.request_partition(request(1)) is first, "a known one may be requested again"
    claims.request_partition(request(3, "other"))
    with pytest.raises(MooringsError, match="there are 3 partitions already") as refused:
        claims.request_partition(request(4, "third"))
    assert refused.value.code == "controller.busy"
    claims.remove(first)
    claims.request_partition(request(3))


def test_a_request_after_the_release_changes_nothing() -> None:
    claims = table()
    record = claims.request_partition(request())
    assert (record.claims.desired, record.claims.is_new_job) == (DesiredState.WANTED, False)
    record.claims.desired = DesiredState.RELEASED
    later = format_time(Timestamp(BEGAN + 1))
    assert claims.request_partition(request(job_created_at=later)).claims.desired is DesiredState.RELEASED
    assert not record.claims.is_new_job


@pytest.mark.parametrize(("created_at", "young"), [(LONG_AGO, False), (NOW, True)])
def test_a_job_created_after_the_process_is_young(created_at: str, young: bool) -> None:
    assert table().request_partition(request(job_created_at=created_at)).claims.is_new_job is young


def test_instances_are_listed_by_namespace_and_job() -> None:
    claims = table()
    records = [claims.request_partition(request(*which)) for which in ((1, "a"), (2, "a"), (1, "b"))]
    assert list(claims.list_instances()) == records
    assert list(claims.list_instances("a")) == records[:2]
    assert list(claims.list_instances("", "job-1")) == [records[0], records[2]]
    assert list(claims.list_instances("a", "job-2")) == [records[1]]
    claims.remove(records[1])
    assert list(claims.list_instances("a", "job-2")) == []
    assert claims.find(records[1].key) is None


def test_a_renamed_controller_keeps_its_claims_and_events() -> None:
    claims = table()
    claims.apply_list(ONE, [body()], 1.0, 1.0, first=True)
    claims.rename_controller(ONE, TWO)
    assert phases(claims) == {(TWO, "claim-a"): ClaimPhase.READY}
    assert not claims.may_hold_claims(ONE)
    assert len(claims.apply_events(TWO, [event("claim.lost")], 2.0, listing=False)) == 1
    claims.rename_controller(TWO, ONE)  # and back: it has not ended
    assert phases(claims) == {(ONE, "claim-a"): ClaimPhase.LOST}


def test_a_forgotten_controllers_claims_have_ended() -> None:
    claims = table()
    claims.apply_list(ONE, [body()], 1.0, 1.0, first=True)
    claims.get(PLACE).claims.uncertain_controllers.add(ONE)
    claims.forget_controller(ONE, 2.0)
    assert not claims.may_hold_claims(ONE)
    claims.apply_claim(claims.get(PLACE), observe_body(ONE, body()), 3.0)
    assert phases(claims) == {}
