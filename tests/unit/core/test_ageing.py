"""Ageing: nobody who has waited for long is passed by a higher priority, and all others keep their order (law 7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.forecast.estimate import estimate_start
from moorings.core.forecast.simulation import SimulatedJob, simulate
from moorings.core.model.claims import ClaimId, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import ObservedState
from moorings.core.model.inputs import DrainDevice, PoolReachability, ReleaseClaim, SetProject, YieldClaim
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import AnySubset, Pool, PowerOfTwo
from moorings.core.placement.pending_classes import PendingClass
from moorings.core.scheduling.ageing import ageing_cutoff
from moorings.core.scheduling.explain import explain_wait
from moorings.core.scheduling.offers import next_claim_by_pool
from tests.cases import cases
from tests.sampling import examples
from tests.unit.core.test_law7 import MAKING_S, TOPOLOGIES, Site
from tests.unit.core.worlds import World

AGEING_S = 20.0
AGES = Policy(ageing_s=AGEING_S, making_s=MAKING_S)
NEVER_AGES = replace(AGES, ageing_s=None)
POD8 = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(1, 8, 8))


def started(site: Site, *idents: ClaimId) -> list[ClaimId]:
    return [ident for ident in idents if site.claim(ident).state is not ClaimState.PENDING]


def stream(site: Site, wanted: ClaimId | None, seconds: int, *, priority: int = 1_000_000, limit_s: float = 3.0) -> int:
    """Claims for the whole pool with a high priority, always two of them waiting; how many began before ``wanted``."""
    passed: list[ClaimId] = []
    for _ in range(seconds):
        rivals = [claim for claim in site.waiting if claim.id != wanted]
        many = max(0, 2 - len(rivals))
        asked = [site.asks_for(site.sizes[-1], limit_s, priority=priority) for _ in range(many)]
        site.second(*asked)
        passed += [one.id for one in asked]
        site.promised.clear()  # a higher priority goes first: nobody is promised anything here
        if wanted is not None and started(site, wanted):
            break
    return len(started(site, *passed))


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
@pytest.mark.parametrize("size", ["least", "most"])
def test_a_stream_of_higher_priorities_does_not_pass_for_ever(topology: Any, size: str) -> None:
    """Twelve and more claims in a row for the whole pool went before one that was there earlier."""
    found = {}
    for policy in (NEVER_AGES, AGES):
        site = Site(topology, policy)
        stream(site, None, 3)
        early = site.asks_for(site.sizes[0 if size == "least" else -1], 4.0)
        site.second(early)
        passed = stream(site, early.id, 90)
        found[policy] = (bool(started(site, early.id)), passed)
    starved, served = found[NEVER_AGES], found[AGES]
    assert not starved[0] or size == "least", "else this stream could not starve anybody"
    assert starved[0] or starved[1] >= 12
    assert served[0]
    assert served[1] <= AGEING_S / 3 + 2


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "pass"]),
        st.integers(0, 9),
        st.integers(-2, 3),
        st.sampled_from([2.0, 4.0, 7.0]),
    ),
    min_size=4,
    max_size=40,
)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
@settings(max_examples=examples(30), deadline=None)
@given(steps)
def test_everybody_starts_within_ageing_and_the_time_of_those_before(
    topology: Any, given: list[tuple[str, int, int, float]]
) -> None:
    """Whatever priorities others ask for: those that count are who came earlier, and who was there before it aged."""
    site = Site(topology, AGES)
    asked: list[ClaimId] = []
    bound: dict[ClaimId, int] = {}
    longest_s = 7.0

    def second(*inputs: Any) -> None:
        site.second(*inputs)
        site.promised.clear()
        for ident in asked:
            claim = site.claim(ident)
            if (
                claim.state is ClaimState.PENDING
                and ident not in bound
                and site.now - claim.arrival >= AGEING_S * SECOND
            ):
                # Once it has aged: who holds the pool ends, then at most those that came before it, one after another.
                ahead = sum(one.arrival < claim.arrival for one in site.waiting)
                bound[ident] = site.now + round((longest_s + 6) * (ahead + 2)) * SECOND
            assert claim.state is not ClaimState.PENDING or site.now <= bound.get(ident, site.now), ident

    for what, number, priority, limit_s in given:
        if what == "ask":
            one = site.asks_for(site.sizes[number % len(site.sizes)], limit_s, priority)
            asked.append(one.id)
            second(one)
        for _ in range(number if what == "pass" else 0):
            second()
    for _ in range(120):  # and then nothing but the highest priority comes, more than there is room for
        many = max(0, 3 - sum(claim.spec.priority > 3 for claim in site.waiting))
        second(*(site.asks_for(site.sizes[-1], 4.0, 1_000) for _ in range(many)))
    late = [ident for ident in asked if site.claim(ident).state is ClaimState.PENDING]
    assert all(bound[ident] > site.now for ident in late)


def test_its_own_priority_still_counts_before_it_has_aged() -> None:
    site = Site(PowerOfTwo(1, 8, 8), AGES)
    site.second(site.asks_for(8, 5.0))
    early, urgent = site.asks_for(8, 4.0), site.asks_for(8, 4.0, priority=1)
    site.second(early)
    site.second(urgent)
    for _ in range(8):
        site.second()
        site.promised.clear()
    assert started(site, early.id, urgent.id) == [urgent.id]


def test_all_that_came_at_the_border_have_aged() -> None:
    now = Timestamp(100 * SECOND)
    assert ageing_cutoff(AGES, now) == Timestamp(80 * SECOND)
    assert ageing_cutoff(NEVER_AGES, now) is None


class Lab(World):
    """A pool of eight that is held, and turns that may be days apart."""

    def __init__(self, policy: Policy = AGES, *projects: Project, pools: Sequence[Pool] = (POD8,)) -> None:
        super().__init__(*pools, policy=policy)
        for project in projects:
            self.step(SetProject(project, None))

    def later(self, seconds: float) -> None:
        self.now = Timestamp(self.now + round(seconds * SECOND))
        self.step()

    def waits(self, size: int, priority: int = 0, **more: Any) -> ClaimId:
        asked = self.asks(size, priority=priority, **more)
        self.step(asked)
        assert self.claim(asked.id).state is ClaimState.PENDING
        return asked.id

    def first(self) -> ClaimId | None:
        """For whom the block is kept."""
        kept = [one.claim for one in self.fleet.reserved_blocks if len(one.block)]
        assert len(kept) <= 1
        return kept[0] if kept else None

    def served(self) -> list[ClaimId]:
        """In which order those who wait get the whole of what is held, one after the other."""
        order = []
        while waiting := list(self.fleet.pending_claims()):
            for claim in list(self.fleet.claims.values()):
                if claim.partition is not None:
                    self.end(claim)
            new = [claim.id for claim in waiting if self.claim(claim.id).partition is not None]
            assert new, "somebody is served"
            order += new
            for ident in new:
                self.says(self.partition(self.claim(ident)), ObservedState.ACTIVE)
        return order


def test_who_has_aged_is_first_and_higher_priorities_keep_their_order() -> None:
    lab = Lab()
    lab.ready(8)
    old = lab.waits(8, -5)
    lab.later(AGEING_S)
    low, high, middle = lab.waits(8, 0), lab.waits(8, 100), lab.waits(8, 7)
    assert lab.first() == old
    assert lab.served() == [old, high, middle, low]


def test_who_has_aged_earlier_is_first_among_them_whatever_their_priority() -> None:
    lab = Lab()
    lab.ready(8)
    waiting = [lab.waits(8, priority) for priority in (0, 9, -3, 9, 2)]
    lab.later(AGEING_S)
    late = lab.waits(8, 9)
    assert lab.served() == [*waiting, late]


def test_without_ageing_priority_goes_on_for_ever() -> None:
    lab = Lab(NEVER_AGES)
    lab.ready(8)
    old = lab.waits(8)
    lab.later(400 * 86_400)
    high = lab.waits(8, 1)
    assert lab.served() == [high, old]


def test_fair_share_still_decides_among_equals() -> None:
    """A project with thousands of waiting claims comes no earlier than among the highest priority."""
    heavy, light = Project(name="heavy"), Project(name="light")
    lab = Lab(AGES, heavy, light)
    lab.ready(8, project="heavy")
    old = [lab.waits(8, 0, project="heavy") for _ in range(3)]
    lab.later(AGEING_S)
    plain = lab.waits(8, 0, project="light")
    assert lab.first() == plain, "nobody has a higher priority, so there is nothing to even out"
    urgent = lab.waits(8, 5, project="light")
    assert lab.first() == urgent, "of two that count the same the project that has used less is first"
    lab.step(ReleaseClaim(plain, "not needed"), ReleaseClaim(urgent, "not needed"))
    urgent = lab.waits(8, 5, project="heavy")
    assert lab.first() == old[0]


# -- who waits in vain -------------------------------------------------------------------------------------------------

WIDE = Pool(PoolName("wide"), "gpu", "simulated", AnySubset(4, 4))


def hopeless(lab: Lab, how: str, priority: int) -> ClaimId:
    """A claim that nobody can serve as things stand."""
    if how == "out of service":  # no block of eight without the device
        ident = lab.waits(8, priority, kind="ipu", pool="broken")
        lab.step(DrainDevice(PoolName("broken"), 0, "hot"))
        return ident
    if how == "unreachable":
        ident = lab.waits(8, priority, pool="broken")
        lab.step(PoolReachability(PoolName("broken"), "down"))
        return ident
    if how == "another kind":
        return lab.waits(4, priority, kind="gpu")
    return lab.waits(8, priority, project="full")  # a limit of its project stands against it


@cases("how", ["out of service", "unreachable", "another kind", "barred"])
@cases("priority", [-7, 3, 999])
def test_who_cannot_be_served_changes_nobody_s_order(how: str, priority: int) -> None:
    broken = Pool(PoolName("broken"), "ipu", "simulated", PowerOfTwo(1, 8, 8))

    def lab_of(*, with_it: bool) -> list[int]:
        lab = Lab(AGES, Project(name="lab"), Project(name="full", devices_max=9), pools=(POD8, broken, WIDE))
        lab.ready(8, pool="pod", project="lab")
        lab.ready(8, pool="broken", project="full")
        lab.ready(4, kind="gpu", project="lab")
        if with_it:
            hopeless(lab, how, priority)
        known = [lab.waits(8, rank, pool="pod", project="lab") for rank in (0, 2)]
        lab.later(AGEING_S)
        known += [lab.waits(8, rank, pool="pod", project="lab") for rank in (1, 0, 2, 1)]
        order = []
        while left := [one for one in known if lab.claim(one).state is ClaimState.PENDING]:
            holder = next(one for one in lab.fleet.claims.values() if one.pool == "pod")
            lab.end(holder)
            new = next(one for one in left if lab.claim(one).partition is not None)
            lab.says(lab.partition(lab.claim(new)), ObservedState.ACTIVE)
            order.append(known.index(new))
        return order

    assert lab_of(with_it=True) == lab_of(with_it=False) == [0, 1, 4, 2, 5, 3]


def test_a_high_priority_that_cannot_be_served_raises_nobody() -> None:
    """Else a claim for which there is no block would put the old ones before the newer ones of another project."""
    broken = Pool(PoolName("broken"), "ipu", "simulated", PowerOfTwo(1, 8, 8))
    lab = Lab(AGES, Project(name="heavy"), Project(name="light"), pools=(POD8, broken))
    lab.step(DrainDevice(broken.name, 3, "hot"))
    lab.ready(8, pool="pod", project="heavy")
    lab.waits(8, 50, pool="broken", project="heavy")
    old = lab.waits(8, 0, pool="pod", project="heavy")
    lab.later(AGEING_S)
    new = lab.waits(8, 0, pool="pod", project="light")
    assert lab.first() == new
    lab.waits(8, 50, pool="pod", project="heavy")
    assert lab.first() == old


def test_within_a_limit_a_stream_of_higher_priorities_does_not_pass_for_ever_either() -> None:
    """What is left under the limit is kept for who has aged, as it is for the first."""
    lab = Lab(AGES, Project(name="full", devices_max=4))
    holders = [lab.ready(2, project="full") for _ in range(2)]
    old = lab.waits(4, 0, project="full")
    lab.later(AGEING_S)
    high = lab.waits(2, 9, project="full")
    lab.end(holders[0])
    assert lab.claim(high).state is ClaimState.PENDING
    reason = explain_wait(lab.fleet, lab.claim(high), lab.now, lab.policy).reasons[0]
    assert (reason.code, reason.blockers) == ("project.limit", (old,))
    lab.end(holders[1])
    assert lab.claim(old).partition is not None


# -- guarantees --------------------------------------------------------------------------------------------------------

GUARANTEED = Project(name="owner", shares=(ProjectShare(PoolName("pod"), ((4, 2),)),))
PREEMPTS = replace(AGES, min_run_s=1.0, yield_s=5.0)


def test_a_guarantee_comes_before_who_has_aged() -> None:
    lab = Lab(PREEMPTS, GUARANTEED, Project(name="other"))
    lab.ready(8, project="other", preemptible=True)
    old = lab.waits(4, 0, project="other", preemptible=True)
    lab.later(AGEING_S)
    lab.waits(4, 9, project="other", preemptible=True)
    owned = lab.waits(4, -9, project="owner")
    [holder] = [one for one in lab.fleet.claims.values() if one.state is ClaimState.RECLAIMING]
    lab.step(YieldClaim(holder.id, "saved"))
    lab.says(lab.partition(holder), ObservedState.ABSENT, order="remove")
    assert lab.claim(owned).partition is not None
    assert lab.first() == holder.id, "it keeps its place, and waits for all eight"
    lab.step(ReleaseClaim(holder.id, "not needed"))
    assert lab.claim(old).partition is not None, "of what is lent it is first"


def test_within_a_guarantee_who_has_aged_evicts_nobody_and_is_not_evicted() -> None:
    """Else a higher priority of its own project would pass it after all."""
    lab = Lab(PREEMPTS, GUARANTEED)
    holders = [lab.ready(4, project="owner", priority=5, preemptible=True) for _ in range(2)]
    old = lab.waits(4, 0, project="owner", preemptible=True)
    lab.later(AGEING_S)
    high = lab.waits(4, 3, project="owner", preemptible=True)
    assert {lab.claim(one.id).state for one in holders} == {ClaimState.READY}, "it counts as 3, and asks nobody"
    lab.end(holders[0])
    assert lab.claim(old).partition is not None
    lab.says(lab.partition(lab.claim(old)), ObservedState.ACTIVE)
    lab.later(60)
    assert lab.claim(old).state is ClaimState.READY
    assert lab.claim(high).state is ClaimState.PENDING


def test_who_ran_at_once_still_yields_to_a_higher_priority_of_its_project_and_does_not_take_it_back() -> None:
    lab = Lab(PREEMPTS, GUARANTEED)
    low = [lab.ready(4, project="owner", preemptible=True) for _ in range(2)]
    lab.later(3 * AGEING_S)
    high = lab.waits(4, 3, project="owner", preemptible=True)
    [asked] = [one for one in lab.fleet.claims.values() if one.state is ClaimState.RECLAIMING]
    assert asked.id in {one.id for one in low}
    lab.step(YieldClaim(asked.id, "saved"))
    lab.says(lab.partition(asked), ObservedState.ABSENT, order="remove")
    assert lab.claim(high).partition is not None
    assert lab.claim(asked.id).state is ClaimState.PENDING
    lab.says(lab.partition(lab.claim(high)), ObservedState.ACTIVE)
    lab.later(3 * AGEING_S)
    assert lab.claim(high).state is ClaimState.READY


# -- what is said ------------------------------------------------------------------------------------------------------


def test_who_waits_behind_it_is_told_so() -> None:
    lab = Lab()
    lab.ready(8)
    old, high = lab.waits(8), lab.waits(4, 9)
    assert [one.code for one in explain_wait(lab.fleet, lab.claim(high), lab.now, AGES).reasons][:1] == [
        "queue.reserved"
    ]
    lab.later(AGEING_S)
    reasons = explain_wait(lab.fleet, lab.claim(high), lab.now, AGES).reasons
    lab_claim = explain_wait(lab.fleet, lab.claim(old), lab.now, AGES).reasons
    assert "queue.aged" not in {one.code for one in lab_claim}
    late = lab.waits(4, 9)
    [told, *more] = explain_wait(lab.fleet, lab.claim(late), lab.now, AGES).reasons
    assert (told.code, told.blockers) == ("queue.aged", (old,))
    assert told.message == f"{old} (ann) comes first, whatever the priority: it has waited for 20s or longer"
    assert "'ageing'" in told.hint
    assert [one.code for one in more] == ["pool.full"]
    assert [one.code for one in reasons] == ["queue.aged", "pool.full"]
    plain = lab.waits(4)
    assert "queue.aged" not in {one.code for one in explain_wait(lab.fleet, lab.claim(plain), lab.now, AGES).reasons}
    assert "queue.aged" not in {one.code for one in explain_wait(lab.fleet, lab.claim(late), lab.now).reasons}


def test_other_schedulers_are_told_of_the_same_one_as_next() -> None:
    lab = Lab()
    lab.ready(8)
    old = lab.waits(8)
    lab.waits(8, 4)
    lab.later(AGEING_S)
    lab.waits(8, 9)
    assert next_claim_by_pool(lab.fleet, AGES, lab.now)[POD8.name].id == old == lab.first()
    assert next_claim_by_pool(lab.fleet, NEVER_AGES, lab.now)[POD8.name].spec.priority == 9


def test_an_estimate_and_a_simulation_reckon_with_it() -> None:
    lab = Lab()
    lab.ready(8, owner="local/a", time_limit_s=100.0)
    old = lab.waits(8, owner="local/b", time_limit_s=50.0)
    lab.later(AGEING_S)
    high = lab.waits(8, 9, owner="local/c", time_limit_s=50.0)
    when = {ident: estimate_start(lab.fleet, AGES, lab.now, lab.claim(ident)).starts_at for ident in (old, high)}
    first, second = when[old], when[high]
    assert first is not None
    assert second is not None
    assert second == Timestamp(first + 50 * SECOND)
    short = partial(SimulatedJob, size=8)
    jobs = [
        short(name="first", arrives_s=0, runs_s=30, limit_s=30),
        short(name="old", arrives_s=1, runs_s=5, limit_s=5),
    ]
    jobs += [short(name=f"high-{at}", arrives_s=2 + at, runs_s=10, limit_s=10, priority=1) for at in range(3)]
    for policy, order in ((AGES, ["first", "old", "high-0", "high-1", "high-2"]), (NEVER_AGES, None)):
        done = simulate([POD8], jobs, policy)
        starts = sorted((course.started_s, course.job.name) for course in done.courses if course.started_s is not None)
        names = [name for _, name in starts]
        assert names == (order or ["first", "high-0", "high-1", "high-2", "old"])


# -- what it costs -----------------------------------------------------------------------------------------------------


def looks(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> int:
    """How many claims a turn looks at in the lines of the queue."""
    count = 0
    plain = PendingClass.next_within

    def counted(self: PendingClass, *given: Any) -> Any:
        nonlocal count
        count += 1
        return plain(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(PendingClass, "next_within", counted)
        lab.step()
    return count


def attack(number: int, how: str) -> Iterator[tuple[int, float]]:
    """Priorities and time limits of one user's many claims."""
    for at in range(number):
        yield {"one": (0, 60.0), "each its own": (-at, 60.0), "both ways": (at % 997 - 997, 30.0 + at)}[how]


@cases("how", ["one", "each its own", "both ways"], shared=("monkeypatch",))
def test_thousands_that_wait_cost_a_turn_no_more_than_a_few(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number in (40, 2_000):
        lab = Lab()
        lab.ready(8)
        lab.waits(8, 5)
        lab.step(*(lab.asks(8, priority=rank, time_limit_s=limit) for rank, limit in attack(number, how)))
        lab.later(AGEING_S)
        lab.waits(8, 7)
        found.append(looks(monkeypatch, lab))
    assert found[0] == found[1] < 20
