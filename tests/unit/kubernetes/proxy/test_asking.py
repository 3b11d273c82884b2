"""Names, keys and owners: what a controller is asked for follows from the job alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.claims import check_new_name, check_owner
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.claims import (
    InstanceKey,
    check_cluster,
    check_request,
    claim_key,
    claim_name,
    claim_request,
    is_clusters_claim,
    parse_instance_key,
)
from moorings.kubernetes.proxy_api.shapes import PartitionRequest
from tests.cases import cases

UID = "6f1b2c1a-7d52-4d0f-9d6b-0d3c6a7e5b11"
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?", fullmatch=True)
places = st.builds(InstanceKey, names, names, st.uuids().map(str), st.integers(0, 99_999))


@given(places, st.integers(0, 3))
def test_a_name_is_one_that_the_vendor_takes_and_says_whose_it_is(place: InstanceKey, attempt: int) -> None:
    name = claim_name(place, "lab", attempt)
    assert check_new_name(name) == name
    assert name.endswith(f"-{place.instance}")
    assert name.startswith(place.job[:20])


def test_names_differ_over_namespaces_jobs_and_attempts() -> None:
    place = InstanceKey("a", "training", UID, 0)
    others = [
        InstanceKey("b", "training", UID, 0),
        InstanceKey("a", "training", UID, 1),
        InstanceKey("a", "training", "x", 0),
    ]
    found = {claim_name(one, "lab") for one in (place, *others)} | {claim_name(place, "lab", 1), claim_name(place, "c")}
    assert len(found) == 6


@given(places, st.integers(0, 5), st.text("0123456789abcdef-", min_size=1, max_size=36))
def test_a_marked_name_is_known_by_its_own_cluster_alone(place: InstanceKey, attempt: int, mark: str) -> None:
    name = claim_name(place, "lab", attempt, mark)
    assert check_new_name(name) == name
    assert name.endswith(f"-{place.instance}")
    assert is_clusters_claim(name, place, "lab", mark)
    assert not is_clusters_claim(name, place, "lab", f"another-{mark}")
    assert is_clusters_claim(claim_name(place, "lab", attempt), place, "lab", mark), "an earlier release marked none"
    assert is_clusters_claim(name, place, "lab", ""), "who has no mark knows no others"
    assert not is_clusters_claim(None, place, "lab", mark)


@given(places)
def test_an_owner_is_read_back(place: InstanceKey) -> None:
    owner = check_owner(place.owner("lab"))
    assert parse_instance_key(owner, "lab") == place
    assert parse_instance_key(owner, "la") is None
    assert parse_instance_key(f"{owner}/0", "lab") is None


@pytest.mark.parametrize(
    "owner", ["user/ann", "kubernetes/lab/ns/job/uid", "kubernetes/lab/ns/job/uid/x", "kubernetes/lab/a/b/c/01"]
)
def test_strangers_claims_are_none_of_ours(owner: str) -> None:
    assert parse_instance_key(owner, "lab") is None


def test_a_key_is_the_owners_for_ever() -> None:
    owner = InstanceKey("a", "training", UID, 0).owner("lab")
    assert claim_key(owner, 0) == claim_key(owner, 0)
    assert len({claim_key(owner, 0), claim_key(owner, 1), claim_key(f"{owner}0", 0)}) == 3


def test_a_project_is_the_namespace_unless_it_is_mapped() -> None:
    request = PartitionRequest(namespace="research", job="j", uid=UID, instance=0, ipus=4, gcds=2, priority=3)
    place = check_request(request, "lab")
    asked = claim_request(request, place, "lab", {}, waits=False)
    assert (asked.project, asked.queue, asked.size, asked.gcds, asked.priority) == ("research", "never", 4, 2, 3)
    assert claim_request(request, place, "lab", {"research": "nlp"}, waits=True).project == "nlp"


def test_since_when_it_waits_is_passed_on() -> None:
    since = "2026-11-25T10:00:00.000000Z"
    request = PartitionRequest(namespace="research", job="j", uid=UID, instance=0, ipus=4, waiting_since=since)
    assert claim_request(request, check_request(request, "lab"), "lab", {}, waits=True).waiting_since == since


@cases(
    "change",
    [
        {"namespace": "A"},
        {"namespace": "a/b"},
        {"job": "../x"},
        {"uid": ""},
        {"instance": -1},
        {"ipus": 0},
        {"ipus": 1 << 21},
        {"gcds": 5},
        {"replicas_per_gcd": 0},
        {"priority": 10**9},
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    given = {"namespace": "a", "job": "j", "uid": UID, "instance": 0, "ipus": 4} | change
    with pytest.raises(MooringsError) as refused:
        check_request(PartitionRequest(**given), "lab")  # type: ignore[arg-type]
    assert refused.value.code == "body.invalid"


def test_a_cluster_is_called_so_that_owners_can_name_it() -> None:
    assert check_cluster("lab-1") == "lab-1"
    with pytest.raises(MooringsError, match="cluster name 'a/b'"):
        check_cluster("a/b")
