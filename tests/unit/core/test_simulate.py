"""Simulations: jobs run as long as they say, no device is used twice, and moves make power-of-two pools fungible."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.forecast.simulation import SimulatedJob, Simulation, SimulationResult, simulate
from moorings.core.model.claims import Claim, ClaimId
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.projects import Project, Projects, ProjectShare
from moorings.core.model.timestamps import Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo, Topology
from tests.sampling import examples

QUICK = Policy(min_run_s=5, yield_s=3, making_s=0, move_s=2)
POLICIES = (
    QUICK,
    replace(QUICK, backfill=False),
    replace(QUICK, reserve=False),
    replace(QUICK, defragment=DefragmentMode.SUGGEST),
    replace(QUICK, defragment=DefragmentMode.ON),
    replace(QUICK, defragment=DefragmentMode.ON, moves_per_hour=3),
)
TOPOLOGIES: tuple[Topology, ...] = (
    PowerOfTwo(2, 8, 16),
    PowerOfTwo(3, 4, 8),
    AnySubset(12, 8),
    Catalogue(12, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6) for s in range(0, 12, n))),
)


def pool(topology: Topology, name: str = "pool") -> Pool:
    return Pool(PoolName(name), "ipu", "simulated", topology)


class Watched(Simulation):
    """A simulation in which every change of who uses what is looked at."""

    def _start(self, claim: Claim, pool: PoolName, block: Block, cell: Block | None) -> None:
        assert self.pools[pool].free.is_free(block)
        assert claim.id not in self._running
        assert len(block) == claim.spec.size
        super()._start(claim, pool, block, cell)
        self.look()

    def _turn(self) -> None:
        super()._turn()
        self.look()

    def _end(self, ended: tuple[Timestamp, ClaimId]) -> None:
        super()._end(ended)
        self.look()

    def look(self) -> None:
        """Each device is used by one job at most, and is free if and only if nobody uses it."""
        used: set[tuple[str, int]] = set()
        for running in self._running.values():
            tenant = running.tenant
            devices = {(tenant.pool, index) for index in tenant.block}
            assert used.isdisjoint(devices)
            used |= devices
        for name, state in self.pools.items():
            free = {i for i in range(state.pool.topology.n_devices) if state.free.is_free(Block.single(i))}
            assert free == {i for i in range(state.pool.topology.n_devices) if (name, i) not in used}
        assert self._busy == len(used)


def judge(found: SimulationResult, jobs: list[SimulatedJob], policy: Policy, *, guaranteed: bool = False) -> None:
    """All that can run did, for as long as they had to, and the devices were in use for just as long."""
    assert [course.job.name for course in found.courses] == [
        job.name for _, job in sorted(enumerate(jobs), key=lambda pair: (pair[1].arrives_s, pair[0]))
    ]
    device_s = 0.0
    for course in found.courses:
        if course.rejection_reason:
            assert course.started_s is None
            continue
        if guaranteed and course.started_s is None:  # what cannot be asked back is not lent to it, ever
            assert not course.job.preemptible
            continue
        assert course.started_s is not None
        assert course.ended_s is not None
        assert course.wait_s is not None
        assert course.wait_s >= 0
        paid_s = (course.moves + course.yields) * policy.move_s
        assert course.ended_s - course.started_s >= course.job.runs_s + paid_s - 1e-3
        if not course.yields:
            assert course.ended_s - course.started_s == pytest.approx(course.job.runs_s + paid_s)
        device_s += course.job.size * (course.job.runs_s + paid_s)
    assert found.moves == sum(course.moves for course in found.courses)
    assert found.yields == sum(course.yields for course in found.courses)
    used_s = sum(
        here.busy * (there.at_s - here.at_s) for here, there in zip(found.levels, found.levels[1:], strict=False)
    )
    assert used_s == pytest.approx(device_s, abs=1e-3)
    instants = [level.at_s for level in found.levels]
    assert instants == sorted(set(instants))
    assert all(0 <= level.busy <= found.n_devices for level in found.levels)
    left = sum(course.job.size for course in found.courses if course.started_s is None and not course.rejection_reason)
    assert not found.levels or (found.levels[-1].busy, found.levels[-1].waiting) == (0, left)
    if len(found.levels) > 1:
        assert found.utilisation() * (instants[-1] - instants[0]) * found.n_devices == pytest.approx(used_s)


@st.composite
def jobs_of(draw: st.DrawFn) -> list[SimulatedJob]:
    many = draw(st.integers(0, 25))
    found = []
    for number in range(many):
        runs_s = draw(st.sampled_from([1.0, 2.5, 7.0, 20.0, 60.0]))
        found.append(
            SimulatedJob(
                name=f"job-{number}",
                arrives_s=float(draw(st.integers(0, 40))),
                runs_s=runs_s,
                size=draw(st.sampled_from([1, 1, 2, 2, 3, 4, 6, 8, 16])),
                project=draw(st.sampled_from(["a", "b"])),
                priority=draw(st.sampled_from([0, 0, 0, 1])),
                limit_s=draw(st.sampled_from([None, max(1.0, runs_s), 90.0])),
                preemptible=draw(st.booleans()),
                resumable=draw(st.sampled_from([True, True, False])),
            )
        )
    return found


@settings(max_examples=examples(120), deadline=None)
@given(jobs_of(), st.sampled_from(TOPOLOGIES), st.sampled_from(POLICIES), st.booleans())
def test_all_jobs_run_as_long_as_they_must_and_no_device_is_used_twice(
    jobs: list[SimulatedJob], topology: Topology, policy: Policy, guaranteed: bool
) -> None:
    projects = None
    if guaranteed:
        size = 1 if isinstance(topology, AnySubset) else 2
        share = ProjectShare(PoolName("pool"), ((size, 2),))
        projects = Projects([Project(name="a", shares=(share,)), Project(name="b")], [pool(topology)])
    found = Watched([pool(topology)], policy, projects).run(jobs)
    judge(found, jobs, policy, guaranteed=guaranteed)
    for course in found.courses:
        assert bool(course.rejection_reason) == (course.job.size not in topology.sizes)
    if policy.defragment is not DefragmentMode.ON:
        assert found.moves == 0
    if not guaranteed:
        assert found.yields == 0
    assert simulate([pool(topology)], jobs, policy, projects) == found


def test_several_pools_serve_one_queue() -> None:
    pools = [pool(PowerOfTwo(1, 8, 8), "one"), pool(PowerOfTwo(1, 8, 8), "two")]
    jobs = [SimulatedJob(name=f"job-{n}", arrives_s=0, runs_s=10, size=8) for n in range(4)]
    found = Watched(pools, QUICK).run(jobs)
    judge(found, jobs, QUICK)
    assert sorted(course.pool for course in found.courses) == ["one", "one", "two", "two"]
    assert sorted(course.started_s or 0.0 for course in found.courses) == [0, 0, 10, 10]
    assert found.utilisation() == pytest.approx(1.0)


def trace(seed: int, many: int, n_devices: int, load: float) -> list[SimulatedJob]:
    """Jobs with exact limits, so many that the pool is about as full as ``load`` says."""
    chance = Random(seed)
    sizes = (1, 1, 1, 2, 4, 8, 16)
    found, at_s = [], 0.0
    for number in range(many):
        size = chance.choice(sizes)
        runs_s = round(chance.lognormvariate(6, 1), 3)
        at_s += chance.expovariate(load * n_devices / (sum(sizes) / len(sizes) * 665))
        limit_s = max(1.0, runs_s)
        found.append(
            SimulatedJob(name=f"job-{number}", arrives_s=round(at_s, 3), runs_s=runs_s, size=size, limit_s=limit_s)
        )
    return found


def mean_wait_s(found: SimulationResult, least: int = 1) -> float:
    waits = [course.wait_s for course in found.courses if course.wait_s is not None and course.job.size >= least]
    return sum(waits) / len(waits)


@pytest.mark.parametrize("seed", range(3))
def test_where_jobs_are_moved_they_wait_as_if_any_devices_would_do(seed: int) -> None:
    """And where they are not they wait longer, in the same pool."""
    policy = replace(QUICK, move_s=0.1, defragment=DefragmentMode.ON, moves_per_hour=100_000)
    jobs = trace(seed, 1200, 64, 0.9)
    subset = simulate([pool(AnySubset(64, 16))], jobs, policy)
    moved = simulate([pool(PowerOfTwo(4, 16, 16))], jobs, policy)
    fixed = simulate([pool(PowerOfTwo(4, 16, 16))], jobs, replace(policy, defragment=DefragmentMode.OFF))
    judge(moved, jobs, policy)
    assert moved.moves > 0
    assert mean_wait_s(moved, 8) == pytest.approx(mean_wait_s(subset, 8), rel=0.1)
    assert mean_wait_s(fixed, 8) > 1.2 * mean_wait_s(subset, 8)


def test_who_only_suggests_moves_nobody() -> None:
    """What becomes of the jobs is the same as if nothing had been suggested."""
    jobs = trace(7, 300, 16, 0.9)
    pools = [pool(PowerOfTwo(1, 16, 16))]
    off = simulate(pools, jobs, QUICK)
    suggested = simulate(pools, jobs, replace(QUICK, defragment=DefragmentMode.SUGGEST))
    assert suggested.suggested > 0
    assert suggested.moves == off.moves == off.suggested == 0
    assert suggested.courses == off.courses


def test_no_more_is_moved_in_an_hour_than_the_policy_says() -> None:
    jobs = trace(7, 300, 16, 0.9)
    pools = [pool(PowerOfTwo(1, 16, 16))]
    few = simulate(pools, jobs, replace(QUICK, defragment=DefragmentMode.ON, moves_per_hour=1))
    hours = few.levels[-1].at_s / 3600
    many = simulate(pools, jobs, replace(QUICK, defragment=DefragmentMode.ON, moves_per_hour=1000))
    assert 0 < few.moves <= hours + 1
    assert few.moves < many.moves


def test_a_guarantee_is_taken_back_from_those_that_borrowed() -> None:
    projects = Projects(
        [Project(name="a", shares=(ProjectShare(PoolName("pool"), ((8, 1),)),)), Project(name="b")],
        [pool(PowerOfTwo(1, 8, 8))],
    )
    borrower = SimulatedJob(name="borrower", arrives_s=0, runs_s=100, size=8, project="b")
    owner = SimulatedJob(name="owner", arrives_s=20, runs_s=10, size=8, project="a")
    found = Watched([pool(PowerOfTwo(1, 8, 8))], QUICK, projects).run([borrower, owner])
    judge(found, [borrower, owner], QUICK)
    first, second = found.courses
    assert (second.started_s, second.ended_s) == (20, 30)
    assert (first.yields, first.started_s, first.ended_s) == (1, 0, 100 + 10 + QUICK.move_s)


def test_nobody_is_taken_back_from_before_its_time() -> None:
    projects = Projects(
        [Project(name="a", shares=(ProjectShare(PoolName("pool"), ((8, 1),)),)), Project(name="b")],
        [pool(PowerOfTwo(1, 8, 8))],
    )
    borrower = SimulatedJob(name="borrower", arrives_s=0, runs_s=1000, size=8, project="b")
    owner = SimulatedJob(name="owner", arrives_s=1, runs_s=10, size=8, project="a")
    found = Watched([pool(PowerOfTwo(1, 8, 8))], QUICK, projects).run([borrower, owner])
    assert found.courses[1].started_s == QUICK.min_run_s


def test_equals_are_served_in_the_order_of_the_trace() -> None:
    jobs = [SimulatedJob(name=f"job-{n:02}", arrives_s=0, runs_s=1, size=8) for n in range(40)]
    found = simulate([pool(PowerOfTwo(1, 8, 8))], jobs, QUICK)
    assert [course.started_s for course in found.courses] == [float(n) for n in range(40)]


def test_a_job_of_no_pool_s_size_is_refused_and_the_others_run() -> None:
    jobs = [
        SimulatedJob(name="odd", arrives_s=0, runs_s=1, size=3),
        SimulatedJob(name="even", arrives_s=0, runs_s=1, size=4),
    ]
    found = simulate([pool(PowerOfTwo(1, 8, 8))], jobs, QUICK)
    assert [bool(course.rejection_reason) for course in found.courses] == [True, False]
    assert found.courses[0].wait_s is None


def test_who_can_never_be_lent_a_block_keeps_none_from_the_others() -> None:
    """It would wait for ever with all devices idle."""
    projects = Projects(
        [Project(name="a", shares=(ProjectShare(PoolName("pool"), ((4, 1),)),)), Project(name="b")],
        [pool(PowerOfTwo(1, 8, 8))],
    )
    never = SimulatedJob(name="never", arrives_s=0, runs_s=10, size=8, project="b", preemptible=False)
    other = SimulatedJob(name="other", arrives_s=1, runs_s=10, size=8, project="b")
    found = simulate([pool(PowerOfTwo(1, 8, 8))], [never, other], QUICK, projects)
    assert [course.started_s for course in found.courses] == [None, 1.0]
