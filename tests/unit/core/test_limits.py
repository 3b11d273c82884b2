"""Limits of projects beside guarantees: what was borrowed under a limit is in nobody's way (law 6)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.claims import Claim, ClaimState
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import ReleaseClaim, SetProject
from moorings.core.model.projects import Project, ProjectShare, UserLimit
from moorings.core.model.timestamps import SECOND
from moorings.core.model.topology import Pool
from moorings.core.scheduling.explain import explain_wait, list_start_options
from tests.sampling import examples
from tests.unit.core.test_law6 import BOUND_S, CROSS, QUICK, Site
from tests.unit.core.worlds import POD

LAB_MAX = 12
PARTS = {"lab/a": ((4, 1),), "lab/b": ((2, 1),)}
HELD = (ClaimState.GRANTED, ClaimState.READY, ClaimState.RECLAIMING, ClaimState.YIELDING, ClaimState.RELEASING)


def lab(pool: Pool, most: int = LAB_MAX) -> Site:
    """A lab with a limit and two parts, beside a project that is guaranteed nothing."""
    site = Site(pool)
    shares = {"lab": ((8, 1),), **PARTS}
    if pool is CROSS:
        shares = {name: ((1, sum(size * count for size, count in blocks)),) for name, blocks in shares.items()}
    for name, blocks in shares.items():
        limit = most if name == "lab" else None
        [reply] = site.step(
            SetProject(Project(name=name, shares=(ProjectShare(pool.name, blocks),), devices_max=limit), None)
        )
        assert isinstance(reply, Project), reply
    site.step(SetProject(Project(name="c"), None))
    return site


def ask(site: Site, project: str, size: int, *, preemptible: bool = True, priority: int = 0) -> Claim:
    kind = next(iter(site.fleet.pools.values())).pool.kind
    return site.create(
        size,
        kind=kind,
        project=project,
        preemptible=preemptible,
        priority=priority,
        owner=f"local/run-{site.n_created}",
    )


def held(site: Site, name: str) -> int:
    claims = (claim for claim in site.fleet.claims.values() if claim.state in HELD)
    return sum(claim.spec.size for claim in claims if name in site.fleet.projects.lineage(claim.spec.project))


@pytest.mark.parametrize("pool", [POD, CROSS], ids=["blocks", "any"])
def test_a_part_has_its_guarantee_though_others_borrowed_up_to_the_limit(pool: Pool) -> None:
    site = lab(pool)
    borrowers = [ask(site, "lab/b", 2) for _ in range(6)]
    site.pass_s(4)
    assert {site.claim(one.id).state for one in borrowers} == {ClaimState.READY}
    wanted = ask(site, "lab/a", 4)
    site.step()
    [reason, *_] = explain_wait(site.fleet, site.claim(wanted.id), site.now).reasons
    assert reason.code == "queue.reserved"
    asked = [one for one in borrowers if site.claim(one.id).state is ClaimState.RECLAIMING]
    assert len(asked) == 2, "no more than the limit needs"
    for _ in range(BOUND_S):
        site.step(*site.go_on())
        assert held(site, "lab") <= LAB_MAX
    assert site.claim(wanted.id).state is ClaimState.READY
    assert held(site, "lab") == LAB_MAX


def test_two_parts_that_are_owed_ask_for_twice_as_much_and_only_once() -> None:
    site = lab(POD)
    borrowers = [ask(site, "lab", 2) for _ in range(6)]
    site.pass_s(4)
    first, second = ask(site, "lab/a", 4), ask(site, "lab/b", 2)
    for _ in range(3):
        site.step()
        asked = [one for one in borrowers if site.claim(one.id).state is ClaimState.RECLAIMING]
        assert len(asked) == 3
    site.pass_s(BOUND_S)
    assert {site.claim(one.id).state for one in (first, second)} == {ClaimState.READY}


def test_two_parts_that_ask_in_one_turn_have_no_more_yield_than_the_limit_needs() -> None:
    site = lab(POD)
    borrowers = [ask(site, "lab", 2) for _ in range(6)]
    site.pass_s(4)
    site.step(site.asks(4, project="lab/a"), site.asks(2, project="lab/b"))
    asked = [one for one in borrowers if site.claim(one.id).state is ClaimState.RECLAIMING]
    assert len(asked) == 3


def test_a_part_that_is_within_its_guarantee_yields_to_no_other_under_a_limit() -> None:
    """The youngest loses least work, but it has only what it is guaranteed."""
    site = lab(POD)
    borrowers = [ask(site, "lab", 2) for _ in range(5)]
    site.pass_s(5)
    within = ask(site, "lab/b", 2)
    site.pass_s(4)
    wanted = ask(site, "lab/a", 2)
    site.step()
    assert site.claim(within.id).state is ClaimState.READY
    assert [site.claim(one.id).state for one in borrowers].count(ClaimState.RECLAIMING) == 1
    site.pass_s(BOUND_S)
    assert {site.claim(one.id).state for one in (within, wanted)} == {ClaimState.READY}


def test_what_cannot_be_asked_back_is_lent_only_beside_the_guarantees_under_a_limit() -> None:
    """12 may be held, 8 are guaranteed: 4 for borrowers that never yield, although more is free."""
    site = lab(POD)
    for one in (ask(site, "c", 2, preemptible=False), *(ask(site, "lab/b", 2, preemptible=False) for _ in range(3))):
        site.pass_s(1)
        assert site.claim(one.id).state is ClaimState.READY
    beside = [ask(site, "lab/b", 2, preemptible=False) for _ in range(2)]
    site.pass_s(2)
    states = [site.claim(one.id).state for one in beside]
    assert states == [ClaimState.READY, ClaimState.PENDING]
    [reason, *_] = explain_wait(site.fleet, site.claim(beside[1].id), site.now).reasons
    assert reason.code == "project.guaranteed"
    assert "lab" in reason.message
    wanted = ask(site, "lab/a", 4, preemptible=False)
    site.pass_s(2)
    assert site.claim(wanted.id).state is ClaimState.READY


@pytest.mark.parametrize("preemptible", [True, False])
def test_a_guarantee_further_up_is_used_only_beside_those_under_a_limit(*, preemptible: bool) -> None:
    """What is used of the department's cells counts under the lab's limit, and all of that is guaranteed to a part."""
    site = Site(POD)
    for name, blocks, most in (
        ("dep", ((4, 1), (8, 1)), None),
        ("dep/lab", ((4, 1),), 4),
        ("dep/lab/a", ((4, 1),), None),
        ("dep/lab/b", (), None),
    ):
        shares = (ProjectShare(POD.name, blocks),) if blocks else ()
        site.step(SetProject(Project(name=name, shares=shares, devices_max=most), None))
    other = ask(site, "dep/lab/b", 4, preemptible=preemptible)
    site.pass_s(5)
    wanted = ask(site, "dep/lab/a", 4, preemptible=False)
    site.pass_s(BOUND_S)
    assert site.claim(wanted.id).state is ClaimState.READY
    assert site.claim(other.id).state is ClaimState.PENDING


def test_nobody_is_told_that_it_fits_where_a_limit_stands_against_it() -> None:
    site = Site(POD)
    site.step(SetProject(Project(name="guests", devices_max=8), None))
    for size in (4, 2):
        ask(site, "guests", size)
    barred = ask(site, "guests", 4)
    site.pass_s(2)
    wait = explain_wait(site.fleet, site.claim(barred.id), site.now)
    assert [reason.code for reason in wait.reasons] == ["project.limit"]
    told = [one.message for one in list_start_options(site.fleet, QUICK, site.now, site.claim(barred.id))]
    assert told == ["it would start now with 2 devices"]


def test_who_can_never_get_so_many_beside_what_is_guaranteed_is_told_so() -> None:
    site = lab(POD)
    stuck = ask(site, "lab/b", 8, preemptible=False)
    site.pass_s(2)
    [reason, *_] = explain_wait(site.fleet, site.claim(stuck.id), site.now).reasons
    assert reason.code == "project.guaranteed"
    assert "never gets 8" in reason.message
    assert reason.hint == "ask for 4 or fewer, or let it be asked to yield (preemptible)"
    large = site.create(16, project="c", gcds=2)
    site.pass_s(2)
    hints = {one.hint for one in explain_wait(site.fleet, site.claim(large.id), site.now).reasons}
    assert "let it be asked to yield (preemptible)" in hints, "waiting does not help"


def test_a_subject_s_own_limit_is_no_reason_to_ask_others() -> None:
    """Two of its own guarantee are left, but somebody who holds as much as a subject may has to wait."""
    site = lab(POD)
    site.step(SetProject(Project(name="d", shares=(ProjectShare(POD.name, ((2, 1),)),), user_devices_max=4), None))
    borrowers = [ask(site, "d", 4), *(ask(site, "c", 2) for _ in range(6))]
    site.pass_s(5)
    assert {site.claim(one.id).state for one in borrowers} == {ClaimState.READY}
    more = ask(site, "d", 2)
    site.pass_s(5)
    assert site.claim(more.id).state is ClaimState.PENDING
    assert {site.claim(one.id).state for one in borrowers} == {ClaimState.READY}


def test_a_limit_of_users_does_not_count_another_scheduler_s_agent_as_one() -> None:
    site = Site(POD)
    site.step(SetProject(Project(name="d", user_devices_max=4), None))
    jobs = [site.create(4, project="d", owner=f"slurm/one/{n}") for n in range(2)]
    large = site.create(8, project="d", owner="slurm/one/9")
    site.pass_s(2)
    assert {site.claim(one.id).state for one in (*jobs, large)} == {ClaimState.READY}
    own = [site.create(4, project="d") for _ in range(2)]
    site.end(jobs[0])
    site.end(large)
    site.pass_s(2)
    assert [site.claim(one.id).state for one in own] == [ClaimState.READY, ClaimState.PENDING]


def test_a_limit_of_one_person_replaces_that_of_all_and_the_reason_names_it() -> None:
    site = Site(POD)
    limits = (UserLimit("ann", 8), UserLimit("bob", 0))
    site.step(SetProject(Project(name="default", user_devices_max=2, user_limits=limits), None))
    [refused] = site.step(replace(site.asks(1), owner="user/bob", subject="bob"))
    assert isinstance(refused, MooringsError)
    assert (refused.code, refused.detail) == (
        "project.limit",
        "1 devices are more than the 0 that project default may hold at once",
    )
    first, more = site.create(4), site.create(8)
    [third] = site.step(replace(site.asks(2), owner="user/cyd", subject="cyd"))
    assert isinstance(third, Claim)
    site.pass_s(2)
    states = [site.claim(one.id).state for one in (first, more, third)]
    assert states == [ClaimState.READY, ClaimState.PENDING, ClaimState.READY]
    [reason, *_] = explain_wait(site.fleet, site.claim(more.id), site.now).reasons
    assert (reason.code, reason.message) == (
        "project.limit",
        "ann in project default holds 4 of the 8 devices it may hold at once, and 8 more were asked for",
    )
    known = site.fleet.projects.by_name["default"]
    site.step(SetProject(replace(known, user_limits=(UserLimit("ann", 12),)), known.version))
    site.pass_s(2)
    assert site.claim(more.id).state is ClaimState.READY


def test_a_lower_limit_ends_nothing_and_lets_nothing_more_start() -> None:
    site = Site(POD)
    site.step(SetProject(Project(name="default"), None))
    first, second = site.create(4), site.create(4)
    site.pass_s(2)
    site.step(SetProject(Project(name="default", user_limits=(UserLimit("ann", 4),)), 1))
    waits = site.create(1)
    site.pass_s(2)
    states = [site.claim(one.id).state for one in (first, second, waits)]
    assert states == [ClaimState.READY, ClaimState.READY, ClaimState.PENDING]
    for one in (first, second):
        site.end(site.claim(one.id))
    site.pass_s(2)
    assert site.claim(waits.id).state is ClaimState.READY


def judge(site: Site, most: int) -> None:
    """Sizes asked are those promised: who has less than its part waits for a bounded time, whatever others hold."""
    has: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    for claim in site.fleet.claims.values():
        if claim.spec.size == dict(PARTS).get(claim.spec.project, ((0, 0),))[0][0]:
            (waits if claim.state is ClaimState.PENDING else has)[claim.spec.project] += 1
    for name in PARTS:
        key = (name, 0)
        if waits[name] and not has[name]:
            since = site.short_since.setdefault(key, site.now)
            assert site.now - since <= BOUND_S * SECOND, f"{name} has waited since {since}"
        else:
            site.short_since.pop(key, None)
    assert held(site, "lab") <= most


@dataclass(frozen=True)
class Ask:
    """A claim in the name of a project."""

    project: str
    size: int
    preemptible: bool
    priority: int


SIZES = [("lab/a", 4), ("lab/b", 2), ("lab", 1), ("lab", 2), ("lab", 4), ("lab/b", 8), ("c", 4), ("c", 8)]
asks = st.builds(
    lambda wanted, preemptible, priority: Ask(wanted[0], wanted[1], preemptible, priority),
    st.sampled_from(SIZES),
    st.sampled_from([True, True, False]),
    st.integers(0, 2),
)
steps = st.one_of(
    asks, asks, st.tuples(st.just("end"), st.integers(0, 30)), st.tuples(st.just("pass"), st.integers(1, 8))
)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from([POD, CROSS]), st.sampled_from([8, 9, 12]), st.lists(steps, max_size=40))
def test_a_guarantee_is_had_within_the_bound_whatever_is_held_under_a_limit(
    pool: Pool, most: int, given: list[Ask | tuple[str, int]]
) -> None:
    site = lab(pool, most)
    for one in (*given, ("pass", BOUND_S + 2)):
        if isinstance(one, Ask):
            ask(site, one.project, one.size, preemptible=one.preemptible, priority=one.priority)
        elif one[0] == "pass":
            for _ in range(one[1]):
                site.step(*site.go_on())
                judge(site, most)
        elif site.fleet.claims:
            known = sorted(site.fleet.claims)
            site.step(ReleaseClaim(known[one[1] % len(known)], "done"), *site.go_on())
        judge(site, most)
