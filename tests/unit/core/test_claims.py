"""Claims: what may be asked for, by what name, for whom, and what a claim remembers of its moves."""

from __future__ import annotations

import contextlib
import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.access import OWNER_KINDS
from moorings.core.model.claims import (
    LEASE_S_MAX,
    LEASE_S_MIN,
    NAME_CHARS_MAX,
    OWNER_CHARS_MAX,
    PRIORITY_MAX,
    SIZE_MAX,
    TIME_LIMIT_S_MAX,
    WARN_SIGNALS,
    CheckpointContract,
    ClaimEvent,
    ClaimId,
    ClaimSpec,
    ClaimState,
    check_name,
    check_new_name,
    check_owner,
    check_spec,
    claim_spec_payload,
    digested_warn_signal,
    step,
)
from moorings.core.model.errors import MooringsError
from moorings.core.model.reasons import Reason
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.testing.builders import NOW, POOL, a_claim
from tests.cases import cases

LATER = Timestamp(NOW + SECOND)


def spec(**more: Any) -> ClaimSpec:
    return replace(ClaimSpec(kind="ipu", size=4), **more)


def refused(code: str, **more: Any) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        check_spec(spec(**more))
    assert caught.value.code == code
    return caught.value


# -- names ---------------------------------------------------------------------------------------------------------


@cases("name", ["a", "0", "job-1", "a.b_c-d", "4train", "a--b", "a..b", "x" * NAME_CHARS_MAX])
def test_a_name_a_vendor_takes_is_allowed(name):
    assert check_name(name) == name


@cases(
    "name",
    [
        "",
        ".a",
        "a.",
        "-a",
        "a-",
        "_a",
        "a_",
        ".",
        "A",
        "Job",
        "a b",
        "a/b",
        "a:b",
        "a\n",
        "\0",
        "ä",
        "٣",
        "$(x)",
        "a;b",
    ],
)
def test_a_name_with_wrong_characters_is_refused_and_the_right_ones_are_told(name):
    with pytest.raises(MooringsError) as caught:
        check_name(name)
    assert caught.value.code == "name.invalid"
    assert "lower-case letters" in caught.value.hint


def test_36_characters_are_allowed_and_37_are_not():
    assert check_name("a" * 36)
    with pytest.raises(MooringsError, match="37 characters; at most 36") as caught:
        check_name("a" * 37)
    assert caught.value.code == "name.invalid"
    assert "misleading" in caught.value.hint


def test_a_huge_name_does_not_make_a_huge_message():
    with pytest.raises(MooringsError) as caught:
        check_name("a" * 1_000_000)
    assert len(str(caught.value)) < 200


def test_the_complaint_says_whose_name_it_is():
    with pytest.raises(MooringsError, match="partition name"):
        check_name("A", what="partition")


@given(st.text(max_size=40))
def test_what_is_allowed_needs_no_quoting_anywhere(name):
    with contextlib.suppress(MooringsError):
        check_name(name)
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
        assert name[0].isalnum()
        assert name[-1].isalnum()


@pytest.mark.parametrize("name", ["claim-abcdefghij27", "run-abcdefghij27", "run-abcdefghij27-1"])
def test_nobody_chooses_a_name_that_could_be_taken_for_an_id(name):
    assert check_name(name) == name
    with pytest.raises(MooringsError, match="form of an id") as caught:
        check_new_name(name)
    assert caught.value.code == "name.invalid"


@pytest.mark.parametrize("name", ["claim-1", "run-digits", "claim-abcdefghij270", "my-claim-abcdefghij27"])
def test_a_chosen_name_may_begin_as_it_likes(name):
    assert check_new_name(name) == name


# -- owners --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OWNER_KINDS)
def test_every_kind_of_owner_is_known(kind):
    assert check_owner(f"{kind}/x") == f"{kind}/x"


@pytest.mark.parametrize(
    "owner", ["user/ann", "slurm/alpha/1234", "user/ann@site.org", "user/A+b-c_d.e", "local/a/b/c"]
)
def test_an_owner_has_a_kind_and_parts(owner):
    assert check_owner(owner) == owner


@cases(
    "owner",
    [
        *["", "ann", "user", "user/", "/ann", "user//ann", "user/ann/", "User/ann", "bank/ann", "user/a b", "user/ä"],
        "user/ann\n",
        "user/\0",
        "user/" + "a" * 121,
        "user/a/b/c/d/e/f/g",
        "user/..%2f",
        "user/..",
        "user/ann/../bob",
        "local/./x",
        "user/" + "/".join(["a" * 99] * 3),
    ],
    ids=lambda owner: owner[:16],
)
def test_what_is_no_owner_is_refused_and_the_form_is_told(owner):
    with pytest.raises(MooringsError) as caught:
        check_owner(owner)
    assert caught.value.code == "owner.invalid"
    assert "KIND/NAME" in caught.value.hint
    assert len(str(caught.value)) < OWNER_CHARS_MAX


# -- sizes ---------------------------------------------------------------------------------------------------------


def test_what_makes_sense_is_given_back():
    asked = spec(size=64, gcds=4, replicas_per_gcd=8, time_limit_s=60, lease_s=30)
    assert check_spec(asked) is asked


@pytest.mark.parametrize("size", [-1, -64, SIZE_MAX + 1, 10**30])
def test_a_size_out_of_range_is_refused(size):
    assert f"{SIZE_MAX}" in refused("claim.size_invalid", size=size).hint


def test_size_zero_asks_for_nothing():
    assert "at least one device" in refused("claim.size_invalid", size=0).hint


def test_size_zero_with_resources_is_a_claim_without_devices():
    check_spec(spec(size=0, resources={"memory": 1 << 30}))


@cases(("size", "gcds"), [(4, 3), (4, 8), (4, 0), (4, -1), (4, 10**30), (0, 2), (SIZE_MAX, 3)])
def test_gcds_that_do_not_divide_are_refused(size, gcds):
    assert "divide" in refused("claim.gcds_invalid", size=size, gcds=gcds, resources={"memory": 1}).hint


@cases(
    ("size", "gcds", "replicas"), [(8, 2, 3), (8, 2, 8), (8, 8, 2), (8, 1, 0), (8, 1, -1), (8, 1, 10**30), (0, 1, 2)]
)
def test_replicas_that_do_not_divide_are_refused(size, gcds, replicas):
    asked = {"size": size, "gcds": gcds, "replicas_per_gcd": replicas, "resources": {"memory": 1}}
    assert "divide" in refused("claim.replicas_invalid", **asked).hint


@given(
    size=st.integers(-2, 300) | st.integers(),
    gcds=st.integers(-2, 20) | st.integers(),
    replicas=st.integers(-2, 20) | st.integers(),
)
def test_what_is_let_through_divides_without_rest(size, gcds, replicas):
    with contextlib.suppress(MooringsError):
        check_spec(spec(size=size, gcds=gcds, replicas_per_gcd=replicas))
        assert 1 <= size <= SIZE_MAX
        assert size % (gcds * replicas) == 0


# -- the rest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "resources",
    [{"": 1}, {"memory": -1}, {"m" * 37: 1}, {"memory": 1, "fabric": -5}],
    ids=["unnamed", "-1", "long", "2"],
)
def test_resources_that_make_no_sense_are_refused(resources):
    refused("claim.invalid", resources=resources)


@pytest.mark.parametrize("priority", [PRIORITY_MAX + 1, -PRIORITY_MAX - 1, 10**30])
def test_a_priority_out_of_range_is_refused(priority):
    assert str(PRIORITY_MAX) in refused("claim.invalid", priority=priority).hint


@cases("project", ["", "/", "a b", "-a", "a\n", "ä", "a\0", "a" * 65])
def test_a_project_is_a_word_that_can_be_printed(project):
    assert "64 letters" in refused("claim.invalid", project=project).hint


@pytest.mark.parametrize("signal", ["KILL", "SIGUSR1", "usr1", "", "10", "x" * 1000])
def test_a_warning_is_a_signal_a_job_can_catch(signal):
    error = refused("claim.invalid", checkpoint=CheckpointContract(warn_signal=signal))
    assert ", ".join(WARN_SIGNALS) in error.hint
    assert len(str(error)) < 100


@pytest.mark.parametrize("limit_s", [0, -1, 0.5, TIME_LIMIT_S_MAX + 1, math.inf, math.nan])
def test_a_time_limit_out_of_range_is_refused(limit_s):
    assert "366 days" in refused("claim.invalid", time_limit_s=limit_s).hint


@pytest.mark.parametrize("lease_s", [0, -1, LEASE_S_MIN - 1, LEASE_S_MAX + 1, math.inf, math.nan])
def test_a_lease_out_of_range_is_refused(lease_s):
    assert "seconds" in refused("claim.invalid", lease_s=lease_s).hint


@cases(
    "edge",
    [
        {"size": SIZE_MAX},
        {"priority": PRIORITY_MAX},
        {"priority": -PRIORITY_MAX},
        {"time_limit_s": 1},
        {"time_limit_s": TIME_LIMIT_S_MAX},
        {"lease_s": LEASE_S_MIN},
        {"lease_s": LEASE_S_MAX},
        {"resources": {"m" * 36: 0}},
        {"project": "A" * 64},
        {"project": "vision/team-1"},
    ],
    ids=str,
)
def test_the_edges_are_allowed(edge):
    check_spec(spec(**edge))


# -- moves ---------------------------------------------------------------------------------------------------------


def test_every_move_counts_as_a_version_and_carries_its_reason():
    reason = Reason("claim.broken", "a block broke")
    claim = step(a_claim(state=ClaimState.GRANTED, version=4), ClaimEvent.BROKE, LATER, reason)
    assert (claim.version, claim.reason) == (5, reason)


def test_a_reason_does_not_outlive_the_next_move():
    claim = a_claim(reason=Reason("claim.no_room", "no room"))
    assert step(claim, ClaimEvent.GRANT, LATER).reason is None


def test_the_moments_of_a_claims_life_are_kept():
    claim = step(a_claim(), ClaimEvent.GRANT, Timestamp(1))
    claim = step(claim, ClaimEvent.READY, Timestamp(2))
    claim = step(claim, ClaimEvent.RELEASE, Timestamp(3))
    claim = step(claim, ClaimEvent.FREED, Timestamp(4))
    assert (claim.granted_at, claim.ready_at, claim.ended_at) == (1, 2, 4)
    assert claim.is_ended


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (ClaimState.GRANTED, ClaimEvent.BROKE),
        (ClaimState.YIELDING, ClaimEvent.REQUEUE),
    ],
)
def test_a_claim_that_waits_again_holds_nothing_but_its_place(state, event):
    claim = a_claim(state=state, pool=POOL, partition="part-1", granted_at=NOW, ready_at=NOW)
    again = step(claim, event, LATER)
    assert (again.pool, again.partition, again.granted_at, again.ready_at) == (None, None, None, None)
    assert (again.arrival, again.queue_key, again.attempt) == (claim.arrival, claim.queue_key, claim.attempt + 1)


def test_a_step_leaves_the_claim_it_began_from_as_it_was():
    claim = a_claim()
    step(claim, ClaimEvent.GRANT, LATER)
    assert claim == a_claim()


def test_the_queue_is_ordered_by_priority_then_arrival_then_id():
    urgent = a_claim(9, spec=spec(priority=5))
    early, late = a_claim(1), a_claim(2)
    twin = replace(early, id=ClaimId("claim-0000"))
    assert sorted([late, early, urgent, twin], key=lambda claim: claim.queue_key) == [urgent, twin, early, late]


def test_of_equals_the_earlier_is_first_whatever_their_ids():
    early, late = replace(a_claim(2), arrival=NOW), replace(a_claim(1), arrival=LATER)
    assert sorted([late, early], key=lambda claim: claim.queue_key) == [early, late]


def test_the_default_signal_of_now_and_of_before_are_one_in_a_requests_digest():
    """A request with a key, sent again after an upgrade, is the same request."""
    signals = ("auto", "USR1", "TERM")
    assert [digested_warn_signal(CheckpointContract(warn_signal=each)) for each in signals] == ["USR1", "USR1", "TERM"]


def test_the_data_of_a_specification_has_every_field() -> None:
    """The store and the event log are written from it: a field that it lacks is forgotten by the next restart."""
    whole = ClaimSpec(kind="ipu", size=1, machine={"cpus": 1}, person="ann")
    assert set(claim_spec_payload(whole)) == {one.name for one in fields(ClaimSpec)}
