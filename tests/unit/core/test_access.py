"""Rights to act for an owner: whole parts of its name, never a string that happens to begin alike."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.access import (
    Caller,
    Peer,
    Role,
    check_admin,
    check_certificate_binding,
    check_owner_access,
    check_subject,
    default_owner_prefix,
)
from moorings.core.model.errors import MooringsError
from tests.cases import cases

ADMIN = Caller("root", Role.ADMIN, "", "k0")
ANN = Caller("ann", Role.USER, "user/ann", "k1")
SLURM = Caller("slurm", Role.AGENT, "slurm/alpha", "k2")
EYE = Caller("eye", Role.VIEWER, "user/eye", "k3")

parts = st.text("abcdefgh.-_@+", min_size=1, max_size=6)


def may(caller: Caller, owner: str, subject: str = "somebody") -> bool:
    with contextlib.suppress(MooringsError):
        check_owner_access(caller, owner, subject, "release it")
        return True
    return False


@pytest.mark.parametrize("owner", ["user/ann", "user/ann/x", "user/ann/x/y"])
def test_a_prefix_covers_itself_and_what_is_below(owner):
    assert may(ANN, owner)


@cases("owner", ["user/anna", "user/an", "user/ann-x", "user/ann.x", "user", "xuser/ann", ""])
def test_a_prefix_does_not_cover_what_only_begins_alike(owner):
    assert not may(ANN, owner)


@given(parts, parts)
def test_nobody_acts_for_a_name_that_is_longer_than_theirs(mine, more):
    caller = Caller(mine, Role.USER, default_owner_prefix(Role.USER, mine), "k")
    assert may(caller, f"user/{mine}")
    assert may(caller, f"user/{mine}/{more}")
    assert not may(caller, f"user/{mine}{more}")


@given(parts.filter(lambda part: part != "alpha"))
def test_an_agent_acts_for_its_own_cluster_only(cluster):
    assert may(SLURM, "slurm/alpha/1234")
    assert not may(SLURM, f"slurm/{cluster}/1234")
    assert not may(SLURM, "user/slurm")


def test_a_prefix_may_end_in_a_slash():
    assert may(Caller("slurm", Role.AGENT, "slurm/alpha/", "k"), "slurm/alpha/1234")
    assert not may(Caller("slurm", Role.AGENT, "slurm/alpha/", "k"), "slurm/alphabet/1234")


def test_the_claim_of_a_run_belongs_to_who_started_it():
    assert may(ANN, "local/run-1", subject="ann")
    assert not may(ANN, "local/run-1", subject="bob")
    assert not may(EYE, "local/run-1", subject="eye")


def test_being_the_subject_opens_nothing_but_local_runs():
    assert not may(ANN, "slurm/alpha/1234", subject="ann")


@pytest.mark.parametrize("role", [Role.USER, Role.AGENT])
@pytest.mark.parametrize("prefix", ["", "/"])
def test_an_empty_prefix_covers_nobody(role, prefix):
    assert not may(Caller("x", role, prefix, "k"), "user/x")
    assert not may(Caller("x", role, prefix, "k"), "/x")


def test_a_viewer_acts_for_nobody_not_even_itself():
    assert not may(EYE, "user/eye", subject="eye")


def test_an_admin_acts_for_everybody():
    assert may(ADMIN, "user/ann")
    assert may(ADMIN, "slurm/alpha/1", subject="slurm")


def test_a_denial_says_who_wanted_what_and_what_the_key_is_for():
    with pytest.raises(MooringsError, match=r"ann \(user\) may not release it for user/bob") as caught:
        check_owner_access(ANN, "user/bob", "bob", "release it")
    assert caught.value.code == "owner.denied"
    assert caught.value.hint == "this key acts for user/ann"


@pytest.mark.parametrize("caller", [ANN, SLURM, EYE], ids=lambda caller: caller.role)
def test_only_admins_do_what_admins_do(caller):
    check_admin(ADMIN, "drain devices")
    with pytest.raises(MooringsError, match="may not drain devices") as caught:
        check_admin(caller, "drain devices")
    assert (caught.value.code, caught.value.hint) == ("auth.denied", "ask an admin")


def test_the_prefix_of_a_role_is_its_own_user_and_an_admin_needs_none():
    assert {role: default_owner_prefix(role, "ann") for role in (Role.ADMIN, Role.USER, Role.VIEWER)} == {
        Role.ADMIN: "",
        Role.USER: "user/ann",
        Role.VIEWER: "user/ann",
    }


# -- client certificates -----------------------------------------------------------------------------------------------


@cases(
    ("peer", "handed_on", "passes"),
    [
        (None, False, True),
        (None, True, True),
        (Peer("ann", is_controller=False, expires_at_s=0.0), False, True),
        (Peer("ann", is_controller=False, expires_at_s=0.0), True, True),
        (Peer("bert", is_controller=False, expires_at_s=0.0), False, False),
        (Peer("bert", is_controller=False, expires_at_s=0.0), True, False),
        (Peer("", is_controller=False, expires_at_s=0.0), True, False),
        (Peer("", is_controller=True, expires_at_s=0.0), False, False),
        (Peer("", is_controller=True, expires_at_s=0.0), True, True),
        (Peer("ann", is_controller=True, expires_at_s=0.0), False, False),
        (Peer("Ann", is_controller=False, expires_at_s=0.0), False, False),
    ],
)
def test_an_access_key_goes_with_its_subjects_certificate(peer: Peer | None, handed_on: bool, passes: bool) -> None:
    ann = Caller("ann", Role.ADMIN, "", "k")
    if passes:
        check_certificate_binding(ann, peer, is_forwarded=handed_on)
        return
    with pytest.raises(MooringsError) as caught:
        check_certificate_binding(ann, peer, is_forwarded=handed_on)
    assert caught.value.code == "auth.certificate_mismatch"
    assert caught.value.hint


def test_a_refusal_does_not_tell_whose_the_key_is():
    with pytest.raises(MooringsError) as caught:
        check_certificate_binding(
            Caller("ann", Role.ADMIN, "", "k"), Peer("bert", is_controller=False, expires_at_s=0.0)
        )
    assert "ann" not in caught.value.detail


@cases("subject", ["", ".", "..", "a/b", "a b", "a\n", "x" * 65, "é", "a:b", "a\0"])
def test_what_is_no_subject(subject):
    with pytest.raises(MooringsError) as caught:
        check_subject(subject)
    assert caught.value.code == "key.invalid"
