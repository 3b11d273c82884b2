"""Cells: after whatever is lent, used and given back, every promise that is not in use can be kept at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.guarantees import guarantee_map as cells_module
from moorings.core.guarantees.guarantee_map import (
    DeviceCountMap,
    GuaranteedPlacement,
    GuaranteeMap,
    build_guarantee_map,
    has_disjoint_blocks,
)
from moorings.core.model.block_packing import guaranteeable_sizes
from moorings.core.model.claims import ClaimId
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import Project, Projects, ProjectShare, check_project, parent_of
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo, Topology
from moorings.core.placement.plans import Holder
from tests.sampling import examples

RACK = Catalogue(12, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6) for s in range(0, 12, n)))
SCATTERED = Catalogue(
    8,
    (
        *(Block.single(i) for i in range(8)),
        *map(Block, ((0, 2), (1, 3), (0, 5), (4, 6, 7), (0, 1, 7), (3, 5, 6))),
        *(Block(range(i, i + 2)) for i in (1, 3, 4, 6)),
    ),
)
TOPOLOGIES: tuple[Topology, ...] = (PowerOfTwo(2, 8, 16), PowerOfTwo(3, 4, 8), AnySubset(14, 8), RACK, SCATTERED)
NAMES = ("lab", "lab/a", "lab/b", "lab/a/x", "other")  # parents first


def pool_of(topology: Topology) -> Pool:
    return Pool(PoolName("pod"), "ipu", "simulated", topology)


def blocks_of(topology: Topology, size: int) -> list[Block]:
    if isinstance(topology, Catalogue):
        return [block for block in topology.blocks if len(block) == size]
    return [Block(range(at, at + size)) for at in range(0, topology.n_devices - size + 1, size)]


def fits(topology: Topology, sizes: Sequence[int], taken: frozenset[int]) -> bool:
    """Whether disjoint blocks of these sizes exist beside what is taken, by trying everything."""
    if isinstance(topology, AnySubset):
        return sum(sizes) <= topology.n_devices - len(taken)
    if not sizes:
        return True
    for block in blocks_of(topology, sizes[0]):
        if taken.isdisjoint(block):
            if fits(topology, sizes[1:], taken.union(block)):
                return True
            if isinstance(topology, PowerOfTwo):
                return False  # largest first never needs a second try: sizes divide each other
    return False


@dataclass
class Land:
    """A pool with its tenants, and what each project may still have, reckoned from who sits in which cell."""

    pool: Pool
    projects: Projects
    tenants: dict[ClaimId, Holder] = field(default_factory=dict)
    out: set[int] = field(default_factory=set)
    n_claims: int = 0

    @property
    def topology(self) -> Topology:
        return self.pool.topology

    @cached_property
    def cells(self) -> dict[str, Sequence[tuple[int, int]]]:
        return dict(self.projects.guaranteed_blocks(self.pool.name))

    def open_cells(self, project: str) -> tuple[tuple[str, int, int], ...]:
        return self.projects.usable_guarantees(project, self.pool.name)

    def estate(self) -> GuaranteeMap:
        """Built again from what the tenants say, as each turn does."""
        owners = {tenant.project: self.projects.lineage(tenant.project) for tenant in self.tenants.values()}
        return build_guarantee_map(self.pool, self.cells, self.tenants.values(), self.out, owners)

    @property
    def taken(self) -> frozenset[int]:
        return frozenset(index for tenant in self.tenants.values() for index in tenant.block).union(self.out)

    @property
    def firm(self) -> frozenset[int]:
        """What nobody can be asked to leave, with the whole cells of those that are within one."""
        found = set(self.out)
        for tenant in self.tenants.values():
            if tenant.guaranteed_block is not None:
                found.update(tenant.guaranteed_block)
            elif not tenant.is_preemptible:
                found.update(tenant.block)
        return frozenset(found)

    def cells_used(self) -> dict[Block, list[Holder]]:
        found: dict[Block, list[Holder]] = {}
        for tenant in self.tenants.values():
            if tenant.guaranteed_block is not None:
                found.setdefault(tenant.guaranteed_block, []).append(tenant)
        return found

    def unused(self) -> tuple[dict[tuple[str, int], int], dict[Block, str]]:
        """Cells that nobody uses, by owner and size, and whose the others are: of the nearest that all inside share."""
        left = {(owner, size): count for owner, sizes in self.cells.items() for size, count in sizes}
        owners: dict[Block, str] = {}
        for cell, within in self.cells_used().items():
            lineages = [self.projects.lineage(tenant.project) for tenant in within]
            common = [name for name in lineages[0] if all(name in lineage for lineage in lineages)]
            needed = len(cell)
            for name in common:
                if isinstance(self.topology, AnySubset):
                    used = min(needed, left.get((name, 1), 0))
                    if used:
                        left[name, 1] -= used
                        needed -= used
                elif needed and left.get((name, needed), 0) > 0:
                    left[name, needed] -= 1
                    owners[cell] = name
                    needed = 0
            assert not needed, f"{cell} is nobody's"
        return left, owners

    def is_within(self, project: str, size: int) -> bool:
        """Whether it uses less than it is guaranteed, by so much."""
        lineage = self.projects.lineage(project)
        unused, owners = self.unused()
        left = {key: count for key, count in unused.items() if key[0] in lineage and count > 0}
        if isinstance(self.topology, AnySubset):
            return sum(left.values()) >= size
        exact = isinstance(self.topology, Catalogue)
        if any(cell == size if exact else cell >= size for _, cell in left):
            return True
        for cell, within in () if exact else self.cells_used().items():
            if owners[cell] in lineage and len(cell) >= size:
                inside = {index for tenant in within for index in tenant.block}
                parts = (range(at, at + size) for at in range(cell.start, cell.start + len(cell), size))
                if any(inside.isdisjoint(part) for part in parts):
                    return True
        return False

    def arrive(
        self, project: str, block: Block, *, preemptible: bool, place: GuaranteedPlacement | None = None
    ) -> None:
        """A claim takes a block; who is in its way and was lent it goes."""
        self.n_claims += 1
        # Names in no order of time: nothing may depend on who was first.
        ident = ClaimId(f"c{self.n_claims * 7_919 % 1_000:03}-{self.n_claims}")
        for other in [one for one in self.tenants.values() if one.block.overlaps(block)]:
            assert other.guaranteed_block is None
            assert other.is_preemptible
            self.leave(other.claim)
        tenant = Holder(ident, self.pool.name, block, project, is_preemptible=preemptible)
        self.tenants[ident] = tenant
        if place is not None:
            self.bind(tenant, place.cell if len(place.cell) else block)

    def bind(self, tenant: Holder, cell: Block) -> None:
        self.tenants[tenant.claim] = replace(tenant, guaranteed_block=cell)

    def leave(self, ident: ClaimId) -> None:
        del self.tenants[ident]

    def check(self) -> None:
        """What must be true at any time."""
        owed, _ = self.unused()
        sizes = sorted((size for (_, size), count in owed.items() for _ in range(count)), reverse=True)
        assert fits(self.topology, sizes, self.firm), "a promise cannot be kept"
        estate = self.estate()
        assert estate.passes_lending_check(Block(()))
        for project in NAMES:
            for size in self.topology.sizes:
                offered = list(estate.iter_placements(self.open_cells(project), size, None))
                assert bool(offered) == estate.is_within(self.open_cells(project), size, None)
                if self.is_within(project, size):
                    assert offered, f"{project} is guaranteed a block of {size} and is offered none"
                for place in offered:
                    self.check_place(project, size, place)

    def check_place(self, project: str, size: int, place: GuaranteedPlacement) -> None:
        assert place.owner in self.projects.lineage(project)
        if isinstance(self.topology, AnySubset):
            return
        assert self.topology.is_block(place.cell)
        assert self.topology.is_block(place.block)
        assert len(place.block) == size
        assert set(place.block) <= set(place.cell)
        for tenant in self.tenants.values():
            if tenant.guaranteed_block is not None or not tenant.is_preemptible:
                assert not tenant.block.overlaps(place.block)
                assert tenant.guaranteed_block == place.cell or not tenant.block.overlaps(place.cell)


numbers = st.integers(0, 1 << 16)
steps = st.lists(
    st.tuples(st.sampled_from(["use", "use", "hold", "lend", "adopt", "end", "end"]), numbers), max_size=30
)


@st.composite
def lands(draw: st.DrawFn) -> Land:
    """A pool and projects whose guarantees fit into it."""
    topology = draw(st.sampled_from(TOPOLOGIES))
    pool = pool_of(topology)
    projects = Projects((), [pool])
    for name in NAMES:
        sizes = guaranteeable_sizes(topology)
        counts = draw(st.dictionaries(st.sampled_from(sizes), st.integers(1, 6 if sizes == (1,) else 2), max_size=2))
        for _ in range(4):  # less and less, until there is room for it
            shares = (ProjectShare(pool.name, tuple(counts.items())),) if counts else ()
            project = Project(name=name, shares=shares)
            try:
                check_project(project, projects, {pool.name: pool})
            except MooringsError as error:
                assert error.code == "project.not_feasible"  # noqa: PT017 - nothing else may be wrong
                counts = {size: count // 2 for size, count in counts.items() if count > 1}
                continue
            projects = projects.with_project(project)
            break
        else:
            projects = projects.with_project(Project(name=name))
    # A parent has what is left beside its children: make that more often something.
    assert all(not parent_of(name) or parent_of(name) in projects.by_name for name in NAMES)
    return Land(pool, projects)


def act(land: Land, what: str, number: int) -> None:
    """One thing that can happen, if it can."""
    project = NAMES[number % len(NAMES)]
    sizes = land.topology.sizes
    size = sizes[number // 5 % len(sizes)]
    estate = land.estate()
    if what == "use":
        offered = list(estate.iter_placements(land.open_cells(project), size, None))
        if offered:
            place = offered[number // 100 % len(offered)]
            block = place.block
            if not len(block):
                block = Block.of([i for i in range(land.topology.n_devices) if i not in land.firm][:size])
            land.arrive(project, block, preemptible=bool(number & 1), place=place)
    elif what in ("hold", "lend"):
        block_or_none = free_block(land, size, number // 100)
        if block_or_none is not None and (what == "lend" or estate.passes_lending_check(block_or_none)):
            land.arrive(project, block_or_none, preemptible=what == "lend")
    elif what == "adopt":
        for tenant in sorted(land.tenants.values(), key=lambda one: one.claim):
            found = estate.find_placement(land.open_cells(tenant.project), tenant.block) if not tenant.is_firm else None
            if found is not None:
                estate.bind_holder(found, replace(tenant, guaranteed_block=found.cell))
                land.bind(tenant, found.cell)
    elif land.tenants:
        land.leave(sorted(land.tenants)[number % len(land.tenants)])


def free_block(land: Land, size: int, number: int) -> Block | None:
    taken = land.taken
    if isinstance(land.topology, AnySubset):
        free = [index for index in range(land.topology.n_devices) if index not in taken]
        return Block.of(free[:size]) if len(free) >= size else None
    able = [block for block in blocks_of(land.topology, size) if taken.isdisjoint(block)]
    return able[number % len(able)] if able else None


@settings(max_examples=examples(300), deadline=None)
@given(lands(), steps)
def test_every_promise_can_be_kept_whatever_is_lent_used_and_given_back(
    land: Land, given: list[tuple[str, int]]
) -> None:
    land.check()
    for what, number in given:
        act(land, what, number)
        land.check()


@settings(max_examples=examples(200), deadline=None)
@given(lands(), steps)
def test_an_estate_that_is_built_anew_keeps_what_the_one_before_promised(
    land: Land, given: list[tuple[str, int]]
) -> None:
    estate = land.estate()
    for what, number in given:
        if what not in ("use", "hold"):
            continue
        project, sizes = NAMES[number % len(NAMES)], land.topology.sizes
        size = sizes[number // 5 % len(sizes)]
        block: Block | None
        place = None
        if what == "use":
            offered = list(estate.iter_placements(land.open_cells(project), size, None))
            place = offered[number // 100 % len(offered)] if offered else None
            block = place.block if place is not None else None
            if place is not None and not place.block:
                block = Block.of([i for i in range(land.topology.n_devices) if i not in land.firm][:size])
        else:
            block = free_block(land, size, number // 100)
            block = block if block is not None and estate.passes_lending_check(block) else None
        if block is None:
            continue
        before = set(land.tenants)
        land.arrive(project, block, preemptible=place is not None, place=place)
        [tenant] = [one for ident, one in land.tenants.items() if ident not in before]
        if place is None:
            estate.add_firm_borrower(block)
        else:
            assert tenant.guaranteed_block is not None
            estate.bind_holder(replace(place, cell=tenant.guaranteed_block, block=block), tenant)
        again = land.estate()
        for name in NAMES:
            mine = land.open_cells(name)
            for each in land.topology.sizes:
                # It may say more: a cell of a parent that only one child uses is called that child's then.
                assert again.is_within(mine, each, None) or not estate.is_within(mine, each, None)
        for each in land.topology.sizes:
            there = free_block(land, each, number)
            assert there is None or again.passes_lending_check(there) == estate.passes_lending_check(there)


# -- cases -----------------------------------------------------------------------------------------------------------


def tree(topology: Topology, **shares: tuple[tuple[int, int], ...]) -> Land:
    """Projects by their names, with ``__`` for a slash."""
    pool = pool_of(topology)
    projects = Projects((), [pool])
    for name, blocks in shares.items():
        held = (ProjectShare(pool.name, blocks),) if blocks else ()
        project = Project(name=name.replace("__", "/"), shares=held)
        check_project(project, projects, {pool.name: pool})
        projects = projects.with_project(project)
    return Land(pool, projects)


@pytest.mark.parametrize("names", [("lab/a", "lab/b"), ("lab/b", "lab/a")])
def test_a_cell_of_two_children_is_their_parents(names: tuple[str, str]) -> None:
    """If it were one child's, the other's loan would stand in that one's guarantee."""
    land = tree(PowerOfTwo(1, 8, 8), lab=((4, 2),), lab__a=((4, 1),), lab__b=())
    first, second = Block(range(4)), Block(range(4, 8))
    for at, name in enumerate(names):
        half = Block(range(2 * at, 2 * at + 2))
        land.arrive(name, half, preemptible=False, place=GuaranteedPlacement("lab", first, half))
    assert not land.estate().is_within(land.open_cells("lab/b"), 4, None)
    places = list(land.estate().iter_placements(land.open_cells("lab/a"), 4, None))
    assert [(place.owner, place.cell) for place in places] == [("lab/a", second)]


@pytest.mark.parametrize("blocks", list(permutations([range(4), range(4, 6), range(6, 9)])))
def test_devices_of_a_number_are_reckoned_so_that_all_who_fitted_still_fit(blocks: tuple[range, ...]) -> None:
    """4 and then 2 and 3 fit; reckoned as 2, 3 and then 4 they must fit, too."""
    land = tree(AnySubset(12, 8), lab=((1, 9),), lab__a=((1, 4),), other=((1, 3),))
    nobody = Block(())
    for block in blocks:
        owner = "lab/a" if len(block) == 4 else "lab"
        land.arrive("lab/a", Block(block), preemptible=False, place=GuaranteedPlacement(owner, nobody, nobody))
    estate = land.estate()
    assert not estate.is_within(land.open_cells("lab/a"), 1, None)
    assert estate.passes_lending_check(Block(()))
    assert estate.is_within(land.open_cells("other"), 3, None)


def test_bound_devices_of_a_number_are_not_lent() -> None:
    land = tree(AnySubset(8, 8), lab=((1, 4),))
    estate, place = land.estate(), GuaranteedPlacement("lab", Block(()), Block(()))
    land.arrive("lab", Block(range(4)), preemptible=False, place=place)
    estate.bind_holder(place, *land.tenants.values())
    assert estate.passes_lending_check(Block(range(4, 8)))
    assert not estate.passes_lending_check(Block(range(3, 8)))


def test_a_scattered_block_is_inside_no_other() -> None:
    """0 and 2 are a cell: 1 is between them, and not in it."""
    topology = Catalogue(4, (Block((0, 2)), Block(range(1, 2)), Block(range(3, 4)), Block((1, 3))))
    land = tree(topology, lab=((1, 1), (2, 1)))
    cell = Block((0, 2))
    land.arrive("lab", cell, preemptible=True, place=GuaranteedPlacement("lab", cell, cell))
    found = land.estate().find_placement(land.open_cells("lab"), Block(range(1, 2)))
    assert found == GuaranteedPlacement("lab", Block(range(1, 2)), Block(range(1, 2)))


def test_a_cell_of_a_catalogue_holds_only_its_own_size() -> None:
    land = tree(RACK, lab=((3, 1),))
    estate = land.estate()
    assert not estate.is_within(land.open_cells("lab"), 2, None)
    assert estate.find_placement(land.open_cells("lab"), Block(range(2))) is None


def test_a_borrower_of_scattered_devices_is_taken_into_a_cell() -> None:
    land = tree(SCATTERED, lab=((2, 1),))
    block = Block((0, 2))
    assert land.estate().find_placement(land.open_cells("lab"), block) == GuaranteedPlacement("lab", block, block)


def test_who_lost_its_guarantee_has_borrowed() -> None:
    """An admin gave what it had to another: it can be asked to yield, so it is not in the way."""
    land = tree(PowerOfTwo(1, 8, 8), lab=(), other=((8, 1),))
    block = Block(range(8))
    land.arrive("lab", block, preemptible=True)
    [tenant] = land.tenants.values()
    land.tenants[tenant.claim] = replace(tenant, guaranteed_block=block)
    assert land.estate().is_within(land.open_cells("other"), 8, None)
    land.tenants[tenant.claim] = replace(tenant, guaranteed_block=block, is_preemptible=False)
    assert not land.estate().is_within(land.open_cells("other"), 8, None)


def test_devices_out_of_service_are_in_nobodys_cell() -> None:
    land = tree(PowerOfTwo(2, 8, 16), lab=((8, 1),))
    land.out = {3}
    estate = land.estate()
    assert {place.cell for place in estate.iter_placements(land.open_cells("lab"), 4, None)} == {Block(range(8, 16))}
    assert not estate.passes_lending_check(Block(range(8, 10)))
    assert estate.passes_lending_check(Block(range(4, 8)))


@pytest.mark.parametrize("topology", [PowerOfTwo(1, 8, 8), AnySubset(8, 8)], ids=repr)
def test_only_lower_priorities_of_the_same_guarantee_make_room(topology: Topology) -> None:
    land = tree(topology, lab=((8, 1),) if isinstance(topology, PowerOfTwo) else ((1, 8),))
    whole = Block(range(8))
    land.arrive("lab", whole, preemptible=True, place=GuaranteedPlacement("lab", whole, whole))
    [tenant] = land.tenants.values()
    mine = land.open_cells("lab")
    assert not land.estate().is_within(mine, 4, None)
    assert not land.estate().is_within(mine, 4, tenant.priority)
    assert land.estate().is_within(mine, 4, tenant.priority + 1)
    land.tenants[tenant.claim] = replace(tenant, is_preemptible=False)
    assert not land.estate().is_within(mine, 4, tenant.priority + 1)


def test_a_number_counts_what_is_left_of_it() -> None:
    land = tree(AnySubset(8, 8), lab=((1, 5),))
    land.arrive("lab", Block(range(2)), preemptible=True, place=GuaranteedPlacement("lab", Block(()), Block(())))
    estate = land.estate()
    assert isinstance(estate, DeviceCountMap)
    assert estate.is_within(land.open_cells("lab"), 3, None)
    assert not estate.is_within(land.open_cells("lab"), 4, None)
    assert estate.passes_lending_check(Block(range(2, 5)))
    assert not estate.passes_lending_check(Block(range(2, 6)))
    estate.add_firm_borrower(Block(range(2, 5)))
    assert not estate.passes_lending_check(Block(range(5, 6)))


@given(st.lists(st.integers(1, 3), max_size=6))
def test_a_search_finds_disjoint_blocks_where_there_are_some(sizes: list[int]) -> None:
    ordered = sorted(sizes, reverse=True)
    assert has_disjoint_blocks(SCATTERED.blocks, ordered) == fits(SCATTERED, ordered, frozenset())


def test_a_search_that_takes_too_long_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_module, "SEARCH_STEPS_MAX", 2)
    assert not has_disjoint_blocks(RACK.blocks, [1, 1, 1])
    assert has_disjoint_blocks(RACK.blocks, [6, 6])


@pytest.mark.parametrize("topology", [PowerOfTwo(1, 8, 8), AnySubset(8, 8)], ids=repr)
def test_who_may_have_a_block_when_it_is_empty(topology: Topology) -> None:
    """Four devices are promised: of eight nobody is ever lent more than four permanently."""
    land = tree(topology, lab=((4, 1),) if isinstance(topology, PowerOfTwo) else ((1, 4),), other=())
    land.arrive("other", Block(range(4)), preemptible=False)
    estate = land.estate()
    assert not estate.passes_lending_check(Block(range(4, 8)))
    assert not estate.passes_lending_check_when_empty(Block(range(4, 8)))
    assert estate.passes_lending_check_when_empty(Block(range(4)))
    assert not estate.passes_lending_check_when_empty(Block(range(8)))
    land = tree(topology, lab=((4, 1),) if isinstance(topology, PowerOfTwo) else ((1, 4),), other=())
    cell = Block(range(4))
    land.arrive("lab", cell, preemptible=False, place=GuaranteedPlacement("lab", cell, cell))
    assert land.estate().passes_lending_check_when_empty(Block(range(4, 8)))
    assert land.estate().passes_lending_check_when_empty(cell), "by then its cell may lie in the other half"
    assert not land.estate().passes_lending_check_when_empty(Block(range(8)))


def test_a_borrower_is_in_a_cell_only_where_the_others_still_fit() -> None:
    """A cell of four in the half that is whole would leave no place for the eight of another."""
    land = tree(PowerOfTwo(1, 16, 16), lab=((4, 1),), other=((8, 1),), c=())
    land.arrive("c", Block(range(4)), preemptible=False)
    assert land.estate().find_placement(land.open_cells("lab"), Block(range(8, 12))) is None
    beside = Block(range(4, 8))
    assert land.estate().find_placement(land.open_cells("lab"), beside) == GuaranteedPlacement("lab", beside, beside)
