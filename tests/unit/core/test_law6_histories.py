"""Law 6 over random histories: whatever is asked, lent, given back, drained and resumed, nobody who uses less than is
guaranteed never waits longer than borrowers may run and take to yield.

The claims within their guarantee are computed here, from the used cells, and not asked of the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.claims import CheckpointContract, Claim, ClaimId, ClaimState
from moorings.core.model.devices import DeviceState, PoolName
from moorings.core.model.driver_results import DriverResult, ObservedState, ResultCode
from moorings.core.model.inputs import (
    CheckpointSaved,
    CreateClaim,
    DrainDevice,
    DriverResultReceived,
    Input,
    ReleaseClaim,
    ResumeDevice,
    SetProject,
    YieldClaim,
)
from moorings.core.model.partitions import PartitionState
from moorings.core.model.policy import DefragmentMode, Policy
from moorings.core.model.projects import Project, ProjectShare
from moorings.core.model.timestamps import SECOND, Timestamp, add_seconds
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo
from tests.sampling import examples
from tests.unit.core.worlds import World

MIN_RUN_S, YIELD_S = 5, 4
TURNS = 8  # each word between controller, engine and driver takes a turn here, of a second
BOUND_S = MIN_RUN_S + YIELD_S + TURNS
QUICK = Policy(min_run_s=MIN_RUN_S, yield_s=YIELD_S, making_s=2, move_s=1)
POLICIES = (
    QUICK,
    replace(QUICK, preempt=False, fair_share=False),
    replace(QUICK, backfill=False),
    replace(QUICK, reserve=False),
    replace(QUICK, defragment=DefragmentMode.ON),
    replace(QUICK, defragment=DefragmentMode.SUGGEST),
)
POD = Pool(PoolName("pod"), "ipu", "simulated", PowerOfTwo(2, 8, 16))
CROSS = Pool(PoolName("cross"), "ipu", "simulated", AnySubset(12, 8))
RACK = Pool(
    PoolName("rack"),
    "ipu",
    "simulated",
    Catalogue(12, tuple(Block(range(s, s + n)) for n in (1, 2, 3, 6) for s in range(0, 12, n))),
)
# (pool, what each project is guaranteed with its children); ``open`` is guaranteed nothing
SITES: tuple[tuple[Pool, Mapping[str, tuple[tuple[int, int], ...]]], ...] = (
    (POD, {"lab": ((4, 1), (8, 1)), "lab/a": ((4, 1),), "lab/b": ((2, 1),), "other": ((2, 1),), "open": ()}),
    (POD, {"lab": ((8, 1),), "lab/a": ((4, 1),), "other": ((8, 1),), "open": ()}),
    (POD, {"lab": ((4, 2),), "lab/a": ((4, 1),), "lab/b": (), "other": ((4, 1),), "open": ()}),
    (POD, {"lab": ((16, 1),), "lab/a": ((1, 3), (8, 1)), "open": ()}),
    (CROSS, {"lab": ((1, 9),), "lab/a": ((1, 4),), "lab/b": ((1, 2),), "other": ((1, 3),), "open": ()}),
    (RACK, {"lab": ((1, 2), (3, 2)), "lab/a": ((3, 1),), "lab/b": ((1, 1),), "other": ((2, 1),), "open": ()}),
)
LEAVING = (ClaimState.RECLAIMING, ClaimState.YIELDING, ClaimState.RELEASING)
HOLDING = (ClaimState.GRANTED, ClaimState.READY, *LEAVING)


class Site(World):
    """A world whose hardware does as it is told, whose jobs end at their limits and yield in time."""

    def __init__(self, pool: Pool, shares: Mapping[str, tuple[tuple[int, int], ...]], policy: Policy) -> None:
        super().__init__(pool, policy=policy)
        self.pool = pool
        for name, blocks in shares.items():
            held = (ProjectShare(pool.name, blocks),) if blocks else ()
            [reply] = self.step(SetProject(Project(name=name, shares=held), None))
            assert isinstance(reply, Project), reply
        self.named = tuple(shares)
        self.own = dict(self.fleet.projects.guaranteed_blocks(pool.name))
        self.short_since: dict[tuple[str, int], Timestamp] = {}
        self.attempts: dict[ClaimId, tuple[int, ClaimState]] = {}

    def go_on(self) -> list[Input]:
        """What hardware and engines say next."""
        said: list[Input] = []
        for partition in self.fleet.partitions.values():
            if partition.state is PartitionState.PROVISIONING:
                said.append(self.word(partition.id, partition.version, "create", ObservedState.ACTIVE))
            elif partition.state is PartitionState.REMOVING:
                said.append(self.word(partition.id, partition.version, "remove", ObservedState.ABSENT))
        for claim in self.fleet.claims.values():
            limit_s = claim.spec.time_limit_s
            if claim.state in (ClaimState.READY, ClaimState.RECLAIMING) and claim.ready_at is not None:
                if limit_s is not None and add_seconds(claim.ready_at, limit_s) <= self.now + SECOND:
                    said.append(ReleaseClaim(claim.id, "its time is over"))
                elif claim.state is ClaimState.RECLAIMING and self.is_saved(claim):
                    said.append(YieldClaim(claim.id, "its state is saved"))
        return said

    def word(self, partition: object, version: int, order: str, seen: ObservedState) -> DriverResultReceived:
        return DriverResultReceived(partition, version, order, DriverResult(ResultCode.OK, seen))  # type: ignore[arg-type]

    def is_saved(self, claim: Claim) -> bool:
        """Some stop at once, some use all the time they have."""
        assert claim.asked_until is not None
        takes_s = int(claim.id[1:]) % (YIELD_S + 1)
        return self.now + SECOND >= claim.asked_until - (YIELD_S - takes_s) * SECOND

    def second(self, *inputs: Input) -> None:
        """A turn, and what must be true after it."""
        self.step(*inputs, *self.go_on())
        self.judge()

    # -- what is judged ----------------------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        return all(device.state is DeviceState.IN_SERVICE for device in self.devices.values())

    def held(self) -> Iterator[tuple[Claim, Block]]:
        for claim in self.fleet.claims.values():
            if claim.state in HOLDING and claim.partition is not None:
                yield claim, self.fleet.partitions[claim.partition].block

    def lineage(self, project: str) -> list[str]:
        parts = project.split("/")
        return ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]

    def cells(self) -> dict[Block, list[tuple[Claim, Block]]]:
        """The cells in use, and by whom."""
        found: dict[Block, list[tuple[Claim, Block]]] = {}
        for claim, block in self.held():
            if claim.cell is not None:
                found.setdefault(claim.cell, []).append((claim, block))
        return found

    def left(self) -> tuple[Counter[tuple[str, int]], dict[Block, str]]:
        """Cells that are not in use, by owner and size, and whose those in use are: the nearest that all share."""
        left = Counter({(owner, size): count for owner, sizes in self.own.items() for size, count in sizes})
        owners: dict[Block, str] = {}
        for cell, within in self.cells().items():
            lineages = [self.lineage(claim.spec.project) for claim, _ in within]
            common = [name for name in lineages[0] if all(name in lineage for lineage in lineages)]
            owner = next((name for name in common if left[name, len(cell)] > 0), None)
            assert owner is not None, f"{cell} is nobody's"
            left[owner, len(cell)] -= 1
            owners[cell] = owner
        return left, owners

    def left_devices(self) -> Counter[str]:
        """Where devices are promised, not blocks: how many of them are not in use, by owner."""
        left = Counter({owner: count for owner, sizes in self.own.items() for _, count in sizes})
        for claim, block in self.held():
            needed = len(block) if claim.cell is not None else 0
            for owner in self.lineage(claim.spec.project):
                used = min(needed, left[owner])
                left[owner] -= used
                needed -= used
            assert not needed, f"{claim.id} is within no guarantee"
        return left

    def within(self) -> set[tuple[str, int]]:
        """Which sizes each project may still have of what it is guaranteed."""
        sizes = self.pool.topology.sizes
        if isinstance(self.pool.topology, AnySubset):
            devices = self.left_devices()
            return {
                (name, size)
                for name in self.named
                for size in sizes
                if sum(devices[owner] for owner in self.lineage(name)) >= size
            }
        left, owners = self.left()
        found = set()
        for name in self.named:
            for size in sizes:
                mine = self.lineage(name)
                if any(count > 0 and owner in mine and self.holds(cell, size) for (owner, cell), count in left.items()):
                    found.add((name, size))
                for cell, within in self.cells().items():
                    if owners[cell] in mine and self.holds(len(cell), size) and self.has_room(cell, size, within):
                        found.add((name, size))
        return found

    def holds(self, cell: int, size: int) -> bool:
        return cell == size if isinstance(self.pool.topology, Catalogue) else cell >= size

    def has_room(self, cell: Block, size: int, within: Sequence[tuple[Claim, Block]]) -> bool:
        starts = range(cell.start, cell.start + len(cell), size)
        blocks = (Block(range(start, start + size)) for start in starts)
        return any(not any(block.overlaps(other) for _, other in within) for block in blocks)

    def judge(self) -> None:
        self.judge_cells()
        self.judge_asked()
        if self.is_whole:
            self.judge_promises()
        self.judge_waits()

    def judge_cells(self) -> None:
        if isinstance(self.pool.topology, AnySubset):
            return
        cells = list(self.cells())
        assert not any(one.overlaps(other) for at, one in enumerate(cells) for other in cells[:at])
        for cell, within in self.cells().items():
            assert all(set(block) <= set(cell) for _, block in within)
        for claim, block in self.held():
            if claim.cell is None and not claim.spec.preemptible and claim.state not in LEAVING:
                assert not any(cell.overlaps(block) for cell in cells), "lent for good, in somebody's guarantee"

    def judge_asked(self) -> None:
        """Only those are asked who said that they may be, after a time; and those within a guarantee by their own."""
        for claim, _ in self.held():
            if claim.state is ClaimState.RECLAIMING and claim.kept is None:
                assert claim.spec.preemptible
                assert claim.ready_at is not None
                assert claim.asked_until is not None
                assert claim.asked_until - claim.ready_at >= (YIELD_S + MIN_RUN_S) * SECOND

    def judge_promises(self) -> None:
        """What is promised and not in use fits beside all that nobody can ask back."""
        firm = {
            index
            for claim, block in self.held()
            if claim.cell is not None or not (claim.spec.preemptible or claim.state in LEAVING)
            for index in (claim.cell if claim.cell is not None else block)
        }
        if isinstance(self.pool.topology, AnySubset):
            assert sum(self.left_devices().values()) <= self.pool.topology.n_devices - len(firm)
            return
        left, _ = self.left()
        sizes = sorted((size for (_, size), count in left.items() for _ in range(count)), reverse=True)
        assert fits(self.pool, sizes, frozenset(firm)), f"{sizes} do not fit beside {sorted(firm)}"

    def judge_waits(self) -> None:
        within = self.within()
        waiting = {
            (claim.spec.project, claim.spec.size)
            for claim in self.fleet.claims.values()
            if claim.state is ClaimState.PENDING and (claim.spec.project, claim.spec.size) in within
        }
        came = {claim.spec.project.partition("/")[0] for claim in self.came() if claim.cell is not None}
        for key in list(self.short_since):
            if key not in waiting or key[0].partition("/")[0] in came or not self.is_whole:
                del self.short_since[key]
        for key in waiting if self.is_whole else ():
            since = self.short_since.setdefault(key, self.now)
            assert self.now - since <= BOUND_S * SECOND, f"{key} is guaranteed and waits since {since}"

    def came(self) -> list[Claim]:
        """The claims that were granted in this turn."""
        found = [
            claim
            for claim, _ in self.held()
            if self.attempts.get(claim.id, (-1, ClaimState.PENDING)) < (claim.attempt, ClaimState.GRANTED)
            and claim.granted_at == self.now
        ]
        self.attempts = {claim.id: (claim.attempt, ClaimState.GRANTED) for claim, _ in self.held()}
        return found


def fits(pool: Pool, sizes: Sequence[int], taken: frozenset[int]) -> bool:
    """Whether disjoint blocks of these sizes, descending, exist beside what is taken."""
    if not sizes:
        return True
    size, topology = sizes[0], pool.topology
    starts = range(0, topology.n_devices - size + 1, size)  # of the catalogue above, too
    for block in (range(start, start + size) for start in starts):
        if taken.isdisjoint(block):
            return fits(pool, sizes[1:], taken.union(block)) or (
                isinstance(topology, Catalogue)
                and any(
                    fits(pool, sizes[1:], taken.union(range(other, other + size)))
                    for other in starts
                    if other > block.start and taken.isdisjoint(range(other, other + size))
                )
            )
    return False


# -- histories -------------------------------------------------------------------------------------------------------


def ask(site: Site, number: int) -> CreateClaim:
    """A claim that follows from a number; most are small, short and may be asked to yield."""
    rest, project = divmod(number, len(site.named))
    sizes = site.pool.topology.sizes
    rest, at = divmod(rest, len(sizes) + 4)
    size = sizes[at if at < len(sizes) else at % 3]
    rest, kind = divmod(rest, 4)
    rest, priority = divmod(rest, 3)
    rest, limit = divmod(rest, 5)
    return site.asks(
        size,
        gcds=-(-size // 8) if isinstance(site.pool.topology, PowerOfTwo) else 1,
        project=site.named[project],
        preemptible=kind > 0,
        priority=priority,
        time_limit_s=(None, 3.0, 6.0, 12.0, 40.0)[limit],
        owner=f"local/run-{site.n_created}",
        checkpoint=CheckpointContract(resumable=kind > 1),
    )


def act(site: Site, what: str, number: int) -> None:
    if what == "ask":
        site.second(ask(site, number))
    elif what == "end":
        known = sorted(site.fleet.claims)
        site.second(*(ReleaseClaim(ident, "done") for ident in known[number % max(1, len(known)) :][:1]))
    elif what == "save":
        known = sorted(site.fleet.claims)
        site.second(*(CheckpointSaved(ident, site.now) for ident in known[number % max(1, len(known)) :][:1]))
    elif what == "drain":
        site.second(DrainDevice(site.pool.name, number % site.pool.topology.n_devices, "looks ill"))
    elif what == "resume":
        out = sorted(index for (_, index), one in site.devices.items() if one.state is DeviceState.DRAINED)
        site.second(*(ResumeDevice(site.pool.name, index) for index in out))
    else:
        for _ in range(number % 8 + 1):
            site.second()


numbers = st.integers(0, 1 << 20)
acts = st.sampled_from(["ask"] * 8 + ["end"] * 3 + ["pass"] * 3 + ["save", "drain", "resume"])


@settings(max_examples=examples(120), deadline=None)
@given(st.sampled_from(SITES), st.sampled_from(POLICIES), st.lists(st.tuples(acts, numbers), max_size=50))
def test_nobody_waits_long_for_what_it_is_guaranteed(
    given: tuple[Pool, Mapping[str, tuple[tuple[int, int], ...]]], policy: Policy, history: list[tuple[str, int]]
) -> None:
    site = Site(*given, policy)
    for what, number in history:
        act(site, what, number)
    act(site, "resume", 0)
    for _ in range(BOUND_S + 2):
        site.second()


@pytest.mark.parametrize("number", range(len(SITES) * len(POLICIES)))
def test_nobody_waits_long_in_a_crowd(number: int) -> None:
    """Longer histories, with more that waits than there is room for."""
    chance = Random(number)
    site = Site(*SITES[number % len(SITES)], POLICIES[number // len(SITES)])
    for _ in range(150):
        waiting = sum(claim.state is ClaimState.PENDING for claim in site.fleet.claims.values())
        words = ["ask"] * (6 if waiting < 12 else 1) + ["end", "end", "pass", "save"]
        words += ["drain"] if chance.random() < 0.1 else ["resume"] if chance.random() < 0.5 else []
        act(site, chance.choice(words), chance.randrange(1 << 20))


@pytest.mark.parametrize("site_number", range(len(SITES)))
@pytest.mark.parametrize("limits", [(1.0,), (3.0,), (3.0, 4.0, 5.0, 6.0, 7.0), (8.0, 2.0), (None,), (None, 3.0)])
def test_a_stream_of_short_borrowers_is_in_nobody_s_way(site_number: int, limits: tuple[float | None, ...]) -> None:
    """As soon as a device is free somebody of higher priority borrows it; the guaranteed have theirs all the same."""
    site = Site(*SITES[site_number], QUICK)

    def lend(most: int) -> list[Input]:
        waiting = sum(claim.state is ClaimState.PENDING for claim in site.fleet.claims.values())
        return [
            site.asks(
                1,
                project="open",
                preemptible=True,
                priority=9,
                time_limit_s=limits[site.n_created % len(limits)],
                owner=f"local/run-{site.n_created}",
            )
            for _ in range(min(most, site.pool.topology.n_devices - waiting))
        ]

    for _ in range(12):  # not all at once, so that they end one after the other
        site.second(*lend(2))
    size = max(size for size, _ in site.own["lab"])
    wanted = ask(site, 0)
    size = size if not isinstance(site.pool.topology, AnySubset) else 3
    wanted = replace(wanted, spec=replace(wanted.spec, project="lab", size=size, gcds=-(-size // 8), time_limit_s=None))
    site.second(wanted)
    for _ in range(BOUND_S + 2):
        site.second(*lend(3))
    assert site.claim(wanted.id).state is ClaimState.READY
