"""Reclaim: who is asked may be asked, nobody before its time if others can be, and nothing costs less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.guarantees import reclaims
from moorings.core.guarantees.guarantee_map import GuaranteeMap, build_guarantee_map
from moorings.core.guarantees.reclaims import ReclaimCandidate, ReclaimCosts, find_cheapest_reclaim
from moorings.core.model.claims import ClaimId
from moorings.core.model.devices import PoolName
from moorings.core.model.policy import Policy
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo, Topology
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.free_map import free_map_for
from moorings.core.placement.plans import Holder
from moorings.core.placement.release_times import release_times_for
from tests.sampling import examples

NOW = Timestamp(10_000 * SECOND)
POLICY = Policy(min_run_s=300, move_s=120)
RACK = Catalogue(12, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6) for s in range(0, 12, n)))
POD = PowerOfTwo(2, 8, 16)
CROSS = AnySubset(10, 8)
Cells = tuple[tuple[str, int, int], ...]


class Case:
    """A pool, its tenants, and one claim that wants what it is guaranteed."""

    def __init__(self, topology: Topology, cells: Cells, tenants: Iterable[Holder], kept: Iterable[int] = ()) -> None:
        pool = Pool(PoolName("pool"), "ipu", "simulated", topology)
        self.state = PoolState(pool, free_map_for(topology), release_times_for(topology))
        self.tenants = list(tenants)
        self.cells = cells
        for index in {*kept, *(index for tenant in self.tenants for index in tenant.block)}:
            self.state.free.allocate(Block.single(index))
        own: dict[str, list[tuple[int, int]]] = {}
        for owner, size, count in cells:
            own.setdefault(owner, []).append((size, count))
        owners = {tenant.project: (tenant.project,) for tenant in self.tenants}
        self.estate: GuaranteeMap = build_guarantee_map(pool, own, self.tenants, (), owners)

    def wanted(self, size: int, over: int | None = None, asked: Sequence[str] = ()) -> ReclaimCandidate | None:
        mine = tuple(cell for cell in self.cells if cell[0] == "mine")
        busy = {ClaimId(ident) for ident in asked}
        return find_cheapest_reclaim(
            self.estate, mine, self.state, size, over, self.tenants, busy, ReclaimCosts(POLICY, NOW)
        )


def tenant(
    number: int, block: Iterable[int], *, ran_s: float = 1000, saved_s: float | None = None, **more: object
) -> Holder:
    """A borrower, unless the arguments say otherwise."""
    told: dict[str, object] = {"is_preemptible": True, "project": "other", **more}
    return Holder(
        ClaimId(f"c{number}"),
        PoolName("pool"),
        Block.of(list(block)),
        ready_at=Timestamp(NOW - round(ran_s * SECOND)),
        checkpoint_at=None if saved_s is None else Timestamp(NOW - round(saved_s * SECOND)),
        **told,  # type: ignore[arg-type]
    )


def cost(one: Holder) -> tuple[Timestamp, float]:
    """When it may be asked, and what it loses: reckoned here once more."""
    if one.is_leaving:
        return NOW, 0.0
    assert one.ready_at is not None
    worked = (NOW - max(one.ready_at, one.checkpoint_at or 0)) / SECOND
    return Timestamp(max(NOW, one.ready_at + 300 * SECOND)), len(one.block) * (worked + 120)


def together(victims: Iterable[Holder]) -> tuple[Timestamp, float]:
    costs = [cost(one) for one in victims]
    return max((when for when, _ in costs), default=NOW), sum(lost for _, lost in costs)


tenants_of = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 4]),
        st.sampled_from([10, 100, 299, 400, 1000, 5000]),
        st.sampled_from([None, 5, 50, 200]),
        st.sampled_from(["borrowed", "borrowed", "borrowed", "borrowed", "fixed", "leaving"]),
    ),
    max_size=8,
)


def placed(topology: Topology, drawn: Iterable[tuple[int, int, int | None, str]]) -> list[Holder]:
    free = free_map_for(topology)
    found = []
    for number, (size, ran_s, saved_s, how) in enumerate(drawn):
        block = free.find_block(size)
        if block is not None:
            free.allocate(block)
            found.append(
                tenant(
                    number,
                    block,
                    ran_s=ran_s,
                    saved_s=saved_s,
                    is_preemptible=how == "borrowed",
                    is_leaving=how == "leaving",
                )
            )
    return found


@settings(max_examples=examples(300), deadline=None)
@given(tenants_of, st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_of_all_blocks_the_one_is_taken_that_can_be_had_soonest_and_costs_least(
    drawn: list[tuple[int, int, int | None, str]], cell: int, size: int, busy: bool
) -> None:
    case = Case(POD, (("mine", cell, 1),), placed(POD, drawn))
    asked = ["c0"] if busy else []
    found = case.wanted(size, asked=asked)
    able = []
    for start in range(0, 16, cell):
        around = Block(range(start, start + cell))
        firm = [one for one in case.tenants if not (one.is_preemptible or one.is_leaving)]
        if size > cell or any(one.block.overlaps(around) for one in firm):
            continue
        for at in range(start, start + cell, size):
            victims = [one for one in case.tenants if one.block.overlaps(Block(range(at, at + size)))]
            if not any(one.claim in asked for one in victims):
                able.append(together(victims))
    if not able:
        assert found is None
        return
    assert found is not None
    check(case, found, size, asked)
    when, lost = min(able)
    assert found.possible_at == when
    assert found.lost_device_s == pytest.approx(lost)


@settings(max_examples=examples(300), deadline=None)
@given(tenants_of, st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_where_any_devices_do_those_are_asked_that_lose_least_together(
    drawn: list[tuple[int, int, int | None, str]], cell: int, size: int, busy: bool
) -> None:
    """By trying all sets of borrowers; those that leave anyway cost nothing."""
    case = Case(CROSS, (("mine", 1, cell),), placed(CROSS, drawn))
    asked = ["c0"] if busy else []
    found = case.wanted(size, asked=asked)
    borrowers = [one for one in case.tenants if (one.is_preemptible or one.is_leaving) and one.claim not in asked]
    free = case.state.free.n_free
    sets = (few for n in range(len(borrowers) + 1) for few in combinations(borrowers, n))
    able = [together(few) for few in sets if free + sum(len(one.block) for one in few) >= size and size <= cell]
    if not able:
        assert found is None
        return
    assert found is not None
    check(case, found, size, asked)
    when, lost = min(able)
    assert found.possible_at == when
    assert found.lost_device_s == pytest.approx(lost)


def check(case: Case, found: ReclaimCandidate, size: int, asked: Sequence[str]) -> None:
    """What is taken is free, or of victims; they are whole claims, each once, and may be asked."""
    assert len(found.place.block) == size
    assert len({one.claim for one in found.victims}) == len(found.victims)
    for one in found.victims:
        assert one in case.tenants
        assert one.claim not in asked
        assert one.is_leaving or (one.is_preemptible and one.guaranteed_block is None)
    held = {index: one for one in case.tenants for index in one.block}
    for index in found.place.block:
        assert held.get(index) in (None, *found.victims)
        assert index in held or case.state.free.is_free(Block.single(index))


def test_nobody_is_asked_before_its_time_if_another_can_be() -> None:
    """The one that lost less has run for a moment only."""
    young, old = tenant(1, range(8), ran_s=10), tenant(2, range(8, 16), ran_s=9000)
    found = Case(POD, (("mine", 8, 1),), [young, old]).wanted(8)
    assert found is not None
    assert found.victims == (old,)
    assert found.possible_at == NOW


def test_if_all_are_young_the_first_whose_time_comes_is_taken() -> None:
    young, younger = tenant(1, range(8), ran_s=20), tenant(2, range(8, 16), ran_s=10)
    found = Case(POD, (("mine", 8, 1),), [young, younger]).wanted(8)
    assert found is not None
    assert found.victims == (young,)
    assert found.possible_at == NOW + 280 * SECOND


def test_who_is_being_made_ready_is_asked_later_even_if_nobody_need_run() -> None:
    starting = replace(tenant(1, range(16)), ready_at=None)
    state = Case(POD, (("mine", 8, 1),), [starting])
    mine = (("mine", 8, 1),)
    hasty = replace(POLICY, min_run_s=0.0)
    found = find_cheapest_reclaim(state.estate, mine, state.state, 8, None, [starting], (), ReclaimCosts(hasty, NOW))
    assert found is not None
    assert found.possible_at > NOW


def test_four_small_claims_that_have_just_saved_lose_less_than_a_large_one_that_did_not() -> None:
    large = tenant(0, range(8), ran_s=5000)
    small = [tenant(n, range(n * 2, n * 2 + 2), ran_s=5000, saved_s=1) for n in range(4, 8)]
    found = Case(POD, (("mine", 8, 1),), [large, *small]).wanted(8)
    assert found is not None
    assert list(found.victims) == small


def test_what_is_kept_for_others_is_not_taken() -> None:
    borrowed = tenant(1, range(4), saved_s=1)
    found = Case(POD, (("mine", 8, 1),), [borrowed], kept=[5]).wanted(8)
    assert found is not None
    assert found.place.block == Block(range(8, 16))


def test_a_claim_that_sits_across_the_place_goes_whole() -> None:
    large = tenant(1, range(16))
    found = Case(POD, (("mine", 2, 1),), [large]).wanted(2)
    assert found is not None
    assert found.victims == (large,)
    assert found.lost_device_s == together([large])[1]


@pytest.mark.parametrize("topology", [POD, CROSS, RACK], ids=repr)
def test_only_those_of_its_own_guarantee_with_a_lower_priority_make_room(topology: Topology) -> None:
    """Those of another are within theirs; those of its own come first, as long as their priority is no lower."""
    size = 6 if topology is RACK else 8
    cells: Cells = (("mine", 1, 8),) if topology is CROSS else (("mine", size, 1),)
    if topology is POD:
        cells = (*cells, ("theirs", 8, 1))
    block = Block(range(size))
    own = tenant(1, block, project="mine", guaranteed_block=block, priority=3)
    theirs = (
        tenant(2, range(8, 16), project="theirs", guaranteed_block=Block(range(8, 16))) if topology is POD else None
    )
    case = Case(topology, cells, [own, *([theirs] if theirs is not None else [])])
    for over in (None, 2, 3):
        assert case.wanted(size, over) is None
    found = case.wanted(size, 4)
    assert found is not None
    assert found.victims == (own,)
    fixed = Case(topology, cells, [replace(own, is_preemptible=False)])
    assert fixed.wanted(size, 4) is None


def test_the_lowest_priority_of_its_own_goes_first() -> None:
    low, high = (
        tenant(
            n, range(n, n + 2), project="mine", guaranteed_block=Block(range(n, n + 2)), priority=n, ran_s=900 - 100 * n
        )
        for n in (0, 2)
    )
    found = Case(CROSS, (("mine", 1, 4),), [low, high]).wanted(2, 5)
    assert found is not None
    assert found.victims == (low,)


def test_too_many_to_try_all_are_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest first, and nobody who is not needed."""
    three = [tenant(n, range(3 * n, 3 * n + 3), ran_s=1000 + n) for n in range(2)]
    four = tenant(9, range(6, 10), ran_s=1100)
    case = Case(CROSS, (("mine", 1, 8),), [*three, four])
    exact = case.wanted(4)
    assert exact is not None
    assert exact.victims == (four,)
    monkeypatch.setattr(reclaims, "CHOICES_MAX", 0)
    found = case.wanted(4)
    assert found is not None
    assert list(found.victims) == three
