"""Cells: the guaranteed blocks of projects, and where they lie now.

A guarantee of so many blocks is kept as *cells*. An unused cell is not bound to devices: its devices are lent. The
first claim in a cell binds it to an aligned block of the guaranteed size, and all claims in that cell stay inside that
block; the cell is unbound when the last of them ends. So a cell that is given back is whole, in whatever order claims
end.

**Lending check** (after HiveD, OSDI 2020): at any time all unbound cells must fit beside what is *firm*: bound cells,
claims that cannot be preempted, and devices out of service. Borrowers that can be preempted do not count: they yield.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moorings.core.model.claims import ClaimId
from moorings.core.model.projects import Projects, lineage_of
from moorings.core.model.topology import AnySubset, Block, Catalogue, Pool, PowerOfTwo
from moorings.core.placement.fleet import PoolState
from moorings.core.placement.free_map import BuddyMap, free_map_for
from moorings.core.placement.plans import Holder

SEARCH_STEPS_MAX: Final = 20_000  # of a search for disjoint blocks of a catalogue; beyond it the result is "not found"
UsableGuarantees = Sequence[tuple[str, int, int]]  # (owner, size, count)


@dataclass(frozen=True, slots=True)
class GuaranteedPlacement:
    """A possible place of a claim within a guarantee: ``block`` inside a ``cell`` of ``owner``."""

    owner: str
    cell: Block
    block: Block


@dataclass(slots=True)
class _BoundBlock:
    """A bound cell and the claims in it."""

    owner: str
    cell: Block
    holders: list[Holder] = field(default_factory=list)
    _covered: dict[int | None, int] = field(default_factory=dict)

    def add(self, tenant: Holder) -> None:
        """Add a claim to the cell."""
        self.holders.append(tenant)
        self._covered.clear()

    def covered(self, priority: int | None) -> int:
        """Devices of the cell, a range, that this priority cannot get, as a bit mask; the lowest bit is the first."""
        known = self._covered.get(priority)
        if known is None:
            firm = (one.block for one in self.holders if priority is None or not _is_preemptible_by(one, priority))
            known = self._covered[priority] = _covered_mask(self.cell, firm)
        return known


class GuaranteeMap(ABC):
    """All cells of one pool, and what is firm in it."""

    def __init__(self, cells: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        self._left = {(owner, size): count for owner, sizes in cells.items() for size, count in sizes}
        self.uncovered_claims: set[ClaimId] = set()  # claims in cells that their projects no longer own: they borrowed

    @abstractmethod
    def is_within(self, open_cells: UsableGuarantees, size: int, priority: int | None) -> bool:
        """Whether a claim fits in these cells; with ``priority``, lower priorities there may be preempted."""

    @abstractmethod
    def iter_placements(
        self, open_cells: UsableGuarantees, size: int, priority: int | None
    ) -> Iterator[GuaranteedPlacement]:
        """Every place for it, including places of claims that may be preempted."""

    @abstractmethod
    def find_placement(self, open_cells: UsableGuarantees, block: Block) -> GuaranteedPlacement | None:
        """The place of a borrowed block within these cells, without moving it; None if it cannot be in one."""

    @abstractmethod
    def bind_holder(self, place: GuaranteedPlacement, tenant: Holder) -> None:
        """Record that a claim takes this place."""

    @abstractmethod
    def devices_by_project(self, tenant: Holder) -> Mapping[str, int]:
        """How many devices of which owners' cells a holder uses; empty for a borrower."""

    @abstractmethod
    def passes_lending_check(self, block: Block) -> bool:
        """Whether a borrower that cannot be preempted may have a block: the lending check.

        For an empty block: whether every guarantee can be kept at present.
        """

    @abstractmethod
    def passes_lending_check_when_empty(self, block: Block) -> bool:
        """Whether such a borrower may have a block once all holders in it, and no others, have left."""

    @abstractmethod
    def add_firm_borrower(self, block: Block) -> None:
        """Record that such a borrower holds a block."""


def build_guarantee_map(
    pool: Pool,
    cells: Mapping[str, Sequence[tuple[int, int]]],
    tenants: Iterable[Holder],
    unavailable: Iterable[int],
    owners: Mapping[str, Sequence[str]],
) -> GuaranteeMap:
    """The cells of a pool and their use by its holders.

    Args:
        pool: the pool.
        cells: each project's own, ``(size, count)``.
        tenants: the holders in that pool.
        unavailable: unusable devices: out of service, or in foreign partitions.
        owners: for each project, the projects whose cells it may use: itself, then its ancestors.
    """
    topology = pool.topology
    ordered = sorted(tenants, key=lambda tenant: tenant.claim)
    if isinstance(topology, AnySubset):
        return DeviceCountMap(topology, cells, ordered, set(unavailable))
    return _BlockMap(topology, cells, ordered, set(unavailable), owners)


def build_pool_guarantees(projects: Projects, state: PoolState, holders: Sequence[Holder]) -> GuaranteeMap | None:
    """The guaranteed blocks of a pool and their use by its holders; None: the pool has no guarantees."""
    cells = projects.guaranteed_blocks(state.pool.name)
    if not cells:
        return None
    owners = {holder.project: projects.lineage(holder.project) for holder in holders}
    return build_guarantee_map(state.pool, cells, holders, state.unusable, owners)


class DeviceCountMap(GuaranteeMap):
    """For pools where any set of devices is a block: a guarantee is a number of devices.

    A claim uses its own project's devices first, then those of its ancestors; it may use numbers of several owners.
    Counting each claim against one owner as a whole, in another order than the claims came, would refuse claims that
    fit together (4, then 2 and 3, fit 4 and 5).
    """

    def __init__(
        self,
        topology: AnySubset,
        cells: Mapping[str, Sequence[tuple[int, int]]],
        tenants: Sequence[Holder],
        out: set[int],
    ) -> None:
        super().__init__(cells)
        self._parts: dict[ClaimId, dict[str, int]] = {}
        self._users: dict[str, list[tuple[Holder, int]]] = {}  # by owner of the used devices
        self._held: list[Block] = []  # by borrowers that cannot be preempted
        taken = set(out)
        for tenant in tenants:
            if tenant.guaranteed_block is not None and self._left_of(lineage_of(tenant.project)) >= len(tenant.block):
                self._settle(tenant)
            elif tenant.guaranteed_block is not None:
                self.uncovered_claims.add(tenant.claim)
            within = tenant.claim in self._parts
            if within or _is_firm(tenant):
                taken.update(tenant.block)
            if not within and _is_firm(tenant):
                self._held.append(tenant.block)
        self._free_devices = topology.n_devices - len(taken)

    def _settle(self, tenant: Holder) -> None:
        left, parts = len(tenant.block), dict[str, int]()
        for owner in lineage_of(tenant.project):
            used = min(left, self._left.get((owner, 1), 0))
            if used > 0:
                self._left[owner, 1] -= used
                parts[owner] = used
                left -= used
        if left:  # it takes the place of preempted claims that have not left yet
            first = next(owner for owner in lineage_of(tenant.project) if (owner, 1) in self._left)
            self._left[first, 1] -= left
            parts[first] = parts.get(first, 0) + left
        self._parts[tenant.claim] = parts
        for owner, used in parts.items():
            self._users.setdefault(owner, []).append((tenant, used))

    def _left_of(self, owners: Iterable[str]) -> int:
        return sum(self._left.get((owner, 1), 0) for owner in owners)

    @property
    def _unused_guarantee(self) -> int:
        return sum(self._left.values())

    def is_within(self, open_cells: UsableGuarantees, size: int, priority: int | None) -> bool:
        left = self.unused_devices(open_cells)
        if left < size and priority is not None:
            left += sum(count for _, count in self.preemptible_holders(open_cells, priority))
        return bool(open_cells) and left >= size

    def iter_placements(
        self, open_cells: UsableGuarantees, size: int, priority: int | None
    ) -> Iterator[GuaranteedPlacement]:
        nowhere = Block(())  # any devices will do
        if self.is_within(open_cells, size, priority):
            yield GuaranteedPlacement(open_cells[0][0], nowhere, nowhere)

    def find_placement(self, open_cells: UsableGuarantees, block: Block) -> GuaranteedPlacement | None:
        return (
            GuaranteedPlacement(open_cells[0][0], block, block)
            if self.is_within(open_cells, len(block), None)
            else None
        )

    def preemptible_holders(self, open_cells: UsableGuarantees, priority: int) -> list[tuple[Holder, int]]:
        """Claims that this priority may preempt, and how many devices of these cells each uses."""
        found: dict[ClaimId, tuple[Holder, int]] = {}
        for owner in sorted({owner for owner, _, _ in open_cells}):
            for tenant, used in self._users.get(owner, ()):
                if _is_preemptible_by(tenant, priority):
                    found[tenant.claim] = (tenant, used + found.get(tenant.claim, (tenant, 0))[1])
        return [found[ident] for ident in sorted(found)]

    def unused_devices(self, open_cells: UsableGuarantees) -> int:
        """Unused devices of these cells."""
        return self._left_of(owner for owner, _, _ in open_cells)

    def devices_by_project(self, tenant: Holder) -> Mapping[str, int]:
        return self._parts.get(tenant.claim, {})

    def bind_holder(self, place: GuaranteedPlacement, tenant: Holder) -> None:
        self._settle(tenant)
        self._free_devices -= len(tenant.block)

    def passes_lending_check(self, block: Block) -> bool:
        return self._free_devices - len(block) >= self._unused_guarantee

    def passes_lending_check_when_empty(self, block: Block) -> bool:
        freed = sum(len(other) for other in self._held if other.overlaps(block))  # a cell's devices stay guaranteed
        return self._free_devices + freed - len(block) >= self._unused_guarantee

    def add_firm_borrower(self, block: Block) -> None:
        self._held.append(block)
        self._free_devices -= len(block)


def _is_firm(tenant: Holder) -> bool:
    """Whether it cannot be preempted and is not leaving."""
    return not (tenant.is_preemptible or tenant.is_leaving)


class _BlockMap(GuaranteeMap):
    """For power-of-two blocks and catalogues: a guarantee is a number of blocks of each size."""

    def __init__(
        self,
        topology: PowerOfTwo | Catalogue,
        cells: Mapping[str, Sequence[tuple[int, int]]],
        tenants: Sequence[Holder],
        out: set[int],
        owners: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__(cells)
        self._topology = topology
        self._firm = free_map_for(topology)
        self._bound: dict[Block, _BoundBlock] = {}
        self._sorted: list[_BoundBlock] | None = None  # the bound cells, smallest first
        for index in sorted(out):
            self._take(Block.single(index))
        used: dict[Block, list[Holder]] = {}
        for tenant in tenants:
            if tenant.guaranteed_block is not None:
                used.setdefault(tenant.guaranteed_block, []).append(tenant)
            elif tenant.is_firm:
                self._take(tenant.block)
        for cell, within in used.items():
            self._settle(cell, within, [owners.get(tenant.project, (tenant.project,)) for tenant in within])

    def _settle(self, cell: Block, within: list[Holder], lineages: Sequence[Sequence[str]]) -> None:
        """Bind a cell to the nearest common ancestor of its claims; if no such project owns one, its claims are strays.

        The nearest owner for one of them might not be an owner for the others.
        """
        own, *others = lineages
        common = (owner for owner in own if all(owner in lineage for lineage in others))
        owner = next((owner for owner in common if self._left.get((owner, len(cell)), 0) > 0), None)
        overlaps = not self._firm.is_free(cell) and any(cell.overlaps(other) for other in self._bound)
        if owner is not None and not overlaps:
            self._left[owner, len(cell)] -= 1
            self._bound[cell] = _BoundBlock(owner, cell, within)
            self._take(cell)
            return
        for tenant in within:
            self.uncovered_claims.add(tenant.claim)
            if _is_firm(tenant):
                self._take(tenant.block)

    def _take(self, block: Block) -> None:
        for part in self._firm.free_within(block):
            self._firm.allocate(part)

    def is_within(self, open_cells: UsableGuarantees, size: int, priority: int | None) -> bool:
        return next(self.iter_placements(open_cells, size, priority), None) is not None

    def iter_placements(
        self, open_cells: UsableGuarantees, size: int, priority: int | None
    ) -> Iterator[GuaranteedPlacement]:
        able = ((cell, owner) for owner, cell, _ in open_cells if self._holds(cell, size))
        mine = {owner for owner, _, _ in open_cells}
        for bound in self._smallest_first():
            if bound.owner in mine and self._holds(len(bound.cell), size):
                cell, whole = bound.cell, (1 << size) - 1
                if len(cell) == size:
                    if all(priority is not None and _is_preemptible_by(one, priority) for one in bound.holders):
                        yield GuaranteedPlacement(bound.owner, cell, cell)
                    continue
                covered = bound.covered(priority)
                for offset in range(0, len(cell), size):
                    if not covered >> offset & whole:
                        yield GuaranteedPlacement(
                            bound.owner, cell, Block(range(cell.start + offset, cell.start + offset + size))
                        )
        for cell_size, owner in sorted(able, key=_size_first):
            if self._left.get((owner, cell_size), 0) > 0:
                for cell in self._free_cells(owner, cell_size):
                    for block in self._inside(cell, size):
                        yield GuaranteedPlacement(owner, cell, block)

    def _smallest_first(self) -> list[_BoundBlock]:
        if self._sorted is None:
            self._sorted = sorted(self._bound.values(), key=lambda one: (len(one.cell), one.cell.start))
        return self._sorted

    def _holds(self, cell: int, size: int) -> bool:
        return cell == size if isinstance(self._topology, Catalogue) else cell >= size

    def _inside(self, cell: Block, size: int) -> Iterator[Block]:
        if len(cell) == size:
            yield cell
            return
        for start in range(cell.start, cell.start + len(cell), size):
            yield Block(range(start, start + size))

    def _free_cells(self, owner: str, size: int) -> Iterator[Block]:
        """Blocks to which an unbound cell can be bound so that the other cells still fit."""
        for block in _blocks_of(self._topology, size):
            if self._firm.is_free(block) and self._fits_with_unused(block, (owner, size)):
                yield block

    def _fits_with_unused(self, block: Block, without: tuple[str, int] | None, more: Iterable[int] = ()) -> bool:
        """Whether all unbound cells (but one of ``without``) and ``more`` still fit after taking ``block``."""
        owed: dict[int, int] = {}
        for size in more:
            owed[size] = owed.get(size, 0) + 1
        for (owner, size), count in self._left.items():
            left = count - ((owner, size) == without)
            if left > 0:
                owed[size] = owed.get(size, 0) + left
        if not owed:
            return True
        parts = self._firm.free_within(block) if len(block) else []
        for part in parts:
            self._firm.allocate(part)
        try:
            return self._pack(owed)
        finally:
            for part in parts:
                self._firm.release(part)

    def _pack(self, owed: Mapping[int, int]) -> bool:
        if isinstance(self._firm, BuddyMap):
            # Sizes that divide each other pack without waste, largest first: one sum for each size is enough.
            wanted = 0
            for size in sorted(owed, reverse=True):
                wanted += size * owed[size]
                if self._firm.count_blocks(size) * size < wanted:
                    return False
            return True
        topology = self._topology
        assert isinstance(topology, Catalogue)
        sizes = [size for size in sorted(owed, reverse=True) for _ in range(owed[size])]
        free = [block for block in topology.blocks if self._firm.is_free(block)]
        return has_disjoint_blocks(free, sizes)

    def find_placement(self, open_cells: UsableGuarantees, block: Block) -> GuaranteedPlacement | None:
        mine = {owner for owner, _, _ in open_cells}
        for bound in self._smallest_first():
            if bound.owner in mine and self._holds(len(bound.cell), len(block)) and _is_inside(block, bound.cell):
                return GuaranteedPlacement(bound.owner, bound.cell, block)
        for size, owner in sorted(((size, owner) for owner, size, _ in open_cells), key=_size_first):
            if self._left.get((owner, size), 0) > 0 and self._holds(size, len(block)):
                start = block.start // size * size
                cell = block if len(block) == size else Block(range(start, start + size))
                if self._firm.is_free(cell) and self._fits_with_unused(cell, (owner, size)):
                    return GuaranteedPlacement(owner, cell, block)
        return None

    def devices_by_project(self, tenant: Holder) -> Mapping[str, int]:
        bound = self._bound.get(tenant.guaranteed_block) if tenant.guaranteed_block is not None else None
        return {bound.owner: len(tenant.block)} if bound is not None else {}

    def bind_holder(self, place: GuaranteedPlacement, tenant: Holder) -> None:
        if place.cell not in self._bound:
            self._left[place.owner, len(place.cell)] -= 1
            self._bound[place.cell] = _BoundBlock(place.owner, place.cell)
            self._sorted = None
            self._take(place.cell)
        self._bound[place.cell].add(tenant)

    def passes_lending_check(self, block: Block) -> bool:
        if len(block) and not self._firm.is_free(block):
            return False  # in a bound cell, say
        return self._fits_with_unused(block, None)

    def passes_lending_check_when_empty(self, block: Block) -> bool:
        emptied = [len(cell) for cell in self._bound if cell.overlaps(block)]  # guaranteed again by then
        return self._fits_with_unused(block, None, emptied)

    def add_firm_borrower(self, block: Block) -> None:
        self._take(block)


def _size_first(one: tuple[int, str]) -> int:
    """Sort by size only, so that the nearest owner's cells stay first: an ancestor's are for all its children."""
    return one[0]


def _covered_mask(cell: Block, blocks: Iterable[Block]) -> int:
    """The devices of a cell, a range, that are in these blocks, as a bit mask; the lowest bit is the first device."""
    covered, end = 0, cell.start + len(cell)
    for block in blocks:
        members = block.members
        if isinstance(members, range):
            first, last = max(members.start, cell.start), min(members.stop, end)
            covered |= ((1 << max(0, last - first)) - 1) << (first - cell.start)
        else:
            covered |= sum(1 << (index - cell.start) for index in members if index in cell)
    return covered


def _is_inside(block: Block, cell: Block) -> bool:
    inner, outer = block.members, cell.members
    if isinstance(inner, range) and isinstance(outer, range):
        return outer.start <= inner.start and inner.stop <= outer.stop
    return set(outer).issuperset(inner)


def _is_preemptible_by(tenant: Holder, priority: int) -> bool:
    return tenant.is_leaving or (tenant.is_preemptible and tenant.priority < priority)


def _blocks_of(topology: PowerOfTwo | Catalogue, size: int) -> Iterator[Block]:
    if isinstance(topology, Catalogue):
        yield from sorted((b for b in topology.blocks if len(b) == size), key=lambda b: (b.start, tuple(b)))
        return
    for start in range(0, topology.n_devices // size * size, size):
        yield Block(range(start, start + size))


def has_disjoint_blocks(blocks: Sequence[Block], sizes: Sequence[int]) -> bool:
    """Whether disjoint blocks of these sizes can be chosen; False also if the search takes too long."""
    by_size: dict[int, list[frozenset[int]]] = {}
    for block in sorted(blocks, key=lambda one: (one.start, tuple(one))):
        by_size.setdefault(len(block), []).append(frozenset(block))
    steps = SEARCH_STEPS_MAX

    def search(at: int, taken: frozenset[int], first: int) -> bool:
        nonlocal steps
        if at == len(sizes):
            return True
        same = at > 0 and sizes[at - 1] == sizes[at]
        candidates = by_size.get(sizes[at], [])
        for number in range(first if same else 0, len(candidates)):
            steps -= 1
            if steps < 0:
                return False
            if not candidates[number] & taken and search(at + 1, taken | candidates[number], number + 1):
                return True
        return False

    return search(0, frozenset(), 0)
