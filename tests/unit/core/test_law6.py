"""Law 6: a project always has its guaranteed share within a bounded time, and whoever borrowed yields (and law 7)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.claims import Claim, ClaimSpec, ClaimState
from moorings.core.model.devices import PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.inputs import (
    CheckpointSaved,
    DeleteProject,
    DriverResultReceived,
    Input,
    QueueReported,
    ReleaseClaim,
    SetProject,
    YieldClaim,
)
from moorings.core.model.partitions import PartitionState
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.queue_reports import QueuedJob, QueueReport
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import AnySubset, Pool
from moorings.core.scheduling.explain import explain_wait
from tests.sampling import examples
from tests.unit.core.worlds import POD, RACK, World

QUICK = Policy(min_run_s=3, yield_s=4, making_s=0, move_s=1)
BOUND_S = 3 + 4 + 6  # each word between controller, engine and driver takes a turn here, of a second
CROSS = Pool(PoolName("cross"), "gpu", "simulated", AnySubset(12, 8))
SHARES = {"a": ((8, 1),), "b": ((2, 1), (4, 1)), "c": ()}
ORDERS = {PartitionState.PROVISIONING: "create", PartitionState.REMOVING: "remove"}


class Site(World):
    """A world whose hardware does as it is told, and whose jobs yield when they are asked to."""

    def __init__(self, *pools: Pool, policy: Policy = QUICK) -> None:
        super().__init__(*pools, policy=policy)
        self.short_since: dict[tuple[str, int], Timestamp] = {}

    def guarantee(self, pool: Pool, **shares: tuple[tuple[int, int], ...]) -> None:
        for name, blocks in shares.items():
            held = (ProjectShare(pool.name, blocks),) if blocks else ()
            [reply] = self.step(SetProject(Project(name=name, shares=held), None))
            assert isinstance(reply, Project), reply

    def go_on(self) -> list[Input]:
        """What hardware and engines say next."""
        said: list[Input] = []
        for partition in self.fleet.partitions.values():
            order = ORDERS.get(partition.state)
            if order is not None:
                seen = ObservedState.ACTIVE if order == "create" else ObservedState.ABSENT
                said.append(
                    DriverResultReceived(partition.id, partition.version, order, DriverResult(ResultCode.OK, seen))
                )
        asked = (claim for claim in self.fleet.claims.values() if claim.state is ClaimState.RECLAIMING)
        return said + [YieldClaim(claim.id, "its state is saved") for claim in asked]

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.step(*self.go_on())

    def judge(self, shares: dict[str, tuple[tuple[int, int], ...]]) -> None:
        """No claim waits long for its guarantee, whichever claims hold the devices (sizes asked are sizes promised).

        A small claim may use a large cell of its own project: that is then what the project has of it.
        """
        held: Counter[tuple[str, int]] = Counter()
        waits: Counter[tuple[str, int]] = Counter()
        for claim in self.fleet.claims.values():
            key = (claim.spec.project, claim.spec.size if claim.cell is None else len(claim.cell))
            (waits if claim.state is ClaimState.PENDING else held)[key] += 1
        for name, blocks in shares.items():
            for size, count in blocks:
                key = (name, size)
                if waits[key] and held[key] < count:
                    since = self.short_since.setdefault(key, self.now)
                    assert self.now - since <= BOUND_S * SECOND, f"{key} has waited since {since}"
                else:
                    self.short_since.pop(key, None)
        for claim in self.fleet.claims.values():
            if claim.state is ClaimState.RECLAIMING:
                assert claim.spec.preemptible
                assert claim.ready_at is not None
                assert claim.asked_until is not None
                asked_at = claim.asked_until - QUICK.yield_s * SECOND
                assert asked_at - claim.ready_at >= QUICK.min_run_s * SECOND


@dataclass(frozen=True)
class Ask:
    """A claim in the name of a project."""

    project: str
    size: int
    preemptible: bool
    priority: int
    limit_s: float | None


happenings = st.lists(
    st.one_of(
        st.builds(
            lambda wanted, preemptible, priority, limit_s: Ask(wanted[0], wanted[1], preemptible, priority, limit_s),
            st.sampled_from([("a", 8), ("b", 4), ("b", 2), ("c", 1), ("c", 2), ("c", 4), ("c", 8), ("c", 16)]),
            st.sampled_from([True, True, False]),
            st.integers(0, 2),
            st.sampled_from([None, 5.0, 30.0]),
        ),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.integers(1, 8)),
    ),
    max_size=40,
)


@settings(max_examples=examples(150), deadline=None)
@given(happenings)
def test_a_guaranteed_share_is_had_within_the_bound_whatever_was_lent(given: list[Ask | tuple[str, int]]) -> None:
    site = Site(POD)
    site.guarantee(POD, **SHARES)
    for one in (*given, ("pass", BOUND_S + 2)):
        if isinstance(one, Ask):
            asked = site.asks(
                one.size, project=one.project, preemptible=one.preemptible, priority=one.priority,
                time_limit_s=one.limit_s, gcds=2 if one.size > 8 else 1, owner=f"local/run-{site.n_created}",
            )  # fmt: skip
            site.step(asked, *site.go_on())
        elif one[0] == "pass":
            for _ in range(one[1]):
                site.step(*site.go_on())
                site.judge(SHARES)
        elif site.fleet.claims:
            known = sorted(site.fleet.claims)
            site.step(ReleaseClaim(known[one[1] % len(known)], "done"), *site.go_on())
        site.judge(SHARES)


def held(site: Site, claim: Claim) -> str:
    return str(site.fleet.partitions[partition].block) if (partition := site.claim(claim.id).partition) else ""


def test_borrowers_yield_and_keep_their_places() -> None:
    site = Site(POD)
    site.guarantee(POD, a=((8, 1),), b=((4, 2),))
    borrowers = [site.create(4, project="b", preemptible=True) for _ in range(4)]
    site.pass_s(2)
    within = [claim for claim in borrowers if site.claim(claim.id).cell is not None]
    wanted = site.create(8, project="a")
    [reason, *_] = explain_wait(site.fleet, site.claim(wanted.id), site.now).reasons
    assert reason.code == "queue.reserved"
    site.pass_s(BOUND_S)
    assert site.claim(wanted.id).state is ClaimState.READY
    assert [site.claim(claim.id).state for claim in within] == [ClaimState.READY] * 2
    waiting = [site.claim(claim.id) for claim in borrowers if claim not in within]
    assert [(claim.state, claim.attempt) for claim in waiting] == [(ClaimState.PENDING, 1)] * 2
    assert [claim.arrival for claim in waiting] == sorted(claim.arrival for claim in waiting)
    site.end(wanted)
    site.pass_s(2)
    assert {site.claim(claim.id).state for claim in borrowers} == {ClaimState.READY}


def test_what_cannot_be_asked_back_is_not_lent() -> None:
    site = Site(POD)
    site.guarantee(POD, a=((8, 1),), b=())
    first, second = (site.create(8, project="b") for _ in range(2))
    site.pass_s(3)
    assert [site.claim(claim.id).state for claim in (first, second)] == [ClaimState.READY, ClaimState.PENDING]
    assert "project.guaranteed" in {
        why.code for why in explain_wait(site.fleet, site.claim(second.id), site.now).reasons
    }
    assert site.create(8, project="a").state is ClaimState.GRANTED


def test_a_promise_may_be_made_over_what_is_lent_for_good_and_from_then_on_nothing_more_is() -> None:
    """It is kept as soon as what was lent before comes back; who holds it is asked nothing."""
    site = Site(CROSS)
    before = site.ready(8, kind="gpu", project="default")
    site.guarantee(CROSS, a=((1, 9),))
    later = site.create(1, kind="gpu", project="default")
    within = site.create(4, kind="gpu", project="a")
    site.pass_s(BOUND_S)
    states = [site.claim(one.id).state for one in (before, later, within)]
    assert states == [ClaimState.READY, ClaimState.PENDING, ClaimState.READY]
    site.end(before)
    site.pass_s(BOUND_S)
    assert site.create(5, kind="gpu", project="a").state is ClaimState.GRANTED


def test_nothing_is_kept_for_who_may_not_have_it_when_it_is_empty() -> None:
    site = Site(POD)
    site.guarantee(POD, a=((8, 1),), b=())
    site.create(8, project="b")
    waits = site.create(8, project="b")
    borrows = site.create(8, project="b", preemptible=True)
    assert (site.claim(waits.id).state, borrows.state) == (ClaimState.PENDING, ClaimState.GRANTED)


def test_scattered_devices_are_no_guarantee() -> None:
    """Eight devices would be free for a guarantee of 8, but in two corners: the second loan is refused."""
    site = Site(POD)
    site.guarantee(POD, a=((8, 1),), b=())
    small = [site.create(2, project="b") for _ in range(4)]
    assert {held(site, claim) for claim in small} == {"0-1", "2-3", "4-5", "6-7"}
    assert site.create(1, project="b").state is ClaimState.PENDING


def test_who_lost_least_work_yields() -> None:
    site = Site(POD)
    site.guarantee(POD, a=((4, 1),), c=())
    claims = [site.create(4, project="c", preemptible=True, owner=f"local/run-{n}") for n in range(4)]
    site.pass_s(60)
    saved = claims[2]
    site.step(CheckpointSaved(saved.id, Timestamp(site.now - 5 * SECOND)))
    site.create(4, project="a")
    site.step()
    asked = [claim.id for claim in claims if site.claim(claim.id).state is ClaimState.RECLAIMING]
    assert asked == [saved.id]


def test_a_checkpoint_in_the_future_or_older_than_another_changes_nothing() -> None:
    site = Site(POD)
    claim = site.ready(4)
    site.step(CheckpointSaved(claim.id, Timestamp(site.now + 60 * SECOND)))
    seen = site.claim(claim.id).checkpoint_at
    assert seen is not None
    assert seen <= site.now
    site.step(CheckpointSaved(claim.id, Timestamp(seen - SECOND)))
    assert site.claim(claim.id).checkpoint_at == seen


def test_a_claim_by_hand_that_does_not_yield_in_time_is_taken() -> None:
    site = Site(POD)
    site.guarantee(POD, a=((8, 2),), c=())
    kept = site.ready(8, project="c", preemptible=True, owner="user/ann")
    run = site.ready(8, project="c", preemptible=True, owner="local/run-1")
    for _ in range(4):
        site.step()
    for _ in range(2):
        site.create(8, project="a")
    for _ in range(2):
        site.step()
    assert {site.claim(one.id).state for one in (kept, run)} == {ClaimState.RECLAIMING}
    for _ in range(6):
        site.step()
    assert site.claim(kept.id).state is ClaimState.YIELDING
    assert site.claim(run.id).state is ClaimState.RECLAIMING, "its engine has not said that the job has ended"


def test_a_higher_priority_takes_the_place_of_its_own_project_only_within_its_guarantee() -> None:
    site = Site(CROSS)
    site.guarantee(CROSS, a=((1, 4),), b=((1, 4),))
    low = [site.create(2, kind="gpu", project="a", preemptible=True, owner=f"local/run-{n}") for n in range(2)]
    other = site.create(4, kind="gpu", project="b", preemptible=True, owner="local/run-9")
    more = site.create(4, kind="gpu", project="b", preemptible=True, owner="local/run-10")
    site.pass_s(4)
    assert {site.claim(claim.id).state for claim in (*low, other, more)} == {ClaimState.READY}
    high = site.create(2, kind="gpu", project="a", priority=5)
    site.pass_s(BOUND_S)
    assert site.claim(high.id).state is ClaimState.READY
    assert sorted(site.claim(claim.id).state for claim in low) == [ClaimState.PENDING, ClaimState.READY]
    assert {site.claim(claim.id).state for claim in (other, more)} == {ClaimState.READY}


def test_guarantees_of_a_catalogue_s_blocks() -> None:
    site = Site(RACK)
    site.guarantee(RACK, a=((3, 1),), b=())
    for _ in range(6):
        site.create(1, kind="csx", project="b", preemptible=True, owner=f"local/run-{site.n_created}")
    site.pass_s(4)
    wanted = site.create(3, kind="csx", project="a")
    site.pass_s(BOUND_S)
    assert site.claim(wanted.id).state is ClaimState.READY


def test_a_limit_is_kept_and_what_is_left_of_it_is_kept_for_the_first() -> None:
    site = Site(POD)
    site.step(SetProject(Project(name="a", devices_max=8), None))
    first = site.ready(4, project="a")
    large = site.create(8, project="a")
    small = site.create(2, project="a")
    site.pass_s(3)
    assert [site.claim(one.id).state for one in (first, large, small)] == [
        ClaimState.READY,
        ClaimState.PENDING,
        ClaimState.PENDING,
    ]
    codes = [explain_wait(site.fleet, site.claim(one.id), site.now).reasons[0].code for one in (large, small)]
    assert codes == ["project.limit"] * 2
    site.end(first)
    assert site.claim(large.id).state is ClaimState.GRANTED
    assert site.claim(small.id).state is ClaimState.PENDING
    [refused] = site.step(site.asks(16, project="a", gcds=2))
    assert isinstance(refused, MooringsError)
    assert refused.code == "project.limit"


def test_who_fits_under_a_limit_is_told_who_came_later_and_is_first_there() -> None:
    """Its project used less: what is left under the limit of both is kept for it, and no next turn serves the other."""
    site = Site(POD)
    for name, most in (("lab", 8), ("lab/a", None), ("lab/b", None)):
        site.step(SetProject(Project(name=name, devices_max=most), None))
    site.ready(4, project="lab/a")
    site.pass_s(10)
    holds = site.ready(4, project="lab/b", preemptible=True)
    earlier, first = site.create(2, project="lab/a", preemptible=True), site.create(8, project="lab/b")
    site.end(holds)
    site.pass_s(3)
    assert {site.claim(one.id).state for one in (earlier, first)} == {ClaimState.PENDING}
    [reason, *others] = explain_wait(site.fleet, site.claim(earlier.id), site.now).reasons
    assert (reason.code, reason.blockers) == ("project.limit", (first.id,))
    assert "queue.next_turn" not in {one.code for one in others}


def test_of_equals_the_project_that_used_less_is_first() -> None:
    site = Site(POD)
    site.guarantee(POD, a=(), b=())
    used = site.ready(16, project="a", gcds=2)
    site.pass_s(100)
    earlier, later = site.create(16, project="a", gcds=2), site.create(16, project="b", gcds=2)
    site.end(used)
    site.pass_s(1)
    assert site.claim(later.id).partition is not None
    assert site.claim(earlier.id).partition is None
    assert site.fleet.usage["a"].used > 1600 * SECOND


@pytest.mark.parametrize("project", ["a", "nobody"])
def test_a_project_that_is_used_or_unknown_cannot_be_removed(project: str) -> None:
    site = Site(POD)
    site.guarantee(POD, a=())
    claim = site.ready(4, project="a")
    [refused] = site.step(DeleteProject(project))
    assert isinstance(refused, MooringsError)
    assert refused.code == ("project.in_use" if project == "a" else "project.unknown")
    site.end(claim)
    site.step(DeleteProject("a"))
    assert not site.fleet.projects


def test_a_yield_that_nobody_asked_for_is_refused() -> None:
    site = Site(POD)
    claim = site.ready(4)
    [refused] = site.step(YieldClaim(claim.id, "I am nice"))
    assert isinstance(refused, MooringsError)
    assert refused.code == "claim.not_asked"


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(5, 60)), min_size=2, max_size=8),
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 60), st.integers(0, 4)), max_size=25),
    st.sampled_from([8, 16]),
)
def test_backfill_never_delays_the_first(
    holders: list[tuple[int, int]], behind: list[tuple[int, int, int]], size: int
) -> None:
    """Law 7: jobs that end at their limits may use what is kept, and the first starts when it was told, or sooner."""
    site = Site(POD, policy=replace(QUICK, making_s=3))
    for holder, limit_s in holders:
        site.create(holder, time_limit_s=float(limit_s), owner=f"local/run-{site.n_created}")
        site.step(*site.go_on())
    first = site.create(size, gcds=2, owner="local/first", priority=1)
    promised: Timestamp | None = None
    coming = list(behind)
    for _ in range(200):
        if site.claim(first.id).state is not ClaimState.PENDING:
            break
        kept = next((one for one in site.fleet.reserved_blocks if one.claim == first.id), None)
        if kept is not None and promised is None:
            promised = kept.until
        said: list[Input] = site.go_on()
        if coming:
            small, limit_s, _ = coming.pop(0)
            said.append(site.asks(small, time_limit_s=float(limit_s), owner=f"local/run-{site.n_created}"))
        for claim in site.fleet.claims.values():
            ends_s = claim.spec.time_limit_s
            if (
                claim.ready_at is not None
                and ends_s is not None
                and add_seconds(claim.ready_at, ends_s) <= site.now + SECOND
            ):
                said.append(ReleaseClaim(claim.id, "its time is over"))
        site.step(*said)
    assert site.claim(first.id).state is not ClaimState.PENDING
    if promised is not None:
        assert site.now <= promised + 4 * SECOND  # a release, a removal and a grant take a turn each


def test_nobody_is_asked_before_it_has_run_so_long() -> None:
    site = Site(POD)
    site.guarantee(POD, a=((8, 2),), c=())
    borrowers = [site.create(8, project="c", preemptible=True, owner=f"local/run-{n}") for n in range(2)]
    site.pass_s(1)
    ready = site.claim(borrowers[1].id).ready_at
    for _ in range(2):
        site.create(8, project="a")
    while site.claim(borrowers[1].id).state is ClaimState.READY:
        site.step()
    assert ready is not None
    assert QUICK.min_run_s * SECOND <= site.now - ready <= (QUICK.min_run_s + 1) * SECOND


def test_who_waits_for_borrowers_is_told_that_they_are_to_be_asked_and_when_they_are_gone() -> None:
    site = Site(POD)
    site.guarantee(POD, a=((8, 2),), c=())
    borrowers = [site.create(8, project="c", preemptible=True) for _ in range(2)]
    site.pass_s(1)
    wanted = site.create(8, project="a")
    site.step()
    [before, *_] = explain_wait(site.fleet, site.claim(wanted.id), site.now).reasons
    (borrower,) = (one for one in borrowers if one.id in before.blockers)
    ready = site.claim(borrower.id).ready_at
    assert before.message.endswith(f"still held by {borrower.name} ({borrower.subject}), to be asked to yield")
    assert before.until == add_seconds(max(site.now, add_seconds(ready or site.now, QUICK.min_run_s)), QUICK.yield_s)
    while site.claim(borrower.id).state is ClaimState.READY:
        site.step()
    by = site.claim(borrower.id).asked_until
    for _ in range(2):  # the time stays, however often it is asked for
        [then, *_] = explain_wait(site.fleet, site.claim(wanted.id), site.now).reasons
        assert then.message.endswith(f"({borrower.subject}), asked to yield")
        assert then.until == by
        site.step()


def set_back(site: Site) -> None:
    site.now = Timestamp(site.now - 3600 * SECOND)
    site.since = Timestamp(site.now + SECOND)  # the next turn's time
    site.step()


def test_a_clock_that_was_set_back_lets_nobody_run_longer_before_it_is_asked_nor_take_longer_to_yield() -> None:
    site = Site(POD)
    site.guarantee(POD, a=((8, 2),), c=())
    borrowers = [site.create(8, project="c", preemptible=True) for _ in range(2)]
    site.pass_s(1)
    set_back(site)
    first = site.create(8, project="a")
    for _ in range(int(QUICK.min_run_s) + 2):
        site.step()
    asked = [one for one in borrowers if site.claim(one.id).state is ClaimState.RECLAIMING]
    assert len(asked) == 1
    set_back(site)
    for _ in range(int(QUICK.yield_s) + 2):
        site.step()
    assert site.claim(asked[0].id).state is ClaimState.YIELDING, (
        "a claim by hand is taken when its time to yield is over"
    )
    site.pass_s(3)
    assert site.claim(first.id).state is ClaimState.READY


def test_a_borrower_is_told_which_project_s_job_in_another_scheduler_s_queue_needs_its_devices() -> None:
    site = Site(POD)
    own = Project(name="lab", shares=(ProjectShare(POD.name, ((8, 2),)),), aliases=("slurm/one/physics",))
    site.step(SetProject(own, None), SetProject(Project(name="guest"), None))
    lent = [site.create(8, project="guest", preemptible=True, owner=f"local/run-{n}") for n in range(2)]
    site.pass_s(5)
    job = QueuedJob("slurm/one/7/nonce/0", ClaimSpec(kind="ipu", size=8, project="physics"), site.now)
    site.step(QueueReported(QueueReport("slurm/one", "ipu", (job,), add_seconds(site.now, 600.0))))
    [reason] = [one.reason for one in (site.claim(claim.id) for claim in lent) if one.state is ClaimState.RECLAIMING]
    assert reason is not None
    assert "slurm/one/7/nonce/0 of project lab" in reason.message
