"""Projects: what is promised can be kept, what is a claim's project, and use that fades."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moorings.core.model import block_packing as shares_module
from moorings.core.model.block_packing import (
    BlockCounts,
    count_devices,
    guaranteeable_sizes,
    largest_fitting,
    remaining_in_pool,
    shortfall_in_pool,
    shortfall_within,
    subtract_blocks,
)
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.projects import (
    ALIASES_MAX,
    MEMBERS_MAX,
    PROJECTS_MAX,
    USER_LIMITS_MAX,
    Project,
    Projects,
    ProjectShare,
    ProjectUsage,
    UserLimit,
    add_usage,
    check_deletable,
    check_project,
    decayed_usage,
    guaranteed_blocks_in,
    parent_of,
)
from moorings.core.model.serialization import from_plain, to_plain
from moorings.core.model.timestamps import SECOND, Timestamp
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo, Topology
from moorings.core.placement.free_map import BuddyMap
from tests.cases import cases

POD = PowerOfTwo(3, 4, 8)  # 12 devices: one block of 8 and one of 4
CROSS = AnySubset(10, 6)
RACK = Catalogue(12, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6) for s in range(0, 12, n)))
SCATTERED = Catalogue(
    8,
    (
        *(Block.single(i) for i in range(0, 8, 2)),
        *map(Block, ((0, 2), (1, 3), (2, 4), (0, 5), (4, 6, 7), (0, 1, 7), (3, 5, 6))),
    ),
)
POOLS = {
    PoolName(name): Pool(PoolName(name), "ipu", "simulated", topology)
    for name, topology in (("pod", POD), ("cross", CROSS), ("rack", RACK), ("scattered", SCATTERED))
}
NAMES = ("a", "a/x", "a/x/deep", "a/y", "b", "b/x", "default")
HALF_LIFE_S = 7 * 86_400.0


def share(pool: str, *blocks: tuple[int, int]) -> ProjectShare:
    return ProjectShare(PoolName(pool), blocks)


def project(name: str, *shares: ProjectShare, **values: object) -> Project:
    return Project(name=name, shares=shares, **values)  # type: ignore[arg-type]


def projects(*every: Project) -> Projects:
    return Projects(every, POOLS.values())


def refusal(one: Project, *others: Project) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        check_project(one, projects(*others), POOLS)
    assert caught.value.hint
    return caught.value


def sizes_of(blocks: BlockCounts) -> list[int]:
    return sorted((size for size, count in blocks for _ in range(count)), reverse=True)


def fits(topology: Topology, sizes: list[int], taken: frozenset[int] = frozenset()) -> bool:
    """Whether disjoint blocks of these sizes exist, by trying everything."""
    if not sizes:
        return True
    if isinstance(topology, AnySubset):
        return sum(sizes) <= topology.n_devices
    size = sizes[0]
    if isinstance(topology, PowerOfTwo):
        blocks = [Block(range(start, start + size)) for start in range(0, topology.n_devices - size + 1, size)]
    else:
        blocks = [block for block in topology.blocks if len(block) == size]
    return any(fits(topology, sizes[1:], taken.union(block)) for block in blocks if taken.isdisjoint(block))


def sizes_in(topology: Topology) -> tuple[int, ...]:
    return (1,) if isinstance(topology, AnySubset) else topology.sizes


@st.composite
def promises(draw: st.DrawFn, topology: Topology, most: int = 4) -> BlockCounts:
    sizes = draw(st.lists(st.sampled_from(sizes_in(topology)), unique=True, max_size=3))
    return tuple((size, draw(st.integers(1, most))) for size in sorted(sizes))


@st.composite
def proposals(draw: st.DrawFn) -> list[Project]:
    """Projects as an admin might try them, one after the other: new ones and changed ones, good and bad."""
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=10)):
        drawn = [(pool, draw(promises(POOLS[pool].topology))) for pool in POOLS if draw(st.booleans())]
        found.append(project(name, *(ProjectShare(pool, blocks) for pool, blocks in drawn if blocks)))
    return found


# -- what is promised can be kept ----------------------------------------------------------------------------------


@given(proposals())
def test_what_is_accepted_can_be_placed_in_the_empty_pool(tried: list[Project]) -> None:
    held, refused = projects(), set()
    for one in tried:
        try:
            check_project(one, held, POOLS)
        except MooringsError as error:
            refused.add(error.code)
            continue
        held = held.with_project(one)
        for pool, whole in POOLS.items():
            cells = [size for blocks in held.guaranteed_blocks(pool).values() for size in sizes_of(blocks)]
            assert fits(whole.topology, sorted(cells, reverse=True))
    assert refused <= {"project.not_feasible", "project.unknown"}
    free_map = BuddyMap(POD)  # and largest first always works, without trying everything
    for size in sorted(
        size for blocks in held.guaranteed_blocks(PoolName("pod")).values() for size in sizes_of(blocks)
    )[::-1]:
        block = free_map.find_block(size)
        assert block is not None
        free_map.allocate(block)


@given(proposals())
def test_own_cells_and_the_shares_of_children_are_together_the_share(tried: list[Project]) -> None:
    held = projects()
    for one in tried:
        try:
            check_project(one, held, POOLS)
        except MooringsError:
            continue
        held = held.with_project(one)
    for name, one in held.by_name.items():
        for pool, whole in POOLS.items():
            own = held.guaranteed_blocks(pool).get(name, ())
            below = [guaranteed_blocks_in(child, pool) for child in held.children(name)]
            mine = guaranteed_blocks_in(one, pool)
            assert count_devices(own) + sum(map(count_devices, below)) == count_devices(mine)
            together = [size for blocks in (own, *below) for size in sizes_of(blocks)]
            for size in sizes_in(whole.topology):
                assert sum(each for each in together if each >= size) <= count_devices(mine, size)


@pytest.mark.parametrize("topology", [POD, PowerOfTwo(1, 8, 4), PowerOfTwo(2, 8, 16), CROSS, RACK, SCATTERED])
@given(data=st.data())
def test_a_promise_is_refused_exactly_when_it_does_not_fit(topology: Topology, data: st.DataObject) -> None:
    promised = data.draw(promises(topology))
    lack = shortfall_in_pool(topology, promised)
    assert fits(topology, sizes_of(promised)) == (not lack)
    left = remaining_in_pool(topology, promised)
    if not lack and left is not None:  # what the hint of a refusal says would fit does
        assert fits(topology, sorted(sizes_of(promised) + sizes_of(left), reverse=True))
        assert count_devices(promised) + count_devices(left) == topology.n_devices


@given(promises(PowerOfTwo(1, 16, 16), most=3), promises(PowerOfTwo(1, 16, 16), most=3))
def test_blocks_are_cut_out_of_a_share_exactly_when_they_fit_it(room: BlockCounts, promised: BlockCounts) -> None:
    def packs(bins: list[int], wanted: list[int]) -> bool:
        if not wanted:
            return True
        return any(
            packs([*bins[:at], size - wanted[0], *bins[at + 1 :]], wanted[1:])
            for at, size in enumerate(bins)
            if size >= wanted[0] and size not in bins[:at]
        )

    lack = shortfall_within(PowerOfTwo(1, 16, 16), promised, room)
    assert packs(sizes_of(room), sizes_of(promised)) == (not lack)
    if not lack:
        left = subtract_blocks(PowerOfTwo(1, 16, 16), room, promised)
        assert count_devices(left) + count_devices(promised) == count_devices(room)


def test_halves_are_cut_out_of_the_smallest_block_that_holds_them():
    pod = PowerOfTwo(1, 64, 64)
    assert subtract_blocks(pod, ((4, 1), (16, 1), (32, 1)), ((2, 1), (8, 1))) == ((2, 1), (8, 1), (32, 1))
    assert subtract_blocks(pod, ((16, 3),), ((4, 5),)) == ((4, 1), (8, 1), (16, 1))


def test_in_a_catalogue_a_child_gets_whole_blocks_of_its_parent():
    held = projects(project("a", share("rack", (2, 1), (6, 1))), project("a/x", share("rack", (6, 1))))
    assert held.guaranteed_blocks(PoolName("rack")) == {"a": ((2, 1),), "a/x": ((6, 1),)}
    assert refusal(project("a/y", share("rack", (3, 1))), *held.by_name.values()).code == "project.not_feasible"


def test_a_claim_may_use_the_own_cells_of_its_project_and_of_those_above():
    held = projects(
        project("a", share("pod", (1, 2), (8, 1))), project("a/x", share("pod", (4, 1))), project("b", share("pod"))
    )
    pod = PoolName("pod")
    assert held.usable_guarantees("a/x", pod) == (("a/x", 4, 1), ("a", 1, 2), ("a", 4, 1))
    assert held.usable_guarantees("a/x", pod) == held.usable_guarantees("a/x", pod)
    assert held.usable_guarantees("a/x/none", pod) == held.usable_guarantees("a/x", pod)
    assert held.usable_guarantees("a", pod) == (("a", 1, 2), ("a", 4, 1))
    assert held.usable_guarantees("b", pod) == held.usable_guarantees("default", pod) == ()
    assert held.usable_guarantees("a", PoolName("gone")) == ()


def test_sizes_that_a_pool_has_no_more_are_no_cells():
    held = Projects([project("a", share("pod", (2, 1), (16, 1)))], POOLS.values())
    assert held.guaranteed_blocks(PoolName("pod")) == {"a": ((2, 1),)}
    assert held.guaranteed_blocks(PoolName("gone")) == {}
    assert Projects(held.by_name.values()).guaranteed_blocks(PoolName("pod")) == {}


def test_a_search_that_takes_too_long_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shortfall_in_pool(RACK, ((2, 3), (3, 2))) == ""
    monkeypatch.setattr(shares_module, "SEARCH_STEPS_MAX", 4)
    assert "looked through" in shortfall_in_pool(RACK, ((2, 3), (3, 2)))


def test_a_large_catalogue_is_searched_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 cards of seven parts, 50 give one of 1 and two of 2, the others three of 2."""
    cuts = ((0, 7), (0, 4), (0, 2), (0, 1), (2, 2), (4, 2), (4, 3))
    cards = Catalogue(64 * 7, tuple(Block(range(7 * c + s, 7 * c + s + n)) for c in range(64) for s, n in cuts))
    monkeypatch.setattr(shares_module, "SEARCH_STEPS_MAX", 1000)
    assert shortfall_in_pool(cards, ((1, 50), (2, 142))) == ""
    assert shortfall_in_pool(cards, ((3, 64), (4, 64))) == ""
    assert shortfall_in_pool(cards, ((4, 65),)) == "65 blocks of 4, where there are 64"
    assert shortfall_in_pool(cards, ((1, 64), (4, 1)))


def test_a_search_tells_blocks_of_one_size_and_beginning_apart():
    listed = Catalogue(5, tuple(map(Block.of, ([0, 1], [0, 2], [2, 3], [2, 4]))))
    assert shortfall_in_pool(listed, ((2, 2),)) == ""
    assert shortfall_in_pool(listed, ((2, 3),))


# -- refusals ------------------------------------------------------------------------------------------------------


@cases("name", ["", "/a", "a/", "a//b", "a/../b", "a/.", "..", "a b", "é", "a" * 65, "-a", "a/b/c/d/e/f/g/h/i", "a\n"])
def test_a_name_is_a_path(name: str) -> None:
    assert refusal(project(name), project(parent_of(name))).code == "project.invalid"


@pytest.mark.parametrize("name", ["a", "default", "Team_1.x", "a" * 64])
def test_names_that_are_taken(name: str) -> None:
    check_project(project(name), projects(), POOLS)


@cases(
    "values",
    [
        {"weight": 0.0},
        {"weight": -1.0},
        {"weight": float("inf")},
        {"weight": float("nan")},
        {"weight": 1e6 + 1},
        {"devices_max": -1},
        {"user_devices_max": -1},
        {"priority_max": 1_000_001},
        {"priority_max": -1},
        {"waiting_max": -1},
        {"waiting_bytes_max": -1},
        {"waiting_bytes_max": (1 << 40) + 1},
        {"devices_max": 1 << 40},
        {"members": ("",)},
        {"members": ("x" * 121,)},
        {"members": ("a\n",)},
        {"members": ("x",) * (MEMBERS_MAX + 1)},
        {"admins": ("",)},
        {"admins": ("a\n",)},
        {"admins": ("x",) * (MEMBERS_MAX + 1)},
        {"user_limits": (UserLimit("", 1),)},
        {"user_limits": (UserLimit("a\n", 1),)},
        {"user_limits": (UserLimit("x" * 121, 1),)},
        {"user_limits": (UserLimit("ann", -1),)},
        {"user_limits": (UserLimit("ann", (1 << 30) + 1),)},
        {"user_limits": (UserLimit("ann", 1), UserLimit("ann", 2))},
        {"user_limits": tuple(UserLimit(f"u{index}", 1) for index in range(USER_LIMITS_MAX + 1))},
        {"aliases": ("slurm/one",)},
        {"aliases": ("slurm/one/",)},
        {"aliases": ("slurm/../x",)},
        {"aliases": ("slurm/one/a/../b",)},
        {"aliases": ("user/one/x",)},
        {"aliases": ("slurm/one/x", "slurm/one/x")},
        {"aliases": tuple(f"slurm/one/x{index}" for index in range(ALIASES_MAX + 1))},
        {"shares": (share("pod", (3, 1)),)},
        {"shares": (share("pod", (16, 1)),)},
        {"shares": (share("pod", (0, 1)),)},
        {"shares": (share("pod"),)},
        {"shares": (share("pod", (1, 0)),)},
        {"shares": (share("pod", (1, -1)),)},
        {"shares": (share("pod", (1, 1 << 30)),)},
        {"shares": (share("pod", (1, 1), (1, 2)),)},
        {"shares": (share("pod", (1, 1)), share("pod", (2, 1)))},
        {"shares": (share("cross", (2, 1)),)},
        {"shares": (share("rack", (4, 1)),)},
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, object]) -> None:
    error = refusal(Project(name="a", **values))  # type: ignore[arg-type]
    assert error.code == "project.invalid"
    assert len(error.detail) < 300


def test_the_ends_of_the_ranges_are_taken():
    shares = (share("pod", (4, 1), (8, 1)), share("cross", (1, 10)), share("rack", (6, 2)))
    members = tuple(f"{index:0120}" for index in range(MEMBERS_MAX))
    aliases = tuple(f"kubernetes/c-1/ns{index}" for index in range(ALIASES_MAX))
    limits = tuple(UserLimit(f"{index:0120}", index) for index in range(USER_LIMITS_MAX))
    one = project("a", *shares, weight=1e6, devices_max=34, user_devices_max=0, members=members, aliases=aliases)
    one = replace(one, user_limits=limits)
    check_project(one, projects(), POOLS)
    check_project(one, projects(one), POOLS)


def test_nobody_is_guaranteed_more_than_its_limit():
    shares = (share("pod", (4, 1), (8, 1)), share("cross", (1, 10)))
    error = refusal(project("a", *shares, devices_max=21))
    assert (error.code, "guaranteed 22 devices, and may hold 21" in error.detail) == ("project.not_feasible", True)
    check_project(project("a", *shares, devices_max=22), projects(), POOLS)


def test_a_parent_must_exist():
    error = refusal(project("a/x"), project("b"))
    assert (error.code, "moor create project a" in error.hint) == ("project.unknown", True)


def test_a_pool_must_exist():
    error = refusal(project("a", share("pods", (1, 1))))
    assert (error.code, error.hint) == ("pool.unknown", "did you mean pod?")


def test_an_alias_belongs_to_one_project():
    error = refusal(project("a", aliases=("slurm/one/x",)), project("b", aliases=("slurm/one/x",)))
    assert error.code == "project.invalid"
    assert "'b'" in error.detail


def test_there_are_so_many_projects_at_most():
    every = [project(f"p{index}") for index in range(PROJECTS_MAX)]
    assert refusal(project("one-more"), *every).code == "project.invalid"
    check_project(project("p7", weight=2.0), projects(*every), POOLS)


def test_guarantees_must_fit_the_pool_and_what_would_fit_is_told():
    error = refusal(project("b", share("pod", (4, 2))), project("a", share("pod", (8, 1))))
    assert error.code == "project.not_feasible"
    assert "16 devices in blocks of 4 and more, where there are 12" in error.detail
    assert error.hint == "beside the others 'b' may have 4x1"
    error = refusal(project("b", share("cross", (1, 8))), project("a", share("cross", (1, 3))))
    assert error.hint == "beside the others 'b' may have 7 devices"


@pytest.mark.parametrize(
    ("wish", "there", "told"),
    [
        (((64, 9),), (), "64x8"),
        (((64, 9),), ((128, 1), (32, 1)), "64x5"),
        (((256, 1), (64, 3), (16, 9)), ((128, 1),), "256x1,64x2"),
        (((512, 1),), ((1, 1),), "256x1,128x1,64x1,32x1,16x1,8x1,4x1,2x1,1x1"),  # of what was asked for nothing fits
    ],
)
def test_of_what_was_asked_for_the_most_that_fits_is_told(wish, there, told):
    pod = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(8, 64, 512))
    others = [project("b", share("pod", *there))] if there else []
    with pytest.raises(MooringsError) as caught:
        check_project(project("a", share("pod", *wish)), Projects(others, [pod]), {pod.name: pod})
    assert caught.value.hint == f"beside the others 'a' may have {told}"


@given(st.data())
def test_the_most_that_fits_is_within_both(data):
    topology = data.draw(st.sampled_from([POD, CROSS, RACK]))
    sizes = guaranteeable_sizes(topology)
    counts = st.dictionaries(st.sampled_from(sizes), st.integers(1, 9))
    room, wanted = (tuple(sorted(data.draw(counts).items())) for _ in range(2))
    most = largest_fitting(topology, room, wanted)
    assert shortfall_within(topology, most, room) == ""
    assert all(count <= dict(wanted)[size] for size, count in most)
    for size, count in wanted:  # the largest that are missing do not fit any more
        if dict(most).get(size, 0) < count:
            before = tuple(one for one in most if one[0] > size)
            more = tuple(sorted([*before, (size, dict(most).get(size, 0) + 1)]))
            assert shortfall_within(topology, more, room) != ""


def test_enough_devices_are_not_enough_blocks():
    """12 devices are one block of 8 and one of 4, however many there are."""
    check_project(project("a", share("pod", (4, 3))), projects(), POOLS)
    assert refusal(project("a", share("pod", (2, 1), (8, 1), (4, 1)))).code == "project.not_feasible"
    assert (
        refusal(project("b", share("pod", (8, 1))), project("a", share("pod", (1, 5)))).code == "project.not_feasible"
    )


def test_a_project_does_not_stand_in_its_own_way():
    before = project("a", share("pod", (8, 1)))
    check_project(project("a", share("pod", (4, 1), (8, 1))), projects(before), POOLS)


def test_a_childs_guarantee_must_fit_its_parents():
    parent = project("a", share("pod", (4, 2)))
    error = refusal(project("a/x", share("pod", (8, 1))), parent)
    assert error.code == "project.not_feasible"
    assert error.hint == "beside the others 'a/x' may have 4x2; or guarantee 'a' more"
    assert refusal(project("a/x", share("rack", (1, 1))), parent).hint.startswith(
        "beside the others 'a/x' may have not"
    )
    brother = project("a/y", share("pod", (2, 3)))
    check_project(project("a/x", share("pod", (2, 1))), projects(parent, brother), POOLS)
    assert refusal(project("a/x", share("pod", (4, 1))), parent, brother).code == "project.not_feasible"


def test_a_guarantee_is_not_reduced_below_those_of_the_children():
    parent, child = project("a", share("pod", (4, 2))), project("a/x", share("pod", (2, 3)))
    check_project(project("a", share("pod", (2, 3))), projects(parent, child), POOLS)
    for less in (project("a", share("pod", (4, 1))), project("a")):
        error = refusal(less, parent, child)
        assert error.code == "project.not_feasible"
        assert error.hint == "2x3 is enough; or reduce the guarantees of a/x first"


def test_a_guarantee_that_the_pool_became_too_small_for_can_be_reduced_step_by_step():
    large = (project("a", share("pod", (4, 4))), project("b", share("pod", (4, 4))))
    check_project(project("a", share("pod", (4, 3))), projects(*large), POOLS)
    assert refusal(project("a", share("pod", (4, 5))), *large).code == "project.not_feasible"


def test_a_guarantee_in_a_pool_that_is_no_more_is_given_up_by_children_first():
    large = (project("a", share("gone", (4, 1))), project("a/x", share("gone", (4, 1))))
    assert refusal(project("a"), *large).code == "project.not_feasible"
    check_project(project("a/x"), projects(*large), POOLS)
    check_project(project("a"), projects(large[0], project("a/x")), POOLS)


def test_what_has_parts_stays():
    held = projects(project("a"), project("a/x"))
    with pytest.raises(MooringsError) as caught:
        check_deletable("a", held)
    assert (caught.value.code, "a/x" in caught.value.detail) == ("project.has_children", True)
    with pytest.raises(MooringsError) as caught:
        check_deletable("a/y", held)
    assert caught.value.code == "project.unknown"
    check_deletable("a/x", held)
    check_deletable("a", held.without("a/x"))


# -- whose a claim is ----------------------------------------------------------------------------------------------

HELD = projects(
    project("lab", aliases=("slurm/one/vision", "kubernetes/k/team")),
    project("lab/vision"),
    project("vision"),
    project("team"),
)


@cases(
    ("named", "owner", "resolved"),
    [
        ("vision", "user/ann", "vision"),
        ("lab/vision", "local/run-1", "lab/vision"),
        ("default", "user/ann", "default"),
        ("vision", "slurm/one/7/n/0/1", "lab"),  # an alias comes before a project of that name
        ("vision", "slurm/two/7/n/0/1", "vision"),
        ("vision", "kubernetes/one/ns/job/uid/1", "vision"),
        ("team", "kubernetes/k/ns/job/uid/1", "lab"),
        ("lab/vision", "slurm/one/7/n/0/1", "lab/vision"),
        ("astro", "slurm/one/7/n/0/1", "default"),
        ("astro", "kubernetes/k/ns/job/uid/1", "default"),
        ("default", "slurm/one/7/n/0/1", "default"),
    ],
)
def test_the_project_of_a_claim(named: str, owner: str, resolved: str) -> None:
    assert HELD.resolve(named, owner) == resolved
    assert Projects().resolve(named, owner) == named


@pytest.mark.parametrize("owner", ["user/ann", "local/run-1", "appliance/wsjob"])
def test_an_unknown_project_is_refused_with_its_neighbours(owner: str) -> None:
    with pytest.raises(MooringsError) as caught:
        HELD.resolve("visoin", owner)
    assert caught.value.code == "project.unknown"
    assert caught.value.hint.startswith("did you mean vision")
    assert "moor get projects" in caught.value.hint


def test_the_lineage_ends_at_the_root():
    assert HELD.lineage("lab/vision") == ("lab/vision", "lab")
    assert HELD.lineage("lab") == ("lab",)
    assert HELD.lineage("lab/none/deep") == ("lab/none/deep", "lab")
    assert HELD.lineage("default") == ("default",)


def test_members_of_a_project_may_use_its_parts():
    held = projects(
        project("lab", members=("ann",)),
        project("lab/vision", members=("bob",)),
        project("lab/x"),
        project("free"),
        project("free/closed", members=("bob",)),
    )
    allowed = {name: [who for who in ("ann", "bob", "eve") if held.is_member(name, who)] for name in held.by_name}
    assert allowed == {
        "lab": ["ann"],
        "lab/vision": ["ann", "bob"],
        "lab/x": ["ann"],
        "free": ["ann", "bob", "eve"],
        "free/closed": ["bob"],
    }
    assert held.is_member("default", "eve")
    assert Projects().is_member("anything", "eve")


def test_an_admin_may_use_a_project_and_is_one_below_it_too():
    held = projects(
        project("lab", members=("ann",), admins=("boss",)), project("lab/x"), project("free", admins=("a",))
    )
    assert [(held.is_member(name, "boss"), held.is_admin(name, "boss")) for name in ("lab", "lab/x", "free")] == [
        (True, True),
        (True, True),
        (False, False),
    ]
    assert (held.is_member("free", "a"), held.is_admin("free", "a")) == (True, True)
    assert not held.is_admin("lab", "ann")
    assert not held.is_member("free", "eve"), "its admins are its people, if it has no others"


@pytest.mark.parametrize("name", ["default", "default/x"])
@pytest.mark.parametrize("more", [{"admins": ("a",)}, {"open": True}])
def test_what_is_in_the_default_project_is_its_owners_alone(name, more):
    assert refusal(project(name, **more), project("default")).code == "project.invalid"


def test_the_new_fields_are_left_out_while_they_have_their_default():
    usual = to_plain(project("a"))
    assert isinstance(usual, dict)
    assert {"admins", "open", "user_limits"}.isdisjoint(usual)
    one = project("a", admins=("boss",), open=True, user_limits=(UserLimit("bob", 0), UserLimit("ann", 8)))
    assert from_plain(Project, to_plain(one)) == one


def test_limits_on_users_count_for_the_parts_too():
    held = projects(project("a", user_devices_max=4, devices_max=6), project("a/x"), project("b", devices_max=2))
    assert [name for name in (*held.by_name, "default") if held.has_user_limit(name)] == ["a", "a/x"]
    assert held.exceeded_limit("a/x", 4, "ann") is None
    assert held.exceeded_limit("a/x", 5, "ann") == ("a", 4)
    assert held.exceeded_limit("a/x", 5) is None
    assert held.exceeded_limit("b", 3) == ("b", 2)
    assert held.exceeded_limit("default", 1 << 20, "ann") is None


def test_a_limit_of_one_user_replaces_that_of_all():
    limits = (UserLimit("bob", 0), UserLimit("ann", 8))
    one = project("a", user_devices_max=4, user_limits=limits)
    assert one == project("a", user_devices_max=4, user_limits=limits[::-1])
    assert [one.user_limit(name) for name in ("ann", "bob", "cyd", "", "anna")] == [8, 0, 4, None, 4]
    few = projects(project("a", user_limits=limits), project("a/x"))
    assert [few.by_name["a"].user_limit(name) for name in ("ann", "cyd")] == [8, None]
    assert (few.has_user_limit("a/x"), few.has_user_limit("default")) == (True, False)
    found = [few.exceeded_limit("a/x", 1, name) for name in ("ann", "bob", "cyd", "")]
    assert found == [None, ("a", 0), None, None]


@given(
    limits=st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 9), max_size=12),
    most=st.none() | st.integers(0, 9),
    subject=st.text(max_size=3),
)
def test_the_limit_of_a_subject_is_its_own_else_that_of_all(limits, most, subject):
    one = project("a", user_devices_max=most, user_limits=tuple(map(UserLimit, limits, limits.values())))
    for name in (*limits, subject):
        assert one.user_limit(name) == (limits.get(name, most) if name else None)
    assert one.has_user_limits == (most is not None or bool(limits))


def test_projects_are_a_value():
    every = [project("b"), project("a", share("pod", (1, 1))), project("a/x")]
    for order in permutations(every):
        assert projects(*order) == projects(*every)
        assert hash(projects(*order)) == hash(projects(*every))
        assert list(projects(*order).by_name) == ["a", "a/x", "b"]
    held = projects(*every)
    assert held.with_project(project("a")) != held
    assert held.with_project(project("a")).with_project(every[1]) == held
    assert held.without("b").with_project(every[0]) == held
    assert held.without("b").guaranteed_blocks(PoolName("pod")) == held.guaranteed_blocks(PoolName("pod")) != {}
    assert held.get("a/x") == project("a/x")
    assert held.get("none") is None
    assert bool(held)
    assert not Projects()
    assert not held.without("a").without("a/x").without("b")


def test_equal_projects_are_the_same_bytes():
    one = project("a", share("rack", (6, 1), (1, 2)), share("pod", (4, 1)), weight=2)
    other = project("a", share("pod", (4, 1)), share("rack", (1, 2), (6, 1)), weight=2.0)
    assert repr(to_plain(one)) == repr(to_plain(other))
    assert from_plain(Project, to_plain(one)) == other


# -- use that fades ------------------------------------------------------------------------------------------------

instants = st.integers(0, 400 * 86_400 * SECOND)


def used(amount: int, at: int = 0) -> ProjectUsage:
    return ProjectUsage("a", amount, Timestamp(at))


@cases("halves", [0, 0.25, 0.5, 1, 1.75, 2, 10])
def test_use_halves_with_each_half_life(halves: float) -> None:
    now = Timestamp(round(halves * HALF_LIFE_S * SECOND))
    assert decayed_usage(used(10**15), now, HALF_LIFE_S) == pytest.approx(10**15 * 2**-halves, rel=1e-9)


def test_use_is_forgotten_in_the_end():
    assert decayed_usage(used(10**15), Timestamp(100 * 365 * 86_400 * SECOND), 60.0) == 0


def test_what_has_been_decided_once_is_decided_so_again():
    """Whole numbers, written down: a machine that fades otherwise would replay other decisions."""
    assert decayed_usage(used(123_456_789_012_345), Timestamp(987_654_321_987), HALF_LIFE_S) == 39_803_848_939_280
    noted = add_usage(used(1_000), 16, Timestamp(5), Timestamp(3_600 * SECOND), HALF_LIFE_S)
    assert noted == ProjectUsage("a", 57_481_338_931, Timestamp(3_600 * SECOND))


@given(st.integers(1, 4096), instants, instants, instants, st.sampled_from((60.0, HALF_LIFE_S, 3660 * 86_400.0)))
@example(8, 0, 1, 2, HALF_LIFE_S)
def test_a_job_counted_in_two_pieces_counts_like_one(devices: int, a: int, b: int, c: int, half_life_s: float) -> None:
    began, between, ended = map(Timestamp, sorted((a, b, c)))
    half = add_usage(used(10**12, began), devices, began, between, half_life_s)
    pieces = add_usage(half, devices, between, ended, half_life_s)
    once = add_usage(used(10**12, began), devices, began, ended, half_life_s)
    assert pieces.at == once.at == ended
    assert pieces.used == pytest.approx(once.used, rel=1e-6, abs=devices * half_life_s * SECOND / (1 << 38) + 4)


@given(st.integers(1, 4096), st.integers(0, 3600 * SECOND))
def test_of_a_short_job_nearly_all_counts(devices: int, length: int) -> None:
    noted = add_usage(used(0), devices, Timestamp(0), Timestamp(length), HALF_LIFE_S)
    assert noted.used <= devices * length
    assert noted.used == pytest.approx(devices * length, rel=0.003, abs=devices * SECOND)


def test_of_an_endless_job_no_more_counts_than_a_half_life_over_ln_2():
    noted = add_usage(used(0), 1, Timestamp(0), Timestamp(4000 * 86_400 * SECOND), HALF_LIFE_S)
    assert noted.used == pytest.approx(HALF_LIFE_S * SECOND / 0.69314718056, rel=1e-9)


@given(instants, instants, instants)
def test_a_clock_that_was_set_back_takes_nothing_away(at: int, began: int, ended: int) -> None:
    noted = add_usage(used(1000, at), 3, Timestamp(began), Timestamp(ended), HALF_LIFE_S)
    assert noted.at == ended
    assert 0 <= noted.used
    if ended <= at:
        assert noted.used >= 1000
    if ended <= began:
        assert noted.used == decayed_usage(used(1000, at), Timestamp(ended), HALF_LIFE_S) <= 1000


def test_a_usage_belongs_to_its_project():
    assert add_usage(replace(used(1), project="lab"), 1, Timestamp(0), Timestamp(1), HALF_LIFE_S).project == "lab"
